"""Stage refit@TASK: the recommended systems, fitted again with their validation items, for use."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lineage.analysis.decision import Decision, decide
from lineage.analysis.records import Analysis, read_analysis
from lineage.answers.metrics import RANKING_METRICS
from lineage.artifacts import artifact_digest, create_artifact, file_digest, read_table
from lineage.config.params import Params, read_recorded_params
from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError
from lineage.evaluation.contexts import open_context, pretrained_dir
from lineage.evaluation.refit import choose_training, refit_system
from lineage.evaluation.result_rows import empty_curves
from lineage.methods.encoder import BaselineContext, EvalContext
from lineage.methods.registry import list_baselines
from lineage.methods.saved import RefitRecord, SystemRecord, system_name
from lineage.report.costs import add_costs, build_costs
from lineage.report.provenance import list_stage_names, read_dvc_lock
from lineage.runtime.provenance import read_stage_metadata
from lineage.runtime.settings import METADATA_DIR
from lineage.runtime.stage import Stage, run_stage
from lineage.serving.systems import REFITTED_DIR, KeptSystem, list_evaluated, write_refitted
from lineage.study.models import load_model_config
from lineage.training.devices import configure_torch

RESULTS_DIR = Path("artifacts/results")
TASKS_DIR = Path("artifacts/tasks")
ANALYSIS_FILE = Path("reports/results.json")


@dataclass(frozen=True)
class Recommended:
    """A kept system that the report recommends, and the score that the report has of it."""

    kept: KeptSystem
    scored: RefitRecord

    @property
    def folder_name(self) -> str:
        record = self.kept.record
        return f"{record.label_count}-{record.name}"


def work(stage: Stage) -> None:
    """Fit what is not in the resume folder yet, and write the systems."""
    (task,) = stage.arguments
    params = read_recorded_params()
    if params.device == "cuda" and not torch.cuda.is_available():
        print(f"{stage.name}: there is no GPU here, so the CPU is used", file=sys.stderr)
        params = replace(params, device="cpu")
    configure_torch(params.threads)
    recommended = list_recommended(params, task)
    inputs = [file_digest(ANALYSIS_FILE), artifact_digest(TASKS_DIR / task)]
    inputs += [artifact_digest(one.kept.folder.parent) for one in recommended]
    cache_dir = stage.prepare_resume_folder({**params.compute_settings, "inputs": inputs})
    stage.load_elapsed_seconds(cache_dir)
    with (
        create_artifact(REFITTED_DIR / task, "systems") as draft,
        stage.show_progress("systems", max(1, len(recommended))) as report,
    ):
        for number, one in enumerate(recommended):
            own_cache_dir = cache_dir / one.folder_name
            own_cache_dir.mkdir(exist_ok=True)
            report(number, one.folder_name)
            try:
                fitted_dir, record = refit(stage, params, one.kept, own_cache_dir)
            except EvaluationError as error:
                print(f"{one.folder_name}: {error}; so it is used as it is", file=sys.stderr)
                continue
            write_refitted(draft / one.folder_name, fitted_dir, replace(record, refit=one.scored))
    stage.clear_resume_folder()


def list_recommended(params: Params, task: str) -> list[Recommended]:
    """Return the systems that `lineage predict` uses for a task, for each number of labels."""
    names = list_stage_names(params)
    metadata = read_stage_metadata(METADATA_DIR, names, read_dvc_lock())
    results = read_analysis(ANALYSIS_FILE)
    analysis = add_costs(results, metadata, params.grid, curves_dir=RESULTS_DIR / "curves")
    found = []
    for decision in decide(analysis, build_costs(analysis, metadata)):
        if decision.task == task:  # and not one of its extra test sets
            found += _find_kept(params, analysis, decision)
    return found


def _find_kept(params: Params, analysis: Analysis, decision: Decision) -> list[Recommended]:
    """Return the kept system of a decision; none if it is not kept."""
    system = decision.use.standing.system
    name = system_name(system.model, system.init, system.transfer, system.head)
    score = analysis.find_score(system, decision.setting)
    unit = RANKING_METRICS[decision.metric]
    found = []
    for kept in list_evaluated(params, decision.task):
        record = kept.record
        if (record.name, record.label_count) != (name, decision.label_count):
            continue
        own = [
            one.value
            for one in score.seeds
            if one.finetune_seed in (None, record.finetune_seed)
            and one.pretrain_seed in (None, record.pretrain_seed)
        ]
        scored = RefitRecord(
            train_examples=decision.train_examples,
            split=params.report.split,
            num_seeds=len(score.seeds),
            mean_score=unit * decision.use.standing.mean,
            seed_score=unit * own[0] if own else None,
        )
        found.append(Recommended(kept, scored))
    return found


def refit(
    stage: Stage, params: Params, kept: KeptSystem, cache_dir: Path
) -> tuple[Path, SystemRecord]:
    """Fit a system again; return its folder and its record. Raises EvaluationError."""
    record = kept.record
    context = load_context(params, record)
    name = f"{kept.folder.parent.name}.parquet"  # of the files of the stage that evaluated it
    curves_file = RESULTS_DIR / "curves" / name
    chosen = choose_training(
        context.settings.methods[record.settings_block],
        record,
        rows=read_table(RESULTS_DIR / "rows" / name),
        curves=read_table(curves_file) if curves_file.is_file() else empty_curves(),
    )
    return refit_system(
        context,
        record,
        chosen,
        cache_dir=cache_dir,
        report_progress=lambda done, note: stage.save_elapsed_seconds(cache_dir.parent),
        work=stage.work,
    )


def load_context(params: Params, record: SystemRecord) -> BaselineContext | EvalContext:
    """Load the model of a system and its task, without test items. Raises InputError."""
    task = TaskData.load(TASKS_DIR / record.task, split="validation")
    if record.model_folder is None:
        return BaselineContext(task, list_baselines(params.grid.tfidf_C))
    return open_context(
        params,
        load_model_config(params, record.model).evaluate,
        source_dir=pretrained_dir(record.model, str(record.pretrain_seed)),
        model_dir=Path(record.model_folder),
        task=task,
        seed=record.pretrain_seed or 0,
    )


if __name__ == "__main__":
    run_stage("refit", work)
