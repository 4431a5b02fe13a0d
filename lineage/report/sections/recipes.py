"""The recipes that short trainings have chosen, and all trials."""

from lineage.analysis.records import Analysis
from lineage.report.cells import model_cell
from lineage.report.formatting import NO_VALUE, format_si, join_with_and
from lineage.report.section import (
    Cells,
    Columns,
    ReportData,
    Row,
    Section,
    Table,
    numbers,
)
from lineage.report.styles import format_model_name
from lineage.training.recipes import RecipeSearch, Trial

SETTINGS = ("learning rate", "sequences a step", "weight decay", "dropout")


def build(report: ReportData) -> Section | None:
    """Return the recipe of each model that was searched for, and a table of all trials."""
    searches = report.analysis.recipe_searches
    if not searches:
        return None
    return Section(
        "Recipes",
        [_chosen_table(report.analysis), _trials_section(report.analysis)],
        subtitle="chosen by the loss on held-out text, before pretraining",
    )


def _chosen_table(analysis: Analysis) -> Table:
    rows = []
    for search in analysis.recipe_searches:
        total_bytes = sum(trial.text_bytes for trial in search.trials)
        total_flops = sum(trial.train_flops for trial in search.trials)
        rows.append(
            [
                model_cell(analysis, search.model),
                *_recipe_cells(search.chosen),
                _format_loss(search.chosen),
                _format_loss(search.own),
                str(len(search.trials)),
                format_si(total_bytes, "B"),
                format_si(total_flops),
            ]
        )
    found = (_describe_edge(analysis, search) for search in analysis.recipe_searches)
    edges = [sentence for sentence in found if sentence]
    costs = ("loss", "loss as in params.yaml", "trials", "text of all", "FLOPs of all")
    note = (
        "These models have the same search: learning rates with batch sizes around their own, then "
        "weight decays, then dropouts. No trial sees a task. Text and time of the trials are not "
        "part of the budget below, nor of the time to build a system. Losses of different models "
        "count different things."
    )
    note = " ".join([note, _describe_others(analysis), *edges]).strip()
    return Table(["model", *numbers(*SETTINGS, *costs)], rows, note=note, is_wide=True)


def _describe_others(analysis: Analysis) -> str:
    """Name the models that were trained here with the recipe of params.yaml."""
    searched = {search.model for search in analysis.recipe_searches}
    others = [
        format_model_name(analysis, one.model)
        for one in analysis.budget
        if one.budget_matched and not one.members and one.model not in searched
    ]
    if not others:
        return ""
    return f"Without a search, with the recipe of params.yaml: {join_with_and(others)}."


def _describe_edge(analysis: Analysis, search: RecipeSearch) -> str:
    """Say so if the chosen learning rate is the highest or the lowest of several."""
    rates = {trial.recipe.learning_rate for trial in search.trials}
    chosen = search.chosen.recipe.learning_rate
    name = format_model_name(analysis, search.model)
    if len(rates) > 1 and chosen == max(rates):
        return (
            f"{name}: the learning rate is the highest that was tried; a higher one may be better."
        )
    if len(rates) > 1 and chosen == min(rates):
        return f"{name}: the learning rate is the lowest that was tried; a lower one may be better."
    return ""


def _trials_section(analysis: Analysis) -> Section:
    rows = [
        Row([model_cell(analysis, search.model), *_trial_cells(trial)])
        for search in analysis.recipe_searches
        for trial in search.trials
    ]
    columns: Columns = ["model", *numbers(*SETTINGS, "loss", "steps", "text", "FLOPs"), "chosen"]
    return Section("All trials", [Table(columns, rows)], is_folded=True)


def _recipe_cells(trial: Trial) -> Cells:
    recipe = trial.recipe
    dropout = NO_VALUE if recipe.dropout is None else f"{recipe.dropout:g}"
    rate = f"{recipe.learning_rate:.3g}"
    return [rate, str(recipe.batch_size), f"{recipe.weight_decay:g}", dropout]


def _trial_cells(trial: Trial) -> Cells:
    return [
        *_recipe_cells(trial),
        _format_loss(trial),
        format_si(trial.steps),
        format_si(trial.text_bytes, "B"),
        format_si(trial.train_flops),
        "yes" if trial.is_chosen else "",
    ]


def _format_loss(trial: Trial | None) -> str:
    if trial is None:
        return NO_VALUE
    return "failed" if trial.loss is None else f"{trial.loss:.3f}"
