"""The study `paper` has the settings of the papers: sizes, parameter counts and schedules."""

import dataclasses
import functools
import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch

from lineage.config.params import Params, parse_params
from lineage.config.records import read_yaml
from lineage.config.resolve import fill_in_defaults, merge_trees
from lineage.errors import InputError
from lineage.methods.early_stopping import count_max_steps
from lineage.methods.finetuning import unfreeze_layers
from lineage.study.models import ModelConfig, load_model_config
from lineage.training.budget import count_parameters_by_role, match_parameter_budget
from lineage.training.schedules import schedule_with_warmup
from tests.helpers import tiny
from tests.helpers.toy_project import REPOSITORY


@functools.cache
def params() -> Params:
    return parse_params(tiny.study_params("paper"), "params.yaml")


def count_parameters(model: ModelConfig, config: Any) -> dict[str, int]:
    with torch.device("meta"):
        return count_parameters_by_role(
            model.family.build(config, vocab_size=model.tokenizer.vocab_size)
        )


@pytest.mark.parametrize(("name", "parts", "published"), [
    ("bert", ("embedding", "body", "pooler"), 109_482_240),  # transformers' BertModel of bert-base-uncased
    ("bert_large", ("embedding", "body", "pooler"), 335_141_888),  # bert-large-uncased
    ("gpt", ("embedding", "body"), 116_534_784),  # openai-gpt, with a tied softmax
    ("gpt2", ("embedding", "body"), 124_439_808),  # gpt2, with a tied softmax
])  # fmt: skip
def test_transformers_have_the_parameter_counts_of_the_released_models(
    name: str, parts: tuple[str, ...], published: int
) -> None:
    model = load_model_config(params(), name)
    config = match_parameter_budget(
        model.family,
        model.architecture,
        vocab_size=model.tokenizer.vocab_size,
        body_parameters=params().budget.body_parameters,
    )
    assert config == model.architecture, "widths that are given are kept"
    assert sum(count_parameters(model, config)[part] for part in parts) == published


@pytest.mark.parametrize(("name", "parts", "millions"), [
    ("elmo", ("characters", "body"), 93.6),  # allennlp.org/elmo: without the softmax
    ("elmo_medium", ("characters", "body"), 28.0),
    ("elmo_small", ("characters", "body"), 13.6),
    ("awd_lstm_ptb", ("embedding", "body"), 24),  # Merity et al. 2018, tables 1 and 2: with the tied embedding
    ("awd_lstm_wt2", ("embedding", "body"), 33),
])  # fmt: skip
def test_lstms_have_the_published_millions_of_parameters(
    name: str, parts: tuple[str, ...], millions: float
) -> None:
    model = load_model_config(params(), name)
    total = sum(count_parameters(model, model.architecture)[part] for part in parts) / 1e6
    if isinstance(millions, int):
        assert int(total) == millions
    else:
        assert round(total, 1) == millions


def test_an_unset_width_is_refused_without_a_parameter_budget() -> None:
    model = load_model_config(params(), "bert")
    with pytest.raises(
        InputError,
        match="every width has to be given; add ffn_size to the block `architecture` of bert",
    ):
        match_parameter_budget(
            model.family,
            dataclasses.replace(model.architecture, ffn_size=None),
            vocab_size=97,
            body_parameters=None,
        )


@pytest.mark.parametrize("source", ["paper", "defaults"])
def test_bert_layer_norms_use_the_released_epsilon(source: str) -> None:
    """google-research/bert (modeling.py) uses 1e-12; torch and most re-implementations use 1e-5."""
    block = fill_in_defaults("bert", {})
    if source == "paper":
        block = tiny.study_params(source)["models"]["bert"]
    assert block["architecture"]["layer_norm_eps"] == 1e-12


