"""Frozen features are stored in float16, within a limit of memory, and heads hardly notice."""

import dataclasses
import errno
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.answers.base import ITEM_START
from lineage.answers.span import SpanAnswer
from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError
from lineage.methods import feature_store, linear_probe, stored_features
from lineage.methods.bilstm_probe import BilstmProbe
from lineage.methods.encoder import EncoderUnderTest, EvalContext
from lineage.methods.encoding import pool_words
from lineage.methods.feature_store import (
    FeatureScaling,
    allocate_features,
    mean_and_std,
    split_items,
    store_features,
)
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe
from lineage.methods.registry import EvaluateSettings
from lineage.methods.stored_features import StoredFeatures
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny
from tests.helpers.answer_cases import CASES, labelled_texts, tagged_sentences
from tests.helpers.fitting import cache_features

L, D = 3, 5
ROUNDING = 2.0**-11  # the largest relative error of float16
LINEAR = LinearProbeMethod(trials=(), l2=0.001, max_iter=60)


def outlier_features(num_rows: int, *, seed: int = 1) -> np.ndarray:
    """Return features (R, L, D) of very different means and scales; one is constant."""
    rng = np.random.default_rng(seed)
    means = np.array([0.0, 4000.0, -7.0, 0.0, 2.5])
    scales = np.array([1.0, 0.5, 1e6, 1e-5, 0.0])
    return (means + scales * rng.normal(size=(num_rows, L, D))).astype(np.float32)


def store(features: np.ndarray, **options: Any) -> StoredFeatures:
    stored, scaling = store_features([features], len(features), scaling=None, folder=None)
    return StoredFeatures(stored, scaling, **options)


def decode(features: StoredFeatures) -> np.ndarray:
    scaling = features.scaling
    return features.stored.astype(np.float64) * scaling.scale_LD + scaling.mean_LD


def test_features_with_large_means_or_scales_keep_the_precision_of_float16() -> None:
    features = outlier_features(300)
    stored = store(features)
    assert stored.stored.dtype == np.float16
    deviation = np.abs(features.astype(np.float64) - stored.scaling.mean_LD)
    # float32 features have a rounding error themselves.
    tolerance = ROUNDING * deviation + 1e-7 * np.abs(features) + 1e-7 * stored.scaling.scale_LD
    assert (np.abs(decode(stored) - features) <= tolerance).all()
    assert np.array_equal(decode(stored)[..., 4], features[..., 4]), "a constant stays exact"


def test_features_beyond_the_range_are_clipped_and_what_is_not_finite_stays_so() -> None:
    features = np.random.default_rng(2).normal(size=(40, L, D)).astype(np.float32)
    scaling = FeatureScaling.fit(features)
    odd = features[:4].copy()
    odd[:, 0, 0] = [1e30, -1e30, np.inf, np.nan]
    stored = np.zeros(odd.shape, np.float16)
    scaling.encode(odd, stored)
    assert stored[:, 0, 0].tolist()[:3] == [65504, -65504, np.inf]
    assert np.isnan(stored[3, 0, 0])
    assert np.isfinite(stored[:, 1:]).all()


