"""Folders of `transformers`: config.json, model.safetensors and the tokenizer of BERT and GPT.

Models trained here load there with equal outputs, and vice versa; the classes are its
BERT, GPT-1, GPT-2 and, for modern GPT, NanoChat. Only safetensors are read, never a pickle.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import processors
from torch import nn

from lineage.artifacts import read_json, write_json
from lineage.config.records import parse_record, suggest_nearest
from lineage.errors import InputError
from lineage.families import bert, gpt, gpt_modern
from lineage.families.modern_transformer import (
    ROTARY_BASE,
    ModernBlock,
    ModernConfig,
    ModernTransformer,
)
from lineage.networks import weights
from lineage.networks.base import Encoder, Family
from lineage.networks.layers.contextualizers import ContextualizerConfig
from lineage.networks.layers.transformer import Transformer, TransformerBlock, TransformerConfig
from lineage.networks.public_folders import HFConfig, check_hf_config
from lineage.tokenizers.tokenizer import SPECIAL_TOKEN_TEMPLATES, Tokenizer

TensorViews = dict[str, torch.Tensor]  # see `lineage.networks.weights`
Exportable = bert.BertModel | gpt.GPTModel | ModernTransformer
# Their activation -> ours. GPT-1 has its own meaning of "gelu".
GELU_NAMES = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
HF_GELU_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new"}
DEFAULT_DROPOUT = 0.1  # if a config does not give it
# Copies of tied weights, masks and position ids in some files; none of them is learned.
IGNORED_TENSORS = re.compile(
    r".*\.attn\.(masked_)?bias|.*position_ids"
    r"|lm_head\.weight|cls\.predictions\.decoder\.(weight|bias)"
)


@dataclass(frozen=True)
class HFLayout:
    """One of the library's classes: its config and its tensors."""

    hf_class_name: str
    prefix: str  # of the body's tensors; files of a bare body lack it
    keys: Mapping[str, str]  # our keys -> theirs, with the same values
    required_values: Mapping[str, object]  # of their config: what our models do
    other_keys_from_hf: Callable[[HFConfig], dict[str, Any]]
    other_keys_to_hf: Callable[[Any], HFConfig]  # raises InputError for what the class lacks
    family: Family
    tensor_views: Callable[[Any], TensorViews]


def read_hf_folder(folder: Path) -> Encoder:
    """Read a model, with its heads, that one of the four classes saved.

    Raises InputError if a file, a key or a tensor is missing, unexpected or does not fit.
    """
    layout, hf_config = _read_hf_config(folder)
    where = str(folder / "config.json")
    try:
        check_hf_config(hf_config)
        _require_values(hf_config, layout.required_values)
        fields = {name: hf_config[key] for name, key in layout.keys.items()}
        fields |= layout.other_keys_from_hf(hf_config)
        vocab_size = hf_config["vocab_size"]
    except KeyError as error:
        raise InputError(f"{where}: the key {error} is missing") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    config = parse_record(layout.family.architecture_class, fields, where)
    model: Encoder = weights.build_on_meta(
        lambda: layout.family.build(config, vocab_size=vocab_size), where=where
    )
    path = weights.find_weights_file(folder)
    tensors = weights.read_tensors(path, prefix=layout.prefix)
    weights.load_into_model(model, layout.tensor_views, tensors, path, ignored=IGNORED_TENSORS)
    assert isinstance(model, Exportable)
    table = model.token_embeddings.weight
    copies: TensorViews = {"lm_head.weight": table, "cls.predictions.decoder.weight": table}
    if isinstance(model, bert.BertModel):
        copies["cls.predictions.decoder.bias"] = model.mlm_bias
    weights.check_tied_copies(tensors, copies, path)
    return model.eval()


