"""A clone of this project as it stands, for tests that run it as its user does."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.profiles import merge_params, write_params
from lineage.config.records import read_yaml
from tests import user_project

HERE = Path(__file__).resolve().parent.parent
MAKE = ("make", "-o", ".venv/ready")  # the environment is taken as set up
WALK = ("python", "-m", "flows.pipeline", "--local", "--jobs", "2")
IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@example.org")


@dataclass(frozen=True)
class Demo:
    """A clone in which the demo ran twice."""

    folder: Path
    first: str
    second: str
    status: str


def copy_tree(folder: Path) -> Path:
    """The files that a fresh clone of this tree would hold, changes that are not committed included, and not the lock of a run that was made here."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in names:
        if name != "dvc.lock" and (HERE / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HERE / name, folder / name)
    return folder


def clone(folder: Path) -> Path:
    """A clone of this tree, changes that are not committed included; the environment is this one."""
    copy_tree(folder)
    subprocess.run(["git", "init", "-q", "--initial-branch", "main"], cwd=folder, check=True)
    commit(folder)
    (folder / ".venv").symlink_to(sys.prefix)
    with (folder / ".git/info/exclude").open("a") as stream:
        stream.write("/.venv\n")
    return folder


def own_project(folder: Path) -> Path:
    """A clone with a profile of a user's own; the user's text (a folder of .txt) and task (csv) lie beside it, where no worker looks."""
    clone(folder)
    tree = user_project.make(folder.parent / "mine")
    small = {
        "architecture": {"num_layers": 2, "num_heads": 2},
        "pretrain": {"seq_len": 64},
        "tokenizer": {"vocab_size": 400},
    }
    over = {
        "budget": {"body_parameters": 40_000},
        "tasks": {"mood": {"max_tokens": 24}},
        "models": {"gpt": small},
    }
    own = merge_params(user_project.TREE, over)
    write_params(folder / "profiles/own.yaml", own)
    write_params(folder / "params.yaml", merge_params(tree, own))
    (folder / "runtime.yaml").write_text("data_root: ../mine\n")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    """Commit everything that git does not ignore."""
    for command in (["add", "-A"], [*IDENTITY, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def command(folder: Path, *words: str, code: int = 0, **more: str) -> str:
    """Run one command of the README in the clone, as with the environment activated; what it printed. It must exit with `code`."""
    dropped = ("LINEAGE_", "PREFECT_", "GIT_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    kept |= {
        "PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{kept['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        list(words),
        cwd=folder,
        env=kept | more,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == code, (
        words,
        done.returncode,
        done.stdout[-3000:],
        done.stderr[-3000:],
    )
    return done.stdout + done.stderr


def outcomes(said: str) -> dict[str, str]:
    """What each stage did, from the lines of a run."""
    lines = [line.split() for line in said.splitlines()]
    return {
        words[1]: words[0]
        for words in lines
        if len(words) > 1 and words[0] in ("ran", "cached", "fresh", "failed")
    }


def change(folder: Path, **values: Any) -> None:
    """Set values of params.yaml by dotted name, with __ for the dots."""
    tree = read_yaml(folder / "params.yaml")
    for key, value in values.items():
        *above, last = key.split("__")
        place = tree
        for name in above:
            if place.get(name) is None:
                place[name] = {}
            place = place[name]
        place[last] = value
    write_params(folder / "params.yaml", tree)


def planned(folder: Path) -> set[str]:
    """The stages that would run, as `flows.plan` says."""
    from flows.plan import (
        find_stale_stages,
        read_graph,
        read_stale_reasons,
    )  # DVC takes a second, which every file of tests would wait for

    nodes = read_graph(folder)
    stale = find_stale_stages(nodes, read_stale_reasons(folder))
    return {node.name for node in nodes if stale[node.name]}
