"""Domain-adaptive pretraining: the loss of each model before and after it."""

from lineage.analysis.records import AdaptationEffect, Analysis
from lineage.report.formatting import format_loss_name, format_seconds, format_si
from lineage.report.notes import format_notes
from lineage.report.section import Cell, Cells, Columns, Piece, ReportData, Section, Table, numbers
from lineage.report.styles import format_model_name, loss_did_not_fall, model_style

COLUMNS: Columns = (
    "model",
    "task",
    *numbers("text read", "time"),
    "loss",
    *numbers("before", "after"),
    "outcome",
)


def build(report: ReportData) -> Section | None:
    """Return the adaptations by task, in the order of the grid."""
    analysis = report.analysis
    models = list(analysis.grid.models)
    effects = sorted(
        analysis.adaptation, key=lambda one: (one.task, models.index(one.model), one.metric)
    )
    if not effects:
        return None
    note = "The loss of every adapted language model fell."
    if any(map(loss_did_not_fall, effects)):
        note = "† This loss did not fall, so read the adapted results of the model with doubt."
    rows = [_adaptation_row(analysis, one) for one in effects]
    return Section(
        "Domain-adaptive pretraining",
        [Table(COLUMNS, rows, note=note, is_wide=True)],
        subtitle="on held-out text of the target",
    )


def _adaptation_row(analysis: Analysis, effect: AdaptationEffect) -> Cells:
    name = format_model_name(analysis, effect.model)
    css = "" if effect.num_improved == effect.num_pretrainings else "worse"
    outcome = format_adaptation_outcome(effect)
    notes = format_notes(effect.notes)
    pieces = [Piece(f"{outcome};" if notes else outcome, css), Piece(notes, "muted")]
    return [
        Cell(name, svg=model_style(analysis, effect.model).mark),
        effect.task,
        format_si(effect.text_bytes, "B"),
        format_seconds(effect.seconds),
        format_loss_name(effect.metric),
        f"{effect.before:.3f}",
        f"{effect.after:.3f}",
        Cell(more=pieces if notes else pieces[:1]),
    ]


def format_adaptation_outcome(effect: AdaptationEffect) -> str:
    """Tell whether a loss fell, or an accuracy rose; a dagger marks a loss that did not fall."""
    is_accuracy = effect.metric.endswith("_accuracy")
    verb = "rose" if is_accuracy else "fell"
    if effect.num_improved == effect.num_pretrainings:
        return verb
    dagger = "† " if loss_did_not_fall(effect) else ""
    if effect.num_improved:
        return f"{dagger}{verb} in {effect.num_improved} of {effect.num_pretrainings} pretrainings"
    return f"{dagger}did not {'rise' if is_accuracy else 'fall'}"
