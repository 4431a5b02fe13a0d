"""Tasks of two texts and of choices: what is read, what is cut, and that neither the order of two texts nor that of choices decides anything."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, build_items
from lineage.data.language import truncate_pair_lengths
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.answers import NumberAnswer
from lineage.evaluation.encoding import EncodedItem, collate_items, encode_items
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.finetuning import FinetunedModel, finetune, predict_finetuned
from lineage.evaluation.linear_probe import extract_features, fit_linear_probe
from lineage.evaluation.settings import EvaluateSettings, FinetuneSettings, LinearProbeSettings
from lineage.evaluation.systems import EvalContext, keep_one_order
from lineage.evaluation.tfidf import predict_tfidf, predict_tfidf_choices, tfidf_vectors
from lineage.tasks.base import load_kind
from lineage.tokenizers.pairs import encode_pairs
from tests import tiny

NAMES = [
    name for name in tiny.FAMILIES if tiny.variant(name).family.name == name
]  # variants of a family read alike
TUNED = FinetuneSettings(
    epochs=15,
    batch_size=8,
    learning_rate=0.01,
    layer_lr_decay=1.0,
    cut_frac=0.1,
    ratio=32.0,
    gradual_unfreezing=0.0,
    weight_decay=0.0,
    dropout=0.0,
    max_grad_norm=1.0,
)
FROZEN = LinearProbeSettings(l2=0.001, max_iter=60)
WORDS = sorted(
    word for word in tiny.reader("ulmfit").backend_tokenizer.get_vocab() if word.isalpha()
)[:40]  # the smallest vocabulary
A, B = "the cat sat . it slept .", "a dog ran off ."


def sentence(count: int, rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS[2:], count))


def test_of_two_texts_the_longer_one_is_cut_until_both_fit() -> None:
    """As google-research/bert's _truncate_seq_pair does, a piece at a time."""
    for first in range(14):
        for second in range(14):
            for most in range(2, 28):
                a, b = first, second
                while a + b > most:
                    a, b = (a - 1, b) if a > b else (a, b - 1)
                assert truncate_pair_lengths(first, second, max_length=most) == (a, b)


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_is_both_texts_with_the_marks_of_its_unit(name: str) -> None:
    reader = tiny.reader(name)
    (pair,) = encode_pairs(reader, [A], [B])
    first, second = reader.encode(A), reader.encode(B)
    assert (
        pair.token_type_ids is not None
        and len(pair.ids) == len(pair.offsets) == len(pair.token_type_ids)
        and not pair.truncated
    )
    marks = {
        "wordpiece": ("[CLS]", "[SEP]", "[SEP]"),
        "byte_bpe": ("<|endoftext|>", "<|endoftext|>", "<|extract|>"),
    }.get(reader.tokenizer_type)
    if marks is None:  # units of words: sentences, each within its own marks
        assert pair.ids.tolist() == [*first.ids, *second.ids] and pair.words == (
            *first.words,
            *second.words,
        )
    else:
        begin, between, end = (reader.special_token_ids[mark] for mark in marks)
        assert pair.ids.tolist() == [begin, *first.ids[1:-1], between, *second.ids[1:-1], end]
    assert pair.token_type_ids.tolist() == [0] * len(first.ids) + [1] * (
        len(pair.ids) - len(first.ids)
    )
    batch = collate_items(reader, [EncodedItem(pair), EncodedItem(*encode_pairs(reader, [B], [B]))])
    assert batch.segment_ids_BT is not None and batch.text_mask_BT is not None
    for place, text in enumerate((first, second)):
        inside = batch.text_mask_BT[0] & (batch.segment_ids_BT[0] == place)
        assert batch.ids_BT[0][inside].tolist() == text.ids[text.offsets[:, 1] > 0].tolist()
    assert not batch.segment_ids_BT[~batch.mask_BT].any()


