"""Folders of the `transformers` library: config.json, model.safetensors and the tokenizer, of its BERT, GPT-1 and GPT-2 classes.

What is trained here loads there and gives equal outputs, and the other way round. Only safetensors are read, never a pickle.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, processors

from lineage import weights
from lineage.artifacts import read_json, write_json
from lineage.errors import InputError
from lineage.families import bert, gpt
from lineage.family import Encoder, Family
from lineage.layers.extractors import ExtractorConfig
from lineage.layers.transformer import Block, Transformer, TransformerConfig
from lineage.loading.public import check_values
from lineage.records import load, nearest
from lineage.text.tokenization import FRAMES, Reader

Views = dict[str, torch.Tensor]  # see `lineage.weights`
GELU = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}  # theirs -> ours; GPT-1's "gelu" is another matter
LIBRARY_DROPOUT = 0.1  # where a config does not say
# Copies of tied weights, masks and position numbers, which some files hold: nothing is learned there.
IDLE = re.compile(r".*\.attn\.(masked_)?bias|.*position_ids|lm_head\.weight|cls\.predictions\.decoder\.(weight|bias)")


@dataclass(frozen=True)
class Layout:
    """One of the library's classes: what its config says, and where its tensors belong."""

    architecture: str
    prefix: str  # of the body's tensors; files of a bare body are without it
    to_config: Callable[[Mapping[str, Any]], dict[str, Any]]  # theirs -> the fields of our record
    from_config: Callable[[Any], dict[str, Any]]
    family: Family
    views: Callable[[Any], Views]


def read(folder: Path) -> Encoder:
    """The model of a folder that one of the three classes saved, its heads included.

    Raises InputError where a file, a key or a tensor is missing, too many or does not fit; nothing is loaded then.
    """
    layout, theirs = _config(folder)
    where = folder / "config.json"
    try:
        check_values(theirs)
        fields, vocabulary = layout.to_config(theirs), theirs["vocab_size"]
    except KeyError as error:
        raise InputError(f"{where}: the key {error} is missing") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    config = load(layout.family.model, fields, str(where))
    model: Encoder = weights.outlined(lambda: layout.family.build(config, vocabulary=vocabulary), where=str(where))
    path = weights.place(folder)
    found = weights.read(path, prefix=layout.prefix)
    weights.fill(model, layout.views, found, path, idle=IDLE)
    table: torch.Tensor = model.tokens.weight  # type: ignore[union-attr, assignment]
    copies = {"lm_head.weight": table, "cls.predictions.decoder.weight": table}
    if isinstance(model, bert.Model):
        copies["cls.predictions.decoder.bias"] = model.masked_bias
    weights.check_copies(found, copies, path)
    return model.eval()


def write(model: Encoder, reader: Reader, folder: Path) -> None:
    """Write a model and its tokenizer, marks included, for `AutoModelForPreTraining.from_pretrained` and its like.

    Raises InputError for a model that the library has no class for, and for a tokenizer that mends text first.
    """
    if not isinstance(model, bert.Model | gpt.Model):
        raise InputError(f"{type(model).__module__}: transformers has no class for this family's models; only those of bert and gpt can be written")
    config = model.config
    if config.position_encoding != "learned":
        raise InputError(f"position_encoding is '{config.position_encoding}'; the BERT and GPT of transformers learn a table of positions; "
                         "train it with 'learned'")  # fmt: skip
    if getattr(config, "one_matrix", False):
        raise InputError("one_matrix is true: this softmax ranges over positions too, which no GPT of transformers has; train without to write it")
    kind = "bert" if isinstance(model, bert.Model) else "openai-gpt" if config.norm == "post" else "gpt2"
    layout = LAYOUTS[kind]
    if (reader.unit == "wordpiece") != (kind == "bert"):
        raise InputError(f"the reader cuts text into {reader.unit}, which the {kind} of transformers does not read; give the model's own reader")
    if (rows := len(model.tokens.weight)) != reader.vocabulary:
        raise InputError(f"the model has {rows} rows of embeddings and the reader {reader.vocabulary} ids; give the model's own reader")
    if reader.normalise:
        raise InputError(f"{folder}: the tokenizer mends text by {reader.normalise} first, which its file could not say, so that it would give other "
                         "ids there; train with normalise: null to write it")  # fmt: skip
    own = layout.from_config(config)  # refuses what the layout has no place for
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"model_type": kind, "architectures": [layout.architecture], "vocab_size": reader.vocabulary, "tie_word_embeddings": True}
    if kind != "bert":  # a document begins with this mark, and so the one before it has ended where it comes
        facts |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), reader.marks["<|endoftext|>"])
    write_json(folder / "config.json", facts | own)
    weights.save(layout.views(model), folder / weights.WHOLE, metadata={"format": "pt"})
    _write_tokenizer(reader, config.positions, folder)


