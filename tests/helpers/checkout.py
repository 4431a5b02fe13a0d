"""A clone of this project, and a study of a user, for tests that run them as a user does."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineage.config.records import read_yaml
from lineage.config.resolve import merge_trees
from tests.helpers import user_project
from tests.helpers.user_project import write_params

ROOT = Path(__file__).resolve().parents[2]
MAKE = ("make", "-o", ".venv/ready")  # -o: the environment is set up already
RUN_STUDY = ("lineage", "run", "--no-prefect", "--jobs", "2")
IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@example.org")


@dataclass(frozen=True)
class Demo:
    """A clone in which the demo ran: what it printed, and git's status afterwards."""

    folder: Path
    printed: str
    status: str


def copy_tree(folder: Path) -> Path:
    """Copy the files that git tracks, with uncommitted changes, and nothing that a run has written.

    A new file must be added to git before tests see it.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def clone(folder: Path) -> Path:
    """Make a git repository of this tree, with uncommitted changes and this environment."""
    copy_tree(folder)
    subprocess.run(["git", "init", "-q", "--initial-branch", "main"], cwd=folder, check=True)
    commit(folder)
    (folder / ".venv").symlink_to(sys.prefix)
    with (folder / ".git/info/exclude").open("a") as stream:
        stream.write("/.venv\n")
    return folder


def create_own_study(folder: Path) -> Path:
    """Create the study of a user in a new folder.

    The user's text (a folder of .txt) and task (csv) lie next to it, where no worker looks.
    """
    # Importing DVC takes a second, which every test file would have to wait for.
    from flows.study import create_study

    tree = user_project.make_project(folder.parent / "mine")
    small_model = {
        "architecture": {"num_layers": 2, "num_heads": 2},
        "pretrain": {"seq_len": 64},
        "tokenizer": {"vocab_size": 400},
    }
    changes = {
        "budget": {"body_parameters": 40_000},
        "tasks": {"mood": {"max_words": 24}},
        "models": {"gpt": small_model},
    }
    create_study(folder, "")
    write_params(folder, merge_trees(tree, changes))
    (folder / "runtime.yaml").write_text("data_root: ../mine\n")
    return folder


def commit(folder: Path) -> None:
    """Commit everything that git does not ignore."""
    for command in (["add", "-A"], [*IDENTITY, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def command_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command in a clone or a study, as with the venv activated."""
    dropped_prefixes = ("LINEAGE_", "PREFECT_", "GIT_", "VIRTUAL_ENV")
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(dropped_prefixes)
    }
    return inherited | {
        "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{inherited['PATH']}",
        # The code of the clone, or of this tree, and not of what is installed here.
        "PYTHONPATH": str(folder if (folder / "lineage").is_dir() else ROOT),
        "OMP_NUM_THREADS": "1",
    }


def run_command(folder: Path, *words: str, code: int = 0, **environment: str) -> str:
    """Run a command in a clone or a study, as with the environment activated.

    Return what it printed. It must exit with `code`.
    """
    completed = subprocess.run(
        list(words),
        cwd=folder,
        env=command_environment(folder) | environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert completed.returncode == code, (
        words,
        completed.returncode,
        completed.stdout[-3000:],
        completed.stderr[-3000:],
    )
    return completed.stdout + completed.stderr


def stage_outcomes(printed: str) -> dict[str, str]:
    """Return what each stage did, from the printed lines of a run."""
    lines = [line.split() for line in printed.splitlines()]
    return {
        words[1]: words[0]
        for words in lines
        if len(words) > 1 and words[0] in ("ran", "cached", "fresh", "failed")
    }


def set_params(folder: Path, **values: Any) -> None:
    """Set values of params.yaml by dotted name, with __ for the dots."""
    tree = read_yaml(folder / "params.yaml")
    for key, value in values.items():
        *parents, last = key.split("__")
        block = tree
        for name in parents:
            if block.get(name) is None:
                block[name] = {}
            block = block[name]
        block[last] = value
    write_params(folder, tree)


def planned_stages(folder: Path) -> set[str]:
    """Return the stages that would run according to `lineage plan`."""
    # Importing DVC takes a second, which every test file would have to wait for.
    from flows.plan import find_stale_stages, read_graph, read_stale_reasons

    nodes = read_graph(folder)
    stale = find_stale_stages(nodes, read_stale_reasons(folder))
    return {node.name for node in nodes if stale[node.name]}
