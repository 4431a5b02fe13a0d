"""Static SVG figures, written by hand.

They need no script, network or font, and follow the page's light or dark theme.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# The smallest CIE76 distance of the first eight colours is 18 with simulated deuteranopia, and 28
# with protanopia. The page's variables lighten them in the dark theme.
PALETTE = (
    "#0b4f9e",
    "#4fb3e8",
    "#2fae7d",
    "#8150e6",
    "#b5400b",
    "#dda20f",
    "#7a1f55",
    "#17191d",
    "#008c95",
    "#d9619a",
    "#6b7a1f",
    "#a0765b",
)
FREE_COLORS = (8, 9, 10, 11)  # those of no family
TEXT_COLOR = "var(--text, #1d232b)"
GRID_COLOR = "var(--grid, #c9ced6)"
BACKGROUND_COLOR = "var(--background, #ffffff)"
MUTED_COLOR = "var(--muted, #5c6672)"

# Sizes in pixels.
STRIP_WIDTH = 204
STRIP_HEIGHT = 22
STRIP_PADDING = 10
PANEL_LEFT = 92
PANEL_LEFT_MAX = 132  # where names are long
CHARACTER_WIDTH = 6.2  # of names, about
PANEL_RIGHT = 48
PANEL_TOP = 26
PANEL_LINE = 20
FOREST_WIDTH = 420
FOREST_RIGHT = 148  # room for a difference with its interval
CHANCE_DISTANCE = 1.0  # in spreads of the scores
# The corners of markers, for a radius of one.
OUTLINES = {
    "triangle": ((0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "cross": ((-1, -1), (0, -0.4), (1, -1), (0.4, 0), (1, 1), (0, 0.4), (-1, 1), (-0.4, 0)),
}


@dataclass(frozen=True)
class PanelSize:
    """The size of a panel in pixels, and of the names in it in characters."""

    width: int
    height: int  # of one with two axes
    max_name: int  # characters of a name at the end of a line


NARROW_PANEL = PanelSize(320, 210, 21)
WIDE_PANEL = PanelSize(460, 280, 32)
MAX_WIDE_PANELS = 2


def choose_panel_size(num_panels: int) -> PanelSize:
    """Return wide panels for a section that has one or two, and narrow ones for more."""
    return WIDE_PANEL if num_panels <= MAX_WIDE_PANELS else NARROW_PANEL


def choose_layout(num_panels: int) -> str:
    """Return the class of a group of panels on the page."""
    return "few" if num_panels <= MAX_WIDE_PANELS else ""


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
class Style:
    """The colour and the marker of a model."""

    color: str
    marker: str = "circle"

    @property
    def mark(self) -> str:
        """The mark beside the model's name in a text, as SVG of 10 x 10 pixels."""
        shape = draw_marker(self.marker, 5, 5, 4, f'fill="{self.color}"')
        return f'<svg class="mark" viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">{shape}</svg>'


