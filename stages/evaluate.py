"""Stages evaluate@V-S-T, evaluate_adapted@V-S-T and evaluate_joined@V-S-T: a model on a task, beside its untrained twin -> rows and predictions.

Of a model that is tuned, its weights too. Joined are frozen features with the static vectors of `grid.join_static` beside them.
"""

import dataclasses
import shutil
import sys
from pathlib import Path

import pandas as pd

from lineage.artifacts import create, digest, manifest, read_json, write_table
from lineage.checkpoint import Checkpoint
from lineage.evaluation.celltable import held_rows, means, unknown_rows
from lineage.evaluation.evaluate import cells, evaluate
from lineage.evaluation.subject import Init, Setting, asked
from lineage.loading.taskdata import TaskData
from lineage.params import Params, read_params
from lineage.rows import Row, table
from lineage.running.runtime import read_runtime
from lineage.running.stage import Stage, run
from lineage.study import variant
from lineage.training.train import compute_device, prepare_torch

FLAGS = {"--adapted": "evaluate_adapted", "--joined": "evaluate_joined"}


def work(stage: Stage) -> None:
    """Compute the cells that are not kept yet, and write the outs."""
    (name, seed, task), adapted, joined = stage.arguments, stage.verb == "evaluate_adapted", stage.verb == "evaluate_joined"
    params = read_params()
    prepare_torch(params.threads)
    folders = [Path(f"artifacts/{place}") for place in (f"adapted/{name}/{seed}/{task}" if adapted else f"pretrained/{name}/{seed}", f"tasks/{task}")]
    setting = setting_of(params, name, int(seed), *folders)
    if joined:
        stage.use(params.grid.join_static)
        folders.append(Path(f"artifacts/pretrained/{params.grid.join_static}/{seed}"))
        setting = dataclasses.replace(setting, static=setting_of(params, params.grid.join_static, int(seed), folders[-1], folders[1]))
    stage.facts["device"] = str(setting.device)
    inits: tuple[Init, ...] = ("adapted",) if adapted else ("pretrained", "untrained")
    every = cells(setting.task.facts, inits, params.grid.labels, params.grid.seeds, tuned=not joined)
    some = [cell for cell in every if asked(setting, cell)]
    about = params.computing | {"evaluate": dataclasses.asdict(setting.settings), "labels": params.grid.labels, "seeds": params.grid.seeds}
    about |= {"split": params.report.split}
    keep = stage.resume_folder(about | {"inputs": [digest(folder) for folder in folders]})
    stage.count_earlier(keep)
    tags = setting.names | {"pretrain_seed": seed, "task": task}
    with stage.tracked(parameters=about, inputs=folders, **tags) as tracker:
        with stage.progress("cells", 1.0) as report:

            def told(done: float, note: str) -> None:
                stage.keep_count(keep)  # a cell begins, so that those before it are kept
                report(done, note)

            rows, predictions = evaluate(setting, some, keep=keep, report=told)
        if adapted:
            rows += held_rows(setting, read_json(folders[0] / "held.json"), adapted_bytes=read_json(folders[0] / "spent.json")["text_bytes"])
        rows += unknown_rows(setting, inits[0]) if not joined else []
        tracker.summary(means(rows))
    _write(stage, keep, rows, predictions, tuned=not joined)
    stage.drop_resume()


def setting_of(params: Params, name: str, seed: int, source: Path, target: Path) -> Setting:
    """A model of `source`, pretrained or adapted, on the task of `target`."""
    pretrained = Path(f"artifacts/pretrained/{name}/{seed}")
    spent = [read_json(folder / "spent.json")["text_bytes"] for folder in dict.fromkeys([pretrained, source])]
    return Setting(
        checkpoint=Checkpoint.load(source),
        task=TaskData.load(target, split=params.report.split),
        settings=variant(params, name).evaluate,
        pretrain_seed=seed,
        text_bytes=None if None in spent else sum(spent),
        precision=params.precision,
        device=compute_device(params.device_class, read_runtime().device_index),
        text=Path(f"artifacts/tokens/{name}") if source == pretrained else None,
        failed=manifest(source, "model")["reason"],
    )


def _write(stage: Stage, keep: Path, rows: list[Row], predictions: pd.DataFrame, *, tuned: bool) -> None:
    if tuned:
        with create(Path(f"artifacts/tuned/{stage.file_name}"), "tuned") as draft:
            if (keep / "tuned.safetensors").is_file():
                shutil.copy(keep / "tuned.safetensors", draft)
    write_table(Path(f"artifacts/results/predictions/{stage.file_name}.parquet"), predictions)
    write_table(Path(f"artifacts/results/rows/{stage.file_name}.parquet"), table(rows))


def main() -> None:
    """Run the stage."""
    verbs = [verb for flag, verb in FLAGS.items() if flag in sys.argv]
    sys.argv = [word for word in sys.argv if word not in FLAGS]
    run(verbs[0] if verbs else "evaluate", work)


if __name__ == "__main__":
    main()
