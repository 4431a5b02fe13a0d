"""Semantic roles: models learn whose arguments words are, and rows of a sentence stay together."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score

from flows.new_study import draft_study
from lineage.answers.groups import can_report_groups, split_by_group
from lineage.answers.metrics import CONTRIBUTIONS, METRICS
from lineage.answers.predicate import NUM_PLACES, place_features
from lineage.answers.roles import RolesAnswer, scored_arguments
from lineage.config.records import parse_yaml
from lineage.data.items import TaskItems
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.methods.bilstm_probe import predict_bilstm_probe
from lineage.methods.encoding import answer_rows, collate_items
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe
from lineage.methods.pooling import pool_features
from lineage.networks.batch import Batch
from lineage.synthetic.grammar import DEFAULT_GRAMMAR_SEED, Sampler, SentenceGenerator
from lineage.synthetic.words import build_lexicon
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.fitting import (
    PLAIN_FINETUNE,
    cache_features,
    extract_features,
    finetune,
    fit_bilstm_probe,
    predict_finetuned,
)
from tests.helpers.new_study import make_home
from tests.helpers.tasks import build_task_items, write_jsonl

Row = dict[str, Any]
ROLES = {"kind": "semantic_roles", "tokens": "tokens", "predicate": "verb", "label": "roles"}
SENTENCE: Row = {
    "tokens": ["Anna", "wants", "to", "see", "the", "sea"],
    "verb": 1,
    "roles": ["ARG0", "V", "O", "ARG1", "O", "O"],
}
LINEAR_PROBE = LinearProbeMethod(trials=(), l2=0.0003, max_iter=100)


def build_roles(root: Path, rows: Iterable[Row], **keys: Any) -> TaskItems:
    write_jsonl(root / "t.jsonl", rows)
    block = {"files": {"train": "t.jsonl", "test": "t.jsonl"}, "validation_share": 0.3}
    return build_task_items(root, ROLES | block | keys)


def many_rows(count: int = 30) -> list[Row]:
    """Return two rows for each sentence."""
    rows = []
    for number in range(count):
        tokens = [*SENTENCE["tokens"][:-1], f"sea{number}"]
        rows.append(SENTENCE | {"tokens": tokens})
        rows.append({"tokens": tokens, "verb": 3, "roles": ["ARG0", "O", "O", "V", "O", "ARG1"]})
    return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verb": 6}, r"row 4: column 'verb': 6 is outside the 6 tokens, which count from 0"),
        ({"verb": -1}, r"row 4: column 'verb': -1 is outside"),
        ({"verb": None}, r"row 4: column 'verb': None is not the place of a token"),
        ({"verb": "wants"}, r"row 4: column 'verb': wants is not the place of a token; write that"),
        ({"verb": [0, 1, 0, 0, 0, 0]}, r"row 4: column 'verb': .* is not the place of a token"),
        ({"roles": ["ARG0", "V"]}, r"row 4: 6 tokens in 'tokens' and 2 tags in 'roles'"),
        ({"roles": [[0, 4, "ARG0"]]}, r"row 4: column 'roles' holds spans of characters"),
        ({"roles": ["A 0", *"OOOOO"]}, r"row 4: column 'roles': the tag 'A 0' has a space in it"),
        ({"tokens": ["a", " ", "b"]}, r"row 4: column 'tokens': an entry is blank"),
    ],
)
def test_a_bad_row_is_refused_by_its_number(change: Row, message: str, tmp_path: Path) -> None:
    rows = many_rows()
    rows[3] = rows[3] | change
    with pytest.raises(InputError, match=message):
        build_roles(tmp_path, rows)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["ARG0", "V", "_", "ARG1", "_", "_"], r"no tag is O, .*rename it: label_map: \{_: O\}"),
        (["O", "V", "O", "C-V", "O", "O"], "the tags are C-V, O, V, so there is no argument"),
        (["V", "O", "ARG1", "O", "O", "O"], r"row 1: column 'verb': it names the token at 1, .* V is on the one at 0, and 29 more rows differ"),
    ],
)  # fmt: skip
def test_tags_from_which_no_arguments_can_be_read_are_refused(
    roles: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        build_roles(tmp_path, [SENTENCE | {"roles": roles}] * 30)


def test_another_name_of_no_role_is_mapped(tmp_path: Path) -> None:
    roles = ["ARG0", "V", "_", "ARG1", "_", "_"]
    task = build_roles(tmp_path, [SENTENCE | {"roles": roles}] * 30, label_map={"_": "O"})
    assert task.info.labels == ["ARG0", "ARG1", "O", "V"]
    assert task.info.metric == ["span_f1"]
    assert not task.info.tags_without_scheme, "labels on heads are as good as spans"


def sentences_of(table: pd.DataFrame) -> set[str]:
    return {" ".join(tokens) for tokens in table["tokens"]}


def test_the_rows_of_a_sentence_stay_in_one_split_and_are_one_unit(tmp_path: Path) -> None:
    task = build_roles(tmp_path, many_rows())
    train, validation, test = (task.splits[name] for name in ("train", "validation", "test"))
    assert len(validation) == 18 and not sentences_of(train) & sentences_of(validation)
    assert (test.groupby("group")["tokens"].size() == 2).all() and test["group"].nunique() == 30
    assert task.info.groups_in_train["test"] == len(train), "the test file has all sentences"
    # The user has not named these groups, so no table lists them.
    assert not can_report_groups(test) and len(split_by_group(test, fold=None)) == 1
    assert not any(word in name for name in test["group"] for word in ("Anna", "sea"))


def test_folds_keep_sentences_whole_and_a_named_group_replaces_them(tmp_path: Path) -> None:
    rows = [row | {"book": f"b{number // 12}"} for number, row in enumerate(many_rows())]
    files = {"train": "t.jsonl"}
    task = build_roles(tmp_path, rows, files=files, folds=4)
    parts = TaskData(task.info, task.splits).split_items(seed=1, fold=2)
    sentences = [sentences_of(task.splits["train"].iloc[part.rows_N]) for part in parts]
    assert len(sentences) == 3 and sum(map(len, sentences)) == len(set().union(*sentences)) == 30
    task = build_roles(tmp_path, rows, files=files, folds=4, group="book")
    assert set(task.splits["train"]["group"]) == {f"b{number}" for number in range(5)}


def test_f1_counts_the_arguments_but_neither_the_verb_nor_other_words() -> None:
    rng = np.random.default_rng(0)
    names = ["ARG0", "ARG1", "C-V", "O", "V"]
    pairs = [rng.choice(names, (2, 7)) for _ in range(50)]
    tags = [np.array([" ".join(pair[side]) for pair in pairs], object) for side in (0, 1)]
    scored = [scored_arguments(column, are_spans=False) for column in tags]
    words = [[word for text in column for word in text.split()] for column in tags]
    expected = f1_score(*words, labels=["ARG0", "ARG1"], average="micro")
    assert METRICS["span_f1"](*scored) == pytest.approx(expected)
    assert CONTRIBUTIONS["span_f1"](*scored).mean() == pytest.approx(expected)
    spans = np.array(["B-A0 I-A0 B-V O B-C-V B-A1"], object)
    assert scored_arguments(spans, are_spans=True).tolist() == ["B-A0 I-A0 O O O B-A1"]


def test_places_are_in_bins_of_distance_on_either_side() -> None:
    offsets = torch.tensor([-99, -11, -10, -3, -1, 0, 1, 2, 5, 6, 50])
    bins = place_features(offsets).argmax(1).tolist()
    assert bins == [0, 0, 1, 3, 5, 6, 7, 8, 10, 11, 12] and NUM_PLACES == 13


def test_init_proposes_roles_if_a_column_has_the_place_of_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path, monkeypatch)
    rows = [row | {"number": n % 3, "sense": "ab"[n % 2]} for n, row in enumerate(many_rows(60))]

    def propose(task: str) -> dict[str, Any]:
        draft = draft_study(home / "new", ["texts/*.txt"], [task])
        block: dict[str, Any] = parse_yaml(draft.params_text, Path("params.yaml"))["tasks"]["srl"]
        return block

    write_jsonl(home / "t.jsonl", rows)
    block = propose("srl=t.jsonl")
    assert block["kind"] == "semantic_roles"
    assert (block["tokens"], block["predicate"], block["label"]) == ("tokens", "verb", "roles")
    assert propose("srl=t.jsonl,kind=token_classification")["kind"] == "token_classification"
    write_jsonl(home / "t.jsonl", [*rows[:7], rows[7] | {"verb": 99}, *rows[8:]])
    with pytest.raises(InputError, match=r"row 8: column 'verb': 99 is outside the 6 tokens"):
        propose("srl=t.jsonl")
    # Few rows, of which one has a mistake.
    for change, message in (
        ({"verb": 99}, "99 is outside the 6 tokens"),
        ({"verb": None}, "None is not the place of a token"),
        ({"verb": "wants"}, "wants is not the place of a token"),
        ({"roles": ["ARG0", "V"]}, "6 tokens in 'tokens' and 2 tags in 'roles'"),
    ):
        write_jsonl(home / "t.jsonl", [*rows[:3], rows[3] | change, *rows[4:6]])
        with pytest.raises(InputError, match=f"row 4: .*{message}"):
            propose("srl=t.jsonl")
    # Without the tag V, only the name of the column tells what it is.
    for name, kind in (("verb", "semantic_roles"), ("other", "token_classification")):
        plain = [
            {"tokens": row["tokens"], name: row["verb"], "roles": [tag.replace("V", "O") for tag in row["roles"]]}
            for row in rows
        ]  # fmt: skip
        write_jsonl(home / "t.jsonl", plain)
        assert propose("srl=t.jsonl")["kind"] == kind
    with pytest.raises(InputError, match=r"needs a column with the place of the verb .*predicate"):
        propose("srl=t.jsonl,kind=semantic_roles")


# What is planted: two clauses of the synthetic language in a sentence, `the N1 AUX V1 N2 . the N3 AUX
# V2 N4 .`. Verbs of one half have their arguments the other way round, so a model must know which
# verb is meant, where it stands, and which one it is.


def plant_rows(num_sentences: int, seed: int) -> list[Row]:
    """Return a row for each of the two verbs of a sentence."""
    sampler = Sampler(DEFAULT_GRAMMAR_SEED, 7, seed)
    generator = SentenceGenerator(build_lexicon(DEFAULT_GRAMMAR_SEED), sampler, zipf=False)
    topics = generator.lexicon.topics
    verbs = [*topics[0].verbs[:3], *topics[9].verbs[:3]]
    rows = []
    for _ in range(num_sentences):
        tokens: list[str] = []
        for _ in range(2):
            topic = sampler.choice((0, 9))
            words, plural = generator.subject(topic)
            auxiliary = generator.lexicon.auxiliaries[0][plural]
            verb = sampler.choice(verbs)
            tokens += [*words, auxiliary, verb, *generator.noun_phrase(topic).words]
            tokens.append(generator.full_stop)
        for place in (3, 9):
            roles = ["O"] * len(tokens)
            names = ("ARG1", "ARG0") if tokens[place] in verbs[3:] else ("ARG0", "ARG1")
            roles[place - 2], roles[place + 1] = names
            roles[place] = "V"
            rows.append({"tokens": tokens, "verb": place, "roles": roles})
    return rows


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> TaskData:
    folder = tmp_path_factory.mktemp("planted")
    for split, count in (("train", 90), ("validation", 20), ("test", 40)):
        write_jsonl(folder / f"{split}.jsonl", plant_rows(count, seed=count))
    files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    items = build_roles(folder, [SENTENCE], files=files)
    return TaskData(items.info, items.splits)


def score(answer: RolesAnswer, test: pd.DataFrame, outputs: Any, decoded: Any = None) -> float:
    columns = answer.prediction_columns(test, outputs, decoded)
    return METRICS["span_f1"](columns["label"], columns["prediction"])


LEARNED = ("word2vec", "bert", *tiny.mark_slow(["elmo", "gpt", "ulmfit", "fasttext"]))


@pytest.mark.parametrize("name", LEARNED)
def test_heads_that_know_the_predicate_find_its_arguments(name: str, planted: TaskData) -> None:
    """Frozen and fine-tuned; without the predicate, both rows of a sentence are the same."""
    answer = RolesAnswer.fit(planted.info.labels, planted.splits["train"])
    labels = answer.labels(planted.splits["train"])
    test = planted.splits["test"]
    tokenizer = tiny.tokenizer(name)
    tables = [planted.splits["train"], test]
    items, test_items = (tiny.encode(name, table) for table in tables)
    features = [extract_features(tiny.model(name), tokenizer, one) for one in (items, test_items)]
    probe = fit_linear_probe(features[0], labels, answer, LINEAR_PROBE, seed=0)
    outputs = probe(features[1])
    assert score(answer, test, outputs) > 0.95
    tags = {*" ".join(answer.answer_columns(test, outputs)["prediction"]).split()}
    assert tags == {"ARG0", "ARG1", "O", "V"}, "`lineage predict` writes tags as the user does"
    learning_rate = 0.05 if name in tiny.STATIC else 0.01
    settings = replace(PLAIN_FINETUNE, learning_rate=learning_rate, word_layer_norm=True)
    model = finetune(tiny.model(name), tokenizer, items, labels, answer, settings)
    assert score(answer, test, predict_finetuned(model, tokenizer, test_items)) > 0.9
    cached = [
        cache_features(tiny.model(name), tokenizer, one).pool_words() for one in (items, test_items)
    ]
    bilstm = fit_bilstm_probe(cached[0], labels, answer, tiny.BILSTM_PROBE)
    predicted = predict_bilstm_probe(bilstm, cached[1])
    assert score(answer, test, predicted.outputs_MK, predicted.decoded_M) > 0.6

    blind = [
        extract_features(
            tiny.model(name), tokenizer, tiny.encode(name, table.drop(columns="predicate"))
        )
        for table in tables
    ]
    control = fit_linear_probe(blind[0], labels, answer, LINEAR_PROBE, seed=0)
    assert score(answer, test, control(blind[1])) < 0.5


def test_tfidf_is_told_the_predicate_and_the_majority_finds_nothing(planted: TaskData) -> None:
    results = tiny.evaluate_baselines(load_kind("semantic_roles"), planted)
    values = {rows[0].model: rows[0].value for rows, _ in results}
    assert values["majority"] == 0
    assert values["tfidf"] is not None and values["tfidf"] > 0.8


def test_the_features_of_a_word_do_not_depend_on_its_batch_or_window(planted: TaskData) -> None:
    """A sentence that is longer than the model reads is read in windows, one with the predicate."""
    test = planted.splits["test"].head(7)
    model = tiny.model("bert")
    tokenizer = tiny.tokenizer("bert")
    items = tiny.encode("bert", test, max_length=9)
    assert max(len(item.encodings) for item in items) > 1

    def related(batch: Batch) -> torch.Tensor:
        with torch.inference_mode():
            return pool_features(model, model.encode(batch)[0], batch)

    model.eval()
    together = related(collate_items(tokenizer, items))
    width = (together.shape[1] - NUM_PLACES) // 4
    for rows, item in zip(answer_rows(items), items, strict=True):
        alone = related(collate_items(tokenizer, [item]))
        torch.testing.assert_close(together[rows], alone, atol=1e-5, rtol=0)
        assert item.predicate is not None
        verb = alone[item.predicate, :width]
        torch.testing.assert_close(alone[:, width : 2 * width], verb.expand(len(alone), -1))
        after = alone[:, 3 * width : 4 * width]
        torch.testing.assert_close(after[item.predicate + 1], verb)
        assert not after[: item.predicate + 1].any()
