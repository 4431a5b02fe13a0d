"""Small public checkpoints, saved by transformers as its users save theirs: random weights, a tokenizer trained on a few documents."""

import functools
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers.utils import logging

from tests import tiny

logging.disable_progress_bar()
KINDS = ("bert", "roberta", "gpt1", "gpt2")
MODEL = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "gpt1": "OpenAIGPTLMHeadModel",
    "gpt2": "GPT2LMHeadModel",
}
MARKS = {"bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "gpt1": ["<unk>"],
         "gpt2": ["<|endoftext|>"]}  # fmt: skip
POSITIONS = 61


@functools.cache
def tokenizer(kind: str) -> str:
    """tokenizer.json, with the library's own parts for this kind."""
    if kind == "bert":
        found, trainer = (
            Tokenizer(models.WordPiece(unk_token="[UNK]")),
            trainers.WordPieceTrainer(vocab_size=297, special_tokens=MARKS[kind]),
        )
        found.normalizer, found.pre_tokenizer = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        )
    elif kind == "gpt1":
        found = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        trainer = trainers.BpeTrainer(
            vocab_size=297, special_tokens=MARKS[kind], end_of_word_suffix="</w>"
        )
        found.normalizer, found.pre_tokenizer = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        )
    else:
        found, alphabet = Tokenizer(models.BPE()), sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=397, special_tokens=MARKS[kind], initial_alphabet=alphabet
        )
        found.pre_tokenizer, found.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
    found.train_from_iterator(tiny.documents(), trainer)
    if kind == "bert":
        found.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    elif kind == "roberta":
        found.post_processor = processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), add_prefix_space=False
        )
    elif kind == "gpt2":
        found.post_processor = processors.ByteLevel(trim_offsets=False)
    return found.to_str()


def config(kind: str, **more: Any) -> Any:
    """Two layers of width 16. The starting weights are made ten times as large, so that no error hides."""
    size = Tokenizer.from_str(tokenizer(kind)).get_vocab_size()
    if kind in ("bert", "roberta"):
        sizes = {"vocab_size": size, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
                 "initializer_range": 0.2}  # fmt: skip
        if kind == "bert":
            return transformers.BertConfig(**sizes | {"max_position_embeddings": POSITIONS} | more)
        marks = {
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "type_vocab_size": 1,
            "max_position_embeddings": POSITIONS + 2,
        }
        return transformers.RobertaConfig(**sizes | marks | more)
    sizes = {
        "vocab_size": size,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": POSITIONS,
        "initializer_range": 0.2,
    }
    if kind == "gpt1":
        return transformers.OpenAIGPTConfig(**sizes | more)
    return transformers.GPT2Config(**sizes | {"bos_token_id": 0, "eos_token_id": 0} | more)


def theirs(kind: str, seed: int = 0, **more: Any) -> Any:
    """The library's model."""
    torch.manual_seed(seed)
    found = getattr(transformers, MODEL[kind])(config(kind, **more)).eval()
    for name, parameter in found.named_parameters():  # biases are zero at the start
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    return found


def save(
    kind: str, folder: Path, *, model: Any = None, facts: Mapping[str, Any] | None = None
) -> Path:
    """A folder as save_pretrained writes it, with changes to its config.json; None takes a key away."""
    if model is None:
        shutil.copytree(_saved(kind).name, folder, dirs_exist_ok=True)
    else:
        _write(kind, folder, model)
    if facts:
        known = json.loads((folder / "config.json").read_text()) | facts
        (folder / "config.json").write_text(
            json.dumps({key: value for key, value in known.items() if value is not None})
        )
    return folder


@functools.cache
def _saved(kind: str) -> "tempfile.TemporaryDirectory[str]":
    """A folder of the model as it is: most tests ask for it."""
    found = tempfile.TemporaryDirectory(prefix="lineage-")
    _write(kind, Path(found.name), theirs(kind))
    return found


def _write(kind: str, folder: Path, model: Any) -> None:
    model.save_pretrained(folder)
    names = (
        {"mask_token": "[MASK]" if kind == "bert" else "<mask>"}
        if kind in ("bert", "roberta")
        else {}
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer(kind)), **names
    ).save_pretrained(folder)


def changed(folder: Path, tensors: Mapping[str, Any]) -> Path:
    """The folder with other tensors; None takes one away."""
    kept = load_file(folder / "model.safetensors") | tensors
    save_file(
        {name: value for name, value in kept.items() if value is not None},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder
