"""Vectors of single words: whether their cosines order pairs as people do, and whether b - a + c is d: items, errors, every family, controls."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from lineage.artifacts import read_json, read_table
from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.baselines import evaluate_baselines
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.metrics import spearman
from lineage.evaluation.result_rows import mean_values
from lineage.evaluation.settings import EvaluateSettings
from lineage.evaluation.systems import EncoderUnderTest, EvalContext
from lineage.evaluation.word_vectors import list_distinct_words
from lineage.report.notes import format_notes
from lineage.results import PREDICTION_COLUMNS, RESULT_COLUMNS, UNKNOWN_TOKEN_METRIC, ResultRow
from lineage.tasks import word_similarity
from lineage.tasks.base import load_kind
from tests import tiny
from tests.test_transfer import FROZEN, TUNED
from tests.test_wordspace import by_hand, items_of
from tests.user_project import make, stage, write

WORDS = sorted(
    word for word in tiny.reader("sa_lstm").backend_tokenizer.get_vocab() if word.isalpha()
)[:40]  # the smallest vocabulary
STRANGE = "".join(WORDS[:2])  # of letters that all know, and no word
BY_WORD = [
    name
    for name in tiny.FAMILIES
    if tiny.variant(name).family.tokenizer_type == "word" and not tiny.model(name).handles_oov
]  # a closed vocabulary
RNG_SEED = 17


def pairs(count: int = 33, *, group: bool = True) -> pd.DataFrame:
    """Pairs of words that every tiny vocabulary holds, with scores, the second set on another scale."""
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


def quadruples(count: int = 21) -> pd.DataFrame:
    """Four words each."""
    rng = np.random.default_rng(RNG_SEED)
    table = pd.DataFrame(
        [rng.choice(WORDS, 4, replace=False) for _ in range(count)], columns=list("abcd")
    )
    return table.assign(category=["odd" if row % 2 else "even" for row in range(count)])


KEYS: dict[str, dict[str, Any]] = {
    "word_similarity": {"words": ["one", "two"], "label": "score", "group": "set"},
    "word_analogy": {"words": ["a", "b", "c", "d"], "group": "category"},
}


def made(root: Path, kind: str, table: pd.DataFrame, **keys: Any) -> TaskItems:
    """The items of a table, through a file of the user's."""
    table.to_csv(root / "test.csv", index=False)
    task = parse_record(
        Task, {"kind": kind, "files": {"test": "test.csv"}, **KEYS[kind], **keys}, "task"
    )
    return build_items("x", task, load_kind(kind), seed=1, root=root, where="task")


def setting(name: str, items: TaskItems) -> EvalContext:
    return EvalContext(
        tiny.checkpoint(name),
        TaskData(items.info, items.splits),
        EvaluateSettings(linear_probe=FROZEN, bilstm_probe=tiny.NETWORK, finetune=TUNED),
        0,
        1000,
        "fp32",
        tiny.CPU,
    )


def evaluated(name: str, items: TaskItems, folder: Path) -> tuple[list[ResultRow], pd.DataFrame]:
    some = [*list_runs(items.info, ("random",), ("all",), (0, 1))]
    assert [(cell.transfer, cell.label_count, cell.finetune_seed) for cell in some] == [
        ("zero_shot", None, None)
    ]
    return evaluate_runs(
        setting(name, items), some, cache_dir=folder, report_progress=lambda *_: None
    )


def test_items_hold_the_words_and_no_train_split(tmp_path: Path) -> None:
    found = made(tmp_path, "word_similarity", pairs())
    first, table = found.splits["test"].iloc[0], pairs()
    assert first.to_dict() == {
        "id": "test-1",
        "words": [table["one"][0], table["two"][0]],
        "label": table["score"][0],
        "group": "small",
    }
    assert (
        found.info["metric"] == ["spearman"]
        and found.info["has"] == ["test"]
        and found.info["answer"] is None
    )
    assert made(tmp_path, "word_similarity", pairs(group=False), group=None).splits["test"][
        "group"
    ].unique().tolist() == ["all"]
    assert made(tmp_path, "word_similarity", pairs(), max_per_group=5).info["counts"] == {
        "test": 10
    }
    found = made(tmp_path, "word_analogy", quadruples())
    assert found.splits["test"].iloc[2].to_dict() == {
        "id": "test-3",
        "words": quadruples().iloc[2, :4].tolist(),
        "group": "even",
    }
    assert (
        found.info["metric"] == ["accuracy"]
        and load_kind("word_analogy").extract_texts(found.splits["test"], "en")[3]
        == quadruples()["d"].tolist()
    )


@pytest.mark.parametrize(("kind", "row", "column", "value", "said"), [
    ("word_similarity", 3, "two", " ", "row 4: column 'two': the word is blank; correct the data, or remove the row"),
    ("word_similarity", 3, "score", "high", "row 4: column 'score': 'high' is not a finite number"),
    ("word_similarity", 3, "score", None, "row 4: column 'score': '' is not a finite number"),
    ("word_analogy", 2, "c", None, "row 3: column 'c': the word is blank"),
    ("word_analogy", 2, "a", "=b", r"row 3: columns 'a' and 'b': both are '\w+', .* correct the data, or remove the row"),
    ("word_analogy", 2, "d", "=c", r"row 3: column 'd': '\w+' is one of the three words that are given"),
])  # fmt: skip
def test_a_bad_row_is_named_with_its_column(
    kind: str, row: int, column: str, value: Any, said: str, tmp_path: Path
) -> None:
    table = (pairs() if kind == "word_similarity" else quadruples()).astype(object)
    table.loc[row, column] = table.loc[row, value[1]] if value and value[0] == "=" else value
    with pytest.raises(InputError, match=said):
        made(tmp_path, kind, table)


def test_of_a_text_that_was_taken_for_a_word_little_is_shown(tmp_path: Path) -> None:
    told = "a whole sentence that nobody meant to be seen in the log of a run"
    for column, other in (("b", "a"), ("d", "c")):
        table = quadruples().astype(object)
        table.loc[2, [column, other]] = told
        with pytest.raises(InputError, match="a whole sentence tha") as caught:
            made(tmp_path, "word_analogy", table)
        assert told[:21] not in str(caught.value)
    few = pairs().astype(object)
    few["set"] = told
    with pytest.raises(InputError, match="1 pairs are too few") as caught:
        made(tmp_path, "word_similarity", few[:1])
    assert told[:21] not in str(caught.value)


def test_what_is_no_task_as_a_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"words: \['one'\] names 1 columns; word_similarity reads 2 words, name a column for each",
    ):
        made(tmp_path, "word_similarity", pairs(), words=["one"])
    with pytest.raises(InputError, match="the key 'words' is missing"):
        made(tmp_path, "word_analogy", quadruples(), words=None)
    with pytest.raises(InputError, match="a task of kind word_analogy does not use it"):
        made(tmp_path, "word_analogy", quadruples(), label="category")
    table = pairs()
    table["score"] = table["score"].where(table["set"] == "large", 3)
    with pytest.raises(
        InputError,
        match=r"column 'set': group 'small': column 'score': every score is 3\.0, so the pairs have no order",
    ):
        made(tmp_path, "word_similarity", table)
    with pytest.raises(
        InputError,
        match=r"group 'large': 2 pairs are too few for a correlation of ranks; 3 are needed: .* raise max_per_group and limit",
    ):
        made(tmp_path, "word_similarity", pairs(), max_per_group=2)
    with pytest.raises(InputError, match=r"test\.csv: 2 pairs are too few"):
        made(tmp_path, "word_similarity", pairs(2, group=False), group=None)
    with pytest.raises(InputError, match="2 analogies are too few"):
        made(tmp_path, "word_analogy", quadruples(2))


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC, *tiny.slow(tiny.CELLS)])
def test_every_family_answers_both_kinds_in_any_order_of_the_items(
    name: str, tmp_path: Path
) -> None:
    for kind, table in (("word_similarity", pairs()), ("word_analogy", quadruples())):
        items = made(tmp_path, kind, table)
        (tmp_path / kind).mkdir()
        rows, predictions = evaluated(name, items, tmp_path / kind)
        layers = len(tiny.model(name).hidden_sizes())
        groups = ("all", *sorted(items.splits["test"]["group"].unique()))
        assert {(row.group, row.layer) for row in rows} == {
            (g, layer) for g in groups for layer in ("none", *map(str, range(layers)))
        }
        assert len(rows) == 3 * (1 + layers) and {row.transfer for row in rows} == {"zero_shot"}
        blind = (
            {"1"} if (name, kind) == ("context2vec", "word_similarity") else set()
        )  # its top layer has read what stands around a word, and not the word
        assert {row.layer for row in rows if row.status != "ok"} == blind and not any(
            row.reason for row in rows if row.layer not in blind
        )
        value = next(row.value for row in rows if row.group == "all" and row.layer == "none")
        assert predictions["correct"].mean() == pytest.approx(value, abs=1e-12) and list(
            predictions
        ) == list(PREDICTION_COLUMNS)
        parts = [
            row.value
            for row in rows
            if row.group != "all" and row.layer == "none" and row.value is not None
        ]
        assert kind == "word_analogy" or value == pytest.approx(np.mean(parts))
        assert list(mean_values(rows).values()) == [value], "layers are no repetitions"
        turned = items.splits["test"].sample(frac=1, random_state=1)
        (tmp_path / f"{kind} turned").mkdir()
        again, others = evaluated(
            name, TaskItems({"test": turned}, items.info), tmp_path / f"{kind} turned"
        )
        assert (
            predictions.set_index("id")["prediction"].to_dict()
            == others.set_index("id")["prediction"].to_dict()
        )
        assert [row.value for row in again if row.value is not None] == pytest.approx(
            [row.value for row in rows if row.value is not None], abs=1e-9
        )


