"""Small public checkpoints as transformers saves them: random weights and a small tokenizer."""

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
SPECIAL_TOKENS = {"bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "gpt1": ["<unk>"],
         "gpt2": ["<|endoftext|>"]}  # fmt: skip
POSITIONS = 61


@functools.cache
def tokenizer_json(kind: str) -> str:
    """Return tokenizer.json, built from the library's own parts for this kind."""
    if kind == "bert":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        trainer = trainers.WordPieceTrainer(vocab_size=297, special_tokens=SPECIAL_TOKENS[kind])
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind == "gpt1":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        trainer = trainers.BpeTrainer(
            vocab_size=297, special_tokens=SPECIAL_TOKENS[kind], end_of_word_suffix="</w>"
        )
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        tokenizer = Tokenizer(models.BPE())
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=397, special_tokens=SPECIAL_TOKENS[kind], initial_alphabet=alphabet
        )
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(tiny.documents(), trainer)
    if kind == "bert":
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    elif kind == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), add_prefix_space=False
        )
    elif kind == "gpt2":
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer.to_str()


def build_config(kind: str, **overrides: Any) -> Any:
    """Return the config of a model with two layers of width 16.

    The initial weights are ten times as large as usual, so that no error stays hidden.
    """
    size = Tokenizer.from_str(tokenizer_json(kind)).get_vocab_size()
    if kind in ("bert", "roberta"):
        sizes = {"vocab_size": size, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
                 "initializer_range": 0.2}  # fmt: skip
        if kind == "bert":
            return transformers.BertConfig(
                **sizes | {"max_position_embeddings": POSITIONS} | overrides
            )
        special = {
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "type_vocab_size": 1,
            "max_position_embeddings": POSITIONS + 2,
        }
        return transformers.RobertaConfig(**sizes | special | overrides)
    sizes = {
        "vocab_size": size,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": POSITIONS,
        "initializer_range": 0.2,
    }
    if kind == "gpt1":
        return transformers.OpenAIGPTConfig(**sizes | overrides)
    return transformers.GPT2Config(**sizes | {"bos_token_id": 0, "eos_token_id": 0} | overrides)


def build_hf_model(kind: str, seed: int = 0, **overrides: Any) -> Any:
    """Return the library's model with random weights and nonzero biases."""
    torch.manual_seed(seed)
    model = getattr(transformers, MODEL[kind])(build_config(kind, **overrides)).eval()
    for name, parameter in model.named_parameters():  # biases are zero initially
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def save_checkpoint(
    kind: str, folder: Path, *, model: Any = None, config_changes: Mapping[str, Any] | None = None
) -> Path:
    """Save a folder as save_pretrained writes it, and return it.

    `config_changes` changes its config.json; a value of None removes the key.
    """
    if model is None:
        shutil.copytree(_saved(kind).name, folder, dirs_exist_ok=True)
    else:
        _write(kind, folder, model)
    if config_changes:
        config = json.loads((folder / "config.json").read_text()) | config_changes
        kept_values = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept_values))
    return folder


@functools.cache
def _saved(kind: str) -> "tempfile.TemporaryDirectory[str]":
    """Return a folder with the unchanged model, which most tests ask for."""
    folder = tempfile.TemporaryDirectory(prefix="lineage-")
    _write(kind, Path(folder.name), build_hf_model(kind))
    return folder


def _write(kind: str, folder: Path, model: Any) -> None:
    model.save_pretrained(folder)
    mask_tokens = {"bert": "[MASK]", "roberta": "<mask>"}
    token_names = {"mask_token": mask_tokens[kind]} if kind in mask_tokens else {}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer_json(kind)), **token_names
    ).save_pretrained(folder)


def replace_tensors(folder: Path, tensors: Mapping[str, Any]) -> Path:
    """Replace tensors of the folder, and return it; a value of None removes the tensor."""
    replaced = load_file(folder / "model.safetensors") | tensors
    save_file(
        {name: value for name, value in replaced.items() if value is not None},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder
