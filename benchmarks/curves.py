"""Write the learning curves of several trainings as one table and one plot, for real_text.py."""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

import pandas as pd

from lineage.artifacts import read_table
from lineage.report.charts import draw_line_chart
from lineage.report.figures import LineSeries, Style, palette_color

NUM_PANEL_COLUMNS = 2
PANEL_WIDTH_PX = 370
PANEL_HEIGHT_PX = 240
LEGEND_HEIGHT_PX = 26
FLOAT_FORMAT = "%.5g"
# The columns that are plotted, and the labels of their y-axes.
MEASURES = {
    "validation_bits_per_byte": "bits per byte",
    "validation_bits_per_byte_forward": "bits per byte of words, forward",
    "validation_bits_per_byte_backward": "bits per byte of words, backward",
    "validation_masked_nats": "nats a masked piece",
    "validation_next_sentence_accuracy": "next sentence, share right",
}


def read_curve(root: Path, model_name: str, seed: int) -> pd.DataFrame:
    """Read the learning curve of a pretraining.

    The columns are step, progress, text_bytes, loss, learning_rate, and the validation metrics,
    which have values only where the model was validated.
    """
    folder = root / "artifacts" / "results" / "curves"
    return read_table(folder / f"pretrain-{model_name}-{seed}.parquet")


def last_validation(curve: pd.DataFrame) -> dict[str, float]:
    """Return the metrics of the last validation during training, which uses a few batches."""
    columns = [name for name in curve.columns if name.startswith("validation_")]
    if not columns:
        return {}
    return curve[columns].dropna(how="all").iloc[-1].to_dict()


def write_curves(curves: Mapping[tuple[str, str], pd.DataFrame], out: Path) -> None:
    """Write real_text.csv with all points of each (study, model), and plot real_text.svg."""
    tables = []
    for (study, model_name), curve in curves.items():
        kept = curve.drop(columns=["progress", "learning_rate"])
        tables.append(kept.assign(study=study, model=model_name))
    table = pd.concat(tables)
    first_columns = ["study", "model", "step", "text_bytes", "loss"]
    other_columns = sorted(set(table.columns) - set(first_columns))
    table[[*first_columns, *other_columns]].to_csv(
        out / "real_text.csv", index=False, float_format=FLOAT_FORMAT, lineterminator="\n"
    )
    (out / "real_text.svg").write_text(plot_curves(curves), encoding="utf-8")


def plot_curves(curves: Mapping[tuple[str, str], pd.DataFrame]) -> str:
    """Plot one panel per study and validation metric, and return the SVG.

    Studies have different validation texts. The training loss is not plotted, because each family
    has another loss.
    """
    colors = {key: palette_color(number) for number, key in enumerate(curves)}
    panels = []
    for study in dict.fromkeys(study for study, _ in curves):
        for measure, label in MEASURES.items():
            series = []
            for (curve_study, model_name), curve in curves.items():
                if curve_study == study and measure in curve:
                    points = curve.dropna(subset=[measure])
                    megabytes = (points["text_bytes"] / 1e6).tolist()
                    color = colors[curve_study, model_name]
                    values = points[measure].tolist()
                    series.append(LineSeries(model_name, Style(color), megabytes, values))
            if series:
                panel = draw_line_chart(
                    series,
                    title=", ".join(line.name for line in series),
                    x_label=f"text read, MB ({study})",
                    y_label=label,
                )
                panels.append(panel)
    legend = {f"{model_name} ({study})": color for (study, model_name), color in colors.items()}
    return _arrange_panels(panels, legend)


def _arrange_panels(panels: list[str], legend: Mapping[str, str]) -> str:
    """Draw the panels in columns below a legend.

    CSS variables are replaced with their default colors, since some SVG viewers do not support
    them.
    """
    width = NUM_PANEL_COLUMNS * PANEL_WIDTH_PX
    label_width = width / max(len(legend), 1)
    elements = []
    for number, (label, color) in enumerate(legend.items()):
        elements.append(
            f'<text x="{10 + label_width * number:.0f}" y="17" font-size="11" font-weight="600" '
            f'fill="{color}">{escape(label)}</text>'
        )
    for number, panel in enumerate(panels):
        row, column = divmod(number, NUM_PANEL_COLUMNS)
        x = column * PANEL_WIDTH_PX
        y = LEGEND_HEIGHT_PX + row * PANEL_HEIGHT_PX
        elements.append(panel.replace("<svg ", f'<svg x="{x}" y="{y}" ', 1))
    num_rows = -(-len(panels) // NUM_PANEL_COLUMNS)
    height = LEGEND_HEIGHT_PX + num_rows * PANEL_HEIGHT_PX
    content = re.sub(r"var\(--\w+, (#\w+)\)", r"\1", "".join(elements))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif">'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{content}</svg>\n'
    )
