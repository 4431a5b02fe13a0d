"""A user's table becomes items by configuration alone; subsets are nested; controls see what every family sees."""

import ast
import itertools
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

import lineage
from lineage import artifacts, results
from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.data.splits import nested_random_subset, nested_stratified_subset
from lineage.errors import InputError
from lineage.evaluation.baselines import BASELINES, build_predictions_table
from lineage.evaluation.metrics import accuracy, macro_f1, matthews_correlation
from lineage.tasks.base import list_kinds, load_kind
from lineage.tasks.columns import sort_labels
from tests.user_project import make, stage, write


def items_of(root: Path, *, seed: int = 1, **keys) -> TaskItems:
    task = parse_record(Task, keys, "task")
    return build_items(
        "sense" if keys.get("generated") else "x",
        task,
        load_kind(task.kind),
        seed=seed,
        root=root,
        where="task",
    )


def classify(root: Path, *, train: pd.DataFrame, test: pd.DataFrame, **keys) -> TaskItems:
    train.to_csv(root / "train.csv", index=False)
    test.to_csv(root / "test.csv", index=False)
    files = {"train": "train.csv", "test": "test.csv", **keys.pop("files", {})}
    return items_of(
        root, kind="text_classification", files=files, text=["text"], label="label", **keys
    )


def table(*rows_: tuple[str, object]) -> pd.DataFrame:
    return pd.DataFrame(list(rows_), columns=["text", "label"])


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


TRAIN = table(*[(f"text number {n}", "b" if n % 3 else "a") for n in range(90)])


def test_labels_come_from_train_and_ids_tell_the_users_row(tmp_path):
    made = classify(tmp_path, train=TRAIN, test=table(("first", "b"), ("second", "a")))
    assert made.info["labels"] == ["a", "b"]
    assert list(made.splits["test"].itertuples(index=False, name=None)) == [
        ("test-1", "first", 1, "all"),
        ("test-2", "second", 0, "all"),
    ]
    assert sort_labels(["10", "9", "-1"]) == ["-1", "9", "10"]
    assert sort_labels(["10", "9", "x"]) == ["10", "9", "x"]


def test_a_missing_validation_is_carved_out_of_train_by_the_seed(tmp_path):
    one, same, other = (
        classify(tmp_path, train=TRAIN, test=TRAIN[:2], validation_share=0.2, seed=s)
        for s in (1, 1, 2)
    )
    assert one.info["counts"] == {"train": 72, "test": 2, "validation": 18}
    assert one.info["carved"] == 18
    ids = [set(made.splits["validation"]["id"]) for made in (one, same, other)]
    assert ids[0] == ids[1] != ids[2]
    assert not ids[0] & set(one.splits["train"]["id"])
    assert one.splits["validation"]["label"].mean() == pytest.approx(2 / 3)


@pytest.mark.parametrize(("limit", "counts"), [
    ({"train": 36}, {"train": 36, "validation": 9}), ({"train": 2}, {"train": 2, "validation": 1}), ({"train": 80}, {"train": 72, "validation": 18}),
    ({"train": 36, "validation": 12}, {"train": 36, "validation": 12}),
])  # fmt: skip
def test_a_limit_of_train_makes_carved_validation_a_share_of_what_is_used(limit, counts, tmp_path):
    made, whole = (
        classify(tmp_path, train=TRAIN, test=TRAIN[:2], validation_share=0.2, limit=some)
        for some in (limit, {})
    )
    assert made.info["counts"] == counts | {"test": 2}
    for split in ("train", "validation"):
        assert set(made.splits[split]["id"]) <= set(whole.splits[split]["id"])
    assert (
        made.info["carved"] == 18
        and made.info["dropped"].get("validation", {}).get("limit", 0) == 18 - counts["validation"]
    )


def test_carving_leaves_every_label_in_train(tmp_path):
    train = pd.concat([TRAIN, table(("the only one", "rare"))], ignore_index=True)
    for limit in ({}, {"train": 40}):
        made = classify(
            tmp_path, train=train, test=table(("first", "rare")), validation_share=0.2, limit=limit
        )
        assert "rare" in {made.info["labels"][i] for i in made.splits["train"]["label"]}
        assert not {*made.splits["train"]["id"]} & {*made.splits["validation"]["id"]}


def test_accuracy_is_always_among_the_metrics(tmp_path):
    made = classify(tmp_path, train=TRAIN, test=TRAIN[:5], metric=["macro_f1"])
    assert made.info["metric"] == ["macro_f1", "accuracy"], "the report compares by the first"


