"""Stages evaluate@V-S-T and evaluate_adapted@V-S-T: a model on a task, beside its untrained twin -> rows, predictions, one tuned model."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pandas as pd

from lineage.artifacts import create, digest, manifest, read_json, write_table
from lineage.celltable import held_rows, means
from lineage.checkpoint import Checkpoint
from lineage.evaluation import cells, evaluate
from lineage.params import read_params
from lineage.rows import Row, table
from lineage.runtime import read_runtime
from lineage.stage import Stage, run
from lineage.study import variant
from lineage.subject import Init, Setting
from lineage.taskdata import TaskData
from lineage.train import compute_device, prepare_torch


def work(stage: Stage) -> None:
    """Compute the cells that are not kept yet, and write the three outs."""
    (name, seed, task), adapted = stage.arguments, stage.verb == "evaluate_adapted"
    params = read_params()
    prepare_torch(params.threads)
    pretrained, target = Path(f"artifacts/pretrained/{name}/{seed}"), Path(f"artifacts/tasks/{task}")
    source = Path(f"artifacts/adapted/{name}/{seed}/{task}") if adapted else pretrained
    spent = [read_json(folder / "spent.json")["text_bytes"] for folder in dict.fromkeys([pretrained, source])]
    setting = Setting(
        checkpoint=Checkpoint.load(source),
        task=TaskData.load(target, split=params.report.split),
        settings=variant(params, name).evaluate,
        pretrain_seed=int(seed),
        text_bytes=None if None in spent else sum(spent),
        precision=params.precision,
        device=compute_device(params.device_class, read_runtime().device_index),
        text=None if adapted else Path(f"artifacts/tokens/{name}"),
        failed=manifest(source, "model")["reason"],
    )
    stage.facts["device"] = str(setting.device)
    inits: tuple[Init, ...] = ("adapted",) if adapted else ("pretrained", "untrained")
    some = [*cells(setting.task.facts, inits, params.grid.labels, params.grid.seeds)]
    about = params.computing | {"evaluate": dataclasses.asdict(setting.settings), "labels": params.grid.labels, "seeds": params.grid.seeds}
    about |= {"split": params.report.split}
    keep = stage.resume_folder(about | {"inputs": [digest(source), digest(target)]})
    tags = {"family": setting.checkpoint.family.name, "variant": name, "pretrain_seed": seed, "task": task}
    with stage.tracked(parameters=about, inputs=[source, target], **tags) as tracker:
        with stage.progress("cells", 1.0) as report:
            rows, predictions = evaluate(setting, some, keep=keep, report=report)
        if adapted:
            rows += held_rows(setting, read_json(source / "held.json"), adapted_bytes=spent[-1])
        tracker.summary(means(rows))
    _write(stage, keep, rows, predictions)
    stage.drop_resume()


def _write(stage: Stage, keep: Path, rows: list[Row], predictions: pd.DataFrame) -> None:
    with create(Path(f"artifacts/tuned/{stage.file_name}"), "tuned") as draft:
        if (keep / "tuned.safetensors").is_file():
            shutil.copy(keep / "tuned.safetensors", draft)
    write_table(Path(f"artifacts/results/predictions/{stage.file_name}.parquet"), predictions)
    write_table(Path(f"artifacts/results/rows/{stage.file_name}.parquet"), table(rows))


def main() -> None:
    """Run the stage."""
    adapted = "--adapted" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--adapted"]
    run("evaluate_adapted" if adapted else "evaluate", work)


if __name__ == "__main__":
    main()