@dataclass(frozen=True)
class LineSeries:
    """One curve of a line chart; `hollow`: dashed, with open markers."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    hollow: bool = False
    dashed: bool = False  # with filled markers
    bold: bool = False


def palette_color(place: int) -> str:
    """Return a colour of the palette."""
    return f"var(--c{place}, {PALETTE[place]})"


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


def draw_strip(
    scale: LinearScale,
    *,
    value: float,
    interval: tuple[float, float] | None,
    reference: float | None,
    chance: float,
    baseline: float | None,
    style: Style,
) -> str:
    """Draw one score with its interval; the reference is a line, chance a dotted one."""
    middle = STRIP_HEIGHT / 2
    parts = _draw_levels(scale, reference, chance, (0, STRIP_HEIGHT), width=1.0)
    if interval:
        low, high = (scale(min(max(edge, scale.low), scale.high)) for edge in interval)
        parts.append(_draw_interval(low, high, middle, style.color))
    if baseline is not None and scale.low <= baseline <= scale.high:
        parts.append(_draw_tick(scale(baseline), middle))
    parts.append(draw_marker(style.marker, scale(value), middle, 3.6, f'fill="{style.color}"'))
    return (
        f'<svg class="strip" viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}" width="{STRIP_WIDTH}" '
        f'height="{STRIP_HEIGHT}" aria-hidden="true">{"".join(parts)}</svg>'
    )


def draw_strip_axis(scale: LinearScale, *, unit: str) -> str:
    """Draw the ticks in percent over a column of strips."""
    parts = [
        draw_text(scale(tick), 14, f"{100 * tick:.0f}")
        for tick in choose_ticks(scale.low, scale.high)
    ]
    return wrap_svg(STRIP_WIDTH, 16, parts, title=unit, css="strip")


@dataclass(frozen=True)
class IntervalRow:
    """A score or a difference with its interval in a panel."""

    name: str
    style: Style
    value: float
    interval: tuple[float, float] | None
    text: str
    baseline: float | None = None  # a grey tick: the same network with random init
    others: Sequence[float] = ()  # small dots: the model's other systems, or single tasks
    detail: str = ""  # for the alternative text alone
    is_filled: bool = True  # else it cannot be the best
    is_best: bool = False


def draw_interval_panel(
    rows: Sequence[IntervalRow],
    *,
    title: str,
    subtitle: str,
    reference: IntervalRow | None,
    chance: float,
    width: int = NARROW_PANEL.width,
) -> str:
    """Draw a task: a line per model, the reference as a line with its interval, chance dashed.

    Chance is left out where the scores would else lie on top of each other.
    """
    band = None if reference is None else reference.interval
    values = _list_values(rows)
    low = min(values)
    high = max(values)
    if low - chance < CHANCE_DISTANCE * (high - low):
        low = min(low, chance)
    margin = 0.04 * (high - low) or 0.01
    left = _room_for_names([row.name for row in rows])
    scale = LinearScale(low - margin, high + margin, left, width - PANEL_RIGHT)
    bottom = PANEL_TOP + PANEL_LINE * len(rows)
    parts = draw_heading(title, subtitle, width)
    for tick in choose_ticks(scale.low, scale.high, count=4):
        x = scale(tick)
        parts.append(draw_line(x, x, PANEL_TOP - 4, bottom, grid_style(0.6)))
        parts.append(draw_text(x, bottom + 12, f"{100 * tick:.4g}"))
    if band:
        start = scale(band[0])
        parts.append(
            f'<rect x="{start}" y="{PANEL_TOP - 4}" width="{scale(band[1]) - start:.1f}" '
            f'height="{bottom - PANEL_TOP + 4}" fill="{MUTED_COLOR}" fill-opacity=".14"/>'
        )
    level = None if reference is None else reference.value
    parts += _draw_levels(scale, level, chance, (PANEL_TOP - 4, bottom), width=1.2)
    for place, row in enumerate(rows):
        y = PANEL_TOP + PANEL_LINE * (place + 0.5)
        parts += _draw_row(row, scale, y, width, outline=1.6)
    described = [f"{row.name} {row.detail} {row.text}".replace("  ", " ") for row in rows]
    alternative = f"{title}: {'; '.join(described)}"
    return wrap_svg(width, bottom + 18, parts, title=alternative, css="panel")


def _list_values(rows: Sequence[IntervalRow]) -> list[float]:
    values = []
    for row in rows:
        values += [row.value, *row.others, *(row.interval or ())]
        if row.baseline is not None:
            values.append(row.baseline)
    return values


def _draw_levels(
    scale: LinearScale,
    reference: float | None,
    chance: float,
    edges: tuple[float, float],
    *,
    width: float,
) -> list[str]:
    """Draw upright lines at the reference, and a dotted one at chance, where the scale has them."""
    return [
        draw_line(scale(value), scale(value), *edges, f"{muted_style(width)}{dash_style(dashes)}")
        for value, dashes in ((reference, ""), (chance, "2 3"))
        if value is not None and scale.low <= value <= scale.high
    ]


def _room_for_names(names: Sequence[str]) -> float:
    """Return the width of the names at the left of a panel, in pixels."""
    longest = max(len(name) for name in names)
    return min(max(PANEL_LEFT, 8 + CHARACTER_WIDTH * longest), PANEL_LEFT_MAX)


def _draw_row(
    row: IntervalRow, scale: LinearScale, y: float, width: int, *, outline: float, indent: float = 0
) -> list[str]:
    color = row.style.color
    fill = color if row.is_filled else BACKGROUND_COLOR
    weight = 650 if row.is_best else 400
    parts = [
        draw_text(indent, y + 4, row.name, anchor="start", size=12, fill=TEXT_COLOR, weight=weight),
        draw_text(width, y + 4, row.text, anchor="end", size=11, weight=weight),
    ]
    if row.interval:
        low, high = map(scale, row.interval)
        parts.append(_draw_interval(low, high, y, color))
    if row.baseline is not None:
        parts.append(_draw_tick(scale(row.baseline), y))
    style = f'fill="{color}" fill-opacity=".7"'
    parts += [draw_marker("circle", scale(other), y, 2.2, style) for other in row.others]
    style = f'fill="{fill}" stroke="{color}" stroke-width="{outline}"'
    parts.append(draw_marker(row.style.marker, scale(row.value), y, 4, style))
    return parts


def _draw_tick(x: float, y: float) -> str:
    return draw_line(x, x, y - 6, y + 6, muted_style(1.6))


def _draw_interval(low: float, high: float, y: float, color: str) -> str:
    return draw_line(low, high, y, y, f'stroke="{color}" stroke-width="1.8"')


def draw_forest(groups: Mapping[str, Sequence[IntervalRow]], *, title: str, subtitle: str) -> str:
    """Draw differences around a line at zero, by group (a forest plot: Lewis and Clarke 2001)."""
    rows = [(row, group) for group, own in groups.items() for row in own]
    values = [0.0, *_list_values([row for row, _ in rows])]
    margin = 0.05 * (max(values) - min(values)) or 0.01
    left = _room_for_names([f"  {row.name}" for row, _ in rows])
    scale = LinearScale(
        min(values) - margin, max(values) + margin, left, FOREST_WIDTH - FOREST_RIGHT
    )
    bottom = PANEL_TOP + PANEL_LINE * (len(rows) + len(groups))
    parts = draw_heading(title, subtitle, FOREST_WIDTH)
    for tick in choose_ticks(scale.low, scale.high, count=4):
        x = scale(tick)
        parts.append(draw_line(x, x, PANEL_TOP, bottom, grid_style(0.6)))
        text = f"{100 * tick:+.4g}".replace("-", "−") if tick else "0"
        parts.append(draw_text(x, bottom + 12, text))
    zero = scale(0.0)
    parts.append(draw_line(zero, zero, PANEL_TOP, bottom, muted_style(1.4)))
    y = PANEL_TOP + 0.5 * PANEL_LINE
    for group, own in groups.items():
        room = CHARACTER_WIDTH * len(group)
        parts.append(_draw_box(0, y - 6, room, 13, f'fill="{BACKGROUND_COLOR}"'))
        parts.append(draw_text(0, y + 4, group, anchor="start", size=11, weight=600))
        y += PANEL_LINE
        for row in own:
            parts += _draw_row(row, scale, y, FOREST_WIDTH, outline=1.2, indent=8)
            y += PANEL_LINE
    described = "; ".join(f"{row.name} {group} {row.text}" for row, group in rows)
    return wrap_svg(FOREST_WIDTH, bottom + 18, parts, title=f"{title}: {described}", css="panel")


def draw_marker(marker: str, x: float, y: float, radius: float, style: str) -> str:
    """Draw a circle, square, triangle, diamond, cross or upright bar of about one size."""
    if marker == "circle":
        return f'<circle cx="{x}" cy="{y:.1f}" r="{radius}" {style}/>'
    if marker == "square":
        half = 0.9 * radius
        return _draw_box(x - half, y - half, 2 * half, 2 * half, style)
    if marker == "bar":
        return _draw_box(x - 0.35 * radius, y - 1.3 * radius, 0.7 * radius, 2.6 * radius, style)
    outline = [(x + radius * dx, y + radius * dy) for dx, dy in OUTLINES[marker]]
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in outline)
    return f'<polygon points="{points}" {style}/>'


def _draw_box(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'


def draw_text(
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


def draw_heading(title: str, subtitle: str, width: float) -> list[str]:
    """Draw a title at the left of a chart, and what it measures at the right."""
    return [
        draw_text(0, 13, title, anchor="start", size=13, fill=TEXT_COLOR, weight=600),
        draw_text(width, 13, subtitle, anchor="end"),
    ]


def draw_line(x1: float, x2: float, y1: float, y2: float, style: str) -> str:
    return f'<line x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}" {style}/>'


def grid_style(width: float) -> str:
    return f'stroke="{GRID_COLOR}" stroke-width="{width:g}"'


def muted_style(width: float) -> str:
    return f'stroke="{MUTED_COLOR}" stroke-width="{width:g}"'


def dash_style(dashes: str) -> str:
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def wrap_svg(width: float, height: float, parts: Iterable[str], *, title: str, css: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{css}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="system-ui, sans-serif">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