def _config(folder: Path) -> tuple[Layout, dict[str, Any]]:
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; name a folder that transformers saved")
    theirs = read_json(path)
    kind = theirs.get("model_type") if isinstance(theirs, dict) else None
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise InputError(f"{path}: model_type is '{kind}'{nearest(str(kind), LAYOUTS)}")
    return LAYOUTS[kind], theirs


def _write_tokenizer(reader: Reader, positions: int, folder: Path) -> None:
    """tokenizer.json with the family's marks put round a text or two, and what AutoTokenizer asks for beside it."""
    tokenizer = Tokenizer.from_str(reader.tokenizer.to_str())
    marks = reader.marks
    if reader.unit == "wordpiece":
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", marks["[SEP]"]), ("[CLS]", marks["[CLS]"]))
        names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        more = {"do_lower_case": tokenizer.normalizer.lowercase}  # for those who load it as BertTokenizer
    else:
        (begin,), (between,), (end,) = FRAMES[reader.unit]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {between} $B:1 {end}:1",
            special_tokens=[(m, marks[m]) for m in sorted({begin, between, end})],
        )
        names = {"bos_token": begin, "eos_token": end, "pad_token": begin} | ({"unk_token": "<unk>"} if reader.unit == "bpe" else {})
        inputs = ["input_ids", "attention_mask"]  # these models add the row of a piece for a token type
        more = {"add_prefix_space": True} if reader.unit == "byte_bpe" else {}  # for those who load it as GPT2Tokenizer
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions, "model_input_names": inputs}
    write_json(folder / "tokenizer_config.json", about | names | more)


def _gelu(theirs: Mapping[str, Any], key: str) -> str:
    if not isinstance(theirs[key], str) or theirs[key] not in GELU:
        raise ValueError(f"{key} is '{theirs[key]}'{nearest(str(theirs[key]), GELU)}")
    return GELU[theirs[key]]


def _refuse(theirs: Mapping[str, Any], **expected: Any) -> None:
    """Raise ValueError where the config asks for what our models do not do."""
    for key, value in expected.items():
        if theirs.get(key, value) != value:
            raise ValueError(f"{key} is {theirs[key]!r}; only {value!r} can be read")


def _dropout(theirs: Mapping[str, Any], first: str, *others: str) -> float:
    """The share that all of these keys say, or would say by the library's own defaults.

    Raises ValueError where they differ: who trained on would train another model than the folder's.
    """
    for other in others:
        if (said := theirs.get(other, LIBRARY_DROPOUT)) != theirs[first]:
            raise ValueError(f"{other} is {said} and {first} {theirs[first]}; a model here has one dropout: give all the one to go on with")
    return float(theirs[first])


