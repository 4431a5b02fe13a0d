"""SA-LSTM matches a numpy version as autoencoder and language model, and starts a classifier."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.families.sa_lstm import (
    FAMILY,
    SEPARATOR_ID,
    autoencoder_inputs_and_targets,
    autoencoder_or_lm_loss,
)
from lineage.methods.encoding import collate_items, encode_items
from lineage.methods.finetuning import FinetunedModel, finetuning_objective
from lineage.networks.batch import IGNORE_INDEX, Batch
from tests.helpers import tiny
from tests.helpers.by_hand import (
    arrays_with_prefix,
    assert_gradients_match_finite_differences,
    build_small_sa_lstm,
    cross_entropy_nats,
    lstm_step,
    parameter_arrays,
)

IDS = torch.tensor([[2, 5, 3], [2, 4, 0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
TEXTS = [[2, 5, 3], [2, 4]]


def target_nats(p: dict[str, np.ndarray], input_ids: list[int], targets: list[int]) -> list[float]:
    """Return the nats of each target; the last target follows the last input word."""
    states = [(np.zeros(4), np.zeros(4)) for _ in range(2)]
    nats = []
    for position, word in enumerate(input_ids):
        x = p["word_embeddings.weight"][word]
        for layer in range(2):
            states[layer] = lstm_step(x, *states[layer], arrays_with_prefix(p, f"body.{layer}"))
            x = states[layer][0]
        target_index = position - (len(input_ids) - len(targets))
        if target_index >= 0:
            nats.append(
                cross_entropy_nats(
                    p["softmax.weight"] @ x + p["softmax.bias"], targets[target_index]
                )
            )
    return nats


def expected_loss(p: dict[str, np.ndarray], objective: str) -> float:
    """Return the mean nats over all targets of all texts."""
    nats: list[float] = []
    for text in TEXTS:
        if objective == "language_model":
            nats += target_nats(p, text[:-1], text[1:])
        else:
            nats += target_nats(p, [*text, SEPARATOR_ID, *text], [*text, SEPARATOR_ID])
    return float(np.mean(nats))


@pytest.mark.parametrize("objective", ["autoencoder", "language_model"])
def test_the_loss_and_its_gradients_equal_those_computed_in_numpy(objective: str) -> None:
    """The encoder and the decoder share the embedding, the LSTM, the softmax and the state."""
    model = build_small_sa_lstm(objective)
    out = autoencoder_or_lm_loss(model, Batch(IDS, MASK))
    assert float(out.loss.detach()) == pytest.approx(
        expected_loss(parameter_arrays(model), objective), abs=1e-12
    )
    assert out.target_counts == ({"rebuilt": 7} if objective == "autoencoder" else {"word": 3})
    out.loss.backward()
    assert_gradients_match_finite_differences(model, lambda p: expected_loss(p, objective))


def test_the_decoder_input_of_each_text_follows_its_own_end() -> None:
    inputs, targets = autoencoder_inputs_and_targets(IDS, MASK)
    assert inputs[0].tolist() == [2, 5, 3, SEPARATOR_ID, 2, 5, 3]
    assert targets[0].tolist() == [IGNORE_INDEX] * 3 + [2, 5, 3, SEPARATOR_ID]
    assert inputs[1, :5].tolist() == [2, 4, SEPARATOR_ID, 2, 4]
    assert targets[1].tolist() == [IGNORE_INDEX] * 2 + [2, 4, SEPARATOR_ID] + [IGNORE_INDEX] * 2


def test_the_decoder_depends_on_every_word_that_was_read() -> None:
    model = build_small_sa_lstm("autoencoder")
    original = model.run_layers(autoencoder_inputs_and_targets(IDS[:1], MASK[:1])[0])[-1][0, 3]
    for position in range(3):
        changed = IDS[:1].clone()
        changed[0, position] = 6
        assert not torch.allclose(
            original,
            model.run_layers(autoencoder_inputs_and_targets(changed, MASK[:1])[0])[-1][0, 3],
        )


@pytest.mark.parametrize("objective", ["autoencoder", "language_model"])
def test_scores_are_sums_over_each_text(objective: str) -> None:
    model = tiny.model("sa_lstm", architecture={"objective": objective}).eval()
    tokenizer = tiny.tokenizer("sa_lstm")
    texts = [" ".join(d.split()[:n]) for d, n in zip(tiny.documents(), (4, 9, 6), strict=False)]
    scores = FAMILY.score_texts(model, tokenizer, texts, limit=None)[:, 0]
    for text, score in zip(texts, scores, strict=True):
        out = autoencoder_or_lm_loss(model, tokenizer.collate([tokenizer.encode(text)]))
        (total,) = out.nats.values()
        assert score == pytest.approx(-float(total), rel=1e-5)


def test_the_classifier_reads_the_state_after_the_last_word() -> None:
    model = tiny.model("sa_lstm").eval()
    tokenizer = tiny.tokenizer("sa_lstm")
    batch = tokenizer.collate(
        tokenizer.encode_batch([" ".join(tiny.documents()[0].split()[:n]) for n in (3, 8)])
    )
    layers = model.encode(batch)
    pooled = model.pool(layers, batch)
    for row, length in enumerate(batch.mask_BT.sum(1).tolist()):
        assert torch.equal(pooled[row], layers[-1][row, length - 1])


def test_documents_are_cut_into_windows_of_the_sequence_length() -> None:
    config = tiny.model_config("sa_lstm")
    tokens = tiny.corpus("sa_lstm")
    assert config.family.batch_sampler is not None
    sampler = config.family.batch_sampler(
        tokens, tiny.tokenizer("sa_lstm"), config.pretrain, seed=1
    )
    sizes = [sampler.get_batch(i).ids_BT.shape[1] for i in range(sampler.set_epoch(0))]
    starts = np.sort(sampler.starts)
    assert max(sizes) == 11 and len(set(sizes)) > 3
    expected: list[int] = []
    for start, end in itertools.pairwise(tokens.document_starts.tolist()):
        expected += range(start, end, 11)
    assert starts.tolist() == expected


@pytest.mark.parametrize("objective", ["autoencoder", "language_model"])
def test_joint_training_adds_the_pretraining_loss_on_the_texts_of_the_task(objective: str) -> None:
    """Dai and Le: the loss and its gradient are those of the task plus those of the text."""
    tokenizer = tiny.tokenizer("sa_lstm")
    labels = np.array([0, 1, 1])
    encoder = tiny.model("sa_lstm", architecture={"objective": objective, "dropout": 0.0})
    items = encode_items(
        pd.DataFrame({"text": ["the cat sat .", "a dog", "the old man saw it ."]}),
        tokenizer,
        max_length=None,
        language="en",
    )
    settings = tiny.model_config(
        "sa_lstm", evaluate={"finetune": {"aux_lm_weight": 0.5, "dropout": 0.0}}
    ).evaluate.finetune
    model = FinetunedModel(encoder, tiny.label_answer(2), settings, seed=1, example_item=items[0])
    batch = collate_items(tokenizer, items, labels)
    loss_and_gradient = {}
    for name, loss in {
        "joint": finetuning_objective(model, batch, aux_lm_weight=settings.aux_lm_weight, auxiliary_loss=FAMILY.auxiliary_loss).loss,
        "task": finetuning_objective(model, batch).loss,
        "text": autoencoder_or_lm_loss(encoder, batch).loss,
    }.items():  # fmt: skip
        grads = torch.autograd.grad(loss, [*encoder.body.parameters()])
        loss_and_gradient[name] = torch.cat(
            [loss.detach().view(1), *(gradient.flatten() for gradient in grads)]
        )
    assert float(loss_and_gradient["text"][1:].norm()) > 0.01
    torch.testing.assert_close(
        loss_and_gradient["joint"], loss_and_gradient["task"] + 0.5 * loss_and_gradient["text"]
    )
