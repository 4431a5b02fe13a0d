"""The search for recipes: its trials, what it chooses, and where the choice goes."""

import dataclasses
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lineage.analysis.records import Analysis
from lineage.artifacts import read_json
from lineage.config.params import parse_params, read_params
from lineage.config.records import read_yaml
from lineage.errors import InputError
from lineage.report import page
from lineage.report.section import ReportData
from lineage.study.checks import check_study
from lineage.study.models import load_model_config
from lineage.study.stage_records import stage_records
from lineage.training import sweep
from lineage.training.recipes import (
    Recipe,
    RecipeSearch,
    Trial,
    read_search,
    recipe_file,
)
from tests.helpers import tiny
from tests.helpers.study_rows import Study, analyze
from tests.helpers.user_project import RunStage, RunStages, make_project, run_stages, write_params

FIRST_STAGES = ("sources", "corpus general", "task mood", "tokenizer gpt")
# The middle rate is the model's own. With a thousandth of it nothing is learned.
SWEEP: dict[str, Any] = {
    "text_share": 0.5,
    "learning_rate": [0.001, 1.0],
    "batch_size": [1.0, 2.0],
    "weight_decay": [0.01, 0.5],
    "dropout": [0.0, 0.3],
}
ONE_VALUE = SWEEP | {"batch_size": [1.0], "weight_decay": [0.01], "dropout": [0.0]}


def write_study(folder: Path, **changes: Any) -> dict[str, Any]:
    """Write a study, and return its params."""
    tree = make_project(folder)
    tree["grid"] |= {"adapt_models": [], "adapt_tasks": [], "sweep": ["gpt"]}
    tree |= {"sweep": SWEEP} | changes
    tree["budget"] |= {"text_bytes": 24_000, "body_parameters": 12_000}
    tree["models"] = {"gpt": dict(tiny.SMALL_SETTINGS["gpt"])}
    tree["tasks"]["mood"]["max_words"] = 9
    write_params(folder, tree)
    return tree


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that writes a study into the current folder, and returns its params."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(write_study, tmp_path)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a study that was searched, and pretrained with the chosen recipe."""
    folder = tmp_path_factory.mktemp("searched")
    write_study(folder)
    commands = (*FIRST_STAGES, "recipe gpt", "pretrain gpt 0")
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_stages(folder, *commands, monkeypatch=monkeypatch)
    return folder


@pytest.fixture
def searched_copy(searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a copy of this study."""
    shutil.copytree(searched, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("searched_copy")
def test_the_chosen_recipe_has_the_lowest_loss_and_is_pretrained_with() -> None:
    search = read_search(recipe_file("gpt"))
    losses = [trial.loss for trial in search.trials]
    assert None not in losses
    assert search.chosen.loss == min(losses) and sum(one.is_chosen for one in search.trials) == 1
    # Rates with batches; then a new weight decay; then a new dropout, each with the best before.
    own = load_model_config(read_params(Path("params.yaml")), "gpt").pretrain
    recipes = [trial.recipe for trial in search.trials]
    assert [one.batch_size for one in recipes[:4]] == [3, 6, 3, 6]
    rates = [one.learning_rate / own.learning_rate for one in recipes[:4]]
    assert rates == pytest.approx([0.001, 0.001, 1.0, 1.0])
    best = recipes[losses.index(min(losses[:4]))]
    assert best.learning_rate == own.learning_rate, "a thousandth of it cannot learn"
    decays = [one.weight_decay for one in recipes[4:-1]]
    assert decays == [value for value in SWEEP["weight_decay"] if value != own.weight_decay]
    assert recipes[-1].dropout == 0.3
    assert {one.learning_rate for one in recipes[4:]} == {best.learning_rate}
    assert all(12_000 <= trial.text_bytes < 13_000 for trial in search.trials)
    config = read_json(Path("artifacts/pretrained/gpt/0/config.json"))
    chosen = search.chosen.recipe
    assert config["pretrain"]["batch_size"] == chosen.batch_size
    assert config["pretrain"]["learning_rate"] == chosen.learning_rate
    assert config["pretrain"]["weight_decay"] == chosen.weight_decay
    assert config["architecture"]["dropout"] == chosen.dropout


@pytest.mark.usefixtures("searched_copy")
def test_a_killed_search_goes_on_and_chooses_the_same(
    run_stages: RunStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = recipe_file("gpt").read_bytes()
    recipe_file("gpt").unlink()
    trained: list[int] = []
    original = sweep.run_training

    def train_or_die(*arguments: Any, **options: Any) -> Any:
        trained.append(len(trained))
        if len(trained) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(sweep, "run_training", train_or_die)
    with pytest.raises(KeyboardInterrupt):
        run_stages(Path(), "recipe gpt")
    run_stages(Path(), "recipe gpt")
    assert recipe_file("gpt").read_bytes() == undisturbed
    num_trials = len(read_search(recipe_file("gpt")).trials)
    assert len(trained) == 1 + num_trials, "only the trial that was killed is trained again"


def test_a_trial_that_diverges_is_never_chosen(
    study: Callable[..., Any], run_stages: RunStages
) -> None:
    study(sweep=ONE_VALUE | {"learning_rate": [1e30, 1.0]})
    run_stages(Path(), *FIRST_STAGES, "recipe gpt")
    search = read_search(recipe_file("gpt"))
    assert search.trials[0].loss is None and not search.trials[0].is_chosen
    assert search.chosen.recipe.learning_rate < 1


def test_a_search_without_any_finite_loss_says_what_to_do(
    study: Callable[..., Any], run_stage: RunStage, run_stages: RunStages
) -> None:
    tree = study(sweep=ONE_VALUE | {"learning_rate": [1.0]})
    tree["models"]["gpt"]["pretrain"] = tree["models"]["gpt"]["pretrain"] | {"learning_rate": 1e30}
    write_params(Path(), tree)
    run_stages(Path(), *FIRST_STAGES)
    code, message = run_stage(Path(), "recipe", "gpt")
    assert code == 2 and "Traceback" not in message
    assert "models.gpt: no trial of the sweep has a finite loss; lower its learning_rate" in message


@pytest.mark.usefixtures("searched_copy")
def test_without_a_sweep_the_recipe_is_that_of_params_yaml(run_stages: RunStages) -> None:
    tree = read_yaml(Path("params.yaml"))
    tree["grid"]["sweep"] = []
    write_params(Path(), tree)
    run_stages(Path(), "sources", "recipe gpt", "pretrain gpt 0")
    assert read_search(recipe_file("gpt")) == RecipeSearch("gpt")
    config = read_json(Path("artifacts/pretrained/gpt/0/config.json"))
    assert config["pretrain"]["batch_size"] == 3


def test_trials_of_all_batch_sizes_are_measured_alike(
    study: Callable[..., Any], run_stages: RunStages
) -> None:
    """Nothing is learned, so the losses are equal, whatever is masked in a batch of that size."""
    sizes = {"learning_rate": [1e-12], "batch_size": [1.0, 2.0, 4.0]}
    tree = study(sweep=ONE_VALUE | sizes)
    tree["models"] = {"gpt_bert": dict(tiny.SMALL_SETTINGS["gpt_bert"])}
    tree["grid"] |= {"models": ["gpt_bert"], "sweep": ["gpt_bert"]}
    write_params(Path(), tree)
    run_stages(
        Path(), "sources", "corpus general", "task mood", "tokenizer gpt_bert", "recipe gpt_bert"
    )
    trials = read_search(recipe_file("gpt_bert")).trials[:3]
    assert len({trial.recipe.batch_size for trial in trials}) == 3
    losses = [trial.loss for trial in trials]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)
    assert trials[0].metrics.keys() == {"masked_nats", "next_token_nats"}


@pytest.mark.usefixtures("searched_copy")
def test_another_pretraining_seed_has_trials_of_its_own(
    run_stages: RunStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe_file("gpt").unlink()
    tree = read_yaml(Path("params.yaml"))
    original = sweep.run_training
    trained: list[int] = []

    def train_or_die(*arguments: Any, **options: Any) -> Any:
        trained.append(len(trained))
        if len(trained) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(sweep, "run_training", train_or_die)
    with pytest.raises(KeyboardInterrupt):
        run_stages(Path(), "recipe gpt")
    tree["grid"]["pretrain_seeds"] = [5]
    write_params(Path(), tree)
    run_stages(Path(), "sources", "recipe gpt")
    assert len(trained) == 2 + len(read_search(recipe_file("gpt")).trials)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"sweep": ["word2vec"], "models": ["word2vec"]}}, "no loss on held-out text"),
        ({"grid": {"sweep": ["taglm"]}}, "'taglm' has no entry in grid.models"),
        (
            {"grid": {"sweep": ["gpt"], "ablation_of": {"gpt": "bert"}}},
            "gpt is in grid.ablation_of, whose models differ in one setting",
        ),
        ({"sweep": {"text_share": 0}}, "text_share"),
        ({"sweep": {"learning_rate": []}}, "'learning_rate' needs factors above zero"),
        ({"sweep": {"batch_size": [0]}}, "'batch_size' needs factors above zero"),
        ({"sweep": {"dropout": [1.0]}}, "use 0 to below 1"),
        ({"sweep": {"weight_decay": [-0.1]}}, "below zero"),
    ],
)
def test_bad_sweeps_are_refused(changes: dict[str, Any], message: str) -> None:
    tree = tiny.demo_params()
    for key, values in changes.items():
        tree[key] = tree.get(key, {}) | values
    if "grid" in changes:
        tree["grid"] |= {"adapt_models": [], "adapt_tasks": []}
    with pytest.raises(InputError, match=message):
        check_study(parse_params(tree))


def test_the_sweep_is_recorded_for_its_models_alone() -> None:
    tree = tiny.demo_params()
    plain = parse_params(tree)
    tree["grid"]["sweep"] = ["gpt"]
    swept = parse_params(tree)
    before, after = (stage_records(one, check_study(one)) for one in (plain, swept))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"recipe-gpt", "report"}


def render_recipes(analysis: Analysis, *rates: float) -> str:
    own = Recipe(0.001, 8, 0.01, None)
    trials = [
        Trial(dataclasses.replace(own, learning_rate=rate), 2.0, {}, 1_000_000, 10, 3, number == 0)
        for number, rate in enumerate(rates)
    ]
    search = RecipeSearch("gpt", own, tuple(trials))
    report = ReportData(dataclasses.replace(analysis, recipe_searches=(search,)))
    return page.render_report(report)["md"]


def test_the_page_shows_trials_and_says_if_the_best_rate_is_at_an_edge(tmp_path: Path) -> None:
    Study(tmp_path).write()
    analysis = analyze(tmp_path)
    assert "## Recipes" not in page.render_report(ReportData(analysis))["md"]
    inside = render_recipes(analysis, 0.001, 0.003, 0.0003)
    assert "| GPT | 0.001 | 8 | 0.01 | – | 2.000 | 2.000 | 3 | 3 MB | 9 |" in inside
    assert "learning rate is the" not in inside
    assert "Without a search, with the recipe of params.yaml: ELMo and BERT." in inside
    assert "is the highest that was tried" in render_recipes(analysis, 0.003, 0.001)
    assert "is the lowest that was tried" in render_recipes(analysis, 0.0003, 0.001)
