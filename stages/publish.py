"""Stage publish: results, costs and provenance -> reports/comparison.{html,md,csv,json}, the run in MLflow, and a table here."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from lineage.analysis.build import read_results_csv
from lineage.analysis.disagreements import find_disagreements
from lineage.artifacts import read_json, write_json
from lineage.config.params import Params, read_params
from lineage.config.study import load_model_config
from lineage.report import page, publication, view
from lineage.runtime import tracking
from lineage.runtime.provenance import get_code_commit, get_pipeline_id, read_stage_metadata
from lineage.runtime.settings import METADATA_DIR
from lineage.runtime.stage import Stage, run_stage

REPORTS_DIR, MODEL_RECORDS_DIR = Path("reports"), Path("artifacts/sources/models")


def work(stage: Stage) -> None:
    """Write the four files, mirror them in MLflow, print the table and where everything is."""
    params, tree, pipeline = (
        read_params(),
        read_json(REPORTS_DIR / "results.json"),
        get_pipeline_id(),
    )
    stages = {
        "sources",
        f"corpus@{params.budget.corpus}",
        "report",
        *(f"{verb}@{cell}" for verb, some in params.grid.stage_instances.items() for cell in some),
    }
    lock, curves = publication.read_dvc_lock(), Path("artifacts/results/curves")
    stage_metadata = read_stage_metadata(METADATA_DIR, stages, lock)
    tree |= {
        "adaptation": publication.add_adaptation_seconds(
            tree["adaptation"], stage_metadata, params.grid, curves_dir=curves
        )
    }
    more: dict[str, Any] = {
        "budget": publication.add_pretraining_costs(
            tree["budget"], stage_metadata, curves_dir=curves
        ),
        "provenance": publication.collect_provenance(
            stage_metadata, stages, lock, pipeline=pipeline, commit=get_code_commit()
        ),
        "mechanisms": describe_models(params),
        "disagreements": find_disagreements(
            tree,
            params.grid,
            results_dir=Path("artifacts/results"),
            tasks_dir=Path("artifacts/tasks"),
            show_text=params.report.show_text,
        ),
    }
    for kind, text in page.render_report(tree, **more).items():
        (REPORTS_DIR / f"comparison.{kind}").write_text(text, encoding="utf-8")
    shutil.copyfile(REPORTS_DIR / "results.csv", REPORTS_DIR / "comparison.csv")
    write_json(
        REPORTS_DIR / "comparison.json",
        tree | more | {"results": read_results_csv(REPORTS_DIR / "results.csv")},
    )
    mirrored = log_report(
        tree,
        pipeline=pipeline,
        run_ids_elsewhere=publication.find_cached_runs(stage_metadata, pipeline=pipeline),
    )
    console = Console()
    page.print_table(tree, console if console.is_terminal else Console(width=200))
    print(
        f"\nreport: {(REPORTS_DIR / 'comparison.html').absolute()} (opens without a network; also .md, .csv and .json)"
    )
    if mirrored:
        print(
            f"every run, curve and machine: `make ui`; this run is `{publication.format_run_name(tree, pipeline=pipeline)}` in MLflow"
        )


def describe_models(params: Params) -> list[dict[str, str]]:
    """What each variant is made of, as its record has it, which no reading of it changes, with how it is read here, and in the corpus's language."""
    language, networks = (
        params.corpora[params.budget.corpus].language,
        any("bilstm" in params.tasks[name].probes for name in params.grid.tasks),
    )
    found = []
    for name in params.grid.models:
        description = read_json(MODEL_RECORDS_DIR / f"{name}.json")["mechanism"]
        transfer = load_model_config(params, name).evaluate.describe_transfer(
            description["transfer"], has_bilstm_probe=networks
        )
        found.append(
            {"model": name}
            | view.adjust_unit_for_language(description | {"transfer": transfer}, language)
        )
    return found


def log_report(tree: dict[str, Any], *, pipeline: str, run_ids_elsewhere: dict[str, str]) -> bool:
    """The report, its figures and its verdict on the parent run in MLflow, which ends here; whether there is one."""
    parent = tracking.open_parent_run(pipeline)
    with tempfile.TemporaryDirectory() as folder:
        for name, svg in page.render_figures(tree).items():
            (Path(folder) / name).write_text(svg, encoding="utf-8")
        parent.log_artifact(Path(folder), "figures")
    for path in sorted(REPORTS_DIR.glob("comparison.*")):
        parent.log_artifact(path)
    parent.log_summary(publication.summary_metrics(tree))
    parent.set_note(
        publication.format_run_note(tree, run_ids_elsewhere, experiment_id=parent.experiment_id),
        title=publication.format_run_name(tree, pipeline=pipeline),
    )
    parent.end(
        "FAILED" if any(cell["status"] == "failed" for cell in tree["failed"]) else "FINISHED"
    )
    return bool(parent.run_id)


def main() -> None:
    """Run the stage."""
    run_stage("publish", work)


if __name__ == "__main__":
    main()
