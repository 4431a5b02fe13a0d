"""Contextual features beside static vectors of another model: which vector stands where, and that the twin differs in the contextual part alone."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.data.task_data import TaskData
from lineage.evaluation.bilstm_probe import (
    CachedFeatures,
    cache_features,
    fit_bilstm_probe,
    predict_bilstm_probe,
)
from lineage.evaluation.encoding import EncodedItem, answer_rows, encode_items, pool_words
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.joined import StaticText, add_static_vectors, align_static_vectors
from lineage.evaluation.linear_probe import extract_features, fit_linear_probe
from lineage.evaluation.settings import EvaluateSettings, LinearProbeSettings
from lineage.evaluation.systems import EncoderUnderTest, EvalContext
from lineage.models.base import Encoder
from lineage.models.checkpoint import Checkpoint
from lineage.models.layers.scalar_mix import ScalarMix
from lineage.report.notes import format_notes
from lineage.tokenizers.tokenizer import Encoding
from tests import tiny
from tests.test_networks import CASES, WORDS

S = tiny.SMALL["word2vec"]["architecture"]["hidden_size"]
SETTINGS = EvaluateSettings(
    linear_probe=LinearProbeSettings(l2=0.001, max_iter=20),
    bilstm_probe=dataclasses.replace(tiny.NETWORK, epochs=2),
    finetune=tiny.variant("bert").evaluate.finetune,
)


def spans(count: int) -> pd.DataFrame:
    """A word as the question, and contexts of three words, one of which it is."""
    rows = []
    for number in range(count):
        words = [WORDS[(number + place) % len(WORDS)] for place in (1, 2, 3)]
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        starts = [end - len(word) for end, word in zip(ends, words, strict=True)]
        rows.append(
            {
                "question": words[number % 3],
                "context": " ".join(words),
                "starts": starts,
                "ends": [*ends],
                "label": [number % 3] * 2,
            }
        )
    return pd.DataFrame(rows)


TABLES = {case: make(12) for case, (make, _) in CASES.items()} | {"span": spans(12)}


@functools.cache
def model(name: str) -> Encoder:
    return tiny.model(name)


def vector(word: str) -> np.ndarray:
    """(S,): what word2vec's table has for a word."""
    place = tiny.reader("word2vec").backend_tokenizer.token_to_id(word)
    assert place is not None, f"{word} is in the vocabulary"
    return next(model("word2vec").parameters())[place].detach().numpy()


def mean(words: Sequence[str]) -> np.ndarray:
    return np.mean([vector(word) for word in words], 0)


