"""Pronouns: bad rows are refused, and heads learn which candidate a pronoun stands for."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from flows.new_study import draft_study
from lineage.answers.pronoun import PronounAnswer
from lineage.config.records import parse_yaml
from lineage.data.items import TaskItems
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.methods.encoding import collate_items, pool_words
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe
from lineage.methods.pooling import pool_features
from lineage.networks.batch import Batch
from lineage.synthetic.grammar import DEFAULT_GRAMMAR_SEED, Sampler, SentenceGenerator
from lineage.synthetic.words import build_lexicon
from lineage.tasks.base import load_kind
from tests.helpers import tiny
from tests.helpers.documents import run_documented_code
from tests.helpers.fitting import PLAIN_FINETUNE, extract_features, finetune, predict_finetuned
from tests.helpers.golden import data_folder
from tests.helpers.new_study import make_home
from tests.helpers.tasks import build_task_items, write_jsonl

Row = dict[str, Any]
KEYS = {
    "kind": "pronoun_choice",
    "text": ["text"],
    "pronoun": "pronoun",
    "pronoun_start": "pronoun_start",
    "candidates": ["a", "b"],
    "candidate_starts": ["a_start", "b_start"],
    "label": "label",
}
# `Annabel` begins with the pronoun's candidate, and `she` stands in `ashes`.
ROW: Row = {
    "text": "Anna met Mary Jones, and she took Annabel's ashes.",
    "pronoun": "she",
    "pronoun_start": 25,
    "a": "Anna",
    "a_start": 0,
    "b": "Mary Jones",
    "b_start": 9,
    "label": "B",
}
LINEAR_PROBE = LinearProbeMethod(trials=(), l2=0.01, max_iter=100)


def many_rows(count: int = 30) -> list[Row]:
    labels = ("A", "B", "neither")
    return [
        ROW | {"text": f"{ROW['text']} {number}", "label": labels[number % 3]}
        for number in range(count)
    ]


def build_pronouns(root: Path, rows: Iterable[Row], **keys: Any) -> TaskItems:
    write_jsonl(root / "t.jsonl", rows)
    block = {"files": {"train": "t.jsonl", "test": "t.jsonl"}, "validation_share": 0.2}
    return build_task_items(root, KEYS | block | keys)


def written_mentions(item: Any) -> list[str]:
    spans = zip(item.firsts, item.lasts, strict=True)
    return [item.text[item.starts[first] : item.ends[last]] for first, last in spans]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a_start": 1}, "row 4: column 'a_start': 'Anna' should begin at character 1 of the text, where 'nna ' stands; count characters from 0"),
        ({"b_start": 900}, "row 4: column 'b_start': 'Mary Jones' should begin at character 900 of the text, behind its end"),
        ({"a_start": 34}, "row 4: column 'a_start': 'Anna' at 34 is a part of a longer word; name whole words"),
        ({"pronoun_start": 45}, "row 4: column 'pronoun_start': 'she' at 45 is a part of a longer word"),
        ({"b": "Mary Jo"}, "row 4: column 'b_start': 'Mary Jo' at 9 is a part of a longer word"),
        ({"pronoun_start": -3}, "row 4: column 'pronoun_start': '-3' is not a number of characters"),
        ({"pronoun_start": None}, "row 4: column 'pronoun_start': 'None' is not a number of characters"),
        ({"a_start": "here"}, "row 4: column 'a_start': 'here' is not a number of characters"),
        ({"a": None}, "row 4: column 'a': it is blank"),
        ({"a": ["Anna"]}, "row 4: column 'a': holds a list, not text"),
        ({"b": "Anna", "b_start": 0}, "row 4: column 'b_start': 'Anna' at 0 is named twice in the row"),
        ({"label": "C"}, r"row 4: column 'label': 'C' is no candidate of the row; write the name of its column \(a, b\), or neither"),
        ({"label": None}, "row 4: column 'label': the label is missing"),
        ({"text": " "}, "row 4: column 'text': the text is blank"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_by_its_number(change: Row, message: str, tmp_path: Path) -> None:
    rows = many_rows()
    rows[3] = rows[3] | change
    with pytest.raises(InputError, match=message):
        build_pronouns(tmp_path, rows)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"text": ["text", "a"]}, r"text: .* names 2 columns; pronoun_choice reads one text"),
        ({"candidate_starts": ["a_start"]}, "candidates names 2 columns and candidate_starts 1; name the column with the start of each"),
        ({"pronoun_start": None}, "the key 'pronoun_start' is missing"),
        ({"label_map": {"C": "neither"}}, "label_map: the labels of a task of kind pronoun_choice are its candidates and neither"),
        ({"probes": ["linear", "bilstm"]}, "probes: no BiLSTM probe is trained for a task of kind pronoun_choice; remove the key"),
        ({"extra_test_sets": {"more": {"files": {"test": "t.jsonl"}, "candidates": ["a", "c"], "candidate_starts": ["a_start", "c_start"]}}},
         "its candidates are a, c, those of train a, b; give the columns the same names"),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_are_refused(keys: Row, message: str, tmp_path: Path) -> None:
    rows = [row | {"c": row["b"], "c_start": row["b_start"]} for row in many_rows()]
    if "extra_test_sets" in keys:
        rows = [row | {"label": "A" if n % 2 else "neither"} for n, row in enumerate(rows)]
    with pytest.raises(InputError, match=message):
        build_pronouns(tmp_path, rows, **keys)


def test_one_label_alone_cannot_be_learned(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every label is 'b'; there is nothing to learn"):
        build_pronouns(tmp_path, [ROW] * 30)


def test_a_label_is_the_name_of_a_column_or_the_candidate_itself(tmp_path: Path) -> None:
    rows = many_rows()
    for row, label in zip(rows[:4], ("a", "Mary Jones", "Neither", "Anna"), strict=True):
        row["label"] = label
    task = build_pronouns(tmp_path, rows)
    assert task.info.labels == ["a", "b", "neither"] and task.info.metric == ["accuracy"]
    assert list(task.splits["test"]["label"][:4]) == [0, 1, 2, 0]


def test_offsets_count_the_characters_of_the_text_as_it_is_written(tmp_path: Path) -> None:
    """Cleaning removes spaces at the beginning, and makes one character of a letter and its mark."""
    text = "  Rene\u0301e said that l'Anna\u00ad saw her."
    row = ROW | {"text": text, "pronoun": "her", "a": "Rene\u0301e", "b": "Anna", "a_start": 2}
    row |= {"pronoun_start": text.index("her"), "b_start": text.index("Anna")}
    labels = ("A", "B", "neither")
    rows = [row | {"label": labels[number % 3]} for number in range(30)]
    test = build_pronouns(tmp_path, rows, language="fr").splits["test"]
    for item in test.itertuples():
        assert written_mentions(item) == ["Ren\u00e9e", "Anna", "her"]


def test_a_long_text_is_cut_around_its_mentions_which_stay_whole(tmp_path: Path) -> None:
    before = "word " * 50
    row = ROW | {"text": f"{before}{ROW['text']} {'word ' * 50}"}
    row |= {name: ROW[name] + len(before) for name in ("pronoun_start", "a_start", "b_start")}
    rows = [row | {"label": one["label"]} for one in many_rows()]
    task = build_pronouns(tmp_path, rows, max_words=15)
    assert task.info.truncated["test"] == 30
    for item in task.splits["test"].itertuples():
        assert len(item.starts) == 15 and item.text.startswith("word ")
        assert written_mentions(item) == ["Anna", "Mary Jones", "she"]
    # The mentions need seven words: they are kept if they are further apart than max_words.
    for item in build_pronouns(tmp_path, rows, max_words=3).splits["test"].itertuples():
        assert item.text == "Anna met Mary Jones, and she"
        assert list(item.mentions) == ["a", "b", "neither"]


def test_init_proposes_pronouns_if_candidates_have_columns_of_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path, monkeypatch)
    rows = [{"id": f"test-{n}", **row, "url": f"http://x/{n}"} for n, row in enumerate(many_rows(90))]  # fmt: skip

    def propose(rows: list[Row], task: str = "gap=t.jsonl") -> dict[str, Any]:
        write_jsonl(home / "t.jsonl", rows)
        draft = draft_study(home / "new", ["texts/*.txt"], [task])
        block: dict[str, Any] = parse_yaml(draft.params_text, Path("params.yaml"))["tasks"]["gap"]
        return block

    block = propose(rows)
    assert {key: block[key] for key in KEYS} == KEYS
    with pytest.raises(InputError, match="row 8: column 'a_start': 'Anna' should begin at"):
        propose([*rows[:7], rows[7] | {"a_start": 5}, *rows[8:]])
    # The files of GAP have other names, and two columns in place of the label.
    new_names = {"text": "Text", "pronoun": "Pronoun", "pronoun_start": "Pronoun-offset", "a": "A", "a_start": "A-offset", "b": "B", "b_start": "B-offset"}  # fmt: skip
    gap = [{new: row[old] for old, new in new_names.items()} for row in rows]
    labelled = [row | {"label": one["label"]} for row, one in zip(gap, rows, strict=True)]
    block = propose(labelled)
    assert (block["candidates"], block["candidate_starts"]) == (
        ["A", "B"],
        ["A-offset", "B-offset"],
    )
    flagged = [row | {"A-coref": n % 2 == 0, "B-coref": n % 2 == 1} for n, row in enumerate(gap)]
    with pytest.raises(InputError, match=r"A-coref and B-coref say .* write one column label instead, with A, B or neither"):  # fmt: skip
        propose(flagged)
    single = [
        {name: cell for name, cell in row.items() if name not in ("b", "b_start")}
        | {"label": "a" if number % 2 else "neither"}
        for number, row in enumerate(rows)
    ]
    assert propose(single)["candidates"] == ["a"]
    with pytest.raises(InputError, match="needs the columns pronoun and pronoun_start, and for"):
        propose([{"text": row["text"], "label": row["label"]} for row in rows], "gap=t.jsonl,kind=pronoun_choice")  # fmt: skip


def test_init_takes_the_column_that_names_a_candidate_as_the_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path, monkeypatch)
    texts = {"A": "Anna", "B": "Mary Jones", "neither": "Neither"}

    def propose(rows: list[Row], options: str = "") -> Any:
        write_jsonl(home / "t.jsonl", rows)
        draft = draft_study(home / "new", ["texts/*.txt"], [f"gap=t.jsonl{options}"])
        return parse_yaml(draft.params_text, Path("params.yaml"))["tasks"]["gap"]["label"]

    rows = []
    for number, row in enumerate(many_rows(90)):
        described = {"document": f"{number % 9}_novel", "gender": "fm"[number % 2], "note": "ab"[number % 2]}  # fmt: skip
        rows.append(row | described | {"refers_to": texts[row["label"]]})
        del rows[-1]["label"]
    with pytest.raises(InputError, match="2 columns look like labels: 'note', 'refers_to'"):
        propose(rows)
    rows = [row | {"note": "xy"[number % 2]} for number, row in enumerate(rows)]
    assert propose(rows) == "refers_to"
    with pytest.raises(InputError, match="row 5: column 'refers_to': 'Bob' is no candidate"):
        propose([*rows[:4], rows[4] | {"refers_to": "Bob"}, *rows[5:]])
    with pytest.raises(InputError, match="row 1: column 'gender': 'f' is no candidate of the row"):
        propose(rows, ",label=gender")
    unlabelled = [{key: row[key] for key in row if key != "refers_to"} for row in rows]
    with pytest.raises(
        InputError, match=r"no column holds the label, which is .* column \(a, b\), "
    ):
        propose(unlabelled)


# Cells as in CoNLL-2012; the mayor's name ends where his city's does.
COREFERENCE = """
Anna (0) | met - | the (1 | mayor - | of - | Rome (2)|1)
She (0) | liked - | his (1) | speech -
Anna (0) | left - | him (1)
He (1) | saw - | her (0) | there -
"""


def documented_files() -> dict[str, str]:
    return {split: f"pronouns_{split}.jsonl" for split in ("train", "validation", "test")}


def write_coreference(folder: Path) -> None:
    sentences = []
    for line in COREFERENCE.strip().splitlines():
        tokens, cells = zip(*(word.split() for word in line.split(" | ")), strict=True)
        sentences.append({"book": "one", "tokens": tokens, "coreference": cells})
    for split in ("train", "validation", "test"):
        pd.DataFrame(sentences).to_parquet(folder / f"coreference_{split}.parquet")


def test_the_code_of_the_docs_asks_about_the_entities_that_were_named_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_coreference(tmp_path)
    run_documented_code(tmp_path, monkeypatch, "pronouns_{split}.jsonl", NUM_CANDIDATES=2)
    rows = pd.read_json("pronouns_test.jsonl", lines=True)
    asked = [(row.pronoun, row.a, row.b, row.label) for row in rows.itertuples()]
    mayor = "the mayor of Rome"
    assert asked == [
        ("She", mayor, "Rome", "neither"),
        ("his", mayor, "Rome", "a"),
        ("him", mayor, "Anna", "a"),
        ("He", mayor, "Anna", "a"),
        ("her", mayor, "Anna", "b"),
    ]
    assert rows["text"][2] == "Anna met the mayor of Rome\nShe liked his speech\nAnna left him"
    task = build_task_items(tmp_path, KEYS | {"files": documented_files(), "group": "book"})
    pronouns = [written_mentions(item)[item.predicate] for item in task.splits["test"].itertuples()]
    assert pronouns == ["She", "his", "him", "He", "her"]


def test_a_single_candidate_asks_if_it_is_the_same_entity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real novels: the books of the splits differ, and every mention is found in its text."""
    for path in (data_folder() / "litbank").glob("coreference_*.parquet"):
        shutil.copy(path, tmp_path)
    run_documented_code(tmp_path, monkeypatch, "pronouns_{split}.jsonl", NUM_CANDIDATES=1)
    keys = {
        "files": documented_files(),
        "group": "book",
        "candidates": ["a"],
        "candidate_starts": ["a_start"],
    }
    task = build_task_items(tmp_path, KEYS | keys)
    assert task.info.labels == ["a", "neither"]
    assert task.info.counts["test"] > 800 and set(task.info.groups_in_train.values()) == {0}
    results = tiny.evaluate_baselines(load_kind("pronoun_choice"), TaskData(task.info, task.splits))
    values = {rows[0].model: rows[0].value for rows, _ in results}
    share = (task.splits["test"]["label"] == 0).mean()
    assert values["nearest_candidate"] == pytest.approx(share)
    assert values["majority"] == pytest.approx(1 - share)


