"""Static SVG figures, written by hand.

They need no script, no network and no font, give the same bytes each time, and follow the page's
light or dark theme.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

# Okabe and Ito's palette, which colour-blind readers can tell apart. The page's variables lighten
# it in the dark theme.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#6b6b6b")
# Markers, and the dashes of their lines, for the second and third round through the palette.
MARKERS = {"circle": "", "square": "9 3", "diamond": "2 2"}
TEXT_COLOR = "var(--text, #1d232b)"
GRID_COLOR = "var(--grid, #c9ced6)"
BACKGROUND_COLOR = "var(--background, #ffffff)"
MUTED_COLOR = "var(--muted, #5c6672)"
REFERENCE_DASHES = {"majority": "1 2.5", "tfidf": "5 3"}

# Sizes in pixels.
STRIP_WIDTH = 204
STRIP_HEIGHT = 30
STRIP_PADDING = 10
TICK_LABEL_WIDTH = 26  # room for a number below an axis
CHART_WIDTH = 360
CHART_HEIGHT = 230
CHART_LEFT = 44
CHART_RIGHT = 12
CHART_TOP = 30
CHART_BOTTOM = 40
PANEL_WIDTH = 320
PANEL_LEFT = 92
PANEL_RIGHT = 48
PANEL_TOP = 26
PANEL_LINE = 20
FOREST_WIDTH = 420
FOREST_RIGHT = 148  # room for a difference with its interval
CHANCE_DISTANCE = 1.0  # in spreads of the scores
MAX_MARKED_POINTS = 12  # a curve with more points has no markers


@dataclass(frozen=True)
class LinearScale:
    """A linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return pixels with one decimal."""
        share = 0.5
        if self.high > self.low:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class ReferenceLine:
    """A score that a strip plot shows as a vertical line."""

    value: float
    kind: str  # majority | tfidf | chance | copy | ceiling
    name: str


@dataclass(frozen=True)
class LineSeries:
    """One curve of a line chart; `low` and `high` are the edges of its band."""

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    hollow: bool = False
    marker: str = "circle"


def palette_color(index: int) -> str:
    """Return the colour of the model at this place of the grid."""
    place = index % len(PALETTE)
    return f"var(--c{place}, {PALETTE[place]})"


def marker_shape(index: int) -> str:
    """Return the marker of the model at this place of the grid.

    Colour and marker together distinguish 24 models.
    """
    shapes = list(MARKERS)
    return shapes[index // len(PALETTE) % len(shapes)]


def choose_ticks(low: float, high: float, *, count: int = 5) -> list[float]:
    """Return about `count` round numbers between two bounds."""
    raw = max(high - low, 1e-9) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    num_ticks = int((high - first * step) / step + 1e-9) + 1
    return [round((first + i) * step, 10) for i in range(num_ticks)]


def fit_strip_scale(values: Sequence[float]) -> LinearScale:
    """Return the scale that all strip plots of a task share, so that a column can be compared."""
    least = min(values)
    slack = 1e-9 if least else 0  # a little room below the least value, unless it is 0
    low = math.floor(10 * least - slack) / 10
    high = math.ceil(10 * max(values) + 1e-9) / 10
    return LinearScale(
        max(low, -1.0), min(max(high, low + 0.1), 1.0), STRIP_PADDING, STRIP_WIDTH - STRIP_PADDING
    )


def draw_strip_plot(
    scale: LinearScale,
    *,
    dots: Sequence[float],
    mean: float,
    interval: tuple[float, float] | None,
    references: Sequence[ReferenceLine],
    color: str,
    marker: str = "circle",
    hollow: bool = False,
    title: str = "",
) -> str:
    """Draw one score: its interval, a dot for each seed, a tick for the mean, and references."""
    middle = STRIP_HEIGHT / 2
    parts = [_draw_vertical(scale(tick), _grid_style(0.6)) for tick in _scale_ticks(scale)]
    parts += [_draw_vertical(scale(line.value), _reference_style(line)) for line in references]
    if interval:
        low = scale(max(interval[0], scale.low))
        width = max(scale(min(interval[1], scale.high)) - low, 1)
        parts.append(
            f'<rect x="{low}" y="{middle - 9}" width="{width:.1f}" height="18" rx="3" '
            f'fill="{color}" fill-opacity=".18"/>'
        )
    parts.append(
        f'<line x1="{scale(mean)}" x2="{scale(mean)}" y1="{middle - 9}" y2="{middle + 9}" '
        f'stroke="{color}" stroke-width="1.6"/>'
    )
    fill = BACKGROUND_COLOR if hollow else color
    style = f'fill="{fill}" stroke="{color}" stroke-width="1.1"'
    for height, value in zip(_spread_vertically(len(dots)), dots, strict=True):
        parts.append(_draw_marker(marker, scale(value), round(middle + height, 1), 2.7, style))
    return _wrap_svg(STRIP_WIDTH, STRIP_HEIGHT, parts, title=title, css="strip")


def _spread_vertically(count: int) -> list[float]:
    """Return offsets that keep the dots of equal seeds apart."""
    if count == 1:
        return [0]
    return [12 * i / (count - 1) - 6 for i in range(count)]


def draw_strip_axis(scale: LinearScale, *, references: Sequence[ReferenceLine], unit: str) -> str:
    """Draw the head of a column of strip plots: ticks in percent, and a letter per reference."""
    parts = [_draw_text(scale(tick), 24, f"{100 * tick:.0f}") for tick in _scale_ticks(scale)]
    last = -99.0
    for line in sorted(references, key=lambda one: one.value):
        last = min(max(scale(line.value), last + 9), STRIP_WIDTH - 5)
        parts.append(_draw_text(last, 10, line.name[0].upper(), fill=TEXT_COLOR, weight=600))
    return _wrap_svg(STRIP_WIDTH, 28, parts, title=unit, css="strip")


@dataclass(frozen=True)
class IntervalRow:
    """A score with its interval in a panel; filled if the system may be the best."""

    name: str
    detail: str
    value: float
    interval: tuple[float, float] | None
    color: str
    marker: str
    filled: bool
    text: str
    is_best: bool


def draw_interval_panel(
    rows: Sequence[IntervalRow],
    *,
    title: str,
    subtitle: str,
    band: tuple[float, float] | None,
    reference: float | None,
    chance: float,
) -> str:
    """Draw a task: a line per model, the reference as a line with its interval, chance dashed.

    Chance is left out where it is so far away that the scores would lie on top of each other.
    """
    values = [value for row in rows for value in (row.value, *(row.interval or ()))]
    values += [*(band or ())]
    low = min(values)
    high = max(values)
    if low - chance < CHANCE_DISTANCE * (high - low):
        low = min(low, chance)
    margin = 0.04 * (high - low) or 0.01
    scale = LinearScale(low - margin, high + margin, PANEL_LEFT, PANEL_WIDTH - PANEL_RIGHT)
    bottom = PANEL_TOP + PANEL_LINE * len(rows)
    parts = [
        _draw_text(0, 13, title, anchor="start", size=13, fill=TEXT_COLOR, weight=600),
        _draw_text(PANEL_WIDTH, 13, subtitle, anchor="end"),
    ]
    for tick in choose_ticks(scale.low, scale.high, count=4):
        x = scale(tick)
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="{PANEL_TOP - 4}" y2="{bottom}" {_grid_style(0.6)}/>'
        )
        parts.append(_draw_text(x, bottom + 12, f"{100 * tick:.4g}"))
    if band:
        start = scale(band[0])
        parts.append(
            f'<rect x="{start}" y="{PANEL_TOP - 4}" width="{scale(band[1]) - start:.1f}" '
            f'height="{bottom - PANEL_TOP + 4}" fill="{MUTED_COLOR}" fill-opacity=".14"/>'
        )
    for value, dashes in ((reference, ""), (chance, "2 3")):
        if value is not None and scale.low <= value <= scale.high:
            x = scale(value)
            parts.append(
                f'<line x1="{x}" x2="{x}" y1="{PANEL_TOP - 4}" y2="{bottom}" '
                f'stroke="{MUTED_COLOR}" stroke-width="1.2"{_dash_style(dashes)}/>'
            )
    for place, row in enumerate(rows):
        parts += _draw_interval_row(row, scale, PANEL_TOP + PANEL_LINE * (place + 0.5))
    return _wrap_svg(
        PANEL_WIDTH, bottom + 18, parts, title=_describe_rows(title, rows), css="panel"
    )


def _draw_interval_row(row: IntervalRow, scale: LinearScale, y: float) -> list[str]:
    fill = row.color if row.filled else BACKGROUND_COLOR
    weight = 650 if row.is_best else 400
    parts = [
        _draw_text(0, y + 4, row.name, anchor="start", size=12, fill=TEXT_COLOR, weight=weight),
        _draw_text(PANEL_WIDTH, y + 4, row.text, anchor="end", size=11, weight=weight),
    ]
    if row.interval:
        low, high = (scale(edge) for edge in row.interval)
        parts.append(
            f'<line x1="{low}" x2="{high}" y1="{y:.1f}" y2="{y:.1f}" stroke="{row.color}" '
            'stroke-width="1.8"/>'
        )
    style = f'fill="{fill}" stroke="{row.color}" stroke-width="1.6"'
    parts.append(_draw_marker(row.marker, scale(row.value), y, 4, style))
    return parts


def _describe_rows(title: str, rows: Sequence[IntervalRow]) -> str:
    """Return the alternative text of a panel."""
    described = [f"{row.name} {row.detail} {row.text}".replace("  ", " ") for row in rows]
    return f"{title}: {'; '.join(described)}"


@dataclass(frozen=True)
class EffectRow:
    """A difference in a forest plot: its mean, its interval, and a small dot for each task."""

    group: str  # rows of a group stand under its name
    name: str
    mean: float
    interval: tuple[float, float] | None
    dots: Sequence[float]
    color: str
    marker: str
    text: str


def draw_forest(rows: Sequence[EffectRow], *, title: str, subtitle: str) -> str:
    """Draw differences around a line at zero (a forest plot: Lewis and Clarke 2001)."""
    values = [0.0]
    for row in rows:
        values += [row.mean, *row.dots, *(row.interval or ())]
    margin = 0.05 * (max(values) - min(values)) or 0.01
    scale = LinearScale(
        min(values) - margin, max(values) + margin, PANEL_LEFT, FOREST_WIDTH - FOREST_RIGHT
    )
    groups = list(dict.fromkeys(row.group for row in rows))
    bottom = PANEL_TOP + PANEL_LINE * (len(rows) + len(groups))
    parts = [
        _draw_text(0, 13, title, anchor="start", size=13, fill=TEXT_COLOR, weight=600),
        _draw_text(FOREST_WIDTH, 13, subtitle, anchor="end"),
    ]
    for tick in choose_ticks(scale.low, scale.high, count=4):
        x = scale(tick)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{PANEL_TOP}" y2="{bottom}" {_grid_style(0.6)}/>')
        text = f"{100 * tick:+.4g}".replace("-", "−") if tick else "0"
        parts.append(_draw_text(x, bottom + 12, text))
    zero = scale(0.0)
    parts.append(
        f'<line x1="{zero}" x2="{zero}" y1="{PANEL_TOP}" y2="{bottom}" stroke="{MUTED_COLOR}" '
        'stroke-width="1.4"/>'
    )
    y = PANEL_TOP + 0.5 * PANEL_LINE
    for group in groups:
        parts.append(_draw_text(0, y + 4, group, anchor="start", size=11, weight=600))
        y += PANEL_LINE
        for row in rows:
            if row.group == group:
                parts += _draw_effect_row(row, scale, y)
                y += PANEL_LINE
    described = "; ".join(f"{row.name} {row.group} {row.text}" for row in rows)
    return _wrap_svg(FOREST_WIDTH, bottom + 18, parts, title=f"{title}: {described}", css="panel")


def _draw_effect_row(row: EffectRow, scale: LinearScale, y: float) -> list[str]:
    parts = [
        _draw_text(8, y + 4, row.name, anchor="start", size=12, fill=TEXT_COLOR),
        _draw_text(FOREST_WIDTH, y + 4, row.text, anchor="end", size=11),
    ]
    if row.interval:
        low, high = (scale(edge) for edge in row.interval)
        parts.append(
            f'<line x1="{low}" x2="{high}" y1="{y:.1f}" y2="{y:.1f}" stroke="{row.color}" '
            'stroke-width="1.8"/>'
        )
    if len(row.dots) > 1:
        style = f'fill="{row.color}" fill-opacity=".45"'
        parts += [_draw_marker("circle", scale(dot), y, 1.8, style) for dot in row.dots]
    style = f'fill="{row.color}" stroke="{row.color}" stroke-width="1.2"'
    parts.append(_draw_marker(row.marker, scale(row.mean), y, 4, style))
    return parts


def draw_line_chart(
    series: Sequence[LineSeries],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    percent: bool = False,
) -> str:
    """Draw a small chart of curves, 360 x 230 pixels."""
    right_edge = CHART_WIDTH - CHART_RIGHT
    floor = CHART_HEIGHT - CHART_BOTTOM
    transform = math.log10 if log_x else float
    x_values = sorted({x for one in series for x in one.x})
    y_values = [y for one in series for y in (*one.y, *one.low, *one.high)]
    low = min(y_values)
    high = max(y_values)
    margin = 0.04 * (high - low) or 0.01
    x_low = transform(x_values[0])
    x_high = transform(x_values[-1])
    x_scale = LinearScale(x_low, x_high, CHART_LEFT + 8, right_edge - 8)
    y_scale = LinearScale(low - margin, high + margin, floor, CHART_TOP)
    x_ticks = x_values if log_x else choose_ticks(x_low, x_high)
    tick_positions = [(x_scale(transform(value)), value) for value in x_ticks]

    parts = [
        _draw_text(CHART_LEFT, 14, title, anchor="start", size=12, fill=TEXT_COLOR, weight=600),
        _draw_text(right_edge, 14, y_label, anchor="end"),
    ]
    y_ticks = choose_ticks(low, high, count=4) or [low]
    for tick in y_ticks:
        y = y_scale(tick)
        parts.append(
            f'<line x1="{CHART_LEFT}" x2="{right_edge}" y1="{y}" y2="{y}" {_grid_style(0.7)}/>'
        )
    for tick in y_ticks:
        text = f"{100 * tick:.0f}" if percent else f"{tick:g}"
        parts.append(_draw_text(CHART_LEFT - 6, y_scale(tick) + 3.5, text, anchor="end"))
    for x, value in _drop_overlapping_ticks(tick_positions):
        parts.append(_draw_text(x, floor + 15, f"{value:g}"))
    parts.append(_draw_text((CHART_LEFT + right_edge) / 2, CHART_HEIGHT - 8, x_label))
    for one in series:
        parts += _draw_curve(one, [x_scale(transform(x)) for x in one.x], y_scale)
    title = f"{title}: {y_label} over {x_label}"
    return _wrap_svg(CHART_WIDTH, CHART_HEIGHT, parts, title=title, css="panel")


def _drop_overlapping_ticks(tick_positions: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the ticks, from the last one down, whose numbers do not overlap."""
    kept: list[tuple[float, float]] = []
    for x, value in reversed(tick_positions):
        if not kept or kept[-1][0] - x >= TICK_LABEL_WIDTH:
            kept.append((x, value))
    return kept[::-1]


