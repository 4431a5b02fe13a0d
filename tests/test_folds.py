"""Tasks can be cross-validated in folds, keep groups together, and have extra test sets."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.cells import ResultCell, read_result_cells, read_rows
from lineage.artifacts import read_json, read_table
from lineage.config.params import Grid
from lineage.data.dataset_stats import FoldStats, compute_fold_stats
from lineage.data.task_data import TaskData, assign_fold_splits
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_runs
from lineage.methods.encoder import EvalContext
from lineage.results import Note, notes_to_json, results_frame
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.study_rows import write_no_ngrams, write_stage_results
from tests.helpers.tasks import TEXTS, build_table_task, build_task_items
from tests.helpers.user_project import RunStage, make_project, write_params

AUTHORS = 9
SPLITS = {"train": "train.csv", "test": "train.csv"}


def labelled_sentences(count: int, *, seed: int = 0) -> pd.DataFrame:
    """Return sentences whose words tell the label, with authors of unequal frequency."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, count)
    words = np.where(
        label[:, None] == 1,
        rng.choice(["good", "fine"], (count, 3)),
        rng.choice(["bad", "poor"], (count, 3)),
    )
    author = np.minimum(rng.geometric(0.25, count), AUTHORS)
    return pd.DataFrame(
        {
            "text": [f"{' '.join(row)} {i}" for i, row in enumerate(words)],
            "label": label,
            "author": [f"author {number}" for number in author],
        }
    )


@pytest.mark.parametrize("grouped", [False, True])
def test_each_item_is_tested_once_per_repetition_and_groups_stay_together(
    tmp_path: Path, grouped: bool
) -> None:
    frame = labelled_sentences(130)
    fields = {"group": "author"} if grouped else {}
    data = build_table_task(tmp_path, frame, folds=4, **fields)
    repetitions = []
    for seed in (0, 1):
        test_folds = []
        for fold in range(4):
            parts = {
                part.split: data.select_items(part)
                for part in data.split_items(seed=seed, fold=fold)
            }
            assert sorted(pd.concat(parts.values())["id"]) == sorted(data.splits["train"]["id"]), (
                "every item is in exactly one split"
            )
            assert min(map(len, parts.values())) > 0
            if grouped:
                for first, second in itertools.combinations(parts.values(), 2):
                    assert not {*first["group"]} & {*second["group"]}
            test_folds.append(frozenset(parts["test"]["id"]))
        assert sum(map(len, test_folds)) == 130 == len(frozenset().union(*test_folds))
        repetitions.append(test_folds)
        if not grouped:
            for ids in test_folds:
                labels = [int(frame["label"][int(item_id[6:]) - 1]) for item_id in ids]
                assert abs(np.mean(labels) - frame["label"].mean()) < 0.05
    assert repetitions[0] != repetitions[1], "another seed splits differently"
    first_parts = data.split_items(seed=1, fold=3)
    second_parts = data.split_items(seed=1, fold=3)
    assert all(
        np.array_equal(first.rows_N, second.rows_N)
        for first, second in zip(first_parts, second_parts, strict=True)
    )


@pytest.mark.parametrize(
    ("folds", "sizes"), [(3, [1, 1, 98]), (5, [1, 1, 1, 1, 60]), (4, [10, 1, 1, 1])]
)
def test_no_split_is_empty_even_if_groups_differ_much_in_size(folds: int, sizes: list[int]) -> None:
    items = pd.DataFrame(
        {
            "group": np.repeat([f"g{i}" for i in range(len(sizes))], sizes),
            "label": np.arange(sum(sizes)) % 2,
        }
    )
    for seed in range(5):
        for fold in range(folds):
            parts = assign_fold_splits(
                items, folds=folds, fold=fold, seed=seed, by_group=True, validation_share=0.1
            )
            assert all(len(rows) for rows in parts.values())
            assert sum(map(len, parts.values())) == len(items)


OTHER = {"files": {"test": "other.csv"}}


