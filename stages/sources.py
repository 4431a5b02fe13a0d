"""Stage sources: check all parameters and all data before anything runs, and record them."""

from pathlib import Path

from lineage.artifacts import create_artifact, write_json
from lineage.config.params import PARAMS_FILE, Params, read_params
from lineage.results import NGRAM_STAGE
from lineage.runtime.code import keep_digests
from lineage.runtime.provenance import SOURCES_DIR
from lineage.runtime.settings import check_writable, resolve_data_root
from lineage.runtime.stage import Stage, run_stage
from lineage.study.source_records import collect_records

RESULTS_DIR = Path("artifacts/results")


def work(stage: Stage) -> None:
    """Check everything, write the records, and remove results that the grid no longer has."""
    params_bytes = PARAMS_FILE.read_bytes() if PARAMS_FILE.is_file() else b""
    params = read_params()
    for folder in ("artifacts", "reports"):
        check_writable(folder)
    records = collect_records(params, resolve_data_root())
    keep_digests()
    with create_artifact(SOURCES_DIR, "sources") as draft:
        for name, record in records.items():
            write_json(draft / f"{name}.json", record)
        (draft / PARAMS_FILE.name).write_bytes(params_bytes)
    remove_stale_results(params)


def remove_stale_results(params: Params) -> None:
    """Remove the results of stages that the grid no longer has: the report must not show them."""
    wanted = {NGRAM_STAGE}
    for verb, instances in params.grid.stage_instances.items():
        wanted.update(f"{verb}-{instance}" for instance in instances)
    for path in RESULTS_DIR.glob("*/*"):
        if path.is_file() and path.stem not in wanted:
            path.unlink()


if __name__ == "__main__":
    run_stage("sources", work)