def test_the_translation_model_matches_the_paper() -> None:
    """Ramachandran et al. 2017: three layers and all three techniques; both sides start pretrained."""
    model = load_model_config(params(), "seq2seq")
    settings = model.evaluate.translation
    assert settings is not None
    assert settings.num_layers == 3
    assert settings.recipe == "both+lm_losses+residual+first_and_top"
    # One LSTM per language: four gates, each with input weights, state weights and two biases.
    num_parameters = 2 * 8 * 1024 * (1024 + 1)
    assert count_parameters(model, model.architecture)["body"] == num_parameters


@pytest.mark.parametrize("name", ["ulmfit", "ulmfit_backward"])
def test_ulmfit_unfreezes_one_more_layer_at_the_end_of_each_of_the_first_epochs(name: str) -> None:
    """Howard and Ruder 2018, section 3.3: train only the head for an epoch, then one layer more."""
    model = load_model_config(params(), name)
    steps_per_epoch = 391  # IMDb's 25,000 reviews in batches of 64
    settings = model.evaluate.finetune
    with torch.device("meta"):
        layers = [
            *model.family.build(model.architecture, vocab_size=99).layer_groups(),
            [torch.nn.Parameter(torch.empty(3))],
        ]
        optimizer = settings.build_optimizer(layers)
    unfreeze_steps: list[int] = []
    num_steps = settings.epochs * steps_per_epoch
    for step in range(num_steps + 1):
        unfreeze_layers(optimizer, Fraction(step, num_steps), settings.gradual_unfreezing)
        num_trainable = sum(layer[0].requires_grad for layer in layers)
        unfreeze_steps += [step] * (num_trainable - len(unfreeze_steps))
    assert unfreeze_steps == [epoch * steps_per_epoch for epoch in range(5)]


