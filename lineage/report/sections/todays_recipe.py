"""Models of today's recipe, next to their predecessors of 2018."""

from collections.abc import Mapping, Sequence

import numpy as np

from lineage.analysis.records import Analysis, Comparison, Setting
from lineage.networks.registry import load_family
from lineage.report.cells import difference_cell, task_cell
from lineage.report.formatting import (
    NO_VALUE,
    css_class,
    format_label_count,
    format_loss_name,
    format_these_labels,
    format_use,
    format_verdict,
    join_with_and,
)
from lineage.report.section import (
    Block,
    Cell,
    Cells,
    Paragraph,
    ReportData,
    Section,
    Table,
    numbers,
)
from lineage.report.styles import format_model_name

NOTE = (
    "A family of 2018 and its successor, which has the block, the optimizer and the schedules that "
    "are usual today, each with its own settings. GPT-BERT also predicts next tokens, which BERT "
    "does not. Differences in points are of the same use; one without a word is not significant."
)
SAME_TOKENS = 0.01  # losses of a token are compared if texts have as many, within this share
Pair = tuple[str, str]  # a model and its predecessor


def build(report: ReportData) -> Section | None:
    """Return the losses and the tasks of each pair of models."""
    analysis = report.analysis
    pairs = find_pairs(analysis)
    if not pairs:
        return None
    found = {pair: compare(analysis, *pair) for pair in pairs}
    found = {pair: comparisons for pair, comparisons in found.items() if comparisons}
    blocks: list[Block] = [Paragraph(NOTE, "note")]
    losses = _loss_table(analysis, pairs)
    if losses.rows:
        blocks.append(losses)
    findings = []
    if found:
        findings.append(Paragraph(describe(analysis, found)))
        blocks.append(_task_table(analysis, found))
    folded = Section("By task", blocks, is_folded=True, css="note")
    return Section("What today's recipe is worth", [*findings, folded])


def find_pairs(analysis: Analysis) -> list[Pair]:
    """Return each model with one of the family that its own family succeeds."""
    families = analysis.model_families
    trained = [name for name in analysis.grid.models if name in families]
    pairs = []
    for modern in trained:
        older = load_family(families[modern]).successor_of
        pairs += [(modern, name) for name in trained if older and families[name] == older]
    return pairs


def compare(analysis: Analysis, modern: str, historical: str) -> list[Comparison]:
    """Return the comparisons of two pretrained models with the most labels of each task."""
    found = []
    for one in analysis.comparisons:
        names = {one.first.model, one.second.model}
        is_pretrained = one.first.init == one.second.init == "pretrained"
        if one.comparison_type == "models" and is_pretrained and names == {modern, historical}:
            found.append(one if one.first.model == modern else one.reversed())
    train_examples = {one.setting: one.train_examples for one in analysis.scores}
    most: dict[str, int] = {}
    for one in found:
        most[one.task] = max(most.get(one.task, 0), train_examples[one.setting])
    return [one for one in found if train_examples[one.setting] == most[one.task]]


def describe(analysis: Analysis, found: Mapping[Pair, Sequence[Comparison]]) -> str:
    """Say on which tasks each newer model is shown to be better, and on which worse."""
    has_all = format_these_labels(one for own in found.values() for one in own)
    start = "With these labels, the most" if has_all else "With the most labels"
    clauses = [_describe_pair(analysis, *pair, own) for pair, own in found.items()]
    return f"{start} of each task, in at least one use: {'; '.join(clauses)}."


def _describe_pair(
    analysis: Analysis, modern: str, historical: str, comparisons: Sequence[Comparison]
) -> str:
    name, older = (format_model_name(analysis, model) for model in (modern, historical))
    parts = []
    for verdict in ("better", "worse"):
        tasks = dict.fromkeys(one.task for one in comparisons if one.verdict == verdict)
        if tasks:
            parts.append(f"{verdict} than {older} on {join_with_and([*tasks])}")
    if not parts:
        return f"{name} is not shown to differ from {older} on any task"
    return f"{name} is shown to be {' and '.join(parts)}"


def _name_pair(analysis: Analysis, modern: str, historical: str) -> str:
    return " beside ".join(format_model_name(analysis, one) for one in (modern, historical))


def _task_table(analysis: Analysis, found: Mapping[Pair, Sequence[Comparison]]) -> Table:
    """Return a line for each task and use, with a column for each pair of models."""
    train_examples = {one.setting: one.train_examples for one in analysis.scores}
    cells: dict[tuple[Setting, str], dict[Pair, Cell]] = {}
    for pair, comparisons in found.items():
        for one in comparisons:
            own = cells.setdefault((one.setting, format_use(one.first)), {})
            own[pair] = _difference_cell(one)
    rows: list[Cells] = []
    for (setting, use), own in cells.items():
        labels = format_label_count(setting.label_count, train_examples=train_examples[setting])
        shown = [own.get(pair, Cell(NO_VALUE)) for pair in found]
        rows.append([task_cell(setting.task, labels), use, *shown])
    names = [_name_pair(analysis, *pair) for pair in found]
    return Table(["task", "use", *names], rows)


def _difference_cell(comparison: Comparison) -> Cell:
    verdict = format_verdict(comparison)
    note = "" if verdict == "no significant difference" else verdict
    return difference_cell(comparison, note=note, css=css_class(verdict))


def _loss_table(analysis: Analysis, pairs: Sequence[Pair]) -> Table:
    rows: list[Cells] = []
    for modern, historical in pairs:
        name = _name_pair(analysis, modern, historical)
        losses = _last_losses(analysis, modern), _last_losses(analysis, historical)
        shared = [metric for metric in losses[0] if metric in losses[1]]
        for metric in shared:
            is_comparable = "per_byte" in metric or _have_same_tokens(analysis, modern, historical)
            if is_comparable:
                newer, older = losses[0][metric], losses[1][metric]
                change = f"{newer - older:+.3f}".replace("-", "−")
                rows.append(
                    [name, format_loss_name(metric), f"{newer:.3f}", f"{older:.3f}", change]
                )
    columns = numbers("today", "2018", "difference")
    note = (
        "At the last validation, each on its own first batches; lower is better. A loss of a token "
        "is shown if both models split the text into equally many."
    )
    return Table(["models", "loss on held-out text", *columns], rows, note=note)


def _last_losses(analysis: Analysis, model: str) -> dict[str, float]:
    """Return the last value of each loss of a model, the mean over its pretrainings."""
    values: dict[str, list[float]] = {}
    for curve in analysis.curves:
        if curve.model == model and not curve.metric.endswith("_accuracy"):
            values.setdefault(curve.metric, []).append(curve.value[-1])
    return {metric: float(np.mean(own)) for metric, own in values.items()}


def _have_same_tokens(analysis: Analysis, first: str, second: str) -> bool:
    """Return whether both models split text into equally many tokens."""
    density = {one.model: (one.tokens or 0) / (one.text_bytes or 1) for one in analysis.budget}
    return abs(density[first] / max(density[second], 1e-9) - 1) <= SAME_TOKENS
