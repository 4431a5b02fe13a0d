"""Charts with two axes, written by hand as `figures` are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lineage.report.figures import (
    BACKGROUND_COLOR,
    CHARACTER_WIDTH,
    NARROW_PANEL,
    TEXT_COLOR,
    LinearScale,
    LineSeries,
    PanelSize,
    Style,
    choose_ticks,
    dash_style,
    draw_heading,
    draw_line,
    draw_marker,
    draw_text,
    grid_style,
    muted_style,
    wrap_svg,
)
from lineage.report.formatting import format_seconds

# Sizes in pixels.
TICK_LABEL_WIDTH = 26  # room for a number below an axis
CHART_WIDTH = 420
CHART_HEIGHT = 230
CHART_LEFT = 44
CHART_TOP = 30
CHART_BOTTOM = 40
MAX_MARKED_POINTS = 12  # a curve with more points has no markers
PLOT_WIDTH = NARROW_PANEL.width  # of charts that have one size
PLOT_HEIGHT = NARROW_PANEL.height
PLOT_LEFT = 30
PLOT_TOP = 34
PLOT_BOTTOM = 24
NAME_HEIGHT = 12
NAME_MARK_WIDTH = 10  # of the mark before the name of a line
CLASS_LINE = 23
CLASS_LEFT = 96
MAX_SLANTED_NAME = 24  # characters of a label above its column
CLASS_RIGHT = 46
CELL_HEIGHT = 24
TIME_TICKS = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 3 * 3600, 10 * 3600, 30 * 3600)  # seconds
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class CostPoint:
    """A system's score, and the time it takes to build."""

    name: str
    style: Style
    seconds: float
    score: float
    on_front: bool


def draw_label_panel(
    series: Sequence[LineSeries],
    *,
    title: str,
    subtitle: str,
    size: PanelSize,
    format_x: Callable[[float], str] = "{:,.0f}".format,
    x_name: str = "labels",
) -> str:
    """Draw scores over the number of labels, with a name at the end of each line."""
    x_values = {x for one in series for x in one.x}
    y_values = [y for one in series for y in one.y]
    longest = max(len(one.name) + 2 * one.bold for one in series)  # bold letters are wider
    right = size.width - 16 - NAME_MARK_WIDTH - CHARACTER_WIDTH * min(longest, size.max_name)
    floor = size.height - PLOT_BOTTOM
    x_scale = LinearScale(
        math.log10(min(x_values)), math.log10(max(x_values)), PLOT_LEFT + 8, right
    )
    y_scale = _fit_y_scale(y_values, floor)
    parts = _draw_frame(y_scale, title=title, subtitle=subtitle, right=right, width=size.width)
    ticks = sorted(x_values)
    room = max(TICK_LABEL_WIDTH, CHARACTER_WIDTH * max(len(format_x(x)) for x in ticks))
    for x, value in _drop_overlapping_ticks(
        [(x_scale(math.log10(x)), x) for x in ticks], room=room
    ):
        parts.append(draw_text(x, floor + 16, format_x(value)))
    line_ends = []
    for one in sorted(series, key=lambda one: one.bold):
        xs = [x_scale(math.log10(x)) for x in one.x]
        parts += _draw_line(one, xs, y_scale)
        y = y_scale(one.y[-1])
        line_ends.append((y, one))
    parts += _draw_names(line_ends, right + 8, floor, max_name=size.max_name)
    described = "; ".join(
        f"{one.name} {', '.join(f'{100 * y:.1f}' for y in one.y)}" for one in series
    )
    numbers = ", ".join(dict.fromkeys(format_x(x) for x in ticks))
    return wrap_svg(
        size.width,
        size.height,
        parts,
        title=f"{title} ({subtitle}), scores with {numbers} {x_name}: {described}",
        css="panel",
    )


