"""Contextual features can be concatenated with the static vectors of another model.

The tests check which vector each token gets, and that the random-init baseline differs only in the
contextual part.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.data.task_data import TaskData
from lineage.methods.encoder import EncoderUnderTest
from lineage.methods.encoding import pool_words
from lineage.methods.joined import StaticText, align_static_vectors
from lineage.methods.linear_probe import fit_linear_probe
from lineage.methods.stored_features import StoredFeatures
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.layers.scalar_mix import ScalarMix
from lineage.report.notes import format_notes
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.tokenizer import Encoding
from tests.helpers import tiny
from tests.helpers.fitting import extract_features
from tests.helpers.joined_features import (
    SETTINGS,
    TABLES,
    build_eval_context,
    cache_joined_features,
    tiny_model,
)

S = tiny.SMALL_SETTINGS["word2vec"]["architecture"]["hidden_size"]


def static_vector(word: str) -> np.ndarray:
    """Return the word2vec vector of a word, (S,)."""
    token_id = tiny.tokenizer("word2vec").backend_tokenizer.token_to_id(word)
    assert token_id is not None, f"{word} is in the vocabulary"
    return next(tiny_model("word2vec").parameters())[token_id].detach().numpy()


def mean_vector(words: Sequence[str]) -> np.ndarray:
    return np.mean([static_vector(word) for word in words], 0)


def pair_features(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    cosine = u @ v / np.sqrt(u @ u * (v @ v))
    return np.concatenate([u, v, np.abs(u - v), u * v, [cosine]])


def expected_vectors(case: str, row: Any) -> list[np.ndarray]:
    """Return the expected static features of each answer of an item.

    They are vectors of words, the mean of a text, or the combinations and cosine of two texts.
    """
    if case == "span":
        return [
            np.concatenate(
                [static_vector(word), static_vector(word) * static_vector(row["question"])]
            )
            for word in row["context"].split()
        ]
    if case == "tags":
        return [static_vector(word) for word in row["tokens"]]
    if case == "sense":
        return [static_vector(row["tokens"][row["target"]])]
    text = mean_vector(row["text"].split())
    if case == "multiple_choice":
        return [
            np.stack(
                [pair_features(text, mean_vector(choice.split())) for choice in row["choices"]]
            )
        ]
    if case == "pairs":
        return [pair_features(text, mean_vector(row["second"].split()))]
    return [text]


@pytest.mark.usefixtures("without_weights")
@pytest.mark.parametrize("case", TABLES)
def test_linear_probe_features_end_with_the_static_features_in_every_layer(case: str) -> None:
    context = build_eval_context(case)
    contextual = extract_features(
        tiny_model("bert"), tiny.tokenizer("bert"), context.items["train"]
    )
    extractor = EncoderUnderTest(context, "pretrained").build_extractor()
    features = extractor.compute("train", slice(None), SETTINGS.linear_probe.features)
    width = contextual.shape[-1]
    assert np.array_equal(features[..., :width], contextual), (
        "the features of the model do not change"
    )
    expected = np.stack(
        [vectors for _, row in TABLES[case].iterrows() for vectors in expected_vectors(case, row)]
    )
    assert features.shape[-1] == width + expected.shape[-1] and (expected != 0).any(-1).all()
    for layer in range(contextual.shape[-2]):
        np.testing.assert_allclose(features[..., layer, width:], expected, atol=1e-6)


def build_encoding(*spans: tuple[int, int], segments: Sequence[int] | None = None) -> Encoding:
    return Encoding(
        np.arange(len(spans)),
        np.array(spans),
        token_type_ids=None if segments is None else np.array(segments),
    )


def test_a_token_gets_the_vector_of_the_first_word_it_overlaps_or_zeros() -> None:
    """The text is "no, don't". The static model has the words no, do and n't, without the comma.

    The other model has special tokens, and tokens that include spaces.
    """
    static_texts = {
        "no, don't": StaticText(
            build_encoding((0, 0), (0, 2), (4, 6), (6, 9), (0, 0)),
            np.float32([[9, 9], [1, 2], [3, 4], [5, 6], [9, 9]]),
        )
    }
    tokens = build_encoding((0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (3, 5), (5, 8), (7, 9), (0, 0))
    assert align_static_vectors(tokens, ("no, don't",), static_texts).tolist() == [
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
    reversed_vectors = align_static_vectors(tokens.reverse(), ("no, don't",), static_texts)
    assert (
        reversed_vectors[::-1].tolist()
        == align_static_vectors(tokens, ("no, don't",), static_texts).tolist()
    ), "a reversed encoding"
    static_texts |= {
        "yes": StaticText(build_encoding((0, 3)), np.float32([[7, 8]])),
        "...": StaticText(build_encoding((0, 0)), np.float32([[9, 9]])),
    }
    pair = build_encoding((0, 0), (0, 2), (0, 0), (0, 2), (2, 3), segments=[0, 0, 0, 1, 1])
    assert align_static_vectors(pair, ("no, don't", "yes"), static_texts).tolist() == [
        [0, 0],
        [1, 2],
        [0, 0],
        [7, 8],
        [7, 8],
    ], "offsets refer to the text of their segment"
    assert not align_static_vectors(pair, ("...", "..."), static_texts).any(), (
        "a text without words"
    )


def segment_text(case: str, row: Any, encoding_index: int, segment: int) -> str:
    """Return the text of a segment in one encoding of an item that is not split into parts."""
    if case == "multiple_choice":
        texts = [row["text"], row["choices"][encoding_index]]
    else:
        texts = [row["text"], row.get("second", "")]
    if case == "pairs":  # the second encoding has the texts in reverse order
        segment = (segment + encoding_index) % 2
    return str(texts[segment])


@pytest.mark.parametrize("name", ["bert", "gpt"])
@pytest.mark.parametrize("case", TABLES)
def test_every_token_gets_the_vector_of_its_word_whatever_else_is_in_the_batch(
    case: str, name: str
) -> None:
    """This holds for truncated texts, items read in parts, and tokens that begin with a space."""
    limit = {"span": 11, "multiple_choice": 8, "sense": 7}.get(case, 15)
    items = tiny.encode(name, TABLES[case], max_length=limit, symmetric=case == "pairs")
    features = cache_joined_features(items, name)
    assert features.static_size == S and any(item.truncated for item in items)
    for number, row in TABLES[case].head(5).iterrows():
        single_item_layers = cache_joined_features([items[number]], name).layers[0]
        assert all(
            np.allclose(single, batched, atol=1e-6)
            for single, batched in zip(single_item_layers, features.layers[number], strict=True)
        )
        if case in ("tags", "sense", "span"):
            batch = features.make_batch(np.array([number]))
            assert batch.layers_LBTD is not None
            expected = [part[:S] for part in expected_vectors(case, row)]
            pooled = pool_words(features, batch.layers_LBTD[0, ..., -S:], batch).numpy()
            np.testing.assert_allclose(pooled, expected, atol=1e-6)
            continue
        for encoding_index, (encoding, layers) in enumerate(
            zip(items[number].encodings, features.layers[number], strict=True)
        ):
            segments = encoding.token_type_ids
            if segments is None:
                segments = np.zeros(len(encoding.ids), int)
            for position, ((start, end), segment) in enumerate(
                zip(encoding.offsets, segments, strict=True)
            ):
                text = segment_text(case, row, encoding_index, segment)
                expected = np.zeros(S)
                if text[start:end].strip():
                    word = text[:end].split()[-1] + text[end:].split(" ")[0]
                    expected = static_vector(word)
                for layer in layers[position]:
                    np.testing.assert_allclose(layer[-S:], expected, atol=1e-6)


def test_the_scalar_mix_does_not_change_the_static_vector() -> None:
    generator = torch.Generator().manual_seed(3)
    layers = [torch.randn(5, 7, generator=generator) for _ in range(3)]
    static = torch.randn(5, 2, generator=generator)
    joined_mix = ScalarMix(3, static_size=2)
    plain_mix = ScalarMix(3)
    for mix in (joined_mix, plain_mix):
        with torch.no_grad():
            mix.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
            mix.gamma.fill_(2.5)
    mixed = joined_mix([torch.cat([layer, static], -1) for layer in layers])
    assert torch.equal(mixed[:, 7:], static)
    assert torch.equal(mixed[:, :7], plain_mix(layers))


@pytest.mark.parametrize("gamma", [False, True])
@pytest.mark.parametrize("static_size", [0, 2])
def test_a_linear_layer_over_the_mix_can_be_folded_into_one_matrix(
    static_size: int, gamma: bool
) -> None:
    generator = torch.Generator().manual_seed(4)
    layers = torch.randn(3, 5, 7, generator=generator)
    weight = torch.randn(7, 4, generator=generator)
    layers[:, :, 7 - static_size :] = layers[:1, :, 7 - static_size :]
    mix = ScalarMix(3, gamma=gamma, static_size=static_size)
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    torch.testing.assert_close(
        layers.transpose(0, 1).flatten(1) @ mix.fold_into_linear(weight).flatten(0, 1),
        mix(list(layers)) @ weight,
    )


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_scale_of_static_vectors_does_not_affect_predictions(layer_norm: bool) -> None:
    """Static vectors that are a thousand times larger give the same predictions.

    The layers differ in width, and the narrow one ends in zeros.
    """
    rng = np.random.default_rng(2)
    labels = rng.integers(2, size=60)
    features = rng.normal(size=(60, 2, 9)) * 0.3 + labels[:, None, None] * 0.1
    features[:, 0, 4:6] = 0.0
    features[:, :, 6:] = features[:, :1, 6:]
    scaled = features * np.array([*[1.0] * 6, *[1000.0] * 3])
    settings = dataclasses.replace(SETTINGS.linear_probe, layer_norm=layer_norm, max_iter=200)
    scores = []
    for features_NLD in (features, scaled):
        stored = StoredFeatures.wrap(features_NLD, static_size=3)
        probe = fit_linear_probe(stored, labels, tiny.label_answer(2), settings, seed=0)
        scores.append(probe(stored))
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-3)
    scores_without_static = fit_linear_probe(
        features[..., :6], labels, tiny.label_answer(2), settings, seed=0
    )(features[..., :6])
    assert np.abs(scores[0] - scores_without_static).max() > 0.1, "otherwise the test shows nothing"


def save_changed_checkpoint(name: str, folder: Path) -> Checkpoint:
    """Save and load a checkpoint whose weights differ from its initial ones."""
    folder.mkdir()
    changed_model = tiny.model(name)
    with torch.no_grad():
        for number, parameter in enumerate(changed_model.parameters()):
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)),
                alpha=0.2,
            )
    tiny.checkpoint(name).save(folder, changed_model)
    return Checkpoint.load(folder)


def test_random_init_keeps_the_trained_static_vectors_and_changes_only_the_rest(
    tmp_path: Path,
) -> None:
    context = build_eval_context("text_classification")
    assert context.static_context is not None
    static_context = dataclasses.replace(
        context.static_context, checkpoint=save_changed_checkpoint("word2vec", tmp_path / "static")
    )
    saved_context = dataclasses.replace(
        context,
        checkpoint=save_changed_checkpoint("bert", tmp_path / "bert"),
        static_context=static_context,
    )
    trained = EncoderUnderTest(saved_context, "pretrained")
    random_init = EncoderUnderTest(saved_context, "random")
    for trained_features, random_features in (
        (
            tiny.stored_features(trained)["train"].stored,
            tiny.stored_features(random_init)["train"].stored,
        ),
        *(
            (trained_layers[0][1:-1], random_layers[0][1:-1])
            for trained_layers, random_layers in zip(
                tiny.cached_features(trained)["train"].layers,
                tiny.cached_features(random_init)["train"].layers,
                strict=True,
            )
        ),
    ):
        assert np.array_equal(trained_features[..., -S:], random_features[..., -S:])
        assert trained_features[..., -S:].any()
        assert not np.isclose(trained_features[..., :-S], random_features[..., :-S]).all(-1).any()
    trained_vectors, untrained_vectors = (
        encoder.build_extractor().compute("train", slice(None), SETTINGS.linear_probe.features)[
            :, :1, -S:
        ]
        for encoder in (trained, EncoderUnderTest(static_context, "random"))
    )
    assert not np.isclose(trained_vectors, untrained_vectors).all(-1).any(), (
        "otherwise the test shows nothing"
    )


@pytest.mark.usefixtures("without_weights")
@pytest.mark.parametrize("failing_part", ["", "static", "contextual"])
def test_rows_name_both_models_add_their_text_bytes_and_report_failures(
    failing_part: str, tmp_path: Path
) -> None:
    task_info = TaskInfo(name="x", kind="text_classification", labels=["a", "b"], metric=["accuracy"], language="en", probes=["linear", "bilstm"])  # fmt: skip
    table = TABLES["text_classification"].assign(id=[f"train-{i}" for i in range(12)], group="all")
    task = TaskData(task_info, {"train": table, "validation": table, "test": table})
    context = dataclasses.replace(
        build_eval_context("text_classification"),
        task=task,
        failure_reason="the loss is nan" if failing_part == "contextual" else "",
    )
    assert context.static_context is not None
    static_context = dataclasses.replace(
        context.static_context,
        task=task,
        failure_reason="no words" if failing_part == "static" else "",
    )
    runs = [*tiny.list_runs(task_info, ("pretrained", "random"), ("all",), (0,), finetuned=False)]
    rows, predictions, *_ = tiny.evaluate_runs(
        dataclasses.replace(context, static_context=static_context), runs, tmp_path
    )
    assert {(row.model, row.family, row.transfer) for row in rows} == {
        ("bert + word2vec", "joined", "frozen")
    }
    assert {row.head for row in rows} == {"linear", "bilstm"}
    assert {row.init: row.text_bytes for row in rows} == {"pretrained": 5300, "random": 300}
    failed = {(row.init, format_notes(row.reason)) for row in rows if row.status == "failed"}
    expected_failures = {
        "": set(),
        "static": {("pretrained", "word2vec: no words"), ("random", "word2vec: no words")},
        "contextual": {("pretrained", "the loss is nan")},
    }
    assert failed == expected_failures[failing_part]
    assert len(predictions) == {"": 96, "static": 0, "contextual": 48}[failing_part]
