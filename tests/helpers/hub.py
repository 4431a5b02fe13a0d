"""A data set in the layout of the Hub, and a process that reads from the Hub."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from tests.helpers.user_project import REPOSITORY

REVISION = "0123456789abcdef0123456789abcdef01234567"


def hub_folder(folder: Path) -> Path:
    """Write a repository in the Hub's layout, with two configurations and a card that names them."""
    for config, first in (("small", 0), ("large", 100)):
        (folder / config).mkdir(parents=True)
        for split, count in (("train", 8), ("validation", 4)):
            rows = [(f"{config} {split} document {first + n}", n % 2) for n in range(count)]
            pd.DataFrame(rows, columns=["body", "label"]).to_parquet(
                folder / f"{config}/{split}-00000-of-00001.parquet"
            )
    card = "".join(
        f"- config_name: {c}\n  data_files:\n  - split: train\n    path: {c}/train-*\n  - split: validation\n    path: {c}/validation-*\n"
        for c in ("small", "large")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{card}---\n# A data set\n")
    return folder


HUB_SOURCE = {"config": "large", "split": "train", "revision": REVISION, "text": "body"}
LARGE_TRAIN_TEXTS = [f"large train document {100 + n}" for n in range(8)]
READ_SCRIPT = """
import json, sys
from pathlib import Path
from lineage.config.data import Corpus
from lineage.config.records import parse_record
from lineage.data.corpus import collect_documents, source_fingerprint
from lineage.errors import InputError
from lineage.networks.public_folders import parse_checkpoint_source
for request in json.loads(sys.argv[1]):
    try:
        if "model" in request:
            source = parse_checkpoint_source(request["model"], request["revision"], "m")
            record = source.fingerprint(Path("nothing"))
            print(json.dumps([[file["name"] for file in record["files"]], record]))
        else:
            corpus = parse_record(Corpus, {"language": "en", "sources": [request]}, "corpus")
            documents = collect_documents(corpus, seed=1, root=Path.cwd(), where="corpus")
            record = source_fingerprint(corpus.sources[0], Path.cwd(), "corpus")
            print(json.dumps([list(documents.table["text"]), record]))
    except InputError as error:
        print(error, file=sys.stderr)
"""


def read_in_process(
    home: Path, *requests: dict[str, str], **settings: str
) -> tuple[list[tuple[list[str], Any]], list[str]]:
    """Read data sets and models in a new process with a cache of the Hub and settings of it.

    Return the texts, or names of files, and the record of each that could be read, and the lines on
    stderr. The library of the Hub reads its settings when it is imported.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HF_HOME": str(home)}
    result = subprocess.run(
        [sys.executable, "-c", READ_SCRIPT, json.dumps(requests)],
        cwd=home.parent,
        env=environment | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    return [json.loads(line) for line in result.stdout.splitlines()], result.stderr.splitlines()