def write_hf_folder(model: Encoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model and its tokenizer for the auto classes of transformers.

    Raises InputError for a model that the library has no class for, and for a tokenizer that
    normalizes text as its file cannot express.
    """
    if not isinstance(model, Exportable):
        raise InputError(
            f"a {type(model).__name__} cannot be written for transformers; only models of the "
            "families bert, gpt and gpt_modern can"
        )
    model_type = _check_exportable(model)
    _check_tokenizer_exportable(model, model_type, tokenizer, folder)
    layout = LAYOUTS[model_type]
    architecture = {key: getattr(model.config, name) for name, key in layout.keys.items()}
    architecture |= layout.other_keys_to_hf(model.config)
    folder.mkdir(parents=True, exist_ok=True)
    hf_config: HFConfig = {
        "model_type": model_type,
        "architectures": [layout.hf_class_name],
        "vocab_size": tokenizer.vocab_size,
        "tie_word_embeddings": True,
    }
    if model_type != "bert":
        # A document begins with this token, so that it also ends the one before.
        end_of_text_id = tokenizer.special_token_ids["<|endoftext|>"]
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            hf_config[key] = end_of_text_id
    write_json(folder / "config.json", hf_config | architecture)
    weights.save_tensors(
        layout.tensor_views(model), folder / weights.WEIGHTS_FILE, metadata={"format": "pt"}
    )
    _write_tokenizer(tokenizer, model.config.max_positions, folder)


def _check_exportable(model: Exportable) -> str:
    """Return the library's model type. Raises InputError if it has none."""
    if isinstance(model, ModernTransformer):
        if not model.causal:
            raise InputError(
                "a modern Transformer that reads both sides has no class in transformers; only "
                "gpt_modern, which reads left to right, can be written"
            )
        return "nanochat"
    config = model.config
    if config.position_encoding != "learned":
        raise InputError(
            f"position_encoding is '{config.position_encoding}'; the BERT and GPT of transformers "
            "learn a table of positions; train it with 'learned'"
        )
    if isinstance(model, bert.BertModel):
        return "bert"
    if model.config.tie_positions:
        raise InputError(
            "tie_positions is true: this softmax ranges over positions too, which no GPT of "
            "transformers has; train without to write it"
        )
    return "gpt2" if config.norm_first else "openai-gpt"


def _check_tokenizer_exportable(
    model: Exportable, model_type: str, tokenizer: Tokenizer, folder: Path
) -> None:
    """Raise InputError if the tokenizer does not fit the model or cannot be written."""
    if (tokenizer.tokenizer_type == "wordpiece") != (model_type == "bert"):
        raise InputError(
            f"the tokenizer cuts text into {tokenizer.tokenizer_type}, which the {model_type} of "
            "transformers does not read; give the model's own tokenizer"
        )
    num_rows = len(model.token_embeddings.weight)
    if num_rows != tokenizer.vocab_size:
        raise InputError(
            f"the model has {num_rows} rows of embeddings and the tokenizer "
            f"{tokenizer.vocab_size} ids; give the model's own tokenizer"
        )
    if tokenizer.normalizer:
        raise InputError(
            f"{folder}: the tokenizer normalizes text with {tokenizer.normalizer} first, which its "
            "file could not say, so that it would give other ids there; train with "
            "normalizer: null to write it"
        )


def _read_hf_config(folder: Path) -> tuple[HFLayout, HFConfig]:
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; name a folder that transformers saved")
    hf_config = read_json(path)
    model_type = hf_config.get("model_type") if isinstance(hf_config, dict) else None
    if not isinstance(model_type, str) or model_type not in LAYOUTS:
        raise InputError(
            f"{path}: model_type is '{model_type}'{suggest_nearest(str(model_type), LAYOUTS)}"
        )
    return LAYOUTS[model_type], hf_config


def _write_tokenizer(tokenizer: Tokenizer, max_positions: int, folder: Path) -> None:
    hf_tokenizer = BackendTokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if tokenizer.tokenizer_type == "wordpiece":
        options = _set_bert_special_tokens(hf_tokenizer, tokenizer)
    else:
        options = _set_gpt_special_tokens(hf_tokenizer, tokenizer)
    hf_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
    }
    write_json(folder / "tokenizer_config.json", tokenizer_config | options)


