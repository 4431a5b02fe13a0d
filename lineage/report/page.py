"""The analysis -> one self-contained HTML page, the same as Markdown, and a terminal table."""

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from lineage.analysis.cells import split_test_set
from lineage.analysis.decision import Costs, Decision
from lineage.analysis.disagreements import Disagreements
from lineage.analysis.records import BASELINES, Analysis, Setting, System
from lineage.report import curves, sentences, styles, tables, task_sections, tasks, text_curves
from lineage.report.answers import build_answer_findings
from lineage.report.decisions import (
    build_decision_lines,
    build_main_figures,
    describe_runs,
    summarize_decisions,
)
from lineage.report.figures import MAX_WIDE_PANELS
from lineage.report.formatting import format_epochs, format_seconds, format_si, format_system
from lineage.report.notes import format_notes
from lineage.report.provenance import Provenance
from lineage.report.task_sections import TableCell, TaskTable

MAX_TABLE_WIDTH = 10_000  # characters; wider than any table


def render_report(
    analysis: Analysis,
    decisions: Sequence[Decision],
    *,
    costs: Costs | None = None,
    provenance: Provenance | None = None,
    model_descriptions: Sequence[Mapping[str, str]] = (),
    disagreements: Sequence[Disagreements] = (),
) -> dict[str, str]:
    """Return the report as `html` and as `md`.

    `model_descriptions` has one mapping per model, all with the same keys, which head the table;
    the training cost is added.
    """
    descriptions = tables.build_model_descriptions(model_descriptions, analysis.budget)
    for line in descriptions:
        line["model"] = styles.format_model_name(analysis, line["model"])
    context = {
        "analysis": analysis,
        "answer": summarize_decisions(analysis, decisions),
        "decisions": build_decision_lines(analysis, decisions),
        "labelled_tasks": _list_labelled_tasks(decisions),
        "runs_note": describe_runs(analysis),
        "main_figures": build_main_figures(analysis),
        "max_wide_panels": MAX_WIDE_PANELS,
        "tasks": task_sections.build_task_tables(analysis, find_recommended(decisions)),
        "models": [styles.format_model_name(analysis, name) for name in analysis.grid.models],
        **_build_curves(analysis, decisions, costs or {}),
        **_build_ngram_section(analysis),
        "answer_findings": build_answer_findings(analysis, decisions),
        "adaptation": tables.build_adaptation_table(analysis),
        "comparisons": tables.build_comparison_table(analysis),
        "budget": tables.build_budget_table(analysis),
        "failures": tables.build_failure_table(analysis),
        "benchmarks": tables.build_benchmark_tables(analysis),
        "model_descriptions": descriptions,
        "interval_basis": sentences.describe_intervals(analysis),
        "ablation_note": sentences.describe_ablation_models(analysis),
        "trials_note": sentences.describe_trials(analysis.trials),
        "crossovers": tables.build_crossover_views(analysis),
        "gains": tables.build_gain_sections(analysis),
        "ablations": tables.build_ablation_tables(analysis),
        "group_scores": tables.build_group_tables(analysis),
        "disagreements": {one.task: one for one in tables.build_disagreement_tables(disagreements)},
        "data": tasks.build_task_data_table(analysis),
        "unknown_tokens": tasks.build_unknown_token_table(analysis),
        "clean_scores": tables.build_clean_score_tables(analysis),
        "overlap_length": tasks.format_overlap_length(analysis.tasks),
        "has_unlabelled": any("unlabelled" in task.splits for task in analysis.tasks),
        "provenance": provenance,
    }
    return {
        kind: _jinja_environment(html=kind == "html")
        .get_template(f"comparison.{kind}.j2")
        .render(context)
        for kind in ("html", "md")
    }


def _build_curves(
    analysis: Analysis, decisions: Sequence[Decision], costs: Costs
) -> dict[str, Any]:
    """Return the sections with curves: over labels, over text, and over cost."""
    return {
        "label_findings": curves.build_label_findings(analysis, decisions),
        "text_findings": text_curves.build_text_findings(analysis, decisions),
        "text_table": text_curves.build_text_table(analysis),
        "cost_findings": curves.build_cost_findings(analysis, decisions, costs),
        "devices_note": curves.describe_devices(costs),
        "loss_curves": curves.draw_loss_curves(analysis),
    }


def _build_ngram_section(analysis: Analysis) -> dict[str, Any]:
    """Return the section that compares language models with a 5-gram model."""
    return {
        "ngram_warning": sentences.summarize_ngram_comparisons(analysis.ngram_comparisons),
        "ngrams": tables.build_ngram_table(analysis),
        "ngram_findings": sentences.describe_ngram_comparisons(analysis.ngram_comparisons),
        "weak_pairs": sentences.describe_weak_pairs(analysis.ngram_comparisons),
        "ngram_note": sentences.describe_ngram_models(analysis),
    }


