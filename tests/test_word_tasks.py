"""Word similarity and analogy tasks have items, errors, results for all families, and baselines."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from lineage.answers.words import list_distinct_words
from lineage.artifacts import read_json, read_table
from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import EvaluationOutput
from lineage.evaluation.result_rows import mean_values
from lineage.methods.encoder import EvalContext
from lineage.report.notes import format_notes
from lineage.results import PREDICTION_COLUMNS, RESULT_COLUMNS, UNKNOWN_TOKEN_METRIC, ResultRow
from lineage.tasks.base import load_kind
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny
from tests.helpers.first_word import FINETUNE, PROBE
from tests.helpers.user_project import RunStages, make_project, write_params
from tests.helpers.word_items import make_items, unit_vectors_by_hand

# The family with the smallest vocabulary.
WORDS = tiny.words("sa_lstm")[:40]
UNKNOWN_WORD = "".join(WORDS[:2])  # all tokenizers know its letters, none knows the word
# Models whose vocabulary is closed.
CLOSED_VOCABULARY = [
    name
    for name in tiny.FAMILIES
    if tiny.model_config(name).family.tokenizer_type == "word" and not tiny.model(name).handles_oov
]
RNG_SEED = 17


def make_pairs(count: int = 33, *, group: bool = True) -> pd.DataFrame:
    """Return scored pairs of words in every tiny vocabulary; the two sets have different scales."""
    rng = np.random.default_rng(RNG_SEED)
    table = pd.DataFrame(
        {
            "one": rng.choice(WORDS, count),
            "two": rng.choice(WORDS, count),
            "score": rng.integers(0, 9, count) / 2,
        }
    )
    table["set"] = ["large" if row % 3 else "small" for row in range(count)]
    table.loc[table["set"] == "small", "score"] += 100
    return table if group else table.drop(columns="set")


def make_analogies(count: int = 21) -> pd.DataFrame:
    """Return analogies of four words each."""
    rng = np.random.default_rng(RNG_SEED)
    table = pd.DataFrame(
        [rng.choice(WORDS, 4, replace=False) for _ in range(count)], columns=list("abcd")
    )
    return table.assign(category=["odd" if row % 2 else "even" for row in range(count)])


KEYS: dict[str, dict[str, Any]] = {
    "word_similarity": {"words": ["one", "two"], "label": "score", "group": "set"},
    "word_analogy": {"words": ["a", "b", "c", "d"], "group": "category"},
}


def build_task(root: Path, kind: str, table: pd.DataFrame, **keys: Any) -> TaskItems:
    """Write the table to a file and build the items of a task from it."""
    table.to_csv(root / "test.csv", index=False)
    task = parse_record(
        Task, {"kind": kind, "files": {"test": "test.csv"}, **KEYS[kind], **keys}, "task"
    )
    return build_items("x", task, load_kind(kind), seed=1, root=root, where="task")


def build_context(name: str, items: TaskItems) -> EvalContext:
    """Return a context with an untrained tiny model."""
    return tiny.eval_context(
        name, TaskData(items.info, items.splits), tiny.eval_settings(PROBE, FINETUNE)
    )


def evaluate_zero_shot(name: str, items: TaskItems, folder: Path) -> EvaluationOutput:
    """Return the output of an evaluation of an untrained model."""
    runs = [*tiny.list_runs(items.info, ("random",), ("all",), (0, 1))]
    assert [(run.method, run.label_count, run.finetune_seed) for run in runs] == [
        ("word_vectors", None, None)
    ]
    return tiny.evaluate_runs(build_context(name, items), runs, folder)


def test_items_hold_the_words_and_no_train_split(tmp_path: Path) -> None:
    task = build_task(tmp_path, "word_similarity", make_pairs())
    first_item = task.splits["test"].iloc[0]
    table = make_pairs()
    assert first_item.to_dict() == {
        "id": "test-1",
        "words": [table["one"][0], table["two"][0]],
        "label": table["score"][0],
        "group": "small",
    }
    assert task.info.metric == ["spearman"]
    assert task.info.has == ["test"]
    assert build_task(tmp_path, "word_similarity", make_pairs(group=False), group=None).splits[
        "test"
    ]["group"].unique().tolist() == ["all"]
    assert build_task(tmp_path, "word_similarity", make_pairs(), max_per_group=5).info.counts == {
        "test": 10
    }
    task = build_task(tmp_path, "word_analogy", make_analogies())
    assert task.splits["test"].iloc[2].to_dict() == {
        "id": "test-3",
        "words": make_analogies().iloc[2, :4].tolist(),
        "group": "even",
    }
    assert task.info.metric == ["accuracy"]
    assert (
        load_kind("word_analogy").extract_texts(task.splits["test"], "en")[3]
        == make_analogies()["d"].tolist()
    )


@pytest.mark.parametrize(("kind", "row", "column", "value", "message"), [
    ("word_similarity", 3, "two", " ", "row 4: column 'two': the word is blank; correct the data, or remove the row"),
    ("word_similarity", 3, "score", "high", "row 4: column 'score': 'high' is not a finite number"),
    ("word_similarity", 3, "score", None, "row 4: column 'score': '' is not a finite number"),
    ("word_analogy", 2, "c", None, "row 3: column 'c': the word is blank"),
    ("word_analogy", 2, "a", "=b", r"row 3: columns 'a' and 'b': both are '\w+', .* correct the data, or remove the row"),
    ("word_analogy", 2, "d", "=c", r"row 3: column 'd': '\w+' is one of the three words that are given"),
])  # fmt: skip
def test_an_invalid_row_is_named_with_its_column(
    kind: str, row: int, column: str, value: Any, message: str, tmp_path: Path
) -> None:
    table = (make_pairs() if kind == "word_similarity" else make_analogies()).astype(object)
    table.loc[row, column] = table.loc[row, value[1]] if value and value[0] == "=" else value
    with pytest.raises(InputError, match=message):
        build_task(tmp_path, kind, table)


def test_errors_show_only_the_start_of_a_long_text(tmp_path: Path) -> None:
    long_text = "a whole sentence that nobody meant to be seen in the log of a run"
    for column, other in (("b", "a"), ("d", "c")):
        table = make_analogies().astype(object)
        table.loc[2, [column, other]] = long_text
        with pytest.raises(InputError, match="a whole sentence tha") as caught:
            build_task(tmp_path, "word_analogy", table)
        assert long_text[:21] not in str(caught.value)
    too_few = make_pairs().astype(object)
    too_few["set"] = long_text
    with pytest.raises(InputError, match="1 pairs are too few") as caught:
        build_task(tmp_path, "word_similarity", too_few[:1])
    assert long_text[:21] not in str(caught.value)


def test_a_task_with_wrong_columns_or_too_few_items_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"words: \['one'\] names 1 columns; word_similarity reads 2 words, name a column for each",
    ):
        build_task(tmp_path, "word_similarity", make_pairs(), words=["one"])
    with pytest.raises(InputError, match="the key 'words' is missing"):
        build_task(tmp_path, "word_analogy", make_analogies(), words=None)
    with pytest.raises(InputError, match="a task of kind word_analogy does not use it"):
        build_task(tmp_path, "word_analogy", make_analogies(), label="category")
    table = make_pairs()
    table["score"] = table["score"].where(table["set"] == "large", 3)
    with pytest.raises(
        InputError,
        match=r"column 'set': group 'small': column 'score': every score is 3\.0, so the pairs have no order",
    ):
        build_task(tmp_path, "word_similarity", table)
    with pytest.raises(
        InputError,
        match=r"group 'large': 2 pairs are too few for a correlation of ranks; 3 are needed: .* raise max_per_group and limit",
    ):
        build_task(tmp_path, "word_similarity", make_pairs(), max_per_group=2)
    with pytest.raises(InputError, match=r"test\.csv: 2 pairs are too few"):
        build_task(tmp_path, "word_similarity", make_pairs(2, group=False), group=None)
    with pytest.raises(InputError, match="2 analogies are too few"):
        build_task(tmp_path, "word_analogy", make_analogies(2))


@pytest.mark.parametrize("name", tiny.mark_similar_slow(tiny.FAMILIES))
def test_every_family_answers_both_kinds_whatever_the_order_of_items(
    name: str, tmp_path: Path
) -> None:
    for kind, table in (("word_similarity", make_pairs()), ("word_analogy", make_analogies())):
        items = build_task(tmp_path, kind, table)
        (tmp_path / kind).mkdir()
        rows, predictions, *_ = evaluate_zero_shot(name, items, tmp_path / kind)
        num_layers = len(tiny.model(name).hidden_sizes())
        groups = ("all", *sorted(items.splits["test"]["group"].unique()))
        assert {(row.group, row.layer) for row in rows} == {
            (group, layer) for group in groups for layer in ("none", *map(str, range(num_layers)))
        }
        assert len(rows) == 3 * (1 + num_layers) and {row.transfer for row in rows} == {"zero_shot"}
        # The top layer of context2vec sees the context of a word, but not the word.
        has_no_value = (name, kind) == ("context2vec", "word_similarity")
        layers_without_value = {"1"} if has_no_value else set()
        assert {row.layer for row in rows if row.status != "ok"} == layers_without_value
        assert not any(row.reason for row in rows if row.layer not in layers_without_value)
        value = next(row.value for row in rows if row.group == "all" and row.layer == "none")
        assert predictions["correct"].mean() == pytest.approx(value, abs=1e-12)
        assert list(predictions) == list(PREDICTION_COLUMNS)
        group_values = [
            row.value
            for row in rows
            if row.group != "all" and row.layer == "none" and row.value is not None
        ]
        assert kind == "word_analogy" or value == pytest.approx(np.mean(group_values))
        assert list(mean_values(rows).values()) == [value], "layers do not count as repetitions"
        shuffled = items.splits["test"].sample(frac=1, random_state=1)
        (tmp_path / f"{kind} turned").mkdir()
        shuffled_rows, shuffled_predictions, *_ = evaluate_zero_shot(
            name, TaskItems({"test": shuffled}, items.info), tmp_path / f"{kind} turned"
        )
        assert (
            predictions.set_index("id")["prediction"].to_dict()
            == shuffled_predictions.set_index("id")["prediction"].to_dict()
        )
        assert [row.value for row in shuffled_rows if row.value is not None] == pytest.approx(
            [row.value for row in rows if row.value is not None], abs=1e-9
        )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC, *tiny.mark_slow(tiny.CELLS)])
def test_a_word_is_unknown_only_to_closed_vocabularies_without_subwords(
    name: str, tmp_path: Path
) -> None:
    table = make_pairs()
    table.loc[:1, "two"] = UNKNOWN_WORD
    rows, predictions, *_ = evaluate_zero_shot(
        name, build_task(tmp_path, "word_similarity", table), tmp_path
    )
    all_row = next(row for row in rows if row.group == "all" and row.layer == "none")
    assert (name in CLOSED_VOCABULARY) == format_notes(all_row.reason).startswith(
        "2 of 33 pairs have a word that the model does not know"
    )
    scores = predictions.set_index("id").loc[["test-1", "test-2"], "score"]
    assert (scores.iloc[0] == scores.iloc[1]) == (name in CLOSED_VOCABULARY)
    small_row = next(row for row in rows if row.group == "small" and row.layer == "0")
    assert (name in CLOSED_VOCABULARY) == format_notes(small_row.reason).startswith("1 of 11 pairs")


def run_baselines(items: TaskItems) -> tuple[dict[str, ResultRow], pd.DataFrame]:
    """Return the baselines' rows by model, and their predictions."""
    kind = load_kind(items.info.kind)
    (results,) = tiny.evaluate_baselines(kind, TaskData(items.info, items.splits))
    return {row.model: row for row in results[0] if row.group == "all"}, results[1]