def _set_bert_special_tokens(
    hf_tokenizer: BackendTokenizer, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Set the post-processor and return the options of tokenizer_config.json."""
    ids = tokenizer.special_token_ids
    hf_tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    return {
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "do_lower_case": hf_tokenizer.normalizer.lowercase,  # if loaded as BertTokenizer
    }


def _set_gpt_special_tokens(hf_tokenizer: BackendTokenizer, tokenizer: Tokenizer) -> dict[str, Any]:
    """Set the post-processor and return the options of tokenizer_config.json."""
    ids = tokenizer.special_token_ids
    (begin,), (between,), (end,) = SPECIAL_TOKEN_TEMPLATES[tokenizer.tokenizer_type]
    hf_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {between} $B:1 {end}:1",
        special_tokens=[(token, ids[token]) for token in sorted({begin, between, end})],
    )
    options: dict[str, Any] = {
        # Without token types: these models would add a piece's embedding for them.
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": begin,
        "eos_token": end,
        "pad_token": begin,
    }
    if tokenizer.tokenizer_type == "bpe":
        options["unk_token"] = "<unk>"
    if tokenizer.tokenizer_type == "byte_bpe":
        options["add_prefix_space"] = True  # if loaded as GPT2Tokenizer
    return options


def _activation_from_hf(hf_config: HFConfig, key: str) -> str:
    activation = hf_config[key]
    if not isinstance(activation, str) or activation not in GELU_NAMES:
        raise ValueError(f"{key} is '{activation}'{suggest_nearest(str(activation), GELU_NAMES)}")
    return GELU_NAMES[activation]


def _require_values(hf_config: HFConfig, expected: Mapping[str, object]) -> None:
    """Raise ValueError if a config asks for something that our models do not do."""
    for key, value in expected.items():
        if hf_config.get(key, value) != value:
            raise ValueError(f"{key} is {hf_config[key]!r}; only {value!r} can be read")


def _single_dropout(hf_config: HFConfig, first: str, *others: str) -> float:
    """Return the dropout that all these keys have, by the library's default if they are missing.

    Raises ValueError if they differ.
    """
    for key in others:
        dropout = hf_config.get(key, DEFAULT_DROPOUT)
        if dropout != hf_config[first]:
            raise ValueError(
                f"{key} is {dropout} and {first} {hf_config[first]}; a model here has one dropout: "
                "give all the one to go on with"
            )
    return float(hf_config[first])


def _bert_keys_from_hf(hf_config: HFConfig) -> dict[str, Any]:
    return {
        "dropout": _single_dropout(
            hf_config, "hidden_dropout_prob", "attention_probs_dropout_prob"
        ),
        "activation": _activation_from_hf(hf_config, "hidden_act"),
        "norm_first": False,
    }


def _bert_keys_to_hf(config: ContextualizerConfig) -> HFConfig:
    if config.contextualizer != "transformer" or config.direction != "bidirectional":
        raise InputError(
            f"this model has contextualizer '{config.contextualizer}' and direction "
            f"'{config.direction}'; the BERT of transformers is a bidirectional Transformer"
        )
    if config.norm_first:
        raise InputError(
            "norm_first is true; the BERT of transformers normalizes after each part; train it "
            "with norm_first: false"
        )
    return {
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "hidden_act": HF_GELU_NAMES[config.activation],
    }


def _gpt_keys_from_hf(hf_config: HFConfig) -> dict[str, Any]:
    is_gpt2 = hf_config["model_type"] == "gpt2"
    ffn_size = 4 * hf_config["n_embd"]
    if is_gpt2:
        activation = _activation_from_hf(hf_config, "activation_function")
        ffn_size = hf_config.get("n_inner") or ffn_size
    elif hf_config["afn"] == "gelu":
        activation = "gelu_tanh"
    else:
        raise ValueError(f"afn is '{hf_config['afn']}'; only 'gelu' can be read")
    return {
        "dropout": _single_dropout(hf_config, "resid_pdrop", "embd_pdrop", "attn_pdrop"),
        "norm_first": is_gpt2,
        "activation": activation,
        "ffn_size": ffn_size,
    }


def _gpt_keys_to_hf(config: TransformerConfig) -> HFConfig:
    hf_config: HFConfig = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    if config.norm_first:
        activation = HF_GELU_NAMES[config.activation]
        return hf_config | {"activation_function": activation, "n_inner": config.ffn_size}
    assert config.hidden_size is not None
    if config.activation != "gelu_tanh" or config.ffn_size != 4 * config.hidden_size:
        raise InputError(
            "a post-norm GPT is GPT-1 in transformers, with gelu_tanh and a feed-forward of "
            f"{4 * config.hidden_size}; this one has {config.activation} and {config.ffn_size}; "
            "train it with these, or with norm_first: true, which is GPT-2"
        )
    return hf_config | {"afn": "gelu"}


def _weight_and_bias(name: str, module: nn.Linear | nn.LayerNorm) -> TensorViews:
    return {f"{name}.weight": module.weight, f"{name}.bias": module.bias}


def _conv1d(name: str, module: nn.Linear) -> TensorViews:
    """Return the views of transformers' Conv1D, whose weight is (in, out)."""
    return {f"{name}.weight": module.weight.T, f"{name}.bias": module.bias}


def _bert_tensor_views(model: bert.BertModel) -> TensorViews:
    views: TensorViews = {
        "bert.embeddings.word_embeddings.weight": model.token_embeddings.weight,
        "bert.embeddings.position_embeddings.weight": model.position_embeddings.weight,
        "bert.embeddings.token_type_embeddings.weight": model.segment_embeddings.weight,
    }
    views |= _weight_and_bias("bert.embeddings.LayerNorm", model.embedding_norm)
    assert isinstance(model.body, Transformer)
    for i, block in enumerate(model.body.blocks):
        assert isinstance(block, TransformerBlock)
        layer = f"bert.encoder.layer.{i}"
        qkv_weights = block.qkv_proj.weight.chunk(3)
        qkv_biases = block.qkv_proj.bias.chunk(3)
        for part, name in enumerate(("query", "key", "value")):
            views[f"{layer}.attention.self.{name}.weight"] = qkv_weights[part]
            views[f"{layer}.attention.self.{name}.bias"] = qkv_biases[part]
        views |= _weight_and_bias(f"{layer}.attention.output.dense", block.out_proj)
        views |= _weight_and_bias(f"{layer}.attention.output.LayerNorm", block.attention_norm)
        views |= _weight_and_bias(f"{layer}.intermediate.dense", block.ffn_in)
        views |= _weight_and_bias(f"{layer}.output.dense", block.ffn_out)
        views |= _weight_and_bias(f"{layer}.output.LayerNorm", block.ffn_norm)
    views |= _weight_and_bias("bert.pooler.dense", model.pooler)
    views |= _weight_and_bias("cls.predictions.transform.dense", model.mlm_dense)
    views |= _weight_and_bias("cls.predictions.transform.LayerNorm", model.mlm_norm)
    views["cls.predictions.bias"] = model.mlm_bias
    views |= _weight_and_bias("cls.seq_relationship", model.nsp_head)
    return views


def _gpt_tensor_views(model: gpt.GPTModel) -> TensorViews:
    is_gpt2 = model.config.norm_first
    tokens = "wte" if is_gpt2 else "tokens_embed"
    positions = "wpe" if is_gpt2 else "positions_embed"
    views: TensorViews = {
        f"transformer.{tokens}.weight": model.token_embeddings.weight,
        f"transformer.{positions}.weight": model.position_embeddings.weight,
    }
    for i, block in enumerate(model.body.blocks):
        assert isinstance(block, TransformerBlock)
        layer = f"transformer.h.{i}"
        views |= _conv1d(f"{layer}.attn.c_attn", block.qkv_proj)
        views |= _conv1d(f"{layer}.attn.c_proj", block.out_proj)
        views |= _conv1d(f"{layer}.mlp.c_fc", block.ffn_in)
        views |= _conv1d(f"{layer}.mlp.c_proj", block.ffn_out)
        views |= _weight_and_bias(f"{layer}.ln_1", block.attention_norm)
        views |= _weight_and_bias(f"{layer}.ln_2", block.ffn_norm)
    if is_gpt2:
        final_norm = model.body.final_norm
        assert isinstance(final_norm, nn.LayerNorm)
        views |= _weight_and_bias("transformer.ln_f", final_norm)
    return views


def _nanochat_keys_from_hf(hf_config: HFConfig) -> dict[str, Any]:
    for key in ("final_logit_softcapping", "tie_word_embeddings"):
        hf_config[key]  # their defaults are not what our models do, so they must be given
    num_key_value_heads = hf_config.get("num_key_value_heads")
    if num_key_value_heads not in (None, hf_config["num_attention_heads"]):
        raise ValueError(
            f"num_key_value_heads is {num_key_value_heads}; only as many as num_attention_heads "
            "can be read"
        )
    if (hf_config.get("rope_parameters") or {}).get("rope_theta") != ROTARY_BASE:
        raise ValueError(f"rope_parameters: rope_theta is not {ROTARY_BASE:g}, the only one read")
    return {}


def _nanochat_keys_to_hf(config: ModernConfig) -> HFConfig:
    return {
        "num_key_value_heads": config.num_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
        **NANOCHAT_VALUES,
    }


def _nanochat_tensor_views(model: ModernTransformer) -> TensorViews:
    views: TensorViews = {"model.embed_tokens.weight": model.token_embeddings.weight}
    for i, block in enumerate(model.blocks):
        assert isinstance(block, ModernBlock)
        layer = f"model.layers.{i}"
        for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
            views[f"{layer}.self_attn.{name}.weight"] = block.qkv_3DD[part]
        views[f"{layer}.self_attn.o_proj.weight"] = block.out_DD
        views[f"{layer}.mlp.fc1.weight"] = block.ffn_in_FD
        views[f"{layer}.mlp.fc2.weight"] = block.ffn_out_DF
    return views


BERT_LAYOUT = HFLayout(
    hf_class_name="BertForPreTraining",
    prefix="bert.",
    keys={
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "max_positions": "max_position_embeddings",
        "layer_norm_eps": "layer_norm_eps",
        "init_std": "initializer_range",
        "hidden_size": "hidden_size",
        "ffn_size": "intermediate_size",
    },
    required_values={
        "is_decoder": False,
        "add_cross_attention": False,
        "type_vocab_size": 2,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    },
    other_keys_from_hf=_bert_keys_from_hf,
    other_keys_to_hf=_bert_keys_to_hf,
    family=bert.FAMILY,
    tensor_views=_bert_tensor_views,
)
GPT_LAYOUT = HFLayout(
    hf_class_name="OpenAIGPTLMHeadModel",
    prefix="transformer.",
    keys={
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "max_positions": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "init_std": "initializer_range",
        "hidden_size": "n_embd",
    },
    required_values={
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    other_keys_from_hf=_gpt_keys_from_hf,
    other_keys_to_hf=_gpt_keys_to_hf,
    family=gpt.FAMILY,
    tensor_views=_gpt_tensor_views,
)
NANOCHAT_VALUES = {  # what our models do
    "hidden_act": "relu2",
    "attention_bias": False,
    "final_logit_softcapping": None,
    "tie_word_embeddings": True,
}
NANOCHAT_LAYOUT = HFLayout(
    hf_class_name="NanoChatForCausalLM",
    prefix="model.",
    keys={
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "max_positions": "max_position_embeddings",
        "hidden_size": "hidden_size",
        "ffn_size": "intermediate_size",
    },
    required_values=NANOCHAT_VALUES,
    other_keys_from_hf=_nanochat_keys_from_hf,
    other_keys_to_hf=_nanochat_keys_to_hf,
    family=gpt_modern.FAMILY,
    tensor_views=_nanochat_tensor_views,
)
LAYOUTS = {
    "bert": BERT_LAYOUT,
    "openai-gpt": GPT_LAYOUT,
    "gpt2": replace(GPT_LAYOUT, hf_class_name="GPT2LMHeadModel"),
    "nanochat": NANOCHAT_LAYOUT,
}