def _fit_y_scale(values: Sequence[float], floor: float) -> LinearScale:
    margin = 0.06 * (max(values) - min(values)) or 0.01
    return LinearScale(min(values) - margin, max(values) + margin, floor, PLOT_TOP)


def _draw_frame(
    y_scale: LinearScale, *, title: str, subtitle: str, right: float, width: float
) -> list[str]:
    parts = draw_heading(title, subtitle, width)
    for tick in choose_ticks(y_scale.low, y_scale.high, count=4):
        y = y_scale(tick)
        parts.append(draw_line(PLOT_LEFT, right, y, y, grid_style(0.7)))
        parts.append(draw_text(PLOT_LEFT - 6, y + 3.5, f"{100 * tick:.4g}", anchor="end"))
    return parts


def _draw_line(series: LineSeries, xs: Sequence[float], y_scale: LinearScale) -> list[str]:
    width = "2.2" if series.bold else "1.3"
    points = " ".join(f"{x},{y_scale(y)}" for x, y in zip(xs, series.y, strict=True))
    color = series.style.color
    style = f'fill="none" stroke="{color}" stroke-width="{width}"'
    style += dash_style("5 3" if series.dashed else "")
    parts = [f'<polyline points="{points}" {style}/>']
    for x, y in zip(xs, series.y, strict=True):
        radius = 3.4 if series.bold else 2.4
        parts.append(draw_marker(series.style.marker, x, y_scale(y), radius, f'fill="{color}"'))
    return parts


def _draw_names(
    line_ends: Sequence[tuple[float, LineSeries]], x: float, floor: float, *, max_name: int
) -> list[str]:
    """Draw names with marks at the right, in the order of the ends, moved apart where they overlap."""
    ordered = sorted(line_ends, key=lambda pair: pair[0])
    places: list[float] = []
    for y, _ in ordered:
        places.append(max(y, places[-1] + NAME_HEIGHT) if places else max(y, PLOT_TOP - 4))
    limit = floor
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - NAME_HEIGHT
    parts = []
    for y, (_, one) in zip(places, ordered, strict=True):
        parts.append(draw_marker(one.style.marker, x + 3, y, 3, f'fill="{one.style.color}"'))
        name = shorten(one.name, max_name)
        parts.append(_draw_name(x + NAME_MARK_WIDTH, y + 3.5, name, bold=one.bold))
    return parts


def _draw_name(x: float, y: float, name: str, *, bold: bool) -> str:
    weight = 650 if bold else 400
    return draw_text(x, y, name, anchor="start", size=11, fill=TEXT_COLOR, weight=weight)


def draw_cost_panel(
    points: Sequence[CostPoint], *, title: str, subtitle: str, size: PanelSize
) -> str:
    """Draw scores over the time to build; a step line joins those that no cheaper one beats."""
    right = size.width - 8
    floor = size.height - PLOT_BOTTOM
    low = math.log10(min(one.seconds for one in points))
    high = math.log10(max(one.seconds for one in points))
    margin = 0.12 * (high - low) or 0.3
    x_scale = LinearScale(low - margin, high + margin, PLOT_LEFT + 8, right - 40)
    y_scale = _fit_y_scale([one.score for one in points], floor)
    parts = _draw_frame(y_scale, title=title, subtitle=subtitle, right=right, width=size.width)
    ticks: list[float] = [
        one for one in TIME_TICKS if low - margin <= math.log10(one) <= high + margin
    ]
    if len(ticks) < 2:
        ticks = [10**low, 10**high]
    placed = [(x_scale(math.log10(one)), one) for one in ticks]
    for x, seconds in _drop_overlapping_ticks(placed, room=44):
        parts.append(draw_text(x, floor + 16, format_seconds(seconds)))
    front = sorted((one for one in points if one.on_front), key=lambda one: one.seconds)
    corners: list[tuple[float, float]] = []
    for one in front:
        x = x_scale(math.log10(one.seconds))
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y_scale(one.score)))
    corners.append((right, corners[-1][1]))
    line = " ".join(f"{x},{y}" for x, y in corners)
    parts.append(f'<polyline points="{line}" fill="none" {muted_style(1.2)}/>')
    marks = [(x_scale(math.log10(one.seconds)), y_scale(one.score)) for one in points]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in marks]
    taken += [_box_around(*pair) for pair in pairwise(corners)]  # no name covers the line
    taken.append((0, floor, size.width, size.height))  # nor on the numbers of the axis
    for one, (x, y) in sorted(zip(points, marks, strict=True), key=lambda pair: pair[1][1]):
        parts.append(draw_marker(one.style.marker, x, y, 4, f'fill="{one.style.color}"'))
        parts.append(_draw_point_name(one, x, y, taken, size.width - 10))
    described = "; ".join(
        f"{one.name} {100 * one.score:.1f} in {format_seconds(one.seconds)}" for one in points
    )
    return wrap_svg(
        size.width, size.height, parts, title=f"{title}, score and cost: {described}", css="panel"
    )