def test_limits_are_nested_and_counted(tmp_path):
    small, large = (
        classify(tmp_path, train=TRAIN, test=TRAIN, limit={"train": n, "test": n}) for n in (10, 30)
    )
    for name in ("train", "test"):
        assert set(small.splits[name]["id"]) < set(large.splits[name]["id"])
    assert small.info["dropped"]["test"] == {"limit": 80}
    assert small.info["dropped"]["train"] == {"limit": 71}


def test_long_texts_are_cut_for_all_alike_and_counted(tmp_path):
    made = classify(
        tmp_path,
        train=TRAIN,
        test=table(("one two three four .", "a"), ("one two three", "b")),
        max_tokens=3,
    )
    assert list(made.splits["test"]["text"]) == ["one two three", "one two three"]
    assert made.info["cut"]["test"] == 1


def test_items_of_test_that_stand_in_train_are_counted_not_removed(tmp_path):
    made = classify(
        tmp_path,
        train=TRAIN,
        test=table(("text number 5", "a"), ("new", "b")),
        files={"validation": "test.csv"},
    )
    assert made.info["repeated_in_train"] == {"validation": 1, "test": 1}
    assert made.info["counts"]["test"] == 2


def test_what_is_scored_is_dropped_from_unlabelled_text_and_counted(tmp_path):
    """No model may adapt to the texts that it is then asked about; those of train are no secret."""
    texts = ["something else", "Text 0 of test", "text number 5"]
    pd.DataFrame({"text": texts}).to_parquet(tmp_path / "u.parquet")
    made = classify(
        tmp_path,
        train=TRAIN,
        test=table(("Text 0 of test", "a"), ("new", "b")),
        files={"unlabelled": "u.parquet"},
    )
    assert set(made.splits["unlabelled"]["text"]) == {"something else", "text number 5"} - {
        *made.splits["validation"]["text"]
    }
    assert made.info["dropped"]["unlabelled"]["scored"] == 3 - len(made.splits["unlabelled"])
    assert {*made.info["repeated_in_train"]} == {"validation", "test"}, (
        "text without labels is no item"
    )


def test_unlabelled_text_needs_no_label_and_blank_rows_of_it_are_dropped(tmp_path):
    pd.DataFrame({"text": ["some words", " ", "more words"]}).to_parquet(tmp_path / "u.parquet")
    made = classify(tmp_path, train=TRAIN, test=TRAIN[:3], files={"unlabelled": "u.parquet"})
    assert list(made.splits["unlabelled"]["text"]) == ["some words", "more words"]
    assert made.info["dropped"]["unlabelled"] == {"blank": 1}
    assert made.info["has"] == ["test", "train", "unlabelled", "validation"]


def sense_table(**change: object) -> pd.DataFrame:
    row = {"words": ["the", "bank", "of", "the", "river"], "place": 1, "sense": "shore", **change}
    return pd.DataFrame([row, {**row, "sense": "money"}])


SENSE = {
    "kind": "word_sense",
    "files": {"train": "t.parquet", "validation": "t.parquet", "test": "t.parquet"},
    "tokens": "words",
    "target": "place",
    "label": "sense",
}


def test_a_sense_keeps_its_target_when_the_tokens_are_cut(tmp_path):
    sense_table(words=[f"w{n}" for n in range(30)], place=20).to_parquet(tmp_path / "t.parquet")
    made = items_of(tmp_path, **SENSE, max_tokens=9)
    first = made.splits["test"].iloc[0]
    assert len(first["tokens"]) == 9
    assert first["tokens"][first["target"]] == "w20"
    assert made.info["cut"]["test"] == 2
    assert made.info["labels"] == ["money", "shore"]


def test_a_few_rows_without_text_are_left_out_and_counted(tmp_path):
    """The index of the others stays that of their rows; more than a tenth of them is an error (`spoiled_files.blank_text`)."""
    rows = [
        {"text": f"text {n}" if n not in (3, 9) else " \u200b", "label": n % 2, "score": n / 7}
        for n in range(40)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    for kind, label in (("text_classification", "label"), ("text_regression", "score")):
        made = items_of(
            tmp_path,
            kind=kind,
            files={"train": "t.csv", "test": "t.csv"},
            text=["text"],
            label=label,
            validation_share=0.25,
        )
        test = made.splits["test"].set_index("id")
        assert (
            len(test) == 38
            and {"test-4", "test-10"}.isdisjoint(test.index)
            and test.loc["test-11", "text"] == "text 10"
        )
        assert test.loc["test-11", "label"] == (0 if kind == "text_classification" else 10 / 7)
        assert made.info["dropped"]["test"] == made.info["dropped"]["train"] == {"of_no_use": 2}


def test_tokens_may_be_one_text_with_spaces(tmp_path):
    sense_table(words="the bank of the river").to_parquet(tmp_path / "t.parquet")
    assert items_of(tmp_path, **SENSE).splits["train"].iloc[0]["tokens"] == [
        "the",
        "bank",
        "of",
        "the",
        "river",
    ]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"place": 5}, "5 is outside the 5 tokens"),
        ({"place": None}, "not the index"),
        ({"words": []}, "blank"),
    ],
)
def test_a_bad_target_or_token_names_the_row(change, what, tmp_path):
    sense_table(**change).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=f"row 1.*{what}"):
        items_of(tmp_path, **SENSE)


