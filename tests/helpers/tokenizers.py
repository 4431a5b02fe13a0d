"""Small tokenizers of every kind, also for Chinese."""

import functools
from typing import Any

from lineage.study.models import ModelConfig
from lineage.synthetic.grammar import generate_documents
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings, TokenizerType
from lineage.tokenizers.train import train_tokenizer
from tests.helpers import tiny

MIXED_SCRIPT_WORDS = (
    "他",
    "在",
    "New",
    "York",
    "工作",
    "，",
    "用",
    "GPT",
    "-",
    "2",
    "写",
    "3.5",
    "字",
    "。",
)
MIXED_SCRIPT_TEXT = "他在New York工作，用GPT-2写3.5字。"
QUICK_EVALUATION = {
    "linear_probe": {"max_iter": 10, "trials": []},
    "bilstm_probe": {"hidden_size": 7, "epochs": 1, "min_steps": None},
    "finetune": {"epochs": 1, "min_steps": None, "trials": []},
}


@functools.cache
def chinese_texts() -> tuple[str, ...]:
    """Return documents of the synthetic language, and a few lines in both scripts."""
    return (
        *generate_documents(9, seed=3, language="zh"),
        *[MIXED_SCRIPT_TEXT] * 3,
        *["我用GPT-2 写3.5字。"] * 3,
    )


def chinese_config(name: str) -> ModelConfig:
    """Return a model's config with room for sentences of the synthetic language.

    Those sentences are long in characters.
    """
    overrides = {"pretrain": {"seq_len": 61}} if name in ("gpt", "bert") else {}
    return tiny.model_config(
        name, tokenizer={"vocab_size": 797}, evaluate=QUICK_EVALUATION, **overrides
    )


@functools.cache
def chinese_tokenizer(name: str) -> Tokenizer:
    config = chinese_config(name)
    return train_tokenizer(
        chinese_texts(), config.tokenizer, tokenizer_type=config.tokenizer_type, language="zh"
    )


NAMES = [name for name in tiny.FAMILIES if tiny.model_config(name).family.name == name]
ENGLISH_TEXT = "Na\u00efve  Ann saw 3.5 owls; Ann didn't see (any) cats \u2014 or dogs\u2026"


@functools.cache
def train_tokenizer_with(unit: TokenizerType, **settings: Any) -> Tokenizer:
    return train_tokenizer(
        [*tiny.documents(), ENGLISH_TEXT],
        TokenizerSettings(vocab_size=499, **settings),
        tokenizer_type=unit,
        language="en",
    )


TOKENIZERS = {name: lambda name=name: tiny.tokenizer(name) for name in NAMES} | {
    "backward": lambda: train_tokenizer_with("word", direction="backward"), "ftfy": lambda: train_tokenizer_with("byte_bpe", normalizer="ftfy"),
    "fastai": lambda: train_tokenizer_with("word", normalizer="fastai"),
    "end of word suffix": lambda: train_tokenizer_with("bpe", end_of_word_suffix=True, normalizer="ftfy", lowercase=True)}  # fmt: skip
# Text with broken characters, which GPT-1's normalization repairs.
GPT1_RAW = "â€œWellâ€\x9d — the “bank”,   said\n \n Zoë &amp; co…  (was it?!)  donâ€™t stop "


def train_gpt_tokenizer(tokenizer_type: str, **overrides: object) -> Tokenizer:
    """Train a tokenizer that normalizes text as for GPT-1."""
    settings = TokenizerSettings(
        **{"vocab_size": 499, "lowercase": True, "normalizer": "ftfy", **overrides}
    )  # type: ignore[arg-type]
    return train_tokenizer(
        [*tiny.documents(), GPT1_RAW, GPT1_RAW],
        settings,
        tokenizer_type=tokenizer_type,
        language="en",
    )  # type: ignore[arg-type]
