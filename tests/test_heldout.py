"""A model and counting predict the same tokens of held-out text."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lineage.artifacts import create_artifact, read_json
from lineage.evaluation import heldout
from lineage.evaluation.heldout import HeldoutText, cut_into_blocks
from lineage.evaluation.kneser_ney import KneserNey, fit_kneser_ney
from lineage.evaluation.ngram_bits import read_ngram_file
from lineage.evaluation.token_counts import CountedTokens, TokenCounts
from lineage.networks.base import LanguageModelFamily
from lineage.networks.batch import Batch
from lineage.networks.checkpoint import Checkpoint
from lineage.training.loop import validate
from lineage.training.train_run import ALL_BATCHES
from tests.helpers import tiny
from tests.helpers.user_project import RunStage, make_project, write_params

NEXT_TOKENS = ("elmo", "gpt", "gpt_bert", "gpt_modern", "taglm", "ulmfit")
MASKED_TOKENS = ("bert", "bert_modern", "masked_transformer", "masked_lstm")


def open_text(name: str, **overrides: Any) -> HeldoutText:
    """Return the documents as the held-out text of a tiny model."""
    text = HeldoutText.of(tiny.checkpoint(name, **overrides), tiny.corpus(name))
    assert text is not None
    return text


def list_batches(text: HeldoutText) -> list[Batch]:
    return [batch for sampler in text.samplers for batch in heldout._batches(sampler)]


def one_nat_for_each_token(vocab_size: int) -> Any:
    """Return counts with which nats count the predicted tokens."""

    def log_probs(
        ids_N: np.ndarray, is_start_N: np.ndarray, *, predicts_starts: bool
    ) -> np.ndarray:
        return np.where(is_start_N & (not predicts_starts), 0.0, -1.0)

    return SimpleNamespace(
        forward=SimpleNamespace(log_probs=log_probs),
        masked_distributions=lambda ids, is_masked, is_text: np.full(
            (is_masked.sum(), vocab_size), np.exp(-1)
        ),
        frequencies_V=np.full(vocab_size, np.exp(-1)),
    )


@pytest.mark.parametrize("name", [*NEXT_TOKENS, *MASKED_TOKENS])
def test_counting_predicts_as_many_tokens_of_each_block_as_the_model(name: str) -> None:
    text = open_text(name)
    family = tiny.model_config(name).family
    assert isinstance(family, LanguageModelFamily)
    is_masked = text.predicted == "masked tokens"
    assert is_masked == (name in MASKED_TOKENS)
    counts = one_nat_for_each_token(tiny.tokenizer(name).vocab_size)
    model = tiny.model(name)
    for counted, sampler in zip(text.measure_counting(counts), text.samplers, strict=True):
        sums = validate(model, family.objective, sampler, max_batches=ALL_BATCHES, precision="fp32")
        (loss_name,) = [one for one in text._loss_names(sampler) if one in sums.nats]
        assert counted.ngram_nats == pytest.approx(sums.target_counts[loss_name])
        if is_masked:
            assert counted.num_units == sums.target_counts["masked"]
            assert counted.frequency_nats == pytest.approx(counted.num_units)
        else:
            assert counted.num_units == sums.text_bytes


def test_other_models_are_not_compared() -> None:
    others = {*tiny.FAMILIES} - {*NEXT_TOKENS, *MASKED_TOKENS}
    for name in others:
        text = HeldoutText.of(tiny.checkpoint(name), tiny.corpus(name))
        if text is not None:  # BERT that reads in one direction has no loss of masked tokens
            assert name in tiny.CELLS
            checkpoint = tiny.checkpoint(name)
            assert text.measure_model(with_weights(checkpoint)) is None, name


def with_weights(checkpoint: Checkpoint) -> Any:
    """Return a checkpoint whose trained model is the untrained one."""
    build = checkpoint.build
    return SimpleNamespace(
        family=checkpoint.family, build=lambda device: build(device, load_weights=False)
    )


def test_a_models_nats_are_those_of_its_softmax_on_the_block() -> None:
    text = open_text("gpt")
    checkpoint = tiny.checkpoint("gpt")
    found = text.measure_model(with_weights(checkpoint))
    assert found is not None
    model = checkpoint.build(torch.device("cpu"), load_weights=False).eval()
    corpus = tiny.corpus("gpt")
    blocks = cut_into_blocks(corpus, seq_len=13)
    assert len(found) == len(blocks) > 10
    ids = torch.from_numpy(blocks[7].ids.astype(np.int64))
    nats = 0.0
    for start in range(0, 13 * ((len(ids) - 1) // 13), 13):
        window = ids[None, start : start + 14]
        with torch.no_grad():
            top_BTD = model.encode(Batch(window[:, :-1], torch.ones(1, 13, dtype=torch.bool)))[-1]
            logits_TV = model.logits(top_BTD[0])
        nats += float(F.cross_entropy(logits_TV, window[0, 1:], reduction="sum"))
    assert found[7] == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert_modern", {"mlm_probability": 0.3}),
        ("gpt_bert", {"objective": "causal_then_masked", "mlm_probability": 0.3}),
    ],
)
def test_masked_tokens_are_hidden_and_are_those_of_the_text(
    name: str, settings: dict[str, Any]
) -> None:
    """Some models predict a masked token at the position before it."""
    text = open_text(name, pretrain=settings)
    mask_id = tiny.tokenizer(name).special_token_template.mask_token_id
    seen: list[np.ndarray] = []

    def remember(ids_BT: np.ndarray, is_masked_BT: np.ndarray, _: np.ndarray) -> np.ndarray:
        seen.append(is_masked_BT)
        return np.ones((is_masked_BT.sum(), tiny.tokenizer(name).vocab_size))

    counts: Any = SimpleNamespace(
        masked_distributions=remember,
        frequencies_V=np.exp(-np.arange(tiny.tokenizer(name).vocab_size, dtype=float)),
    )
    block = text.samplers[3]
    counted = heldout._count_masked_tokens(block, counts, int(mask_id or 0))
    original_ids = 0
    for index, is_masked_BT in enumerate(seen):
        block.set_epoch(0)
        batch = block.read_windows(index)  # type: ignore[attr-defined]
        original_ids += int(batch.ids_BT.numpy()[is_masked_BT].sum())
    assert counted.frequency_nats == pytest.approx(original_ids)
    share = sum(one.sum() for one in seen) / sum(one.size for one in seen)
    assert 0.25 < share < 0.35


def enumerate_both_sides(
    counts: TokenCounts, ids: list[int], is_context: list[bool], place: int
) -> np.ndarray:
    """Return the distribution at a place from the definition, one token at a time."""

    def predict(ngrams: KneserNey, context: list[int]) -> np.ndarray:
        if not context:
            return counts.frequencies_V
        found = []
        for token in range(len(counts.frequencies_V)):
            sequence = np.array([*context, token])
            is_start = np.arange(len(sequence)) == 0
            found.append(np.exp(ngrams.log_probs(sequence, is_start)[-1]))
        return np.array(found)

    left: list[int] = []
    for before in range(place - 1, -1, -1):
        if not is_context[before]:
            break
        left.insert(0, ids[before])
    right: list[int] = []
    for after in range(place + 1, len(ids)):
        if not is_context[after]:
            break
        right.insert(0, ids[after])
    assert counts.backward is not None
    joint = predict(counts.forward, left) * predict(counts.backward, right) / counts.frequencies_V
    return np.asarray(joint / joint.sum())


def test_both_sides_together_are_the_product_over_the_vocabulary() -> None:
    rng = np.random.default_rng(5)
    vocab_size, boundary, mask = 11, 0, 1
    train = np.minimum(rng.zipf(1.3, 3000) + 1, vocab_size - 1)
    train[1::3] = (train[::3] * 3 + train[2::3]) % 9 + 2  # neighbours tell something
    counts = TokenCounts(
        fit_kneser_ney(train, vocab_size=vocab_size, boundary_id=boundary),
        fit_kneser_ney(train[::-1], vocab_size=vocab_size, boundary_id=boundary),
        np.bincount(train, minlength=vocab_size) / len(train) + 1e-3,
        train_bytes=1,
    )
    ids = rng.integers(2, vocab_size, (13, 17))
    is_text = rng.random(ids.shape) < 0.95
    is_masked = is_text & (rng.random(ids.shape) < 0.25)
    found = counts.masked_distributions(np.where(is_masked, mask, ids), is_masked, is_text)
    assert found.shape == (is_masked.sum(), vocab_size)
    is_context = is_text & ~is_masked
    expected = [
        enumerate_both_sides(counts, ids[row].tolist(), is_context[row].tolist(), place)
        for row, place in zip(*np.nonzero(is_masked), strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_both_sides_predict_masked_tokens_better_than_one_and_than_frequencies(
    tmp_path: Path,
) -> None:
    """Half of the text is counted, and the other half predicted."""
    tokens_dir = tmp_path / "tokens"
    tokens_dir.mkdir()
    tiny.tokenizer("bert").save(tokens_dir)
    corpus = tiny.corpus("bert")
    corpus.save(tokens_dir, "train")
    counted = CountedTokens(np.arange(30))
    counts = counted.load(tokens_dir, both_sides=True)
    assert counted.load(tokens_dir, both_sides=False) is counts, "equal tokens are counted once"
    assert counts.train_bytes == corpus.byte_counts[: corpus.document_starts[30]].sum()
    held_out = heldout._slice_corpus(corpus, int(corpus.document_starts[30]), len(corpus.ids))
    text = HeldoutText.of(tiny.checkpoint("bert"), held_out)
    assert text is not None
    both = text.measure_counting(counts)
    left_only = dataclasses.replace(counts, backward=flat_model(counts))
    left = text.measure_counting(left_only)
    assert sum(one.num_units for one in both) > 500

    def total(found: list[heldout.BlockCounts], name: str) -> float:
        return float(sum(getattr(one, name) for one in found))

    assert total(both, "ngram_nats") < total(left, "ngram_nats") < total(both, "frequency_nats")


def flat_model(counts: TokenCounts) -> KneserNey:
    """Return a model that knows the frequencies alone."""
    return dataclasses.replace(counts.forward, unigrams_V=counts.frequencies_V, orders=())


def test_blocks_are_consecutive_and_spread_over_a_long_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = tiny.corpus("gpt")
    blocks = cut_into_blocks(corpus, seq_len=13)
    np.testing.assert_array_equal(np.concatenate([one.ids for one in blocks]), corpus.ids)
    assert sum(one.text_bytes for one in blocks) == corpus.text_bytes
    assert all(one.document_starts[-1] == len(one.ids) for one in blocks)
    by_document = cut_into_blocks(corpus, seq_len=2000)
    starts = np.cumsum([0, *(len(one.ids) for one in by_document)])
    assert len(by_document) == 10 and {*starts} <= {*corpus.document_starts}
    monkeypatch.setattr(heldout, "MAX_HELDOUT_BYTES", corpus.text_bytes // 3)
    some = cut_into_blocks(corpus, seq_len=13)
    assert len(some) == 100
    assert sum(one.text_bytes for one in some) == pytest.approx(corpus.text_bytes / 3, rel=0.1)
    assert {one.sentence_starts[0] for one in some} == {0}
    np.testing.assert_array_equal(some[0].ids, corpus.ids[: len(some[0].ids)])
    np.testing.assert_array_equal(some[-1].ids, corpus.ids[-len(some[-1].ids) :])


def test_a_carried_state_has_few_long_rows() -> None:
    """A row begins with a state of zeros."""
    for seq_len in (7, 150):
        text = open_text("ulmfit", pretrain={"batch_size": 64, "seq_len": seq_len})
        for sampler in prepare(text):
            num_rows, length = sampler.rows.ids_BL.shape
            assert num_rows == 1 or length >= 500, (num_rows, length)


def prepare(text: HeldoutText) -> list[Any]:
    """Return the samplers at the beginning of their epoch."""
    for sampler in text.samplers:
        sampler.set_epoch(0)
    return [*text.samplers]


def test_the_stages_compare_each_pretraining_with_counting(
    tmp_path: Path, run_stage: RunStage
) -> None:
    """GPT is pretrained twice, and one of two pretrainings of BERT has failed."""
    tree = make_project(tmp_path)
    small = {"architecture": {"num_layers": 1, "num_heads": 2}, "tokenizer": {"vocab_size": 400}}
    tree["models"] = {"gpt": small, "bert": small}
    tree["budget"] |= {"text_bytes": 20_000, "body_parameters": 20_000}
    tree["grid"] |= {"models": ["gpt", "bert"], "pretrain_seeds": [0, 1]}
    write_params(tmp_path, tree)
    commands = ["sources", "corpus general", "task mood"]
    for name in ("gpt", "bert"):
        commands += [f"tokenizer {name}", f"recipe {name}"]
        commands += [f"pretrain {name} {seed}" for seed in (0, 1)]
    for command in commands:
        assert run_stage(tmp_path, *command.split())[0] == 0, command
    spoil_pretraining(tmp_path / "artifacts/pretrained/bert/1")
    assert run_stage(tmp_path, "ngram")[0] == 0
    found = read_ngram_file(tmp_path / "artifacts/results/ngram/ngram.json")
    assert [one.model for one in found.models] == ["kneser_ney"]
    gpt, bert = found.heldout
    assert (gpt.model, gpt.predicted, len(gpt.model_nats)) == ("gpt", "next tokens", 2)
    assert (bert.model, bert.predicted, len(bert.model_nats)) == ("bert", "masked tokens", 1)
    valid_bytes = read_json(tmp_path / "artifacts/corpora/general/counts.json")["bytes"]["valid"]
    assert 0.5 * valid_bytes < sum(gpt.num_units) <= valid_bytes
    assert gpt.frequency_bits is None and 1 < gpt.ngram_bits < gpt.model_bits < 8
    assert bert.frequency_bits is not None and bert.ngram_bits < bert.frequency_bits
    work = read_json(tmp_path / ".lineage/metadata/ngram.json")["work"]
    assert {one["part"] for one in work if one["seconds"] > 0} == {
        "budget",
        "held-out text of gpt",
        "held-out text of bert",
    }


def spoil_pretraining(folder: Path) -> None:
    """Make a pretraining one that has failed."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    with create_artifact(folder, "model", status="failed", reason="it diverged") as draft:
        for name, content in files.items():
            if name != "manifest.json":
                (draft / name).write_bytes(content)
