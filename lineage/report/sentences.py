"""The findings in plain sentences."""

from collections.abc import Sequence

from lineage.analysis.records import Analysis, NgramComparison, TrialCounts
from lineage.report.formatting import format_model, format_si, join_with_and

METHOD_NAMES = {
    "linear_probe": "a linear probe",
    "bilstm_probe": "a BiLSTM probe",
    "finetune": "fine-tuning",
    "setfit": "SetFit",
    "tfidf": "TF-IDF",
}


def describe_intervals(analysis: Analysis) -> str:
    """Return the sources of variation in intervals: the words behind `Intervals are 95 %, `."""
    if max((one.repetitions for one in analysis.comparisons), default=0) <= 1:
        return "over items only. Nothing was repeated with another seed, which may change verdicts."
    num_pretrain_seeds = 0
    num_finetune_seeds = 0
    for score in analysis.scores:
        pretrain_seeds = {seed.pretrain_seed for seed in score.seeds} - {None}
        finetune_seeds = {seed.finetune_seed for seed in score.seeds} - {None}
        num_pretrain_seeds = max(num_pretrain_seeds, len(pretrain_seeds))
        num_finetune_seeds = max(num_finetune_seeds, len(finetune_seeds))
    sources = ["items"]
    if num_pretrain_seeds > 1:
        sources.append("pretraining seeds")
    if num_finetune_seeds > 1:
        sources.append("fine-tuning seeds")
    if sources == ["items"]:
        sources.append("seeds")
    text = f"over {join_with_and(sources)}."
    if num_finetune_seeds == 1:
        text += " There was one fine-tuning seed, so they do not cover what another would change."
    return text


def describe_ablation_models(analysis: Analysis) -> str:
    """Name the models that are compared with one other model only; empty without any."""
    names = list(analysis.grid.ablation_of)
    if not names:
        return ""
    if len(names) == 1:
        return f"{names[0]} is an ablation, so it is compared only with its original."
    return f"{join_with_and(names)} are ablations, so each is compared only with its original."


def describe_ngram_comparisons(comparisons: Sequence[NgramComparison]) -> list[str]:
    """Tell which pretrained models are not shown to have learned more than a 5-gram model."""
    findings = []
    for one in comparisons:
        if not one.learned_less:
            continue
        name = format_model(one.model)
        sentences = [
            f"{name} is not shown to have learned more than a 5-gram model of the same text."
        ]
        if one.has_more_bits:
            sentences.append(
                f"It needs {one.bits_per_byte:.3f} bits per byte of held-out text, the 5-gram "
                f"model {one.ngram_bits_per_byte:.3f}."
            )
        if one.is_never_better:
            tasks = join_with_and(one.not_better_tasks)
            sentences.append(f"On {tasks} it is not significantly better.")
        sentences.append(f"No conclusion about pretraining {name} follows from this study.")
        findings.append(" ".join(sentences))
    return findings


def describe_weak_pairs(comparisons: Sequence[NgramComparison]) -> str:
    """Name the models that read better than a 5-gram model, but judge no pairs better.

    Empty without any.
    """
    weak = [one for one in comparisons if one.is_never_better and not one.learned_less]
    if not weak:
        return ""
    names = join_with_and([format_model(one.model) for one in weak])
    verb = "predicts" if len(weak) == 1 else "predict"
    pronoun = "it is" if len(weak) == 1 else "they are"
    tasks = join_with_and(
        list(dict.fromkeys(task for one in weak for task in one.not_better_tasks))
    )
    return (
        f"{names} {verb} held-out text better than a 5-gram model, but on {tasks} {pronoun} not "
        "significantly better."
    )


def summarize_ngram_comparisons(comparisons: Sequence[NgramComparison]) -> str:
    """Name in a sentence the models that may have learned no more than a 5-gram model, if any."""
    names = [format_model(one.model) for one in comparisons if one.learned_less]
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    pronoun = "it" if len(names) == 1 else "them"
    return (
        f"{join_with_and(names)} {verb} not shown to have learned more than a 5-gram model of the "
        f"same text, so nothing follows about pretraining {pronoun}."
    )


def describe_ngram_models(analysis: Analysis) -> str:
    """Tell how models are compared with a 5-gram model, and which cannot be."""
    own = next((one for one in analysis.ngram_bits if one.model == "kneser_ney"), None)
    if own is None:
        return ""
    first = (
        "A 5-gram model (interpolated modified Kneser-Ney) is counted on "
        f"{format_si(own.train_bytes, 'B')} of the text that the models read. By bits per byte it "
        "is compared with each model that predicts every next token: it reads that model's "
        "tokens, the unknown one included, and predicts those of its last validation, forward "
        "where a model reads both ways."
    )
    sentences = [first]
    compared = {one.model for one in analysis.ngram_comparisons if one.ngram_bits_per_byte}
    others = [name for name in analysis.grid.models if name not in compared]
    if others:
        verb = "does" if len(others) == 1 else "do"
        sentences.append(
            f"{join_with_and([format_model(name) for name in others])} {verb} not predict every next token, so there are no bits "
            "per byte to compare."
        )
    sentences.append(
        "With tokens of its own, which can spell every word, a 5-gram model has "
        f"{own.bits_per_byte:.3f} bits per byte of all held-out text."
    )
    if any(score.system.model == "kneser_ney" for score in analysis.scores):
        sentences.append("That one is in the tables of minimal pairs.")
    return " ".join(sentences)


def describe_trials(trials: Sequence[TrialCounts]) -> str:
    """Tell how many configurations were tried, and warn if tuning is not matched."""
    unmatched = [one for one in trials if one.min != one.max]
    if unmatched:
        parts = [
            f"{one.min} to {one.max} configurations of {METHOD_NAMES[one.method]}"
            for one in unmatched
        ]
        return (
            f"Validation chose among {join_with_and(parts)}, depending on the system: tuning is "
            "not matched."
        )
    tuned = [one for one in trials if one.max > 1]
    if not tuned:
        return "Each system had one configuration: nothing was tuned on validation."
    parts = [f"{one.max} configurations of {METHOD_NAMES[one.method]}" for one in tuned]
    return (
        "For every system, random-init baselines too, validation chose among "
        f"{join_with_and(parts)}."
    )
