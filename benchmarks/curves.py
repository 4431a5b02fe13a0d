"""The curves of trainings as one small table and one picture: what real_text.py keeps of them."""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

import pandas as pd

from lineage.artifacts import read_table
from lineage.report.figures import LineSeries, draw_line_chart, palette_color

ACROSS, WIDTH, HEIGHT, TOP = 2, 370, 240, 26
DIGITS = "%.5g"
MEASURES = {
    "validation_bits_per_byte": "bits per byte",
    "validation_bits_per_byte_forward": "bits per byte of words, forward",
    "validation_bits_per_byte_backward": "bits per byte of words, backward",
    "validation_masked_nats": "nats a masked piece",
    "validation_next_sentence_accuracy": "next sentence, share right",
}


def curve(root: Path, variant: str, seed: int) -> pd.DataFrame:
    """The curve that the stage wrote: step, progress, text_bytes, loss, learning_rate, and what validation found where it looked."""
    return read_table(
        root / "artifacts" / "results" / "curves" / f"pretrain-{variant}-{seed}.parquet"
    )


def last_check(points: pd.DataFrame) -> dict[str, float]:
    """What the last validation on the way found, on its few batches."""
    looked = [name for name in points.columns if name.startswith("validation_")]
    return points[looked].dropna(how="all").iloc[-1].to_dict() if looked else {}


def write(found: Mapping[tuple[str, str], pd.DataFrame], out: Path) -> None:
    """real_text.csv with every point of every (profile, model), and real_text.svg."""
    rows = [
        points.drop(columns=["progress", "learning_rate"]).assign(profile=profile, model=model)
        for (profile, model), points in found.items()
    ]
    whole = pd.concat(rows)
    first = ["profile", "model", "step", "text_bytes", "loss"]
    whole[[*first, *sorted(set(whole.columns) - set(first))]].to_csv(
        out / "real_text.csv", index=False, float_format=DIGITS, lineterminator="\n"
    )
    (out / "real_text.svg").write_text(picture(found), encoding="utf-8")


def picture(found: Mapping[tuple[str, str], pd.DataFrame]) -> str:
    """A panel a measure and profile, whose validation texts differ; the training loss is drawn in none, since each family's counts other things."""
    panels, shades = [], {key: palette_color(number) for number, key in enumerate(found)}
    for profile in dict.fromkeys(profile for profile, _ in found):
        for measure, words in MEASURES.items():
            series = []
            for (where, variant), points in found.items():
                if where == profile and measure in points:
                    looks = points.dropna(subset=[measure])
                    megabytes = (looks["text_bytes"] / 1e6).tolist()
                    series.append(
                        LineSeries(
                            variant, shades[where, variant], megabytes, looks[measure].tolist()
                        )
                    )
            if series:
                title = ", ".join(one.name for one in series)
                panels.append(
                    draw_line_chart(
                        series, title=title, x_label=f"text read, MB ({profile})", y_label=words
                    )
                )
    return _page(
        panels, {f"{variant} ({profile})": shade for (profile, variant), shade in shades.items()}
    )


def _page(panels: list[str], legend: Mapping[str, str]) -> str:
    """The panels side by side under the names of their colours, which no page lightens here: not every viewer knows variables."""
    step = ACROSS * WIDTH / max(len(legend), 1)
    parts = [f'<text x="{10 + step * number:.0f}" y="17" font-size="11" font-weight="600" fill="{shade}">{escape(name)}</text>'
             for number, (name, shade) in enumerate(legend.items())]  # fmt: skip
    for number, one in enumerate(panels):
        down, across = divmod(number, ACROSS)
        parts.append(
            one.replace("<svg ", f'<svg x="{across * WIDTH}" y="{TOP + down * HEIGHT}" ', 1)
        )
    width, height = ACROSS * WIDTH, TOP + -(-len(panels) // ACROSS) * HEIGHT
    drawn = re.sub(r"var\(--\w+, (#\w+)\)", r"\1", "".join(parts))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif">'
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>{drawn}</svg>\n')  # fmt: skip