@pytest.mark.parametrize(("fields", "message"), [
    ({"folds": 3, "files": SPLITS}, "tasks.small.folds: test is given"),
    ({"folds": 2, "group": "author"}, "with groups to 3 or more"),
    ({"folds": 1}, "set it to 2 or more"),
    ({"folds": 40, "group": "author"}, "groups are too few for 40 folds"),
    ({"folds": 200}, "130 items are too few for 200 folds"),
    ({"files": SPLITS, "label_map": {"0": "no"}, "extra_test_sets": {"other": {"files": {"train": "train.csv"}}}}, "name only a test split"),
    ({"files": SPLITS, "extra_test_sets": {"other": OTHER}}, "label 'neither' does not occur in train"),
    ({"files": SPLITS, "extra_test_sets": {"other": OTHER | {"label": "verdict"}}}, "row 1: column 'verdict': label 'neither'"),
    ({"folds": 3, "extra_test_sets": {"other": OTHER}}, "tasks.small.extra_test_sets: with folds each item of train is tested once"),
    *[({"files": SPLITS, "extra_test_sets": {name: OTHER}}, f"the name '{name}' must match") for name in ("small", "held_unlabelled", "a on b", "a/b")],
    *[({"files": SPLITS, "extra_test_sets": {"other": OTHER | {key: value}}}, rf"small\.extra_test_sets\.other\.{key}: its items are read and scored as the task's own; remove the key")
      for key, value in (("language", "zh"), ("symmetric", True), ("probes", ["linear"]), ("metric", ["macro_f1"]))],
    ({"files": SPLITS, "limit": {"train": 1}}, "limit.train or validation leaves 1 items, with 1 of the 2 labels; raise the limit"),
])  # fmt: skip
def test_impossible_folds_and_extra_test_sets_are_errors(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    pd.DataFrame({"text": ["good"], "label": ["neither"], "verdict": ["neither"]}).to_csv(
        tmp_path / "other.csv", index=False
    )
    with pytest.raises(InputError, match=message):
        build_table_task(tmp_path, labelled_sentences(130), **fields)


@pytest.mark.parametrize(("fields", "refused"), [
    ({"folds": 10}, False), ({"folds": 11}, True), ({"folds": 5, "group": "own"}, True), ({"folds": 3, "group": "own"}, False),
    ({"folds": 5, "group": "author"}, False), ({"folds": 3, "group": "few"}, True),
])  # fmt: skip
def test_regression_folds_must_be_large_enough_for_a_correlation(
    fields: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    """No fold may be two items, two groups of one item, or one group with equal numbers."""
    frame = pd.DataFrame(
        {
            "text": [f"text {number}" for number in range(30)],
            "score": [number // 5 + (number % 2) * (number > 4) for number in range(30)],
        }
    )
    frame["own"] = [f"one {number // 5}" for number in range(30)]
    frame["author"] = [f"one {number % 5}" for number in range(30)]
    frame["few"] = [f"one {min(number, 5)}" for number in range(30)]
    regression_fields = {"kind": "text_regression", "label": "score"}
    if refused:
        with pytest.raises(
            InputError,
            match=r"items in \d+ (items|groups) and \d+ folds: a fold may have only \d+ items, or a single group",
        ):
            build_table_task(tmp_path, frame, **regression_fields, **fields)
    else:
        assert (
            build_table_task(tmp_path, frame, **regression_fields, **fields).info.folds
            == fields["folds"]
        )


def test_a_rare_label_stays_in_train_if_possible_and_is_counted_otherwise(tmp_path: Path) -> None:
    """Neither validation nor a limit takes the last training item of a label.

    A fold that has to test all groups of a label is counted.
    """
    rare = labelled_sentences(40).assign(label=["rare"] * 2 + ["common"] * 38)
    for seed in range(5):
        data = build_table_task(tmp_path, rare, folds=2)
        assert all(
            data.select_items(data.split_items(seed=seed, fold=fold)[0])["label"].nunique() == 2
            for fold in (0, 1)
        )
        assert compute_fold_stats(data, [seed]) == FoldStats(2, 0, 0, 2)
        shuffled = rare.sample(frac=1, random_state=seed)
        limited = build_table_task(
            tmp_path, shuffled, files=SPLITS, limit={"train": 10}, validation_share=0.2
        )
        assert set(limited.splits["train"]["label"]) == {0, 1}
    small = pd.DataFrame(
        {"text": "a b", "label": ["x", "x", "y", "y", "y"], "author": ["p", "q", "r", "s", "t"]}
    )
    data = build_table_task(tmp_path, small, folds=3, group="author")
    lacks_label = [
        data.select_items(data.split_items(seed=seed, fold=fold)[0])["label"].nunique() < 2
        for seed in range(4)
        for fold in range(3)
    ]
    assert sum(lacks_label) > 0
    assert compute_fold_stats(data, range(4)) == FoldStats(3, 5, sum(lacks_label), 12)


@pytest.mark.parametrize(("num_items", "fields", "message"), [
    (3, {"folds": 2}, "3 items are too few for 2 folds"),
    (5, {"folds": 3, "group": "text"}, "all items of label '1' are in one fold"),
    (6, {"folds": 3, "label": "text"}, r"6 labels for 6 items \('text 0', .*, …\) look like ids; name"),
])  # fmt: skip
def test_folds_that_leave_nothing_to_learn_from_are_errors(
    tmp_path: Path, num_items: int, fields: dict[str, Any], message: str
) -> None:
    frame = pd.DataFrame(
        {
            "text": [f"text {number}" for number in range(num_items)],
            "label": [1] + [0] * (num_items - 1),
        }
    )
    with pytest.raises(InputError, match=message):
        build_table_task(tmp_path, frame, **fields)
    smallest = pd.DataFrame(
        {"text": [f"text {number}" for number in range(4)], "label": [0, 0, 1, 1]}
    )
    for validation_share in (0.1, 1.0):
        data = build_table_task(tmp_path, smallest, folds=2, validation_share=validation_share)
        assert all(
            len(part.rows_N) for fold in (0, 1) for part in data.split_items(seed=0, fold=fold)
        )


def evaluate_task(data: TaskData, tmp_path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    context = EvalContext(
        tiny.checkpoint("word2vec"),
        data,
        tiny.model_config("word2vec").evaluate,
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    runs = [
        run
        for run in tiny.list_runs(data.info, ("random",), ("all",), (0, 1))
        if run.method.endswith("_probe")
    ]
    rows, predictions, *_ = evaluate_runs(
        context, runs, cache_dir=tmp_path / "keep", report_progress=lambda *_: None
    )
    return results_frame(rows), predictions


def read_report_cells(
    data: TaskData, rows: pd.DataFrame, predictions: pd.DataFrame, results_dir: Path
) -> list[ResultCell]:
    """Return the cells that a report reads from these results and from the baselines."""
    baselines = tiny.evaluate_baselines(
        load_kind("text_classification"),
        data,
        split="test",
        finetune_seeds=(0, 1),
        label_counts=("all",),
    )
    baseline_rows = results_frame([row for own_rows, _ in baselines for row in own_rows])
    baseline_predictions = pd.concat([table for _, table in baselines])
    write_stage_results(results_dir, "evaluate-word2vec-0-small", rows, predictions)
    write_stage_results(results_dir, "baselines-small", baseline_rows, baseline_predictions)
    write_no_ngrams(results_dir)
    grid = Grid(("word2vec",), ("small",), (0,), (), (), (), (0, 1), ("all",))
    return read_result_cells(
        results_dir, grid, table=read_rows(results_dir, grid), split="test", tasks={}
    )


def test_the_report_has_one_value_per_repetition_and_counts_groups_as_clusters(
    tmp_path: Path,
) -> None:
    data = build_table_task(tmp_path, labelled_sentences(130), folds=3, group="author")
    rows, predictions = evaluate_task(data, tmp_path)
    test_rows = rows[
        (rows["split"] == "test") & (rows["transfer"] == "frozen") & (rows["init"] == "random")
    ]
    assert sorted(zip(test_rows["finetune_seed"], test_rows["fold"], strict=True)) == [
        (seed, fold) for seed in (0, 1) for fold in range(3)
    ]
    assert set(test_rows["group"]) == {"all"}
    assert test_rows.groupby("finetune_seed")["num_examples"].sum().tolist() == [130, 130]
    assert (test_rows["train_examples"] < 130 * 2 / 3 + 10).all()
    cells = read_report_cells(data, rows, predictions, tmp_path / "results")
    cell = next(c for c in cells if (c.system.init, c.system.transfer) == ("random", "frozen"))
    test_predictions = predictions[
        (predictions["split"] == "test")
        & (predictions["transfer"] == "frozen")
        & (predictions["init"] == "random")
    ]
    for seed in (0, 1):
        assert cell.seed_values[0, seed] == pytest.approx(
            test_predictions.loc[test_predictions["finetune_seed"] == seed, "correct"].mean()
        )
        assert cell.item_scores[0, seed].mean() == pytest.approx(cell.seed_values[0, seed])
        assert len(cell.item_scores[0, seed]) == test_predictions["group"].nunique()
    assert cell.summarize().num_examples == 130
    assert cell.summarize().num_clusters == test_predictions["group"].nunique()
    failed_rows = rows.copy()
    (failed_row, *_) = failed_rows.index[
        (failed_rows["finetune_seed"] == 1)
        & (failed_rows["fold"] == 2)
        & (failed_rows["split"] == "test")
        & (failed_rows["transfer"] == "frozen")
    ]
    failed_rows.loc[failed_row, ["status", "reason", "value"]] = [
        "failed",
        notes_to_json([Note("error", "it did not converge")]),
        None,
    ]
    cell_without_seed_1 = next(
        c
        for c in read_report_cells(data, failed_rows, predictions, tmp_path / "failed")
        if (c.system.init, c.system.transfer) == ("random", "frozen")
    )
    assert {*cell_without_seed_1.seed_values} == {(0, 0)}
    assert {*cell_without_seed_1.item_scores} == {(0, 0)}
    assert cell_without_seed_1.summarize().num_clusters == test_predictions["group"].nunique()
    tfidf_cell = next(c for c in cells if c.system.model == "tfidf")
    assert tfidf_cell.mean > 0.9 and set(tfidf_cell.item_scores) == {(None, 0), (None, 1)}


def test_an_extra_test_set_is_scored_by_the_same_probe_under_its_own_name(tmp_path: Path) -> None:
    frame, other = labelled_sentences(60), labelled_sentences(40, seed=5)
    other["label"] = other["label"].map({0: "negative", 1: "positive"})
    other.to_csv(tmp_path / "other.csv", index=False)
    labelled_sentences(20, seed=6).to_csv(tmp_path / "test.csv", index=False)
    extra_test_set = {
        "files": {"test": "other.csv"},
        "label_map": {"negative": "0", "positive": "1"},
        "limit": {"test": 30},
    }
    files = {"train": "train.csv", "test": "test.csv"}
    data = build_table_task(tmp_path, frame, files=files, extra_test_sets={"other": extra_test_set})
    block = TEXTS | {"files": files, "extra_test_sets": {"other": extra_test_set}}
    build_task_items(tmp_path, block, check_files=True)
    block["extra_test_sets"]["other"] |= {"text": ["txt"]}
    with pytest.raises(InputError, match=r"task\.extra_test_sets\.other.*no column 'txt'"):
        build_task_items(tmp_path, block, check_files=True)
    expected_counts = {"train": 54, "validation": 6, "test": 20, "test-other": 30}
    assert data.info.counts == expected_counts
    assert set(data.splits["test-other"]["label"]) == {0, 1}
    rows, predictions = evaluate_task(data, tmp_path)
    frozen = rows[(rows["transfer"] == "frozen") & (rows["init"] == "random")]
    assert set(zip(frozen["split"], frozen["test_set"], frozen["num_examples"], strict=True)) == {
        ("validation", "small", 6), ("test", "small", 20), ("test", "other", 30)}  # fmt: skip
    cells = read_report_cells(data, rows, predictions, tmp_path / "results")
    assert list(dict.fromkeys(c.task for c in cells)) == ["small", "small on other"]
    tfidf_cells = {c.task: c for c in cells if c.system.model == "tfidf"}
    assert tfidf_cells["small on other"].mean > 0.9
    assert tfidf_cells["small on other"].num_examples == 30
    assert tfidf_cells["small"].num_examples == 20
    word2vec_cells = {
        c.task: c
        for c in cells
        if (c.system.model, c.system.init, c.system.transfer) == ("word2vec", "random", "frozen")
    }
    assert (
        word2vec_cells["small on other"].validation_values
        == word2vec_cells["small"].validation_values
        != []
    )
    data_without_test = TaskData(
        data.info,
        {name: table for name, table in data.splits.items() if not name.startswith("test")},
        include_test=False,
    )
    parts = data_without_test.split_items(seed=0, fold=None)
    assert [part.split for part in parts] == ["train", "validation"]
    assert data_without_test.scored_splits == ["validation"]


def test_the_stages_run_a_task_in_folds_and_one_with_an_extra_test_set(
    tmp_path: Path, run_stage: RunStage
) -> None:
    params = make_project(tmp_path)
    mood_task = params["tasks"]["mood"]
    params["tasks"] |= {"folded": mood_task | {"files": {"train": "mood/train.csv"}, "folds": 3}}
    params["tasks"]["mood"] = mood_task | {
        "extra_test_sets": {"again": {"files": {"test": "mood/train.csv"}}}
    }
    params["grid"] |= {"tasks": ["mood", "folded"], "adapt_models": [], "adapt_tasks": []}
    write_params(tmp_path, params)
    for command in (
        ("sources",),
        ("task", "mood"),
        ("baselines", "mood"),
        ("task", "folded"),
        ("baselines", "folded"),
    ):
        assert run_stage(tmp_path, *command)[0] == 0, command
    rows = pd.concat([read_table(path) for path in (tmp_path / "artifacts/results/rows").iterdir()])
    tfidf_rows = rows[(rows["model"] == "tfidf") & (rows["label_count"] == "all")]
    folded_rows = tfidf_rows[tfidf_rows["task"] == "folded"]
    assert set(folded_rows["fold"]) == {0, 1, 2}
    assert (folded_rows.query("split == 'test'")["num_examples"] == 20).all()
    assert set(tfidf_rows.loc[tfidf_rows["task"] == "mood", "test_set"]) == {"mood", "again"}
    stats = read_json(tmp_path / "artifacts/results/statistics/baselines-mood.json")
    num_duplicates = stats["extra_test_sets"]["again"]["duplicates_of_train"]
    assert num_duplicates == 54, "six of the 60 items are in validation"
    params["grid"] |= {"adapt_models": ["gpt"], "adapt_tasks": ["folded"]}
    write_params(tmp_path, params)
    code, output = run_stage(tmp_path, "sources")
    message = "in folds every item is scored, so none can be adapted to; give an unlabelled split"
    assert code == 2
    assert message in output
