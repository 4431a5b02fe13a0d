"""Cross-validation in folds, groups that stay together, and second test sets: who learns from what, and what the report makes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.cells import ResultCell, read_result_cells, read_rows
from lineage.artifacts import read_json, read_table, write_table
from lineage.config.data import Task
from lineage.config.params import Grid
from lineage.config.records import parse_record
from lineage.data.dataset_stats import FoldStats, compute_fold_stats
from lineage.data.items import build_items, check_task_files
from lineage.data.task_data import TaskData, assign_fold_splits
from lineage.errors import InputError
from lineage.evaluation.baselines import evaluate_baselines
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.systems import EvalContext
from lineage.results import Note, notes_to_json, results_frame
from lineage.tasks.base import load_kind
from tests import tiny
from tests.user_project import make as project
from tests.user_project import stage, write

AUTHORS = 9
SPLITS = {"train": "train.csv", "test": "train.csv"}


def texts(count: int, *, seed: int = 0) -> pd.DataFrame:
    """Sentences whose words tell the label, by authors who have written unlike numbers of them."""
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
            "author": [f"author {a}" for a in author],
        }
    )


def made(
    tmp_path: Path, frame: pd.DataFrame, *, where: str = "tasks.small", **keys: Any
) -> TaskData:
    frame.to_csv(tmp_path / "train.csv", index=False)
    tree = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {"train": "train.csv"},
    } | keys
    task = parse_record(Task, tree, where)
    items = build_items("small", task, load_kind(task.kind), seed=3, root=tmp_path, where=where)
    return TaskData(items.info, items.splits)


@pytest.mark.parametrize("grouped", [False, True])
def test_each_item_is_test_once_a_repetition_and_no_group_stands_on_two_sides(
    tmp_path: Path, grouped: bool
) -> None:
    frame = texts(130)
    data = made(tmp_path, frame, folds=4, **({"group": "author"} if grouped else {}))
    deals = []
    for seed in (0, 1):
        tests = []
        for fold in range(4):
            parts = {
                part.split: data.select_items(part)
                for part in data.split_items(seed=seed, fold=fold)
            }
            assert sorted(pd.concat(parts.values())["id"]) == sorted(data.splits["train"]["id"]), (
                "every item is in one part"
            )
            assert min(map(len, parts.values())) > 0
            for one, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
                assert not grouped or not {*parts[one]["group"]} & {*parts[other]["group"]}
            tests.append(frozenset(parts["test"]["id"]))
        assert sum(map(len, tests)) == 130 == len(frozenset().union(*tests))
        deals.append(tests)
        assert grouped or all(
            abs(
                np.mean([int(frame["label"][int(i[6:]) - 1]) for i in some]) - frame["label"].mean()
            )
            < 0.05
            for some in tests
        )
    assert deals[0] != deals[1], "another seed deals anew"
    again = data.split_items(seed=1, fold=3)
    assert all(
        np.array_equal(a.rows_N, b.rows_N)
        for a, b in zip(again, data.split_items(seed=1, fold=3), strict=True)
    )


@pytest.mark.parametrize(
    ("folds", "sizes"), [(3, [1, 1, 98]), (5, [1, 1, 1, 1, 60]), (4, [10, 1, 1, 1])]
)
def test_no_side_is_empty_however_unlike_the_groups_are(folds: int, sizes: list[int]) -> None:
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
            assert all(len(rows) for rows in parts.values()) and sum(
                map(len, parts.values())
            ) == len(items)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"folds": 3, "files": {"train": "train.csv", "test": "train.csv"}},
            "tasks.small.folds: test is given",
        ),
        ({"folds": 2, "group": "author"}, "with groups to 3 or more"),
        ({"folds": 1}, "set it to 2 or more"),
        ({"folds": 40, "group": "author"}, "groups are too few for 40 folds"),
        ({"folds": 200}, "130 items are too few for 200 folds"),
        (
            {
                "files": SPLITS,
                "label_map": {"0": "no"},
                "extra_test_sets": {"other": {"files": {"train": "train.csv"}}},
            },
            "name only a test split",
        ),
        (
            {"files": SPLITS, "extra_test_sets": {"other": {"files": {"test": "other.csv"}}}},
            "label 'neither' does not occur in train",
        ),
        (
            {
                "files": SPLITS,
                "extra_test_sets": {"other": {"files": {"test": "other.csv"}, "label": "verdict"}},
            },
            "row 1: column 'verdict': label 'neither'",
        ),
        (
            {"folds": 3, "extra_test_sets": {"other": {"files": {"test": "other.csv"}}}},
            "tasks.small.extra_test_sets: with folds each item of train is tested once",
        ),
        *(
            (
                {"files": SPLITS, "extra_test_sets": {name: {"files": {"test": "other.csv"}}}},
                f"the name '{name}' must match",
            )
            for name in ("small", "held_unlabelled", "a on b", "a/b")
        ),
        (
            {"files": SPLITS, "limit": {"train": 1}},
            "limit.train or validation leaves 1 items, with 1 of the 2 labels; raise the limit",
        ),
    ],
)
def test_folds_that_cannot_be_are_errors(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    pd.DataFrame({"text": ["good"], "label": ["neither"], "verdict": ["neither"]}).to_csv(
        tmp_path / "other.csv", index=False
    )
    with pytest.raises(InputError, match=words):
        made(tmp_path, texts(130), **keys)


@pytest.mark.parametrize(("keys", "refused"), [
    ({"folds": 10}, False), ({"folds": 11}, True), ({"folds": 5, "group": "own"}, True), ({"folds": 3, "group": "own"}, False),
    ({"folds": 5, "group": "author"}, False), ({"folds": 3, "group": "few"}, True),
])  # fmt: skip
def test_folds_of_numbers_have_a_correlation(
    keys: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    """Not where a fold may be two items, two groups of one item too, or one group that has the same number in all."""
    frame = pd.DataFrame(
        {
            "text": [f"text {n}" for n in range(30)],
            "score": [n // 5 + (n % 2) * (n > 4) for n in range(30)],
        }
    )
    frame["own"], frame["author"] = (
        [f"one {n // 5}" for n in range(30)],
        [f"one {n % 5}" for n in range(30)],
    )
    frame["few"] = [f"one {min(n, 5)}" for n in range(30)]
    numbers = {"kind": "text_regression", "label": "score"}
    if refused:
        with pytest.raises(
            InputError,
            match=r"items in \d+ (items|groups) and \d+ folds: a fold may have only \d+ items, or a single group",
        ):
            made(tmp_path, frame, **numbers, **keys)
    else:
        assert made(tmp_path, frame, **numbers, **keys).info["folds"] == keys["folds"]


def test_a_rare_label_stays_in_train_where_it_can_and_is_told_where_it_cannot(
    tmp_path: Path,
) -> None:
    """Validation never takes a label's last item, nor does a limit; a fold that had to take all of a label's groups is counted."""
    rare = texts(40).assign(label=["rare"] * 2 + ["common"] * 38)
    for seed in range(5):
        data = made(tmp_path, rare, folds=2)
        assert all(
            data.select_items(data.split_items(seed=seed, fold=fold)[0])["label"].nunique() == 2
            for fold in (0, 1)
        )
        assert compute_fold_stats(data, [seed]) == FoldStats(2, 0, 0, 2)
        turned = rare.sample(frac=1, random_state=seed)
        assert set(
            made(tmp_path, turned, files=SPLITS, limit={"train": 10}, validation_share=0.2).splits[
                "train"
            ]["label"]
        ) == {0, 1}
    few = pd.DataFrame(
        {"text": "a b", "label": ["x", "x", "y", "y", "y"], "author": ["p", "q", "r", "s", "t"]}
    )
    data = made(tmp_path, few, folds=3, group="author")
    lacking = [
        data.select_items(data.split_items(seed=seed, fold=fold)[0])["label"].nunique() < 2
        for seed in range(4)
        for fold in range(3)
    ]
    assert sum(lacking) > 0
    assert compute_fold_stats(data, range(4)) == FoldStats(3, 5, sum(lacking), 12)


@pytest.mark.parametrize(("items", "keys", "words"), [
    (3, {"folds": 2}, "3 items are too few for 2 folds"),
    (5, {"folds": 3, "group": "text"}, "all items of label '1' are in one fold"),
])  # fmt: skip
def test_folds_that_would_leave_nothing_to_learn_are_errors(
    tmp_path: Path, items: int, keys: dict[str, Any], words: str
) -> None:
    frame = pd.DataFrame(
        {"text": [f"text {n}" for n in range(items)], "label": [1] + [0] * (items - 1)}
    )
    with pytest.raises(InputError, match=words):
        made(tmp_path, frame, **keys)
    smallest = pd.DataFrame({"text": [f"text {n}" for n in range(4)], "label": [0, 0, 1, 1]})
    for share in (0.1, 1.0):
        data = made(tmp_path, smallest, folds=2, validation_share=share)
        assert all(
            len(part.rows_N) for fold in (0, 1) for part in data.split_items(seed=0, fold=fold)
        )


def evaluated(data: TaskData, tmp_path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    setting = EvalContext(
        tiny.checkpoint("word2vec"),
        data,
        tiny.variant("word2vec").evaluate,
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    some = [*list_runs(data.info, ("random",), ("all",), (0, 1))]
    rows, predictions = evaluate_runs(
        setting, some, cache_dir=tmp_path / "keep", report_progress=lambda *_: None
    )
    return results_frame(rows), predictions


def reported(
    data: TaskData, rows: pd.DataFrame, predictions: pd.DataFrame, results: Path
) -> list[ResultCell]:
    """The cells that a report makes of these results and of the controls."""
    controls = [
        *evaluate_baselines(
            load_kind("text_classification"),
            data,
            split="test",
            finetune_seeds=(0, 1),
            label_counts=("all",),
        )
    ]
    write_table(results / "rows/evaluate-word2vec-0-small.parquet", rows)
    write_table(results / "predictions/evaluate-word2vec-0-small.parquet", predictions)
    write_table(
        results / "rows/baselines-small.parquet",
        results_frame([row for some, _ in controls for row in some]),
    )
    write_table(
        results / "predictions/baselines-small.parquet", pd.concat([one for _, one in controls])
    )
    grid = Grid(("word2vec",), ("small",), (0,), (), (), (0, 1), ("all",))
    return read_result_cells(results, grid, table=read_rows(results, grid), split="test", tasks={})


def test_the_report_has_one_value_a_repetition_and_counts_groups_as_cases(tmp_path: Path) -> None:
    data = made(tmp_path, texts(130), folds=3, group="author")
    rows, predictions = evaluated(data, tmp_path)
    tested = rows[
        (rows["split"] == "test") & (rows["transfer"] == "frozen") & (rows["init"] == "random")
    ]
    assert sorted(zip(tested["finetune_seed"], tested["fold"], strict=True)) == [
        (s, f) for s in (0, 1) for f in range(3)
    ]
    assert set(tested["group"]) == {"all"} and tested.groupby("finetune_seed")[
        "num_examples"
    ].sum().tolist() == [130, 130]
    assert (tested["train_examples"] < 130 * 2 / 3 + 10).all()
    found = reported(data, rows, predictions, tmp_path / "results")
    cell = next(c for c in found if (c.system.init, c.system.transfer) == ("random", "frozen"))
    said = predictions[
        (predictions["split"] == "test")
        & (predictions["transfer"] == "frozen")
        & (predictions["init"] == "random")
    ]
    for seed in (0, 1):
        assert cell.seed_values[0, seed] == pytest.approx(
            said.loc[said["finetune_seed"] == seed, "correct"].mean()
        )
        assert (
            cell.item_scores[0, seed].mean() == pytest.approx(cell.seed_values[0, seed])
            and len(cell.item_scores[0, seed]) == said["group"].nunique()
        )
    assert (
        cell.summarize().num_examples == 130
        and cell.summarize().num_clusters == said["group"].nunique()
    )
    fell = rows.copy()
    (row, *_) = fell.index[
        (fell["finetune_seed"] == 1)
        & (fell["fold"] == 2)
        & (fell["split"] == "test")
        & (fell["transfer"] == "frozen")
    ]
    fell.loc[row, ["status", "reason", "value"]] = [
        "failed",
        notes_to_json([Note("error", "it did not converge")]),
        None,
    ]
    one = next(
        c
        for c in reported(data, fell, predictions, tmp_path / "fell")
        if (c.system.init, c.system.transfer) == ("random", "frozen")
    )
    assert {*one.seed_values} == {*one.item_scores} == {
        (0, 0)
    } and one.summarize().num_clusters == said["group"].nunique(), "of seed 1 nothing counts"
    bags = next(c for c in found if c.system.model == "tfidf")
    assert bags.mean > 0.9 and set(bags.item_scores) == {(None, 0), (None, 1)}


def test_a_second_test_set_is_scored_by_the_same_reader_under_its_own_name(tmp_path: Path) -> None:
    frame, other = texts(60), texts(40, seed=5)
    other["label"] = other["label"].map({0: "negative", 1: "positive"})
    other.to_csv(tmp_path / "other.csv", index=False)
    texts(20, seed=6).to_csv(tmp_path / "test.csv", index=False)
    second = {
        "files": {"test": "other.csv"},
        "label_map": {"negative": "0", "positive": "1"},
        "limit": {"test": 30},
    }
    data = made(
        tmp_path,
        frame,
        files={"train": "train.csv", "test": "test.csv"},
        extra_test_sets={"other": second},
    )
    assert data.info["counts"] == {
        "train": 54,
        "validation": 6,
        "test": 20,
        "test-other": 30,
    } and set(data.splits["test-other"]["label"]) == {0, 1}
    common = {
        "kind": "text_classification",
        "text": ["text"],
        "label": "label",
        "files": {"train": "train.csv", "test": "test.csv"},
    }
    task, bad = (
        parse_record(Task, common | {"extra_test_sets": {"other": second | more}}, "tasks.small")
        for more in ({}, {"text": ["txt"]})
    )
    check_task_files(
        task, load_kind("text_classification"), root=tmp_path, where="tasks.small", read_files=True
    )
    with pytest.raises(InputError, match=r"tasks\.small\.extra_test_sets\.other.*no column 'txt'"):
        check_task_files(
            bad,
            load_kind("text_classification"),
            root=tmp_path,
            where="tasks.small",
            read_files=True,
        )
    rows, predictions = evaluated(data, tmp_path)
    frozen = rows[(rows["transfer"] == "frozen") & (rows["init"] == "random")]
    assert set(zip(frozen["split"], frozen["test_set"], frozen["num_examples"], strict=True)) == {
        ("validation", "small", 6), ("test", "small", 20), ("test", "other", 30)}  # fmt: skip
    found = reported(data, rows, predictions, tmp_path / "results")
    assert list(dict.fromkeys(c.task for c in found)) == ["small", "small on other"]
    both = {c.task: c for c in found if c.system.model == "tfidf"}
    assert (
        both["small on other"].mean > 0.9
        and both["small on other"].num_examples == 30
        and both["small"].num_examples == 20
    )
    own = {
        c.task: c
        for c in found
        if (c.system.model, c.system.init, c.system.transfer) == ("word2vec", "random", "frozen")
    }
    assert own["small on other"].validation_values == own["small"].validation_values != []
    hidden = TaskData(
        data.info,
        {n: t for n, t in data.splits.items() if not n.startswith("test")},
        include_test=False,
    )
    assert [part.split for part in hidden.split_items(seed=0, fold=None)] == [
        "train",
        "validation",
    ] and hidden.scored_splits == ["validation"]


def test_the_stages_run_a_task_in_folds_and_one_with_a_second_test_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = project(tmp_path)
    mood = tree["tasks"]["mood"]
    tree["tasks"] |= {"folded": mood | {"files": {"train": "mood/train.csv"}, "folds": 3}}
    tree["tasks"]["mood"] = mood | {
        "extra_test_sets": {"again": {"files": {"test": "mood/train.csv"}}}
    }
    tree["grid"] |= {"tasks": ["mood", "folded"], "adapt_models": [], "adapt_tasks": []}
    write(tmp_path, tree)
    for command in (
        ("sources",),
        ("task", "mood"),
        ("baselines", "mood"),
        ("task", "folded"),
        ("baselines", "folded"),
    ):
        assert stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)[0] == 0, command
    found = pd.concat(
        [read_table(path) for path in (tmp_path / "artifacts/results/rows").iterdir()]
    )
    bags = found[(found["model"] == "tfidf") & (found["label_count"] == "all")]
    assert (
        set(bags.loc[bags["task"] == "folded", "fold"]) == {0, 1, 2}
        and (bags.loc[bags["task"] == "folded", "num_examples"] == 20).all()
    )
    assert set(bags.loc[bags["task"] == "mood", "test_set"]) == {"mood", "again"}
    stats = read_json(tmp_path / "artifacts/results/statistics/baselines-mood.json")
    repeated = stats["extra_test_sets"]["again"]["duplicates_of_train"]
    assert repeated == 54, "six items went to validation"
    tree["grid"] |= {"adapt_models": ["gpt"], "adapt_tasks": ["folded"]}
    write(tmp_path, tree)
    code, said = stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
    assert (
        code == 2
        and "in folds every item is scored, so none can be adapted to; give an unlabelled split"
        in said
    )
