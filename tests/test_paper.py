"""profiles/paper.yaml holds the papers' sizes: models built from it have the published numbers of parameters."""

import dataclasses
import functools
from fractions import Fraction
from typing import Any

import pytest
import torch

from flows.profiles import merge_params
from lineage.config.params import Params, parse_params
from lineage.config.records import read_yaml
from lineage.config.resolve import fill_in_defaults
from lineage.config.study import ModelConfig, load_model_config
from lineage.errors import InputError
from lineage.evaluation.finetuning import unfreeze_layers
from lineage.evaluation.settings import resolve_num_epochs
from lineage.training.budget import count_parameters_by_role, match_parameter_budget
from lineage.training.schedules import LR_SCHEDULES
from tests import tiny
from tests.toy_project import HERE


@functools.cache
def params() -> Params:
    return parse_params(tiny.composed("paper"), "params.yaml")


def counts(found: ModelConfig, config: Any) -> dict[str, int]:
    with torch.device("meta"):
        return count_parameters_by_role(
            found.family.build(config, vocab_size=found.tokenizer.vocab_size)
        )


@pytest.mark.parametrize(("name", "parts", "published"), [
    ("bert", ("embedding", "body", "pooler"), 109_482_240),  # transformers' BertModel of bert-base-uncased
    ("bert_large", ("embedding", "body", "pooler"), 335_141_888),  # bert-large-uncased
    ("gpt", ("embedding", "body"), 116_534_784),  # openai-gpt, its softmax tied
    ("gpt2", ("embedding", "body"), 124_439_808),  # gpt2, its softmax tied
])  # fmt: skip
def test_transformers_have_as_many_parameters_as_the_released_ones(
    name: str, parts: tuple[str, ...], published: int
) -> None:
    found = load_model_config(params(), name)
    config = match_parameter_budget(
        found.family,
        found.architecture,
        vocab_size=found.tokenizer.vocab_size,
        body_parameters=params().budget.body_parameters,
    )
    assert config == found.architecture, "widths that are given are not solved again"
    assert sum(counts(found, config)[part] for part in parts) == published


@pytest.mark.parametrize(("name", "parts", "millions"), [
    ("elmo", ("characters", "body"), 93.6),  # allennlp.org/elmo: without the softmax
    ("elmo_medium", ("characters", "body"), 28.0),
    ("elmo_small", ("characters", "body"), 13.6),
    ("awd_lstm_ptb", ("embedding", "body"), 24),  # Merity et al. 2018, tables 1 and 2: with the tied table
    ("awd_lstm_wt2", ("embedding", "body"), 33),
])  # fmt: skip
def test_lstms_have_the_published_millions_of_parameters(
    name: str, parts: tuple[str, ...], millions: float
) -> None:
    found = load_model_config(params(), name)
    total = sum(counts(found, found.architecture)[part] for part in parts) / 1e6
    assert (int(total) if isinstance(millions, int) else round(total, 1)) == millions


def test_a_width_that_is_left_open_is_refused_where_no_number_of_parameters_is_given() -> None:
    found = load_model_config(params(), "bert")
    with pytest.raises(
        InputError,
        match="every width has to be given; add ffn_size to the block `architecture` of bert",
    ):
        match_parameter_budget(
            found.family,
            dataclasses.replace(found.architecture, ffn_size=None),
            vocab_size=97,
            body_parameters=None,
        )


@pytest.mark.parametrize("profile", ["paper", "defaults"])
def test_bert_s_norms_have_the_released_epsilon(profile: str) -> None:
    """1e-12, where torch and most re-implementations have 1e-5 (google-research/bert, modeling.py)."""
    block = fill_in_defaults("bert", {})
    if profile == "paper":
        block = tiny.composed(profile)["models"]["bert"]
    assert block["architecture"]["layer_norm_eps"] == 1e-12


def test_the_translation_model_is_the_papers() -> None:
    """Ramachandran et al. 2017: all three of their techniques, three layers, the first of them pretrained on both sides."""
    found = load_model_config(params(), "seq2seq")
    settings = found.evaluate.translation
    assert (
        settings is not None
        and settings.num_layers == 3
        and settings.recipe == "both+lm_losses+residual+first_and_top"
    )
    assert counts(found, found.architecture)["body"] == 2 * 8 * 1024 * (
        1024 + 1
    )  # a language: four gates, each of words, state and two biases


@pytest.mark.parametrize("name", ["ulmfit", "ulmfit_backward"])
def test_ulmfit_s_layers_thaw_one_at_the_end_of_each_of_the_first_epochs(name: str) -> None:
    """Howard and Ruder 2018, section 3.3: the head learns alone for an epoch, and then a layer more each epoch."""
    found, steps = load_model_config(params(), name), 391  # IMDb's 25,000 reviews in batches of 64
    settings = found.evaluate.finetune
    with torch.device("meta"):
        layers = [
            *found.family.build(found.architecture, vocab_size=99).layer_groups(),
            [torch.nn.Parameter(torch.empty(3))],
        ]
        optimizer = settings.build_optimizer(layers)
    thawed: list[int] = []
    for step in range(settings.epochs * steps + 1):
        unfreeze_layers(
            optimizer, Fraction(step, settings.epochs * steps), settings.gradual_unfreezing
        )
        thawed += [step] * (sum(layer[0].requires_grad for layer in layers) - len(thawed))
    assert thawed == [0, steps, 2 * steps, 3 * steps, 4 * steps]


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
def test_few_labels_are_read_as_often_as_the_papers_say(name: str, epochs: int) -> None:
    """And not until there are the demo's 60 steps; a hundred labels are 4 steps in batches of 32, and 2 in batches of 64."""
    tuned = load_model_config(params(), name).evaluate.finetune
    assert [resolve_num_epochs(tuned, steps) for steps in (1, 2, 4)] == [epochs] * 3