# What is planted: `the N1 AUX V . the N2 AUX V . AUX IT V .` in the synthetic language. One noun is
# singular and one plural, and the auxiliary before the pronoun agrees with one of them; where a
# negation stands in its place, the pronoun means neither. The pronoun itself is always the same
# word, so only a model that reads its context can know.


def plant_rows(count: int, seed: int) -> list[Row]:
    sampler = Sampler(DEFAULT_GRAMMAR_SEED, 7, seed)
    generator = SentenceGenerator(build_lexicon(DEFAULT_GRAMMAR_SEED), sampler, zipf=False)
    lexicon = generator.lexicon
    nouns = lexicon.nouns[0][:6]
    rows = []
    for _ in range(count):
        row: Row = {"label": sampler.choice(("a", "b", "neither"))}
        first_is_plural = sampler.bernoulli(0.5)
        chosen = [nouns[index] for index in sampler.permutation(len(nouns))[:2]]
        words: list[str] = []
        for name, noun, plural in zip(
            "ab", chosen, (first_is_plural, not first_is_plural), strict=True
        ):
            row[name] = generator.inflect_noun(noun, plural)
            row[f"{name}_start"] = len(" ".join([*words, lexicon.determiners[plural], ""]))
            words += [lexicon.determiners[plural], row[name]]
            words += [*generator.predicate(0, plural, neutral=True), generator.full_stop]
        agrees_with_plural = first_is_plural == (row["label"] == "a")
        auxiliary, verb = generator.predicate(0, agrees_with_plural, neutral=True)
        words.append(lexicon.negation if row["label"] == "neither" else auxiliary)
        row["pronoun"] = lexicon.relative_pronouns[0]
        row["pronoun_start"] = len(" ".join([*words, ""]))
        words += [row["pronoun"], verb, generator.full_stop]
        rows.append(row | {"text": " ".join(words)})
    return rows


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> TaskData:
    folder = tmp_path_factory.mktemp("planted")
    for split, count in (("train", 300), ("validation", 20), ("test", 120)):
        write_jsonl(folder / f"{split}.jsonl", plant_rows(count, seed=count))
    files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    items = build_task_items(folder, KEYS | {"files": files})
    return TaskData(items.info, items.splits)