def test_pairs_keep_their_groups_at_most_so_many_of_each_and_equal_pairs_are_left_out(tmp_path):
    pairs = [
        {"g": f"the cats run {n}", "b": f"the cats runs {n}", "uid": f"p{n % 3}"} for n in range(30)
    ]
    pd.DataFrame([*pairs, {"g": "same", "b": "same", "uid": "p0"}]).to_json(
        tmp_path / "t.jsonl", orient="records", lines=True
    )
    made = items_of(
        tmp_path,
        kind="minimal_pairs",
        files={"test": "t.jsonl"},
        good="g",
        bad="b",
        group="uid",
        max_per_group=4,
    )
    assert made.splits["test"]["group"].value_counts().to_dict() == {"p0": 4, "p1": 4, "p2": 4}
    assert made.info["dropped"] == {"test": {"of_no_use": 1, "per_group": 18}}
    assert (made.info["labels"], made.info["has"]) == ([], ["test"])


def test_a_generated_task_has_ceilings(tmp_path):
    made = items_of(tmp_path, kind="word_sense", generated="synthetic")
    assert set(made.info["ceilings"]) == {"static", "left", "both"}
    assert list(made.splits["train"].columns) == ["id", "tokens", "target", "label", "group"]
    with pytest.raises(InputError, match="is of kind word_sense, not text_classification"):
        items_of(tmp_path, kind="text_classification", generated="synthetic")


def test_subsets_are_nested_stratified_and_hold_every_label():
    labels = np.random.default_rng(0).choice(4, 500, p=[0.7, 0.2, 0.09, 0.01])
    subsets = [nested_stratified_subset(labels, count, seed=5) for count in (10, 100, 400, "all")]
    for small, large in itertools.pairwise(subsets):
        assert set(small) < set(large)
    for subset in subsets:
        assert set(labels[subset]) == {0, 1, 2, 3}
        assert len(set(subset)) == len(subset)
    assert np.allclose(np.bincount(labels[subsets[1]]) / 100, np.bincount(labels) / 500, atol=0.02)
    assert set(nested_stratified_subset(labels, 100, seed=6)) != set(subsets[1])
    assert len(nested_stratified_subset(labels, 1000, seed=5)) == 500
    a, b = (nested_random_subset(50, n, rng=np.random.default_rng(1)) for n in (5, 20))
    assert set(a) < set(b)


def test_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(3)
    gold, said = rng.choice(4, 97, p=[0.6, 0.2, 0.2, 0.0]), rng.choice(4, 97)
    assert accuracy(gold, said) == np.mean(gold == said)
    assert macro_f1(gold, said) == pytest.approx(f1_score(gold, said, average="macro"), abs=1e-12)
    assert matthews_correlation(gold, said) == pytest.approx(
        matthews_corrcoef(gold, said), abs=1e-12
    )
    assert matthews_correlation(gold, np.zeros(97, int)) == 0


def run_control(folder, tree, monkeypatch, capsys) -> tuple[pd.DataFrame, pd.DataFrame]:
    write(folder, tree)
    for name in tree["grid"]["tasks"]:
        for command in ("task", "baselines"):
            code, said = stage(folder, command, name, monkeypatch=monkeypatch, capsys=capsys)
            assert code == 0, said
    home = folder / "artifacts/results"
    return tuple(
        pd.concat([artifacts.read_table(p) for p in sorted((home / part).iterdir())])
        for part in ("rows", "predictions")
    )  # type: ignore[return-value]