def _draw_point_name(point: CostPoint, x: float, y: float, taken: list[Box], edge: float) -> str:
    """Draw a name beside its point, where nothing else is drawn; the line is to its right."""
    width = CHARACTER_WIDTH * len(point.name)
    left = x - 9 - width
    places = [(x + 7, y - 6), (x + 7, y + 14), (x + 9, y + 4), (left, y - 6), (left, y + 4)]
    places += [(left, y + 16)]
    for distance in (8, 16, 24):  # further away if many points are close
        places += [(x + 7, y - 6 - distance), (x + 7, y + 14 + distance)]
        places += [(left, y - 6 - distance), (left, y + 16 + distance)]
    boxes = [(left, base - 9, left + width, base + 2) for left, base in places]
    free = [box for box in boxes if _is_free(box, taken, edge)]
    inside = [box for box in boxes if box[0] >= PLOT_LEFT and box[2] <= edge]
    chosen = (free or inside or boxes)[0]
    taken.append(chosen)
    return _draw_name(chosen[0], chosen[3] - 2, point.name, bold=point.on_front)


def _box_around(start: tuple[float, float], end: tuple[float, float]) -> Box:
    """Return the box of a line that is level or upright."""
    left, right = sorted((start[0], end[0]))
    top, bottom = sorted((start[1], end[1]))
    return left - 1, top - 1, right + 1, bottom + 1


def _is_free(box: Box, taken: Sequence[Box], edge: float) -> bool:
    left, top, right, bottom = box
    if left < PLOT_LEFT or right > edge:
        return False
    return all(
        right <= other[0] or left >= other[2] or bottom <= other[1] or top >= other[3]
        for other in taken
    )


def draw_class_scores(
    series: Sequence[LineSeries],
    labels: Sequence[str],
    counts: Sequence[str],
    *,
    title: str,
    subtitle: str,
) -> str:
    """Draw F1 by label: a line a label, a mark for each system, and the counts at the right."""
    rows = list(zip(*(one.y for one in series), strict=True))
    low = max(0.0, min(map(min, rows)) - 0.05)
    high = min(1.0, max(map(max, rows)) + 0.03)
    scale = LinearScale(low, high, CLASS_LEFT, PLOT_WIDTH - CLASS_RIGHT)
    top = PLOT_TOP + 16
    bottom = top + CLASS_LINE * len(rows)
    parts = [*draw_heading(title, subtitle, PLOT_WIDTH), *_draw_key(series, 32)]
    for tick in choose_ticks(scale.low, scale.high, count=4):
        x = scale(tick)
        parts.append(draw_line(x, x, top, bottom, grid_style(0.7)))
        parts.append(draw_text(x, bottom + 13, f"{100 * tick:.4g}"))
    for place, (label, count, values) in enumerate(zip(labels, counts, rows, strict=True)):
        y = top + CLASS_LINE * (place + 0.5)
        parts.append(draw_text(0, y + 4, label, anchor="start", size=11.5, fill=TEXT_COLOR))
        parts.append(draw_text(PLOT_WIDTH, y + 4, count, anchor="end", size=10.5))
        edges = [scale(value) for value in values]
        parts.append(draw_line(min(edges), max(edges), y, y, grid_style(2)))
        for number, (x, one) in enumerate(zip(edges, series, strict=True)):
            lane = y + 3.5 * (number - (len(series) - 1) / 2)  # so that equal scores are seen
            parts.append(draw_marker(one.style.marker, x, lane, 3.2, f'fill="{one.style.color}"'))
    described = []
    for label, values in zip(labels, rows, strict=True):
        scores = zip(series, values, strict=True)
        named = ", ".join(f"{one.name} {100 * value:.1f}" for one, value in scores)
        described.append(f"{label} {named}")
    alternative = f"{title}: {'; '.join(described)}"
    return wrap_svg(PLOT_WIDTH, bottom + 20, parts, title=alternative, css="panel")