def test_tfidf_compares_words_by_characters_and_majority_does_not_apply(tmp_path: Path) -> None:
    items = build_task(tmp_path, "word_similarity", make_pairs())
    rows, table = run_baselines(items)
    assert rows["majority"].status == "not_applicable"
    assert "no labels" in format_notes(rows["majority"].reason)
    words = list_distinct_words(items.splits["test"])
    dense = (
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
        .fit_transform(words)
        .toarray()
    )
    vectors = dict(zip(words, unit_vectors_by_hand(dense[:, None]), strict=True))
    np.testing.assert_allclose(
        table["score"],
        [vectors[a] @ vectors[b] for a, b in items.splits["test"]["words"]],
        atol=1e-9,
    )
    assert rows["tfidf"].value == pytest.approx(table["correct"].mean())
    assert rows["tfidf"].metric == "spearman"
    assert rows["tfidf"].num_examples == 33
    assert list(table) == list(PREDICTION_COLUMNS) and set(table["model"]) == {"tfidf"}
    analogies = pd.DataFrame(
        [
            (f"{a}ing", f"{a}ed", f"{c}ing", f"{c}ed")
            for a, c in zip(WORDS[:9], WORDS[9:18], strict=True)
        ],
        columns=list("abcd"),
    )
    rows, table = run_baselines(build_task(tmp_path, "word_analogy", analogies, group=None))
    assert rows["tfidf"].value == table["correct"].mean() > 0.5, "endings are character n-grams"
    assert rows["majority"].status == "not_applicable"


def test_tfidf_is_not_applicable_when_all_its_scores_are_equal() -> None:
    info = TaskInfo(name="x", kind="word_similarity", metric=["spearman"], language="en")
    items = make_items(("a", "a"), ("b", "b"), ("c", "c"), label=[1.0, 2.0, 3.0])
    rows, table = run_baselines(TaskItems({"test": items}, info))
    assert rows["tfidf"].status == "not_applicable"
    assert "no correlation exists" in format_notes(rows["tfidf"].reason)
    assert table["correct"].isna().all()


def test_a_group_with_only_unknown_words_has_no_value_but_other_groups_do(tmp_path: Path) -> None:
    """The mean over groups has no value either: it could not be compared with other models'."""
    table = make_pairs()
    table.loc[table["set"] == "small", "two"] = UNKNOWN_WORD
    rows, predictions, *_ = evaluate_zero_shot(
        "ulmfit", build_task(tmp_path, "word_similarity", table), tmp_path
    )
    row_by_group = {row.group: row for row in rows if row.layer == "none"}
    assert {group: row.status for group, row in row_by_group.items()} == {
        "all": "not_applicable",
        "large": "ok",
        "small": "not_applicable",
    }
    assert all(
        format_notes(row_by_group[group].reason).startswith(
            "every pair of group 'small' has the same cosine"
        )
        for group in ("all", "small")
    )
    assert predictions["correct"].isna().tolist() == (predictions["group"] == "small").tolist()


def test_both_kinds_run_through_the_stages_with_a_random_init_baseline(
    tmp_path: Path, run_stages: RunStages
) -> None:
    tree = make_project(tmp_path)
    tree["tasks"] = {}
    tree["models"].setdefault("word2vec", {})["tokenizer"] = {"vocab_size": 300}
    for kind, table in (("word_similarity", make_pairs()), ("word_analogy", make_analogies())):
        table.to_csv(tmp_path / f"{kind}.csv", index=False)
        tree["tasks"][kind] = {"kind": kind, "files": {"test": f"{kind}.csv"}, **KEYS[kind]}
    tree["grid"] |= {
        "models": ["word2vec"],
        "tasks": [*tree["tasks"]],
        "adapt_models": [],
        "adapt_tasks": [],
    }
    write_params(tmp_path, tree)
    commands = ["sources", "corpus general", "tokenizer word2vec", "pretrain word2vec 0"]
    for kind in tree["tasks"]:
        commands += [f"task {kind}", f"baselines {kind}", f"evaluate word2vec 0 {kind}"]
    run_stages(tmp_path, *commands)
    for kind in tree["tasks"]:
        rows = read_table(tmp_path / f"artifacts/results/rows/evaluate-word2vec-0-{kind}.parquet")
        assert list(rows) == list(RESULT_COLUMNS)
        assert set(rows["init"]) == {"pretrained", "random"}
        assert set(rows["layer"]) == {"none", "0"}
        assert set(rows["label_count"]) == {"none"}
        assert read_json(tmp_path / f"artifacts/tasks/{kind}/task.json")["kind"] == kind
        mean_rows = rows[(rows["layer"] == "none") & (rows["group"] == "all")]
        layer_rows = rows[(rows["layer"] == "0") & (rows["group"] == "all")]
        mean_rows, layer_rows = (
            frame[frame["metric"] != UNKNOWN_TOKEN_METRIC] for frame in (mean_rows, layer_rows)
        )
        assert mean_rows["value"].tolist() == layer_rows["value"].tolist(), (
            "the model has only one layer"
        )
