"""Stage report: the rows and predictions of the grid -> reports/results.csv and reports/results.json, a pure function of them."""

from pathlib import Path

from lineage.artifacts import write_json
from lineage.params import read_params
from lineage.report.results import read_results, write_csv
from lineage.running.stage import Stage, run


def work(stage: Stage) -> None:
    """Gather, compare, write."""
    params = read_params()
    table, tree = read_results(Path("artifacts/results"), params.grid, params.report, params.tasks)
    write_csv(Path("reports/results.csv"), table)
    write_json(Path("reports/results.json"), tree)


def main() -> None:
    """Run the stage."""
    run("report", work)


if __name__ == "__main__":
    main()
