"""Public checkpoints give the tokens, layers and scores that transformers gives."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")

import transformers

from benchmarks.starts import embedding_matrices, rescale_embeddings, root_mean_square
from lineage.errors import EvaluationError, InputError
from lineage.families import public as family
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.public_folders import inspect_checkpoint
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.samplers import iterate_batches
from tests.helpers import tiny
from tests.helpers.public_checkpoints import (
    CAUSAL_KINDS,
    CONTINUED,
    DISCRIMINATORS,
    KINDS,
    MASKED_LM_KINDS,
    POSITIONS,
    TEXTS,
    assert_close,
    build_batch,
    build_hf_model,
    load_public,
    replace_tensors,
    save_checkpoint,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("public")
    return {kind: save_checkpoint(kind, home / kind) for kind in KINDS}


@pytest.mark.parametrize(
    ("length", "positions", "expected"),
    [(None, 61, 61), (None, 512, 128), (24, 512, 24), (200, 512, 200)],
)
def test_the_sequence_length_is_the_given_one_or_a_default_within_the_positions(
    length: int | None, positions: int, expected: int
) -> None:
    assert (
        family.ContinuedPretrainSettings(batch_size=5, seq_len=length)
        .with_default_seq_len(positions)
        .seq_len
        == expected
    )


@pytest.mark.parametrize("kind", KINDS)
def test_layer_outputs_equal_those_of_automodel(kind: str, folders: dict[str, Path]) -> None:
    model, checkpoint = load_public(folders[kind])
    assert not model.training
    automodel = transformers.AutoModel.from_pretrained(folders[kind], local_files_only=True).eval()
    for text in TEXTS:
        batch = build_batch(checkpoint.tokenizer, [text])
        expected = automodel(input_ids=batch.ids_BT, output_hidden_states=True)
        layers = model.encode(batch)
        assert len(layers) == 3 == len(model.hidden_sizes())
        assert {actual_layer.shape[-1] for actual_layer in layers} == {*model.hidden_sizes()}
        for actual_layer, expected_layer in zip(layers, expected.hidden_states, strict=True):
            assert_close(actual_layer, expected_layer)
        assert_close(layers[-1], expected.last_hidden_state)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_batch_order_do_not_change_the_outputs(
    kind: str, folders: dict[str, Path]
) -> None:
    model, checkpoint = load_public(folders[kind])
    batched, reversed_batch = (
        model.encode(build_batch(checkpoint.tokenizer, texts)) for texts in (TEXTS, TEXTS[::-1])
    )
    pooled = model.pool(batched, build_batch(checkpoint.tokenizer, TEXTS))
    for row, text in enumerate(TEXTS):
        batch = build_batch(checkpoint.tokenizer, [text])
        unbatched = model.encode(batch)
        T = batch.ids_BT.shape[1]
        for unbatched_layer, batched_layer, reversed_layer in zip(
            unbatched, batched, reversed_batch, strict=True
        ):
            assert_close(unbatched_layer[0], batched_layer[row, :T])
            assert_close(unbatched_layer[0], reversed_layer[len(TEXTS) - 1 - row, :T])
        assert_close(model.pool(unbatched, batch)[0], pooled[row])


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids_and_special_tokens_equal_those_of_autotokenizer(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = load_public_tokenizer(folders[kind], language="en")
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(folders[kind], local_files_only=True)
    # GPT-2 was trained with this token between texts; without it, the first token has no probability.
    bos_ids = [0] if kind == "gpt2" else []
    tokenizer.save(tmp_path)
    for loaded in (tokenizer, Tokenizer.load(tmp_path)):
        for text in [*TEXTS, "a [MASK] <mask>  that   is text"]:
            if "MASK" not in text:
                assert loaded.encode(text).ids.tolist() == bos_ids + hf_tokenizer(text)["input_ids"]
            encoded = loaded.encode(text)
            mask_id = loaded.special_token_template.mask_token_id
            # The words of DeBERTa's unigram model contain its special tokens.
            assert kind == "deberta" or mask_id not in encoded.ids.tolist(), (
                "a special token written in a text is plain text"
            )
            for start, end in encoded.offsets[encoded.offsets[:, 1] > 0]:
                assert 0 <= start < end <= len(text)
        (pair,) = encode_pairs(loaded, TEXTS[:1], TEXTS[1:2])
        expected = hf_tokenizer(TEXTS[0], TEXTS[1])
        if kind not in CAUSAL_KINDS:
            assert pair.ids.tolist() == expected["input_ids"]
            assert (pair.token_type_ids[0], pair.token_type_ids[-1]) == (0, 1)
        for limit in (9, 12):
            (truncated,) = encode_pairs(loaded, TEXTS[2:], TEXTS[2:], max_length=limit)
            assert len(truncated.ids) == limit
            assert truncated.truncated
            if loaded.special_token_template.suffix:
                assert truncated.ids[-1] == pair.ids[-1]
            assert len(loaded.encode(TEXTS[2], max_length=limit).ids) == limit


def test_a_text_without_known_tokens_is_one_padding_token(folders: dict[str, Path]) -> None:
    tokenizer = load_public_tokenizer(folders["gpt1"], language="en")
    encoded = tokenizer.encode("​ ")
    assert encoded.ids.tolist() == [tokenizer.pad_token_id] and encoded.offsets.tolist() == [[0, 0]]


@pytest.mark.parametrize("kind", CAUSAL_KINDS)
def test_a_causal_model_scores_sentences_by_log_probability(
    kind: str, folders: dict[str, Path]
) -> None:
    model, checkpoint = load_public(folders[kind])
    hf_model = build_hf_model(kind)
    expected = []
    for text in TEXTS:
        ids = torch.from_numpy(checkpoint.tokenizer.encode(text).ids)[None]
        logits = hf_model(input_ids=ids).logits[:, :-1]
        expected.append(-F.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item())
    np.testing.assert_allclose(
        family.public_scores(model, checkpoint.tokenizer, TEXTS, limit=POSITIONS)[:, 0],
        expected,
        rtol=1e-4,
    )


@pytest.mark.parametrize("kind", MASKED_LM_KINDS)
def test_a_masked_model_scores_sentences_by_pseudo_log_likelihood(
    kind: str, folders: dict[str, Path]
) -> None:
    model, checkpoint = load_public(folders[kind])
    hf_model = build_hf_model(kind)
    tokenizer = checkpoint.tokenizer
    expected = []
    for text in TEXTS:
        ids = torch.from_numpy(tokenizer.encode(text).ids)
        total = 0.0
        for position in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[position] = tokenizer.special_token_template.mask_token_id
            out = hf_model(input_ids=masked[None])
            logits = out.prediction_logits if kind in ("bert", "albert") else out.logits
            total += logits[0, position].log_softmax(-1)[ids[position]].item()
        expected.append(total)
    np.testing.assert_allclose(
        family.public_scores(model, tokenizer, TEXTS, limit=POSITIONS)[:, 0], expected, rtol=1e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_vector_is_the_models_own_or_the_mean(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    model, checkpoint = load_public(folders[kind])
    batch = build_batch(checkpoint.tokenizer, TEXTS)
    pooled = model.pool(model.encode(batch), batch)
    layers = model.encode(batch)
    if kind in ("bert", "albert"):
        body = getattr(build_hf_model(kind), kind)
        expected = body(batch.ids_BT, attention_mask=batch.mask_BT.long()).pooler_output
    else:
        positions = [0] * 3
        if kind in CAUSAL_KINDS:
            positions = [len(checkpoint.tokenizer.encode(text).ids) - 1 for text in TEXTS]
        expected = torch.stack(
            [layers[-1][row, position] for row, position in enumerate(positions)]
        )
    assert_close(pooled, expected)
    mean = torch.stack([layers[-1][row][batch.mask_BT[row]].mean(0) for row in range(3)])
    assert_close(load_public(folders[kind], pooling="mean")[0].pool(layers, batch), mean)


def test_a_sentence_encoder_pools_as_its_folder_configures(tmp_path: Path) -> None:
    body = build_hf_model("bert").bert
    folder = save_checkpoint("bert", tmp_path / "sentences", model=body)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(
        '{"word_embedding_dimension": 16, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}'
    )
    model, checkpoint = load_public(folder)
    assert model.checkpoint_info.pooling == "mean"
    assert not model.checkpoint_info.has_lm_head
    assert model.checkpoint_info.has_pooler
    assert not checkpoint.family.can_answer("sentence_probability", checkpoint.architecture)
    pooler = {id(p) for p in model.hf_model.pooler.parameters()}
    assert not pooler & {id(p) for group in model.layer_groups() for p in group}, (
        "the pooler is not used"
    )
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_weightedmean_tokens": true}')
    with pytest.raises(InputError, match="pools by weightedmean_tokens"):
        inspect_checkpoint(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_checkpoint_loads_unchanged_and_its_random_baseline_is_reproducible(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    model, checkpoint = load_public(folders[kind])
    checkpoint.save(tmp_path, model)
    loaded = Checkpoint.load(tmp_path)
    rng_state = torch.get_rng_state()
    batch = build_batch(loaded.tokenizer, TEXTS)
    assert loaded.architecture == checkpoint.architecture
    for x, y in zip(model.encode(batch), loaded.build(tiny.CPU).eval().encode(batch), strict=True):
        assert torch.equal(x, y)
    baselines = [
        dataclasses.replace(loaded, seed=seed).build(tiny.CPU, load_weights=False).eval()
        for seed in (3, 3, 4)
    ]
    first, same_seed, other_seed = ([*baseline.parameters()] for baseline in baselines)
    assert all(torch.equal(a, b) for a, b in zip(first, same_seed, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other_seed, strict=True))
    assert all(torch.isfinite(p).all() for p in first)
    assert [p.shape for p in first] == [p.shape for p in model.parameters()]
    assert not torch.allclose(baselines[0].encode(batch)[-1], model.encode(batch)[-1]), (
        "the baseline does not have the pretrained weights"
    )
    assert torch.equal(rng_state, torch.get_rng_state())
    hf_parameters = dict(build_hf_model(kind, seed=9).named_parameters())
    for name, value in baselines[0].tensor_views().items():  # type: ignore[operator]
        if (
            value.dim() > 1
            and value.numel() > 200
            and name in hf_parameters
            and not (kind == "gpt1" and ".h." in name)
        ):  # transformers initializes these with 0.02
            assert abs(value.std() / hf_parameters[name].std() - 1) < 0.3, name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefix", [2, 297]),
        ("separator", [10**6]),
        ("suffix", [297]),
        ("pad_token_id", 297),
        ("mask_token_id", 297),
    ],
)
def test_a_special_token_outside_the_vocabulary_is_refused_with_its_key(
    key: str, value: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    model, checkpoint = load_public(folders["bert"])
    checkpoint.save(tmp_path, model)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            config | {"special_token_template": config["special_token_template"] | {key: value}}
        )
    )
    with pytest.raises(
        InputError,
        match=rf"{tmp_path}/tokenizer_config\.json: special_token_template\.{key}: its ids go up to \d+, and the model has 297 rows",
    ):
        Checkpoint.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_in_one_group_and_a_batch_can_be_overfitted(
    kind: str, folders: dict[str, Path]
) -> None:
    _, checkpoint = load_public(folders[kind])
    checkpoint = dataclasses.replace(
        checkpoint,
        architecture=dataclasses.replace(checkpoint.architecture, dropout=0.0),
        weights_path=folders[kind] / "unread",
    )
    model = checkpoint.build(tiny.CPU, load_weights=False).train()
    groups = [p for group in model.layer_groups() for p in group]
    modules = model.modules_by_role()
    heads = {id(p) for p in modules["head"].parameters()} if "head" in modules else set()
    # The two layers of ALBERT share their weights.
    assert len(model.layer_groups()) == (2 if kind == "albert" else 3)
    assert len({id(p) for p in groups}) == len(groups)
    assert {id(p) for p in model.parameters()} - {id(p) for p in groups} <= heads
    num_by_role = sum(sum(p.numel() for p in part.parameters()) for part in modules.values())
    assert num_by_role == sum(p.numel() for p in model.parameters())
    if kind in DISCRIMINATORS:
        return
    tokens = encode_corpus(tiny.documents(), checkpoint.tokenizer)
    batch = next(
        iterate_batches(family.build_batch_sampler(tokens, checkpoint.tokenizer, CONTINUED, seed=1))
    )[2]
    assert batch.ids_BT.shape == (5, 23) and batch.text_bytes > 0
    optimizer = build_adamw(
        build_param_groups([[*model.parameters()]], weight_decay=0.0),
        betas=(0.9, 0.98),
        epsilon=1e-8,
    )
    losses = []
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for _ in range(80):
        out = family.pretraining_loss(model, batch)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(out.loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert {*out.nats} == ({"causal"} if kind.startswith("gpt") else {"masked"})


def test_a_text_of_one_token_is_too_short_for_a_batch(folders: dict[str, Path]) -> None:
    tokenizer = load_public_tokenizer(folders["gpt1"], language="en")
    tokens = dataclasses.replace(
        encode_corpus(tiny.documents()[:1], tokenizer), ids=np.array([5]), byte_counts=np.array([2])
    )
    with pytest.raises(EvaluationError, match="too short for a single batch"):
        next(iterate_batches(family.build_batch_sampler(tokens, tokenizer, CONTINUED, seed=1)))


def test_rescaling_keeps_embedding_matrices_of_zeros(folders: dict[str, Path]) -> None:
    """RoBERTa's segment embedding is one row of zeros."""
    (model, checkpoint) = load_public(folders["roberta"])
    (zeros, _) = load_public(folders["roberta"])
    for one in (model, zeros):
        one.hf_model.embeddings.token_type_embeddings.weight.data.zero_()
    baseline = dataclasses.replace(checkpoint, weights_path=folders["roberta"] / "unread").build(
        tiny.CPU, load_weights=False
    )
    rescale_embeddings(model, baseline)
    model_scales, baseline_scales, zeros_scales = (
        [*map(root_mean_square, embedding_matrices(encoder))]
        for encoder in (model, baseline, zeros)
    )
    assert model_scales.count(0.0) == zeros_scales.count(0.0) == 1
    assert not all(map(torch.equal, embedding_matrices(model), embedding_matrices(zeros)))
    for actual, expected in zip(model_scales, baseline_scales, strict=True):
        assert actual == 0 or actual == pytest.approx(expected)


