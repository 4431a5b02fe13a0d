"""Tiny variants of every family on a few generated documents, for the tests of models and training. Odd sizes on purpose."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.profiles import compose, merge
from lineage.batch import Batch
from lineage.checkpoint import Checkpoint
from lineage.family import Encoder
from lineage.microworld import grammar
from lineage.study import Variant, load_variant
from lineage.text.tokenization import Reader, TokenizerSettings, Unit
from lineage.text.tokens import Tokens, encode_corpus
from lineage.text.vocabulary import train_tokenizer
from lineage.training.budget import sized
from lineage.transfer.answers import Labels
from lineage.transfer.settings import NetworkSettings

TRAINED = ("elmo", "ulmfit", "gpt", "bert", "taglm", "context2vec", "sa_lstm", "seq2seq")  # by the one loop
CELLS = tuple(f"{direction}_{extractor}" for direction in ("left", "joined", "masked") for extractor in ("transformer", "lstm"))  # so too
STATIC = ("word2vec", "fasttext", "glove")
FAMILIES = (*TRAINED, *CELLS, *STATIC)
PARAMETERS = 12_000
CPU = torch.device("cpu")
NETWORK = NetworkSettings(cells=11, epochs=10, batch=8, rate=0.02, cut_share=0.1, ratio=32.0, weight_decay=0.0, dropout=0.0, clip_norm=5.0)
SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "elmo": {"tokenizer": {"vocabulary": 301}, "model": {"filters": [[1, 5], [2, 7]], "character_width": 5}, "pretrain": {"batch": 3, "length": 7}},
    "ulmfit": {"tokenizer": {"vocabulary": 301}, "model": {"layers": 2, "head": 7}, "pretrain": {"batch": 3, "length": 7}},
    "gpt": {"tokenizer": {"vocabulary": 499}, "model": {"layers": 2, "heads": 2}, "pretrain": {"batch": 3, "length": 13}},
    "bert": {"tokenizer": {"vocabulary": 499}, "model": {"layers": 2, "heads": 2}, "pretrain": {"batch": 3, "length": 23}},
    "taglm": {"tokenizer": {"vocabulary": 301}, "pretrain": {"batch": 5, "length": 11}},
    "context2vec": {"tokenizer": {"vocabulary": 301}, "pretrain": {"batch": 13, "length": 23}},
    "sa_lstm": {"tokenizer": {"vocabulary": 151}, "pretrain": {"batch": 5, "length": 11}},
    "seq2seq": {"tokenizer": {"vocabulary": 499}, "pretrain": {"batch": 3, "length": 7}},
    "word2vec": {"tokenizer": {"vocabulary": 401}, "model": {"width": 17}},
    "fasttext": {"tokenizer": {"vocabulary": 401}, "model": {"width": 17, "buckets": 997}},
    "glove": {"tokenizer": {"vocabulary": 401}, "model": {"width": 17}},
}
SMALL |= dict.fromkeys(CELLS, SMALL["bert"])


def slow(names: Iterable[str]) -> list[Any]:
    """The names as parameters of tests, each marked slow."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def dropping(name: str, share: float) -> dict[str, Any]:
    """What to override in the block `model` for dropout everywhere."""
    places = ("embedding", "input", "weight", "hidden", "output")
    return {"dropouts": dict.fromkeys(places, share)} if name == "ulmfit" else {"dropout": share}


@functools.cache
def blocks() -> dict[str, Any]:
    """The families' blocks of profiles/base.yaml, and those of profiles/cells.yaml."""
    return compose(Path(__file__).parent.parent / "profiles", "cells")["models"]


@functools.cache
def documents() -> tuple[str, ...]:
    """Sixty documents of the microworld."""
    return tuple(grammar.documents(60, seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED))


def variant(name: str, **over: Mapping[str, Any]) -> Variant:
    """A variant's block, made small."""
    block = merge(merge(blocks()[name], SMALL[name]), over)
    return load_variant(name, block, f"models.{name}")


def reader(name: str) -> Reader:
    """The family's tokenizer, trained on the documents."""
    found = variant(name)
    return _trained(found.tokenizer, found.unit)


def tokens(name: str) -> Tokens:
    """The documents as the family's ids."""
    found = variant(name)
    return _encoded(found.tokenizer, found.unit)


@functools.cache
def _trained(settings: TokenizerSettings, unit: Unit) -> Reader:
    return train_tokenizer(documents(), settings, unit=unit, language="en")


@functools.cache
def _encoded(settings: TokenizerSettings, unit: Unit) -> Tokens:
    return encode_corpus(documents(), _trained(settings, unit))


def batch(name: str, index: int, **over: Mapping[str, Any]) -> Batch:
    """A batch of the first pass over the documents, as the family is pretrained on."""
    found = variant(name, **over)
    assert found.family.stream is not None
    stream = found.family.stream(tokens(name), reader(name), found.pretrain, seed=1)
    stream.start(0)
    given: Batch = stream.batch(index)
    return given


fitted = functools.cache(sized)  # tests ask for the same few models


def checkpoint(name: str, **over: Mapping[str, Any]) -> Checkpoint:
    """A model of about PARAMETERS in its body."""
    found = variant(name, **over)
    config = fitted(found.family, found.model, vocabulary=reader(name).vocabulary, parameters=PARAMETERS)
    return Checkpoint(name, found.family, config, found.pretrain, reader(name), seed=11)


def model(name: str, **over: Mapping[str, Any]) -> Encoder:
    """An untrained model."""
    return checkpoint(name, **over).build(CPU, trained=False)


def moved(text: str) -> str:
    """The text in another language: its small letters, each moved on by seven."""
    return "".join(chr((ord(c) - 97 + 7) % 26 + 97) if "a" <= c <= "z" else c for c in text)


def two_languages() -> Tokens:
    """The documents, of which every other one is in another language."""
    texts = [moved(text) if number % 2 else text for number, text in enumerate(documents())]
    return encode_corpus(texts, reader("seq2seq"), languages=["en", "xx"] * (len(texts) // 2))


def bilingual(**over: Any) -> Any:
    """The block `pretrain` for them."""
    return variant("seq2seq", pretrain={"source": "en", "target": "xx", **over}).pretrain


def asked(kind: str, *heads: str) -> dict[str, Any]:
    """What task.json says of a kind, as far as the cells of a stage depend on it."""
    return {"kind": kind, "heads": heads or ("linear",)}


def labels(count: int, *, choices: bool = False) -> Labels:
    """What a task of so many labels is answered with."""
    return Labels(tuple(map(str, range(count))), choices=choices)


class OneBatch:
    """A stream of one batch."""

    carries = False

    def __init__(self, batch: Batch) -> None:
        self.only = batch

    def start(self, passed: int) -> int:
        return 1

    def batch(self, index: int) -> Batch:
        return self.only
