"""Stage task@T: a task's data -> the items of its kind, in splits."""

from pathlib import Path

from lineage import artifacts
from lineage.errors import InputError
from lineage.kind import load_kind
from lineage.loading.items import build, task_facts
from lineage.params import read_params
from lineage.running.runtime import data_root
from lineage.running.stage import Stage, run


def work(stage: Stage) -> None:
    """Read, make items, write."""
    (name,) = stage.arguments
    params, root = read_params(), data_root()
    task, where = params.tasks[name], f"params.yaml: tasks.{name}"
    if task_facts(task, root, where) != artifacts.read_json(Path(f"artifacts/sources/tasks/{name}.json"))["data"]:
        raise InputError(f"{where}: its data changed after the sources stage had read it; run again")
    items = build(name, task, load_kind(task.kind), seed=params.seed, root=root, where=where)
    with artifacts.create(Path("artifacts/tasks") / name, "task", name=name) as folder:
        for split, table in items.splits.items():
            artifacts.write_table(folder / f"{split}.parquet", table)
        artifacts.write_json(folder / "task.json", items.facts)


def main() -> None:
    run("task", work)


if __name__ == "__main__":
    main()
