"""A data set in the layout of the Hub."""

from pathlib import Path

import pandas as pd

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
