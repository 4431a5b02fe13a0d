"""The budget of each model: text, tokens, parameters, time and memory of pretraining."""

from lineage.analysis.records import Analysis, PretrainingBudget
from lineage.report.cells import model_cell
from lineage.report.costs import describe_devices
from lineage.report.formatting import format_epochs, format_seconds, format_si
from lineage.report.section import Cells, Columns, ReportData, Section, Table, numbers
from lineage.report.styles import format_unmatched_reason

AMOUNTS = ("text", "epochs")
MEASURES = (
    "tokens",
    "body parameters",
    "all parameters",
    "training FLOPs",
    "time",
    "peak memory",
)


def build(report: ReportData) -> Section:
    """Return a line for each model; what all have read alike is a sentence, and no column."""
    budget = report.analysis.budget
    amounts = {_format_amounts(one) for one in budget}
    is_alike = len(amounts) == 1
    rows = [_budget_row(report.analysis, one, has_amounts=not is_alike) for one in budget]
    columns: Columns = ["model", *numbers(*([] if is_alike else AMOUNTS), *MEASURES)]
    note = _describe_budget(report)
    if is_alike:
        ((text, epochs),) = amounts
        note = f"Each has read {text} of text, {epochs} epochs. {note}"
    table = Table(columns, rows, note=note, is_wide=True)
    return Section("Budget and cost", [table], anchor="budget", link="Budget", is_folded=True)


def _format_amounts(budget: PretrainingBudget) -> tuple[str, str]:
    return format_si(budget.text_bytes, "B"), format_epochs(budget.epochs)


def _budget_row(analysis: Analysis, budget: PretrainingBudget, *, has_amounts: bool) -> Cells:
    return [
        model_cell(analysis, budget.model, format_unmatched_reason(analysis, budget.model)),
        *(_format_amounts(budget) if has_amounts else []),
        format_si(budget.tokens),
        format_si(budget.body_parameters),
        format_si(budget.total_parameters),
        format_si(budget.train_flops),
        format_seconds(budget.seconds),
        format_si(budget.peak_memory_bytes, "B"),
    ]


def _describe_budget(report: ReportData) -> str:
    matched = (
        "Text is matched (at most one pass for models that only count words), and so are body "
        "parameters if `budget.body_parameters` is set"
    )
    if report.analysis.grid.two_budget_systems:
        matched += "; two budgets are added up"
    if report.analysis.public_models:
        matched += (
            "; what public checkpoints had read before, and were given, is unknown and not counted"
        )
    sentences = [
        f"{matched}.",
        "The rest follows from the method.",
        "Body: without embeddings, softmax and heads.",
    ]
    if report.analysis.adaptation:
        sentences.append("Adaptation is not included; its table is below.")
    if devices := describe_devices(report.costs):
        sentences.append(devices)
    return " ".join(sentences)
