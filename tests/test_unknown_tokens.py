"""Which models have unknown tokens, and how many."""

import dataclasses
from typing import Any

import pandas as pd
import pytest

from lineage.data.task_data import TaskData
from lineage.evaluation.result_rows import unknown_token_rows
from lineage.methods.encoder import EvalContext
from lineage.results import UNKNOWN_TOKEN_METRIC
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny


def build_context(
    name: str, *, kind: str = "text_classification", folds: int | None = None, **columns: list[Any]
) -> EvalContext:
    """Return the context of a tiny model and six items in which a third of the words is unknown."""
    info = TaskInfo(
        name="small", kind=kind, language="en", folds=folds, grouped=False, validation_share=0.2
    )
    table = pd.DataFrame(
        {"label": [0, 1] * 3, "group": "all"}
        | (columns or {"text": ["kenfes qqq zzz", "kenfes kenfes kenfes"] * 3})
    )
    data = TaskData(info, {"train": table} if folds else {"train": table, "test": table})
    return tiny.eval_context(name, data, tiny.model_config(name).evaluate)


@pytest.mark.parametrize(("name", "share"), [("word2vec", 1 / 3), ("ulmfit", 1 / 3), ("glove", 1 / 3), ("taglm", 1 / 3), ("fasttext", 0.0),
                                             ("elmo", 0.0), ("gpt", 0.0)])  # fmt: skip
def test_only_closed_vocabularies_have_unknown_tokens(name: str, share: float) -> None:
    assert tiny.tokenizer(name).backend_tokenizer.token_to_id("kenfes") is not None or name == "gpt"
    for folds in (None, 2):
        (row,) = unknown_token_rows(build_context(name, folds=folds), "pretrained")
        assert row.value == pytest.approx(share)
        assert (row.metric, row.split, row.test_set, row.num_examples) == (
            UNKNOWN_TOKEN_METRIC,
            "test",
            "small",
            6,
        )
        assert (row.model, row.init, row.transfer, row.label_count) == (
            name,
            "pretrained",
            "none",
            "none",
        )


def test_added_words_are_known_and_inapplicable_models_have_no_unknown_share() -> None:
    context = build_context("ulmfit")
    tokenizer = context.checkpoint.tokenizer.with_added_words(["qqq"])
    (row,) = unknown_token_rows(
        dataclasses.replace(
            context, checkpoint=dataclasses.replace(context.checkpoint, tokenizer=tokenizer)
        ),
        "adapted",
    )
    assert row.value == pytest.approx(1 / 6) and (row.init, row.adapt_text) == ("adapted", "task")
    pairs = {"kind": "minimal_pairs", "good": ["kenfes zzz"] * 6, "bad": ["zzz kenfes"] * 6}
    assert not [*unknown_token_rows(build_context("word2vec", **pairs), "pretrained")], (
        "word2vec gives sentences no probability"
    )
    (row,) = unknown_token_rows(build_context("ulmfit", **pairs), "pretrained")
    assert row.value == pytest.approx(1 / 2)
    (row,) = unknown_token_rows(
        build_context("word2vec", kind="word_similarity", words=[["kenfes", "zzz"]] * 6),
        "pretrained",
    )
    assert row.value == pytest.approx(1 / 2)