def test_statistics_over_chunks_match_numpy_and_constants_have_no_deviation() -> None:
    features = outlier_features(101)
    chunks = [torch.from_numpy(part) for part in np.array_split(features, 7)]
    mean_LD, std_LD = mean_and_std([torch.zeros(0, L, D), *chunks])
    expected = features.astype(np.float64)
    np.testing.assert_allclose(mean_LD, expected.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(std_LD, expected.std(0), rtol=1e-9, atol=0)
    assert not std_LD[:, 4].any()
    assert not np.any(mean_and_std([torch.zeros(0, L, D)])), "without rows"


@pytest.mark.parametrize("can_reserve", [True, False])
def test_many_features_are_kept_in_a_file_without_a_name(
    can_reserve: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_reserve:
        monkeypatch.delattr(feature_store.os, "posix_fallocate")
    monkeypatch.setattr(feature_store, "MAX_MEMORY_BYTES", 1000)
    small = allocate_features((100, 5), tmp_path)
    large = allocate_features((101, 5), tmp_path)
    assert not isinstance(small, np.memmap)
    assert isinstance(large, np.memmap)
    assert large.shape == (101, 5)
    assert not large.any()
    large[7] = 3.0
    assert large[7].tolist() == [3.0] * 5
    assert not [*tmp_path.iterdir()], "it is gone when the process is, however that ends"


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(feature_store, "MAX_MEMORY_BYTES", 1000)
    monkeypatch.setattr(feature_store.os, "posix_fallocate", fail)
    with pytest.raises(EvaluationError, match=r"need 3\.0 GB of disk in .*No space left"):
        allocate_features((1_500_000, 1000), tmp_path)


def build_context(table: pd.DataFrame, kind: str, *, width: int = 24) -> EvalContext:
    settings = EvaluateSettings(
        linear_probe=LINEAR,
        bilstm_probe=dataclasses.replace(tiny.BILSTM_PROBE, epochs=1),
        finetune=tiny.model_config("bert").evaluate.finetune,
    )
    data = TaskData(TaskInfo(name="x", kind=kind, language="en"), {"train": table})
    checkpoint = tiny.checkpoint("bert")
    architecture = dataclasses.replace(checkpoint.architecture, hidden_size=width)
    checkpoint = dataclasses.replace(checkpoint, architecture=architecture)
    return tiny.eval_context(checkpoint, data, settings)


@pytest.mark.parametrize("case", ["text_classification", "token_classification"])
def test_the_memory_of_features_and_probes_does_not_grow_with_the_table(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features of four times as many items go to a file, and take no more of numpy's memory."""
    monkeypatch.setattr(feature_store, "MAX_MEMORY_BYTES", 1 << 17)
    monkeypatch.setattr(feature_store, "CHUNK_BYTES", 1 << 17)
    monkeypatch.setattr(feature_store, "MAX_BATCH_POSITIONS", 256)
    monkeypatch.setattr(stored_features, "CHUNK_SIZE", 1 << 12)
    monkeypatch.setattr(linear_probe, "MAX_CONVERTED", 0)
    is_tags = case == "token_classification"
    _, answer = CASES["tags" if is_tags else case]
    few_steps = dataclasses.replace(LINEAR, max_iter=5)  # each reads all features
    peaks = []
    stored_bytes = []
    for count in (60, 240):
        table = tagged_sentences(count) if is_tags else labelled_texts(count)
        context = build_context(table, case, width=96)
        labels = answer.labels(table)
        assert len(context.items["train"]) == count  # they are encoded before memory is measured
        encoder = EncoderUnderTest(context, "random", scratch_dir=tmp_path)
        tracemalloc.start()
        features = tiny.cached_features(encoder)["train"]
        probe = BilstmProbe(answer, context.settings.bilstm_probe, features, seed=1)
        for first in range(0, count, 20):
            probe(features.make_batch(np.arange(first, first + 20)))
        linear_features = tiny.stored_features(encoder)["train"]
        one_tag_per_row = tiny.label_answer(2)
        fitted = fit_linear_probe(linear_features, labels, one_tag_per_row, few_steps, seed=0)
        fitted(linear_features)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        stored_bytes.append(sum(array.nbytes for arrays in features.layers for array in arrays))
        base = features.layers[0][0].base
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap) == (stored_bytes[-1] > 1 << 17)
    assert stored_bytes[1] > 3 * (1 << 17)
    assert peaks[1] - peaks[0] < 0.5 * (stored_bytes[1] - stored_bytes[0]), (peaks, stored_bytes)


def test_parts_have_about_the_same_bytes_and_cover_all_items() -> None:
    items = tiny.encode("bert", labelled_texts(50))
    positions = np.array([item.length for item in items])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_store, "MAX_BATCH_POSITIONS", 60)
        patch.setattr(feature_store, "CHUNK_BYTES", 8 * 100)
        parts = [*split_items(items, 8)]
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == 50
    sizes = [positions[part].sum() for part in parts]
    assert max(sizes) <= 100
    assert min(sizes[:-1]) > 100 - positions.max()


@pytest.mark.parametrize("case", ["text_classification", "token_classification"])
def test_stored_features_equal_those_computed_at_once_and_are_the_same_each_time(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They differ by the rounding, although the encoder reads the items in parts."""
    is_tags = case == "token_classification"
    context = build_context(tagged_sentences(60) if is_tags else labelled_texts(60), case)
    extractor = EncoderUnderTest(context, "random").build_extractor()
    expected = extractor.compute("train", slice(None), LINEAR.features)
    cached = extractor.compute_cached("train", slice(None), context.settings.bilstm_probe.features)
    monkeypatch.setattr(feature_store, "CHUNK_BYTES", 0)
    monkeypatch.setattr(feature_store, "MAX_BATCH_POSITIONS", 100)
    stored, again = (
        tiny.stored_features(EncoderUnderTest(context, "random"))["train"] for _ in range(2)
    )
    assert np.array_equal(stored.stored, again.stored)
    scale_LD = stored.scaling.scale_LD
    largest = np.abs(stored.stored).max(initial=1.0)
    assert (np.abs(decode(stored) - expected) <= (ROUNDING * largest + 1e-5) * scale_LD).all()
    stored_rows = tiny.cached_features(EncoderUnderTest(context, "random"))["train"]
    assert stored_rows.is_per_word == is_tags
    assert stored_rows.scaling is not None
    words = cached.pool_words() if is_tags else cached
    decoded = stored_rows.rows() * stored_rows.scaling.scale_LD + stored_rows.scaling.mean_LD
    error = np.abs(decoded - words.rows()) / stored_rows.scaling.scale_LD
    assert error.max() <= ROUNDING * np.abs(stored_rows.rows()).max() + 1e-5


def test_a_linear_probe_on_stored_features_predicts_as_on_float32() -> None:
    """The training items are 300, with half of a label's information in each of two features."""
    rng = np.random.default_rng(5)
    labels = rng.integers(3, size=900)
    features = outlier_features(900)
    for feature, scale in ((1, 0.5), (2, 1e6)):
        features[:, 0, feature] += (scale * (labels - 1)).astype(np.float32)
    train = slice(300)
    answer = tiny.label_answer(3)
    expected = fit_linear_probe(features[train], labels[train], answer, LINEAR, seed=0)(features)
    stored = store(features)
    probe = fit_linear_probe(stored.select(np.arange(300)), labels[train], answer, LINEAR, seed=0)
    actual = probe(stored)
    np.testing.assert_allclose(actual, expected, atol=1e-2)
    assert (actual.argmax(1) == expected.argmax(1)).mean() > 0.995
    assert (expected.argmax(1) == labels)[300:].mean() > 0.5, "there is something to learn"
    selected = probe(stored.select(np.array([7, 3, 600])))
    np.testing.assert_allclose(selected, actual[[7, 3, 600]], atol=1e-12)
    np.testing.assert_allclose(probe(features), actual, atol=1e-2)


def test_folding_the_standardizing_into_the_weights_changes_nothing() -> None:
    features = outlier_features(80)
    labels = np.arange(80) % 2
    probe = fit_linear_probe(features, labels, tiny.label_answer(2), LINEAR, seed=0)
    standardized = (features.astype(np.float64) - probe.standardizer.mean_LD) / (
        probe.standardizer.std_LD
    )
    mixed = probe.mix(torch.from_numpy(standardized).unbind(1))
    expected = mixed @ probe.weight_DK + probe.bias_K
    stored = StoredFeatures.wrap(features, static_size=0)
    actual = probe.scores(stored.chunk(slice(None)), stored.scaling)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_features_that_are_converted_in_each_pass_give_the_same_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = outlier_features(80)
    monkeypatch.setattr(stored_features, "CHUNK_SIZE", features[:30].size)
    weights = []
    for limit in (linear_probe.MAX_CONVERTED, 0):
        monkeypatch.setattr(linear_probe, "MAX_CONVERTED", limit)
        answer = tiny.label_answer(2)
        probe = fit_linear_probe(features, np.arange(80) % 2, answer, LINEAR, seed=0)
        weights.append(probe.weight_DK.detach())
    assert torch.equal(*weights)


def test_words_of_one_softmax_stay_in_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of 1 to 9 words are read in chunks of about four words."""
    rng = np.random.default_rng(8)
    lengths = rng.integers(1, 10, size=30)
    labels = []
    for length in lengths:
        labels_W = np.zeros(length, np.int64)
        labels_W[0] = ITEM_START
        labels_W[rng.integers(length)] += 6  # the first and the last word of the answer
        labels.append(labels_W)
    labels_M = np.concatenate(labels)
    features = rng.normal(size=(len(labels_M), L, D)).astype(np.float32)
    features[:, 1, 2] += labels_M > ITEM_START

    def fit_and_predict() -> np.ndarray:
        return fit_linear_probe(features, labels_M, SpanAnswer(), LINEAR, seed=0)(features)

    at_once = fit_and_predict()
    monkeypatch.setattr(stored_features, "CHUNK_SIZE", 4 * L * D)
    np.testing.assert_allclose(fit_and_predict(), at_once, atol=1e-5)
    ends = np.cumsum(lengths)
    chunks = [*StoredFeatures.wrap(features, static_size=0).chunks(ends)]
    assert len(chunks) > 10
    assert {chunk.stop for chunk in chunks} <= {*ends.tolist()}


@pytest.mark.parametrize("word_pooling", ["mean", "first", "last"])
def test_pooling_words_before_mixing_gives_what_pooling_after_it_gives(word_pooling: str) -> None:
    """Sentences are read in windows, and some words have no piece."""
    tokenizer = tiny.tokenizer("bert")
    table = tagged_sentences(40)
    table["tokens"] = [["\u200b", *tokens, "unbelievable"] for tokens in table["tokens"]]
    table["label"] = [[0, *tags, 1] for tags in table["label"]]
    items = tiny.encode("bert", table, max_length=9)
    assert max(len(item.encodings) for item in items) > 1
    assert sum(item.num_uncovered_words for item in items) == 40
    answer = CASES["tags"][1]
    pieces = dataclasses.replace(
        cache_features(tiny.model("bert"), tokenizer, items), word_pooling=word_pooling
    )
    words = pieces.pool_words()
    probe = BilstmProbe(answer, tiny.BILSTM_PROBE, words, seed=1).eval()
    indices = np.array([3, 0, 17, 20])
    batch = words.make_batch(indices)
    actual_NWD = probe._mix_layers(batch)
    by_piece = pieces.make_batch(indices)
    expected_MD = pool_words(pieces, probe._mix_layers(by_piece), by_piece)
    assert len(set(batch.mask_BT.sum(1).tolist())) > 1
    torch.testing.assert_close(actual_NWD[batch.mask_BT], expected_MD, atol=2e-6, rtol=1e-5)
    uncovered = ~batch.has_pieces_BT[batch.mask_BT]
    assert uncovered.sum() == 4
    assert not actual_NWD[batch.mask_BT][uncovered].any()


def test_a_bilstm_probe_scores_stored_features_as_float32() -> None:
    table = labelled_texts(40)
    context = build_context(table, "text_classification")
    encoder = EncoderUnderTest(context, "random")
    exact = encoder.build_extractor().compute_cached(
        "train", slice(None), context.settings.bilstm_probe.features
    )
    scores = []
    for features in (exact, tiny.cached_features(encoder)["train"]):
        for layer_norm in (False, True):
            settings = dataclasses.replace(tiny.BILSTM_PROBE, layer_norm=layer_norm)
            probe = BilstmProbe(tiny.label_answer(2), settings, features, seed=1).eval()
            scores.append(probe(features.make_batch(np.arange(40))).detach())
    for expected, actual in zip(scores[:2], scores[2:], strict=True):
        assert expected.std() > 1e-3
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_an_evaluation_with_features_in_files_gives_the_same_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tagged_sentences(30).assign(id=[f"train-{i}" for i in range(30)], group="all")
    context = build_context(table, "token_classification")
    info = dataclasses.replace(
        context.task.info, labels=["a", "b"], metric=["token_accuracy"], probes=["linear", "bilstm"]
    )
    splits = {"train": table, "validation": table[:10], "test": table[10:].reset_index(drop=True)}
    context = dataclasses.replace(context, task=TaskData(info, splits))
    runs = [*tiny.list_runs(context.task.info, ("random",), ("all",), (0,), method="_probe")]
    predictions = []
    for limit in (1 << 30, 0):
        monkeypatch.setattr(feature_store, "MAX_MEMORY_BYTES", limit)
        folder = tmp_path / str(limit)
        folder.mkdir()
        rows, table, *_ = tiny.evaluate_runs(context, runs, folder)
        assert {row.status for row in rows} == {"ok"}
        predictions.append(table)
    assert set(predictions[0]["head"]) == {"linear", "bilstm_crf"}
    pd.testing.assert_frame_equal(*predictions, check_exact=True)
