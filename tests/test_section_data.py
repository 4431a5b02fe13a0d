"""The data of the tasks on the page: items used, truncated, dropped, and unknown tokens."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import results
from lineage.analysis import build, cells
from lineage.analysis.records import Analysis
from lineage.analysis.tasks import build_task_summaries
from lineage.analysis.trials import count_trials
from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.dataset_stats import compute_dataset_stats
from lineage.data.items import build_items
from lineage.data.task_data import TaskData
from lineage.methods.encoder import EvalRun
from lineage.report.sections.data import build_data_table, build_unknown_token_tables
from lineage.report.task_notes import describe_task_data
from lineage.results import UNKNOWN_TOKEN_METRIC
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.sections import column_names, read_table
from tests.helpers.study_rows import GRID, build_row, render_pages

TEXT_TASK = {"kind": "text_classification", "text": ["text"], "label": "label"}


def build_table(count: int) -> pd.DataFrame:
    """Return texts of three to five words with alternating labels, five per author."""
    text = [
        " ".join(["so", "good" if i % 2 else "bad", f"n{i}", "and", "more"][: 3 + i % 3])
        for i in range(count)
    ]
    return pd.DataFrame(
        {
            "text": text,
            "label": np.arange(count) % 2,
            "author": [f"author {i // 5}" for i in range(count)],
        }
    )


def build_task(folder: Path, **task_keys: Any) -> tuple[Task, TaskData]:
    """Return a task `small` with these keys, and its data."""
    task = parse_record(Task, TEXT_TASK | task_keys, "tasks.small")
    items = build_items(
        "small", task, load_kind(task.kind), seed=3, root=folder, where="tasks.small"
    )
    return task, TaskData(items.info, items.splits)


def with_task(
    analysis: Analysis, task: Task, data: TaskData, table: pd.DataFrame | None = None
) -> Analysis:
    """Return the analysis with the scores of `sense` as those of this task `small`."""
    rows = results.results_frame([]) if table is None else table
    stats = compute_dataset_stats(data, GRID.finetune_seeds)
    summaries = build_task_summaries([stats], {"small": task}, rows, split="test")
    scores = [replace(one, task="small") for one in analysis.scores if one.task == "sense"]
    counts = [replace(analysis.contamination[0], task=one.task) for one in summaries]
    return replace(
        analysis,
        scores=tuple(scores),
        tasks=tuple(summaries),
        contamination=tuple(counts),
        comparisons=(),
        ceilings=(),
    )


def read_line(analysis: Analysis, folder: Path, **task_keys: Any) -> dict[str, str]:
    """Return the line of a task `small` in the table of data, by column."""
    task, data = build_task(folder, **task_keys)
    (line,) = read_table(build_data_table(with_task(analysis, task, data)))
    return line


def test_items_used_truncated_and_dropped_are_counted(analysis: Analysis, tmp_path: Path) -> None:
    build_table(40).to_csv(tmp_path / "train.csv", index=False)
    # Two items of train, three new ones, and a blank one.
    own = pd.concat([build_table(43).iloc[38:], pd.DataFrame({"text": ["  "], "label": [1]})])
    longer = [own.iloc[:4].assign(text=own["text"].iloc[:4] + f" {n} x y") for n in range(5)]
    pd.concat([own, *longer]).to_csv(tmp_path / "test.csv", index=False)
    unlabelled = ["new one", "", build_table(43)["text"].iloc[42], "another"]
    pd.DataFrame({"text": unlabelled}).to_csv(tmp_path / "more.csv", index=False)
    files = {"train": "train.csv", "test": "test.csv", "unlabelled": "more.csv"}
    line = read_line(analysis, tmp_path, files=files, max_words=5)
    assert (line["train"], line["validation"], line["test"]) == ("36", "4, from train", "25")
    assert line["unlabelled"] == "2"
    assert line["dropped"] == (
        "without words, or with texts that are the same: 1 of test; blank: 1 of unlabelled; among the scored items: "
        "1 of unlabelled"
    )
    assert line["metric"] == "% correct"
    assert line["max length"] == "5 words: 20 of test" and line["duplicates in train"] != "none"
    changed = with_task(analysis, *build_task(tmp_path, files=files, max_words=5))
    note = "80% of the test texts are longer than 5 words, and are cut there for every model."
    assert note in describe_task_data(changed, "small")
    limit = {"train": 10, "test": 6}
    line = read_line(analysis, tmp_path, files=files, max_words=4, limit=limit, language="zh")
    assert (line["train"], line["test"]) == ("10", "6")
    assert line["max length"].startswith("4 characters: ")
    assert line["dropped"].startswith(
        "without words, or with texts that are the same: 1 of test; left out by the limit: 26 of train, 3 of "
        "validation, 19 of test"
    )


def test_the_note_says_why_a_fold_trains_on_fewer_labels(
    analysis: Analysis, tmp_path: Path
) -> None:
    build_table(90).to_csv(tmp_path / "train.csv", index=False)
    task, data = build_task(tmp_path, files={"train": "train.csv"}, folds=3, validation_share=0.2)
    num_train = len(data.split_items(seed=0, fold=0)[0].rows_N)
    changed = with_task(analysis, task, data)
    scores = [replace(one, label_count="all", train_examples=num_train) for one in changed.scores]
    changed = replace(changed, scores=tuple(scores))
    note = (
        "Each fold trains on about 48 of the 90 labelled items, since one part is tested and "
        "another is validation."
    )
    assert describe_task_data(changed, "small")[0] == note
    without_folds = tuple(replace(one, cross_validation=None) for one in changed.tasks)
    assert note not in describe_task_data(replace(changed, tasks=without_folds), "small")


def test_texts_that_a_model_truncated_are_reported_with_the_tasks(
    analysis: Analysis, tmp_path: Path
) -> None:
    """The note comes from a real evaluation."""
    texts = [f"{'so ' * (3 + 9 * (n % 4))}good" for n in range(40)]
    pd.DataFrame({"text": texts, "label": np.arange(40) % 2}).to_csv(tmp_path / "train.csv")
    task, data = build_task(tmp_path, files={"train": "train.csv", "test": "train.csv"})
    settings = tiny.model_config("bert").evaluate
    context = tiny.eval_context("bert", data, settings)
    (tmp_path / "keep").mkdir()
    scored, *_ = tiny.evaluate_runs(
        context, [EvalRun("random", "linear_probe", 20, 3)], tmp_path / "keep"
    )
    changed = with_task(analysis, task, data, results.results_frame(scored))
    note = r"small, within its maximum length: BERT: \d+% of the texts were longer than \d+ tokens, and cut\."
    for text in render_pages(changed).values():
        assert len(re.findall(note, text)) == 1


def test_an_extra_test_set_has_its_own_line(analysis: Analysis, tmp_path: Path) -> None:
    for name in ("train", "test", "other"):
        build_table(30).to_csv(tmp_path / f"{name}.csv", index=False)
    other = {"files": {"test": "other.csv"}, "max_words": 5}
    task, data = build_task(
        tmp_path,
        files={"train": "train.csv", "test": "test.csv"},
        extra_test_sets={"products": other},
    )
    own, extra = read_table(build_data_table(with_task(analysis, task, data)))
    assert (own["task"], extra["task"]) == ("small", "small on products")
    assert (own["max length"], extra["max length"]) == ("128 words: none", "5 words: none")
    assert own["train"] == "27" and extra["train"] == "–"
    assert (extra["test"], extra["test set"]) == ("30", "extra")
    assert extra["duplicates in train"] == "27 of test"


def unknown_rows() -> pd.DataFrame:
    values = {
        ("elmo", "pretrained"): 0.0,
        ("gpt", "pretrained"): 0.125,
        ("gpt", "adapted"): 0.0625,
        ("bert", "pretrained"): 0.5,
        ("bert", "adapted"): 0.5,
    }
    rows = [
        build_row(
            model=name,
            family=name,
            init=init,
            pretrain_seed=seed,
            value=value,
            metric=UNKNOWN_TOKEN_METRIC,
        )
        for (name, init), value in values.items()
        for seed in (0, 1)
    ]
    other = build_row(init="pretrained", split="validation", value=1.0, metric=UNKNOWN_TOKEN_METRIC)
    return results.results_frame([*rows, other])


def test_unknown_tokens_have_a_table_and_are_not_compared(analysis: Analysis) -> None:
    table = unknown_rows()
    assert not cells.build_cells(table, split="test", tasks={})
    assert count_trials(table) == ()
    shares = tuple(build.unknown_token_shares(table, "test"))
    changed = replace(analysis, unknown_token_shares=shares)
    (unknown_table,) = build_unknown_token_tables(changed)
    assert column_names(unknown_table) == ["task", "GPT", "GPT adapted", "BERT"]
    assert unknown_table.note.endswith("No unknown tokens: ELMo.")
    lines = {line["task"]: [*line.values()][1:] for line in read_table(unknown_table)}
    assert lines["sense"] == ["12.5", "6.3", "50.0"]
    assert lines["sentiment"] == ["–", "–", "–"]
    shares = tuple(one for one in shares if one.model == "elmo")
    page = render_pages(replace(analysis, unknown_token_shares=shares))["md"]
    assert "No unknown tokens: ELMo." in page and "| task | ELMo |\n" not in page
