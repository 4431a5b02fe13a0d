"""Stage report: results and predictions of the grid -> reports/results.csv and results.json."""

from pathlib import Path

from lineage.analysis.build import build_results, write_results_csv
from lineage.analysis.records import write_analysis
from lineage.config.params import read_recorded_params
from lineage.runtime.integrity import check_result_files
from lineage.runtime.stage import Stage, run_stage


def work(stage: Stage) -> None:
    """Analyse the results; the files are a pure function of them."""
    params = read_recorded_params()
    results_dir = Path("artifacts/results")
    check_result_files(results_dir)
    table, analysis = build_results(
        results_dir,
        params.grid,
        params.report,
        params.tasks,
        params.continued_models,
        params.models,
    )
    write_results_csv(Path("reports/results.csv"), table)
    write_analysis(Path("reports/results.json"), analysis)


if __name__ == "__main__":
    run_stage("report", work)