@pytest.mark.parametrize(
    ("name", "words"), [("awd_lstm_ptb", 929_589), ("awd_lstm_wt2", 2_088_628)]
)
def test_averaging_is_looked_for_after_as_many_words_as_a_pass_had(name: str, words: int) -> None:
    """Merity et al. 2018 check after each pass over their corpus; WikiText-103's raw text has 5.3 bytes a word."""
    settings, corpus = load_model_config(params(), name).pretrain, params().corpora["general"]
    between = params().budget.text_bytes / 5.3 / settings.nt_asgd.checks
    assert between == pytest.approx(words, rel=0.1)
    assert settings.nt_asgd.checks * corpus.validation_share < 0.25, (
        "so many times the corpus is read to look"
    )


def test_what_the_head_of_the_profile_says_of_tuning_and_adaptation_is_so() -> None:
    own = tiny.composed("paper")["models"]
    families = {name: block.get("family", name) for name, block in own.items()}
    shipped = {family: fill_in_defaults(family, {}) for family in families.values()}
    adapted = {
        name
        for name, family in families.items()
        if own[name].get("adapt") != shipped[family].get("adapt")
    }
    tuned = {
        name
        for name, family in families.items()
        if own[name]["evaluate"]["finetune"] != shipped[family]["evaluate"]["finetune"]
    }
    like_ulmfit, like_gpt = (
        {"ulmfit", "ulmfit_backward", "awd_lstm_ptb", "awd_lstm_wt2"},
        {"gpt", "gpt2"},
    )
    assert adapted == like_ulmfit and tuned == like_ulmfit | like_gpt | {
        "bert",
        "bert_large",
        "sa_lstm",
        "sa_lstm_gain",
    }
    for alike in (like_ulmfit, like_gpt):
        assert all(
            own[name][key] == own[other][key]
            for name in alike
            for other in alike
            for key in ("adapt", "evaluate")
        )


@pytest.mark.parametrize("name", ["elmo", "elmo_medium", "elmo_small"])
def test_an_update_of_elmo_is_of_the_lanes_of_three_gpus(name: str) -> None:
    """bilm-tf adds up three towers of 128 lanes; batches that are accumulated go on from each other's state, and are no towers."""
    settings = load_model_config(params(), name).pretrain
    assert (settings.batch_size, settings.grad_accum_steps) == (3 * 128, 1)


# What base.yaml has in pretraining that is no setting of a demo: Adam's own numbers, and switches that are off.
PLAIN = {"betas": [0.9, 0.999], "epsilon": 1e-8, "bias_correction": True, "weight_decay": 0.0, "grad_accum_steps": 1, "nt_asgd": None,
         "carry_state": True, "whole_word_masking": False, "source_language": None, "target_language": None}  # fmt: skip


@pytest.mark.parametrize("name", read_yaml(HERE / "profiles" / "paper.yaml")["models"])
def test_no_setting_of_the_demo_stands_in_for_a_paper_s(name: str) -> None:
    """What pretraining is done with is said in paper.yaml, with its source, and so is the tuning of those that their papers tune."""
    own, said = read_yaml(HERE / "profiles" / "paper.yaml")["models"], dict[str, Any]()
    whole = tiny.composed("paper")["models"][name]
    chain = [name]
    while (like := own.get(chain[-1], {}).get("like")) is not None:
        chain.append(like)
    for entry in reversed(chain):
        said = merge_params(said, own.get(entry, {}))
    inherited = {
        key: value for key, value in whole["pretrain"].items() if key not in said["pretrain"]
    }
    assert {
        key: value for key, value in inherited.items() if key not in PLAIN or PLAIN[key] != value
    } == {}
    assert "vocab_size" in said["tokenizer"]
    if "finetune" in said.get("evaluate", {}):
        assert {
            "epochs",
            "batch_size",
            "learning_rate",
            "gradual_unfreezing",
            "weight_decay",
            "max_grad_norm",
            "dropout",
        } <= said["evaluate"]["finetune"].keys()


def test_bert_goes_over_to_long_sequences_after_nine_tenths_of_its_steps_and_of_its_schedule() -> (
    None
):
    """Appendix A.2: 10,000 of 1,000,000 steps up, and the last 100,000 of 512 pieces."""
    pretrain: Any = load_model_config(params(), "bert").pretrain
    schedule = LR_SCHEDULES[pretrain.schedule](pretrain.warmup_ratio)
    (turn, first), (end, last) = pretrain.phases
    assert (end, first.seq_len, last.seq_len) == (1.0, 128, 512)
    assert pretrain.schedule_progress(turn) == pytest.approx(0.9, abs=0.001)
    assert schedule(pretrain.schedule_progress(turn)) == pytest.approx(0.1, abs=0.001), (
        "the rate's share there"
    )
    assert [pretrain.schedule_progress(progress) for progress in (0.0, 1.0)] == pytest.approx(
        [0.0, 1.0]
    )
    assert pretrain.schedule_progress(0.69 / 90) == pytest.approx(0.01, rel=0.01), (
        "where the rate is highest"
    )
    assert first.schedule_progress(0.37) == 0.37, (
        "of one length a share of the text is one of the steps"
    )
