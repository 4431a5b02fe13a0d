"""Would more text help: checkpoints at shares of the budget, and curves of their scores."""

import dataclasses
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.decision import decide
from lineage.analysis.records import Analysis, System, TextCurve, TextGain
from lineage.config.params import Grid, Params, ReportParams, parse_params, read_params
from lineage.config.resolve import merge_trees
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import select_intermediate_runs
from lineage.methods.encoder import BaselineContext, EvalRun
from lineage.methods.head_method import HeadMethod
from lineage.networks.checkpoint import Checkpoint
from lineage.report import page
from lineage.report.evidence import write_evidence
from lineage.report.sections.text import choose_described_curve, describe_text_gain
from lineage.results import INTERMEDIATE_TRIAL
from lineage.serving.export import _copy_model
from lineage.study.models import load_model_config
from lineage.study.stage_records import stage_records
from lineage.training.intermediate import IntermediateCheckpoints
from lineage.training.loop import train
from lineage.training.optimizers import AveragedSGD
from lineage.training.pretrain import TrainOutput, build_training, pretrain
from lineage.training.settings import NonMonotonicTrigger
from lineage.training.state import RngState, TrainState
from lineage.training.train_run import TrainContext
from tests.helpers import tiny, user_project
from tests.helpers.evidence import PARAMS as EVIDENCE_PARAMS
from tests.helpers.evidence import TASKS, facts_of
from tests.helpers.study_rows import GRID, Study, analyze, render_pages

DEMO = read_params(Path(__file__).parent.parent / "params.yaml")
SHARES = (0.25, 0.5)
TEXT_BYTES = 9_000
FINAL_BYTES = 4_000_000  # of the planted study
MORE_TEXT = "Longer training on more text helps."


# Parameters


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([0.5, 1], "holds 1; use shares of the budget between 0 and 1"),
        ([0.0], "holds 0; use shares"),
        ([-0.5], "holds -0.5; use shares"),
        ([0.5, 0.25, 0.5], "'text_shares' names 0.5 twice"),
        (["half"], r"text_shares\[0\]: expected a number"),
    ],
)
def test_shares_that_are_no_part_of_the_budget_are_refused(shares: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_params(merge_trees(user_project.PARAMS, {"grid": {"text_shares": shares}}))


def records_of(**grid: Any) -> dict[str, Any]:
    models = {"models": ["gpt", "word2vec"], "target_only_models": ["gpt"]}
    params = parse_params(merge_trees(user_project.PARAMS, {"grid": models | grid}))
    return stage_records(
        params, {name: load_model_config(params, name) for name in models["models"]}
    )


def test_shares_are_recorded_for_the_stages_that_need_them_alone() -> None:
    without = records_of()
    changed = {
        name for name, record in records_of(text_shares=[0.5]).items() if record != without[name]
    }
    assert changed == {"pretrain-gpt", "report"}


# Training


def tiny_params(shares: tuple[float, ...] = SHARES) -> Params:
    budget = dataclasses.replace(
        DEMO.budget, text_bytes=TEXT_BYTES, max_epochs=50, body_parameters=tiny.BODY_PARAMETERS
    )
    return dataclasses.replace(
        DEMO, budget=budget, grid=dataclasses.replace(DEMO.grid, text_shares=shares)
    )


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens") / "gpt"
    with artifacts.create_artifact(folder, "tokens") as draft:
        tiny.corpus("gpt").save(draft, "train")
        tiny.corpus("gpt").save(draft, "valid")
    return folder


def dropping_checkpoint() -> Checkpoint:
    return tiny.checkpoint("gpt", architecture={"dropout": 0.1})


def train_tiny_gpt(
    tokens: Path,
    resume: Path,
    *,
    shares: tuple[float, ...] = SHARES,
    checkpoint_seconds: float = 99.0,
    stop_at: float = 2.0,
) -> TrainOutput:
    """Train, and stop as if killed once this share of the budget is exceeded."""

    def stop(done: float, note: str) -> None:
        if done > stop_at:
            raise KeyboardInterrupt

    context = TrainContext(tiny.CPU, MagicMock(), resume, checkpoint_seconds, stop)
    return pretrain(dropping_checkpoint(), tokens, tiny_params(shares), context)


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file of the intermediate checkpoints."""
    return {
        str(path.relative_to(folder)): artifacts.file_digest(path)
        for path in folder.glob("intermediate-*/*")
    }


@pytest.fixture(scope="module")
def whole(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainOutput, Path]:
    """Return a training that was not interrupted, and its resume folder."""
    resume = tmp_path_factory.mktemp("resume")
    return train_tiny_gpt(tokens, resume), resume


def test_a_kept_checkpoint_is_the_training_stopped_there(
    tokens: Path, whole: tuple[TrainOutput, Path]
) -> None:
    output, resume = whole
    assert output.status == "ok"
    assert [path.name for path in output.intermediate_folders] == [
        "intermediate-0.25",
        "intermediate-0.5",
    ]
    training = build_training(
        dropping_checkpoint(), tiny.corpus("gpt"), tiny.corpus("gpt"), tiny_params(), tiny.CPU
    )
    state = training.state
    objective: Any = tiny.model_config("gpt").family.objective
    steps = train(state, objective, training.phases[0].train_sampler, training.plan)
    final_weights = output.model.state_dict()
    for share in SHARES:
        step = next(step for step in steps if step.progress >= share)
        folder = resume / f"intermediate-{share}"
        kept = Checkpoint.load(folder).build(tiny.CPU).state_dict()
        for name, tensor in state.model.state_dict().items():
            assert torch.equal(kept[name], tensor), (share, name)
        assert any(not torch.equal(kept[name], final_weights[name]) for name in kept)
        assert artifacts.read_json(folder / "spent.json") == {
            "text_share": share,
            "text_bytes": step.counters.text_bytes,
        }
        assert share <= step.counters.text_bytes / TEXT_BYTES < share + 0.1


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 99.0])
def test_a_killed_training_keeps_the_same_checkpoints(
    checkpoint_seconds: float, tokens: Path, whole: tuple[TrainOutput, Path], tmp_path: Path
) -> None:
    """It is killed between the two shares, with a resume point in between and with none."""
    with pytest.raises(KeyboardInterrupt):
        train_tiny_gpt(tokens, tmp_path, checkpoint_seconds=checkpoint_seconds, stop_at=0.4)
    assert bool([*tmp_path.glob("step-*")]) == (checkpoint_seconds == 0)
    kept = tmp_path / "intermediate-0.25"
    assert kept.is_dir() and not (tmp_path / "intermediate-0.5").exists()
    if checkpoint_seconds:  # it is written again on the way
        (kept / "model.safetensors").write_bytes(b"")
    train_tiny_gpt(tokens, tmp_path)
    assert digests(tmp_path) == digests(whole[1]) and len(digests(tmp_path)) > 4


def test_a_resume_point_is_not_used_without_the_checkpoints_before_it(
    tokens: Path,
    whole: tuple[TrainOutput, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_tiny_gpt(tokens, tmp_path, checkpoint_seconds=0.0, stop_at=0.4)
    (tmp_path / "intermediate-0.25" / "model.safetensors").write_bytes(b"damaged")
    train_tiny_gpt(tokens, tmp_path)
    assert "this resume point is damaged" in capsys.readouterr().err
    assert digests(tmp_path) == digests(whole[1])


def test_averaged_weights_are_kept_where_the_optimizer_has_them(tmp_path: Path) -> None:
    checkpoint = tiny.checkpoint("ulmfit")
    model = checkpoint.build(tiny.CPU, load_weights=False)
    group = {"params": [*model.parameters()], "weight_decay": 0.0, "lr_scale": 1.0, "depth": 0}
    optimizer = AveragedSGD([group], NonMonotonicTrigger(checks=4, patience=1))
    for parameter in model.parameters():
        optimizer.state[parameter]["average"] = torch.full_like(parameter, 0.5)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    kept = IntermediateCheckpoints(checkpoint, (0.5,), tmp_path)
    with torch.no_grad():
        kept.update(TrainState(model, optimizer, RngState(1)), 0.6)
    saved = Checkpoint.load(tmp_path / "intermediate-0.5").build(tiny.CPU)
    for name, tensor in saved.named_parameters():
        assert (tensor == 0.5).all()
        assert torch.equal(model.get_parameter(name), before[name])


# Evaluation


def test_frozen_runs_with_the_most_labels_are_repeated() -> None:
    runs = [
        EvalRun(init, method, count, seed)  # type: ignore[arg-type]
        for init in ("pretrained", "random")
        for method in ("linear_probe", "bilstm_probe", "finetune")
        for count in (20, 100)
        for seed in (0, 1)
    ]
    expected = [
        EvalRun("pretrained", method, 100, seed)
        for method in ("linear_probe", "bilstm_probe")
        for seed in (0, 1)
    ]
    context = BaselineContext(
        TaskData(tiny.task_info("text_classification"), {}), tiny.model_config("gpt").evaluate
    )
    assert select_intermediate_runs(context, runs) == expected
    with_all = [dataclasses.replace(run, label_count="all") for run in expected[:2]]
    assert select_intermediate_runs(context, [*runs, *with_all]) == with_all
    zero_shot = [EvalRun("pretrained", "word_vectors"), EvalRun("random", "word_vectors")]
    assert select_intermediate_runs(context, zero_shot) == zero_shot[:1]
    finetuned = [EvalRun("pretrained", "finetune", "all", 0)]
    assert select_intermediate_runs(context, finetuned) == []


def write_study(folder: Path, **grid: Any) -> Path:
    """Write a user's small study, and return its folder."""
    tree = user_project.make_project(folder)
    tree["grid"] |= {"finetune_seeds": [0], "adapt_models": [], "adapt_tasks": []} | grid
    tree["budget"] |= {"text_bytes": 12_000, "body_parameters": 100_000}
    tree["models"]["gpt"]["evaluate"]["finetune"] |= {"epochs": 1, "min_steps": None}
    user_project.write_params(folder, tree)
    return folder


def table_file(study: Path, table: str) -> Path:
    return study / f"artifacts/results/{table}/evaluate-gpt-0-mood.parquet"


FIRST_STAGES = ("sources", "corpus general", "task mood", "tokenizer gpt", "pretrain gpt 0")


def test_the_stages_keep_and_score_intermediate_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_stages: user_project.RunStages
) -> None:
    plain = write_study(tmp_path / "plain")
    run_stages(plain, *FIRST_STAGES, "evaluate gpt 0 mood")
    study = write_study(tmp_path / "study", text_shares=[0.5, 0.25])
    run_stages(study, *FIRST_STAGES)
    pretrained, expected = (one / "artifacts/pretrained/gpt/0" for one in (study, plain))
    kept = {path.name for path in pretrained.glob("intermediate-*")}
    assert kept == {"intermediate-0.25", "intermediate-0.5"}
    assert not [*expected.glob("intermediate-*")]
    weights = "model.safetensors"
    assert (pretrained / weights).read_bytes() == (expected / weights).read_bytes()
    artifacts.check_intact(pretrained)

    # The evaluation is killed after the first of the two checkpoints, and goes on with the second.
    original = HeadMethod.fit
    evaluated: list[str] = []

    def evaluate_or_die(method: HeadMethod, subject: Any, *arguments: Any) -> Any:
        name = subject.context.checkpoint.weights_path.parent.name
        evaluated.append(name)
        if name == "intermediate-0.5" and evaluated.count(name) == 1:
            raise KeyboardInterrupt
        return original(method, subject, *arguments)

    monkeypatch.setattr(HeadMethod, "fit", evaluate_or_die)
    with pytest.raises(KeyboardInterrupt):
        run_stages(study, "evaluate gpt 0 mood")
    assert evaluated[-2:] == ["intermediate-0.25", "intermediate-0.5"]
    run_stages(study, "evaluate gpt 0 mood")
    assert evaluated[-2:] == ["intermediate-0.5", "intermediate-0.5"]

    for table in ("rows", "curves"):
        assert table_file(study, table).read_bytes() == table_file(plain, table).read_bytes()
    predictions = artifacts.read_table(table_file(study, "predictions"))
    is_intermediate = predictions["trial"] == INTERMEDIATE_TRIAL
    own = artifacts.read_table(table_file(plain, "predictions"))
    pd.testing.assert_frame_equal(predictions.loc[~is_intermediate, own.columns], own)
    added = predictions[is_intermediate]
    assert {*added["transfer"]} == {"frozen"} and {*added["init"]} == {"pretrained"}
    assert {*added["label_count"]} == {"all"} and {*added["split"]} == {"test"}
    bytes_read = added.groupby("text_share")["text_bytes"].unique().map(list).to_dict()
    assert [*bytes_read] == [0.25, 0.5]
    for share, (count,) in bytes_read.items():
        assert share <= count / 12_000 < share + 0.2
    assert len(added) == 2 * 20, "twenty test items"


