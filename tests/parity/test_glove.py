"""GloVe against the released C program: counts, and parameters, squared gradients and cost after one and five epochs."""

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from lineage.models.glove import (
    AdagradState,
    GlovePretrainSettings,
    adagrad_step,
    count_cooccurrences,
)
from lineage.models.static import StaticConfig, StaticVectors
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS
from tests.golden import golden


def facts() -> dict[str, Any]:
    return json.loads((golden("glove") / "config.json").read_text())


def documents(minimum: int) -> tuple[list[np.ndarray], int]:
    """The text as ids in the order of the reference's vocabulary; rarer words are gone before windows are formed."""
    lines = (
        (golden("glove") / f"vocab_min{minimum}.txt")
        .read_text(encoding="utf-8")
        .rstrip("\n")
        .split("\n")
    )
    place = {line.split(" ")[0]: number for number, line in enumerate(lines)}
    text = [
        re.split(r"[ \t]+", line)
        for line in (golden("glove") / "text.txt").read_text(encoding="utf-8").split("\n")
    ]  # as the program cuts it
    counts = Counter(word for words in text for word in words)
    assert all(
        line.split(" ") == [word, str(counts[word])]
        for line, word in zip(lines, place, strict=True)
    ), "else the text is read otherwise"
    return [np.array([place[word] for word in words if word in place], int) for words in text], len(
        place
    )


@pytest.mark.parametrize("minimum", [1, 2])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("by_distance", [False, True])
def test_counts_are_those_of_the_reference(
    minimum: int, symmetric: bool, by_distance: bool
) -> None:
    some, words = documents(minimum)
    found = count_cooccurrences(
        some, vocab_size=words, window=facts()["win"], symmetric=symmetric, by_distance=by_distance
    )
    expected = load_file(golden("glove") / "cases.safetensors")[
        f"cooc.min{minimum}.sym{int(symmetric)}.dw{int(by_distance)}"
    ]
    np.testing.assert_allclose(found.toarray(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("epochs", [1, 5])
@pytest.mark.parametrize("bias_rate", [False, True])
def test_training_is_that_of_the_reference(epochs: int, bias_rate: bool) -> None:
    cases, said = load_file(golden("glove") / "cases.safetensors"), facts()
    settings = GlovePretrainSettings(
        window=said["win"],
        x_max=said["xmax"],
        alpha=said["alpha"],
        epochs=epochs,
        learning_rate=said["eta"],
        scale_bias_gradient=bias_rate,
    )
    start = cases["init.all"]
    state = AdagradState.initial(start[..., :-1], start[..., -1])
    i, j, x = cases["shuffled.word1"] - 1, cases["shuffled.word2"] - 1, cases["shuffled.value"]
    costs = [
        sum(adagrad_step(state, i[[r]], j[[r]], x[[r]], settings) for r in range(len(x))) / len(x)
        for _ in range(epochs)
    ]
    where = f"after{epochs}{'_eta_bias' if bias_rate else ''}"
    for found, name in (
        ((state.vectors_2VD, state.biases_2V), "all"),
        ((state.squared_gradients_2VD, state.squared_bias_gradients_2V), "gradsq"),
    ):
        both = np.concatenate([found[0], found[1][..., None]], -1)
        np.testing.assert_allclose(both, cases[f"{where}.{name}"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(costs, cases[f"{where}.mean_cost_per_epoch"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("epochs", [1, 5])
def test_the_vectors_that_are_kept_are_the_sums_of_word_and_context(epochs: int) -> None:
    lines = (
        (golden("glove") / f"vectors_model2_after{epochs}.txt")
        .read_text(encoding="utf-8")
        .rstrip("\n")
        .split("\n")
    )
    expected = np.array([[float(v) for v in line.split(" ")[1:]] for line in lines[:-1]])
    after = load_file(golden("glove") / "cases.safetensors")[f"after{epochs}.all"]
    model = StaticVectors(
        StaticConfig(hidden_size=facts()["dim"]),
        vocab_size=len(SPECIAL_TOKENS["word"]) + len(expected),
    )
    model.init_weights(torch.Generator().manual_seed(0))
    model.load_vectors(AdagradState.initial(after[..., :-1], after[..., -1]).word_vectors())
    table = model.words.weight.detach().numpy()
    np.testing.assert_allclose(table[len(SPECIAL_TOKENS["word"]) :], expected, atol=1e-6)
    unknown = np.array([float(v) for v in lines[-1].split(" ")[1:]])
    np.testing.assert_allclose(table[SPECIAL_TOKENS["word"].index("<unk>")], unknown, atol=1e-6)
