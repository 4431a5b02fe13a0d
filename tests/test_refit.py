"""Recommended systems are fitted again on more items, and those who use them are told so."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis
from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError
from lineage.evaluation.evaluate import EvaluationOutput, list_kept_systems
from lineage.evaluation.refit import ChosenTraining, choose_training, join_items, refit_system
from lineage.forecast.counts import StageName, count_refits
from lineage.methods.early_stopping import EarlyStopping, count_max_steps
from lineage.methods.encoder import BaselineContext, EvalContext, EvalRun, TaskContext
from lineage.methods.finetuning import FinetuneMethod
from lineage.methods.registry import EvaluateSettings, list_baselines, load_system
from lineage.methods.run_predictions import RunPredictions
from lineage.methods.saved import RefitRecord, SystemRecord, read_record, system_name
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.weights import WEIGHTS_FILE, read_tensors
from lineage.report.evidence import write_report
from lineage.report.section import Refit
from lineage.results import Note, notes_to_json, results_frame
from lineage.serving.card import describe_training, format_card
from lineage.serving.systems import KeptSystem, choose_system, format_systems
from lineage.work import WorkLog
from tests.helpers import tiny
from tests.helpers.evidence import PARAMS, facts_of
from tests.helpers.kept_systems import Evaluated
from tests.helpers.tasks import build_table_task, build_task_items

NUM_ITEMS = {"train": 60, "validation": 180, "test": 600}
FEW = 20
FINETUNE = FinetuneMethod(epochs=20, min_steps=200, patience=4, learning_rate=0.03)
SCORED = RefitRecord(train_examples=30, split="test", num_seeds=3, mean_score=0.75, seed_score=0.7)


@dataclass(frozen=True)
class Case:
    """An evaluated task of the synthetic language, in a folder."""

    folder: Path
    context: BaselineContext | EvalContext
    output: EvaluationOutput
    kept: dict[str, Path]  # folders by label count

    @property
    def rows(self) -> pd.DataFrame:
        return results_frame(self.output.rows)

    def refit(self, label_count: str) -> tuple[Path, SystemRecord, ChosenTraining]:
        record = read_record(self.kept[label_count])
        method = self.context.settings.methods[record.settings_block]
        chosen = choose_training(method, record, self.rows, self.output.curves)
        cache = self.folder / f"refit-{label_count}"
        cache.mkdir(exist_ok=True)
        folder, new = refit(self.context, record, chosen, cache)
        return folder, new, chosen


def refit(
    context: BaselineContext | EvalContext,
    record: SystemRecord,
    chosen: ChosenTraining,
    cache: Path,
    work: WorkLog | None = None,
) -> tuple[Path, SystemRecord]:
    return refit_system(
        context,
        record,
        chosen,
        cache_dir=cache,
        report_progress=lambda *_: None,
        work=work or WorkLog(),
    )


def synthetic_sentiment(folder: Path) -> TaskData:
    block = {
        "kind": "text_classification",
        "generated": "synthetic",
        "max_words": 12,
        "limit": NUM_ITEMS,
    }
    items = build_task_items(folder, block, name="sentiment")
    return TaskData(items.info, {name: items.splits[name] for name in NUM_ITEMS})


def evaluate(folder: Path, context: BaselineContext | EvalContext, method: str) -> Case:
    init = "none" if isinstance(context, BaselineContext) else "pretrained"
    runs = [EvalRun(init, method, count, seed) for count in (FEW, "all") for seed in (0, 1)]
    output = tiny.evaluate_runs(context, runs, folder / "cache")  # type: ignore[arg-type]
    folders = list_kept_systems(context, runs, output.rows, folder / "cache")
    kept = {read_record(one).label_count: one for one in folders}
    return Case(folder, context, output, kept)


@pytest.fixture(scope="module")
def tfidf(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("tfidf")
    context = BaselineContext(synthetic_sentiment(folder), list_baselines())
    return evaluate(folder, context, "tfidf")


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("finetuned")
    model_dir = folder / "model"
    model_dir.mkdir()
    tiny.checkpoint("word2vec").save(model_dir, tiny.model("word2vec"))
    context = tiny.eval_context(
        Checkpoint.load(model_dir), synthetic_sentiment(folder), EvaluateSettings(finetune=FINETUNE)
    )
    return evaluate(folder, context, "finetune")


def accuracy_on_new_rows(context: TaskContext, folder: Path) -> float:
    new = context.task.splits["test"]
    answers = load_system(folder, tiny.CPU)(new.drop(columns="label"))["prediction"]
    labels = np.array(context.task.info.labels)[new["label"]]
    return float(np.mean(answers == labels))


@pytest.mark.parametrize("label_count", [str(FEW), "all"])
@pytest.mark.parametrize("name", ["tfidf", "finetuned"])
def test_a_system_that_is_fitted_again_is_at_least_as_good_on_new_rows(
    name: str, label_count: str, request: pytest.FixtureRequest
) -> None:
    case: Case = request.getfixturevalue(name)
    before = read_record(case.kept[label_count])
    folder, after, _ = case.refit(label_count)
    assert after.train_examples == before.train_examples + NUM_ITEMS["validation"]
    assert (after.label_count, after.validation_score) == (label_count, before.validation_score)
    scores = [accuracy_on_new_rows(case.context, one) for one in (case.kept[label_count], folder)]
    assert scores[1] >= scores[0], scores


def test_no_test_item_is_learned_from(tfidf: Case) -> None:
    splits = tfidf.context.task.splits
    for count, size in (("all", 60 + 180), (FEW, FEW + 180)):
        joined = join_items(tfidf.context, EvalRun("none", "tfidf", count, 0))
        ids = set(joined.splits["train"]["id"])
        assert len(ids) == len(joined.splits["train"]) == size
        assert ids >= set(splits["validation"]["id"])
        assert not ids & set(splits["test"]["id"])
        assert set(joined.splits) == {"train", "validation"} and not joined.include_test


def test_with_folds_all_labels_are_those_of_all_folds(tmp_path: Path) -> None:
    texts = [f"text {number} of many" for number in range(60)]
    table = pd.DataFrame({"text": texts, "label": ["a", "b"] * 30})
    task = build_table_task(tmp_path, table, folds=5)
    context = BaselineContext(task, list_baselines())
    every = join_items(context, EvalRun("none", "tfidf", "all", 0, 2)).splits["train"]
    assert sorted(every["id"]) == sorted(task.splits["train"]["id"])
    run = EvalRun("none", "tfidf", 10, 0, 2)
    parts = {
        part.split: set(task.select_items(part)["id"]) for part in task.split_items(seed=0, fold=2)
    }
    few = set(join_items(context, run).splits["train"]["id"])
    assert few >= parts["validation"] and len(few) == 10 + len(parts["validation"])
    assert not few & parts["test"]


def test_a_training_on_the_same_items_ends_with_the_weights_that_validation_kept(
    finetuned: Case, tmp_path: Path
) -> None:
    """It has the same learning rates, and stops where validation had stopped."""
    record = read_record(finetuned.kept["all"])
    curve = finetuned.output.curves
    seed_0 = curve[curve["finetune_seed"] == 0]
    chosen = choose_training(FINETUNE, record, finetuned.rows, seed_0)
    assert chosen.trained_share is not None and 0 < chosen.trained_share < 1
    assert isinstance(finetuned.context, EvalContext)
    context = dataclasses.replace(finetuned.context, trained_share=chosen.trained_share)
    run = EvalRun("pretrained", "finetune", "all", 0)
    tiny.evaluate_runs(context, [run], tmp_path / "again")
    (again,) = (tmp_path / "again").glob("*/system")
    expected = read_tensors(finetuned.kept["all"] / WEIGHTS_FILE)
    found = read_tensors(again / WEIGHTS_FILE)
    assert expected.keys() == found.keys()
    assert all(bool((expected[name] == found[name]).all()) for name in expected)


def test_a_training_on_more_items_takes_the_same_share_of_its_steps(finetuned: Case) -> None:
    folder, _, chosen = finetuned.refit("all")
    assert isinstance(chosen.method, EarlyStopping) and chosen.trained_share is not None
    max_steps = count_max_steps(chosen.method, 240 // 16)
    curve = RunPredictions.load(folder.parent).curves
    assert curve["step"].iloc[-1] == round(chosen.trained_share * max_steps) < max_steps


def test_folds_and_seeds_that_chose_differently_give_their_median(finetuned: Case) -> None:
    record = read_record(finetuned.kept["all"])
    baselines = list_baselines((0.1, 1.0, 10.0))
    columns = ("model", "init", "transfer", "head", "label_count")
    own = {name: getattr(record, name) for name in columns} | {"trial": "chosen"}
    numbers = [2, 0, 2, 1]
    rows = [
        own
        | {
            "finetune_seed": fold // 2,
            "fold": fold % 2,
            "reason": notes_to_json([Note("trial", {"number": number})]),
        }
        for fold, number in enumerate(numbers)
    ]
    others = [row | {"label_count": "20", "reason": rows[0]["reason"]} for row in rows]
    table = pd.DataFrame([*rows, *rows, *others])  # a row for each metric
    method = baselines.methods["tfidf"]
    chosen = choose_training(method, record, table, pd.DataFrame())
    assert (chosen.method.C, chosen.trained_share) == (1.0, None)  # type: ignore[attr-defined]
    max_steps = count_max_steps(FINETUNE, 4)
    curves = pd.DataFrame(
        [own | {"step": step, "epoch": step / 4, "is_kept": step != 8} for step in (8, 20, 40, 120)]
    )
    no_trials = table.assign(reason="")
    assert choose_training(FINETUNE, record, no_trials, curves).trained_share == 40 / max_steps


def test_a_fit_that_answers_what_it_has_learned_worse_than_before_is_refused(
    tfidf: Case, tmp_path: Path
) -> None:
    record = dataclasses.replace(read_record(tfidf.kept["all"]), validation_score=1.01)
    method = tfidf.context.settings.methods["tfidf"].with_trial(0)
    with pytest.raises(EvaluationError, match=r"it answers validation worse \(.*\(1.01\)"):
        refit(tfidf.context, record, ChosenTraining(method, None), tmp_path)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("tfidf", StageName("baselines", "", "sentiment")),
        ("finetuned", StageName("evaluate", "word2vec", "sentiment")),
    ],
)
def test_the_forecast_counts_the_work_that_is_done(
    name: str, stage: StageName, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case: Case = request.getfixturevalue(name)
    grid = dataclasses.replace(
        PARAMS.grid, models=("word2vec",), label_counts=(FEW, "all"), finetune_seeds=(0, 1)
    )
    models: Any = {"word2vec": SimpleNamespace(evaluate=case.context.settings)}
    params: Any = SimpleNamespace(grid=grid)
    counted = count_refits(stage, params, case.context.task, models)
    assert set(counted) == {FEW, "all"}
    record = read_record(case.kept["all"])
    method = case.context.settings.methods[record.settings_block]
    log = WorkLog()
    chosen = choose_training(method, record, case.rows, case.output.curves)
    refit(case.context, record, chosen, tmp_path, log)
    (done,) = log.done
    announced = [one for systems in counted["all"] for one in systems if one.part == done.part]
    assert [one.count for one in announced] == [done.count]


def test_the_new_system_is_used_where_none_is_named_and_all_say_what_it_is(
    evaluated_texts: Evaluated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = [*evaluated_texts.systems.values()]
    old = evaluated_texts.systems["gpt-finetuned"]
    new = KeptSystem(
        tmp_path / "new", dataclasses.replace(old.record, train_examples=42, refit=SCORED)
    )
    decision = {
        "task": "x",
        "label_count": "all",
        "system": dataclasses.asdict(old.record),
        "use": {"standing": {"above_chance": True}},
    }
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/decisions.json").write_text(json.dumps([decision]))
    assert choose_system(kept, None, None) == old
    assert choose_system([*kept, new], None, None) == new
    assert choose_system([*kept, new], "gpt-finetuned", None) == old
    assert choose_system([*kept, new], "gpt-finetuned-refitted", "all") == new
    listed = format_systems([*kept, new])
    (line,) = [line for line in listed.splitlines() if line.endswith("(recommended)")]
    assert line.split()[2:4] == ["42", "gpt-finetuned-refitted"]
    assert "its scores are those before" in listed
    assert describe_training(old.record) == "trained on 30 items with seed 0"
    assert describe_training(new.record) == (
        "trained on 42 items with seed 0; when it was trained on 30, accuracy on test was 0.7000 "
        "(mean of 3 seeds: 0.7500)"
    )
    card = format_card(new.record)
    assert "Trained on 42 labelled items" in card and "had learned from 30 items" in card
    assert "0.7500, the mean of 3 seeds" in card


def test_the_page_says_on_how_many_items_the_systems_in_use_were_trained(
    analysis: Analysis, tmp_path: Path
) -> None:
    facts = facts_of(analysis)
    (tmp_path / "results.csv").write_text("model\n")
    decisions = write_report(tmp_path, analysis, facts, PARAMS)
    without = (tmp_path / "comparison.md").read_text()
    write_report(
        tmp_path, analysis, dataclasses.replace(facts, refits=tuple(list_refits(decisions))), PARAMS
    )
    page = (tmp_path / "comparison.md").read_text()
    assert "fitted again" not in without
    (line,) = [line for line in page.splitlines() if "fitted again" in line]
    assert page.replace(f"{line}\n\n", "") == without
    assert "sentiment (700, not 600)" in line and "elsewhere" not in line
    assert "means over 2 seeds; seed 0 is in use." in line


def list_refits(decisions: list[Decision]) -> list[Refit]:
    """Return one system for each task at all labels, and one that is not recommended."""
    found = []
    for one in decisions:
        system = one.use.standing.system
        name = system_name(system.model, system.init, system.transfer, system.head)
        facts = (one.task, one.label_count, f"{name}-refitted", 700, 600, 0, 2)
        found.append(Refit(*facts))
    return [*found, dataclasses.replace(found[0], system="other-refitted", train_examples=9)]