def accuracy(answer: PronounAnswer, test: pd.DataFrame, outputs_MK: np.ndarray) -> float:
    columns = answer.prediction_columns(test, answer.normalize(test, outputs_MK))
    return float((columns["label"] == columns["prediction"]).mean())


def shuffle_labels(table: pd.DataFrame) -> pd.DataFrame:
    labels = np.random.default_rng(5).permutation(table["label"])
    return table.assign(label=labels)


LEARNED = ("bert", *tiny.mark_slow(["elmo"]))


@pytest.mark.parametrize("name", LEARNED)
def test_models_that_read_the_context_find_the_candidate(name: str, planted: TaskData) -> None:
    train, test = planted.splits["train"], planted.splits["test"]
    answer = PronounAnswer.fit(planted.info.labels, train)
    tokenizer = tiny.tokenizer(name)
    items, test_items = (tiny.encode(name, table) for table in (train, test))
    settings = replace(PLAIN_FINETUNE, word_layer_norm=True, learning_rate=0.004, epochs=12)

    def tune(table: pd.DataFrame) -> float:
        labels_M = answer.labels(table)
        model = finetune(tiny.model(name), tokenizer, items, labels_M, answer, settings)
        return accuracy(answer, test, predict_finetuned(model, tokenizer, test_items))

    assert tune(train) > 0.9
    assert tune(shuffle_labels(train)) < 0.5


