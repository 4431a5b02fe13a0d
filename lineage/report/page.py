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

from lineage.report import bygroup, gains, overlap, overtaking, overview, tasks, view, words
from lineage.report.cells import CONTROL_ROWS

Tree = dict[str, Any]


def render(
    tree: Tree, *, budget: Sequence[Tree], provenance: Tree, mechanisms: Sequence[Tree] = (), disagreements: Sequence[Tree] = ()
) -> dict[str, str]:
    """`html` and `md`: the tree of results.json with what the run cost, where it came from and what each variant is made of.

    `mechanisms` holds one mapping a variant, all with the same keys, which head the table; what its training cost joins them from `budget`.
    """
    shown = {
        "tree": tree, "summary": words.summary(tree), "verdicts": view.verdicts(tree), "tasks": view.tasks(tree), "legend": view.legend(tree),
        "label_curves": view.label_curves(tree), "loss_curves": view.loss_curves(tree), "adaptation": view.adaptation(tree),
        "comparisons": view.comparisons(tree), "budget": view.budget(tree, budget), "failed": view.failed(tree), "published": view.published(tree),
        "mechanisms": [line | {"variant": view.named(tree, line["variant"])} for line in view.mechanisms(mechanisms, budget)],
        "over": words.over(tree), "no_rivals": words.no_rivals(tree), "provenance": provenance, "trials": words.trials(tree),
        "overtaking": overtaking.overtaking(tree), "gains": gains.gains(tree), "overview": overview.overview(tree), "changes": view.changes(tree),
        "groups": bygroup.shown(tree), "disagreements": disagreements, "data": tasks.shown(tree), "unknown": tasks.unknown(tree),
        "clean": overlap.shown(tree), "run": tasks.run_of_words(tree),
        "unlabelled": any(one["split"] == "unlabelled" for one in tree["data"].get("items", ()))}  # fmt: skip
    return {kind: _environment(html=kind == "html").get_template(f"comparison.{kind}.j2").render(shown) for kind in ("html", "md")}


def figures(tree: Tree) -> dict[str, str]:
    """The charts as single SVG files, by name."""
    drawn = {"labels": view.label_curves(tree), "pretraining": view.loss_curves(tree)}
    return {f"{name}-{i}.svg": svg for name, some in drawn.items() for i, svg in enumerate(some, start=1)}


def print_table(tree: Tree, console: Console) -> None:
    """Means over seeds in per cent, a line a way, the best of each column marked; plain ASCII where this is no terminal.

    As many tasks stand beside each other as there is room for, and the others below them.
    """
    verdicts, left = view.verdicts(tree), view.tasks(tree)
    best = {(v["task"], v["labels"]): v["ways"] for v in verdicts}
    while left:
        count = len(left)
        while count > 1 and _width(_means(tree, left[:count], best, console), console) > console.width:
            count -= 1
        console.print(_means(tree, left[:count], best, console))
        left = left[count:]
    said = [words.summary(tree)]
    said += [f"- {v['task']}, {v['labels']}: {v['way']}, {v['mean']} {v['unit']}. {v['sentences'][0] if v['sentences'] else ''}" for v in verdicts]
    text = "\n".join(said)
    console.print(text if console.is_terminal else text.replace("−", "-"), highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _width(table: Table, console: Console) -> int:
    """How wide a table is where nothing of it is folded."""
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def _means(tree: Tree, tables: Sequence[Tree], best: Mapping[tuple[str, str], Sequence[str]], console: Console) -> Table:
    """These tasks beside each other, and the ways that any of them has. `best`: the ways that lead, by task and number of labels."""
    headings = dict.fromkeys(task["heading"] for task in tables)
    style = box.SIMPLE_HEAD if console.is_terminal else box.ASCII2
    table = Table(box=style, pad_edge=False, caption=f"{', or '.join(headings)}, mean over seeds; * at the top: see the report")
    table.add_column("", no_wrap=True)
    means: dict[str, dict[tuple[str, str], str]] = {}
    variants = [*view.variants(tree), *CONTROL_ROWS]
    places = {line["words"]: variants.index(line["variant"]) for task in tables for line in task["lines"]}
    for task in tables:
        for place, column in enumerate(task["columns"]):
            table.add_column(
                f"{task['name']}{'' if task['heading'] == '% right' else ', ' + task['heading']}\n{column['words']}", justify="right", overflow="fold"
            )
            for line in task["lines"]:
                cell = line["cells"][place]
                if cell:
                    text = cell["mean"] if cell["value"] is not None else "failed" if cell["problems"][0]["status"] == "failed" else "n/a"
                    means.setdefault(line["words"], {})[task["name"], column["words"]] = text if console.is_terminal else text.replace("−", "-")
    keys = [(task["name"], column["words"]) for task in tables for column in task["columns"]]
    for name in sorted(means, key=lambda name: places[name]):
        marks = ["*" if name in best.get(key, ()) else " " for key in keys]
        table.add_row(name, *(means[name].get(key, "") + mark for key, mark in zip(keys, marks, strict=True)))
    return table


def _environment(*, html: bool) -> jinja2.Environment:
    folder = resources.files("lineage.report") / "templates"
    found = jinja2.Environment(loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")), autoescape=html,
                               trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)  # fmt: skip
    found.filters |= {
        "svg": Markup,
        "si": words.si,
        "passes": lambda value: "n/a" if value is None else f"{value:.2f}",
        "seconds": _seconds,
        "cell": lambda text: str(text).replace("|", "\\|").replace("\n", " "),
    }
    return found


def _seconds(value: float | None) -> str:
    """41 s; 12 min; 3.4 h."""
    if value is None:
        return "–"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