def _draw_key(series: Sequence[LineSeries], y: float) -> list[str]:
    """Draw the names of the systems beside their marks, in a row."""
    parts = []
    x = 4.0
    for one in series:
        parts.append(draw_marker(one.style.marker, x, y - 4, 3.6, f'fill="{one.style.color}"'))
        parts.append(draw_text(x + 8, y, one.name, anchor="start", size=11))
        x += 22 + CHARACTER_WIDTH * len(one.name)
    return parts


def draw_confusion(
    labels: Sequence[str], shares: Sequence[Sequence[float]], *, title: str, subtitle: str
) -> str:
    """Draw the shares of each answer (columns) among the items of each label (rows), in percent."""
    longest = min(MAX_SLANTED_NAME, max(len(label) for label in labels))
    left = min(CLASS_LEFT, 12 + 6.4 * longest)
    width = min(60.0, (PLOT_WIDTH - left) / len(labels))
    top: float = PLOT_TOP + 18
    is_slanted = longest > int(width / 6.6)  # capital letters are wide
    if is_slanted:
        last = 3 * min(MAX_SLANTED_NAME, len(labels[-1]))  # the width of the last name
        width = min(width, (PLOT_WIDTH - left - last) / (len(labels) - 0.5))
        top = PLOT_TOP + 8 + 5.4 * longest
    parts = draw_heading(title, subtitle, PLOT_WIDTH)
    for column, label in enumerate(labels):
        x = left + width * (column + 0.5)
        if is_slanted:
            name = draw_text(0, 0, shorten(label, MAX_SLANTED_NAME), anchor="start")
            parts.append(f'<g transform="translate({x:.1f} {top - 6:.1f}) rotate(-60)">{name}</g>')
        else:
            parts.append(draw_text(x, top - 6, label))
    for row, (label, own) in enumerate(zip(labels, shares, strict=True)):
        y = top + CELL_HEIGHT * row
        name = shorten(label, 15)
        parts.append(draw_text(0, y + 16, name, anchor="start", size=11.5, fill=TEXT_COLOR))
        for column, share in enumerate(own):
            x = left + width * column
            color = "var(--right, #0b4f9e)" if row == column else "var(--wrong, #b5400b)"
            strength = 0.12 + 0.7 * share if share >= 0.005 else 0.04
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y + 1}" width="{width - 2:.1f}" '
                f'height="{CELL_HEIGHT - 2}" rx="2" fill="{color}" fill-opacity="{strength:.2f}"/>'
            )
            if share >= 0.005:
                ink = "#ffffff" if strength > 0.55 else TEXT_COLOR
                text = f"{100 * share:.0f}"
                parts.append(draw_text(x + width / 2, y + 16, text, size=11, fill=ink))
    described = "; ".join(
        f"{label}: "
        + ", ".join(
            f"{100 * share:.0f} % {answer}"
            for answer, share in zip(labels, own, strict=True)
            if share >= 0.005
        )
        for label, own in zip(labels, shares, strict=True)
    )
    bottom = top + CELL_HEIGHT * len(labels)
    return wrap_svg(PLOT_WIDTH, bottom + 4, parts, title=f"{title}: {described}", css="panel")


