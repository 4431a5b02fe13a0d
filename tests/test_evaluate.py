"""What evaluation hands on: the same labels to all, features without dropout, and nothing of what is scored."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.data.splits import nested_stratified_subset
from lineage.data.task_data import TaskData
from lineage.evaluation import baselines, tfidf
from lineage.evaluation import evaluate as evaluation
from lineage.evaluation.bilstm_probe import cache_features
from lineage.evaluation.encoding import encode_items
from lineage.evaluation.linear_probe import extract_features
from lineage.evaluation.systems import EncoderUnderTest, EvalRun, FittedHead, fit_head
from lineage.models.batch import Batch
from lineage.tasks.base import load_kind
from lineage.training import sentence_scores
from tests import tiny
from tests.test_transfer import setting, task  # noqa: F401

TEXTS = [
    " ".join(document.split()[: 3 + number]) for number, document in enumerate(tiny.documents()[:9])
]


def computed(
    data: TaskData, some: list[EvalRun], keep: Path, **changes: Any
) -> tuple[list[Any], pd.DataFrame]:
    return evaluation.evaluate_runs(
        dataclasses.replace(setting("gpt", data), **changes),
        some,
        cache_dir=keep,
        report_progress=lambda *_: None,
    )


@pytest.mark.usefixtures("never_trained")
def test_models_twins_and_controls_of_a_seed_learn_from_the_same_labels(
    task: TaskData,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[Any, Any] = {}

    def learning(
        subject: EncoderUnderTest, cell: EvalRun, how: Any, chosen: np.ndarray, *rest: Any
    ) -> FittedHead:
        seen[cell.init, cell.finetune_seed] = chosen.tolist()
        return fit_head(subject, cell, how, chosen, *rest)

    def telling(name: str, problem: tfidf.BaselineProblem, **more: Any) -> Any:
        seen.setdefault(name, []).append(problem.train.index.tolist())
        return said(name, problem, **more)

    said: Callable[..., Any] = tfidf.predict
    monkeypatch.setattr(evaluation, "fit_head", learning)
    monkeypatch.setattr(baselines, "predict", telling)
    computed(
        task,
        [EvalRun(init, "frozen", 20, seed) for init in ("pretrained", "random") for seed in (0, 1)],
        tmp_path,
    )
    data = TaskData(task.info | {"counts": {}}, task.splits)
    assert [
        *baselines.evaluate_baselines(
            load_kind("text_classification"),
            data,
            split="test",
            finetune_seeds=[0, 1],
            label_counts=[20],
        )
    ]
    wanted = [
        nested_stratified_subset(task.splits["train"]["label"].to_numpy(), 20, seed=seed).tolist()
        for seed in (0, 1)
    ]
    assert wanted[0] != wanted[1] and seen["tfidf"] == wanted == seen["majority"]
    assert all(
        seen[init, seed] == wanted[seed] for init in ("pretrained", "random") for seed in (0, 1)
    )


def test_an_answer_is_made_of_the_labels_that_are_learned_from_and_rows_count_them(
    task: TaskData,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a number its scale; and there may be fewer labels than were asked for."""
    seen, real = [], evaluation.make_answer

    def answering(facts: dict[str, Any], own: pd.DataFrame) -> Any:
        seen.append(len(own))
        return real(facts, own)

    monkeypatch.setattr(evaluation, "make_answer", answering)
    rows, _ = computed(
        task, [EvalRun("random", "frozen", count, 0) for count in (20, 100)], tmp_path
    )
    assert seen == [20, 60] and {(row.label_count, row.train_examples) for row in rows} == {
        ("20", 20),
        ("100", 60),
    }


@pytest.mark.parametrize("name", ["gpt", "ulmfit"])
def test_features_are_read_without_dropout(name: str) -> None:
    model, reader = tiny.model(name, architecture=tiny.dropping(name, 0.5)), tiny.reader(name)
    items = encode_items(
        pd.DataFrame({"id": [*map(str, range(9))], "text": TEXTS}),
        reader,
        max_length=None,
        language="en",
    )
    one, two = (extract_features(model.train(), reader, items, precision="fp32") for _ in range(2))
    assert np.array_equal(one, two)
    one, two = (
        cache_features(model.train(), reader, items, precision="fp32").layers[3][0]
        for _ in range(2)
    )
    assert np.array_equal(one, two), "under a network"


def test_pairs_are_scored_without_dropout(tmp_path: Path) -> None:
    facts = {
        "name": "pairs",
        "kind": "minimal_pairs",
        "answer": None,
        "labels": [],
        "metric": ["accuracy"],
        "max_tokens": 20,
        "language": "en",
    }
    data = TaskData(
        facts,
        {"test": pd.DataFrame({"id": ["0"], "good": ["a b c"], "bad": ["a c b"], "group": ["x"]})},
    )
    dropping = tiny.checkpoint("gpt", architecture={"dropout": 0.5})
    one, two = (
        computed(data, [EvalRun("random", "zero_shot")], tmp_path / place, checkpoint=dropping)[1]
        for place in "ab"
    )
    assert len(one) == 1 and one["score"].tolist() == two["score"].tolist()


def test_sentences_that_a_model_reads_as_the_same_have_one_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that differ in a word outside a closed vocabulary alone are a tie, in whatever batch they stand; to a model that spells they are two."""
    monkeypatch.setattr(sentence_scores, "MAX_LOGITS_PER_BATCH", 1)  # a sentence a batch
    batches: list[Batch] = []

    def score(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        batches.append(batch)
        return torch.tensor([float(len(batches))]), torch.tensor([3])

    for name, apart in (("ulmfit", False), ("bert", False), ("elmo", True)):
        texts = ["the zzqq .", "zzqq", "the qqzz .", "zzqq"]
        found = sentence_scores.score_texts(
            tiny.model(name), tiny.reader(name), texts, None, score
        )[:, 0]
        assert (found[0] != found[2]) == apart and found[1] == found[3] != found[0], name


def test_tfidf_knows_the_words_of_train_alone_and_a_small_inverse_penalty_says_the_mean() -> None:
    def width(scored: Sequence[str]) -> tuple[int, ...]:
        shape: tuple[int, ...] = tfidf.tfidf_vectors(
            [["a b"]], [[text] for text in scored], language="en"
        )[0].shape
        return shape

    assert width(["a c"]) == width(["a d e f"]) == (1, 3)
    train = pd.DataFrame({"text": ["a b", "c d", "a d", "c b"], "label": [1.0, 2.0, 1.0, 2.0]})
    problem = tfidf.BaselineProblem(load_kind("text_regression"), {"language": "en"}, train, train)
    weak, strong = (
        np.ptp(tfidf.predict("tfidf", problem, C=inverse)["score"]) for inverse in (1e-9, 1e3)
    )
    assert weak < 1e-3 and strong > 0.9
