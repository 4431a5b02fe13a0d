"""Public checkpoints as their makers meant them: pooling, segments, marks, tied tables; and nothing of a folder is run."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")

import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors

from lineage.data.task_data import TaskData
from lineage.evaluation.encoding import collate_items, encode_items
from lineage.evaluation.linear_probe import pool_features
from lineage.evaluation.systems import EncoderUnderTest, EvalContext
from lineage.models import public as family
from lineage.models.public_tokenizer import load_public_tokenizer
from tests import tiny
from tests.public_checkpoints import KINDS, save, theirs
from tests.test_public import NEAR, TEXTS, batch_of, ours


def keys(folder: Path, file: str, **values: Any) -> Path:
    """The folder with other values in one of its files of JSON; None takes a key away."""
    path = folder / file
    said = (json.loads(path.read_text()) if path.is_file() else {}) | values
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return folder


def test_an_encoder_of_sentences_that_reads_cls_reads_it_as_it_stands(tmp_path: Path) -> None:
    """No pooler follows, though the file holds one, as BERT's do."""
    folder = keys(
        save("bert", tmp_path, model=theirs("bert").bert),
        "1_Pooling/config.json",
        pooling_mode_cls_token=True,
    )
    model, checkpoint = ours(folder)
    batch = batch_of(checkpoint.tokenizer, TEXTS)
    layers = model.encode(batch)
    assert model.checkpoint_info.has_pooler and torch.equal(
        model.pool(layers, batch), layers[-1][:, 0]
    )
    pooler = {id(p) for p in model.hf_model.pooler.parameters()}
    assert not pooler & {id(p) for group in model.layer_groups() for p in group}, "it is not read"
    assert family.describe_mechanism(model.config, checkpoint.pretrain)["transfer"].endswith(
        "[CLS]"
    )


@pytest.mark.parametrize("kind", ["bert", "bert read as XLM-R", "roberta"])
def test_the_second_text_has_the_segment_that_its_tokenizer_gives_it(
    kind: str, tmp_path: Path
) -> None:
    """As multilingual MiniLM's: a BERT of two segments, of which its tokenizer gives the first alone."""
    name = kind.split()[0]
    model = theirs(name, type_vocab_size=2)
    folder = save(name, tmp_path, model=model)
    if kind == "bert read as XLM-R":
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
        tokenizer.save(str(folder / "tokenizer.json"))
    found, checkpoint = ours(folder)
    (item,) = encode_items(
        pd.DataFrame({"text": TEXTS[:1], "second": TEXTS[1:2]}),
        checkpoint.tokenizer,
        max_length=None,
        language="en",
    )
    both = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*TEXTS[:2])
    assert item.encoded.ids.tolist() == both.ids and (1 in both.type_ids) == (kind == "bert")
    body = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    expected = body(
        input_ids=torch.tensor([both.ids]), token_type_ids=torch.tensor([both.type_ids])
    ).last_hidden_state
    torch.testing.assert_close(
        found.encode(collate_items(checkpoint.tokenizer, [item]))[-1], expected, **NEAR
    )


def test_frozen_readers_tell_two_texts_apart_whose_tokenizer_gives_them_one_segment(
    tmp_path: Path,
) -> None:
    """As RoBERTa's does: u and v are the means of the library's own outputs over either text."""
    folder = save("roberta", tmp_path)
    found, checkpoint = ours(folder)
    (item,) = encode_items(
        pd.DataFrame({"text": TEXTS[:1], "second": TEXTS[1:2]}),
        checkpoint.tokenizer,
        max_length=None,
        language="en",
    )
    both = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*TEXTS[:2])
    assert set(both.type_ids) == {0} and {*both.sequence_ids} == {None, 0, 1}
    top_TD = (
        transformers.AutoModel.from_pretrained(folder, local_files_only=True)
        .eval()(torch.tensor([both.ids]))
        .last_hidden_state[0]
    )
    u, v = (
        top_TD[[i for i, said in enumerate(both.sequence_ids) if said == place]].mean(0)
        for place in (0, 1)
    )
    batch = collate_items(checkpoint.tokenizer, [item])
    torch.testing.assert_close(
        pool_features(found, found.encode(batch)[-1], batch)[0],
        torch.cat([u, v, (u - v).abs(), u * v]),
        **NEAR,
    )


