"""Static SVG, drawn by hand: no script, no network, no fonts, the same bytes each time, and colours that follow the page's light or dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# Okabe and Ito's palette, told apart by colour-blind readers; a variable lets the page lighten it on dark ground.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#6b6b6b")
MARKERS = {
    "circle": "",
    "square": "9 3",
    "diamond": "2 2",
}  # of the marks, and the dashes of the lines, when all colours were taken once, twice
TEXT_COLOR, GRID_COLOR, BACKGROUND_COLOR = (
    "var(--ink, #1d232b)",
    "var(--faint, #c9ced6)",
    "var(--ground, #ffffff)",
)
MUTED_COLOR = "var(--muted, #5c6672)"
STRIP_WIDTH, STRIP_HEIGHT, STRIP_PADDING = 204, 30, 10
TICK_LABEL_WIDTH = 26  # pixels that a number under an axis needs


@dataclass(frozen=True)
class LinearScale:
    """A linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixels, one decimal."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class ReferenceLine:
    """A reference that a strip shows as a vertical line."""

    value: float
    kind: str  # majority | tfidf | ceiling
    name: str


@dataclass(frozen=True)
class LineSeries:
    """One curve of a panel; `low` and `high` are its band."""

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    hollow: bool = False
    marker: str = "circle"


def palette_color(index: int) -> str:
    """The colour of the variant at this place of the grid."""
    place = index % len(PALETTE)
    return f"var(--c{place}, {PALETTE[place]})"


