"""The names, colours and marks of models."""

from dataclasses import replace

from lineage.analysis import cells
from lineage.report import figures, styles
from tests.helpers.study_rows import GPT, GRID, build_analysis


def test_models_have_the_colour_of_their_family_and_the_shape_of_its_architecture() -> None:
    names = ("word2vec", "elmo", "elmo_small", "gpt", "mine", "roberta", "both")
    families = ("word2vec", "elmo", "elmo", "gpt", "taglm", "public", "joined")
    grid = replace(GRID, models=names)
    cell = cells.ResultCell(GPT, "sense", "text_classification", "all", "accuracy")
    scores = [
        replace(cell, system=replace(GPT, model=model, family=family)).summarize()
        for model, family in zip(names, families, strict=True)
    ]
    analysis = replace(build_analysis(grid=grid), scores=tuple(scores))
    found = [styles.model_style(analysis, name) for name in names]
    assert len({style.color for style in found}) == len(names), "no two models share a colour"
    assert found[1].color == styles.model_style(analysis, "elmo").color
    assert figures.PALETTE[0] in found[1].color and figures.PALETTE[0] not in found[2].color
    assert [style.marker for style in found] == [
        "square",
        "circle",
        "circle",
        "triangle",
        "circle",
        "diamond",
        "cross",
    ]
    marks = {figures.Style("red", style.marker).mark for style in found}
    assert len(marks) == 5
    assert styles.model_style(analysis, "tfidf").marker == "bar"
