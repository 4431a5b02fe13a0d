"""Public checkpoints as models of a user's project."""

import copy
from pathlib import Path
from typing import Any

from lineage.config.resolve import fill_in_defaults
from tests.helpers.user_project import SHORT_FINETUNING, RunStage, write_params

Tree = dict[str, Any]


def public_model_block(folder: str, **more: Any) -> Tree:
    """Return the default block of a public model, with a folder and settings for a tiny model."""
    block = copy.deepcopy(fill_in_defaults("public", {"family": "public"}))
    del block["family"]
    block["evaluate"].setdefault("bilstm_probe", {})
    block["pretrain"] |= {"batch_size": 4, "seq_len": 24}
    block["evaluate"]["finetune"] |= SHORT_FINETUNING | {"epochs": 1, "learning_rate": 0.001}
    block["evaluate"]["bilstm_probe"] |= {"epochs": 1, "min_steps": None, "hidden_size": 5}
    return block | {"from": folder, **more}


def run_refused_sources(folder: Path, tree: Tree, run_stage: RunStage) -> str:
    """Run the sources stage, which must refuse, and return its message."""
    write_params(folder, tree)
    code, message = run_stage(folder, "sources")
    assert code == 2 and "Traceback" not in message, message
    return message
