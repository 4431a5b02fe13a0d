"""`evaluate.finetune.word_layer_norm` gives the vectors under a word-level head unit size."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lineage.answers.tags import TagsAnswer
from lineage.methods.encoding import collate_items, encode_items
from lineage.methods.finetuning import FinetunedModel, FinetuneMethod, predict_finetuned
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.report.notes import format_note
from tests.helpers import tiny
from tests.helpers.answer_cases import CASES, WORDS
from tests.helpers.fitting import finetune

FINETUNE = FinetuneMethod(
    epochs=10, batch_size=16, learning_rate=0.004, layer_lr_decay=1.0, cut_frac=0.1, ratio=32.0, gradual_unfreezing=0.0, weight_decay=0.0, dropout=0.0, max_grad_norm=1.0,
    word_layer_norm=True, min_steps=60, patience=None,
)  # fmt: skip


def shrink_top_layer(encoder: Encoder, factor: float) -> Encoder:
    """Scale the encoder's top layer by a factor."""
    encode = encoder.encode

    def encode_shrunk(batch: Batch) -> tuple[torch.Tensor, ...]:
        *lower, top = encode(batch)
        return (*lower, top * factor)

    encoder.encode = encode_shrunk  # type: ignore[method-assign]
    return encoder


# Texts go to the family's own head; ULMFiT's has a batch norm that has no statistics yet.
WORD_LEVEL_CASES = ("tags", "sense")


@pytest.mark.parametrize("word_layer_norm", [True, False])
@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for name in ("ulmfit", "elmo", "bert", "word2vec")
        for case in CASES
        if name != "ulmfit" or case in WORD_LEVEL_CASES
    ],
)
def test_word_layer_norm_normalises_word_vectors_and_nothing_else(
    name: str, case: str, word_layer_norm: bool
) -> None:
    make_items, answer = CASES[case]
    settings = replace(FINETUNE, word_layer_norm=word_layer_norm)
    items = encode_items(make_items(6), tiny.tokenizer(name), max_length=None, language="en")
    batch = collate_items(tiny.tokenizer(name), items)

    def scores(factor: float) -> torch.Tensor:
        model = FinetunedModel(
            shrink_top_layer(tiny.model(name), factor),
            answer,
            settings,
            seed=1,
            example_item=items[0],
        ).eval()
        with torch.no_grad():
            return model(batch)

    full_size = scores(1.0)
    small = scores(1 / 16)
    assert torch.allclose(full_size, small, atol=1e-4) == (
        word_layer_norm and case in WORD_LEVEL_CASES
    ), "without the norm, and for texts, the size matters"
    model = FinetunedModel(tiny.model(name), answer, settings, seed=1, example_item=items[0]).eval()
    with torch.no_grad():
        inputs = model.head_inputs(model.pooled_vectors(batch).vectors, batch)
        root_mean_squares = inputs.square().mean(-1).sqrt()
    assert torch.allclose(root_mean_squares, torch.ones_like(root_mean_squares), atol=1e-3) == (
        word_layer_norm and case in WORD_LEVEL_CASES
    )


@pytest.mark.parametrize("word_layer_norm", [True, False])
def test_an_encoder_with_small_vectors_learns_tags_only_with_word_layer_norm(
    word_layer_norm: bool,
) -> None:
    """An untrained AWD-LSTM has such vectors. Without the norm every word gets one tag."""
    rng = np.random.default_rng(3)
    answer = TagsAnswer(("a", "b", "c"))
    table = CASES["tags"][0](64)
    table["tokens"] = [
        [str(word) for word in rng.choice(WORDS, len(tokens))] for tokens in table["tokens"]
    ]
    table["label"] = [[WORDS.index(word) % 3 for word in tokens] for tokens in table["tokens"]]
    items = encode_items(table, tiny.tokenizer("ulmfit"), max_length=None, language="en")
    encoder = shrink_top_layer(
        tiny.model("ulmfit", architecture=tiny.dropout_config("ulmfit", 0.0)), 1 / 64
    )
    labels = answer.labels(table)
    model = finetune(
        encoder,
        tiny.tokenizer("ulmfit"),
        items,
        labels,
        answer,
        replace(FINETUNE, word_layer_norm=word_layer_norm, epochs=20),
        seed=1,
        precision="fp32",
    )
    predictions = predict_finetuned(
        model, tiny.tokenizer("ulmfit"), items, precision="fp32"
    ).argmax(-1)
    assert ((predictions == labels).mean() > 0.9) == word_layer_norm
    assert (len({*predictions}) > 1) == word_layer_norm


def test_word_layer_norm_can_be_a_trial_and_is_named_in_the_recipe() -> None:
    settings = tiny.model_config(
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
    assert format_note(settings.describe_trial(1)) == (
        "trial 1 (of 2, from 0): learning_rate 0.02, word_layer_norm"
    )
    assert "word norm" in settings.with_trial(1).recipe and "word norm" not in settings.recipe


def test_only_ulmfit_uses_word_layer_norm_by_default() -> None:
    assert [
        name
        for name in (*tiny.TRAINED, *tiny.STATIC)
        if tiny.model_config(name).evaluate.finetune.word_layer_norm
    ] == ["ulmfit"]