def test_a_linear_probe_reads_vectors_that_know_the_context(planted: TaskData) -> None:
    """The vectors of single words do not say what stands before the pronoun."""
    train, test = planted.splits["train"], planted.splits["test"]
    answer = PronounAnswer.fit(planted.info.labels, train)

    def probe(name: str, table: pd.DataFrame) -> float:
        features = [
            extract_features(tiny.model(name), tiny.tokenizer(name), tiny.encode(name, one))
            for one in (table, test)
        ]
        fitted = fit_linear_probe(features[0], answer.labels(table), answer, LINEAR_PROBE, seed=0)
        return accuracy(answer, test, fitted(features[1]))

    assert probe("elmo", train) > 0.6
    assert probe("elmo", shuffle_labels(train)) < 0.45
    assert probe("word2vec", train) < 0.45


def test_baselines_answer_and_the_nearest_candidate_is_a_floor(planted: TaskData) -> None:
    results = tiny.evaluate_baselines(load_kind("pronoun_choice"), planted)
    values = {rows[0].model: rows[0].value for rows, _ in results}
    labels = planted.splits["test"]["label"]
    assert values["nearest_candidate"] == pytest.approx((labels == 1).mean())
    assert values["majority"] == pytest.approx((labels == planted.splits["train"]["label"].mode()[0]).mean())  # fmt: skip
    assert values["chance"] == pytest.approx(1 / 3)
    assert values["tfidf"] is not None and values["tfidf"] > 0.5, "it reads the negation"


