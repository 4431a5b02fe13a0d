"""Stage publish: results, costs and provenance -> reports/comparison.{html,md,csv,json}, the run in MLflow, and a table here."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from lineage.artifacts import read_json, write_json
from lineage.params import Params, read_params
from lineage.report import page, publication, view
from lineage.report.disagreements import disagreements
from lineage.report.results import read_csv
from lineage.running import tracking
from lineage.running.provenance import commit, pipeline_id, read_sides
from lineage.running.runtime import STATE
from lineage.running.stage import Stage, run
from lineage.study import variant

REPORTS, VARIANTS = Path("reports"), Path("artifacts/sources/variants")


def work(stage: Stage) -> None:
    """Write the four files, mirror them in MLflow, print the table and where everything is."""
    params, tree, pipeline = read_params(), read_json(REPORTS / "results.json"), pipeline_id()
    known = {"sources", f"corpus@{params.budget.corpus}", "report", *(f"{verb}@{cell}" for verb, some in params.grid.cells.items() for cell in some)}
    lock, curves = publication.read_lock(), Path("artifacts/results/curves")
    sides = read_sides(STATE / "sides", known, lock)
    tree |= {"adaptation": publication.timed(tree["adaptation"], sides, params.grid, curves=curves)}
    more: dict[str, Any] = {
            "budget": publication.costed(tree["budget"], sides, curves=curves),
            "provenance": publication.provenance(sides, known, lock, pipeline=pipeline, commit=commit()),
            "mechanisms": mechanisms(params),
            "disagreements": disagreements(tree, params.grid, results=Path("artifacts/results"), tasks=Path("artifacts/tasks"),
                                           show_text=params.report.show_text)}  # fmt: skip
    for kind, text in page.render(tree, **more).items():
        (REPORTS / f"comparison.{kind}").write_text(text, encoding="utf-8")
    shutil.copyfile(REPORTS / "results.csv", REPORTS / "comparison.csv")
    write_json(REPORTS / "comparison.json", tree | more | {"results": read_csv(REPORTS / "results.csv")})
    mirrored = mirror(tree, pipeline=pipeline, made_by=publication.made_elsewhere(sides, pipeline=pipeline))
    console = Console()
    page.print_table(tree, console if console.is_terminal else Console(width=200))
    print(f"\nreport: {(REPORTS / 'comparison.html').absolute()} (opens without a network; also .md, .csv and .json)")
    if mirrored:
        print(f"every run, curve and machine: `make ui`; this run is `{publication.title(tree, pipeline=pipeline)}` in MLflow")


def mechanisms(params: Params) -> list[dict[str, str]]:
    """What each variant is made of, as its record has it, which no reading of it changes, with how it is read here, and in the corpus's language."""
    language, networks = params.corpora[params.budget.corpus].language, any("bilstm" in params.tasks[name].heads for name in params.grid.tasks)
    found = []
    for name in params.grid.families:
        said = read_json(VARIANTS / f"{name}.json")["mechanism"]
        transfer = variant(params, name).evaluate.transfer_text(said["transfer"], networks=networks)
        found.append({"variant": name} | view.in_language(said | {"transfer": transfer}, language))
    return found


def mirror(tree: dict[str, Any], *, pipeline: str, made_by: dict[str, str]) -> bool:
    """The report, its figures and its verdict on the parent run in MLflow, which ends here; whether there is one."""
    parent = tracking.parent_run(pipeline)
    with tempfile.TemporaryDirectory() as folder:
        for name, svg in page.figures(tree).items():
            (Path(folder) / name).write_text(svg, encoding="utf-8")
        parent.artifact(Path(folder), "figures")
    for path in sorted(REPORTS.glob("comparison.*")):
        parent.artifact(path)
    parent.summary(publication.headline(tree))
    parent.note(publication.note(tree, made_by, experiment=parent.experiment_id), title=publication.title(tree, pipeline=pipeline))
    parent.end("FAILED" if any(cell["status"] == "failed" for cell in tree["failed"]) else "FINISHED")
    return bool(parent.run_id)


def main() -> None:
    """Run the stage."""
    run("publish", work)


if __name__ == "__main__":
    main()