def _bert_config(theirs: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(theirs, is_decoder=False, add_cross_attention=False, type_vocab_size=2, position_embedding_type="absolute", tie_word_embeddings=True)
    return {"layers": theirs["num_hidden_layers"], "heads": theirs["num_attention_heads"], "positions": theirs["max_position_embeddings"],
            "dropout": _dropout(theirs, "hidden_dropout_prob", "attention_probs_dropout_prob"),
            "activation": _gelu(theirs, "hidden_act"), "norm": "post",
            "norm_epsilon": theirs["layer_norm_eps"], "initial_deviation": theirs["initializer_range"], "width": theirs["hidden_size"],
            "feed_forward": theirs["intermediate_size"]}  # fmt: skip


def _to_bert(config: ExtractorConfig) -> dict[str, Any]:
    if (config.extractor, config.direction) != ("transformer", "both_sides"):
        raise InputError(f"this model is of extractor '{config.extractor}' and direction '{config.direction}'; the BERT of transformers is a "
                         "Transformer that reads both sides")  # fmt: skip
    if config.norm != "post":
        raise InputError(f"norm is '{config.norm}'; the BERT of transformers normalises after each part; train it with 'post'")
    return {"num_hidden_layers": config.layers, "num_attention_heads": config.heads, "max_position_embeddings": config.positions,
            "hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.dropout, "type_vocab_size": 2, "pad_token_id": 0,
            "hidden_act": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[config.activation], "layer_norm_eps": config.norm_epsilon,
            "initializer_range": config.initial_deviation, "hidden_size": config.width, "intermediate_size": config.feed_forward}  # fmt: skip


def _gpt_config(theirs: Mapping[str, Any]) -> dict[str, Any]:
    second = theirs["model_type"] == "gpt2"
    _refuse(theirs, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, add_cross_attention=False, tie_word_embeddings=True)
    if not second and theirs["afn"] != "gelu":
        raise ValueError(f"afn is '{theirs['afn']}'; only 'gelu' can be read")
    return {"layers": theirs["n_layer"], "heads": theirs["n_head"], "positions": theirs["n_positions"],
            "dropout": _dropout(theirs, "resid_pdrop", "embd_pdrop", "attn_pdrop"), "norm": "pre" if second else "post",
            "activation": _gelu(theirs, "activation_function") if second else "gelu_tanh",
            "norm_epsilon": theirs["layer_norm_epsilon"], "initial_deviation": theirs["initializer_range"], "width": theirs["n_embd"],
            "feed_forward": (second and theirs.get("n_inner")) or 4 * theirs["n_embd"]}  # fmt: skip


def _to_gpt(config: TransformerConfig) -> dict[str, Any]:
    found = {"n_layer": config.layers, "n_head": config.heads, "n_positions": config.positions, "n_embd": config.width,
             "layer_norm_epsilon": config.norm_epsilon, "initializer_range": config.initial_deviation}  # fmt: skip
    found |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    if config.norm == "pre":
        return found | {"activation_function": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[config.activation], "n_inner": config.feed_forward}
    assert config.width is not None
    if config.activation != "gelu_tanh" or config.feed_forward != 4 * config.width:
        raise InputError(
            f"a post-norm GPT is GPT-1 in transformers, with gelu_tanh and a feed-forward of {4 * config.width}; "
            f"this one has {config.activation} and {config.feed_forward}; train it with these, or with norm: pre, which is GPT-2"
        )
    return found | {"afn": "gelu"}


def _pair(name: str, module: Any, *, turned: bool = False) -> Views:
    """Weight and bias of a linear layer or a norm; `turned` where the file has (in, out), as transformers' Conv1D."""
    return {f"{name}.weight": module.weight.T if turned else module.weight, f"{name}.bias": module.bias}


def _bert_views(model: bert.Model) -> Views:
    inner = "bert.embeddings"
    found = {f"{inner}.word_embeddings.weight": model.tokens.weight, f"{inner}.position_embeddings.weight": model.positions.weight,
             f"{inner}.token_type_embeddings.weight": model.segments.weight, **_pair(f"{inner}.LayerNorm", model.embedding_norm)}  # fmt: skip
    assert isinstance(model.body, Transformer)
    for i, block in enumerate(model.body.blocks):
        assert isinstance(block, Block)
        where, joined = f"bert.encoder.layer.{i}", block.query_key_value
        for part, weight, bias in zip(("query", "key", "value"), joined.weight.chunk(3), joined.bias.chunk(3), strict=True):
            found |= {f"{where}.attention.self.{part}.weight": weight, f"{where}.attention.self.{part}.bias": bias}
        found |= _pair(f"{where}.attention.output.dense", block.output) | _pair(f"{where}.attention.output.LayerNorm", block.attention_norm)
        found |= _pair(f"{where}.intermediate.dense", block.expand) | _pair(f"{where}.output.dense", block.contract)
        found |= _pair(f"{where}.output.LayerNorm", block.feed_forward_norm)
    found |= _pair("bert.pooler.dense", model.pooler) | _pair("cls.predictions.transform.dense", model.masked_dense)
    found |= _pair("cls.predictions.transform.LayerNorm", model.masked_norm) | {"cls.predictions.bias": model.masked_bias}
    return found | _pair("cls.seq_relationship", model.next_sentence)


def _gpt_views(model: gpt.Model) -> Views:
    first = model.config.norm == "post"
    tokens, positions = ("tokens_embed", "positions_embed") if first else ("wte", "wpe")
    found = {f"transformer.{tokens}.weight": model.tokens.weight, f"transformer.{positions}.weight": model.positions.weight}
    for i, block in enumerate(model.body.blocks):
        assert isinstance(block, Block)
        where = f"transformer.h.{i}"
        found |= _pair(f"{where}.attn.c_attn", block.query_key_value, turned=True) | _pair(f"{where}.attn.c_proj", block.output, turned=True)
        found |= _pair(f"{where}.mlp.c_fc", block.expand, turned=True) | _pair(f"{where}.mlp.c_proj", block.contract, turned=True)
        found |= _pair(f"{where}.ln_1", block.attention_norm) | _pair(f"{where}.ln_2", block.feed_forward_norm)
    return found if first else found | _pair("transformer.ln_f", model.body.last_norm)


LAYOUTS = {
    "bert": Layout("BertForPreTraining", "bert.", _bert_config, _to_bert, bert.FAMILY, _bert_views),
    "openai-gpt": Layout("OpenAIGPTLMHeadModel", "transformer.", _gpt_config, _to_gpt, gpt.FAMILY, _gpt_views),
    "gpt2": Layout("GPT2LMHeadModel", "transformer.", _gpt_config, _to_gpt, gpt.FAMILY, _gpt_views),
}
