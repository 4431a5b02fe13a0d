"""Senses of a word, as models tell them apart: nearest occurrences, a map and examples."""

from collections.abc import Iterator, Sequence

from lineage.analysis.neighbours import OccurrenceText
from lineage.analysis.records import (
    Analysis,
    LayerPrecision,
    NeighbourExample,
    SenseNeighbours,
    group_by,
)
from lineage.report import charts
from lineage.report.figures import LineSeries, Style, choose_layout, palette_color
from lineage.report.formatting import (
    NO_VALUE,
    format_difference,
    format_model,
    format_percent,
    format_range,
    join_with_and,
)
from lineage.report.section import (
    Block,
    Cell,
    Columns,
    Figure,
    Figures,
    Paragraph,
    ReportData,
    Row,
    Section,
    Table,
    numbers,
    small,
)
from lineage.report.styles import model_style

TITLE = "Does a model tell the senses of a word apart?"
MARKERS = ("circle", "square", "triangle", "diamond", "cross")
READING = (
    "Precision: of the nearest other places of the same word, the share in which it has the same "
    "sense. Full lines are pretrained models, dashed ones the same networks with random "
    "weights. Layer 0 is the embeddings. Nothing is trained for this."
)
NOTE = (
    "Near is a large cosine after the mean vector of the word is subtracted. Gain: precision over "
    "random weights in the same layer, in points, corrected for all layers and models (Holm). The "
    "statements are about these models; another pretraining may differ. The best layer is the one with "
    "the highest precision on these places."
)
MAPS = (
    "Maps: the places of the most frequent word on the first two principal components of the "
    "model's best layer, by sense."
)


def build(report: ReportData) -> Section | None:
    """Return the precision of each layer, maps and examples, with what they show."""
    analysis = report.analysis
    if not analysis.sense_neighbours:
        return None
    by_task = group_by(analysis.sense_neighbours, lambda one: one.task)
    sentences = [Paragraph(text, "strong") for text in describe_models(analysis)]
    curves = [Figure(_draw_curves(analysis, found), "", task) for task, found in by_task.items()]
    texts = {(one.task, one.id): one for one in report.occurrences}
    maps = [
        Figure(_draw_map(one, texts), "", one.task)
        for one in _list_pretrained(analysis)
        if one.num_neighbours
    ]
    pretrained = group_by(_list_pretrained(analysis), lambda one: one.task)
    figures = Figures(
        [*curves, *maps], choose_layout(len(curves) + len(maps)), file="neighbours", only="html"
    )
    tables = [_build_table(task, found) for task, found in by_task.items()]
    blocks: list[Block] = [
        *(_build_summary(task, found) for task, found in pretrained.items()),
        figures,
        *_build_examples(analysis, texts),
        Section(
            "Precision of all layers",
            [Paragraph(NOTE, "note"), *tables],
            is_folded=True,
            only="html",
        ),
        Paragraph(NOTE, "note", only="markdown"),
        *(Section("", [table], only="markdown") for table in tables),
    ]
    aside = (*sentences, Paragraph(READING, "note"), Paragraph(MAPS, "note", only="html"))
    return Section(TITLE, blocks, aside=aside, anchor="neighbours", link="Senses")


def describe_models(analysis: Analysis) -> Iterator[str]:
    """Say which pretrained models tell the senses of a word apart."""
    for task, found in group_by(_list_pretrained(analysis), lambda one: one.task).items():
        names = {one.model: format_model(one.model) for one in found}
        static = [names[one.model] for one in found if not one.num_neighbours]
        shown = [names[one.model] for one in found if _best_shown(one) is not None]
        unclear = [name for name in names.values() if name not in (*static, *shown)]
        if shown:
            verb = "tells" if len(shown) == 1 else "tell"
            yield f"{task}: {join_with_and(shown)} {verb} the senses of a word apart."
        if unclear:
            yield f"{task}: that senses are told apart is not shown for {join_with_and(unclear)}."
        if static:
            verb = "has" if len(static) == 1 else "have"
            yield (
                f"{task}: {join_with_and(static)} {verb} one vector for each word, so all its places "
                "are equally near, and senses cannot be told apart."
            )


def _list_pretrained(analysis: Analysis) -> list[SenseNeighbours]:
    return [one for one in analysis.sense_neighbours if one.init == "pretrained"]


def _best_shown(found: SenseNeighbours) -> LayerPrecision | None:
    """Return the best of the layers that are shown to be better than random weights."""
    shown = [layer for layer in found.layers if layer.gain and layer.gain.verdict == "better"]
    return max(shown, key=lambda layer: layer.precision, default=None)


