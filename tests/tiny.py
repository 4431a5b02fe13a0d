"""Tiny variants of every family on a few generated documents, for the tests of models and training. Odd sizes on purpose."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.profiles import compose_profile, merge_params
from lineage.config.records import read_yaml
from lineage.config.resolve import fill_in_defaults, resolve_tree
from lineage.config.study import ModelConfig, parse_model_config
from lineage.evaluation.answers import LabelAnswer
from lineage.evaluation.settings import BilstmProbeSettings
from lineage.models.base import Encoder, LanguageModelFamily
from lineage.models.batch import Batch
from lineage.models.checkpoint import Checkpoint
from lineage.synthetic import grammar
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings, TokenizerType
from lineage.tokenizers.train import train_tokenizer
from lineage.training.budget import match_parameter_budget

ROOT = Path(__file__).parent.parent
TRAINED = (
    "elmo",
    "ulmfit",
    "gpt",
    "bert",
    "taglm",
    "context2vec",
    "sa_lstm",
    "seq2seq",
)  # by the one loop
CELLS = tuple(
    f"{direction}_{extractor}"
    for direction in ("left", "joined", "masked")
    for extractor in ("transformer", "lstm")
)  # so too
STATIC = ("word2vec", "fasttext", "glove")
FAMILIES = (*TRAINED, *CELLS, *STATIC)
PARAMETERS = 12_000
CPU = torch.device("cpu")
NETWORK = BilstmProbeSettings(
    hidden_size=11,
    epochs=10,
    batch_size=8,
    learning_rate=0.02,
    cut_frac=0.1,
    ratio=32.0,
    weight_decay=0.0,
    dropout=0.0,
    max_grad_norm=5.0,
)
SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "elmo": {
        "tokenizer": {"vocab_size": 301},
        "architecture": {"filters": [[1, 5], [2, 7]], "char_embedding_size": 5},
        "pretrain": {"batch_size": 3, "seq_len": 7},
    },
    "ulmfit": {
        "tokenizer": {"vocab_size": 301},
        "architecture": {"num_layers": 2, "classifier_hidden_size": 7},
        "pretrain": {"batch_size": 3, "seq_len": 7},
    },
    "gpt": {
        "tokenizer": {"vocab_size": 499},
        "architecture": {"num_layers": 2, "num_heads": 2},
        "pretrain": {"batch_size": 3, "seq_len": 13},
    },
    "bert": {
        "tokenizer": {"vocab_size": 499},
        "architecture": {"num_layers": 2, "num_heads": 2},
        "pretrain": {"batch_size": 3, "seq_len": 23},
    },
    "taglm": {"tokenizer": {"vocab_size": 301}, "pretrain": {"batch_size": 5, "seq_len": 11}},
    "context2vec": {
        "tokenizer": {"vocab_size": 301},
        "pretrain": {"batch_size": 13, "seq_len": 23},
    },
    "sa_lstm": {"tokenizer": {"vocab_size": 151}, "pretrain": {"batch_size": 5, "seq_len": 11}},
    "seq2seq": {"tokenizer": {"vocab_size": 499}, "pretrain": {"batch_size": 3, "seq_len": 7}},
    "word2vec": {"tokenizer": {"vocab_size": 401}, "architecture": {"hidden_size": 17}},
    "fasttext": {
        "tokenizer": {"vocab_size": 401},
        "architecture": {"hidden_size": 17, "num_buckets": 997},
    },
    "glove": {"tokenizer": {"vocab_size": 401}, "architecture": {"hidden_size": 17}},
}
SMALL |= dict.fromkeys(CELLS, SMALL["bert"])


def slow(names: Iterable[str]) -> list[Any]:
    """The names as parameters of tests, each marked slow."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def dropping(name: str, share: float) -> dict[str, Any]:
    """What to override in the block `model` for dropout everywhere."""
    places = ("embedding", "input", "weight", "hidden", "output")
    return {"dropouts": dict.fromkeys(places, share)} if name == "ulmfit" else {"dropout": share}


def composed(profile: str) -> dict[str, Any]:
    """A profile's params.yaml with the defaults of the families filled in."""
    return resolve_tree(compose_profile(ROOT / "profiles", profile), "params.yaml")


