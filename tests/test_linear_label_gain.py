"""Linear label gain trains the answer after every word, with more weight on later words.

The prediction uses the state after the last word (Dai and Le 2015).
"""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lineage.answers.label import LabelAnswer
from lineage.answers.number import NumberAnswer
from lineage.errors import InputError
from lineage.methods.base import build_predictions
from lineage.methods.encoder import EvalRun
from lineage.methods.encoding import EncodedItem, collate_items
from lineage.methods.finetuning import FinetunedModel, FinetuneMethod, finetuning_objective
from lineage.networks.batch import Batch
from lineage.tokenizers.tokenizer import Encoding
from tests.helpers import tiny
from tests.helpers.answer_cases import CASES
from tests.helpers.by_hand import (
    arrays_with_prefix,
    assert_gradients_match_finite_differences,
    build_small_sa_lstm,
    cross_entropy_nats,
    lstm_step,
    parameter_arrays,
)
from tests.helpers.fitting import PLAIN_FINETUNE, finetune, new_finetuned, predict_finetuned
from tests.helpers.joined_features import build_eval_context

PLAIN = dataclasses.replace(PLAIN_FINETUNE, epochs=3, batch_size=5, ratio=1.0)
GAIN = dataclasses.replace(PLAIN, linear_label_gain=True)
TEXTS = [[2, 5, 3, 3], [4], [2, 4, 6]]
ANSWERS: dict[str, tuple[LabelAnswer | NumberAnswer, list[Any]]] = {
    "label": (tiny.label_answer(3), [2, 0, 1]),
    "number": (NumberAnswer(mean=12.5, std=2.5), [11.0, 17.0, 13.0]),
}


def build_classifier(
    answer: LabelAnswer | NumberAnswer, settings: FinetuneMethod = GAIN
) -> FinetunedModel:
    """Return a tiny classifier in double precision, without the softmax of pretraining."""
    encoder = build_small_sa_lstm("lm")
    encoder.softmax = nn.Identity()  # type: ignore[assignment]
    example_item = EncodedItem(Encoding(np.arange(3), np.array([[0, 1], [1, 2], [2, 3]])))
    model = new_finetuned(encoder, answer, settings, example_item).double()
    nn.init.normal_(model.head[1].weight, generator=torch.Generator().manual_seed(5))
    return model


def build_batch(labels: list[Any], *, padding: int = 0) -> Batch:
    max_length = max(map(len, TEXTS)) + padding
    ids = torch.tensor([text + [6] * (max_length - len(text)) for text in TEXTS])
    mask = torch.arange(max_length) < torch.tensor([len(text) for text in TEXTS])[:, None]
    return Batch(
        ids, mask, labels_M=torch.from_numpy(np.array(labels)), answers_per_item=(1,) * len(TEXTS)
    )


def scores_after_each_word(parameters: dict[str, np.ndarray], text: list[int]) -> list[np.ndarray]:
    """Return the scores after each word, computed in NumPy."""
    states = [(np.zeros(4), np.zeros(4)) for _ in range(2)]
    scores = []
    for word in text:
        x = parameters["encoder.word_embeddings.weight"][word]
        for layer in range(2):
            states[layer] = lstm_step(
                x, *states[layer], arrays_with_prefix(parameters, f"encoder.body.{layer}")
            )
            x = states[layer][0]
        scores.append(parameters["head.1.weight"] @ x + parameters["head.1.bias"])
    return scores


def expected_loss(
    parameters: dict[str, np.ndarray], answer: LabelAnswer | NumberAnswer, labels: list[Any]
) -> float:
    """Compute the loss with word weights that rise linearly from 0 to 1 (a single word has 1)."""
    total = 0.0
    word_weights = [[0, 1 / 3, 2 / 3, 1], [1], [0, 1 / 2, 1]]
    for text, weights, label in zip(TEXTS, word_weights, labels, strict=True):
        for scores, weight in zip(scores_after_each_word(parameters, text), weights, strict=True):
            if isinstance(answer, LabelAnswer):
                error = cross_entropy_nats(scores, label)
            else:
                error = 0.5 * (scores[0] - (label - answer.mean) / answer.std) ** 2
            total += weight * float(error)
    return total / (2 + 1 + 1.5)


@pytest.mark.parametrize("answer_type", ANSWERS)
def test_the_loss_and_its_gradients_match_a_numpy_implementation(answer_type: str) -> None:
    answer, labels = ANSWERS[answer_type]
    model = build_classifier(answer)
    output = finetuning_objective(model, build_batch(labels))
    assert float(output.loss.detach()) == pytest.approx(
        expected_loss(parameter_arrays(model), answer, labels), abs=1e-12
    )
    assert output.target_counts == {"task": 3}
    assert float(output.nats["task"]) == pytest.approx(3 * float(output.loss.detach()))
    output.loss.backward()
    assert_gradients_match_finite_differences(
        model, lambda parameters: expected_loss(parameters, answer, labels)
    )