def _build_summary(task: str, found: Sequence[SenseNeighbours]) -> Table:
    """Return a line for each pretrained model, with its best layer."""
    columns: Columns = [
        "model",
        *numbers("best layer", "precision", "by chance", "over random weights"),
    ]
    rows = []
    for one in found:
        best = _best_shown(one) or one.best
        gain = NO_VALUE
        if best.gain is not None and one.num_neighbours:
            interval = format_range(best.gain.ci_low, best.gain.ci_high)
            gain = f"{format_difference(best.gain.gain)} ({interval})"
        cells = [str(best.layer), format_percent(best.precision), format_percent(one.chance), gain]
        rows.append([format_model(one.model), *cells])
    return Table(columns, rows, title=task, subtitle=_describe_places(found))


def _describe_places(found: Sequence[SenseNeighbours]) -> str:
    nearest = max(one.num_neighbours for one in found)
    first = found[0]
    return (
        f"the {nearest} nearest of {first.num_occurrences:,} places of {first.num_words} words, %"
    )


def _draw_curves(analysis: Analysis, found: Sequence[SenseNeighbours]) -> str:
    series = [
        LineSeries(
            format_model(one.model),
            model_style(analysis, one.model),
            [float(layer.layer) for layer in one.layers],
            [layer.precision for layer in one.layers],
            hollow=one.init == "random",
        )
        for one in found
    ]
    most = max(one.num_neighbours for one in found)
    return charts.draw_line_chart(
        series,
        title=found[0].task,
        x_label="layer",
        y_label=f"precision at {most}, %",
        percent=True,
    )


def _draw_map(found: SenseNeighbours, texts: dict[tuple[str, str], OccurrenceText]) -> str:
    senses = sorted({point.sense for point in found.points})
    styles = {
        sense: Style(palette_color(number % len(MARKERS)), MARKERS[number % len(MARKERS)])
        for number, sense in enumerate(senses)
    }
    text = texts.get((found.task, found.points[0].id))
    word = f"'{text.word.lower()}'" if text else "one word"
    return charts.draw_map(
        {sense: [(one.x, one.y) for one in found.points if one.sense == sense] for sense in senses},
        styles,
        title=f"{format_model(found.model)}, layer {found.best.layer}",
        subtitle=word,
    )


def _build_examples(
    analysis: Analysis, texts: dict[tuple[str, str], OccurrenceText]
) -> Iterator[Block]:
    """Yield a table for each task: occurrences, and the nearest ones by the best model."""
    for task, found in group_by(_list_pretrained(analysis), lambda one: one.task).items():
        best = max(found, key=lambda one: one.best.precision)
        rows: list[Row] = []
        for example in best.examples:
            if (task, example.id) in texts:
                rows += _example_rows(example, task, texts)
        if rows:
            title = f"{task}: nearest places by {format_model(best.model)}, layer {best.best.layer}"
            columns: Columns = ["text", "sense"]
            yield Section(
                "Examples", [Table(columns, rows, title=title, note=_EXAMPLES_NOTE)], is_folded=True
            )


_EXAMPLES_NOTE = (
    "The first place of each of the most frequent words, and below it the nearest ones. None was "
    "chosen by hand."
)


def _example_rows(
    example: NeighbourExample, task: str, texts: dict[tuple[str, str], OccurrenceText]
) -> Iterator[Row]:
    yield Row([_format_text(texts[task, example.id]), example.sense], "strong")
    for item, sense in example.nearest:
        if (task, item) in texts:
            yield Row([_format_text(texts[task, item]), sense])


def _format_text(text: OccurrenceText) -> Cell:
    return Cell(f"{text.left} [{text.word}] {text.right}".strip(), css="wrap")


def _build_table(task: str, found: Sequence[SenseNeighbours]) -> Table:
    most = max(len(one.layers) for one in found)
    columns: Columns = ["model", *numbers("chance", *(f"layer {n}" for n in range(most)))]
    rows = [_model_row(one, most) for one in found]
    return Table(columns, rows, title=task, subtitle=_describe_places(found))


def _model_row(found: SenseNeighbours, num_layers: int) -> Row:
    name = format_model(found.model)
    if found.init == "random":
        name += ", random init"
    cells = []
    for layer in found.layers:
        pieces = []
        if layer.ci_low is not None and layer.ci_high is not None:
            interval = f"{format_percent(layer.ci_low)} to {format_percent(layer.ci_high)}"
            pieces += small(interval, "muted")
        if layer.gain is not None:
            pieces += small(
                f"{format_difference(layer.gain.gain)}: {layer.gain.verdict}", "muted", plain=", {}"
            )
        cells.append(Cell(format_percent(layer.precision), more=pieces))
    missing = [Cell(NO_VALUE)] * (num_layers - len(cells))
    return Row([name, format_percent(found.chance), *cells, *missing])
