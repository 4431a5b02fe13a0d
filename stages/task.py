"""Stage task@T: a task's data -> the items of its kind, in splits."""

from pathlib import Path

from lineage import artifacts
from lineage.config.params import read_params
from lineage.data.items import build_items, task_fingerprint
from lineage.errors import InputError
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage
from lineage.tasks.base import load_kind


def work(stage: Stage) -> None:
    """Read, make items, write."""
    (name,) = stage.arguments
    params, root = read_params(), resolve_data_root()
    task, where = params.tasks[name], f"params.yaml: tasks.{name}"
    if (
        task_fingerprint(task, root, where)
        != artifacts.read_json(Path(f"artifacts/sources/tasks/{name}.json"))["data"]
    ):
        raise InputError(
            f"{where}: its data changed after the sources stage had read it; run again"
        )
    items = build_items(name, task, load_kind(task.kind), seed=params.seed, root=root, where=where)
    with artifacts.create_artifact(Path("artifacts/tasks") / name, "task", name=name) as folder:
        for split, table in items.splits.items():
            artifacts.write_table(folder / f"{split}.parquet", table)
        artifacts.write_json(folder / "task.json", items.info)


def main() -> None:
    run_stage("task", work)


if __name__ == "__main__":
    main()
