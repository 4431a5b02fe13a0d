"""profiles/paper.yaml holds the papers' sizes: models built from it have the published numbers of parameters."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from flows.workspace import compose
from lineage.budget import parameters_by_part, sized
from lineage.errors import InputError
from lineage.params import Params
from lineage.records import load, read_yaml
from lineage.study import Variant, variant
from tests.toy_project import HERE


@functools.cache
def params() -> Params:
    return load(Params, compose(HERE / "profiles", "paper"), "params.yaml")


def counts(found: Variant, config: Any) -> dict[str, int]:
    with torch.device("meta"):
        return parameters_by_part(found.family.build(config, vocabulary=found.tokenizer.vocabulary))


@pytest.mark.parametrize(("name", "parts", "published"), [
    ("bert", ("embedding", "body", "pooler"), 109_482_240),  # transformers' BertModel of bert-base-uncased
    ("bert_large", ("embedding", "body", "pooler"), 335_141_888),  # bert-large-uncased
    ("gpt", ("embedding", "body"), 116_534_784),  # openai-gpt, its softmax tied
    ("gpt2", ("embedding", "body"), 124_439_808),  # gpt2, its softmax tied
])  # fmt: skip
def test_transformers_have_as_many_parameters_as_the_released_ones(name: str, parts: tuple[str, ...], published: int) -> None:
    found = variant(params(), name)
    config = sized(found.family, found.model, vocabulary=found.tokenizer.vocabulary, parameters=params().budget.parameters)
    assert config == found.model, "widths that are given are not solved again"
    assert sum(counts(found, config)[part] for part in parts) == published


@pytest.mark.parametrize(("name", "parts", "millions"), [
    ("elmo", ("characters", "body"), 93.6),  # allennlp.org/elmo: without the softmax
    ("elmo_medium", ("characters", "body"), 28.0),
    ("elmo_small", ("characters", "body"), 13.6),
    ("awd_lstm_ptb", ("embedding", "body"), 24),  # Merity et al. 2018, tables 1 and 2: with the tied table
    ("awd_lstm_wt2", ("embedding", "body"), 33),
])  # fmt: skip
def test_lstms_have_the_published_millions_of_parameters(name: str, parts: tuple[str, ...], millions: float) -> None:
    found = variant(params(), name)
    total = sum(counts(found, found.model)[part] for part in parts) / 1e6
    assert (int(total) if isinstance(millions, int) else round(total, 1)) == millions


def test_a_width_that_is_left_open_is_refused_where_no_number_of_parameters_is_given() -> None:
    found = variant(params(), "bert")
    with pytest.raises(InputError, match=r"parameters is null, so every width has to be given, and bert's"):
        sized(found.family, dataclasses.replace(found.model, feed_forward=None), vocabulary=97, parameters=None)


@pytest.mark.parametrize("profile", ["paper", "base"])
def test_bert_s_norms_have_the_released_epsilon(profile: str) -> None:
    """1e-12, where torch and most re-implementations have 1e-5 (google-research/bert, modeling.py)."""
    tree = read_yaml(HERE / "profiles" / "base.yaml") if profile == "base" else compose(HERE / "profiles", profile)
    assert tree["models"]["bert"]["model"]["norm_epsilon"] == 1e-12


def test_the_translation_model_is_the_papers() -> None:
    """Ramachandran et al. 2017: all three of their techniques, three layers, the first of them pretrained on both sides."""
    found = variant(params(), "seq2seq")
    settings = found.evaluate.translate
    assert settings is not None and settings.layers == 3 and settings.recipe == "both+lm_losses+residual+first_and_top"
    assert counts(found, found.model)["body"] == 2 * 8 * 1024 * (1024 + 1)  # a language: four gates, each of words, state and two biases