def test_vectors_are_those_of_each_word_alone(tmp_path: Path) -> None:
    items = made(tmp_path, "word_similarity", pairs())
    subject = EncoderUnderTest(setting("gpt", items), "random")
    words = list_distinct_words(items.splits["test"])
    vectors, known = subject.embed_words(words)
    one, _ = subject.embed_words(words[4:5])
    assert (
        vectors.shape == (len(words), 3, max(subject.build_encoder().hidden_sizes()))
        and known.all()
    )
    np.testing.assert_allclose(vectors[4:5], one, atol=1e-5)


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC, *tiny.slow(tiny.CELLS)])
def test_a_word_is_unknown_where_a_closed_vocabulary_lacks_it_and_nothing_spells_it(
    name: str, tmp_path: Path
) -> None:
    table = pairs()
    table.loc[:1, "two"] = STRANGE
    rows, predictions = evaluated(name, made(tmp_path, "word_similarity", table), tmp_path)
    whole = next(row for row in rows if row.group == "all" and row.layer == "none")
    assert (name in BY_WORD) == format_notes(whole.reason).startswith(
        "2 of 33 pairs have a word that the model does not know"
    )
    some = predictions.set_index("id").loc[["test-1", "test-2"], "score"]
    assert (some.iloc[0] == some.iloc[1]) == (name in BY_WORD)
    small = next(row for row in rows if row.group == "small" and row.layer == "0")
    assert (name in BY_WORD) == format_notes(small.reason).startswith("1 of 11 pairs")


def controls(items: TaskItems) -> tuple[dict[str, ResultRow], pd.DataFrame]:
    kind = load_kind(items.info["kind"])
    (found,) = evaluate_baselines(
        kind,
        TaskData(items.info, items.splits),
        split="test",
        finetune_seeds=[0],
        label_counts=["all"],
    )
    return {row.model: row for row in found[0] if row.group == "all"}, found[1]


def test_controls_have_the_characters_of_words_and_no_majority(tmp_path: Path) -> None:
    items = made(tmp_path, "word_similarity", pairs())
    rows, table = controls(items)
    assert rows["majority"].status == "not_applicable" and "no labels" in format_notes(
        rows["majority"].reason
    )
    words = list_distinct_words(items.splits["test"])
    dense = (
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
        .fit_transform(words)
        .toarray()
    )
    x = dict(zip(words, by_hand(dense[:, None]), strict=True))
    np.testing.assert_allclose(
        table["score"], [x[a] @ x[b] for a, b in items.splits["test"]["words"]], atol=1e-9
    )
    assert (
        rows["tfidf"].value == pytest.approx(table["correct"].mean())
        and rows["tfidf"].metric == "spearman"
        and rows["tfidf"].num_examples == 33
    )
    assert list(table) == list(PREDICTION_COLUMNS) and set(table["model"]) == {"tfidf"}
    like = pd.DataFrame(
        [
            (f"{a}ing", f"{a}ed", f"{c}ing", f"{c}ed")
            for a, c in zip(WORDS[:9], WORDS[9:18], strict=True)
        ],
        columns=list("abcd"),
    )
    rows, table = controls(made(tmp_path, "word_analogy", like, group=None))
    assert rows["tfidf"].value == table["correct"].mean() > 0.5, "endings are characters"
    assert rows["majority"].status == "not_applicable"


def test_controls_without_an_order_say_so() -> None:
    facts = {"name": "x", "kind": "word_similarity", "metric": ["spearman"], "language": "en"}
    same = items_of(("a", "a"), ("b", "b"), ("c", "c"), label=[1.0, 2.0, 3.0])
    rows, table = controls(TaskItems({"test": same}, facts))
    assert (
        rows["tfidf"].status == "not_applicable"
        and "no correlation exists" in format_notes(rows["tfidf"].reason)
        and table["correct"].isna().all()
    )


