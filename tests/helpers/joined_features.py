"""Tiny models whose features are joined with the static vectors of word2vec."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pandas as pd

from lineage.data.task_data import TaskData
from lineage.methods.cached_features import CachedFeatures, cache_features
from lineage.methods.encoder import EvalContext
from lineage.methods.encoding import EncodedItem
from lineage.methods.joined import add_static_vectors
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.registry import EvaluateSettings
from lineage.networks.base import Encoder
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny
from tests.helpers.answer_cases import CASES, WORDS

SETTINGS = EvaluateSettings(
    linear_probe=LinearProbeMethod(trials=(), l2=0.001, max_iter=20),
    bilstm_probe=dataclasses.replace(tiny.BILSTM_PROBE, epochs=2),
    finetune=tiny.model_config("bert").evaluate.finetune,
)


def span_table(count: int) -> pd.DataFrame:
    """Return questions of one word, with contexts of three words that contain it."""
    rows = []
    for number in range(count):
        words = [WORDS[(number + offset) % len(WORDS)] for offset in (1, 2, 3)]
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        starts = [end - len(word) for end, word in zip(ends, words, strict=True)]
        rows.append(
            {
                "question": words[number % 3],
                "context": " ".join(words),
                "starts": starts,
                "ends": [*ends],
                "label": [number % 3] * 2,
            }
        )
    return pd.DataFrame(rows)


TABLES = {case: make(12) for case, (make, _) in CASES.items()} | {"span": span_table(12)}


@functools.cache
def tiny_model(name: str) -> Encoder:
    return tiny.model(name)


def build_eval_context(case: str, name: str = "bert", **options: Any) -> EvalContext:
    """Return the context of an untrained tiny model with word2vec vectors, on twelve items."""
    task_info = TaskInfo(name="x", kind=case, language="en")
    context = EvalContext(
        tiny.checkpoint(name),
        TaskData(task_info, {"train": TABLES[case]}),
        SETTINGS,
        0,
        5000,
        "fp32",
        tiny.CPU,
        **options,
    )
    return dataclasses.replace(
        context,
        static_context=dataclasses.replace(
            context, checkpoint=tiny.checkpoint("word2vec"), text_bytes=300
        ),
    )


def cache_joined_features(items: list[EncodedItem], name: str) -> CachedFeatures:
    contextual = cache_features(tiny_model(name), tiny.tokenizer(name), items, precision="fp32")
    return add_static_vectors(
        contextual, tiny_model("word2vec"), tiny.tokenizer("word2vec"), precision="fp32"
    )
