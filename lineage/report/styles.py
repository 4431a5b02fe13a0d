"""Models on the page: their names, colours and marks, the same in every figure and table.

Shapes: a circle for recurrent networks, a triangle for Transformers, a square for static vectors, a
diamond for public checkpoints.
"""

from collections.abc import Sequence

from lineage.analysis.records import TWO_BUDGET_FAMILIES, AdaptationEffect, Analysis
from lineage.report import figures
from lineage.report.figures import LineSeries, Style
from lineage.report.formatting import CONTINUED_MARK, OUTSIDE_MARK, PUBLIC_MARK, format_model
from lineage.results import OUTSIDE_FAMILY, PUBLIC_FAMILY

# family -> the place of its colour in figures.PALETTE. Other families, and further models of a
# family, take the places that are free.
COLOR_OF_FAMILY = {
    "elmo": 0,
    "ulmfit": 1,
    "gpt": 2,
    "bert": 3,
    "fasttext": 4,
    "word2vec": 5,
    "glove": 6,
    PUBLIC_FAMILY: 7,
}
MARKER_OF_FAMILY = {
    **dict.fromkeys(("gpt", "bert", "gpt_modern", "bert_modern", "gpt_bert"), "triangle"),
    "word2vec": "square",
    "fasttext": "square",
    "glove": "square",
    PUBLIC_FAMILY: "diamond",
    **dict.fromkeys(TWO_BUDGET_FAMILIES, "cross"),
}


TFIDF_STYLE = Style(figures.MUTED_COLOR, "bar")
OTHER_STYLE = Style(figures.MUTED_COLOR)


def model_style(analysis: Analysis, model: str) -> Style:
    """Return the colour and the marker of a model or a baseline."""
    if model == "tfidf":
        return TFIDF_STYLE
    return _assign_styles(analysis).get(model, OTHER_STYLE)


def model_curve(
    analysis: Analysis, model: str, init: str, x: Sequence[float], y: Sequence[float]
) -> LineSeries:
    """Return the curve of a model, dashed if its weights are random."""
    return LineSeries(
        format_model(model), model_style(analysis, model), x, y, hollow=init == "random"
    )


def _assign_styles(analysis: Analysis) -> dict[str, Style]:
    """Give each model a colour: the first of a family has the family's, others what is left."""
    families = analysis.model_families
    places: dict[str, int] = {}
    for model in analysis.model_names:
        place = COLOR_OF_FAMILY.get(families.get(model, ""))
        if place is not None and place not in places.values():
            places[model] = place
    for number, model in enumerate(analysis.model_names):
        if model not in places:
            free = [place for place in figures.FREE_COLORS if place not in places.values()]
            free += [n for n in range(len(figures.PALETTE)) if n not in places.values()]
            places[model] = free[0] if free else number % len(figures.PALETTE)
    return {
        model: Style(
            figures.palette_color(place), MARKER_OF_FAMILY.get(families.get(model, ""), "circle")
        )
        for model, place in places.items()
    }


def format_unmatched_reason(analysis: Analysis, model: str) -> str:
    """Tell why a model is not budget-matched: `two budgets: there and back`; empty if it is."""
    if model in analysis.public_models:
        has_read_corpus = any(one.model == model and one.text_bytes for one in analysis.budget)
        return CONTINUED_MARK if has_read_corpus else PUBLIC_MARK
    if analysis.model_families.get(model) == OUTSIDE_FAMILY:
        return OUTSIDE_MARK
    if model in analysis.grid.ensembles:
        return f"two budgets: {' and '.join(analysis.grid.ensembles[model])}"
    if model in analysis.grid.two_budget_systems:  # its name tells whose budgets
        return "two budgets"
    return ""


def format_model_name(analysis: Analysis, model: str) -> str:
    """Name a model, and why it is not budget-matched: `roberta (public)`."""
    reason = format_unmatched_reason(analysis, model)
    name = format_model(model)
    return f"{name} ({reason})" if reason else name


def find_weak_models(analysis: Analysis) -> list[str]:
    """Return own models that are not shown to have learned more than a 5-gram model, which have a ‡."""
    return [
        one.model
        for one in analysis.ngram_comparisons
        if one.learned_less and one.model not in analysis.public_models
    ]


def mark_model(analysis: Analysis, model: str) -> str:
    """Return the name of a model, with a ‡ if it is not shown to have learned more than counting."""
    name = format_model(model)
    return f"{name} ‡" if model in find_weak_models(analysis) else name


def loss_did_not_fall(effect: AdaptationEffect) -> bool:
    """Return whether the language model's loss did not fall in every pretraining seed."""
    return effect.num_improved < effect.num_pretrainings and not effect.metric.startswith(
        "next_sentence_"
    )
