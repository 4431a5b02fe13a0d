"""Tasks with two texts and with choices are encoded, truncated and scored correctly.

Neither the order of the texts of a symmetric task nor the order of choices affects the scores.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.answers.choice import ChoiceAnswer
from lineage.answers.label import LabelAnswer
from lineage.answers.number import NumberAnswer
from lineage.answers.text_features import fit_text_vectorizer, text_features
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.language import truncate_pair_lengths
from lineage.methods import finetuning
from lineage.methods.encoding import EncodedItem, collate_items
from lineage.methods.finetuning import FinetuneMethod, finetuning_objective
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe
from lineage.methods.pooling import combine_pair, pair_width, pool_pair
from lineage.methods.registry import EvaluateSettings
from lineage.methods.tfidf import fit_tfidf
from lineage.networks.batch import Batch
from lineage.tasks.base import load_kind
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.pairs import encode_pairs
from tests.helpers import tiny
from tests.helpers.fitting import (
    PLAIN_FINETUNE,
    extract_features,
    finetune,
    new_finetuned,
    predict_finetuned,
)
from tests.helpers.tables import build_table_items

# Models of one family encode items in the same way.
NAMES = [name for name in tiny.FAMILIES if tiny.model_config(name).family.name == name]
FINETUNE = replace(PLAIN_FINETUNE, epochs=15)
FROZEN = LinearProbeMethod(trials=(), l2=0.001, max_iter=60)
# ulmfit has the smallest vocabulary.
WORDS = tiny.words("ulmfit")[:40]
A, B = "the cat sat . it slept .", "a dog ran off ."


def random_text(count: int, rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS[2:], count))


def test_the_longer_of_two_texts_is_truncated_until_both_fit() -> None:
    """google-research/bert's _truncate_seq_pair removes one token at a time in this way."""
    for first in range(14):
        for second in range(14):
            for max_length in range(2, 28):
                first_length, second_length = first, second
                while first_length + second_length > max_length:
                    if first_length > second_length:
                        first_length -= 1
                    else:
                        second_length -= 1
                assert truncate_pair_lengths(first, second, max_length=max_length) == (
                    first_length,
                    second_length,
                )


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_is_both_texts_with_the_special_tokens_of_its_tokenizer(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    (pair,) = encode_pairs(tokenizer, [A], [B])
    first, second = tokenizer.encode(A), tokenizer.encode(B)
    assert pair.token_type_ids is not None
    assert len(pair.ids) == len(pair.offsets) == len(pair.token_type_ids)
    assert not pair.truncated
    special_tokens = {
        "wordpiece": ("[CLS]", "[SEP]", "[SEP]"),
        "byte_bpe": ("<|endoftext|>", "<|endoftext|>", "<|extract|>"),
    }.get(tokenizer.tokenizer_type)
    if special_tokens is None:  # word tokenizers have special tokens around each sentence
        assert pair.ids.tolist() == [*first.ids, *second.ids]
        assert pair.words == (*first.words, *second.words)
    else:
        begin_id, separator_id, end_id = (
            tokenizer.special_token_ids[token] for token in special_tokens
        )
        assert pair.ids.tolist() == [
            begin_id,
            *first.ids[1:-1],
            separator_id,
            *second.ids[1:-1],
            end_id,
        ]
    assert pair.token_type_ids.tolist() == [0] * len(first.ids) + [1] * (
        len(pair.ids) - len(first.ids)
    )
    batch = collate_items(
        tokenizer, [EncodedItem(pair), EncodedItem(*encode_pairs(tokenizer, [B], [B]))]
    )
    assert batch.segment_ids_BT is not None and batch.text_mask_BT is not None
    for index, text in enumerate((first, second)):
        is_text = batch.text_mask_BT[0] & (batch.segment_ids_BT[0] == index)
        assert batch.ids_BT[0][is_text].tolist() == text.ids[text.offsets[:, 1] > 0].tolist()
    assert not batch.segment_ids_BT[~batch.mask_BT].any()


@pytest.mark.parametrize("name", NAMES)
def test_truncation_of_a_pair_is_recorded_and_keeps_its_special_tokens(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    long_text = " ".join(tiny.documents()[0].replace(".", "").split()[:40])
    (full,) = encode_pairs(tokenizer, [long_text], [B])
    (truncated,) = encode_pairs(tokenizer, [long_text], [B], max_length=14)
    assert not full.truncated
    assert truncated.truncated and len(truncated.ids) == 14
    assert truncated.ids[0] == full.ids[0] and truncated.ids[-1] == full.ids[-1]
    assert truncated.token_type_ids is not None and full.token_type_ids is not None
    assert set(truncated.token_type_ids.tolist()) == {0, 1}
    step = 1 if tokenizer.direction == "forward" else -1
    for segment in (0, 1):  # each text loses its end, in both reading directions
        kept_ids, full_ids = (
            encoding.ids[(encoding.token_type_ids == segment) & (encoding.offsets[:, 1] > 0)][
                ::step
            ].tolist()
            for encoding in (truncated, full)
        )
        assert kept_ids and full_ids[: len(kept_ids)] == kept_ids
        assert segment == 1 or len(kept_ids) < len(full_ids)
    assert EncodedItem(truncated).truncated
    assert not EncodedItem(full).truncated
    assert EncodedItem(full, other_encodings=(truncated,)).truncated


def pair_table(count: int) -> pd.DataFrame:
    """Return pairs of texts, labelled by the first word of the first text."""
    rng = np.random.default_rng(5)
    labels = rng.integers(2, size=count)
    firsts = [f"{WORDS[label]} {random_text(3, rng)}" for label in labels]
    seconds = [random_text(4, rng) for _ in labels]
    return pd.DataFrame({"text": firsts, "second": seconds, "label": labels})


def choice_table(count: int, seed: int = 5) -> pd.DataFrame:
    """Return texts with three choices; the right one begins with the first of all words."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=count)
    rows = [
        [f"{WORDS[0 if index == label else 1]} {random_text(1, rng)}" for index in range(3)]
        for label in labels
    ]
    return pd.DataFrame(
        {"text": [random_text(2, rng) for _ in labels], "choices": rows, "label": labels}
    )


@pytest.mark.parametrize("name", tiny.mark_similar_slow(NAMES))
def test_swapped_texts_of_a_symmetric_task_get_the_same_probabilities(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    table = pair_table(24)
    settings = FinetuneMethod(**{**vars(FINETUNE), "epochs": 2})
    swapped_table = table.rename(columns={"text": "second", "second": "text"})
    labels = table["label"].to_numpy()
    answer = tiny.label_answer(2)
    probe_scores = {}
    for symmetric in (True, False):
        both_orders = [
            tiny.encode(name, some_table, symmetric=symmetric)
            for some_table in (table, swapped_table)
        ]
        assert {len(item.encodings) for item in both_orders[0]} == {1 + symmetric}
        features = [extract_features(tiny.model(name), tokenizer, items) for items in both_orders]
        probe = fit_linear_probe(features[0], labels, answer, FROZEN, seed=0)
        probe_scores[symmetric] = [probe(part) for part in features]
        if symmetric:
            model = finetune(tiny.model(name), tokenizer, both_orders[0], labels, answer, settings)
            finetuned = [predict_finetuned(model, tokenizer, items) for items in both_orders]
            np.testing.assert_allclose(*finetuned, atol=2e-4)
    np.testing.assert_allclose(*probe_scores[True], atol=2e-4)
    assert not np.allclose(*probe_scores[False], atol=1e-3), "otherwise the test shows nothing"


@pytest.mark.parametrize("name", tiny.mark_similar_slow(NAMES))
def test_a_choice_is_learned_and_its_position_does_not_matter(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    table = choice_table(36)
    labels = table["label"].to_numpy()
    reversed_table = table.assign(choices=[choices[::-1] for choices in table["choices"]])
    items, reversed_items = (
        tiny.encode(name, some_table) for some_table in (table, reversed_table)
    )
    features = [
        extract_features(tiny.model(name), tokenizer, some_items)
        for some_items in (items, reversed_items)
    ]
    assert features[0].shape[:2] == (36, 3)
    probe = fit_linear_probe(
        features[0], labels, tiny.label_answer(3, choices=True), FROZEN, seed=0
    )
    # The mean of static vectors needs a larger learning rate.
    learning_rate = 0.01 if name in tiny.TRAINED else 0.05
    settings = FinetuneMethod(**{**vars(FINETUNE), "learning_rate": learning_rate})
    model = finetune(
        tiny.model(name), tokenizer, items, labels, tiny.label_answer(3, choices=True), settings
    )
    for scores in (
        [probe(item_features) for item_features in features],
        [predict_finetuned(model, tokenizer, some_items) for some_items in (items, reversed_items)],
    ):
        np.testing.assert_allclose(scores[0].sum(1), 1.0)
        assert (scores[0].argmax(1) == labels).mean() > 0.9
        np.testing.assert_allclose(scores[0], scores[1][:, ::-1], atol=2e-4)


# ULMFiT and SA-LSTM have layers of different widths.
@pytest.mark.parametrize("name", ["ulmfit", "sa_lstm", "bert", "word2vec"])
def test_the_last_feature_of_a_pair_is_the_cosine_of_both_texts_in_every_layer(name: str) -> None:
    model = tiny.model(name)
    tokenizer = tiny.tokenizer(name)
    items = tiny.encode(name, pair_table(9))
    features = extract_features(model, tokenizer, items)
    size = max(model.hidden_sizes())
    assert features.shape == (9, len(model.hidden_sizes()), pair_width(size))
    for layer, width in enumerate(model.hidden_sizes()):
        u, v, difference, product = np.split(features[:, layer, :-1], 4, axis=-1)
        assert not u[:, width:].any() and not v[:, width:].any()
        np.testing.assert_allclose(difference, np.abs(u - v), atol=1e-6)
        np.testing.assert_allclose(product, u * v, atol=1e-6)
        norms = np.linalg.norm(u, axis=-1) * np.linalg.norm(v, axis=-1)
        np.testing.assert_allclose(features[:, layer, -1], product.sum(-1) / norms, atol=1e-5)


def test_texts_without_a_known_word_have_the_cosine_zero() -> None:
    u = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    v = torch.tensor([[1.0, 2.0], [-3.0, -4.0]])
    torch.testing.assert_close(combine_pair(u, v)[:, -1], torch.tensor([0.0, -1.0]))


def weights_of(head: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the weights of a head without its biases and norms."""
    return [parameter for parameter in head.parameters() if parameter.dim() > 1]


@pytest.mark.parametrize("case", ["pairs", "choices"])
@pytest.mark.parametrize("name", NAMES)
def test_fine_tuning_trains_both_heads_of_pairs_and_adds_their_scores(name: str, case: str) -> None:
    """Only weights are checked: a bias that all choices share has no gradient.

    The scores of an item do not depend on the others of its batch.
    """
    tokenizer = tiny.tokenizer(name)
    table = pair_table(7) if case == "pairs" else choice_table(7)
    labels = table["label"].to_numpy()
    items = tiny.encode(name, table)
    answer = tiny.label_answer(2) if case == "pairs" else tiny.label_answer(3, choices=True)
    settings = replace(FINETUNE, epochs=1, min_steps=None)
    model = new_finetuned(tiny.model(name), answer, settings, items[0])
    assert model.pair_head is not None
    (weight,) = weights_of(model.pair_head)
    initial_weight = weight.detach().clone()
    batch = collate_items(tokenizer, items, labels)
    finetuning_objective(model, batch).loss.backward()
    for head in model.heads:
        for weight in weights_of(head):
            assert weight.grad is not None and weight.grad.abs().max() > 0
    model.eval()
    with torch.no_grad():
        both = model(batch)
        for row, item in enumerate(items):
            alone = model(collate_items(tokenizer, [item]))[0]
            torch.testing.assert_close(alone, both[row], atol=1e-6, rtol=1e-6)
        for parameter in model.pair_head.parameters():
            parameter.zero_()
        first = model(batch)
        pooled = model.pooled_vectors(batch)
        expected = model.head(model.head_inputs(pooled.vectors, batch))
    torch.testing.assert_close(first, expected.view(first.shape))
    assert not torch.allclose(both, first)
    trained = finetune(tiny.model(name), tokenizer, items, labels, answer, settings)
    assert trained.pair_head is not None
    (trained_weight,) = weights_of(trained.pair_head)
    assert (trained_weight - initial_weight).abs().max() > 1e-4


def test_fine_tuned_static_vectors_learn_whether_two_texts_are_equal() -> None:
    """The mean over both texts, which the family's own head reads, cannot tell."""
    rng = np.random.default_rng(6)
    tokenizer = tiny.tokenizer("word2vec")
    firsts = [random_text(4, rng) for _ in range(210)]
    labels = np.arange(210) % 2
    seconds = [
        first if label else random_text(4, rng) for first, label in zip(firsts, labels, strict=True)
    ]
    table = pd.DataFrame({"text": firsts, "second": seconds})
    items = tiny.encode("word2vec", table)
    model = finetune(
        tiny.model("word2vec"),
        tokenizer,
        items[:150],
        labels[:150],
        tiny.label_answer(2),
        replace(FINETUNE, learning_rate=0.2),
    )
    scores = predict_finetuned(model, tokenizer, items[150:])
    assert (scores.argmax(1) == labels[150:]).mean() > 0.95


def test_only_pairs_have_a_second_head_and_they_are_read_without_windows_and_label_gain() -> None:
    words = pd.DataFrame({"tokens": [["the", "cat", "sat"]], "target": [1]})
    tables = {"text": pair_table(3)[["text"]], "pair": pair_table(3), "word": words}
    items = {case: tiny.encode("sa_lstm", table)[0] for case, table in tables.items()}
    windows = replace(FINETUNE, bptt_window=3)
    gain = replace(FINETUNE, linear_label_gain=True)
    models = {
        (case, settings.recipe): new_finetuned(
            tiny.model("sa_lstm"), tiny.label_answer(2), settings, item
        )
        for case, item in items.items()
        for settings in (windows, gain)
    }
    assert {case for (case, _), model in models.items() if model.pair_head is not None} == {"pair"}
    assert {case for (case, _), model in models.items() if model.bptt_window} == {"text", "word"}
    assert {case for (case, _), model in models.items() if model.linear_label_gain} == {"text"}


def test_tfidf_of_choices_picks_the_most_likely_one_at_any_position() -> None:
    train, test = choice_table(90), choice_table(30, seed=6)
    answer = ChoiceAnswer(("0", "1", "2")[: len(train["choices"].iloc[0])])
    probabilities = fit_tfidf(
        load_kind("multiple_choice"), answer, train, language="en", symmetric=False, C=10.0
    ).outputs(test)
    assert (probabilities.argmax(1) == test["label"]).mean() > 0.95
    np.testing.assert_allclose(probabilities.sum(1), 1.0)


def test_tfidf_of_pairs_uses_shared_words_and_ignores_the_order_of_symmetric_texts() -> None:
    rng = np.random.default_rng(5)
    words = [f"w{number}" for number in range(300)]
    texts = [" ".join(rng.choice(words, 6)) for _ in range(240)]
    same = np.arange(240) % 2 == 0
    seconds = [
        text if is_same else texts[row - 1]
        for row, (text, is_same) in enumerate(zip(texts, same, strict=True))
    ]
    pairs = pd.DataFrame({"text": texts, "second": seconds, "label": same.astype(int)})
    train, test = pairs[:180], pairs[180:]
    swapped = test.rename(columns={"text": "second", "second": "text"})

    def scores(items: pd.DataFrame, *, symmetric: bool = False) -> np.ndarray:
        model = fit_tfidf(
            load_kind("text_classification"),
            LabelAnswer(("no", "yes")),
            train,
            language="en",
            symmetric=symmetric,
            C=10.0,
        )
        return model.outputs(items[["text", "second"]])

    assert (scores(test).argmax(1) == same[180:]).mean() > 0.95
    symmetric_scores = scores(test, symmetric=True)
    np.testing.assert_allclose(symmetric_scores, scores(swapped, symmetric=True), atol=1e-12)
    columns = [test["text"].tolist(), test["second"].tolist()]
    vectorizer = fit_text_vectorizer([train["text"].tolist(), train["second"].tolist()], "en")
    vectors = text_features(vectorizer, columns, symmetric=False)
    cosine = vectors[:, -1].toarray().ravel()
    np.testing.assert_allclose(cosine[same[180:]], 1.0, atol=1e-9)  # for two equal texts
    assert cosine[~same[180:]].max() < 0.6
    assert np.abs(scores(swapped) - symmetric_scores).max() > 1e-3


CHOICE_TASK = {
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


def test_choices_are_several_columns_or_one_column_of_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    items_from_columns = build_table_items(
        tmp_path, {"train": ROWS, "test": ROWS[:4]}, **CHOICE_TASK
    )
    list_table = ROWS.assign(ends=[list(row) for row in zip(ROWS["one"], ROWS["two"], strict=True)])
    items_from_lists = build_table_items(
        tmp_path,
        {"train": list_table, "test": list_table[:4]},
        **{**CHOICE_TASK, "choices": ["ends"]},
    )
    assert items_from_columns.splits["test"].equals(items_from_lists.splits["test"])
    assert items_from_columns.info.labels == ["0", "1"]
    first_choices = items_from_columns.splits["test"]["choices"].iloc[0]
    assert first_choices == ["the first choice", "another"]


def test_a_label_of_choices_may_be_an_index_that_train_never_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task_items = build_table_items(
        tmp_path,
        {"train": ROWS.assign(label=1), "validation": ROWS[:4], "test": ROWS[:4]},
        **CHOICE_TASK,
    )
    assert set(task_items.splits["train"]["label"]) == {1}
    assert set(task_items.splits["test"]["label"]) == {0, 1}


def test_two_texts_share_max_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = ROWS.assign(text="one two three four five six", one="a b", label=ROWS["label"])
    fields = {
        "kind": "text_classification",
        "text": ["text", "one"],
        "label": "label",
        "max_words": 5,
        "validation_share": 0.2,
    }
    task_items = build_table_items(
        tmp_path, {"train": table, "test": table[:4]}, **fields, symmetric=True
    )
    row = task_items.splits["test"].iloc[0]
    assert (row["text"], row["second"]) == ("one two three", "a b")
    assert task_items.info.truncated["test"] == 4
    assert task_items.info.symmetric
    with pytest.raises(InputError, match="symmetric needs two texts"):
        build_table_items(
            tmp_path,
            {"train": table, "test": table[:4]},
            **{**fields, "text": ["text"]},
            symmetric=True,
        )
    task_items = build_table_items(
        tmp_path, {"train": table, "test": table[:4]}, **{**CHOICE_TASK, "max_words": 5}
    )
    row = task_items.splits["test"].iloc[0]
    assert (row["text"], row["choices"]) == ("one two three", ["a b", "another"])
    assert task_items.info.truncated["test"] == 4


def test_a_question_follows_the_passage_and_is_not_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = ROWS.assign(text="one two three four five six", asks="why so", one="a b")
    task_items = build_table_items(
        tmp_path,
        {"train": table, "test": table[:4]},
        **{**CHOICE_TASK, "text": ["text", "asks"], "max_words": 7},
    )
    row = task_items.splits["test"].iloc[0]
    assert (row["text"], row["choices"]) == ("one two three four why so", ["a", "another"])
    assert task_items.info.truncated["test"] == 4


@pytest.mark.parametrize(
    ("change", "fields", "message"),
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
            {"text": ["text", "text"], "max_words": 8},
            r"row 1: the question has 6 words, so max_words leaves none",
        ),
        (
            {"one": ["a b c"] * 20, "two": ["a b d"] * 20},
            {"max_words": 4},
            r"choices are the same within max_words, which is 4; raise it",
        ),
        ({}, {"symmetric": True}, r"symmetric: a task of kind multiple_choice does not use it"),
    ],
)
def test_invalid_choices_are_reported_by_file_and_row(
    change: dict[str, object],
    fields: dict[str, object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    train = ROWS.assign(one=[["a", "b"]] * 20) if fields.get("choices") == ["one"] else ROWS
    with pytest.raises(InputError, match=message):
        build_table_items(
            tmp_path,
            {"train": train, "validation": train, "test": ROWS.assign(**change)},
            **{**CHOICE_TASK, **fields},
        )


def swap_consistency(name: str, folder: Path, *, symmetric: bool = True) -> dict[str, float | None]:
    """Evaluate a model on pairs with random labels, and return its swap consistency by method.

    It is the share of test answers that stay the same when the two texts are swapped.
    """
    rng = np.random.default_rng(9)
    splits = {}
    for split, count in (("train", 40), ("validation", 8), ("test", 40)):
        texts = [[random_text(4, rng) for _ in range(count)] for _ in range(2)]
        splits[split] = pd.DataFrame({"id": [f"{split}-{number}" for number in range(count)], "text": texts[0], "second": texts[1],
                                      "label": rng.integers(2, size=count), "group": "all"})  # fmt: skip
    task_info = TaskInfo(name="x", kind="text_classification", labels=["a", "b"], language="en", probes=["linear", "bilstm"], metric=["accuracy"], symmetric=symmetric)  # fmt: skip
    settings = EvaluateSettings(
        linear_probe=FROZEN,
        bilstm_probe=replace(tiny.BILSTM_PROBE, epochs=1),
        finetune=replace(FINETUNE, epochs=2),
    )
    context = tiny.eval_context(name, TaskData(task_info, splits), settings)
    rows, predictions, *_ = tiny.evaluate_runs(
        context, tiny.list_runs(task_info, ("random",), ("all",), (0,)), folder
    )
    assert set(predictions["split"]) == {"validation", "test"}
    assert "swap_consistency" not in predictions
    assert {row.metric for row in rows if row.value is not None} == {
        "accuracy",
        *(["swap_consistency"] if symmetric else []),
    }
    return {
        f"{row.transfer} {row.head}": row.value
        for row in rows
        if row.metric == "swap_consistency" and row.split == "test"
    }


def test_swap_consistency_is_measured_for_symmetric_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word2vec averages all words, so it can see the order of the texts only in its pair head.

    Without u and v in the features of that head, the order cannot change its answers. Probes that
    read the features of both texts one after the other can change theirs.
    """
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    gpt = swap_consistency("gpt", tmp_path / "two")

    def pool_without_order(x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
        pairs = pool_pair(x_BTD, batch)
        is_ordered = torch.arange(pairs.shape[-1]) < 2 * x_BTD.shape[-1]
        return pairs.masked_fill(is_ordered, 0.0)

    monkeypatch.setattr(finetuning, "pool_pair", pool_without_order)
    word2vec = swap_consistency("word2vec", tmp_path / "one")
    assert word2vec.keys() == gpt.keys() == {"frozen linear", "frozen bilstm", "finetuned linear"}
    assert word2vec["finetuned linear"] == 1
    assert all(0 <= (value or 0) <= 1 for value in gpt.values())
    assert 0.2 < (gpt["frozen linear"] or 0) < 1
    assert not swap_consistency("gpt", tmp_path / "three", symmetric=False)


def test_numbers_agree_within_a_tenth_of_their_standard_deviation() -> None:
    answer = NumberAnswer(mean=3.0, std=2.0)
    predictions = np.array([[1.0], [2.0], [3.0]])
    others = predictions + np.array([[0.1], [-0.19], [0.21]])
    assert answer.agrees(predictions, others).tolist() == [True, True, False]
