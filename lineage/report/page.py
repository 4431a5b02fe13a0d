"""The view -> one self-contained HTML page, the same as Markdown, and a table for the terminal."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from lineage.analysis import contamination, crossover, gains, groups
from lineage.analysis.cells import BASELINES
from lineage.report import overview, sentences, tasks, view

JsonDict = dict[str, Any]


def render_report(
    tree: JsonDict,
    *,
    budget: Sequence[JsonDict],
    provenance: JsonDict,
    model_descriptions: Sequence[JsonDict] = (),
    disagreements: Sequence[JsonDict] = (),
) -> dict[str, str]:
    """`html` and `md`: the tree of results.json with what the run cost, where it came from and what each variant is made of.

    `mechanisms` holds one mapping a variant, all with the same keys, which head the table; what its training cost joins them from `budget`.
    """
    context = {
        "tree": tree,
        "summary": sentences.summarize(tree),
        "verdicts": view.build_verdict_cards(tree),
        "tasks": view.build_task_tables(tree),
        "legend": view.build_legend(tree),
        "label_curves": view.draw_label_curves(tree),
        "loss_curves": view.draw_loss_curves(tree),
        "adaptation": view.build_adaptation_table(tree),
        "comparisons": view.build_comparison_table(tree),
        "budget": view.build_budget_table(tree, budget),
        "failed": view.build_failure_table(tree),
        "benchmark": view.build_published_tables(tree),
        "mechanisms": [
            line | {"model": view.format_model_name(tree, line["model"])}
            for line in view.build_model_descriptions(model_descriptions, budget)
        ],
        "over": sentences.describe_intervals(tree),
        "no_rivals": sentences.describe_ablation_models(tree),
        "provenance": provenance,
        "trials": sentences.describe_trials(tree),
        "overtaking": crossover.build_crossover_tables(tree),
        "gains": gains.build_gain_tables(tree),
        "overview": overview.build_overview(tree),
        "changes": view.build_ablation_tables(tree),
        "groups": groups.format_group_scores(tree),
        "disagreements": disagreements,
        "data": tasks.format_task_table(tree),
        "unknown": tasks.build_unknown_token_table(tree),
        "clean": contamination.format_clean_scores(tree),
        "run": tasks.format_overlap_length(tree),
        "unlabelled": any(one["split"] == "unlabelled" for one in tree["data"].get("items", ())),
    }
    return {
        kind: _jinja_environment(html=kind == "html")
        .get_template(f"comparison.{kind}.j2")
        .render(context)
        for kind in ("html", "md")
    }


def render_figures(tree: JsonDict) -> dict[str, str]:
    """The charts as single SVG files, by name."""
    drawn = {
        "label_count": view.draw_label_curves(tree),
        "pretraining": view.draw_loss_curves(tree),
    }
    return {
        f"{name}-{i}.svg": svg
        for name, some in drawn.items()
        for i, svg in enumerate(some, start=1)
    }


def print_table(tree: JsonDict, console: Console) -> None:
    """Means over seeds in per cent, a line a way, the best of each column marked; plain ASCII where this is no terminal.

    As many tasks stand beside each other as there is room for, and the others below them.
    """
    verdicts, left = view.build_verdict_cards(tree), view.build_task_tables(tree)
    best = {(v["task"], v["label_count"]): v["ways"] for v in verdicts}
    while left:
        count = len(left)
        while (
            count > 1
            and _table_width(_mean_table(tree, left[:count], best, console), console)
            > console.width
        ):
            count -= 1
        console.print(_mean_table(tree, left[:count], best, console))
        left = left[count:]
    said = [sentences.summarize(tree)]
    said += [
        f"- {v['task']}, {v['label_count']}: {v['way']}, {v['mean']} {v['unit']}. {v['sentences'][0] if v['sentences'] else ''}"
        for v in verdicts
    ]
    text = "\n".join(said)
    console.print(
        text if console.is_terminal else text.replace("−", "-"),
        highlight=False,
        markup=False,
        soft_wrap=not console.is_terminal,
    )


def _table_width(table: Table, console: Console) -> int:
    """How wide a table is where nothing of it is folded."""
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def _mean_table(
    tree: JsonDict,
    tables: Sequence[JsonDict],
    best: Mapping[tuple[str, str], Sequence[str]],
    console: Console,
) -> Table:
    """These tasks beside each other, and the ways that any of them has. `best`: the ways that lead, by task and number of labels."""
    headings = dict.fromkeys(task["heading"] for task in tables)
    style = box.SIMPLE_HEAD if console.is_terminal else box.ASCII2
    table = Table(
        box=style,
        pad_edge=False,
        caption=f"{', or '.join(headings)}, mean over seeds; * at the top: see the report",
    )
    table.add_column("", no_wrap=True)
    means: dict[str, dict[tuple[str, str], str]] = {}
    models = [*view.model_names(tree), *BASELINES]
    places = {
        line["words"]: models.index(line["model"]) for task in tables for line in task["lines"]
    }
    for task in tables:
        for place, column in enumerate(task["columns"]):
            table.add_column(
                f"{task['name']}{'' if task['heading'] == '% right' else ', ' + task['heading']}\n{column['words']}",
                justify="right",
                overflow="fold",
            )
            for line in task["lines"]:
                cell = line["cells"][place]
                if cell:
                    text = (
                        cell["mean"]
                        if cell["value"] is not None
                        else "failed"
                        if cell["problems"][0]["status"] == "failed"
                        else "n/a"
                    )
                    means.setdefault(line["words"], {})[task["name"], column["words"]] = (
                        text if console.is_terminal else text.replace("−", "-")
                    )
    keys = [(task["name"], column["words"]) for task in tables for column in task["columns"]]
    for name in sorted(means, key=lambda name: places[name]):
        marks = ["*" if name in best.get(key, ()) else " " for key in keys]
        table.add_row(
            name, *(means[name].get(key, "") + mark for key, mark in zip(keys, marks, strict=True))
        )
    return table


def _jinja_environment(*, html: bool) -> jinja2.Environment:
    folder = resources.files("lineage.report") / "templates"
    found = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters |= {
        "svg": Markup,
        "si": sentences.format_si,
        "passes": lambda value: "n/a" if value is None else f"{value:.2f}",
        "seconds": _format_seconds,
        "cell": lambda text: str(text).replace("|", "\\|").replace("\n", " "),
    }
    return found


def _format_seconds(value: float | None) -> str:
    """41 s; 12 min; 3.4 h."""
    if value is None:
        return "–"
    return (
        f"{value:.0f} s"
        if value < 120
        else f"{value / 60:.0f} min"
        if value < 7200
        else f"{value / 3600:.1f} h"
    )