def shorten(text: str, length: int) -> str:
    """Cut a text for a narrow place."""
    return text if len(text) <= max(length, 2) else text[: max(length, 2) - 1] + "…"


def draw_calibration(series: Sequence[LineSeries], *, title: str, subtitle: str) -> str:
    """Draw the share of right answers over their confidence; a dotted line is perfect."""
    low = min(min(*one.x, *one.y) for one in series)
    low = math.floor(10 * low) / 10
    right = PLOT_WIDTH - 60
    floor = PLOT_HEIGHT - PLOT_BOTTOM
    x_scale = LinearScale(low, 1.0, PLOT_LEFT + 8, right)
    y_scale = LinearScale(low, 1.0, floor, PLOT_TOP + 10)
    parts = _draw_frame(y_scale, title=title, subtitle=subtitle, right=right, width=PLOT_WIDTH)
    parts.append(
        f'<line x1="{x_scale(low)}" y1="{y_scale(low)}" x2="{x_scale(1.0)}" y2="{y_scale(1.0)}" '
        f"{muted_style(1)}{dash_style('2 3')}/>"
    )
    for tick in choose_ticks(low, 1.0, count=4):
        parts.append(draw_text(x_scale(tick), floor + 16, f"{100 * tick:.4g}"))
    for one in series:
        parts += _draw_line(one, [x_scale(x) for x in one.x], y_scale)
    parts += _draw_key(series, 32)
    described = "; ".join(
        f"{one.name} "
        + ", ".join(
            f"{100 * y:.0f} % right at {100 * x:.0f} %" for x, y in zip(one.x, one.y, strict=True)
        )
        for one in series
    )
    return wrap_svg(PLOT_WIDTH, PLOT_HEIGHT, parts, title=f"{title}: {described}", css="panel")


def draw_line_chart(
    series: Sequence[LineSeries], *, title: str, x_label: str, y_label: str, percent: bool = False
) -> str:
    """Draw a small chart of curves, with a name at the end of each that is not hollow."""
    named = {one.name: one for one in series if not one.hollow}  # seeds share a name
    longest = max(map(len, named), default=0)
    name_width = CHARACTER_WIDTH * min(longest, NARROW_PANEL.max_name)
    right_edge = CHART_WIDTH - 16 - NAME_MARK_WIDTH - name_width
    floor = CHART_HEIGHT - CHART_BOTTOM
    x_values = sorted({x for one in series for x in one.x})
    y_values = [y for one in series for y in one.y]
    low = min(y_values)
    high = max(y_values)
    margin = 0.04 * (high - low) or 0.01
    x_scale = LinearScale(x_values[0], x_values[-1], CHART_LEFT + 8, right_edge - 8)
    y_scale = LinearScale(low - margin, high + margin, floor, CHART_TOP)
    x_ticks = choose_ticks(x_values[0], x_values[-1])
    if all(float(x).is_integer() for x in x_values):  # such as layers, which have no halves
        x_ticks = [tick for tick in x_ticks if float(tick).is_integer()]
    tick_positions = [(x_scale(value), value) for value in x_ticks]

    parts = [
        draw_text(CHART_LEFT, 14, title, anchor="start", size=12, fill=TEXT_COLOR, weight=600),
        draw_text(CHART_WIDTH, 14, y_label, anchor="end"),
    ]
    y_ticks = choose_ticks(low, high, count=4) or [low]
    places = [y_scale(tick) for tick in y_ticks]
    parts += [draw_line(CHART_LEFT, right_edge, y, y, grid_style(0.7)) for y in places]
    for tick, y in zip(y_ticks, places, strict=True):
        text = f"{100 * tick:.0f}" if percent else f"{tick:g}"
        parts.append(draw_text(CHART_LEFT - 6, y + 3.5, text, anchor="end"))
    for x, value in _drop_overlapping_ticks(tick_positions):
        parts.append(draw_text(x, floor + 15, f"{value:g}"))
    parts.append(draw_text((CHART_LEFT + right_edge) / 2, CHART_HEIGHT - 8, x_label))
    for one in series:
        parts += _draw_curve(one, [x_scale(x) for x in one.x], y_scale)
    line_ends = [(y_scale(one.y[-1]), one) for one in named.values()]
    parts += _draw_names(line_ends, right_edge + 8, floor, max_name=NARROW_PANEL.max_name)
    title = f"{title}: {y_label} over {x_label}"
    return wrap_svg(CHART_WIDTH, CHART_HEIGHT, parts, title=title, css="panel")


