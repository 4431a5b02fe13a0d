"""GloVe gives the numbers of the released C program.

The tests compare counts, and parameters, squared gradients and cost after one and five epochs.
"""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from lineage.families.glove import (
    AdagradState,
    GlovePretrainSettings,
    adagrad_step,
    count_cooccurrences,
)
from lineage.networks.static import StaticConfig, StaticVectors
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS
from tests.helpers.golden import golden_folder, golden_settings


def load_documents(min_count: int) -> tuple[list[np.ndarray], int]:
    """Return the documents as ids of the reference's vocabulary, and the vocabulary's size.

    Rarer words are removed before windows are formed, as in the program.
    """
    lines = (
        (golden_folder("glove") / f"vocab_min{min_count}.txt")
        .read_text(encoding="utf-8")
        .rstrip("\n")
        .split("\n")
    )
    word_ids = {line.split(" ")[0]: number for number, line in enumerate(lines)}
    text = (golden_folder("glove") / "text.txt").read_text(encoding="utf-8")
    documents = [re.split(r"[ \t]+", line) for line in text.split("\n")]  # As the program splits.
    counts = Counter(word for words in documents for word in words)
    assert all(
        line.split(" ") == [word, str(counts[word])]
        for line, word in zip(lines, word_ids, strict=True)
    ), "the text is split differently than by the program"
    ids = [np.array([word_ids[w] for w in words if w in word_ids], int) for words in documents]
    return ids, len(word_ids)


@pytest.mark.parametrize("min_count", [1, 2])
def test_cooccurrence_counts_match_the_reference(min_count: int) -> None:
    documents, vocab_size = load_documents(min_count)
    actual = count_cooccurrences(
        documents, vocab_size=vocab_size, window=golden_settings("glove")["win"]
    )
    expected = load_file(golden_folder("glove") / "cases.safetensors")[
        f"cooc.min{min_count}.sym1.dw1"
    ]
    np.testing.assert_allclose(actual.toarray(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("epochs", [1, 5])
@pytest.mark.parametrize("scale_bias_gradient", [False, True])
def test_training_matches_the_reference(epochs: int, scale_bias_gradient: bool) -> None:
    cases = load_file(golden_folder("glove") / "cases.safetensors")
    reference = golden_settings("glove")
    settings = GlovePretrainSettings(
        window=reference["win"],
        x_max=reference["xmax"],
        alpha=reference["alpha"],
        epochs=epochs,
        learning_rate=reference["eta"],
        scale_bias_gradient=scale_bias_gradient,
    )
    start = cases["init.all"]
    state = AdagradState.initial(start[..., :-1], start[..., -1])
    i, j, x = cases["shuffled.word1"] - 1, cases["shuffled.word2"] - 1, cases["shuffled.value"]
    costs = []
    for _ in range(epochs):
        cost = sum(adagrad_step(state, i[[r]], j[[r]], x[[r]], settings) for r in range(len(x)))
        costs.append(cost / len(x))
    case = f"after{epochs}{'_eta_bias' if scale_bias_gradient else ''}"
    for vectors, biases, name in (
        (state.vectors_2VD, state.biases_2V, "all"),
        (state.squared_gradients_2VD, state.squared_bias_gradients_2V, "gradsq"),
    ):
        actual = np.concatenate([vectors, biases[..., None]], -1)
        np.testing.assert_allclose(actual, cases[f"{case}.{name}"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(costs, cases[f"{case}.mean_cost_per_epoch"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("epochs", [1, 5])
def test_word_vectors_are_the_sums_of_word_and_context_vectors(epochs: int) -> None:
    lines = (
        (golden_folder("glove") / f"vectors_model2_after{epochs}.txt")
        .read_text(encoding="utf-8")
        .rstrip("\n")
        .split("\n")
    )
    expected = np.array([[float(v) for v in line.split(" ")[1:]] for line in lines[:-1]])
    trained = load_file(golden_folder("glove") / "cases.safetensors")[f"after{epochs}.all"]
    model = StaticVectors(
        StaticConfig(hidden_size=golden_settings("glove")["dim"]),
        vocab_size=len(SPECIAL_TOKENS["word"]) + len(expected),
    )
    model.init_weights(torch.Generator().manual_seed(0))
    model.load_vectors(AdagradState.initial(trained[..., :-1], trained[..., -1]).word_vectors())
    table = model.words.weight.detach().numpy()
    np.testing.assert_allclose(table[len(SPECIAL_TOKENS["word"]) :], expected, atol=1e-6)
    unknown = np.array([float(v) for v in lines[-1].split(" ")[1:]])
    np.testing.assert_allclose(table[SPECIAL_TOKENS["word"].index("<unk>")], unknown, atol=1e-6)