@pytest.mark.parametrize("name", NAMES)
def test_what_a_pair_loses_is_said_and_its_marks_stay(name: str) -> None:
    reader, long = tiny.reader(name), " ".join(tiny.documents()[0].replace(".", "").split()[:40])
    whole, short = (
        encode_pairs(reader, [long], [B]),
        encode_pairs(reader, [long], [B], max_length=14),
    )
    assert not whole[0].truncated and short[0].truncated and len(short[0].ids) == 14
    assert short[0].ids[0] == whole[0].ids[0] and short[0].ids[-1] == whole[0].ids[-1]
    assert short[0].token_type_ids is not None and whole[0].token_type_ids is not None
    assert set(short[0].token_type_ids.tolist()) == {0, 1}
    way = 1 if reader.direction == "forward" else -1
    for place in (0, 1):  # each loses its end, however it is read
        kept, all_of_it = (
            one.ids[(one.token_type_ids == place) & (one.offsets[:, 1] > 0)][::way].tolist()
            for one in (short[0], whole[0])
        )
        assert (
            kept and all_of_it[: len(kept)] == kept and (place == 1 or len(kept) < len(all_of_it))
        )
    assert (
        EncodedItem(short[0]).truncated
        and not EncodedItem(whole[0]).truncated
        and EncodedItem(whole[0], other_encodings=(short[0],)).truncated
    )


def pairs(count: int) -> pd.DataFrame:
    """Two texts; the label is whether the first holds the first of all words."""
    rng = np.random.default_rng(5)
    labels = rng.integers(2, size=count)
    firsts, seconds = (
        [f"{WORDS[label]} {sentence(3, rng)}" for label in labels],
        [sentence(4, rng) for _ in labels],
    )
    return pd.DataFrame({"text": firsts, "second": seconds, "label": labels})


