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

from lineage.families import public
from lineage.networks.batch import Batch
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.tokenizers import tokenizer as lineage_tokenizer
from tests.helpers import tiny

logging.disable_progress_bar()
CAUSAL_KINDS = ("gpt1", "gpt2")
DISCRIMINATORS = ("electra", "deberta")  # masked models without a language model's head
MASKED_LM_KINDS = ("bert", "roberta", "distilbert", "mpnet", "albert", "modernbert")
KINDS = (*MASKED_LM_KINDS, *DISCRIMINATORS, *CAUSAL_KINDS)
MODEL = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "electra": "ElectraForPreTraining",
    "albert": "AlbertForPreTraining",
    "deberta": "DebertaV2ForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "gpt1": "OpenAIGPTLMHeadModel",
    "gpt2": "GPT2LMHeadModel",
}
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SPECIAL_TOKENS = {
    "bert": BERT_TOKENS,
    "roberta": ROBERTA_TOKENS,
    "distilbert": BERT_TOKENS,
    "mpnet": ROBERTA_TOKENS,
    "electra": BERT_TOKENS,
    "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "deberta": ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
    "modernbert": BERT_TOKENS,
    "gpt1": ("<unk>",),
    "gpt2": ("<|endoftext|>",),
}
WORDPIECE_KINDS = ("bert", "distilbert", "mpnet", "electra")
UNIGRAM_KINDS = ("albert", "deberta")
POSITIONS = 61
TOLERANCES = {"atol": 1e-5, "rtol": 1e-5}
TEXTS = [
    "du kotbas gatit kaf vivkez debfi gizfif .",
    "to vandu",
    "to kible fidvid mur duzam kible zuvid . to tofla ut mekitaz mononut u du gozbupas .",
]
CONTINUED = public.ContinuedPretrainSettings(batch_size=5, seq_len=23)
DENSE_WEIGHT = torch.linspace(-1, 1, 16 * 5).reshape(5, 16)
DENSE_BIAS = torch.linspace(-0.5, 0.5, 5)
POOLING_KEYS = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens", "last": "lasttoken"}


@functools.cache
def tokenizer_json(kind: str) -> str:
    """Return tokenizer.json, built from the library's own parts for this kind."""
    special_tokens = list(SPECIAL_TOKENS[kind])
    if kind in WORDPIECE_KINDS:
        unk_token = next(token for token in special_tokens if token in ("[UNK]", "<unk>"))
        tokenizer = Tokenizer(models.WordPiece(unk_token=unk_token))
        trainer = trainers.WordPieceTrainer(vocab_size=297, special_tokens=special_tokens)
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind in UNIGRAM_KINDS:
        unk_token = next(token for token in special_tokens if token in ("[UNK]", "<unk>"))
        tokenizer = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=297, special_tokens=special_tokens, unk_token=unk_token
        )
        tokenizer.normalizer = normalizers.NFC()
        if kind == "albert":
            tokenizer.normalizer = normalizers.Sequence(
                [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
            )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    elif kind == "gpt1":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        trainer = trainers.BpeTrainer(
            vocab_size=297, special_tokens=special_tokens, end_of_word_suffix="</w>"
        )
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        tokenizer = Tokenizer(models.BPE())
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=397, special_tokens=special_tokens, initial_alphabet=alphabet
        )
        if kind == "modernbert":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(tiny.documents(), trainer)
    if kind in ("roberta", "mpnet"):
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), add_prefix_space=False
        )
    elif kind == "gpt2":
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    elif kind == "modernbert":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B [SEP]",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    elif kind != "gpt1":
        ids = [special_tokens.index(token) for token in ("[SEP]", "[CLS]")]
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids[0]), ("[CLS]", ids[1]))
    return tokenizer.to_str()


def build_config(kind: str, **overrides: Any) -> Any:
    """Return the config of a model with two layers of width 16.

    The initial weights are ten times as large as usual, so that no error stays hidden. ALBERT and
    ELECTRA have narrower embeddings, and the other models what their papers have.
    """
    size = Tokenizer.from_str(tokenizer_json(kind)).get_vocab_size()
    bert_sizes = {
        "vocab_size": size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.2,
    }
    roberta_sizes = bert_sizes | {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "max_position_embeddings": POSITIONS + 2,
    }
    gpt_sizes = {
        "vocab_size": size,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": POSITIONS,
        "initializer_range": 0.2,
    }
    distilbert_sizes = {
        "vocab_size": size,
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.2,
    }
    deberta_sizes = bert_sizes | {
        "relative_attention": True,
        "position_buckets": 4,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "type_vocab_size": 0,
    }
    modernbert_sizes = bert_sizes | {
        "local_attention": 4,
        "global_attn_every_n_layers": 2,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    }
    configs: dict[str, tuple[Any, dict[str, Any]]] = {
        "bert": (transformers.BertConfig, bert_sizes),
        "roberta": (transformers.RobertaConfig, roberta_sizes | {"type_vocab_size": 1}),
        "distilbert": (transformers.DistilBertConfig, distilbert_sizes),
        "mpnet": (transformers.MPNetConfig, roberta_sizes),
        "electra": (transformers.ElectraConfig, bert_sizes | {"embedding_size": 12}),
        "albert": (transformers.AlbertConfig, bert_sizes | {"embedding_size": 12}),
        "deberta": (transformers.DebertaV2Config, deberta_sizes),
        "modernbert": (transformers.ModernBertConfig, modernbert_sizes),
        "gpt1": (transformers.OpenAIGPTConfig, gpt_sizes),
        "gpt2": (transformers.GPT2Config, gpt_sizes | {"bos_token_id": 0, "eos_token_id": 0}),
    }
    config_class, sizes = configs[kind]
    return config_class(**sizes | overrides)


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
    mask_tokens = [token for token in SPECIAL_TOKENS[kind] if token.strip("[]<>").upper() == "MASK"]
    token_names = {"mask_token": mask_tokens[0]} if mask_tokens else {}
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


def load_public(folder: Path, seed: int = 3, **block: Any) -> tuple[public.PublicModel, Checkpoint]:
    tokenizer = load_public_tokenizer(folder, language="en")
    config, model = public.load_pretrained(folder, public.PublicConfig(**block))
    return model, Checkpoint("other", public.FAMILY, config, CONTINUED, tokenizer, seed=seed)


def build_batch(tokenizer: lineage_tokenizer.Tokenizer, texts: list[str]) -> Batch:
    return tokenizer.collate(tokenizer.encode_batch(texts))


def save_sentence_encoder(
    folder: Path,
    *modules: str,
    kind: str = "bert",
    pooling: str = "mean_tokens",
    activation: str = "torch.nn.modules.activation.Tanh",
) -> Path:
    """Save a body with modules after the pooling, as sentence-transformers does."""
    hf_model = build_hf_model(kind)
    save_checkpoint(kind, folder, model=getattr(hf_model, hf_model.base_model_prefix))
    entries = []
    for number, name in enumerate(("Transformer", "Pooling", *modules)):
        path = f"{number}_{name}" if number else ""
        entries.append(
            {"idx": number, "path": path, "type": f"sentence_transformers.models.{name}"}
        )
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    switches = {f"pooling_mode_{key}": key == pooling for key in POOLING_KEYS.values()}
    (folder / "1_Pooling/config.json").write_text(json.dumps(switches))
    if "Dense" in modules:
        dense = {"in_features": 16, "out_features": 5, "bias": True}
        (folder / "2_Dense").mkdir()
        (folder / "2_Dense/config.json").write_text(
            json.dumps(dense | {"activation_function": activation})
        )
        save_file(
            {"linear.weight": DENSE_WEIGHT, "linear.bias": DENSE_BIAS},
            folder / "2_Dense/model.safetensors",
        )
    return folder