def test_a_group_of_unknown_words_has_no_value_and_the_others_have_theirs(tmp_path: Path) -> None:
    """The mean over groups has none then either: over fewer groups it would be another number than the other models'."""
    table = pairs()
    table.loc[table["set"] == "small", "two"] = STRANGE
    rows, predictions = evaluated("ulmfit", made(tmp_path, "word_similarity", table), tmp_path)
    own = {row.group: row for row in rows if row.layer == "none"}
    assert {group: row.status for group, row in own.items()} == {
        "all": "not_applicable",
        "large": "ok",
        "small": "not_applicable",
    }
    assert all(
        format_notes(own[group].reason).startswith(
            "every pair of group 'small' has the same cosine"
        )
        for group in ("all", "small")
    )
    assert predictions["correct"].isna().tolist() == (predictions["group"] == "small").tolist()


def test_both_kinds_run_through_the_stages_beside_an_untrained_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make(tmp_path)
    tree["tasks"] = {}
    tree["models"].setdefault("word2vec", {})["tokenizer"] = {"vocab_size": 300}
    for kind, table in (("word_similarity", pairs()), ("word_analogy", quadruples())):
        table.to_csv(tmp_path / f"{kind}.csv", index=False)
        tree["tasks"][kind] = {"kind": kind, "files": {"test": f"{kind}.csv"}, **KEYS[kind]}
    tree["grid"] |= {
        "models": ["word2vec"],
        "tasks": [*tree["tasks"]],
        "adapt_models": [],
        "adapt_tasks": [],
    }
    write(tmp_path, tree)
    commands = [
        ("sources",),
        ("corpus", "general"),
        ("tokenizer", "word2vec"),
        ("pretrain", "word2vec", "0"),
    ]
    commands += [
        (verb, *model, kind)
        for kind in tree["tasks"]
        for verb, model in (("task", ()), ("baselines", ()), ("evaluate", ("word2vec", "0")))
    ]
    for command in commands:
        code, said = stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, (command, said)
    for kind in tree["tasks"]:
        found = read_table(tmp_path / f"artifacts/results/rows/evaluate-word2vec-0-{kind}.parquet")
        assert (
            list(found) == list(RESULT_COLUMNS)
            and set(found["init"]) == {"pretrained", "random"}
            and set(found["layer"]) == {"none", "0"}
        )
        assert (
            set(found["label_count"]) == {"none"}
            and read_json(tmp_path / f"artifacts/tasks/{kind}/task.json")["kind"] == kind
        )
        own, one = (
            found[(found["layer"] == "none") & (found["group"] == "all")],
            found[(found["layer"] == "0") & (found["group"] == "all")],
        )
        own, one = (some[some["metric"] != UNKNOWN_TOKEN_METRIC] for some in (own, one))
        assert own["value"].tolist() == one["value"].tolist(), "the one layer is all of them"


REAL = {
    "word-similarity": (
        "word_similarity",
        {"words": ["word1", "word2"], "label": "score", "group": "dataset"},
        7867,
        4996,
    ),
    "analogies-google": (
        "word_analogy",
        {"words": ["a", "b", "c", "d"], "group": "category"},
        19_544,
        905,
    ),
}


@pytest.mark.skipif(
    "LINEAGE_DATA" not in os.environ, reason="LINEAGE_DATA names no folder of real data"
)
@pytest.mark.parametrize("name", REAL)
def test_real_sets_of_words_load_by_configuration_alone(name: str) -> None:
    kind, keys, count, words = REAL[name]
    task = parse_record(
        Task, {"kind": kind, "files": {"test": f"{name}/test.parquet"}, **keys}, "task"
    )
    found = build_items(
        "x", task, load_kind(kind), seed=1, root=Path(os.environ["LINEAGE_DATA"]), where="task"
    )
    table = found.splits["test"]
    assert len(table) == count and len(list_distinct_words(table)) == words
    rows, said = controls(found)
    value = rows["tfidf"].value
    assert (
        value is not None and said["correct"].mean() == pytest.approx(value) and 0.05 < value < 0.6
    )
    if kind == "word_similarity":
        each = [
            spearman(own["label"].to_numpy(), own["prediction"].to_numpy())
            for _, own in said.groupby("group")
        ]
        assert (
            len(each) == 10
            and np.mean(each) == pytest.approx(value)
            and load_kind(kind).score("spearman", said) == pytest.approx(value)
        )
        word_similarity.check_items(table, task, "here")
