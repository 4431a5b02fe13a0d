"""`evaluate.finetune.word_layer_norm`: a new head over words reads vectors of one size, however small the encoder makes them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lineage.evaluation.answers import TagsAnswer
from lineage.evaluation.encoding import collate_items, encode_items
from lineage.evaluation.finetuning import FinetunedModel, finetune, predict_finetuned
from lineage.evaluation.settings import FinetuneSettings
from lineage.evaluation.trials import trial_note
from lineage.models.base import Encoder
from lineage.report.notes import format_note
from tests import tiny
from tests.test_networks import CASES, WORDS

TUNED = FinetuneSettings(
    epochs=10, batch_size=16, learning_rate=0.004, layer_lr_decay=1.0, cut_frac=0.1, ratio=32.0, gradual_unfreezing=0.0, weight_decay=0.0, dropout=0.0, max_grad_norm=1.0,
    word_layer_norm=True,
)  # fmt: skip


def shrunk(encoder: Encoder, factor: float) -> Encoder:
    """The encoder with a smaller top layer."""
    whole = encoder.encode
    encoder.encode = lambda batch: (*(layers := whole(batch))[:-1], layers[-1] * factor)  # type: ignore[method-assign]
    return encoder


ASKED = (
    "tags",
    "sense",
)  # of words; texts are read by families' own heads, of which ULMFiT's has a norm that has seen nothing yet


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for name in ("ulmfit", "elmo", "bert", "word2vec")
        for case in CASES
        if name != "ulmfit" or case in ASKED
    ],
)
def test_words_are_read_at_one_size_and_everything_else_as_it_is(
    name: str, case: str, norms: bool
) -> None:
    make, answer = CASES[case]
    settings = replace(TUNED, word_layer_norm=norms)
    items = encode_items(make(6), tiny.reader(name), max_length=None, language="en")
    batch = collate_items(tiny.reader(name), items)

    def scores(factor: float) -> torch.Tensor:
        model = FinetunedModel(
            shrunk(tiny.model(name), factor), answer, settings, seed=1, example_item=items[0]
        ).eval()
        with torch.no_grad():
            return model(batch)

    whole, small = scores(1.0), scores(1 / 16)
    assert torch.allclose(whole, small, atol=1e-4) == (norms and case in ASKED), (
        "without it, and of texts, the size is read too"
    )
    model = FinetunedModel(tiny.model(name), answer, settings, seed=1, example_item=items[0]).eval()
    with torch.no_grad():
        inputs = model.head_inputs(model.pooled_vectors(batch).vectors, batch)
        sizes = inputs.square().mean(-1).sqrt()
    assert torch.allclose(sizes, torch.ones_like(sizes), atol=1e-3) == (norms and case in ASKED)


@pytest.mark.parametrize("norms", [True, False])
def test_an_encoder_of_small_vectors_learns_tags_under_it(norms: bool) -> None:
    """As an untrained AWD-LSTM's are. Without it every word has one tag."""
    rng, answer = np.random.default_rng(3), TagsAnswer(("a", "b", "c"))
    table = CASES["tags"][0](64)
    table["tokens"] = [
        [str(word) for word in rng.choice(WORDS, len(tokens))] for tokens in table["tokens"]
    ]
    table["label"] = [[WORDS.index(word) % 3 for word in tokens] for tokens in table["tokens"]]
    items = encode_items(table, tiny.reader("ulmfit"), max_length=None, language="en")
    encoder = shrunk(tiny.model("ulmfit", architecture=tiny.dropping("ulmfit", 0.0)), 1 / 64)
    gold = answer.labels(table)
    model = finetune(
        encoder,
        tiny.reader("ulmfit"),
        items,
        gold,
        answer,
        replace(TUNED, word_layer_norm=norms, epochs=20),
        seed=1,
        precision="fp32",
    )
    said = predict_finetuned(model, tiny.reader("ulmfit"), items, precision="fp32").argmax(-1)
    assert ((said == gold).mean() > 0.9) == norms and (len({*said}) > 1) == norms


def test_it_can_be_a_trial_and_stands_in_the_recipe() -> None:
    settings = tiny.variant(
        "elmo",
        evaluate={
            "finetune": {
                "trials": [
                    {"learning_rate": 0.02},
                    {"learning_rate": 0.02, "word_layer_norm": True},
                ]
            }
        },
    ).evaluate.finetune
    assert settings.with_trial(1).word_layer_norm and not settings.with_trial(0).word_layer_norm
    assert format_note(trial_note(settings, 1)) == (
        "trial 1 (of 2, from 0): learning_rate 0.02, word_layer_norm"
    )
    assert "word norm" in settings.with_trial(1).recipe and "word norm" not in settings.recipe


def test_ulmfit_has_it_as_shipped_and_no_other_family() -> None:
    assert [
        name
        for name in (*tiny.TRAINED, *tiny.STATIC)
        if tiny.variant(name).evaluate.finetune.word_layer_norm
    ] == ["ulmfit"]
