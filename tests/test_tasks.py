"""User tables become items by configuration, subsets are nested, baselines fill every row."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

import lineage
from lineage import artifacts, results
from lineage.answers.metrics import accuracy, macro_f1, matthews_correlation
from lineage.data.items import TaskItems
from lineage.errors import InputError
from lineage.evaluation.evaluate import sort_predictions
from lineage.tasks.base import list_kinds, load_kind
from tests.helpers.tasks import build_task_items
from tests.helpers.user_project import make_project, write_params


def build_task(root: Path, *, seed: int = 1, **keys) -> TaskItems:
    """Build the items of a task with this configuration."""
    return build_task_items(root, keys, name="sense" if keys.get("generated") else "x", seed=seed)


def build_classification_task(
    root: Path, *, train: pd.DataFrame, test: pd.DataFrame, **keys
) -> TaskItems:
    """Write both tables and build a text classification task from them."""
    train.to_csv(root / "train.csv", index=False)
    test.to_csv(root / "test.csv", index=False)
    files = {"train": "train.csv", "test": "test.csv", **keys.pop("files", {})}
    return build_task(
        root, kind="text_classification", files=files, text=["text"], label="label", **keys
    )


def make_table(*rows: tuple[str, object]) -> pd.DataFrame:
    """Return a table of texts and labels."""
    return pd.DataFrame(list(rows), columns=["text", "label"])


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


TRAIN = make_table(*[(f"text number {n}", "b" if n % 3 else "a") for n in range(90)])


def test_labels_come_from_train_and_ids_give_the_users_row(tmp_path):
    task = build_classification_task(
        tmp_path, train=TRAIN, test=make_table(("first", "b"), ("second", "a"))
    )
    assert task.info.labels == ["a", "b"]
    assert list(task.splits["test"].itertuples(index=False, name=None)) == [
        ("test-1", "first", 1, "all"),
        ("test-2", "second", 0, "all"),
    ]


def test_a_missing_validation_split_is_taken_from_train_by_the_seed(tmp_path):
    first, same, other = (
        build_classification_task(
            tmp_path, train=TRAIN, test=TRAIN[:2], validation_share=0.2, seed=seed
        )
        for seed in (1, 1, 2)
    )
    assert first.info.counts == {"train": 72, "test": 2, "validation": 18}
    assert first.info.held_out_from_train == 18
    ids = [set(task.splits["validation"]["id"]) for task in (first, same, other)]
    assert ids[0] == ids[1] != ids[2]
    assert not ids[0] & set(first.splits["train"]["id"])
    assert first.splits["validation"]["label"].mean() == pytest.approx(2 / 3)


@pytest.mark.parametrize(("limit", "counts"), [
    ({"train": 36}, {"train": 36, "validation": 9}), ({"train": 2}, {"train": 2, "validation": 1}), ({"train": 80}, {"train": 72, "validation": 18}),
    ({"train": 36, "validation": 12}, {"train": 36, "validation": 12}),
])  # fmt: skip
def test_a_train_limit_also_limits_the_validation_split_taken_from_train(limit, counts, tmp_path):
    limited, unlimited = (
        build_classification_task(
            tmp_path, train=TRAIN, test=TRAIN[:2], validation_share=0.2, limit=limits
        )
        for limits in (limit, {})
    )
    assert limited.info.counts == counts | {"test": 2}
    for split in ("train", "validation"):
        assert set(limited.splits[split]["id"]) <= set(unlimited.splits[split]["id"])
    assert limited.info.held_out_from_train == 18
    assert limited.info.dropped.get("validation", {}).get("limit", 0) == 18 - counts["validation"]


def test_splitting_off_validation_leaves_every_label_in_train(tmp_path):
    train = pd.concat([TRAIN, make_table(("the only one", "rare"))], ignore_index=True)
    for limit in ({}, {"train": 40}):
        task = build_classification_task(
            tmp_path,
            train=train,
            test=make_table(("first", "rare")),
            validation_share=0.2,
            limit=limit,
        )
        assert "rare" in {task.info.labels[i] for i in task.splits["train"]["label"]}
        assert not {*task.splits["train"]["id"]} & {*task.splits["validation"]["id"]}


def test_accuracy_is_always_among_the_metrics(tmp_path):
    task = build_classification_task(tmp_path, train=TRAIN, test=TRAIN[:5], metric=["macro_f1"])
    assert task.info.metric == ["macro_f1", "accuracy"], "the report compares by the first metric"


def make_sense_table(**change: object) -> pd.DataFrame:
    row = {"words": ["the", "bank", "of", "the", "river"], "place": 1, "sense": "shore", **change}
    return pd.DataFrame([row, {**row, "sense": "money"}])


SENSE = {
    "kind": "word_sense",
    "files": {"train": "t.parquet", "validation": "t.parquet", "test": "t.parquet"},
    "tokens": "words",
    "target": "place",
    "label": "sense",
}


def test_truncated_tokens_keep_the_target_word(tmp_path):
    make_sense_table(words=[f"w{n}" for n in range(30)], place=20).to_parquet(
        tmp_path / "t.parquet"
    )
    task = build_task(tmp_path, **SENSE, max_words=9)
    first = task.splits["test"].iloc[0]
    assert len(first["tokens"]) == 9
    assert first["tokens"][first["target"]] == "w20"
    assert task.info.truncated["test"] == 2
    assert task.info.labels == ["money", "shore"]


def test_minimal_pairs_are_limited_per_group_and_equal_pairs_are_dropped(tmp_path):
    pairs = [
        {"g": f"the cats run {n}", "b": f"the cats runs {n}", "uid": f"p{n % 3}"} for n in range(30)
    ]
    pd.DataFrame([*pairs, {"g": "same", "b": "same", "uid": "p0"}]).to_json(
        tmp_path / "t.jsonl", orient="records", lines=True
    )
    task = build_task(
        tmp_path,
        kind="minimal_pairs",
        files={"test": "t.jsonl"},
        good="g",
        bad="b",
        group="uid",
        max_per_group=4,
    )
    assert task.splits["test"]["group"].value_counts().to_dict() == {"p0": 4, "p1": 4, "p2": 4}
    assert task.info.dropped == {"test": {"unusable": 1, "per_group": 18}}
    assert (task.info.labels, task.info.has) == ([], ["test"])


def test_a_generated_task_has_ceilings(tmp_path):
    task = build_task(tmp_path, kind="word_sense", generated="synthetic")
    assert set(task.info.ceilings) == {"static", "left", "both"}
    assert list(task.splits["train"].columns) == ["id", "tokens", "target", "label", "group"]
    with pytest.raises(InputError, match="is of kind word_sense, not text_classification"):
        build_task(tmp_path, kind="text_classification", generated="synthetic")


def test_metrics_equal_scikit_learn():
    rng = np.random.default_rng(3)
    labels = rng.choice(4, 97, p=[0.6, 0.2, 0.2, 0.0])
    predictions = rng.choice(4, 97)
    assert accuracy(labels, predictions) == np.mean(labels == predictions)
    assert macro_f1(labels, predictions) == pytest.approx(
        f1_score(labels, predictions, average="macro"), abs=1e-12
    )
    assert matthews_correlation(labels, predictions) == pytest.approx(
        matthews_corrcoef(labels, predictions), abs=1e-12
    )
    assert matthews_correlation(labels, np.zeros(97, int)) == 0


def run_baselines(folder, tree, run_stage) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run the task and baselines stages and return their rows and predictions."""
    write_params(folder, tree)
    for name in tree["grid"]["tasks"]:
        for command in ("task", "baselines"):
            code, output = run_stage(folder, command, name)
            assert code == 0, output
    home = folder / "artifacts/results"
    return tuple(
        pd.concat([artifacts.read_table(path) for path in sorted((home / table_name).iterdir())])
        for table_name in ("rows", "predictions")
    )  # type: ignore[return-value]


