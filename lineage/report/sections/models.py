"""The models: what they read, how they learn, and what a byte of text costs them."""

from lineage.analysis.records import PretrainingBudget
from lineage.report.formatting import format_si
from lineage.report.section import Column, ReportData, Section, Table
from lineage.report.styles import format_model_name

NOTE = (
    "Cost: floating-point operations of pretraining for each byte of text read; n/a if they are "
    "not counted, as for static vectors."
)


def build(report: ReportData) -> Section | None:
    """Return a line for each model, with the keys of its description as headings."""
    if not report.model_descriptions:
        return None
    names = [name.replace("_", " ") for name in report.model_descriptions[0]]
    columns = [*(Column(name, "wrap") for name in names), Column("cost", "n")]
    budgets = {one.model: one for one in report.analysis.budget}
    rows = []
    for description in report.model_descriptions:
        model = description["model"]
        shown = {**description, "model": format_model_name(report.analysis, model)}
        rows.append([*shown.values(), format_training_cost(budgets.get(model))])
    return Section("Models", [Table(columns, rows, note=NOTE, css="how", is_wide=True)])


def format_training_cost(budget: PretrainingBudget | None) -> str:
    """Format FLOPs per byte of text: `775 k FLOPs a byte`; `n/a` if FLOPs are not counted."""
    if budget is None or budget.train_flops is None or not budget.text_bytes:
        return "n/a"
    return f"{format_si(budget.train_flops / budget.text_bytes)} FLOPs a byte"
