"""Public checkpoints are read as their authors intended, and no code of a folder is run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.methods.word_vectors import embed_words
from lineage.tasks.info import TaskInfo

pytest.importorskip("transformers")

import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors

from lineage.data.task_data import TaskData
from lineage.families import public as family
from lineage.methods.encoder import EncoderUnderTest
from lineage.methods.encoding import collate_items, encode_items
from lineage.methods.pooling import pool_features
from lineage.networks.public_tokenizer import load_public_tokenizer
from tests.helpers import tiny
from tests.helpers.public_checkpoints import (
    KINDS,
    TEXTS,
    assert_close,
    build_batch,
    build_hf_model,
    load_public,
    save_checkpoint,
)


def edit_json(folder: Path, file: str, **values: Any) -> Path:
    """Change values in one JSON file of the folder, and return the folder; None removes a key."""
    path = folder / file
    content = (json.loads(path.read_text()) if path.is_file() else {}) | values
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return folder


def test_a_sentence_encoder_that_pools_cls_uses_it_without_the_pooler(tmp_path: Path) -> None:
    """The pooler is not applied, although the checkpoint has one, as BERT does."""
    folder = edit_json(
        save_checkpoint("bert", tmp_path, model=build_hf_model("bert").bert),
        "1_Pooling/config.json",
        pooling_mode_cls_token=True,
    )
    model, checkpoint = load_public(folder)
    batch = build_batch(checkpoint.tokenizer, TEXTS)
    layers = model.encode(batch)
    assert model.checkpoint_info.has_pooler
    assert torch.equal(model.pool(layers, batch), layers[-1][:, 0])
    pooler = {id(p) for p in model.hf_model.pooler.parameters()}
    assert not pooler & {id(p) for group in model.layer_groups() for p in group}, (
        "the pooler is not used"
    )


@pytest.mark.parametrize("kind", ["bert", "bert read as XLM-R", "roberta"])
def test_the_second_text_has_the_segment_ids_of_the_tokenizer(kind: str, tmp_path: Path) -> None:
    """Multilingual MiniLM is a BERT with two segments whose tokenizer only gives the first."""
    name = kind.split()[0]
    model = build_hf_model(name, type_vocab_size=2)
    folder = save_checkpoint(name, tmp_path, model=model)
    if kind == "bert read as XLM-R":
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
        tokenizer.save(str(folder / "tokenizer.json"))
    loaded, checkpoint = load_public(folder)
    (item,) = encode_items(
        pd.DataFrame({"text": TEXTS[:1], "second": TEXTS[1:2]}),
        checkpoint.tokenizer,
        max_length=None,
        language="en",
    )
    encoding = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*TEXTS[:2])
    assert item.encoded.ids.tolist() == encoding.ids
    assert (1 in encoding.type_ids) == (kind == "bert")
    automodel = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    expected = automodel(
        input_ids=torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids])
    ).last_hidden_state
    assert_close(loaded.encode(collate_items(checkpoint.tokenizer, [item]))[-1], expected)


def test_probes_separate_two_texts_that_have_the_same_segment_id(tmp_path: Path) -> None:
    """This is so for RoBERTa: u and v are the means of the library's outputs over each text."""
    folder = save_checkpoint("roberta", tmp_path)
    model, checkpoint = load_public(folder)
    (item,) = encode_items(
        pd.DataFrame({"text": TEXTS[:1], "second": TEXTS[1:2]}),
        checkpoint.tokenizer,
        max_length=None,
        language="en",
    )
    encoding = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*TEXTS[:2])
    assert set(encoding.type_ids) == {0} and {*encoding.sequence_ids} == {None, 0, 1}
    top_TD = (
        transformers.AutoModel.from_pretrained(folder, local_files_only=True)
        .eval()(torch.tensor([encoding.ids]))
        .last_hidden_state[0]
    )
    sequence_ids = np.array(encoding.sequence_ids, object)
    u, v = (top_TD[np.flatnonzero(sequence_ids == index)].mean(0) for index in (0, 1))
    batch = collate_items(checkpoint.tokenizer, [item])
    assert_close(
        pool_features(model, model.encode(batch)[-1], batch)[0],
        torch.cat([u, v, (u - v).abs(), u * v, torch.cosine_similarity(u, v, dim=0)[None]]),
    )