def test_baselines_give_a_row_per_subset_and_seed_plus_ceilings_and_ties(tmp_path, run_stage):
    tree = make_project(tmp_path / "p")
    limit = {"train": 120, "validation": 40, "test": 60}
    tree["tasks"] |= {
        "sense": {"kind": "word_sense", "generated": "synthetic", "limit": limit},
        "agreement": {"kind": "minimal_pairs", "generated": "synthetic", "limit": {"test": 60}},
    }
    tree["grid"] |= {"tasks": ["mood", "sense", "agreement"], "finetune_seeds": [0, 1]}
    write_params(tmp_path / "p", tree)
    assert run_stage(tmp_path / "p", "sources")[0] == 0
    rows, predictions = run_baselines(tmp_path / "p", tree, run_stage)
    assert list(rows.columns) == list(results.RESULT_COLUMNS)
    assert list(predictions.columns) == list(results.PREDICTION_COLUMNS)
    baseline_rows = rows[
        rows["task"].isin(["mood", "sense"])
        & rows["model"].isin(["majority", "tfidf"])
        & (rows["group"] == "all")
    ]
    # The majority is of the test split alone; TF-IDF is scored on validation too.
    assert len(baseline_rows) == 2 * 2 * 2 * (1 + 2)
    for _, row in baseline_rows.iterrows():
        own_predictions = predictions[
            (predictions["model"] == row["model"])
            & (predictions["task"] == row["task"])
            & (predictions["label_count"] == row["label_count"])
            & (predictions["finetune_seed"] == row["finetune_seed"])
            & (predictions["split"] == row["split"])
        ]
        assert own_predictions["correct"].mean() == pytest.approx(row["value"])
        assert len(own_predictions) == row["num_examples"]
    mood = baseline_rows[
        (baseline_rows["task"] == "mood")
        & (baseline_rows["label_count"] == "20")
        & (baseline_rows["split"] == "test")
    ].set_index(["model", "finetune_seed"])
    assert mood.loc[("majority", 0), "value"] == 0.5
    assert mood.loc[("tfidf", 0), "value"] == 1.0
    assert set(mood["train_examples"]) == {20}
    ceilings = rows[(rows["model"] == "ceiling") & (rows["group"] == "all")]
    assert set(ceilings["task"]) == {"sense", "agreement"}
    assert set(ceilings["features"]) == {"static", "left", "both"}
    pairs = rows[
        (rows["task"] == "agreement")
        & rows["model"].isin(["majority", "tfidf"])
        & (rows["group"] == "all")
    ].set_index("model")
    assert pairs.loc["majority", "value"] == 0.5
    assert pairs.loc["tfidf", "status"] == "not_applicable"
    assert set(predictions[predictions["task"] == "agreement"]["correct"]) == {0.5}