def test_the_nearest_candidate_is_the_last_before_the_pronoun_else_the_first_after_it() -> None:
    orders = [["b", "a", "neither"], ["a", "neither", "b"], ["neither", "b", "a"]]
    answer = PronounAnswer(("a", "b", "neither"))
    nearest = answer.choose_nearest(pd.DataFrame({"mentions": orders}))
    assert [answer.label_names[index] for index in nearest.argmax(1)] == ["a", "a", "b"]
    assert (nearest.sum(1) == 1).all()


def test_the_loss_is_the_cross_entropy_of_the_labels_in_any_order_of_mentions() -> None:
    answer = PronounAnswer(("a", "b", "neither"))
    orders = [["b", "a", "neither"], ["neither", "a", "b"]]
    table = pd.DataFrame({"mentions": orders, "label": [0, 2]})
    scores_MK = torch.tensor([[0.3], [2.0], [-1.0], [0.5], [0.1], [1.7]], requires_grad=True)
    by_label = torch.tensor([[2.0, 0.3, -1.0], [0.1, 1.7, 0.5]])
    loss = answer.loss(scores_MK, torch.from_numpy(answer.labels(table)))
    expected = F.cross_entropy(by_label, torch.tensor([0, 2]), reduction="sum")
    torch.testing.assert_close(loss, expected)
    outputs = answer.normalize(table, answer.postprocess(scores_MK.detach()))
    np.testing.assert_allclose(outputs, by_label.double().softmax(1), atol=1e-7)


