"""Stages evaluate@V-S-T and evaluate_adapted@V-S-T: a model on a task, beside its untrained twin -> rows, predictions, one tuned model."""

import dataclasses
import shutil
import sys
from pathlib import Path

from lineage.artifacts import create, digest, manifest, read_json, write_table
from lineage.checkpoint import Checkpoint
from lineage.evaluation import Setting, cells, evaluate, held_rows, means
from lineage.params import read_params
from lineage.reading import TaskData
from lineage.rows import table
from lineage.runtime import read_runtime
from lineage.stage import Stage, run
from lineage.study import variant
from lineage.train import compute_device, prepare_torch


def work(stage: Stage) -> None:
    """Compute the cells that are not kept yet, and write the three outs."""
    (name, seed, task), adapted = stage.arguments, stage.verb == "evaluate_adapted"
    params, runtime = read_params(), read_runtime()
    prepare_torch(params.threads)
    source = Path(f"artifacts/adapted/{name}/{seed}/{task}" if adapted else f"artifacts/pretrained/{name}/{seed}")
    target, status = Path(f"artifacts/tasks/{task}"), manifest(source, "model")
    settings = variant(params, name).evaluate
    about = {
        "evaluate": dataclasses.asdict(settings),
        "labels": params.grid.labels,
        "seeds": params.grid.seeds,
        "split": params.report.split,
        "precision": params.precision,
        "threads": params.threads,
        "device_class": params.device_class,
        "seed": params.seed,
    }
    data, pretrained = TaskData.load(target, split=params.report.split), Path(f"artifacts/pretrained/{name}/{seed}")
    spent = [read_json(folder / "spent.json")["text_bytes"] for folder in dict.fromkeys([pretrained, source])]
    setting = Setting(
        Checkpoint.load(source),
        data,
        settings,
        int(seed),
        sum(spent),
        params.precision,
        compute_device(params.device_class, runtime.device_index),
        status["reason"],
    )
    stage.facts["device"] = str(setting.device)
    some = [*cells(data.facts["kind"], ("adapted",) if adapted else ("pretrained", "untrained"), params.grid.labels, params.grid.seeds)]
    keep = stage.resume_folder(about | {"inputs": [digest(source), digest(target)]})
    tags = {"family": setting.checkpoint.family.name, "variant": name, "pretrain_seed": seed, "task": task}
    with stage.tracked(parameters=about, inputs=[source, target], **tags) as tracker:
        with stage.progress("cells", 1.0) as report:
            rows, predictions = evaluate(setting, some, keep=keep, report=report)
        with create(Path(f"artifacts/tuned/{stage.file_name}"), "tuned") as draft:
            if (keep / "tuned.safetensors").is_file():
                shutil.copy(keep / "tuned.safetensors", draft)
        if adapted:
            rows += held_rows(setting, read_json(source / "held.json"), adapted_bytes=spent[-1])
        write_table(Path(f"artifacts/results/predictions/{stage.file_name}.parquet"), predictions)
        write_table(Path(f"artifacts/results/rows/{stage.file_name}.parquet"), table(rows))
        tracker.summary(means(rows))
    stage.drop_resume()


def main() -> None:
    """Run the stage."""
    adapted = "--adapted" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--adapted"]
    run("evaluate_adapted" if adapted else "evaluate", work)


if __name__ == "__main__":
    main()
