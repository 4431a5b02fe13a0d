"""Stage task@T: a task's data -> the items of its kind, in splits."""

from pathlib import Path

from lineage import artifacts
from lineage.config.params import read_recorded_params
from lineage.data.prepare_task import locate_task
from lineage.runtime.provenance import SOURCES_DIR
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage


def work(stage: Stage) -> None:
    """Take the items that the sources stage has made, or make them if they are gone."""
    (name,) = stage.arguments
    params = read_recorded_params()
    where = f"params.yaml: tasks.{name}"
    record = artifacts.read_json(SOURCES_DIR / "tasks" / f"{name}.json")
    prepared = locate_task(
        name, params.tasks[name], seed=params.seed, root=resolve_data_root(), where=where
    )
    with artifacts.create_artifact(Path("artifacts/tasks") / name, "task", name=name) as folder:
        prepared.take(folder, record["data"], where)


if __name__ == "__main__":
    run_stage("task", work)
