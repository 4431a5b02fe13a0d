"""A small task whose label is the first word, and what evaluates a tiny model on it."""

import numpy as np
import pandas as pd

from lineage.data.task_data import TaskData
from lineage.methods.encoder import EvalContext
from lineage.methods.finetuning import FinetuneMethod
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.registry import EvaluateSettings
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny

FINETUNE = FinetuneMethod(
    epochs=2,
    batch_size=5,
    learning_rate=0.005,
    layer_lr_decay=1 / 1.6,
    cut_frac=0.1,
    ratio=32.0,
    gradual_unfreezing=0.5,
    weight_decay=0.01,
    dropout=0.1,
    max_grad_norm=1.0,
    min_steps=60,
    patience=None,
)

PROBE = LinearProbeMethod(trials=(), l2=0.001, max_iter=60)


def make_items(rng: np.random.Generator, count: int) -> pd.DataFrame:
    """Return texts whose label is which of two words they begin with."""
    words = sorted({word for document in tiny.documents() for word in document.split()})[:60]
    labels = rng.integers(2, size=count)
    texts = [" ".join([words[label], *rng.choice(words[2:], 5)]) for label in labels]
    return pd.DataFrame(
        {"id": [str(i) for i in range(count)], "text": texts, "label": labels, "group": "all"}
    )


def first_word_task() -> TaskData:
    """Return a small task with two labels."""
    rng = np.random.default_rng(8)
    info = TaskInfo(
        name="first_word",
        kind="text_classification",
        labels=["a", "b"],
        metric=["accuracy", "macro_f1"],
        language="en",
    )
    return TaskData(
        info,
        {
            "train": make_items(rng, 60),
            "validation": make_items(rng, 13),
            "test": make_items(rng, 29),
        },
    )


def build_context(name: str, task: TaskData) -> EvalContext:
    """Return a context with the tiny model, which has only a random-init baseline."""
    return EvalContext(
        tiny.checkpoint(name),
        task,
        EvaluateSettings(linear_probe=PROBE, bilstm_probe=tiny.BILSTM_PROBE, finetune=FINETUNE),
        0,
        1000,
        "fp32",
        tiny.CPU,
    )
