"""Stage publish: results, costs and provenance -> reports/comparison.{html,md,json}.

It also shows them in MLflow, registers the recommended systems there, and prints a table.
"""

import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from lineage.analysis.champion import ChampionOutcome
from lineage.analysis.decision import Decision
from lineage.analysis.disagreements import find_disagreements
from lineage.analysis.neighbours import read_occurrences
from lineage.analysis.records import Analysis, read_analysis
from lineage.config.params import Params, read_recorded_params, recorded_params_file
from lineage.report import champions, page, publication, run_summary
from lineage.report.costs import add_costs, build_costs
from lineage.report.evidence import ReportFacts, list_costs, write_evidence, write_report
from lineage.report.provenance import (
    Provenance,
    StageMetadata,
    collect_provenance,
    list_stage_names,
    read_dvc_lock,
)
from lineage.report.section import Refit
from lineage.runtime.integrity import check_outputs
from lineage.runtime.provenance import get_pipeline_id, read_stage_metadata
from lineage.runtime.settings import METADATA_DIR, SUMMARY_FILE
from lineage.runtime.stage import Stage, run_stage
from lineage.serving.systems import list_refitted

try:
    from lineage.report import ranked_systems
    from lineage.runtime import tracking
    from lineage.runtime.sender import send_waiting
    from lineage.runtime.server_time import ServerTime
    from lineage.serving.registry import publish_champions
except ImportError as error:
    print(
        f"publish: MLflow cannot be imported ({error}); install it again, as `pip install mlflow` "
        "does",
        file=sys.stderr,
    )
    sys.exit(2)

REPORTS_DIR = Path("reports")
RESULTS_DIR = Path("artifacts/results")
TASKS_DIR = Path("artifacts/tasks")
PLAIN_TEXT_WIDTH = 220  # characters of the printed table where there is no terminal


def work(stage: Stage) -> None:
    """Write the report and what it rests on, log it to MLflow, and print the table."""
    params = read_recorded_params()
    pipeline = get_pipeline_id()
    stage_names = list_stage_names(params)
    lock = read_dvc_lock()
    if "LINEAGE_STAGE" not in os.environ:  # `lineage run` has checked them before its first stage
        check_outputs(lock, stage_names)
    stage_metadata = read_stage_metadata(METADATA_DIR, stage_names, lock)
    results = read_analysis(REPORTS_DIR / "results.json")
    analysis = add_costs(results, stage_metadata, params.grid, curves_dir=RESULTS_DIR / "curves")
    known_uses = run_summary.read_known_uses(REPORTS_DIR / "decisions.json")  # of the last run
    provenance = collect_provenance(stage_metadata, stage_names, lock, pipeline=pipeline)
    facts = collect_facts(params, analysis, stage_metadata, provenance)
    decisions = write_pages(analysis, facts, params, stage_names)
    server_time = ServerTime()
    parent = tracking.open_parent_run(pipeline, server_time)
    changes = run_summary.find_changes(known_uses, decisions)
    pipeline_changes = run_summary.keep_pipeline_changes(SUMMARY_FILE, pipeline, changes)
    with send_waiting(parent):
        outcomes = publish_champions(
            params,
            decisions,
            run_id=parent.run_id,
            results_dir=RESULTS_DIR,
            tasks_dir=TASKS_DIR,
            server_time=server_time,
        )
        log_candidates(parent, analysis, decisions, outcomes)
        parent.log_summary(publication.summary_metrics(decisions))
        note = publication.format_run_note(
            analysis,
            decisions,
            outcomes,
            pipeline_changes,
            publication.find_cached_runs(stage_metadata, pipeline=pipeline),
            publication.find_training_runs(stage_metadata),
            experiment_id=parent.experiment_id,
        )
        name = publication.format_run_name(decisions, pipeline=pipeline)
        parent.set_note(note, title=name)
        log_report(parent, analysis, decisions, stage_metadata)
    html = (REPORTS_DIR / "comparison.html").absolute()
    summary = run_summary.build_run_summary(
        analysis,
        decisions,
        changes=changes,
        pipeline=pipeline,
        pipeline_changes=pipeline_changes,
        report=html,
        mlflow_experiment_id=parent.experiment_id,
        mlflow_run_id=parent.run_id,
    )
    run_summary.write_run_summary(SUMMARY_FILE, summary)
    lines = [f"changed since the last run: {change}" for change in changes.decisions]
    print_report(analysis, decisions, html, [*lines, *champions.list_changes(outcomes)])
    if parent.run_id:
        print(f"every run, curve and machine: `lineage ui`; this run is `{name}` in MLflow")


