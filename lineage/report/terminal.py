"""The scores of all tasks -> the terminal, as many tasks next to each other as fit."""

from collections.abc import Sequence

import rich.table
from rich import box
from rich.console import Console
from rich.measure import Measurement

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis, SystemScore
from lineage.report.formatting import format_percent, format_system, metric_heading
from lineage.report.task_scores import TaskScores, format_problem_status, list_task_scores

MAX_TABLE_WIDTH = 10_000  # characters; wider than any table
LEGEND = "; * is the one to use; between lines of one model, validation decides"


def print_means(analysis: Analysis, decisions: Sequence[Decision], console: Console) -> None:
    """Print the means over seeds, a line per system, with a star at those to use."""
    remaining = list_task_scores(analysis, decisions)
    models = {format_system(score.system): score.system.model for score in analysis.scores}
    names = sorted(models, key=lambda name: analysis.place_of_model(models[name]))
    while remaining:
        count = len(remaining)
        table = _build_table(remaining, names, console)
        while count > 1 and _table_width(table, console) > console.width:
            count -= 1
            table = _build_table(remaining[:count], names, console)
        console.print(table)
        shown = remaining[:count]
        headings = " or ".join(dict.fromkeys(metric_heading(task.metric) for task in shown))
        has_star = any(task.is_recommended(score) for task in shown for score in task.scores)
        legend = LEGEND if has_star else ""
        console.print(f"{headings}, mean over seeds{legend}\n", style="italic")
        remaining = remaining[count:]


def print_lines(lines: Sequence[str], console: Console) -> None:
    """Print lines of text, which a terminal wraps."""
    text = _make_plain("\n".join(lines), console)
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _make_plain(text: str, console: Console) -> str:
    """Return a text in ASCII unless it is for a terminal."""
    return text if console.is_terminal else text.replace("−", "-").replace("±", "+/-")


def _table_width(table: rich.table.Table, console: Console) -> int:
    """Return the width of a table if nothing in it is folded."""
    options = console.options.update(max_width=MAX_TABLE_WIDTH)
    return Measurement.get(console, options, table).maximum


def _build_table(
    tasks: Sequence[TaskScores], names: Sequence[str], console: Console
) -> rich.table.Table:
    """Return a table with a column for each number of labels of each task, without empty rows."""
    table = rich.table.Table(
        box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, pad_edge=False
    )
    table.add_column("", no_wrap=True)
    columns: list[dict[str, str]] = []  # the texts by system
    for task in tasks:
        heading = metric_heading(task.metric)
        unit = "" if heading == "% correct" else f", {heading}"
        for count in task.train_examples:
            title = f"{task.task}{unit}\n{task.format_labels(count)}"
            table.add_column(title, justify="right", overflow="fold")
            columns.append(
                {
                    format_system(one.system): _format_mean(task, one)
                    for one in task.list_scores(count)
                }
            )
    for name in names:
        texts = [_make_plain(column.get(name, ""), console) for column in columns]
        if any(texts):
            table.add_row(name, *texts)
    return table


def _format_mean(task: TaskScores, score: SystemScore) -> str:
    text = format_problem_status(score) if score.mean is None else format_percent(score.mean)
    return f"{text}{'*' if task.is_recommended(score) else ' '}"