def test_a_span_is_the_mean_of_its_pieces_in_any_batch_and_window(planted: TaskData) -> None:
    test = planted.splits["test"].head(7)
    model = tiny.model("bert").eval()
    tokenizer = tiny.tokenizer("bert")

    def features(batch: Batch) -> torch.Tensor:
        with torch.inference_mode():
            return pool_features(model, model.encode(batch)[0], batch)

    for max_length in (None, 9):
        items = tiny.encode("bert", test, max_length=max_length)
        assert (max(len(item.encodings) for item in items) > 1) == (max_length is not None)
        together = features(collate_items(tokenizer, items))
        for number, item in enumerate(items):
            assert item.num_answers == 3 and item.num_uncovered_words == 0
            alone = features(collate_items(tokenizer, [item]))
            torch.testing.assert_close(together[3 * number : 3 * number + 3], alone, atol=1e-5, rtol=0)  # fmt: skip


def test_the_pieces_of_a_span_are_those_of_its_characters(tmp_path: Path) -> None:
    task = build_pronouns(tmp_path, many_rows())
    test = task.splits["test"].head(2)
    model = tiny.model("bert").eval()
    items = tiny.encode("bert", test)
    batch = collate_items(tiny.tokenizer("bert"), items)
    with torch.inference_mode():
        x_BTD = model.encode(batch)[0]
        pooled = pool_words(model, x_BTD, batch)
    for row, item in enumerate(items):
        starts, ends = item.encoded.offsets.T
        for number, span in enumerate([(0, 4), (9, 19), (25, 28)]):
            inside = np.flatnonzero((starts >= span[0]) & (ends <= span[1]) & (ends > starts))
            assert len(inside), span
            expected = x_BTD[row, inside].mean(0)
            torch.testing.assert_close(pooled[3 * row + number], expected, atol=1e-5, rtol=0)