def four(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.concatenate([u, v, np.abs(u - v), u * v])


def by_hand(case: str, row: Any) -> list[np.ndarray]:
    """What stands for each of an item's answers: the asked words, the mean of a text, the four of two texts."""
    if case == "span":
        return [
            np.concatenate([vector(word), vector(word) * vector(row["question"])])
            for word in row["context"].split()
        ]
    if case in ("tags", "sense"):
        return [
            vector(word)
            for word in (row["tokens"] if case == "tags" else [row["tokens"][row["target"]]])
        ]
    text = mean(row["text"].split())
    if case == "multiple_choice":
        return [np.stack([four(text, mean(choice.split())) for choice in row["choices"]])]
    return [four(text, mean(row["second"].split()))] if case == "pairs" else [text]


def setting(case: str, name: str = "bert", **more: Any) -> EvalContext:
    """A tiny model with word2vec's vectors, both untrained, on a dozen items."""
    facts = {"name": "x", "kind": case, "language": "en"}
    own = EvalContext(
        tiny.checkpoint(name),
        TaskData(facts, {"train": TABLES[case]}),
        SETTINGS,
        0,
        5000,
        "fp32",
        tiny.CPU,
        **more,
    )
    return dataclasses.replace(
        own,
        static_context=dataclasses.replace(
            own, checkpoint=tiny.checkpoint("word2vec"), text_bytes=300
        ),
    )


@pytest.mark.usefixtures("never_trained")
@pytest.mark.parametrize("case", TABLES)
def test_behind_every_layer_of_a_linear_reader_stands_what_it_would_read_of_the_static_words(
    case: str,
) -> None:
    found = setting(case)
    own = extract_features(
        model("bert"), tiny.reader("bert"), found.items["train"], precision="fp32"
    )
    features = EncoderUnderTest(found, "pretrained").features["train"]
    wide = own.shape[-1]
    assert np.array_equal(features[..., :wide], own), "what is the model's stays as it is"
    want = np.stack(
        [vectors for _, row in TABLES[case].iterrows() for vectors in by_hand(case, row)]
    )
    assert features.shape[-1] == wide + want.shape[-1] and (want != 0).any(-1).all()
    for layer in range(own.shape[-2]):
        np.testing.assert_allclose(features[..., layer, wide:], want, atol=1e-6)


def encoded(*spans: tuple[int, int], segments: Sequence[int] | None = None) -> Encoding:
    return Encoding(
        np.arange(len(spans)),
        np.array(spans),
        token_type_ids=None if segments is None else np.array(segments),
    )


def test_a_piece_has_the_vector_of_the_first_word_that_it_overlaps_and_zeros_where_there_is_none() -> (
    None
):
    """Of "no, don't": the static model reads no, do and n't, and leaves the comma out; the other one reads marks, and pieces with spaces."""
    known = {
        "no, don't": StaticText(
            encoded((0, 0), (0, 2), (4, 6), (6, 9), (0, 0)),
            np.float32([[9, 9], [1, 2], [3, 4], [5, 6], [9, 9]]),
        )
    }
    pieces = encoded((0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (3, 5), (5, 8), (7, 9), (0, 0))
    assert align_static_vectors(pieces, ("no, don't",), known).tolist() == [
        [0, 0],
        [1, 2],
        [1, 2],
        [0, 0],
        [0, 0],
        [3, 4],
        [3, 4],
        [5, 6],
        [0, 0],
    ]
    turned = align_static_vectors(pieces.reverse(), ("no, don't",), known)
    assert turned[::-1].tolist() == align_static_vectors(pieces, ("no, don't",), known).tolist(), (
        "read from its end"
    )
    known |= {
        "yes": StaticText(encoded((0, 3)), np.float32([[7, 8]])),
        "...": StaticText(encoded((0, 0)), np.float32([[9, 9]])),
    }
    both = encoded((0, 0), (0, 2), (0, 0), (0, 2), (2, 3), segments=[0, 0, 0, 1, 1])
    assert align_static_vectors(both, ("no, don't", "yes"), known).tolist() == [
        [0, 0],
        [1, 2],
        [0, 0],
        [7, 8],
        [7, 8],
    ], "spans count in their own text"
    assert not align_static_vectors(both, ("...", "..."), known).any(), "a text without words"


def joined(items: list[EncodedItem], name: str) -> CachedFeatures:
    own = cache_features(model(name), tiny.reader(name), items, precision="fp32")
    return add_static_vectors(own, model("word2vec"), tiny.reader("word2vec"), precision="fp32")


def words_of(case: str, row: Any, reading: int, segment: int) -> str:
    """The text that a segment of an item's reading is of, of items that are not read in parts."""
    texts = [
        row["text"],
        row["choices"][reading] if case == "multiple_choice" else row.get("second", ""),
    ]
    return str(texts[(segment + reading) % 2 if case == "pairs" else segment])


@pytest.mark.parametrize("name", ["bert", "gpt"])
@pytest.mark.parametrize("case", TABLES)
def test_every_piece_of_a_network_stands_beside_its_words_vector_in_any_company(
    case: str, name: str
) -> None:
    """Also where a text is cut, where a sentence or a context is read in parts, and beside a space, with which a piece of bytes begins."""
    limit = {"span": 11, "multiple_choice": 8, "sense": 7}.get(case, 15)
    items = encode_items(
        TABLES[case], tiny.reader(name), max_length=limit, language="en", symmetric=case == "pairs"
    )
    whole = joined(items, name)
    assert whole.static_size == S and any(item.truncated for item in items)
    for number, row in TABLES[case].head(5).iterrows():
        alone = joined([items[number]], name).layers[0]
        assert all(
            np.allclose(a, b, atol=1e-6) for a, b in zip(alone, whole.layers[number], strict=True)
        )
        if case in ("tags", "sense", "span"):
            batch = whole.make_batch(np.array([number]))
            assert batch.layers_BTLD is not None
            want = [part[:S] for part in by_hand(case, row)]
            read = pool_words(whole, batch.layers_BTLD[:, :, 0, -S:], batch).numpy()
            np.testing.assert_allclose(read, want, atol=1e-6)
            continue
        for reading, (encoded, layers) in enumerate(
            zip(items[number].encodings, whole.layers[number], strict=True)
        ):
            segments = encoded.token_type_ids
            if segments is None:
                segments = np.zeros(len(encoded.ids), int)
            for place, ((a, b), segment) in enumerate(zip(encoded.offsets, segments, strict=True)):
                text = words_of(case, row, reading, segment)
                word = (
                    "" if not text[a:b].strip() else text[:b].split()[-1] + text[b:].split(" ")[0]
                )
                want = vector(word) if word else np.zeros(S)
                np.testing.assert_allclose(
                    layers[place][:, -S:], np.tile(want, (len(layers[place]), 1)), atol=1e-6
                )


def test_a_network_over_both_reads_an_item_alike_in_any_company() -> None:
    answer = CASES["tags"][1]
    items = encode_items(TABLES["tags"], tiny.reader("bert"), max_length=12, language="en")
    whole = joined(items, "bert")
    network = fit_bilstm_probe(
        whole, answer.labels(TABLES["tags"]), answer, SETTINGS.bilstm_probe, seed=1, device=tiny.CPU
    )
    together, _ = predict_bilstm_probe(network, whole)
    for number in (0, 5, 11):
        alone, _ = predict_bilstm_probe(network, whole.select(np.array([number])))
        np.testing.assert_allclose(alone, together[answer_rows(items)[number]], atol=1e-6, rtol=0)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_mix_leaves_the_static_vector_alone(layer_norm: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    layers, static = (
        [torch.randn(5, 7, generator=draw) for _ in range(3)],
        torch.randn(5, 2, generator=draw),
    )
    both, plain = (
        ScalarMix(3, layer_norm=layer_norm, static_size=2),
        ScalarMix(3, layer_norm=layer_norm),
    )
    for mix in (both, plain):
        with torch.no_grad():
            mix.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
            mix.gamma.fill_(2.5)
    mixed = both([torch.cat([layer, static], -1) for layer in layers])
    assert torch.equal(mixed[:, 7:], static) and torch.equal(mixed[:, :7], plain(layers))


@pytest.mark.parametrize("gamma", [False, True])
@pytest.mark.parametrize("static", [0, 2])
def test_what_a_linear_reader_makes_of_the_mix_can_be_folded_into_it(
    static: int, gamma: bool
) -> None:
    draw = torch.Generator().manual_seed(4)
    layers, weight = torch.randn(3, 5, 7, generator=draw), torch.randn(7, 4, generator=draw)
    layers[:, :, 7 - static :] = layers[:1, :, 7 - static :]
    mix = ScalarMix(3, gamma=gamma, static_size=static)
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    torch.testing.assert_close(
        layers.transpose(0, 1).flatten(1) @ mix.fold_into_linear(weight).flatten(0, 1),
        mix(list(layers)) @ weight,
    )


@pytest.mark.parametrize("layer_norm", [False, True])
def test_neither_models_scale_weighs_in_what_is_read_of_the_other(layer_norm: bool) -> None:
    """Layers of unlike width, of which the narrow one ends in zeros; vectors a thousand times as large say the same."""
    rng = np.random.default_rng(2)
    gold = rng.integers(2, size=60)
    features = rng.normal(size=(60, 2, 9)) * 0.3 + gold[:, None, None] * 0.1
    features[:, 0, 4:6] = 0.0
    features[:, :, 6:] = features[:, :1, 6:]
    larger = features * np.array([*[1.0] * 6, *[1000.0] * 3])
    settings = dataclasses.replace(SETTINGS.linear_probe, layer_norm=layer_norm, max_iter=200)
    said = [
        fit_linear_probe(x, gold, tiny.labels(2), settings, seed=0, static_size=3)(x)
        for x in (features, larger)
    ]
    np.testing.assert_allclose(said[0], said[1], atol=1e-3)
    without = fit_linear_probe(features[..., :6], gold, tiny.labels(2), settings, seed=0)(
        features[..., :6]
    )
    assert np.abs(said[0] - without).max() > 0.1, "else this shows nothing"


def saved(name: str, folder: Path) -> Checkpoint:
    """A checkpoint whose weights are not those that its training would have started from."""
    folder.mkdir()
    other = tiny.model(name)
    with torch.no_grad():
        for number, parameter in enumerate(other.parameters()):
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)),
                alpha=0.2,
            )
    tiny.checkpoint(name).save(folder, other)
    return Checkpoint.load(folder)