def render_figures(analysis: Analysis, decisions: Sequence[Decision]) -> dict[str, str]:
    """Return the charts as SVG files, by name."""
    charts = {
        "scores": [panel for figure in build_main_figures(analysis) for panel in figure.panels],
        "label-curves": [
            finding.figure for finding in curves.build_label_findings(analysis, decisions)
        ],
        "text-curves": [
            finding.figure for finding in text_curves.build_text_findings(analysis, decisions)
        ],
        "loss-curves": curves.draw_loss_curves(analysis),
    }
    return {
        f"{name}-{number}.svg": svg
        for name, drawn in charts.items()
        for number, svg in enumerate(drawn, start=1)
    }


def _list_labelled_tasks(decisions: Sequence[Decision]) -> list[str]:
    """Return the tasks that `lineage predict` answers: those with labels, without extra test sets."""
    names = [split_test_set(one.task)[0] for one in decisions if one.label_count != "none"]
    return list(dict.fromkeys(names))


def find_recommended(decisions: Sequence[Decision]) -> dict[Setting, System]:
    """Return the system to use in each setting that has one above chance."""
    return {
        one.setting: one.use.standing.system for one in decisions if one.use.standing.above_chance
    }


def print_table(analysis: Analysis, decisions: Sequence[Decision], console: Console) -> None:
    """Print the means over seeds, a line per system, with those to use marked, and the decisions.

    As many tasks stand next to each other as fit. Output that is not a terminal is plain ASCII.
    """
    remaining = task_sections.build_task_tables(analysis, find_recommended(decisions))
    while remaining:
        count = len(remaining)
        table = _mean_table(analysis, remaining, console)
        while count > 1 and _table_width(table, console) > console.width:
            count -= 1
            table = _mean_table(analysis, remaining[:count], console)
        console.print(table)
        heading = " or ".join(dict.fromkeys(task.heading for task in remaining[:count]))
        cells = [cell for task in remaining[:count] for line in task.lines for cell in line.cells]
        has_star = any(cell is not None and cell.is_recommended for cell in cells)
        legend = (
            "; * is the one to use; between lines of one model, validation decides"
            if has_star
            else ""
        )
        console.print(f"{heading}, mean over seeds{legend}\n", style="italic")
        remaining = remaining[count:]
    lines = [summarize_decisions(analysis, decisions)]
    lines += [
        f"- {line.task}, {line.labels}: {line.sentence} "
        f"{line.limits if line.label_count == 'all' else ''}".rstrip()
        for line in build_decision_lines(analysis, decisions)
    ]
    for task in analysis.tasks:
        if folds := tasks.describe_fold_training(analysis, task.task):
            lines.append(f"{task.task}: {folds}")
    warning = sentences.summarize_ngram_comparisons(analysis.ngram_comparisons)
    if warning:
        lines.append(warning)
    text = _plain("\n".join(lines), console)
    is_terminal = console.is_terminal
    console.print(text, highlight=False, markup=False, soft_wrap=not is_terminal)


def _plain(text: str, console: Console) -> str:
    return text if console.is_terminal else text.replace("−", "-").replace("±", "+/-")


def _table_width(table: Table, console: Console) -> int:
    """Return the width of a table if nothing in it is folded."""
    options = console.options.update(max_width=MAX_TABLE_WIDTH)
    return Measurement.get(console, options, table).maximum


def _mean_table(
    analysis: Analysis,
    tasks: Sequence[TaskTable],
    console: Console,
) -> Table:
    """Return a table of these tasks next to each other."""
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    means: dict[str, dict[tuple[str, str], str]] = {}
    models: dict[str, str] = {}
    keys = []
    for task in tasks:
        unit = "" if task.heading == "% correct" else f", {task.heading}"
        for place, column in enumerate(task.columns):
            key = (task.name, column.labels)
            keys.append(key)
            heading = f"{task.name}{unit}\n{column.labels}"
            table.add_column(heading, justify="right", overflow="fold")
            for line in task.lines:
                models[line.text] = line.model
                cell = line.cells[place]
                if cell:
                    mark = "*" if cell.is_recommended else " "
                    text = _plain(_mean_text(cell), console)
                    means.setdefault(line.text, {})[key] = text + mark
    names = [*analysis.model_names, *BASELINES]
    order = list(dict.fromkeys(format_system(score.system) for score in analysis.scores))
    for system in sorted(means, key=lambda name: (names.index(models[name]), order.index(name))):
        table.add_row(system, *(means[system].get(key, "") for key in keys))
    return table


def _mean_text(cell: TableCell) -> str:
    if cell.value is not None:
        return cell.mean
    return "failed" if cell.problems[0].status == "failed" else "n/a"


def escape_cell(text: object) -> str:
    """Return a text for a cell of a Markdown table; viewers would run HTML in it."""
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


@functools.cache  # it keeps the compiled templates
def _jinja_environment(*, html: bool) -> jinja2.Environment:
    folder = resources.files("lineage.report") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "svg": Markup,
        "si": format_si,
        "format_epochs": format_epochs,
        "format_seconds": format_seconds,
        "css_class": lambda verdict: verdict.replace(" ", "-"),
        "format_notes": format_notes,
        "escape_cell": escape_cell,
    }
    return environment