def test_continued_pretraining_reads_all_text_between_special_tokens(
    folders: dict[str, Path],
) -> None:
    tokenizer = load_public_tokenizer(folders["roberta"], language="en")
    tokens = encode_corpus(tiny.documents(), tokenizer)
    batches = [
        batch
        for _, _, batch in iterate_batches(
            family.build_batch_sampler(tokens, tokenizer, CONTINUED, seed=1)
        )
    ]
    assert sum(len(batch.ids_BT) for batch in batches) == len(tokens.ids) // 21
    assert {(row[0].item(), row[-1].item()) for batch in batches for row in batch.ids_BT} == {
        (0, 2)
    }
    masked_share = sum(len(batch.target_positions()) for batch in batches) / sum(
        batch.num_tokens for batch in batches
    )
    assert abs(masked_share - 0.15) < 0.03
    assert tokens.text_bytes == sum(len(text.encode()) for text in tiny.documents())
    causal = load_public_tokenizer(folders["gpt2"], language="en")
    assert (encode_corpus(tiny.documents(), causal).ids == 0).sum() == len(tiny.documents()), (
        "its BOS token stands before each document"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_without_heads_and_with_old_tensor_names_is_read(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """The Hub has gpt2 and bert-base-uncased in this form."""
    hf_model = build_hf_model(kind)
    body = getattr(hf_model, hf_model.base_model_prefix)
    folder = save_checkpoint(kind, tmp_path, model=body)
    if kind == "bert":
        tensors = {f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value.clone()
                   for name, value in body.state_dict().items()}  # fmt: skip
        replace_tensors(folder, dict.fromkeys(body.state_dict()) | tensors)
    model, checkpoint = load_public(folder)
    batch = build_batch(checkpoint.tokenizer, TEXTS)
    assert_close(model.encode(batch)[-1], load_public(folders[kind])[0].encode(batch)[-1])
    assert model.checkpoint_info.has_lm_head == kind.startswith("gpt")