def shipped() -> dict[str, Any]:
    """The demo's params.yaml with the defaults of the families filled in."""
    return resolve_tree(read_yaml(ROOT / "params.yaml"), "params.yaml")


@functools.cache
def blocks() -> dict[str, Any]:
    """The families' blocks of profiles/base.yaml, and those of profiles/cells.yaml."""
    return {name: {} for name in (*TRAINED, *STATIC)} | composed("cells")["models"]


@functools.cache
def documents() -> tuple[str, ...]:
    """Sixty documents of the microworld."""
    return tuple(grammar.generate_documents(60, seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED))


def variant(name: str, **over: Mapping[str, Any]) -> ModelConfig:
    """A variant's block, made small."""
    block = fill_in_defaults(name, merge_params(merge_params(blocks()[name], SMALL[name]), over))
    return parse_model_config(name, block, f"models.{name}")


def reader(name: str) -> Tokenizer:
    """The family's tokenizer, trained on the documents."""
    found = variant(name)
    return _trained(found.tokenizer, found.tokenizer_type)


def tokens(name: str) -> TokenizedCorpus:
    """The documents as the family's ids."""
    found = variant(name)
    return _encoded(found.tokenizer, found.tokenizer_type)


@functools.cache
def _trained(settings: TokenizerSettings, unit: TokenizerType) -> Tokenizer:
    return train_tokenizer(documents(), settings, tokenizer_type=unit, language="en")


@functools.cache
def _encoded(settings: TokenizerSettings, unit: TokenizerType) -> TokenizedCorpus:
    return encode_corpus(documents(), _trained(settings, unit))


def batch(name: str, index: int, **over: Mapping[str, Any]) -> Batch:
    """A batch of the first pass over the documents, as the family is pretrained on."""
    found = variant(name, **over)
    assert isinstance(found.family, LanguageModelFamily)
    stream = found.family.batch_sampler(tokens(name), reader(name), found.pretrain, seed=1)
    stream.set_epoch(0)
    given: Batch = stream.get_batch(index)
    return given


fitted = functools.cache(match_parameter_budget)  # tests ask for the same few models


def checkpoint(name: str, **over: Mapping[str, Any]) -> Checkpoint:
    """A model of about PARAMETERS in its body."""
    found = variant(name, **over)
    config = fitted(
        found.family,
        found.architecture,
        vocab_size=reader(name).vocab_size,
        body_parameters=PARAMETERS,
    )
    return Checkpoint(name, found.family, config, found.pretrain, reader(name), seed=11)


def model(name: str, **over: Mapping[str, Any]) -> Encoder:
    """An untrained model."""
    return checkpoint(name, **over).build(CPU, load_weights=False)


def moved(text: str) -> str:
    """The text in another language: its small letters, each moved on by seven."""
    return "".join(chr((ord(c) - 97 + 7) % 26 + 97) if "a" <= c <= "z" else c for c in text)


def two_languages() -> TokenizedCorpus:
    """The documents, of which every other one is in another language."""
    texts = [moved(text) if number % 2 else text for number, text in enumerate(documents())]
    return encode_corpus(texts, reader("seq2seq"), languages=["en", "xx"] * (len(texts) // 2))


def bilingual(**over: Any) -> Any:
    """The block `pretrain` for them."""
    return variant(
        "seq2seq", pretrain={"source_language": "en", "target_language": "xx", **over}
    ).pretrain


def asked(kind: str, *heads: str) -> dict[str, Any]:
    """What task.json says of a kind, as far as the cells of a stage depend on it."""
    return {"kind": kind, "probes": heads or ("linear",)}


def labels(count: int, *, choices: bool = False) -> LabelAnswer:
    """What a task of so many labels is answered with."""
    return LabelAnswer(tuple(map(str, range(count))), is_multiple_choice=choices)


class OneBatch:
    """A stream of one batch."""

    carries_state = False

    def __init__(self, batch: Batch) -> None:
        self.only = batch

    def set_epoch(self, epoch: int) -> int:
        return 1

    def get_batch(self, index: int) -> Batch:
        return self.only
