"""Ready-made studies and the demo are valid params files, and show what their comments say."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lineage.config.params import parse_params
from lineage.config.records import parse_record, read_yaml
from lineage.config.resolve import fill_in_defaults, merge_trees, resolve_tree
from lineage.errors import InputError
from lineage.methods.registry import EvaluateSettings
from lineage.study.checks import check_study
from lineage.study.models import load_model_config, parse_model_config
from lineage.study.resolved import format_params, resolved_values
from tests.helpers import tiny
from tests.helpers.toy_project import REPOSITORY

GRID_KEYS = set(re.findall(r"\$\{grid\.(\w+)\}", (REPOSITORY / "dvc.yaml").read_text()))


def read_study(name: str) -> dict[str, Any]:
    """Return a ready-made study as it is written."""
    return read_yaml(REPOSITORY / f"studies/{name}.yaml")


def read_demo() -> dict[str, Any]:
    """Return the demo as it is written."""
    return read_yaml(REPOSITORY / "params.yaml")


def test_maps_merge_and_lists_and_values_replace() -> None:
    assert merge_trees({"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"c": [3]}, "d": {"e": 2}}) == {
        "a": {"b": 1, "c": [3]},
        "d": {"e": 2},
    }


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (REPOSITORY / "studies").glob("*.yaml"))
)
def test_every_ready_made_study_is_valid_and_has_the_lists_that_dvc_reads(name: str) -> None:
    tree = read_study(name)
    assert set(tree["grid"]) >= GRID_KEYS
    params = parse_params(tree, "params.yaml")
    assert set(check_study(params)) == {*params.models}


@pytest.mark.parametrize("name", ["few-labels", "variants", "wiki-full"])
def test_the_printed_parameters_of_a_study_read_back(name: str, tmp_path: Path) -> None:
    """So `lineage params > params.yaml` writes every default out, and changes nothing."""
    path = tmp_path / "params.yaml"
    path.write_text(format_params(REPOSITORY / f"studies/{name}.yaml"), encoding="utf-8")
    printed = path.read_text(encoding="utf-8")
    assert set(check_study(parse_params(read_yaml(path)))) == {*read_yaml(path)["models"]}
    assert format_params(path) == printed


def test_an_entry_with_like_inherits_and_overrides_the_keys_of_another_entry() -> None:
    tree = {
        "tasks": {"a": {"files": {"train": "a.csv"}, "folds": 2}, "b": {"like": "a", "folds": 3}},
        "models": {
            "gpt": {"tokenizer": {"vocab_size": 9}, "pretrain": {"seq_len": 8}},
            "big": {"like": "gpt", "pretrain": {"seq_len": 16}},
            "bigger": {"like": "big", "tokenizer": {"vocab_size": 11}},
            "plain": {"like": "gpt", "family": "bert"},
            "of_family": {"like": "elmo"},
        },
    }
    resolved = resolve_tree(tree, "params.yaml")
    assert resolved["tasks"]["b"] == {"files": {"train": "a.csv"}, "folds": 3}
    bigger = resolved["models"]["bigger"]
    assert bigger["family"] == "gpt" and bigger["tokenizer"]["vocab_size"] == 11
    assert bigger["pretrain"]["seq_len"] == 16
    assert resolved["models"]["plain"]["family"] == "bert"
    assert resolved["models"]["of_family"]["family"] == "elmo"
    for entry in ({"like": "d"}, {"like": "e"}, {"like": "beta"}, {"like": ["bet"]}, {"like": 1}):
        invalid = {"models": {"d": {"like": "e"}, "e": entry, "bet": {}, "none": None}}
        with pytest.raises(InputError, match=r"params\.yaml: models\.[de]: like is '"):
            resolve_tree(invalid, "params.yaml")


def test_study_defaults_override_family_defaults_and_a_model_overrides_both() -> None:
    own = {"evaluate": {"finetune": {"epochs": 9}}}
    shared = {"evaluate": {"finetune": {"epochs": 7, "batch_size": 5}}}
    tree = {"defaults": shared, "models": {"gpt": own}, "grid": {"models": ["gpt", "bert"]}}
    models = resolve_tree(tree, "params.yaml")["models"]
    of_family = fill_in_defaults("gpt", {})["evaluate"]["finetune"]
    assert of_family.keys() == {"learning_rate", "trials"}
    assert models["gpt"]["evaluate"]["finetune"] == of_family | {"epochs": 9, "batch_size": 5}
    assert models["bert"]["evaluate"]["finetune"]["epochs"] == 7, (
        "a model in the grid needs no entry under models"
    )
    parsed = parse_model_config("gpt", models["gpt"], "models.gpt")
    assert parsed.evaluate.finetune.epochs == 9 and parsed.pretrain.seq_len == 136


def test_study_defaults_of_adaptation_leave_out_static_vectors() -> None:
    tree = {
        "defaults": {"adapt": {"learning_rate": 0.0123}},
        "models": {},
        "grid": {"models": ["word2vec", "gpt"]},
    }
    models = resolve_tree(tree, "params.yaml")["models"]
    assert models["gpt"]["adapt"]["learning_rate"] == 0.0123
    assert parse_model_config("word2vec", models["word2vec"], "models.word2vec").adapt is None


def resolve_evaluation(name: str, evaluate: dict[str, Any], **shared: Any) -> EvaluateSettings:
    """Return the block `evaluate` of a model that a study resolves, also a second time."""
    tree = {"defaults": {"evaluate": shared}, "models": {name: {"evaluate": evaluate}}}
    resolved = resolve_tree(tree, "params.yaml")
    assert resolve_tree(resolved, "params.yaml") == resolved
    return parse_model_config(name, resolved["models"][name], f"models.{name}").evaluate


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_each_family_tries_four_learning_rates_and_six_penalties_by_default(name: str) -> None:
    settings = resolve_evaluation(name, {})
    rates = [trial.learning_rate for trial in settings.finetune.trials]
    assert len(rates) == 4
    assert settings.finetune.learning_rate in rates
    penalties = [trial.l2 for trial in settings.linear_probe.trials]
    assert penalties == [0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0]
    assert settings.bilstm_probe.trials == ()


@pytest.mark.parametrize("where", ["model", "defaults"])
@pytest.mark.parametrize(
    ("method", "key", "other"),
    [("finetune", "learning_rate", "linear_probe"), ("linear_probe", "l2", "finetune")],
)
def test_a_study_that_sets_the_value_of_the_default_trials_has_none(
    method: str, key: str, other: str, where: str
) -> None:
    """Trials that the study names itself stay, and so do those of the other method."""

    def resolve(block: dict[str, Any]) -> EvaluateSettings:
        if where == "defaults":
            return resolve_evaluation("gpt", {}, **{method: block})
        return resolve_evaluation("gpt", {method: block})

    settings = resolve({key: 0.02})
    assert getattr(settings, method).trials == ()
    assert getattr(getattr(settings, method), key) == 0.02
    assert getattr(settings, other).trials
    named = getattr(resolve({key: 0.02, "trials": [{key: 0.03}]}), method)
    assert [trial.overrides for trial in named.trials] == [{key: 0.03}]
    unrelated = {"batch_size": 7} if method == "finetune" else {"max_iter": 70}
    assert getattr(resolve(unrelated), method).trials


def test_a_model_may_set_a_value_that_the_study_has_trials_of() -> None:
    trials = {"trials": [{"learning_rate": 0.03}]}
    settings = resolve_evaluation("gpt", {"finetune": {"learning_rate": 0.02}}, finetune=trials)
    assert settings.finetune.trials == ()
    assert settings.finetune.learning_rate == 0.02


def test_a_model_may_name_trials_of_a_value_that_the_study_sets_for_all() -> None:
    trials = {"trials": [{"learning_rate": 0.03}]}
    settings = resolve_evaluation("gpt", {"finetune": trials}, finetune={"learning_rate": 0.02})
    assert [trial.overrides for trial in settings.finetune.trials] == [{"learning_rate": 0.03}]


@pytest.mark.parametrize("tree", [read_demo(), read_study("variants"), read_study("wiki-full")])
def test_resolved_values_contain_every_default(tree: dict[str, Any]) -> None:
    params = parse_params(tree)
    values = resolved_values(params)
    assert values["threads"] == 1 and values["adapt"]["heldout_share"] == 0.1
    for name, model in check_study(params).items():
        block = values["models"][name]
        assert block["family"] == model.family.name
        assert block["evaluate"]["linear_probe"]["max_iter"] == 1000, "a default of the dataclass"
        for key in ("architecture", "pretrain", "evaluate"):
            record = getattr(model, key)
            assert parse_record(type(record), block[key], key) == record


def test_a_model_with_the_key_from_is_public() -> None:
    block = {"from": "a/y", "architecture": {"pooling": "mean"}}
    model = resolve_tree({"models": {"x": block}}, "params.yaml")["models"]["x"]
    assert model["tokenizer"] == "pretrained" and model["architecture"] == {"pooling": "mean"}
    assert resolve_tree({"models": None}, "params.yaml")["models"] is None, (
        "the parser refuses it later"
    )


SIZE_KEYS = {
    "num_layers", "num_heads", "hidden_size", "embedding_size", "ffn_size", "max_positions", "init_std", "cell_size",
    "projection_size", "filters", "num_highway_layers", "softmax_samples", "batch_size", "grad_accum_steps", "seq_len",
    "initial_seq_len", "max_predictions_per_seq", "learning_rate", "warmup_ratio",
}  # fmt: skip


@pytest.mark.parametrize("family", ["elmo", "ulmfit", "gpt", "bert"])
def test_a_historical_variant_differs_from_the_papers_settings_only_in_sizes(family: str) -> None:
    small = load_model_config(parse_params(read_study("variants")), f"{family}_historical")
    paper = load_model_config(parse_params(read_study("paper")), family)
    for small_block, paper_block in (
        (small.architecture, paper.architecture),
        (small.pretrain, paper.pretrain),
    ):
        assert type(small_block) is type(paper_block)
        assert {
            key for key in vars(small_block) if vars(small_block)[key] != vars(paper_block)[key]
        } <= SIZE_KEYS


def test_the_study_paper_averages_a_forward_and_a_backward_ulmfit() -> None:
    params = parse_params(read_study("paper"), "params.yaml")
    assert params.grid.ensembles == {"ulmfit_both": ("ulmfit", "ulmfit_backward")}
    assert params.models["ulmfit_backward"]["tokenizer"]["direction"] == "backward"


def test_the_model_shown_in_the_docs_is_valid() -> None:
    (shown,) = re.findall(
        r"`(models: \{cbow: .*?\}\}\})`",
        (REPOSITORY / "docs/how-to/add-a-family.md").read_text(encoding="utf-8"),
    )
    tree = merge_trees(read_demo(), YAML(typ="safe", pure=True).load(shown))
    tree["grid"]["models"] = [*tree["grid"]["models"], "cbow"]
    models = check_study(parse_params(tree, "params.yaml"))
    assert models["cbow"].pretrain == replace(models["word2vec"].pretrain, algorithm="cbow")


def test_the_demo_as_shipped_has_at_most_65_stages() -> None:
    from flows.plan import read_graph  # DVC takes a second

    assert 25 <= len(read_graph(REPOSITORY)) <= 65