@pytest.mark.parametrize("answer_type", ANSWERS)
def test_padding_changes_nothing(answer_type: str) -> None:
    answer, labels = ANSWERS[answer_type]
    model = build_classifier(answer)
    losses_and_gradients = []
    for padding in (0, 1, 7):
        model.zero_grad()
        loss = finetuning_objective(model, build_batch(labels, padding=padding)).loss
        loss.backward()
        gradients = [
            parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
        ]
        losses_and_gradients.append([loss.detach(), *gradients])
    for padded in losses_and_gradients[1:]:
        torch.testing.assert_close(padded, losses_and_gradients[0], atol=1e-12, rtol=1e-10)


def test_a_prediction_uses_the_state_after_the_last_word() -> None:
    answer, labels = ANSWERS["label"]
    model = build_classifier(answer)
    expected = np.stack(
        [scores_after_each_word(parameter_arrays(model), text)[-1] for text in TEXTS]
    )
    np.testing.assert_allclose(
        model(build_batch(labels, padding=2)).detach().numpy(), expected, atol=1e-12
    )


def encode_case(case: str, count: int) -> tuple[list[EncodedItem], np.ndarray]:
    table = CASES[case][0](count)
    return tiny.encode("sa_lstm", table, symmetric=case == "pairs"), CASES[case][1].labels(table)


def test_a_finetuned_classifier_learns_from_every_word() -> None:
    items, labels = encode_case("text_classification", 40)
    early_losses = {}
    for name, settings in (("plain", PLAIN), ("gain", GAIN)):
        longer_settings = dataclasses.replace(settings, epochs=25)
        tokenizer = tiny.tokenizer("sa_lstm")
        model = finetune(
            tiny.model("sa_lstm"), tokenizer, items, labels, tiny.label_answer(2), longer_settings
        )
        predictions = predict_finetuned(model, tokenizer, items).argmax(1)
        assert (predictions == labels).mean() > 0.9, name
        batch = collate_items(tokenizer, items)
        top_BTD = model.encoder.encode(batch)[-1]
        # The word that decides the label is the fifth of seven, after a special token.
        early_loss = F.cross_entropy(model.head(top_BTD[:, 6]), torch.tensor(labels))
        early_losses[name] = float(early_loss.detach())
    assert early_losses["gain"] < early_losses["plain"]


@pytest.mark.parametrize("case", ["pairs", "multiple_choice", "sense", "tags"])
def test_tasks_with_pairs_choices_or_words_train_as_without_linear_gain(case: str) -> None:
    items, labels = encode_case(case, 5)
    batch = collate_items(tiny.tokenizer("sa_lstm"), items, labels)
    plain, gain = (
        finetuning_objective(
            new_finetuned(tiny.model("sa_lstm"), CASES[case][1], settings, items[0]), batch
        )
        for settings in (PLAIN, GAIN)
    )
    assert float(plain.loss.detach()) == float(gain.loss.detach())
    assert gain.target_counts == {"task": len(labels)}


@pytest.mark.parametrize(("kind", "symmetric", "recipe"), [
    ("text_classification", False, "linear gain"), ("text_regression", False, "linear gain"), ("text_classification", True, "plain"), ("multiple_choice", False, "plain"),
    ("word_sense", False, "word norm"), ("token_classification", False, "word norm"),
])  # fmt: skip
def test_rows_name_the_recipe_where_linear_gain_or_word_norm_was_used(
    kind: str, symmetric: bool, recipe: str
) -> None:
    context = build_eval_context("text_classification", "sa_lstm")
    context = dataclasses.replace(
        context,
        settings=dataclasses.replace(
            context.settings, finetune=dataclasses.replace(GAIN, word_layer_norm=True)
        ),
        static_context=None,
    )
    info = dataclasses.replace(context.task.info, kind=kind, symmetric=symmetric)
    context = dataclasses.replace(context, task=dataclasses.replace(context.task, info=info))
    table = pd.DataFrame({"id": ["0"], "group": ["all"]})
    columns: dict[str, Any] = {"label": ["a"], "prediction": ["a"], "score": 1.0, "correct": 1.0}
    run = EvalRun("pretrained", "finetune", "all", 0)
    predictions = build_predictions(context, run, "test", table, columns)
    assert [*predictions["recipe"]] == [recipe]


def test_linear_gain_is_refused_for_models_that_do_not_pool_the_last_state() -> None:
    for name in (*tiny.TRAINED, *tiny.STATIC):
        without_gain = tiny.model_config(name, evaluate={"finetune": {"linear_label_gain": False}})
        assert not without_gain.evaluate.finetune.linear_label_gain
        if tiny.model_config(name).family.pools_last_state:
            with_gain = tiny.model_config(name, evaluate={"finetune": {"linear_label_gain": True}})
            assert with_gain.evaluate.finetune.linear_label_gain
            continue
        with pytest.raises(
            InputError,
            match=rf"models\.{name}\.evaluate\.finetune\.linear_label_gain: {name} does not classify a text by the state",
        ):
            tiny.model_config(name, evaluate={"finetune": {"linear_label_gain": True}})
    with pytest.raises(
        InputError,
        match=r"models\.sa_lstm\.evaluate\.finetune: linear_label_gain is for the last state",
    ):
        tiny.model_config(
            "sa_lstm", evaluate={"finetune": {"linear_label_gain": True, "pooling": "mean"}}
        )
