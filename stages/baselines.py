"""Stage baselines@TASK: methods that need no pretraining -> rows and predictions."""

from pathlib import Path

from lineage.artifacts import artifact_digest, file_digest, folder_bytes, read_json, write_table
from lineage.config.params import Params, read_recorded_params
from lineage.data.dataset_stats import compute_dataset_stats, write_dataset_stats
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import (
    EvaluationOutput,
    evaluate_runs,
    list_kept_systems,
    list_runs,
    sort_predictions,
)
from lineage.evaluation.result_rows import ceiling_rows, mean_values, rows_without_value
from lineage.methods.encoder import BaselineContext, EvalRun
from lineage.methods.registry import list_baselines
from lineage.methods.saved import read_record
from lineage.results import Note, ResultRow, results_frame
from lineage.runtime.provenance import SOURCES_DIR
from lineage.runtime.stage import Stage, run_stage
from lineage.serving.systems import write_systems

RESULTS_DIR = Path("artifacts/results")


def work(stage: Stage) -> None:
    """Fit and score every baseline."""
    (name,) = stage.arguments
    params = read_recorded_params()
    split = params.report.split
    folder = Path("artifacts/tasks") / name
    task = TaskData.load(folder, split=split)
    stats = compute_dataset_stats(task, params.grid.finetune_seeds)
    write_dataset_stats(RESULTS_DIR / "statistics" / f"{stage.file_name}.json", stats)
    outside_predictions = read_json(locate_outside_predictions(name))
    context = BaselineContext(task, list_baselines(params.grid.tfidf_C, outside_predictions))
    rows: list[ResultRow] = []
    tables = []
    system_dirs: list[Path] = []
    if split == "test" and task.info.ceilings:
        rows += ceiling_rows(task.info, task.info.counts["test"])
    if split not in task.scored_splits:
        for run in (EvalRun("none", name) for name in ("majority", "tfidf")):
            note = Note("no_split", split)
            rows += rows_without_value(context, run, "not_applicable", [note], split=split)
    else:
        output, system_dirs = evaluate_baselines(stage, context, params, folder)
        rows += output.rows
        tables.append(output.predictions)
    write_systems(stage.file_name, system_dirs)
    file_name = f"{stage.file_name}.parquet"
    write_table(RESULTS_DIR / "rows" / file_name, results_frame(rows))
    write_table(RESULTS_DIR / "predictions" / file_name, sort_predictions(tables))
    stage.clear_resume_folder()


def locate_outside_predictions(task: str) -> Path:
    """Return the record of the sources stage with the predictions of a task's outside systems."""
    return SOURCES_DIR / "outside_systems" / f"{task}.json"


def evaluate_baselines(
    stage: Stage, context: BaselineContext, params: Params, folder: Path
) -> tuple[EvaluationOutput, list[Path]]:
    """Return the results of all baselines, and the folders of the TF-IDF models."""
    grid = params.grid
    parameters = {
        "tfidf": grid.tfidf_C,
        "label_count": grid.label_counts,
        "finetune_seeds": grid.finetune_seeds,
        "split": params.report.split,
    }
    info = context.task.info
    inputs = [artifact_digest(folder), file_digest(locate_outside_predictions(info.name))]
    cache_dir = stage.prepare_resume_folder(parameters | {"inputs": inputs})
    methods = context.settings.methods.values()
    runs = [*list_runs(info, methods, ("none",), grid.label_counts, grid.finetune_seeds)]
    with stage.track(parameters=parameters, inputs=[folder], task=info.name) as tracker:
        with stage.show_progress("baselines", 1.0) as report:
            output = evaluate_runs(
                context, runs, cache_dir=cache_dir, report_progress=report, work=stage.work
            )
        tracker.log_summary(mean_values(output.rows))
    system_dirs = list_kept_systems(context, runs, output.rows, cache_dir)
    costs = {
        str(run.label_count): cost
        for run, cost in reversed(output.costs.items())  # the first seed, with all trials, stays
        if run.method == "tfidf"
    }
    stage.metadata["tfidf"] = [
        {
            "label_count": label_count,
            "seconds": costs[label_count].seconds,
            "items_per_second": costs[label_count].items_per_second,
            "model_bytes": folder_bytes(system_dir),
        }
        for system_dir in system_dirs
        for label_count in [read_record(system_dir).label_count]
    ]
    return output, system_dirs


if __name__ == "__main__":
    run_stage("baselines", work)
