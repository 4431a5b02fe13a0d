"""The loss of pretraining over the text read."""

from lineage.analysis.records import Analysis
from lineage.report import charts
from lineage.report.figures import LineSeries
from lineage.report.formatting import format_loss_name, format_model
from lineage.report.section import Figures, Paragraph, ReportData, Section
from lineage.report.styles import model_style


def build(report: ReportData) -> Section | None:
    """Return a chart for each kind of loss."""
    drawn = draw_loss_curves(report.analysis)
    if not drawn:
        return None
    text = (
        "Losses of different kinds cannot be compared: a masked model sees both sides of what it "
        "predicts. With a word vocabulary, all unknown words count as one, so its bits per byte "
        "are too low to compare."
    )
    if any(curve.metric == "masked_nats" for curve in report.analysis.curves):
        text += (
            " BERT may read longer sequences in the last part of its text; its loss can rise there."
        )
    return Section(
        "Pretraining",
        [Paragraph(text, "note"), Figures(drawn, file="loss-curves")],
        subtitle="loss on held-out text, over the text read",
        only="html",
    )


def draw_loss_curves(analysis: Analysis) -> list[str]:
    """Draw validation losses over text read, a chart per metric.

    Metrics that count different things, such as masked tokens, never share an axis.
    """
    found = []
    for metric in sorted({curve.metric for curve in analysis.curves}):
        series = []
        for curve in analysis.curves:
            if curve.metric == metric:
                style = model_style(analysis, curve.model)
                megabytes = [count / 1e6 for count in curve.text_bytes]
                series.append(LineSeries(format_model(curve.model), style, megabytes, curve.value))
        found.append(
            charts.draw_line_chart(
                series,
                title="held-out text",
                x_label="text read, MB",
                y_label=format_loss_name(metric),
            )
        )
    return found
