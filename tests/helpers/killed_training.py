"""Run a tiny pretraining in its own process, which a test kills.

Usage: python -m tests.helpers.killed_training CASE RESUME_FOLDER OUT_FOLDER TEXT_BYTES.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from lineage.artifacts import create_artifact, write_table
from lineage.config.params import Budget, Params, read_params
from lineage.training.devices import configure_torch
from lineage.training.pretrain import pretrain
from lineage.training.train_run import TrainContext
from tests.helpers import tiny

SHARES = (0.1, 0.25, 0.5, 0.75)  # of the budget, at which checkpoints are kept
# The word table and the softmax have sparse gradients.
SPARSE: dict[str, Any] = {
    "architecture": {"input_unit": "words", "softmax_samples": 20, "dropout": 0.1},
    "pretrain": {
        "optimizer": "adagrad",
        "learning_rate": 0.2,
        "schedule": "constant",
        "warmup_ratio": 0.0,
        "scale_loss_by_seq_len": True,
        "grad_accum_steps": 2,
    },
}


def main() -> None:
    """Train in this process."""
    case, resume, out, text_bytes = sys.argv[1:]
    run_training(case, Path(resume), Path(out), int(text_bytes))
    assert not {"torch._dynamo", "sympy"} & {*sys.modules}, (
        "training needs no compiler and no algebra, whose imports take seconds"
    )


def run_training(case: str, resume: Path, out: Path, text_bytes: int) -> None:
    """Train, print a line per step, and save a resume point every 0.1 s.

    There is no tracker, because importing it would take half of the process's time.
    """
    name = case.removesuffix("_sparse")
    configure_torch(1)
    tokens = out.parent / f"{name}-tokens"
    if not tokens.exists():
        with create_artifact(tokens, "tokens") as draft:
            tiny.corpus(name).save(draft, "train")
            tiny.corpus(name).save(draft, "valid")
    default_params = read_params(Path(__file__).parents[2] / "params.yaml")
    budget = Budget(
        corpus="general", text_bytes=text_bytes, max_epochs=50, body_parameters=tiny.BODY_PARAMETERS
    )
    grid = replace(default_params.grid, text_shares=SHARES)
    params = Params(**{**vars(default_params), "budget": budget, "grid": grid})
    overrides = SPARSE
    if name == case:
        overrides = {"architecture": tiny.dropout_config(name, 0.1)}
    checkpoint = tiny.checkpoint(name, **overrides)
    context = TrainContext(
        tiny.CPU,
        MagicMock(),
        resume,
        checkpoint_seconds=0.1,
        report_progress=lambda done, note: print(done, note, flush=True),
    )
    outcome = pretrain(checkpoint, tokens, params, context)
    with create_artifact(out, "model", status=outcome.status) as draft:
        checkpoint.save(draft, outcome.model)
        for folder in outcome.intermediate_folders:
            shutil.copytree(folder, draft / folder.name)
    write_table(out / "curve.parquet", outcome.curve.to_frame())


if __name__ == "__main__":
    main()
