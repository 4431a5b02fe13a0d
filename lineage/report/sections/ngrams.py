"""Language models compared with a 5-gram model of the same text."""

from collections.abc import Sequence

from lineage.analysis.records import Analysis, NgramComparison
from lineage.report.cells import model_cell
from lineage.report.formatting import NO_VALUE, format_model, format_si, join_with_and
from lineage.report.section import (
    Cell,
    Cells,
    Column,
    Columns,
    Paragraph,
    ReportData,
    Section,
    Table,
    numbers,
)

COLUMNS: Columns = (
    "model",
    *numbers("bits per byte", "5-gram"),
    Column("minimal pairs", short="minimal pairs, against the 5-gram"),
)


def build(report: ReportData) -> Section | None:
    """Return a line for each model that can be compared with a 5-gram model."""
    analysis = report.analysis
    comparisons = analysis.ngram_comparisons
    if not comparisons:
        return None
    texts = [Paragraph(text, "worse") for text in describe_ngram_comparisons(comparisons)]
    if weak := describe_weak_pairs(comparisons):
        texts.append(Paragraph(weak))
    rows = [_ngram_row(analysis, one) for one in comparisons]
    table = Table(COLUMNS, rows, note=describe_ngram_models(analysis))
    title = "Language models beside a 5-gram model"
    return Section(title, [*texts, table], subtitle="of the same text")


def _ngram_row(analysis: Analysis, comparison: NgramComparison) -> Cells:
    # Minimal pairs alone decide where bits per byte show nothing.
    has_weak_pairs = comparison.learned_less and not comparison.has_more_bits
    bits = format_bits(comparison.bits_per_byte)
    return [
        model_cell(analysis, comparison.model),
        Cell(bits, css="n worse" if comparison.has_more_bits else ""),
        format_bits(comparison.ngram_bits_per_byte),
        Cell(format_minimal_pairs(comparison), css="worse" if has_weak_pairs else ""),
    ]


def format_bits(value: float | None) -> str:
    """Format bits per byte: `1.934`."""
    return NO_VALUE if value is None else f"{value:.3f}"


def format_minimal_pairs(comparison: NgramComparison) -> str:
    """Name the tasks by verdict: `better on blimp; not better on agreement`."""
    parts = []
    if comparison.better_tasks:
        parts.append(f"better on {join_with_and(comparison.better_tasks)}")
    if comparison.not_better_tasks:
        parts.append(f"not better on {join_with_and(comparison.not_better_tasks)}")
    return "; ".join(parts) or NO_VALUE


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