def draw_map(
    points: Mapping[str, Sequence[tuple[float, float]]],
    styles: Mapping[str, Style],
    *,
    title: str,
    subtitle: str,
) -> str:
    """Draw points of several names on a plane without units, with a key of the names below."""
    xs = [x for own in points.values() for x, _ in own]
    ys = [y for own in points.values() for _, y in own]
    floor = CHART_HEIGHT - CHART_BOTTOM
    x_scale = LinearScale(min(xs), max(xs), 10, CHART_WIDTH - 10)
    y_scale = LinearScale(min(ys), max(ys), floor - 8, CHART_TOP + 8)
    parts = [
        draw_text(0, 14, title, anchor="start", size=12, fill=TEXT_COLOR, weight=600),
        draw_text(CHART_WIDTH, 14, subtitle, anchor="end"),
        draw_line(0, CHART_WIDTH, floor, floor, grid_style(0.7)),
    ]
    left = 8.0
    for name, own in points.items():
        style = styles[name]
        mark = f'fill="{style.color}" fill-opacity="0.75"'
        parts += [draw_marker(style.marker, x_scale(x), y_scale(y), 3.5, mark) for x, y in own]
        shown = shorten(name, NARROW_PANEL.max_name)
        parts.append(draw_marker(style.marker, left, floor + 17, 4, f'fill="{style.color}"'))
        parts.append(draw_text(left + 9, floor + 20.5, shown, anchor="start"))
        left += 24 + CHARACTER_WIDTH * len(shown)
    return wrap_svg(CHART_WIDTH, CHART_HEIGHT, parts, title=f"{title}: {subtitle}", css="panel")


def _drop_overlapping_ticks(
    tick_positions: list[tuple[float, float]], *, room: float = TICK_LABEL_WIDTH
) -> list[tuple[float, float]]:
    """Keep the ticks, from the last one down, whose numbers do not overlap."""
    kept: list[tuple[float, float]] = []
    for x, value in reversed(tick_positions):
        if not kept or kept[-1][0] - x >= room:
            kept.append((x, value))
    return kept[::-1]


def _draw_curve(series: LineSeries, xs: list[float], y_scale: LinearScale) -> list[str]:
    color = series.style.color
    points = " ".join(f"{x},{y_scale(y)}" for x, y in zip(xs, series.y, strict=True))
    dashes = "4 3" if series.hollow else ""
    style = f'fill="none" stroke="{color}" stroke-width="1.8"{dash_style(dashes)}'
    parts = [f'<polyline points="{points}" {style}/>']
    if len(xs) <= MAX_MARKED_POINTS:
        fill = BACKGROUND_COLOR if series.hollow else color
        style = f'fill="{fill}" stroke="{color}"'
        for x, y in zip(xs, series.y, strict=True):
            parts.append(draw_marker(series.style.marker, x, y_scale(y), 3, style))
    return parts
