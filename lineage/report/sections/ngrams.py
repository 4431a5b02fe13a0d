"""Language models compared with a 5-gram model of the same text."""

from collections.abc import Sequence

from lineage.analysis.records import Analysis, NgramComparison
from lineage.report.cells import model_cell
from lineage.report.formatting import NO_VALUE, format_model, format_si, join_with_and
from lineage.report.section import (
    Cell,
    Cells,
    Column,
    Paragraph,
    ReportData,
    Section,
    Table,
    numbers,
    small,
)

MASKED_TOKENS = (
    "A masked model predicts masked tokens (bits per masked token), and so do two 5-gram models, "
    "one on each side: their probabilities are multiplied, and divided by the token's frequency, "
    "which stands beside them alone."
)
WITH_INTERVALS = (
    "Below zero, the model predicts better. Its 95 % interval is over blocks of text, for these "
    "pretrainings."
)
WITHOUT_INTERVALS = (
    "The text is that of each model's last validation, which is too short for an interval."
)


def build(report: ReportData) -> Section | None:
    """Return a line for each model that can be compared with a 5-gram model."""
    analysis = report.analysis
    comparisons = analysis.ngram_comparisons
    if not comparisons:
        return None
    texts = []  # the head of the page names the models that have learned less
    if weak := describe_weak_pairs(comparisons):
        texts.append(Paragraph(weak))
    table = Table(
        list_columns(comparisons),
        [_ngram_row(analysis, one) for one in comparisons],
        note=describe_ngram_models(analysis),
    )
    title = "Language models beside a 5-gram model"
    return Section(title, [*texts, table], subtitle="of the same text")


def list_columns(comparisons: Sequence[NgramComparison]) -> list[str | Column]:
    """Return the columns; those of masked models and of minimal pairs only if there are some."""
    columns: list[str | Column] = ["model", "predicts", *numbers("held-out text", "bits", "5-gram")]
    if _has_frequencies(comparisons):
        columns += numbers("token frequency")
    columns += numbers("difference")
    if _has_pairs(comparisons):
        columns.append(Column("minimal pairs", short="minimal pairs, against the 5-gram"))
    return columns


def _has_frequencies(comparisons: Sequence[NgramComparison]) -> bool:
    return any(one.frequency_bits is not None for one in comparisons)


def _has_pairs(comparisons: Sequence[NgramComparison]) -> bool:
    return any(one.better_tasks or one.not_better_tasks for one in comparisons)


def _ngram_row(analysis: Analysis, comparison: NgramComparison) -> Cells:
    comparisons = analysis.ngram_comparisons
    is_measured = comparison.difference is not None
    bits_css = "n worse" if is_measured and comparison.learned_less else "n"
    cells = [
        model_cell(analysis, comparison.model),
        Cell(comparison.predicted if is_measured else NO_VALUE),
        Cell(_format_units(comparison) if is_measured else NO_VALUE, css="n"),
        Cell(format_bits(comparison.bits), css=bits_css),
        Cell(format_bits(comparison.ngram_bits), css="n"),
    ]
    if _has_frequencies(comparisons):
        cells.append(Cell(format_bits(comparison.frequency_bits), css="n"))
    cells.append(_difference_cell(comparison, css=bits_css))
    if _has_pairs(comparisons):
        # Minimal pairs decide alone where nothing else was measured.
        pairs_css = "worse" if comparison.learned_less and not is_measured else ""
        cells.append(Cell(format_minimal_pairs(comparison), css=pairs_css))
    return cells


def _format_units(comparison: NgramComparison) -> str:
    """Format the length of the held-out text: `943 kB`; `35,170 tokens`."""
    if comparison.predicted == "next tokens":
        return format_si(comparison.num_units, "B")
    return f"{comparison.num_units:,} tokens"


def _difference_cell(comparison: NgramComparison, *, css: str) -> Cell:
    if comparison.difference is None:
        return Cell(NO_VALUE, css="n")
    interval = ""
    if comparison.low is not None and comparison.high is not None:
        interval = _format_interval(comparison.low, comparison.high)
    return Cell(format_bits_difference(comparison.difference), small(interval, "muted"), css=css)


def format_bits(value: float | None) -> str:
    """Format bits per byte: `1.934`."""
    return NO_VALUE if value is None else f"{value:.3f}"


def format_bits_difference(value: float) -> str:
    """Format a difference of bits with its sign: `−0.026`."""
    return f"{value:+.3f}".replace("-", "−")


def _format_interval(low: float, high: float) -> str:
    return f"{format_bits_difference(low)} to {format_bits_difference(high)}"


def format_minimal_pairs(comparison: NgramComparison) -> str:
    """Name the tasks by verdict: `better on blimp; not better on agreement`."""
    parts = []
    if comparison.better_tasks:
        parts.append(f"better on {join_with_and(comparison.better_tasks)}")
    if comparison.not_better_tasks:
        parts.append(f"not better on {join_with_and(comparison.not_better_tasks)}")
    return "; ".join(parts) or NO_VALUE


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


def describe_ngram_models(analysis: Analysis) -> str:
    """Tell how models are compared with a 5-gram model, and which cannot be."""
    own = next((one for one in analysis.ngram_bits if one.model == "kneser_ney"), None)
    if own is None:
        return ""
    comparisons = analysis.ngram_comparisons
    counting = (
        "A 5-gram model (interpolated modified Kneser-Ney) is counted on "
        f"{format_si(own.train_bytes, 'B')} of the models' text, in each model's tokens, and "
        "predicts the same held-out text: the next tokens (bits per byte), forward where a model "
        "reads both ways."
    )
    sentences = [counting]
    if _has_frequencies(comparisons):
        sentences.append(MASKED_TOKENS)
    measured = [one for one in comparisons if one.difference is not None]
    if measured:
        has_intervals = any(one.has_interval for one in measured)
        sentences.append(WITH_INTERVALS if has_intervals else WITHOUT_INTERVALS)
    compared = {one.model for one in comparisons if one.ngram_bits}
    others = [name for name in analysis.grid.models if name not in compared]
    if others:
        names = join_with_and([format_model(name) for name in others])
        sentences.append(f"There is no such comparison for {names}.")
    sentences.append(
        "With tokens of its own, which can spell every word, a 5-gram model has "
        f"{own.bits_per_byte:.3f} bits per byte of all held-out text."
    )
    if any(score.system.model == "kneser_ney" for score in analysis.scores):
        sentences.append("That one answers minimal pairs.")
    return " ".join(sentences)