def test_controls_give_a_row_for_every_subset_and_seed_and_ceilings_and_ties(
    tmp_path, monkeypatch, capsys
):
    tree = make(tmp_path / "p")
    tree["tasks"] |= {
        "sense": {"kind": "word_sense", "generated": "synthetic"},
        "agreement": {"kind": "minimal_pairs", "generated": "synthetic"},
    }
    tree["grid"] |= {"tasks": ["mood", "sense", "agreement"], "finetune_seeds": [0, 1]}
    write(tmp_path / "p", tree)
    assert stage(tmp_path / "p", "sources", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    found, said = run_control(tmp_path / "p", tree, monkeypatch, capsys)
    assert list(found.columns) == list(results.RESULT_COLUMNS)
    assert list(said.columns) == list(results.PREDICTION_COLUMNS)
    cells = found[
        found["task"].isin(["mood", "sense"])
        & found["model"].isin(BASELINES)
        & (found["group"] == "all")
    ]
    assert len(cells) == 2 * 2 * 2 * 2
    for _, row in cells.iterrows():
        own = said[
            (said["model"] == row["model"])
            & (said["task"] == row["task"])
            & (said["label_count"] == row["label_count"])
            & (said["finetune_seed"] == row["finetune_seed"])
        ]
        assert own["correct"].mean() == pytest.approx(row["value"])
        assert len(own) == row["num_examples"]
    mood = cells[(cells["task"] == "mood") & (cells["label_count"] == "20")].set_index(
        ["model", "finetune_seed"]
    )
    assert mood.loc[("majority", 0), "value"] == 0.5
    assert mood.loc[("tfidf", 0), "value"] == 1.0
    assert set(mood["train_examples"]) == {20}
    ceilings = found[(found["model"] == "ceiling") & (found["group"] == "all")]
    assert set(ceilings["task"]) == {"sense", "agreement"}
    assert set(ceilings["features"]) == {"static", "left", "both"}
    pairs = found[
        (found["task"] == "agreement") & found["model"].isin(BASELINES) & (found["group"] == "all")
    ].set_index("model")
    assert pairs.loc["majority", "value"] == 0.5
    assert pairs.loc["tfidf", "status"] == "not_applicable"
    assert set(said[said["task"] == "agreement"]["correct"]) == {0.5}


def test_with_split_validation_the_test_file_is_never_read(tmp_path, monkeypatch, capsys):
    tree = make(tmp_path / "p")
    tree["report"] = {"split": "validation"}
    write(tmp_path / "p", tree)
    for command in (("sources",), ("task", "mood")):
        assert stage(tmp_path / "p", *command, monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    (tmp_path / "p/artifacts/tasks/mood/test.parquet").write_bytes(b"not to be read")
    assert (
        stage(tmp_path / "p", "baselines", "mood", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    )
    found = artifacts.read_table(tmp_path / "p/artifacts/results/rows/baselines-mood.parquet")
    assert set(found["split"]) == {"validation"}


def test_a_table_without_cells_has_the_columns_of_one_with_cells():
    assert list(build_predictions_table([]).columns) == list(results.PREDICTION_COLUMNS)


REAL = {
    "sst2": {"kind": "text_classification", "text": ["sentence"], "label": "label"},
    "imdb": {"kind": "text_classification", "text": ["text"], "label": "label", "max_tokens": 256},
    "blimp": {
        "kind": "minimal_pairs",
        "good": "good",
        "bad": "bad",
        "group": "uid",
        "max_per_group": 50,
    },
}
COUNTS = {
    "sst2": {"train": 3000, "validation": 500, "test": 1821},
    "imdb": {"train": 1000, "validation": 500, "test": 1000, "unlabelled": 2000},
    "blimp": {"test": 67 * 50},
}


@pytest.mark.skipif(
    "LINEAGE_DATA" not in os.environ, reason="LINEAGE_DATA names no folder of real data"
)
@pytest.mark.parametrize("name", ["sst2", pytest.param("imdb", marks=pytest.mark.slow), "blimp"])
def test_real_tasks_load_by_configuration_alone(name):
    files = {split: f"{name}/{split}.parquet" for split in COUNTS[name]}
    made = items_of(Path(os.environ["LINEAGE_DATA"]), files=files, limit=COUNTS[name], **REAL[name])
    assert made.info["counts"] == COUNTS[name]
    assert made.info["labels"] == ([] if name == "blimp" else ["0", "1"])


def test_no_code_outside_tasks_compares_the_names_of_kinds() -> None:
    """What other code asks about a kind is a field of `Kind`; the synthetic tasks name theirs."""
    root = Path(lineage.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.parent.name in ("tasks", "synthetic") or path.name == "renamed.py":
            continue
        texts = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not texts & {*list_kinds()} - {"translation"}, path  # a block of `evaluate`, too