def marker_shape(index: int) -> str:
    """The shape of the marks of the variant at this place: colour and shape together tell 24 variants apart."""
    return [*MARKERS][index // len(PALETTE) % len(MARKERS)]


def choose_ticks(low: float, high: float, *, count: int = 5) -> list[float]:
    """Round numbers between two bounds."""
    raw = max(high - low, 1e-9) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [
        round((first + i) * step, 10) for i in range(int((high - first * step) / step + 1e-9) + 1)
    ]


def fit_strip_scale(values: Sequence[float]) -> LinearScale:
    """The scale that all strips of one task share, so that they can be read down the column."""
    low = (
        math.floor(10 * min(values) - (1e-9 if min(values) else 0)) / 10
    )  # a little room below the least, but for 0, which most scores end at
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
    """One cell: its interval, a dot a seed, its mean as a tick, and the references behind them."""
    middle = STRIP_HEIGHT / 2
    parts = _draw_grid(scale) + [_draw_reference(scale, line) for line in references]
    if interval:
        low, high = scale(max(interval[0], scale.low)), scale(min(interval[1], scale.high))
        parts.append(
            f'<rect x="{low}" y="{middle - 9}" width="{max(high - low, 1):.1f}" height="18" rx="3" fill="{color}" fill-opacity=".18"/>'
        )
    parts.append(
        f'<line x1="{scale(mean)}" x2="{scale(mean)}" y1="{middle - 9}" y2="{middle + 9}" stroke="{color}" stroke-width="1.6"/>'
    )
    fill = BACKGROUND_COLOR if hollow else color
    for i, value in enumerate(dots):  # one above the other, so that equal seeds stay two dots
        height = middle + (12 * i / (len(dots) - 1) - 6 if len(dots) > 1 else 0)
        parts.append(
            _draw_marker(
                marker,
                scale(value),
                round(height, 1),
                2.7,
                f'fill="{fill}" stroke="{color}" stroke-width="1.1"',
            )
        )
    return _wrap_svg(STRIP_WIDTH, STRIP_HEIGHT, parts, title=title, css="strip")


def draw_strip_axis(scale: LinearScale, *, references: Sequence[ReferenceLine], unit: str) -> str:
    """The head of a column of strips: its ticks in hundredths, and a letter for each reference."""
    parts = [
        _draw_text(scale(tick), 24, f"{100 * tick:.0f}")
        for tick in choose_ticks(scale.low, scale.high)
    ]
    last = -99.0
    for line in sorted(references, key=lambda one: one.value):
        last = min(max(scale(line.value), last + 9), STRIP_WIDTH - 5)
        parts.append(_draw_text(last, 10, line.name[0].upper(), fill=TEXT_COLOR, weight=600))
    return _wrap_svg(STRIP_WIDTH, 28, parts, title=unit, css="strip")


def draw_line_chart(
    series: Sequence[LineSeries],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    percent: bool = False,
) -> str:
    """A small chart of curves, 360 x 230, that stands beside others or under them."""
    width, height, left, right, top, bottom = 360, 230, 44, 12, 30, 40
    transform = math.log10 if log_x else float
    xs = [transform(x) for one in series for x in one.x]
    ys = [y for one in series for y in (*one.y, *one.low, *one.high)]
    y_ticks = choose_ticks(min(ys), max(ys), count=4) or [min(ys)]
    margin = 0.04 * (max(ys) - min(ys)) or 0.01
    x_scale = LinearScale(min(xs), max(xs), left + 8, width - right - 8)
    y_scale = LinearScale(min(ys) - margin, max(ys) + margin, height - bottom, top)
    parts = [
        _draw_text(left, 14, title, anchor="start", size=12, fill=TEXT_COLOR, weight=600),
        _draw_text(width - right, 14, y_label, anchor="end"),
    ]
    parts += [
        f'<line x1="{left}" x2="{width - right}" y1="{y_scale(t)}" y2="{y_scale(t)}" stroke="{GRID_COLOR}" stroke-width=".7"/>'
        for t in y_ticks
    ]
    parts += [
        _draw_text(
            left - 6, y_scale(t) + 3.5, f"{100 * t:.0f}" if percent else f"{t:g}", anchor="end"
        )
        for t in y_ticks
    ]
    x_ticks = (
        sorted({x for one in series for x in one.x}) if log_x else choose_ticks(min(xs), max(xs))
    )
    parts += [
        _draw_text(x, height - bottom + 15, f"{value:g}")
        for x, value in _drop_overlapping_ticks(
            [(x_scale(transform(value)), value) for value in x_ticks]
        )
    ]
    parts.append(_draw_text((left + width - right) / 2, height - 8, x_label))
    for one in series:
        parts += _draw_curve(one, [x_scale(transform(x)) for x in one.x], y_scale)
    return _wrap_svg(width, height, parts, title=f"{title}: {y_label} over {x_label}", css="panel")


def _drop_overlapping_ticks(tick_positions: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those of the marks, from the last one down, whose numbers do not run into each other."""
    kept: list[tuple[float, float]] = []
    for x, value in reversed(tick_positions):
        if not kept or kept[-1][0] - x >= TICK_LABEL_WIDTH:
            kept.append((x, value))
    return kept[::-1]


def _draw_curve(series: LineSeries, xs: list[float], y_scale: LinearScale) -> list[str]:
    parts = []
    if series.low and len(xs) > 1:
        edge = [f"{x},{y_scale(y)}" for x, y in zip(xs, series.high, strict=True)]
        edge += [f"{x},{y_scale(y)}" for x, y in reversed(list(zip(xs, series.low, strict=True)))]
        parts.append(
            f'<polygon points="{" ".join(edge)}" fill="{series.color}" fill-opacity=".13"/>'
        )
    points = " ".join(f"{x},{y_scale(y)}" for x, y in zip(xs, series.y, strict=True))
    dash_pattern = "4 3" if series.hollow else MARKERS[series.marker]
    dash = f' stroke-dasharray="{dash_pattern}"' if dash_pattern else ""
    parts.append(
        f'<polyline points="{points}" fill="none" stroke="{series.color}" stroke-width="1.8"{dash}/>'
    )
    if len(xs) <= 12:
        fill = BACKGROUND_COLOR if series.hollow else series.color
        parts += [
            _draw_marker(series.marker, x, y_scale(y), 3, f'fill="{fill}" stroke="{series.color}"')
            for x, y in zip(xs, series.y, strict=True)
        ]
    return parts


def _draw_marker(marker: str, x: float, y: float, radius: float, style: str) -> str:
    """A circle, or a square that may stand on its corner."""
    if marker == "circle":
        return f'<circle cx="{x}" cy="{y:.1f}" r="{radius}" {style}/>'
    turned = f' transform="rotate(45 {x} {y:.1f})"' if marker == "diamond" else ""
    return f'<rect x="{x - radius:.1f}" y="{y - radius:.1f}" width="{2 * radius:g}" height="{2 * radius:g}"{turned} {style}/>'


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
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}" font-weight="{weight}" fill="{fill}">{escape(text)}</text>'


def _draw_grid(scale: LinearScale) -> list[str]:
    return [
        f'<line x1="{scale(t)}" x2="{scale(t)}" y1="0" y2="{STRIP_HEIGHT}" stroke="{GRID_COLOR}" stroke-width=".6"/>'
        for t in choose_ticks(scale.low, scale.high)
    ]


def _draw_reference(scale: LinearScale, reference: ReferenceLine) -> str:
    return f'<line x1="{scale(reference.value)}" x2="{scale(reference.value)}" y1="0" y2="{STRIP_HEIGHT}" {_line_style(reference.kind)}/>'


def _line_style(kind: str) -> str:
    dash = {"majority": "1 2.5", "tfidf": "5 3"}.get(kind)
    return f'stroke="{TEXT_COLOR}" stroke-opacity=".65" stroke-width="1.2"' + (
        f' stroke-dasharray="{dash}"' if dash else ""
    )


def _wrap_svg(width: float, height: float, parts: list[str], *, title: str, css: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{css}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )
