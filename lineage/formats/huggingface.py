"""Folders of the `transformers` library: config.json, model.safetensors and the tokenizer, of its BERT, GPT-1 and GPT-2 classes.

What is trained here loads there and gives equal outputs, and the other way round. Only safetensors are read, never a pickle.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import processors

from lineage.artifacts import read_json, write_json
from lineage.config.records import parse_record, suggest_nearest
from lineage.errors import InputError
from lineage.models import bert, gpt, weights
from lineage.models.base import Encoder, Family
from lineage.models.layers.contextualizers import ContextualizerConfig
from lineage.models.layers.transformer import Transformer, TransformerBlock, TransformerConfig
from lineage.models.public_folders import check_hf_config
from lineage.tokenizers.tokenizer import SPECIAL_TOKEN_TEMPLATES, Tokenizer

TensorViews = dict[str, torch.Tensor]  # see `lineage.models.weights`
GELU_NAMES = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # theirs -> ours; GPT-1's "gelu" is another matter
DEFAULT_DROPOUT = 0.1  # where a config does not say
# Copies of tied weights, masks and position numbers, which some files hold: nothing is learned there.
IGNORED_TENSORS = re.compile(
    r".*\.attn\.(masked_)?bias|.*position_ids|lm_head\.weight|cls\.predictions\.decoder\.(weight|bias)"
)


@dataclass(frozen=True)
class HFLayout:
    """One of the library's classes: what its config says, and where its tensors belong."""

    hf_class_name: str
    prefix: str  # of the body's tensors; files of a bare body are without it
    config_from_hf: Callable[
        [Mapping[str, Any]], dict[str, Any]
    ]  # theirs -> the fields of our record
    config_to_hf: Callable[[Any], dict[str, Any]]
    family: Family
    tensor_views: Callable[[Any], TensorViews]


def read_hf_folder(folder: Path) -> Encoder:
    """The model of a folder that one of the three classes saved, its heads included.

    Raises InputError where a file, a key or a tensor is missing, too many or does not fit; nothing is loaded then.
    """
    layout, hf_config = _read_hf_config(folder)
    where = folder / "config.json"
    try:
        check_hf_config(hf_config)
        fields, vocabulary = layout.config_from_hf(hf_config), hf_config["vocab_size"]
    except KeyError as error:
        raise InputError(f"{where}: the key {error} is missing") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    config = parse_record(layout.family.architecture_class, fields, str(where))
    model: Encoder = weights.build_on_meta(
        lambda: layout.family.build(config, vocab_size=vocabulary), where=str(where)
    )
    path = weights.find_weights_file(folder)
    found = weights.read_tensors(path, prefix=layout.prefix)
    weights.load_into_model(model, layout.tensor_views, found, path, ignored=IGNORED_TENSORS)
    table: torch.Tensor = model.tokens.weight  # type: ignore[union-attr, assignment]
    copies = {"lm_head.weight": table, "cls.predictions.decoder.weight": table}
    if isinstance(model, bert.BertModel):
        copies["cls.predictions.decoder.bias"] = model.mlm_bias
    weights.check_tied_copies(found, copies, path)
    return model.eval()


def write_hf_folder(model: Encoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model and its tokenizer, marks included, for `AutoModelForPreTraining.from_pretrained` and its like.

    Raises InputError for a model that the library has no class for, and for a tokenizer that mends text first.
    """
    if not isinstance(model, bert.BertModel | gpt.GPTModel):
        raise InputError(
            f"{type(model).__module__}: transformers has no class for this family's models; only those of bert and gpt can be written"
        )
    config = model.config
    if config.position_encoding != "learned":
        raise InputError(
            f"position_encoding is '{config.position_encoding}'; the BERT and GPT of transformers learn a table of positions; "
            "train it with 'learned'"
        )
    if getattr(config, "tie_positions", False):
        raise InputError(
            "tie_positions is true: this softmax ranges over positions too, which no GPT of transformers has; train without to write it"
        )
    kind = (
        "bert"
        if isinstance(model, bert.BertModel)
        else "openai-gpt"
        if not config.norm_first
        else "gpt2"
    )
    layout = LAYOUTS[kind]
    if (tokenizer.tokenizer_type == "wordpiece") != (kind == "bert"):
        raise InputError(
            f"the reader cuts text into {tokenizer.tokenizer_type}, which the {kind} of transformers does not read; give the model's own reader"
        )
    if (rows := len(model.token_embeddings.weight)) != tokenizer.vocab_size:
        raise InputError(
            f"the model has {rows} rows of embeddings and the reader {tokenizer.vocab_size} ids; give the model's own reader"
        )
    if tokenizer.normalizer:
        raise InputError(
            f"{folder}: the tokenizer mends text by {tokenizer.normalizer} first, which its file could not say, so that it would give other "
            "ids there; train with normalizer: null to write it"
        )
    own = layout.config_to_hf(config)  # refuses what the layout has no place for
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "model_type": kind,
        "architectures": [layout.hf_class_name],
        "vocab_size": tokenizer.vocab_size,
        "tie_word_embeddings": True,
    }
    if (
        kind != "bert"
    ):  # a document begins with this mark, and so the one before it has ended where it comes
        facts |= dict.fromkeys(
            ("bos_token_id", "eos_token_id", "pad_token_id"),
            tokenizer.special_token_ids["<|endoftext|>"],
        )
    write_json(folder / "config.json", facts | own)
    weights.save_tensors(
        layout.tensor_views(model), folder / weights.WEIGHTS_FILE, metadata={"format": "pt"}
    )
    _write_tokenizer(tokenizer, config.max_positions, folder)


def _read_hf_config(folder: Path) -> tuple[HFLayout, dict[str, Any]]:
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; name a folder that transformers saved")
    hf_config = read_json(path)
    kind = hf_config.get("model_type") if isinstance(hf_config, dict) else None
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise InputError(f"{path}: model_type is '{kind}'{suggest_nearest(str(kind), LAYOUTS)}")
    return LAYOUTS[kind], hf_config


def _write_tokenizer(tokenizer: Tokenizer, max_positions: int, folder: Path) -> None:
    """tokenizer.json with the family's marks put round a text or two, and what AutoTokenizer asks for beside it."""
    hf_tokenizer = BackendTokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    marks = tokenizer.special_token_ids
    if tokenizer.tokenizer_type == "wordpiece":
        hf_tokenizer.post_processor = processors.BertProcessing(
            ("[SEP]", marks["[SEP]"]), ("[CLS]", marks["[CLS]"])
        )
        names = {
            "unk_token": "[UNK]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "mask_token": "[MASK]",
        }
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        more = {
            "do_lower_case": hf_tokenizer.normalizer.lowercase
        }  # for those who load it as BertTokenizer
    else:
        (begin,), (between,), (end,) = SPECIAL_TOKEN_TEMPLATES[tokenizer.tokenizer_type]
        hf_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {between} $B:1 {end}:1",
            special_tokens=[(m, marks[m]) for m in sorted({begin, between, end})],
        )
        names = {"bos_token": begin, "eos_token": end, "pad_token": begin} | (
            {"unk_token": "<unk>"} if tokenizer.tokenizer_type == "bpe" else {}
        )
        inputs = [
            "input_ids",
            "attention_mask",
        ]  # these models add the row of a piece for a token type
        more = (
            {"add_prefix_space": True} if tokenizer.tokenizer_type == "byte_bpe" else {}
        )  # for those who load it as GPT2Tokenizer
    hf_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "model_input_names": inputs,
    }
    write_json(folder / "tokenizer_config.json", about | names | more)


def _activation_from_hf(hf_config: Mapping[str, Any], key: str) -> str:
    if not isinstance(hf_config[key], str) or hf_config[key] not in GELU_NAMES:
        raise ValueError(
            f"{key} is '{hf_config[key]}'{suggest_nearest(str(hf_config[key]), GELU_NAMES)}"
        )
    return GELU_NAMES[hf_config[key]]


