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
from lineage.report.figures import Style, choose_layout, palette_color
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
from lineage.report.sections.layers import draw_layers

TITLE = "Does a model tell the senses of a word apart?"
MARKERS = ("circle", "square", "triangle", "diamond", "cross")
READING = (
    "Precision: of the nearest other places of the same word, the share in which it has the same "
    "sense. Full lines are pretrained models, dashed ones the same networks with random "
    "weights. Layer 0 is the embeddings. Nothing is trained for this."
)
NOTE = (
    "Near is a large cosine after the mean vector of the word is subtracted. Over random init: in "
    "points, in the same layer, corrected for all layers and models (Holm). The "
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
    figures = Figures(
        [*curves, *maps], choose_layout(len(curves) + len(maps)), file="neighbours", only="html"
    )
    tables = [_build_table(task, found) for task, found in by_task.items()]
    blocks: list[Block] = [
        *tables,
        Paragraph(NOTE, "note"),
        figures,
        *_build_examples(analysis, texts),
    ]
    aside = (*sentences, Paragraph(READING, "note"), Paragraph(MAPS, "note", only="html"))
    return Section(TITLE, blocks, aside=aside, anchor="neighbours", link="Senses")


def describe_models(analysis: Analysis) -> Iterator[str]:
    """Say which pretrained models tell the senses of a word apart."""
    for task, found in group_by(_list_pretrained(analysis), lambda one: one.task).items():
        names = {one.model: format_model(one.model) for one in found}
        static = [names[one.model] for one in found if not one.num_neighbours]
        shown = [names[one.model] for one in found if _is_shown(one)]
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


def _is_shown(found: SenseNeighbours) -> bool:
    """Return whether a layer is shown to be better than random weights."""
    return any(layer.gain is not None and layer.gain.verdict == "better" for layer in found.layers)


def _describe_places(found: Sequence[SenseNeighbours]) -> str:
    nearest = max(one.num_neighbours for one in found)
    first = found[0]
    return (
        f"the {nearest} nearest of {first.num_occurrences:,} places of {first.num_words} words, %"
    )


def _draw_curves(analysis: Analysis, found: Sequence[SenseNeighbours]) -> str:
    most = max(one.num_neighbours for one in found)
    scores = [[layer.precision for layer in one.layers] for one in found]
    return draw_layers(analysis, found, scores, y_label=f"precision at {most}, %")


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
    """Return a row for each layer of each pretrained model, beside random weights and chance."""
    columns: Columns = [
        "model",
        *numbers("layer", "precision", "random init", "over random init"),
        "verdict",
        *numbers("chance"),
    ]
    random = {
        (one.model, layer.layer): format_percent(layer.precision)
        for one in found
        if one.init == "random"
        for layer in one.layers
    }
    rows = []
    for one in found:
        for layer in one.layers if one.init == "pretrained" else ():
            precision = _format_with_interval(layer)
            other = random.get((one.model, layer.layer), NO_VALUE)
            gain, verdict = NO_VALUE, NO_VALUE
            if layer.gain is not None:
                interval = format_range(layer.gain.ci_low, layer.gain.ci_high)
                gain = f"{format_difference(layer.gain.gain)} ({interval})"
                verdict = layer.gain.verdict
            name = format_model(one.model)
            chance = format_percent(one.chance)
            rows.append(Row([name, str(layer.layer), precision, other, gain, verdict, chance]))
    return Table(columns, rows, title=task, subtitle=_describe_places(found))


def _format_with_interval(layer: LayerPrecision) -> Cell:
    pieces = []
    if layer.ci_low is not None and layer.ci_high is not None:
        pieces = small(
            f"{format_percent(layer.ci_low)} to {format_percent(layer.ci_high)}", "muted"
        )
    return Cell(format_percent(layer.precision), more=pieces)
