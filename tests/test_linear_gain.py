"""Linear label gain: a text's answer is learned after every word, the later ones with more weight, and read after the last (Dai and Le 2015)."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lineage.errors import InputError
from lineage.evaluation.answers import LabelAnswer, NumberAnswer
from lineage.evaluation.encoding import EncodedItem, collate_items, encode_items
from lineage.evaluation.finetuning import (
    FinetunedModel,
    finetune,
    finetuning_objective,
    predict_finetuned,
)
from lineage.evaluation.result_rows import build_predictions
from lineage.evaluation.settings import FinetuneSettings
from lineage.evaluation.systems import EvalRun
from lineage.models.batch import Batch
from lineage.tokenizers.tokenizer import Encoding
from tests import tiny
from tests.by_hand import assert_gradients_are_central_differences, nats, numbers, part, plain_step
from tests.test_joined import setting
from tests.test_networks import CASES
from tests.test_sa_lstm import small

PLAIN = FinetuneSettings(
    epochs=3,
    batch_size=5,
    learning_rate=0.01,
    layer_lr_decay=1.0,
    cut_frac=0.1,
    ratio=1.0,
    gradual_unfreezing=0.0,
    weight_decay=0.0,
    dropout=0.0,
    max_grad_norm=1.0,
)
GAIN = dataclasses.replace(PLAIN, linear_label_gain=True)
TEXTS = [[2, 5, 3, 3], [4], [2, 4, 6]]
ANSWERS: dict[str, tuple[LabelAnswer | NumberAnswer, list[Any]]] = {
    "label": (tiny.labels(3), [2, 0, 1]),
    "number": (NumberAnswer(12.5, 2.5), [11.0, 17.0, 13.0]),
}


def classifier(
    answer: LabelAnswer | NumberAnswer, settings: FinetuneSettings = GAIN
) -> FinetunedModel:
    """A tiny classifier in double precision, without the softmax of its pretraining."""
    encoder = small("lm")
    encoder.softmax = nn.Identity()  # type: ignore[assignment]
    like = EncodedItem(Encoding(np.arange(3), np.array([[0, 1], [1, 2], [2, 3]])))
    model = FinetunedModel(encoder, answer, settings, seed=1, example_item=like).double()
    nn.init.normal_(model.head[1].weight, generator=torch.Generator().manual_seed(5))
    return model


def batch_of(gold: list[Any], *, padding: int = 0) -> Batch:
    longest = max(map(len, TEXTS)) + padding
    ids = torch.tensor([text + [6] * (longest - len(text)) for text in TEXTS])
    mask = torch.arange(longest) < torch.tensor([len(text) for text in TEXTS])[:, None]
    return Batch(
        ids, mask, labels_M=torch.from_numpy(np.array(gold)), answers_per_item=(1,) * len(TEXTS)
    )


def scores(p: dict[str, np.ndarray], text: list[int]) -> list[np.ndarray]:
    """After every word."""
    states = [(np.zeros(4), np.zeros(4)) for _ in range(2)]
    found = []
    for word in text:
        x = p["encoder.word_embeddings.weight"][word]
        for layer in range(2):
            states[layer] = plain_step(x, *states[layer], part(p, f"encoder.body.{layer}"))
            x = states[layer][0]
        found.append(p["head.1.weight"] @ x + p["head.1.bias"])
    return found


def by_hand(p: dict[str, np.ndarray], answer: LabelAnswer | NumberAnswer, gold: list[Any]) -> float:
    """Of four words the weights are 0, 1/3, 2/3 and 1, of three 0, 1/2 and 1, of one 1."""
    total = 0.0
    for text, weights, label in zip(
        TEXTS, [[0, 1 / 3, 2 / 3, 1], [1], [0, 1 / 2, 1]], gold, strict=True
    ):
        for one, weight in zip(scores(p, text), weights, strict=True):
            error = (
                nats(one, label)
                if isinstance(answer, LabelAnswer)
                else 0.5 * (one[0] - (label - answer.mean) / answer.std) ** 2
            )
            total += weight * float(error)
    return total / (2 + 1 + 1.5)


@pytest.mark.parametrize("form", ANSWERS)
def test_the_loss_and_its_gradients_are_those_written_by_hand(form: str) -> None:
    answer, gold = ANSWERS[form]
    model = classifier(answer)
    out = finetuning_objective(model, batch_of(gold))
    assert float(out.loss.detach()) == pytest.approx(
        by_hand(numbers(model), answer, gold), abs=1e-12
    )
    assert out.target_counts == {"task": 3} and float(out.nats["task"]) == pytest.approx(
        3 * float(out.loss.detach())
    )
    out.loss.backward()
    assert_gradients_are_central_differences(model, lambda p: by_hand(p, answer, gold))


@pytest.mark.parametrize("form", ANSWERS)
def test_padding_changes_nothing(form: str) -> None:
    answer, gold = ANSWERS[form]
    model, losses = classifier(answer), []
    for padding in (0, 1, 7):
        model.zero_grad()
        loss = finetuning_objective(model, batch_of(gold, padding=padding)).loss
        loss.backward()
        losses.append(
            [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        )
    for other in losses[1:]:
        torch.testing.assert_close(other, losses[0], atol=1e-12, rtol=1e-10)


def test_what_is_read_is_the_state_after_the_last_word() -> None:
    answer, gold = ANSWERS["label"]
    model = classifier(answer)
    want = np.stack([scores(numbers(model), text)[-1] for text in TEXTS])
    np.testing.assert_allclose(model(batch_of(gold, padding=2)).detach().numpy(), want, atol=1e-12)


def items_of(case: str, count: int) -> tuple[list[EncodedItem], np.ndarray]:
    table = CASES[case][0](count)
    return encode_items(
        table, tiny.reader("sa_lstm"), max_length=None, language="en", symmetric=case == "pairs"
    ), CASES[case][1].labels(table)


def test_a_tuned_classifier_has_learned_from_every_word() -> None:
    items, gold = items_of("text_classification", 40)
    ends = {}
    for name, settings in (("plain", PLAIN), ("gain", GAIN)):
        longer, reader = dataclasses.replace(settings, epochs=25), tiny.reader("sa_lstm")
        model = finetune(
            tiny.model("sa_lstm"),
            reader,
            items,
            gold,
            tiny.labels(2),
            longer,
            seed=1,
            precision="fp32",
        )
        assert (
            predict_finetuned(model, reader, items, precision="fp32").argmax(1) == gold
        ).mean() > 0.9, name
        batch = collate_items(reader, items)
        top_BTD = model.encoder.encode(batch)[
            -1
        ]  # the word that tells is the fifth of seven, behind the mark
        early = F.cross_entropy(model.head(top_BTD[:, 6]), torch.tensor(gold))
        ends[name] = float(early.detach())
    assert ends["gain"] < ends["plain"]


@pytest.mark.parametrize("case", ["pairs", "multiple_choice", "sense", "tags"])
def test_what_is_read_twice_or_asks_about_words_learns_as_without_it(case: str) -> None:
    items, gold = items_of(case, 5)
    batch = collate_items(tiny.reader("sa_lstm"), items, gold)
    plain, gain = (
        finetuning_objective(
            FinetunedModel(
                tiny.model("sa_lstm"), CASES[case][1], settings, seed=1, example_item=items[0]
            ),
            batch,
        )
        for settings in (PLAIN, GAIN)
    )
    assert float(plain.loss.detach()) == float(gain.loss.detach()) and gain.target_counts == {
        "task": len(gold)
    }


@pytest.mark.parametrize(("kind", "symmetric", "recipe"), [
    ("text_classification", False, "linear gain"), ("text_regression", False, "linear gain"), ("text_classification", True, "plain"), ("multiple_choice", False, "plain"),
    ("word_sense", False, "word norm"), ("token_classification", False, "word norm"),
])  # fmt: skip
def test_rows_say_where_it_and_the_norm_of_words_were_used(
    kind: str, symmetric: bool, recipe: str
) -> None:
    found = setting("text_classification", "sa_lstm")
    found = dataclasses.replace(
        found,
        settings=dataclasses.replace(
            found.settings, finetune=dataclasses.replace(GAIN, word_layer_norm=True)
        ),
        static_context=None,
    )
    found.task.info.update({"kind": kind, "symmetric": symmetric, "answer": "label"})
    table = pd.DataFrame({"id": ["0"], "group": ["all"]})
    said: dict[str, Any] = {"label": ["a"], "prediction": ["a"], "score": 1.0, "correct": 1.0}
    assert [
        *build_predictions(
            found, EvalRun("pretrained", "finetuned", "all", 0), "test", table, said
        )["recipe"]
    ] == [recipe]


def test_it_is_refused_where_no_last_state_is_read() -> None:
    for name in (*tiny.TRAINED, *tiny.STATIC):
        assert not tiny.variant(
            name, evaluate={"finetune": {"linear_label_gain": False}}
        ).evaluate.finetune.linear_label_gain
        if tiny.variant(name).family.pools_last_state:
            assert tiny.variant(
                name, evaluate={"finetune": {"linear_label_gain": True}}
            ).evaluate.finetune.linear_label_gain
            continue
        with pytest.raises(
            InputError,
            match=rf"models\.{name}\.evaluate\.finetune\.linear_label_gain: {name} does not classify a text by the state",
        ):
            tiny.variant(name, evaluate={"finetune": {"linear_label_gain": True}})
    with pytest.raises(
        InputError,
        match=r"models\.sa_lstm\.evaluate\.finetune: linear_label_gain is for the last state",
    ):
        tiny.variant(
            "sa_lstm", evaluate={"finetune": {"linear_label_gain": True, "pooling": "mean"}}
        )