def _require_values(hf_config: Mapping[str, Any], **expected: Any) -> None:
    """Raise ValueError where the config asks for what our models do not do."""
    for key, value in expected.items():
        if hf_config.get(key, value) != value:
            raise ValueError(f"{key} is {hf_config[key]!r}; only {value!r} can be read")


def _single_dropout(hf_config: Mapping[str, Any], first: str, *others: str) -> float:
    """The share that all of these keys say, or would say by the library's own defaults.

    Raises ValueError where they differ: who trained on would train another model than the folder's.
    """
    for other in others:
        if (said := hf_config.get(other, DEFAULT_DROPOUT)) != hf_config[first]:
            raise ValueError(
                f"{other} is {said} and {first} {hf_config[first]}; a model here has one dropout: give all the one to go on with"
            )
    return float(hf_config[first])


def _bert_config_from_hf(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    _require_values(
        hf_config,
        is_decoder=False,
        add_cross_attention=False,
        type_vocab_size=2,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
    )
    return {
        "num_layers": hf_config["num_hidden_layers"],
        "num_heads": hf_config["num_attention_heads"],
        "max_positions": hf_config["max_position_embeddings"],
        "dropout": _single_dropout(
            hf_config, "hidden_dropout_prob", "attention_probs_dropout_prob"
        ),
        "activation": _activation_from_hf(hf_config, "hidden_act"),
        "norm_first": False,
        "layer_norm_eps": hf_config["layer_norm_eps"],
        "init_std": hf_config["initializer_range"],
        "hidden_size": hf_config["hidden_size"],
        "ffn_size": hf_config["intermediate_size"],
    }


def _bert_config_to_hf(config: ContextualizerConfig) -> dict[str, Any]:
    if (config.contextualizer, config.direction) != ("transformer", "bidirectional"):
        raise InputError(
            f"this model is of extractor '{config.contextualizer}' and direction '{config.direction}'; the BERT of transformers is a "
            "Transformer that reads both sides"
        )
    if config.norm_first:
        raise InputError(
            "norm_first is true; the BERT of transformers normalizes after each part; train it with norm_first: false"
        )
    return {
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_positions,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "hidden_act": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[config.activation],
        "layer_norm_eps": config.layer_norm_eps,
        "initializer_range": config.init_std,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
    }


def _gpt_config_from_hf(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    second = hf_config["model_type"] == "gpt2"
    _require_values(
        hf_config,
        scale_attn_by_inverse_layer_idx=False,
        scale_attn_weights=True,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    if not second and hf_config["afn"] != "gelu":
        raise ValueError(f"afn is '{hf_config['afn']}'; only 'gelu' can be read")
    return {
        "num_layers": hf_config["n_layer"],
        "num_heads": hf_config["n_head"],
        "max_positions": hf_config["n_positions"],
        "dropout": _single_dropout(hf_config, "resid_pdrop", "embd_pdrop", "attn_pdrop"),
        "norm_first": second,
        "activation": _activation_from_hf(hf_config, "activation_function")
        if second
        else "gelu_tanh",
        "layer_norm_eps": hf_config["layer_norm_epsilon"],
        "init_std": hf_config["initializer_range"],
        "hidden_size": hf_config["n_embd"],
        "ffn_size": (second and hf_config.get("n_inner")) or 4 * hf_config["n_embd"],
    }


def _gpt_config_to_hf(config: TransformerConfig) -> dict[str, Any]:
    found = {
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_positions": config.max_positions,
        "n_embd": config.hidden_size,
        "layer_norm_epsilon": config.layer_norm_eps,
        "initializer_range": config.init_std,
    }
    found |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    if config.norm_first:
        return found | {
            "activation_function": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[config.activation],
            "n_inner": config.ffn_size,
        }
    assert config.hidden_size is not None
    if config.activation != "gelu_tanh" or config.ffn_size != 4 * config.hidden_size:
        raise InputError(
            f"a post-norm GPT is GPT-1 in transformers, with gelu_tanh and a feed-forward of {4 * config.hidden_size}; "
            f"this one has {config.activation} and {config.ffn_size}; train it with these, or with norm_first: true, which is GPT-2"
        )
    return found | {"afn": "gelu"}


def _weight_and_bias(name: str, module: Any, *, transposed: bool = False) -> TensorViews:
    """Weight and bias of a linear layer or a norm; `turned` where the file has (in, out), as transformers' Conv1D."""
    return {
        f"{name}.weight": module.weight.T if transposed else module.weight,
        f"{name}.bias": module.bias,
    }


def _bert_tensor_views(model: bert.BertModel) -> TensorViews:
    inner = "bert.embeddings"
    found = {
        f"{inner}.word_embeddings.weight": model.token_embeddings.weight,
        f"{inner}.position_embeddings.weight": model.position_embeddings.weight,
        f"{inner}.token_type_embeddings.weight": model.segment_embeddings.weight,
        **_weight_and_bias(f"{inner}.LayerNorm", model.embedding_norm),
    }
    assert isinstance(model.body, Transformer)
    for i, block in enumerate(model.body.blocks):
        assert isinstance(block, TransformerBlock)
        where, joined = f"bert.encoder.layer.{i}", block.qkv_proj
        for part, weight, bias in zip(
            ("query", "key", "value"), joined.weight.chunk(3), joined.bias.chunk(3), strict=True
        ):
            found |= {
                f"{where}.attention.self.{part}.weight": weight,
                f"{where}.attention.self.{part}.bias": bias,
            }
        found |= _weight_and_bias(
            f"{where}.attention.output.dense", block.out_proj
        ) | _weight_and_bias(f"{where}.attention.output.LayerNorm", block.attention_norm)
        found |= _weight_and_bias(f"{where}.intermediate.dense", block.ffn_in) | _weight_and_bias(
            f"{where}.output.dense", block.ffn_out
        )
        found |= _weight_and_bias(f"{where}.output.LayerNorm", block.ffn_norm)
    found |= _weight_and_bias("bert.pooler.dense", model.pooler) | _weight_and_bias(
        "cls.predictions.transform.dense", model.mlm_dense
    )
    found |= _weight_and_bias("cls.predictions.transform.LayerNorm", model.mlm_norm) | {
        "cls.predictions.bias": model.mlm_bias
    }
    return found | _weight_and_bias("cls.seq_relationship", model.nsp_head)


def _gpt_tensor_views(model: gpt.GPTModel) -> TensorViews:
    first = not model.config.norm_first
    tokens, positions = ("tokens_embed", "positions_embed") if first else ("wte", "wpe")
    found = {
        f"transformer.{tokens}.weight": model.token_embeddings.weight,
        f"transformer.{positions}.weight": model.position_embeddings.weight,
    }
    for i, block in enumerate(model.body.blocks):
        assert isinstance(block, TransformerBlock)
        where = f"transformer.h.{i}"
        found |= _weight_and_bias(
            f"{where}.attn.c_attn", block.qkv_proj, transposed=True
        ) | _weight_and_bias(f"{where}.attn.c_proj", block.out_proj, transposed=True)
        found |= _weight_and_bias(
            f"{where}.mlp.c_fc", block.ffn_in, transposed=True
        ) | _weight_and_bias(f"{where}.mlp.c_proj", block.ffn_out, transposed=True)
        found |= _weight_and_bias(f"{where}.ln_1", block.attention_norm) | _weight_and_bias(
            f"{where}.ln_2", block.ffn_norm
        )
    return found if first else found | _weight_and_bias("transformer.ln_f", model.body.final_norm)


LAYOUTS = {
    "bert": HFLayout(
        "BertForPreTraining",
        "bert.",
        _bert_config_from_hf,
        _bert_config_to_hf,
        bert.FAMILY,
        _bert_tensor_views,
    ),
    "openai-gpt": HFLayout(
        "OpenAIGPTLMHeadModel",
        "transformer.",
        _gpt_config_from_hf,
        _gpt_config_to_hf,
        gpt.FAMILY,
        _gpt_tensor_views,
    ),
    "gpt2": HFLayout(
        "GPT2LMHeadModel",
        "transformer.",
        _gpt_config_from_hf,
        _gpt_config_to_hf,
        gpt.FAMILY,
        _gpt_tensor_views,
    ),
}