def _draw_curve(series: LineSeries, xs: list[float], y_scale: LinearScale) -> list[str]:
    parts = []
    if series.low and len(xs) > 1:
        edge = [f"{x},{y_scale(y)}" for x, y in zip(xs, series.high, strict=True)]
        lower_edge = [f"{x},{y_scale(y)}" for x, y in zip(xs, series.low, strict=True)]
        points = " ".join(edge + lower_edge[::-1])
        parts.append(f'<polygon points="{points}" fill="{series.color}" fill-opacity=".13"/>')
    points = " ".join(f"{x},{y_scale(y)}" for x, y in zip(xs, series.y, strict=True))
    dashes = "4 3" if series.hollow else MARKERS[series.marker]
    parts.append(
        f'<polyline points="{points}" fill="none" stroke="{series.color}" stroke-width="1.8"'
        f"{_dash_style(dashes)}/>"
    )
    if len(xs) <= MAX_MARKED_POINTS:
        fill = BACKGROUND_COLOR if series.hollow else series.color
        style = f'fill="{fill}" stroke="{series.color}"'
        for x, y in zip(xs, series.y, strict=True):
            parts.append(_draw_marker(series.marker, x, y_scale(y), 3, style))
    return parts


def _draw_marker(marker: str, x: float, y: float, radius: float, style: str) -> str:
    """Draw a circle, a square, or a diamond: a square on its corner."""
    if marker == "circle":
        return f'<circle cx="{x}" cy="{y:.1f}" r="{radius}" {style}/>'
    rotation = f' transform="rotate(45 {x} {y:.1f})"' if marker == "diamond" else ""
    side = f"{2 * radius:g}"
    return (
        f'<rect x="{x - radius:.1f}" y="{y - radius:.1f}" width="{side}" height="{side}"'
        f"{rotation} {style}/>"
    )


def _draw_text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    size: float = 10,
    fill: str = MUTED_COLOR,
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}" '
        f'font-weight="{weight}" fill="{fill}">{escape(text)}</text>'
    )


def _scale_ticks(scale: LinearScale) -> list[float]:
    return choose_ticks(scale.low, scale.high)


def _draw_vertical(x: float, style: str) -> str:
    """Draw a line over the whole height of a strip plot."""
    return f'<line x1="{x}" x2="{x}" y1="0" y2="{STRIP_HEIGHT}" {style}/>'


def _grid_style(width: float) -> str:
    return f'stroke="{GRID_COLOR}" stroke-width="{width:g}"'


def _reference_style(reference: ReferenceLine) -> str:
    dashes = _dash_style(REFERENCE_DASHES.get(reference.kind, ""))
    return f'stroke="{TEXT_COLOR}" stroke-opacity=".65" stroke-width="1.2"{dashes}'


def _dash_style(dashes: str) -> str:
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _wrap_svg(width: float, height: float, parts: Iterable[str], *, title: str, css: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{css}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="system-ui, sans-serif">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