@pytest.mark.parametrize(("config", "said", "first"), [(0, None, (0,)), (150, None, ()), (50256, None, ()), (None, None, ()),
                                                       (150, "<|endoftext|>", (0,)), (None, {"content": "<|endoftext|>"}, (0,))])  # fmt: skip
def test_the_begin_mark_is_the_tokenizer_s(
    config: int | None, said: Any, first: tuple[int, ...], tmp_path: Path
) -> None:
    """config.json has the library's 50256 where nobody said another, which is a word of a larger vocabulary."""
    folder = keys(
        keys(save("gpt2", tmp_path), "config.json", bos_token_id=config),
        "tokenizer_config.json",
        bos_token=said,
    )
    assert load_public_tokenizer(folder, language="en").special_token_template.prefix == first


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"]
)
def test_no_key_of_a_folder_asks_for_other_code(key: str, tmp_path: Path) -> None:
    folder = keys(save("bert", tmp_path), "config.json", **{key: "somebody/kernel"})
    batch = batch_of(load_public_tokenizer(folder, language="en"), TEXTS)
    torch.testing.assert_close(
        ours(folder)[0].encode(batch)[-1],
        ours(save("bert", tmp_path / "plain"))[0].encode(batch)[-1],
        **NEAR,
    )


@pytest.mark.parametrize(("kind", "table", "copy"), [("gpt2", "transformer.wte.weight", "lm_head.weight"),
                                                     ("gpt1", "transformer.tokens_embed.weight", "lm_head.weight"),
                                                     ("roberta", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight")])  # fmt: skip
def test_a_tied_table_is_read_by_either_name(
    kind: str, table: str, copy: str, tmp_path: Path
) -> None:
    """As safetensors' save_model writes it: of two names of one tensor one."""
    folder = save(kind, tmp_path / "one")
    tensors = load_file(folder / "model.safetensors")
    tensors[copy] = tensors.pop(table)
    other = save(kind, tmp_path / "other")
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    assert torch.equal(ours(folder)[0].softmax_weight(), ours(other)[0].softmax_weight())


def test_a_word_that_has_no_piece_is_unknown_to_a_public_model_too(tmp_path: Path) -> None:
    _, checkpoint = ours(save("bert", tmp_path))
    found = family.load_pretrained(tmp_path, family.PublicConfig())[1]
    (tmp_path / "kept").mkdir()
    checkpoint.save(tmp_path / "kept", found)
    loaded = type(checkpoint).load(tmp_path / "kept")
    data = TaskData(
        {"name": "x", "kind": "word_similarity", "language": "en", "folds": None},
        {"test": pd.DataFrame({"words": [("to", "☃")]})},
    )
    subject = EncoderUnderTest(
        EvalContext(loaded, data, tiny.variant("gpt").evaluate, 0, 1000, "fp32", tiny.CPU),
        "pretrained",
    )
    vectors, known = subject.embed_words(["to", "☃", "☂"])
    assert known.tolist() == [True, False, False] and (vectors[1] == vectors[2]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("said", [True, False])
def test_dropout_is_what_the_block_says_whether_or_not_the_folder_names_one(
    kind: str, said: bool, tmp_path: Path
) -> None:
    folder = save(kind, tmp_path)
    if not said:
        keys(folder, "config.json", **dict.fromkeys(family.DROPOUT_KEYS))
    model, _ = ours(folder, dropout=0.0)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}
    assert any(
        module.p > 0 for module in ours(folder)[0].modules() if isinstance(module, torch.nn.Dropout)
    )


def test_a_word_is_read_at_its_last_piece_from_the_left_and_bytes_lose_nothing(
    tmp_path: Path,
) -> None:
    for kind in KINDS:
        model, checkpoint = ours(save(kind, tmp_path / kind))
        assert model.word_pooling == ("last" if kind.startswith("gpt") else "mean")
        assert checkpoint.tokenizer.lossless == (kind in ("roberta", "gpt2"))