def write_pages(
    analysis: Analysis, facts: ReportFacts, params: Params, stage_names: Collection[str]
) -> list[Decision]:
    """Write the report and what it rests on, and return its decisions."""
    decisions = write_report(REPORTS_DIR, analysis, facts, params)
    write_evidence(
        REPORTS_DIR,
        facts,
        params,
        params_file=recorded_params_file(),
        results_dir=RESULTS_DIR,
        stages=[name.replace("@", "-") for name in stage_names],
    )
    return decisions


def collect_facts(
    params: Params,
    analysis: Analysis,
    stage_metadata: Mapping[str, StageMetadata],
    provenance: Provenance,
) -> ReportFacts:
    """Return what the report shows besides the analysis."""
    disagreements = find_disagreements(
        analysis, results_dir=RESULTS_DIR, tasks_dir=TASKS_DIR, show_text=params.report.show_text
    )
    return ReportFacts(
        costs=list_costs(build_costs(analysis, stage_metadata)),
        budget=analysis.budget,
        adaptation=analysis.adaptation,
        provenance=provenance,
        disagreements=tuple(disagreements),
        refits=tuple(list_refits(params)),
        occurrences=read_occurrences(
            analysis, tasks_dir=TASKS_DIR, show_text=params.report.show_text
        ),
    )


def list_refits(params: Params) -> Iterator[Refit]:
    """Yield the systems that were fitted again, in the order of the tasks."""
    for task in params.grid.tasks:
        for kept in list_refitted(task):
            record = kept.record
            assert record.refit is not None
            yield Refit(
                task=task,
                label_count=record.label_count,
                system=record.name,
                train_examples=record.train_examples,
                scored_examples=record.refit.train_examples,
                finetune_seed=record.finetune_seed,
                num_seeds=record.refit.num_seeds,
            )


def print_report(
    analysis: Analysis, decisions: Sequence[Decision], html: Path, changes: Sequence[str]
) -> None:
    """Print the means and the decisions, where the report is, and what has changed."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_TEXT_WIDTH)
    page.print_table(analysis, decisions, console)
    print(f"\nreport: {html} (opens without a network; also .md, .csv and .json)")
    for line in changes:
        print(line)


def log_candidates(
    parent: tracking.MlflowTracker,
    analysis: Analysis,
    decisions: Sequence[Decision],
    outcomes: Sequence[ChampionOutcome],
) -> None:
    """Log the data set of each task, and the systems that were compared on it."""
    datasets = ranked_systems.describe_tasks(analysis, TASKS_DIR)
    parent.log_datasets([*datasets.values()])
    registered_tasks = {one.task for one in outcomes}
    parent.log_ranked_systems(
        ranked_systems.list_ranked_systems(
            analysis, decisions, datasets, registered_tasks=registered_tasks
        )
    )


def log_report(
    parent: tracking.MlflowTracker,
    analysis: Analysis,
    decisions: Sequence[Decision],
    stage_metadata: Mapping[str, StageMetadata],
) -> None:
    """Copy the report and its figures to the parent run in MLflow, and end it.

    It has ended with its last stage, so that it lasts no longer if it is published again.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, svg in page.render_figures(analysis, decisions).items():
            (Path(folder) / name).write_text(svg, encoding="utf-8")
        parent.log_artifact(Path(folder), "figures")
    for path in sorted(REPORTS_DIR.glob("comparison.*")):
        parent.log_artifact(path)
    has_failures = any(failure.status == "failed" for failure in analysis.failures)
    ends = [
        metadata["ended"]
        for name, metadata in stage_metadata.items()
        if name != "sources" and "ended" in metadata  # it runs each time
    ]
    end_time = round(1000 * max(ends)) if ends else None
    parent.end("FAILED" if has_failures else "FINISHED", end_time=end_time)


if __name__ == "__main__":
    run_stage("publish", work)