def choices(count: int, seed: int = 5) -> pd.DataFrame:
    """Three choices, of which the right one begins with the first of all words."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=count)
    rows = [
        [f"{WORDS[0 if place == label else 1]} {sentence(1, rng)}" for place in range(3)]
        for label in labels
    ]
    return pd.DataFrame(
        {"text": [sentence(2, rng) for _ in labels], "choices": rows, "label": labels}
    )


@pytest.mark.parametrize("name", NAMES)
def test_swapped_texts_of_a_symmetric_task_get_the_same_probabilities(name: str) -> None:
    reader, table, settings = (
        tiny.reader(name),
        pairs(24),
        FinetuneSettings(**{**vars(TUNED), "epochs": 2}),
    )
    turned = table.rename(columns={"text": "second", "second": "text"})
    found = {}
    for symmetric in (True, False):
        there, back = (
            encode_items(t, reader, max_length=None, language="en", symmetric=symmetric)
            for t in (table, turned)
        )
        assert {len(item.encodings) for item in there} == {1 + symmetric}
        features = [
            extract_features(tiny.model(name), reader, some, precision="fp32")
            for some in (there, back)
        ]
        head = fit_linear_probe(
            features[0], table["label"].to_numpy(), tiny.labels(2), FROZEN, seed=0
        )
        model = finetune(
            tiny.model(name),
            reader,
            there,
            table["label"].to_numpy(),
            tiny.labels(2),
            settings,
            seed=1,
            precision="fp32",
        )
        tuned = [predict_finetuned(model, reader, some, precision="fp32") for some in (there, back)]
        found[symmetric] = [(head(features[0]), head(features[1])), tuned]
    for one, other in found[True]:
        np.testing.assert_allclose(one, other, atol=2e-4)
    assert not np.allclose(*found[False][0], atol=1e-3), "else the test shows nothing"


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_is_learned_and_its_place_means_nothing(name: str) -> None:
    reader, table = tiny.reader(name), choices(36)
    gold = table["label"].to_numpy()
    turned = table.assign(choices=[own[::-1] for own in table["choices"]])
    there, back = (encode_items(t, reader, max_length=None, language="en") for t in (table, turned))
    features = [
        extract_features(tiny.model(name), reader, some, precision="fp32") for some in (there, back)
    ]
    assert features[0].shape[:2] == (36, 3)
    head = fit_linear_probe(features[0], gold, tiny.labels(3, choices=True), FROZEN, seed=0)
    settings = FinetuneSettings(
        **{**vars(TUNED), "learning_rate": 0.01 if name in tiny.TRAINED else 0.05}
    )  # a mean of words moves slowly
    model = finetune(
        tiny.model(name),
        reader,
        there,
        gold,
        tiny.labels(3, choices=True),
        settings,
        seed=1,
        precision="fp32",
    )
    for said in (
        [head(f) for f in features],
        [predict_finetuned(model, reader, some, precision="fp32") for some in (there, back)],
    ):
        np.testing.assert_allclose(said[0].sum(1), 1.0)
        assert (said[0].argmax(1) == gold).mean() > 0.9
        np.testing.assert_allclose(said[0], said[1][:, ::-1], atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_reading_does_not_depend_on_the_items_beside_it(name: str) -> None:
    reader, table = tiny.reader(name), choices(9)
    items = encode_items(table, reader, max_length=None, language="en")
    model = FinetunedModel(
        tiny.model(name), tiny.labels(3, choices=True), TUNED, seed=1, example_item=items[0]
    ).eval()
    together = model(collate_items(reader, items))
    for row, item in enumerate(items):
        torch.testing.assert_close(
            model(collate_items(reader, [item]))[0], together[row], atol=1e-6, rtol=1e-6
        )


def test_tfidf_of_choices_takes_the_likeliest_one_wherever_it_stands() -> None:
    train, test = choices(90), choices(30, seed=6)
    kind = load_kind("multiple_choice")
    fitted = predict_tfidf_choices(
        kind.extract_texts(train, "en"),
        train["label"].to_numpy(),
        kind.extract_texts(test, "en"),
        language="en",
    )
    assert (fitted.probabilities_NK.argmax(1) == test["label"]).mean() > 0.95
    np.testing.assert_allclose(fitted.probabilities_NK.sum(1), 1.0)


def test_tfidf_of_pairs_sees_words_that_both_texts_have_and_no_order_where_there_is_none() -> None:
    rng = np.random.default_rng(5)
    said = [" ".join(rng.choice([f"w{n}" for n in range(300)], 6)) for _ in range(240)]
    same = np.arange(240) % 2 == 0
    pairs = (
        said,
        [
            text if one else said[row - 1]
            for row, (text, one) in enumerate(zip(said, same, strict=True))
        ],
    )
    parts = [[column[:180] for column in pairs], [column[180:] for column in pairs]]
    assert (
        predict_tfidf(parts[0], same[:180], parts[1], language="en").probabilities_NK.argmax(1)
        == same[180:]
    ).mean() > 0.95
    how = {"language": "en", "symmetric": True}
    one, other = (
        predict_tfidf(parts[0], same[:180], asked, **how).probabilities_NK
        for asked in (parts[1], parts[1][::-1])
    )
    np.testing.assert_allclose(one, other, atol=1e-12)
    _, read = tfidf_vectors(*parts, language="en")
    cosine = read[:, -1].toarray().ravel()
    np.testing.assert_allclose(cosine[same[180:]], 1.0, atol=1e-9)  # of two equal texts
    assert cosine[~same[180:]].max() < 0.6
    assert (
        np.abs(
            predict_tfidf(parts[0], same[:180], parts[1][::-1], language="en").probabilities_NK
            - one
        ).max()
        > 1e-3
    )


def made(root: Path, tables: dict[str, pd.DataFrame], **keys: object) -> TaskItems:
    for split, table in tables.items():
        table.to_parquet(root / f"{split}.parquet")
    task = parse_record(
        Task, {"files": {split: f"{split}.parquet" for split in tables}, **keys}, "task"
    )
    return build_items("x", task, load_kind(task.kind), seed=1, root=root, where="task")


CHOOSE = {
    "kind": "multiple_choice",
    "text": ["text"],
    "choices": ["one", "two"],
    "label": "label",
    "validation_share": 0.2,
}
ROWS = pd.DataFrame(
    {
        "text": [f"text number {n}" for n in range(20)],
        "one": "the first choice",
        "two": "another",
        "label": [n % 2 for n in range(20)],
    }
)


def test_choices_are_columns_or_one_column_of_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = made(tmp_path, {"train": ROWS, "test": ROWS[:4]}, **CHOOSE)
    lists = ROWS.assign(ends=[list(row) for row in zip(ROWS["one"], ROWS["two"], strict=True)])
    listed = made(tmp_path, {"train": lists, "test": lists[:4]}, **{**CHOOSE, "choices": ["ends"]})
    assert columns.splits["test"].equals(listed.splits["test"])
    assert columns.info["labels"] == ["0", "1"] and columns.splits["test"]["choices"].iloc[0] == [
        "the first choice",
        "another",
    ]


def test_a_label_of_choices_is_a_place_also_where_train_never_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = made(
        tmp_path,
        {"train": ROWS.assign(label=1), "validation": ROWS[:4], "test": ROWS[:4]},
        **CHOOSE,
    )
    assert set(found.splits["train"]["label"]) == {1} and set(found.splits["test"]["label"]) == {
        0,
        1,
    }


def test_two_texts_share_the_words_that_an_item_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = ROWS.assign(text="one two three four five six", one="a b", label=ROWS["label"])
    keys = {
        "kind": "text_classification",
        "text": ["text", "one"],
        "label": "label",
        "max_tokens": 5,
        "validation_share": 0.2,
    }
    found = made(tmp_path, {"train": table, "test": table[:4]}, **keys, symmetric=True)
    row = found.splits["test"].iloc[0]
    assert (
        (row["text"], row["second"]) == ("one two three", "a b")
        and found.info["cut"]["test"] == 4
        and found.info["symmetric"]
    )
    with pytest.raises(InputError, match="symmetric needs two texts"):
        made(
            tmp_path,
            {"train": table, "test": table[:4]},
            **{**keys, "text": ["text"]},
            symmetric=True,
        )
    found = made(tmp_path, {"train": table, "test": table[:4]}, **{**CHOOSE, "max_tokens": 5})
    row = found.splits["test"].iloc[0]
    assert (row["text"], row["choices"]) == ("one two three", ["a b", "another"]) and found.info[
        "cut"
    ]["test"] == 4


def test_what_is_asked_stands_behind_the_passage_and_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = ROWS.assign(text="one two three four five six", asks="why so", one="a b")
    found = made(
        tmp_path,
        {"train": table, "test": table[:4]},
        **{**CHOOSE, "text": ["text", "asks"], "max_tokens": 7},
    )
    row = found.splits["test"].iloc[0]
    assert (row["text"], row["choices"]) == (
        "one two three four why so",
        ["a", "another"],
    ) and found.info["cut"]["test"] == 4


@pytest.mark.parametrize(
    ("change", "keys", "said"),
    [
        (
            {"two": ["another"] * 6 + [" "] + ["another"] * 13},
            {},
            r"test.parquet: row 7: column 'two': the choice is blank",
        ),
        (
            {"label": [0] * 19 + [2]},
            {},
            r"test.parquet: row 20: column 'label': '2' is not one of the 2 choices, which count from 0",
        ),
        ({"label": ["x"] * 20}, {}, r"row 1: column 'label': 'x' is not one of the 2 choices"),
        ({"two": ROWS["one"]}, {}, r"row 1: two of its choices are the same"),
        (
            {"one": [["a", "b"]] * 12 + [["a"]] * 8},
            {"choices": ["one"]},
            r"test.parquet: row 13: column 'one': there must be at least two choices",
        ),
        (
            {"one": [["a", "b"]] * 12 + [["a", "b", "c"]] * 8},
            {"choices": ["one"]},
            r"row 13: column 'one': it has 3 choices, but the first row has 2",
        ),
        (
            {"one": [["a", "b", "c"]] * 20},
            {"choices": ["one"]},
            r"test.parquet: its items have 3 choices, those of train 2",
        ),
        (
            {"one": [["a", ""]] * 20},
            {"choices": ["one"]},
            r"row 1: column 'one': a choice is blank",
        ),
        (
            {},
            {"choices": ["two"]},
            r"row 1: column 'two' does not hold a list; name a column for each choice",
        ),
        (
            {"text": ["a b c d e f"] * 20},
            {"text": ["text", "text"], "max_tokens": 8},
            r"row 1: the question has 6 words, so max_tokens leaves none",
        ),
        (
            {"one": ["a b c"] * 20, "two": ["a b d"] * 20},
            {"max_tokens": 4},
            r"choices are the same within max_tokens, which is 4; raise it",
        ),
        ({}, {"symmetric": True}, r"symmetric: a task of kind multiple_choice does not use it"),
    ],
)
def test_bad_choices_name_the_file_and_the_row(
    change: dict[str, object],
    keys: dict[str, object],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    train = ROWS.assign(one=[["a", "b"]] * 20) if keys.get("choices") == ["one"] else ROWS
    with pytest.raises(InputError, match=said):
        made(
            tmp_path,
            {"train": train, "validation": train, "test": ROWS.assign(**change)},
            **{**CHOOSE, **keys},
        )


def swapped(name: str, folder: Path, *, symmetric: bool = True) -> dict[str, float | None]:
    """Evaluated on pairs whose labels are drawn: by way the share of test answers that stay when the texts change places."""
    rng, splits = np.random.default_rng(9), {}
    for split, count in (("train", 40), ("validation", 8), ("test", 40)):
        texts = [[sentence(4, rng) for _ in range(count)] for _ in range(2)]
        splits[split] = pd.DataFrame({"id": [f"{split}-{n}" for n in range(count)], "text": texts[0], "second": texts[1],
                                      "label": rng.integers(2, size=count), "group": "all"})  # fmt: skip
    facts = {"name": "x", "kind": "text_classification", "answer": "label", "labels": ["a", "b"], "language": "en", "probes": ["linear", "bilstm"],
             "metric": ["accuracy"], "symmetric": symmetric}  # fmt: skip
    quick = replace(TUNED, epochs=2), replace(tiny.NETWORK, epochs=1)
    found = EvalContext(
        tiny.checkpoint(name),
        TaskData(facts, splits),
        EvaluateSettings(linear_probe=FROZEN, bilstm_probe=quick[1], finetune=quick[0]),
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
    rows, predictions = evaluate_runs(
        found,
        [*list_runs(facts, ("random",), ("all",), (0,))],
        cache_dir=folder,
        report_progress=lambda *_: None,
    )
    assert (
        set(predictions["split"]) == {"validation", "test"}
        and "swap_consistency" not in predictions
    )
    assert {row.metric for row in rows if row.value is not None} == {
        "accuracy",
        *(["swap_consistency"] if symmetric else []),
    }
    return {
        f"{row.transfer} {row.head}": row.value
        for row in rows
        if row.metric == "swap_consistency" and row.split == "test"
    }


def test_answers_that_stay_when_two_texts_change_places_are_counted(tmp_path: Path) -> None:
    """word2vec tuned means over all words and cannot tell the order; what reads u and v one after the other can."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    blind, sees = swapped("word2vec", tmp_path / "one"), swapped("gpt", tmp_path / "two")
    assert (
        blind.keys() == sees.keys() == {"frozen linear", "frozen bilstm", "finetuned linear"}
        and blind["finetuned linear"] == 1
    )
    assert (
        all(0 <= (value or 0) <= 1 for value in sees.values())
        and 0.2 < (sees["frozen linear"] or 0) < 1
    )
    assert not swapped("gpt", tmp_path / "three", symmetric=False)


def test_numbers_agree_within_a_tenth_of_their_deviation() -> None:
    answer, read = NumberAnswer(mean=3.0, std=2.0), np.array([[1.0], [2.0], [3.0]])
    assert answer.agrees(read, read + np.array([[0.1], [-0.19], [0.21]])).tolist() == [
        True,
        True,
        False,
    ]


def test_one_order_is_the_item_read_twice_in_it() -> None:
    table = pd.DataFrame({"text": [A], "second": [B]})
    (both,) = encode_items(
        table, tiny.reader("gpt"), max_length=None, language="en", symmetric=True
    )
    (turned,) = encode_items(
        pd.DataFrame({"text": [B], "second": [A]}),
        tiny.reader("gpt"),
        max_length=None,
        language="en",
    )
    for place, wanted in ((0, both.encoded), (1, turned.encoded)):
        (one,) = keep_one_order([both], place)
        assert len(one.encodings) == 2 and all(
            reading.ids.tolist() == wanted.ids.tolist() for reading in one.encodings
        )
