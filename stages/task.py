"""Stage task@T: a task's data -> the items of its kind, in splits."""

from pathlib import Path

from lineage import artifacts
from lineage.config.params import read_recorded_params
from lineage.data.items import task_fingerprint
from lineage.data.prepare_task import locate_prepared_task, prepare_task
from lineage.data.prepared import Measures
from lineage.errors import InputError
from lineage.runtime.provenance import SOURCES_DIR
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage


def work(stage: Stage) -> None:
    """Take the items that the sources stage has made, or make them if they are gone."""
    (name,) = stage.arguments
    params = read_recorded_params()
    root = resolve_data_root()
    task = params.tasks[name]
    where = f"params.yaml: tasks.{name}"
    record = artifacts.read_json(SOURCES_DIR / "tasks" / f"{name}.json")
    fingerprint = task_fingerprint(task, root, where)
    if fingerprint != record["data"]:
        raise InputError(
            f"{where}: its data changed after the sources stage had read it; run again"
        )

    def build(folder: Path) -> Measures:
        return prepare_task(name, task, folder, seed=params.seed, root=root, where=where)

    code_digests = artifacts.read_json(SOURCES_DIR / "code" / "task.json")
    prepared = locate_prepared_task(
        name, task, fingerprint, seed=params.seed, code_digests=code_digests
    )
    with artifacts.create_artifact(Path("artifacts/tasks") / name, "task", name=name) as folder:
        prepared.take(folder, build)


if __name__ == "__main__":
    run_stage("task", work)