def test_the_untrained_twin_has_the_trained_vectors_and_differs_in_the_contextual_part_alone(
    tmp_path: Path,
) -> None:
    plain = setting("text_classification")
    assert plain.static_context is not None
    static = dataclasses.replace(
        plain.static_context, checkpoint=saved("word2vec", tmp_path / "static")
    )
    found = dataclasses.replace(
        plain, checkpoint=saved("bert", tmp_path / "bert"), static_context=static
    )
    trained, twin = EncoderUnderTest(found, "pretrained"), EncoderUnderTest(found, "random")
    for one, other in (
        (trained.features["train"], twin.features["train"]),
        *(
            (a[0][1:-1], b[0][1:-1])
            for a, b in zip(
                trained.cached_features["train"].layers,
                twin.cached_features["train"].layers,
                strict=True,
            )
        ),
    ):
        assert np.array_equal(one[..., -S:], other[..., -S:]) and one[..., -S:].any()
        assert not np.isclose(one[..., :-S], other[..., :-S]).all(-1).any()
    untrained = EncoderUnderTest(static, "random").compute_layers()["train"]
    assert not np.isclose(trained.features["train"][:, :1, -S:], untrained).all(-1).any(), (
        "else this shows nothing"
    )


@pytest.mark.usefixtures("never_trained")
@pytest.mark.parametrize("broken", ["", "static", "contextual"])
def test_rows_say_both_names_and_both_texts_and_what_failed(broken: str, tmp_path: Path) -> None:
    facts = {"name": "x", "kind": "text_classification", "answer": "label", "labels": ["a", "b"], "metric": ["accuracy"], "language": "en",
             "probes": ["linear", "bilstm"]}  # fmt: skip
    table = TABLES["text_classification"].assign(id=[f"train-{i}" for i in range(12)], group="all")
    task = TaskData(facts, {"train": table, "validation": table, "test": table})
    found = dataclasses.replace(
        setting("text_classification"),
        task=task,
        failure_reason="the loss is nan" if broken == "contextual" else "",
    )
    assert found.static_context is not None
    static = dataclasses.replace(
        found.static_context, task=task, failure_reason="no words" if broken == "static" else ""
    )
    some = [*list_runs(facts, ("pretrained", "random"), ("all",), (0,), finetuned=False)]
    rows, predictions = evaluate_runs(
        dataclasses.replace(found, static_context=static),
        some,
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert {(row.model, row.family, row.transfer) for row in rows} == {
        ("bert + word2vec", "joined", "frozen")
    }
    assert {row.head for row in rows} == {"linear", "bilstm"}
    assert {row.init: row.text_bytes for row in rows} == {"pretrained": 5300, "random": 300}
    failed = {(row.init, format_notes(row.reason)) for row in rows if row.status == "failed"}
    assert failed == {"": set(), "static": {("pretrained", "word2vec: no words"), ("random", "word2vec: no words")},
                      "contextual": {("pretrained", "the loss is nan")}}[broken]  # fmt: skip
    assert len(predictions) == {"": 96, "static": 0, "contextual": 48}[broken]