def test_with_split_validation_the_test_file_is_never_read(tmp_path, run_stage):
    tree = make_project(tmp_path / "p")
    tree["report"] = {"split": "validation"}
    write_params(tmp_path / "p", tree)
    for command in (("sources",), ("task", "mood")):
        assert run_stage(tmp_path / "p", *command)[0] == 0
    (tmp_path / "p/artifacts/tasks/mood/test.parquet").write_bytes(b"not to be read")
    assert run_stage(tmp_path / "p", "baselines", "mood")[0] == 0
    rows = artifacts.read_table(tmp_path / "p/artifacts/results/rows/baselines-mood.parquet")
    assert set(rows["split"]) == {"validation"}


def test_an_empty_predictions_table_has_all_columns():
    assert list(sort_predictions([]).columns) == list(results.PREDICTION_COLUMNS)


def test_code_outside_lineage_tasks_does_not_mention_task_kinds() -> None:
    """Other code reads the fields of `Kind`, but for synthetic tasks."""
    root = Path(lineage.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.parent.name in ("tasks", "synthetic"):
            continue
        texts = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        kinds = {*list_kinds()} - {"translation"}  # also the name of a block of `evaluate`
        assert not texts & kinds, path


def test_every_module_that_is_listed_as_a_kind_is_one() -> None:
    for name in list_kinds():
        assert load_kind(name).name == name


def test_a_kind_whose_key_is_no_field_of_a_task_is_refused() -> None:
    """The columns of other keys are not read."""
    with pytest.raises(
        AssertionError, match=r"word_sense: add \['subject'\] to the fields of Task"
    ):
        dataclasses.replace(load_kind("word_sense"), required_columns=("tokens", "subject"))
