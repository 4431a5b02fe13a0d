"""A user's own project, small and good: a folder of .txt, a csv task, one family. Tests spoil it in one place at a time."""

import atexit
import copy
import functools
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from flows.profiles import merge_params
from lineage.config.records import read_yaml
from lineage.config.resolve import resolve_tree
from lineage.synthetic.grammar import generate_documents

HERE = Path(__file__).resolve().parent.parent
DOCUMENTS = 40
TREE: dict[str, Any] = {
    "corpora": {"general": {"language": "en", "sources": [{"files": "texts/*.txt"}]}},
    "budget": {
        "corpus": "general",
        "text_bytes": 100_000,
        "max_epochs": 4,
        "body_parameters": 600_000,
    },
    "adapt": {"text_bytes": 4_000, "max_epochs": 4, "heldout_share": 0.1},
    "tasks": {
        "mood": {
            "kind": "text_classification",
            "files": {"train": "mood/train.csv", "test": "mood/test.csv"},
            "text": ["review"],
            "label": "stars",
        }
    },
    "grid": {
        "models": ["gpt"],
        "tasks": ["mood"],
        "adapt_models": ["gpt"],
        "adapt_tasks": ["mood"],
        "label_counts": [20, "all"],
    },
}


@functools.cache
def told() -> tuple[str, ...]:
    """The texts of the corpus."""
    return tuple(generate_documents(DOCUMENTS, seed=1))


def make(folder: Path) -> dict[str, Any]:
    """Write the data and params.yaml; the parameters are given back for changing."""
    (folder / "texts").mkdir(parents=True)
    for number, text in enumerate(told()):
        (folder / f"texts/{number:02d}.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "mood").mkdir()
    for split, count, first in (("train", 60, 0), ("test", 20, 1000)):
        moods(count, first).to_csv(folder / f"mood/{split}.csv", index=False)
    tree = merge_params(read_yaml(HERE / "profiles/base.yaml"), copy.deepcopy(TREE))
    tree = copy.deepcopy(resolve_tree(tree, "params.yaml"))
    tree["models"]["gpt"]["tokenizer"]["vocab_size"] = 400
    write(folder, tree)
    return tree


def moods(count: int, first: int = 0) -> pd.DataFrame:
    """Reviews with two labels."""
    rows = [
        (
            f"the {'good' if n % 2 else 'bad'} film number {n} , which was seen by {n % 7} friends of mine .",
            n % 2,
        )
        for n in range(first, first + count)
    ]
    return pd.DataFrame(rows, columns=["review", "stars"])


def write(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write params.yaml."""
    yaml = YAML(typ="safe")  # written in C, since a hundred tests write theirs
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False
    with (folder / "params.yaml").open("w", encoding="utf-8") as stream:
        yaml.dump(dict(tree), stream)


@functools.cache
def tracked() -> str:
    """One MLflow store for the stages of all projects in this process: to make one takes longer than a small stage."""
    folder = tempfile.mkdtemp(prefix="tracked-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"sqlite:///{folder}/mlflow.db"


def stage(folder: Path, name: str, *arguments: str, monkeypatch, capsys) -> tuple[int, str]:
    """Run a stage in this process, as `python -m stages.NAME ARGUMENTS` would in `folder`; its exit code and what it said."""
    import importlib
    import sys

    monkeypatch.chdir(folder)
    monkeypatch.setenv("LINEAGE_MAIN", str(folder))
    monkeypatch.setenv("LINEAGE_TRACKING_URI", tracked())
    monkeypatch.delenv("LINEAGE_STAGE", raising=False)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    capsys.readouterr()
    code: object = None
    try:
        importlib.import_module(f"stages.{name}").main()
    except SystemExit as end:
        code = end.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err