def test_an_exported_system_has_the_last_checkpoint_alone(tmp_path: Path) -> None:
    source = tmp_path / "model"
    for name in ("config.json", "intermediate-0.5/config.json"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("{}")
    _copy_model(source, tmp_path / "copy", MagicMock(transfer="frozen", init="pretrained"))
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["config.json"]


# Analysis: gpt rises with its text, elmo stays, bert falls.

PLANTED_LOSS = {"gpt": {0.25: 0.35, 0.5: 0.2}, "elmo": {0.25: 0.0, 0.5: 0.0}, "bert": {0.25: -0.6, 0.5: -0.6}}  # fmt: skip
ASKING_GRID = dataclasses.replace(GRID, text_shares=(0.5, 0.25))
SMALL_GRID = dataclasses.replace(
    ASKING_GRID, models=("gpt", "elmo"), adapt_models=("gpt",), tasks=("sentiment",)
)


def change_answers(correct: np.ndarray, loss: float, rng: np.random.Generator) -> np.ndarray:
    """Make this share of the right answers wrong; a negative one makes wrong answers right."""
    changes = rng.random(len(correct)) < abs(loss)
    return np.where(changes, float(loss < 0), correct) if loss else correct


def plant_intermediate(folder: Path, grid: Grid = ASKING_GRID) -> None:
    """Add predictions of intermediate checkpoints to those of a planted study."""
    rng = np.random.default_rng(5)
    for path in sorted((folder / "predictions").glob("evaluate-*.parquet")):
        table = artifacts.read_table(path)
        is_repeated = (table["init"] == "pretrained") & table["transfer"].isin(
            ("frozen", "zero_shot")
        )
        final = table[
            is_repeated & table["label_count"].isin(("all", "none")) & (table["split"] == "test")
        ]
        tables = [table]
        for share in grid.text_shares:
            loss = PLANTED_LOSS[final["model"].iloc[0]][share]
            correct = change_answers(final["correct"].to_numpy(), loss, rng)
            tables.append(
                final.assign(trial=INTERMEDIATE_TRIAL, correct=correct, text_share=share,
                             text_bytes=int(share * FINAL_BYTES) + 100)
            )  # fmt: skip
        artifacts.write_table(path, pd.concat(tables, ignore_index=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Study(tmp_path_factory.mktemp("planted")).write()
    plant_intermediate(folder)
    return folder


@pytest.fixture(scope="module")
def analysis(folder: Path) -> Analysis:
    return analyze(folder, ASKING_GRID)


def curve_of(analysis: Analysis, model: str, task: str = "sentiment") -> TextCurve:
    (curve,) = [
        one for one in analysis.text_curves if (one.system.model, one.task) == (model, task)
    ]
    return curve


@pytest.mark.parametrize("task", ["sentiment", "agreement"])
def test_planted_curves_are_found(analysis: Analysis, task: str) -> None:
    rising, flat, falling = (curve_of(analysis, name, task) for name in ("gpt", "elmo", "bert"))
    for curve in (rising, flat, falling):
        assert curve.shares == (0.25, 0.5, 1.0) and curve.last_gain.share == 0.5
        assert curve.text_bytes == (1_000_100, 2_000_100, FINAL_BYTES)
        assert curve.last_gain.gain == pytest.approx(curve.scores[2] - curve.scores[1])
        (final,) = [
            one
            for one in analysis.scores_of_task(task)
            if one.system == curve.system and one.label_count == curve.label_count
        ]
        assert curve.scores[-1] == pytest.approx(final.mean), "the end is the ordinary result"
        assert curve.system.transfer == ("frozen" if task == "sentiment" else "zero_shot")
        assert curve.label_count == ("all" if task == "sentiment" else "none")
    assert rising.scores[0] < rising.scores[1] < rising.scores[2]
    assert rising.last_gain.low is not None and rising.last_gain.low > 0
    assert flat.scores[0] == flat.scores[1] == flat.scores[2] and flat.last_gain.gain == 0
    assert flat.last_gain.low is not None and flat.last_gain.low > -0.02
    assert falling.last_gain.high is not None and falling.last_gain.high < 0


def test_nothing_else_of_the_analysis_sees_intermediate_checkpoints(tmp_path: Path) -> None:
    folder = Study(tmp_path, SMALL_GRID, items=40).write()
    without = dataclasses.replace(SMALL_GRID, text_shares=())
    expected_table, expected = build_results(folder, without, ReportParams())
    plant_intermediate(folder, SMALL_GRID)
    table, analysis = build_results(folder, SMALL_GRID, ReportParams())
    pd.testing.assert_frame_equal(table, expected_table)
    assert analysis.text_curves and not expected.text_curves
    claims = tuple(one for one in analysis.claims if one.text != MORE_TEXT)
    assert dataclasses.replace(analysis, text_curves=(), claims=claims, grid=without) == expected


def test_the_claim_that_more_text_helps_compares_the_end_with_the_first_share(
    analysis: Analysis,
) -> None:
    (finding,) = (one for one in analysis.claims if one.text == MORE_TEXT)
    verdicts = {one.first.model: one.verdict for one in finding.comparisons}
    assert verdicts == {"gpt": "better", "elmo": "identical predictions", "bert": "worse"}
    assert finding.verdict == "mixed"
    for one in finding.comparisons:
        assert one.first == one.second, "the same model, frozen, with less text"
        curve = curve_of(analysis, one.first.model, one.task)
        assert one.difference == pytest.approx(curve.scores[-1] - curve.scores[0])


def test_a_share_at_which_a_repetition_failed_has_no_point(tmp_path: Path) -> None:
    folder = Study(tmp_path, SMALL_GRID, items=40).write()
    plant_intermediate(folder, SMALL_GRID)
    path = folder / "predictions" / "evaluate-gpt-0-sentiment.parquet"
    table = artifacts.read_table(path)
    is_lost = (table["text_share"] == 0.5) & (table["finetune_seed"] == 2)
    artifacts.write_table(path, table[~is_lost])
    analysis = analyze(folder, SMALL_GRID)
    curve = curve_of(analysis, "gpt")
    assert curve.shares == (0.25, 1.0) and curve.last_gain.share == 0.25
    assert curve_of(analysis, "elmo").shares == (0.25, 0.5, 1.0)


def test_of_two_heads_the_one_that_validation_prefers_is_shown(tmp_path: Path) -> None:
    """The other head has a higher score on test, and higher ones on the way."""
    folder = Study(tmp_path, SMALL_GRID, items=40).write()
    plant_intermediate(folder, SMALL_GRID)
    for table, column in (("rows", "value"), ("predictions", "correct")):
        path = folder / table / "evaluate-elmo-0-sentiment.parquet"
        own = artifacts.read_table(path)
        is_frozen = (own["init"] == "pretrained") & (own["transfer"] == "frozen")
        other = own[is_frozen].assign(head="bilstm")
        values = (other["split"] == "test").astype(float)
        artifacts.write_table(path, pd.concat([own, other.assign(**{column: values})]))
    analysis = analyze(folder, SMALL_GRID)
    assert curve_of(analysis, "elmo").system.head == "linear"
    assert curve_of(analysis, "elmo").last_gain.gain == 0


def test_a_report_rebuilt_from_its_evidence_has_the_same_curves(
    folder: Path, analysis: Analysis, tmp_path: Path
) -> None:
    params = dataclasses.replace(EVIDENCE_PARAMS, grid=ASKING_GRID)
    params_file = tmp_path / "params.yaml"
    params_file.write_text("the parameters of the study\n")
    stages = [path.stem for path in folder.rglob("*") if path.is_file()]
    write_evidence(
        tmp_path, facts_of(analysis), params, params_file=params_file, results_dir=folder, stages=stages
    )  # fmt: skip
    rebuilt = analyze(tmp_path / "evidence/results", ASKING_GRID, tasks=TASKS)
    assert rebuilt.text_curves == analysis.text_curves


# Report


def build_curve(model: str = "gpt", **fields: Any) -> TextCurve:
    system = System(model, model, "pretrained", "none", "frozen", "scalar_mix", "linear", "none")
    defaults: dict[str, Any] = {"task": "x", "label_count": "all", "metric": "accuracy", "shares": (0.5, 1.0), "text_bytes": (5e6, 1e7),
                                "scores": (0.6, 0.65), "validation_score": 0.7, "last_gain": TextGain(0.5, 0.05, 0.03, 0.07)}  # fmt: skip
    return TextCurve(system=system, **defaults | fields)


@pytest.mark.parametrize(
    ("gain", "sentence"),
    [
        (TextGain(0.5, 0.05, 0.03, 0.07), "GPT, frozen, changed by +5.0 points (+3.0 to +7.0) with the last half of its text: more text may help."),
        (TextGain(0.5, 0.004, -0.006, 0.014), "GPT, frozen, changed by +0.4 points (−0.6 to +1.4) with the last half of its text, which is within ±2: more text should bring little."),
        (TextGain(0.5, 0.01, 0.004, 0.016), "GPT, frozen, changed by +1.0 points (+0.4 to +1.6) with the last half of its text, which is within ±2: more text should bring little."),
        (TextGain(0.5, -0.05, -0.08, -0.02), "GPT, frozen, changed by −5.0 points (−8.0 to −2.0) with the last half of its text: more text may not help."),
        (TextGain(0.75, 0.01, -0.03, 0.05), "GPT, frozen, changed by +1.0 points (−3.0 to +5.0) with its text after the first 75 %: too uncertain to tell."),
        (TextGain(0.5, 0.01, None, None), "GPT, frozen, changed by +1.0 points with the last half of its text; a single item has no interval."),
    ],
)  # fmt: skip
def test_the_sentence_says_what_the_last_text_has_brought(gain: TextGain, sentence: str) -> None:
    assert describe_text_gain(build_curve(last_gain=gain), margin=0.02) == sentence


def test_the_sentence_is_about_the_recommended_model_or_the_best_on_validation() -> None:
    curves = [build_curve("gpt"), build_curve("elmo", validation_score=0.8, scores=(0.5, 0.6))]
    assert choose_described_curve(curves, best="gpt").system.model == "gpt"
    assert choose_described_curve(curves, best="tfidf").system.model == "elmo"
    unknown = [dataclasses.replace(curve, validation_score=None) for curve in curves]
    assert choose_described_curve(unknown, best="tfidf").system.model == "gpt"


def test_the_pages_show_the_curves_only_if_the_study_has_them(analysis: Analysis) -> None:
    html = render_pages(analysis)["html"].replace("ELMo", "GPT")
    assert "scores with 1 MB, 2 MB, 4 MB of text: GPT" in html, (
        "the panel has an alt text with sizes"
    )
    figures = page.render_figures(analysis, decide(analysis, {}))
    assert {"text-curves-1.svg", "text-curves-2.svg", "text-curves-3.svg"} <= {*figures}
    without = render_pages(dataclasses.replace(analysis, text_curves=(), claims=()))
    for text in without.values():
        assert "more text" not in text and 'href="#text"' not in text
