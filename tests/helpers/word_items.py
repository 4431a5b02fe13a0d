"""Items of words, and their vectors by hand."""

import numpy as np
import pandas as pd


def make_items(
    *rows: tuple[str, ...], label: list[float] | None = None, group: str | list[str] = "all"
) -> pd.DataFrame:
    """Return a table with these words per item."""
    table = pd.DataFrame(
        {
            "id": [str(i) for i in range(len(rows))],
            "words": [list(row) for row in rows],
            "group": group,
        }
    )
    return table if label is None else table.assign(label=label)


def unit_vectors_by_hand(vectors_VLD: np.ndarray) -> np.ndarray:
    """Return the mean over centred layers, scaled to length 1."""
    x_VD = np.mean(
        [layer - layer.mean(0) for layer in vectors_VLD.transpose(1, 0, 2).astype(float)], 0
    )
    return x_VD / np.linalg.norm(x_VD, axis=1, keepdims=True)
