"""Stage report: the rows and predictions of the grid -> reports/results.csv and reports/results.json, a pure function of them."""

from pathlib import Path

from lineage.analysis.build import build_results, write_results_csv
from lineage.artifacts import write_json
from lineage.config.params import read_params
from lineage.runtime.stage import Stage, run_stage


def work(stage: Stage) -> None:
    """Gather, compare, write."""
    params = read_params()
    table, tree = build_results(Path("artifacts/results"), params.grid, params.report, params.tasks)
    write_results_csv(Path("reports/results.csv"), table)
    write_json(Path("reports/results.json"), tree)


def main() -> None:
    """Run the stage."""
    run_stage("report", work)


if __name__ == "__main__":
    main()
