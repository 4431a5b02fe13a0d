"""The model card of a kept system."""

from pathlib import Path

from lineage.methods.registry import find_method_type
from lineage.methods.saved import SystemRecord

CARD_FILE = "README.md"
INIT_TEXTS = {
    "pretrained": "pretrained on the study's corpus",
    "adapted": "pretrained on the study's corpus and adapted to the task's texts",
    "target_only": "pretrained on the task's texts alone",
    "random": "with random weights",
}


def write_card(folder: Path, record: SystemRecord) -> None:
    """Write README.md into a system's folder."""
    (folder / CARD_FILE).write_text(format_card(record), encoding="utf-8")


def format_card(record: SystemRecord) -> str:
    """Return a system's model card as Markdown."""
    settings = [
        f"{key} {value}"
        for key, value in sorted(record.settings.items())
        if key in ("C", "l2", "learning_rate", "features", "pooling")
    ]
    command = f"lineage predict --task {record.task} --system {record.name}"
    lines = [
        f"# {record.name} for {record.task}",
        _describe_system(record),
        "",
        f"- Task: {record.task}, of kind {record.kind}, language {record.language}.",
        *_describe_scores(record),
        f"- Chosen settings: {', '.join(settings) or 'the defaults'}.",
    ]
    if record.fold is not None:
        lines.append("- Trained without the first fold, on which it was tested.")
    if record.labels:
        lines.append(f"- Answers: {', '.join(record.labels)}.")
    if record.transfer != "zero_shot":
        learned = "It learned from the labels of one task."
        lines += ["", f"{learned} On text of another kind its scores may be lower."]
    lines += [
        "",
        "```sh",
        f"{command} --labels {record.label_count} new.csv -o labelled.csv",
        "```",
        "A copy of this folder that `lineage export` made is used by its path:",
        "",
        "```sh",
        "lineage predict --system FOLDER new.csv -o labelled.csv",
        "```",
        "",
    ]
    return "\n".join(lines)


def describe_training(record: SystemRecord) -> str:
    """Say on how many items a system was trained, and if it was fitted again, its score before.

    Such as `trained on 440 items with seed 0; when it was trained on 340, accuracy on test was
    0.8400 (mean of 2 seeds: 0.8500)`.
    """
    if record.transfer == "zero_shot":
        return "not trained on the task"
    text = f"trained on {record.train_examples:,} items with seed {record.finetune_seed}"
    refit = record.refit
    if refit is None:
        return text
    text += f"; when it was trained on {refit.train_examples:,}, {record.metric} on {refit.split} "
    text += f"was {_format_score(refit.seed_score)}"
    if refit.num_seeds > 1:
        text += f" (mean of {refit.num_seeds} seeds: {refit.mean_score:.4f})"
    return text


def _format_score(score: float | None) -> str:
    return "undefined" if score is None else f"{score:.4f}"


def _describe_scores(record: SystemRecord) -> list[str]:
    """Return the lines on what a system has learned from, and how it scores."""
    score = _format_score(record.validation_score)
    trained_on = f"{record.train_examples:,} labelled items (labels: {record.label_count})"
    training = f"Trained on {trained_on}, fine-tuning seed {record.finetune_seed}."
    if record.transfer == "zero_shot":
        training = "Not trained on the task."
    lines = [
        f"- {training}",
        f"- {record.metric} on validation: {score}. The report has the scores on test items.",
    ]
    refit = record.refit
    if refit is None:
        return lines
    lines[1] = (
        f"- The validation items are among them. Its scores are those of the same system before, "
        f"which had learned from {refit.train_examples:,} items: {record.metric} {score} on "
        f"validation, and {_format_score(refit.seed_score)} on {refit.split}."
    )
    if refit.num_seeds > 1:
        lines[1] += (
            f" The report has {refit.mean_score:.4f}, the mean of {refit.num_seeds} seeds; this "
            "system has one of them."
        )
    return lines


def _describe_system(record: SystemRecord) -> str:
    if record.transfer == "none":
        return "Logistic or ridge regression on TF-IDF vectors."
    model = f"{record.model} (family {record.family}), {INIT_TEXTS[record.init]}"
    if record.family == "public":
        model = f"{record.model}, a public checkpoint"
        if record.init == "adapted":
            model += " adapted to the task's texts"
    method = find_method_type(record.transfer, record.head)
    assert method is not None, record.name
    return method.descriptions[record.head].format(model=model)