@pytest.mark.parametrize(("config_bos", "tokenizer_bos", "expected"), [(0, None, (0,)), (150, None, ()), (50256, None, ()), (None, None, ()),
                                                       (150, "<|endoftext|>", (0,)), (None, {"content": "<|endoftext|>"}, (0,))])  # fmt: skip
def test_the_bos_token_is_that_of_the_tokenizer(
    config_bos: int | None, tokenizer_bos: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    """config.json defaults to 50256, which is an ordinary token of a larger vocabulary."""
    folder = edit_json(
        edit_json(save_checkpoint("gpt2", tmp_path), "config.json", bos_token_id=config_bos),
        "tokenizer_config.json",
        bos_token=tokenizer_bos,
    )
    assert load_public_tokenizer(folder, language="en").special_token_template.prefix == expected


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"]
)
def test_no_key_of_a_config_selects_other_code(key: str, tmp_path: Path) -> None:
    folder = edit_json(save_checkpoint("bert", tmp_path), "config.json", **{key: "somebody/kernel"})
    batch = build_batch(load_public_tokenizer(folder, language="en"), TEXTS)
    assert_close(
        load_public(folder)[0].encode(batch)[-1],
        load_public(save_checkpoint("bert", tmp_path / "plain"))[0].encode(batch)[-1],
    )


@pytest.mark.parametrize(("kind", "embedding", "tied_name"), [("gpt2", "transformer.wte.weight", "lm_head.weight"),
                                                     ("gpt1", "transformer.tokens_embed.weight", "lm_head.weight"),
                                                     ("roberta", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight")])  # fmt: skip
def test_a_tied_embedding_is_read_under_either_name(
    kind: str, embedding: str, tied_name: str, tmp_path: Path
) -> None:
    """safetensors' save_model writes a tensor with two names under only one of them."""
    folder = save_checkpoint(kind, tmp_path / "one")
    tensors = load_file(folder / "model.safetensors")
    tensors[tied_name] = tensors.pop(embedding)
    other = save_checkpoint(kind, tmp_path / "other")
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    assert torch.equal(
        load_public(folder)[0].softmax_weight(), load_public(other)[0].softmax_weight()
    )


def test_a_word_without_tokens_is_unknown_to_a_public_model(tmp_path: Path) -> None:
    _, checkpoint = load_public(save_checkpoint("bert", tmp_path))
    model = family.load_pretrained(tmp_path, family.PublicConfig())[1]
    (tmp_path / "kept").mkdir()
    checkpoint.save(tmp_path / "kept", model)
    loaded = type(checkpoint).load(tmp_path / "kept")
    data = TaskData(
        TaskInfo(name="x", kind="word_similarity", language="en", folds=None),
        {"test": pd.DataFrame({"words": [("to", "☃")]})},
    )
    encoder = EncoderUnderTest(
        tiny.eval_context(loaded, data, tiny.model_config("gpt").evaluate), "pretrained"
    )
    vectors, known = embed_words(encoder, ["to", "☃", "☂"])
    assert known.tolist() == [True, False, False] and (vectors[1] == vectors[2]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_set", [True, False])
def test_dropout_follows_the_block_whether_or_not_the_folder_sets_it(
    kind: str, is_set: bool, tmp_path: Path
) -> None:
    folder = save_checkpoint(kind, tmp_path)
    if not is_set:
        edit_json(folder, "config.json", **dict.fromkeys(family.DROPOUT_KEYS))
    model, _ = load_public(folder, dropout=0.0)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}
    if kind in ("albert", "modernbert"):  # have no dropout, like their released checkpoints
        return
    assert any(
        module.p > 0
        for module in load_public(folder)[0].modules()
        if isinstance(module, torch.nn.Dropout)
    )


def test_causal_models_pool_the_last_token_and_byte_tokenizers_are_lossless(tmp_path: Path) -> None:
    for kind in KINDS:
        model, checkpoint = load_public(save_checkpoint(kind, tmp_path / kind))
        assert model.word_pooling == ("last" if kind.startswith("gpt") else "mean")
        assert checkpoint.tokenizer.lossless == (kind in ("roberta", "gpt2"))