@pytest.mark.parametrize(
    ("name", "epochs"),
    [
        ("gpt", 3),
        ("gpt2", 3),
        ("bert", 3),
        ("bert_large", 3),
        ("ulmfit", 50),
        ("ulmfit_backward", 50),
    ],
)
def test_few_labels_are_trained_for_at_most_the_epochs_of_the_papers(
    name: str, epochs: int
) -> None:
    """The default minimum of steps does not apply: 100 labels are 4 batches of 32, or 2 of 64."""
    finetuning = load_model_config(params(), name).evaluate.finetune
    assert [count_max_steps(finetuning, steps) // steps for steps in (1, 2, 4)] == [epochs] * 3


@pytest.mark.parametrize(
    ("name", "words"), [("awd_lstm_ptb", 929_589), ("awd_lstm_wt2", 2_088_628)]
)
def test_averaging_is_checked_after_as_many_words_as_the_papers_corpus_has(
    name: str, words: int
) -> None:
    """Merity et al. 2018 check after each epoch; raw WikiText-103 has 5.3 bytes per word."""
    settings = load_model_config(params(), name).pretrain
    corpus = params().corpora["general"]
    words_between_checks = params().budget.text_bytes / 5.3 / settings.nt_asgd.checks
    assert words_between_checks == pytest.approx(words, rel=0.1)
    assert settings.nt_asgd.checks * corpus.validation_share < 0.25, (
        "validation reads this many times the corpus"
    )


def test_the_models_with_other_adaptation_or_fine_tuning_are_those_of_the_header() -> None:
    models = tiny.study_params("paper")["models"]
    families = {name: block.get("family", name) for name, block in models.items()}
    family_defaults = {family: fill_in_defaults(family, {}) for family in families.values()}
    adapted_differently = {
        name
        for name, family in families.items()
        if models[name].get("adapt") != family_defaults[family].get("adapt")
    }
    finetuned_differently = {
        name
        for name, family in families.items()
        if models[name]["evaluate"]["finetune"] != family_defaults[family]["evaluate"]["finetune"]
    }
    like_ulmfit = {"ulmfit", "ulmfit_backward", "awd_lstm_ptb", "awd_lstm_wt2"}
    like_gpt = {"gpt", "gpt2"}
    assert adapted_differently == like_ulmfit
    assert finetuned_differently == like_ulmfit | like_gpt | {
        "bert",
        "bert_large",
        "sa_lstm",
        "sa_lstm_gain",
    }
    for names in (like_ulmfit, like_gpt):
        for first, second in itertools.product(names, names):
            for key in ("adapt", "evaluate"):
                assert models[first][key] == models[second][key]


@pytest.mark.parametrize("name", ["elmo", "elmo_medium", "elmo_small"])
def test_an_elmo_update_reads_the_batches_of_three_gpus(name: str) -> None:
    """bilm-tf sums the gradients of three GPUs with 128 sequences each.

    Gradient accumulation would differ: each batch continues from the state of the one before.
    """
    settings = load_model_config(params(), name).pretrain
    assert (settings.batch_size, settings.grad_accum_steps) == (3 * 128, 1)


# Pretraining values that a paper model may inherit: Adam's defaults, and switches that are off.
NEUTRAL_VALUES = {"betas": [0.9, 0.999], "epsilon": 1e-8, "bias_correction": True, "weight_decay": 0.0, "grad_accum_steps": 1, "nt_asgd": None,
                  "carry_state": True, "whole_word_masking": False, "source_language": None, "target_language": None}  # fmt: skip


@pytest.mark.parametrize("name", read_yaml(REPOSITORY / "studies" / "paper.yaml")["models"])
def test_paper_models_inherit_no_pretraining_setting_of_the_demo(name: str) -> None:
    """paper.yaml states every pretraining setting with its source.

    It also states the fine-tuning settings of the models that their papers fine-tune.
    """
    entries = read_yaml(REPOSITORY / "studies" / "paper.yaml")["models"]
    stated: dict[str, Any] = {}
    composed = tiny.study_params("paper")["models"][name]
    chain = [name]
    while (parent := entries.get(chain[-1], {}).get("like")) is not None:
        chain.append(parent)
    for entry in reversed(chain):
        stated = merge_trees(stated, entries.get(entry, {}))
    inherited = {
        key: value for key, value in composed["pretrain"].items() if key not in stated["pretrain"]
    }
    assert {
        key: value
        for key, value in inherited.items()
        if key not in NEUTRAL_VALUES or NEUTRAL_VALUES[key] != value
    } == {}
    assert "vocab_size" in stated["tokenizer"]
    if "finetune" in stated.get("evaluate", {}):
        assert {
            "epochs",
            "batch_size",
            "learning_rate",
            "gradual_unfreezing",
            "weight_decay",
            "max_grad_norm",
            "dropout",
        } <= stated["evaluate"]["finetune"].keys()


def test_bert_switches_to_long_sequences_after_nine_tenths_of_its_steps() -> None:
    """Appendix A.2: warm up for 10,000 of 1,000,000 steps; the last 100,000 have 512 tokens."""
    pretrain: Any = load_model_config(params(), "bert").pretrain
    schedule = schedule_with_warmup(pretrain.schedule, pretrain.warmup_ratio)
    (switch_progress, short_phase), (end_progress, long_phase) = pretrain.phases
    assert (end_progress, short_phase.seq_len, long_phase.seq_len) == (1.0, 128, 512)
    assert pretrain.schedule_progress(switch_progress) == pytest.approx(0.9, abs=0.001)
    assert schedule(pretrain.schedule_progress(switch_progress)) == pytest.approx(0.1, abs=0.001), (
        "share of the learning rate at the switch"
    )
    assert [pretrain.schedule_progress(progress) for progress in (0.0, 1.0)] == pytest.approx(
        [0.0, 1.0]
    )
    assert pretrain.schedule_progress(0.69 / 90) == pytest.approx(0.01, rel=0.01), (
        "the end of the warm-up"
    )
    assert short_phase.schedule_progress(0.37) == 0.37, (
        "with one sequence length, shares of text and of steps are equal"
    )
