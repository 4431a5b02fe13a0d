"""Autoencoders of sequences and language models that begin a classifier: both written out by hand, with what is read and what is said."""

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.evaluation.encoding import collate_items, encode_items
from lineage.evaluation.finetuning import FinetunedModel, finetuning_objective
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.models.sa_lstm import (
    FAMILY,
    SEPARATOR_ID,
    SALSTMConfig,
    SALSTMModel,
    autoencoder_inputs_and_targets,
    autoencoder_or_lm_loss,
    sa_lstm_scores,
)
from tests import tiny
from tests.by_hand import assert_gradients_are_central_differences, nats, numbers, part, plain_step

IDS = torch.tensor([[2, 5, 3], [2, 4, 0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
TEXTS = [[2, 5, 3], [2, 4]]


def small(objective: str, layers: int = 2) -> SALSTMModel:
    model = SALSTMModel(
        SALSTMConfig(
            objective=objective,
            num_layers=layers,
            hidden_to_embedding_ratio=2.0,
            dropout=0.0,
            embedding_size=3,
            hidden_size=4,
        ),
        vocab_size=7,
    )  # type: ignore[arg-type]
    model.init_weights(torch.Generator().manual_seed(3))
    return model.double()


def said(p: dict[str, np.ndarray], read: list[int], answers: list[int]) -> list[float]:
    """Nats of each answer, the last of them after the last word that is read."""
    states = [(np.zeros(4), np.zeros(4)) for _ in range(2)]
    found = []
    for place, word in enumerate(read):
        x = p["word_embeddings.weight"][word]
        for layer in range(2):
            states[layer] = plain_step(x, *states[layer], part(p, f"body.{layer}"))
            x = states[layer][0]
        late = place - (len(read) - len(answers))
        if late >= 0:
            found.append(nats(p["softmax.weight"] @ x + p["softmax.bias"], answers[late]))
    return found


def by_hand(p: dict[str, np.ndarray], objective: str) -> float:
    """The mean over everything that is said."""
    if objective == "language_model":
        return float(np.mean([n for text in TEXTS for n in said(p, text[:-1], text[1:])]))
    return float(
        np.mean(
            [
                n
                for text in TEXTS
                for n in said(p, [*text, SEPARATOR_ID, *text], [*text, SEPARATOR_ID])
            ]
        )
    )


@pytest.mark.parametrize("objective", ["autoencoder", "language_model"])
def test_the_loss_and_its_gradients_are_those_written_by_hand(objective: str) -> None:
    """One table, one LSTM and one softmax read the text and write it again; the state is handed over."""
    model = small(objective)
    out = autoencoder_or_lm_loss(model, Batch(IDS, MASK))
    assert float(out.loss.detach()) == pytest.approx(by_hand(numbers(model), objective), abs=1e-12)
    assert out.target_counts == ({"rebuilt": 7} if objective == "autoencoder" else {"word": 3})
    out.loss.backward()
    assert_gradients_are_central_differences(model, lambda p: by_hand(p, objective))


def test_texts_are_laid_out_to_be_read_and_written_each_behind_its_own_end() -> None:
    inputs, targets = autoencoder_inputs_and_targets(IDS, MASK)
    assert inputs[0].tolist() == [2, 5, 3, SEPARATOR_ID, 2, 5, 3] and targets[0].tolist() == [
        IGNORE_INDEX
    ] * 3 + [2, 5, 3, SEPARATOR_ID]
    assert (
        inputs[1, :5].tolist() == [2, 4, SEPARATOR_ID, 2, 4]
        and targets[1].tolist() == [IGNORE_INDEX] * 2 + [2, 4, SEPARATOR_ID] + [IGNORE_INDEX] * 2
    )


def test_what_is_written_depends_on_everything_that_was_read() -> None:
    model = small("autoencoder")
    before = model.run_layers(autoencoder_inputs_and_targets(IDS[:1], MASK[:1])[0])[-1][0, 3]
    for place in range(3):
        other = IDS[:1].clone()
        other[0, place] = 6
        assert not torch.allclose(
            before, model.run_layers(autoencoder_inputs_and_targets(other, MASK[:1])[0])[-1][0, 3]
        )


@pytest.mark.parametrize("objective", ["autoencoder", "language_model"])
def test_scores_are_sums_over_each_text_alone(objective: str) -> None:
    model, reader = (
        tiny.model("sa_lstm", architecture={"objective": objective}).eval(),
        tiny.reader("sa_lstm"),
    )
    texts = [" ".join(d.split()[:n]) for d, n in zip(tiny.documents(), (4, 9, 6), strict=False)]
    found = sa_lstm_scores(model, reader, texts, limit=None)[:, 0]
    for text, score in zip(texts, found, strict=True):
        out = autoencoder_or_lm_loss(model, reader.collate([reader.encode(text)]))
        (total,) = out.nats.values()
        assert score == pytest.approx(-float(total), rel=1e-5)


def test_the_classifier_reads_the_state_after_the_last_word() -> None:
    model, reader = tiny.model("sa_lstm").eval(), tiny.reader("sa_lstm")
    batch = reader.collate(
        reader.encode_batch([" ".join(tiny.documents()[0].split()[:n]) for n in (3, 8)])
    )
    layers = model.encode(batch)
    pooled = model.pool(layers, batch)
    for row, length in enumerate(batch.mask_BT.sum(1).tolist()):
        assert torch.equal(pooled[row], layers[-1][row, length - 1])


def test_documents_are_cut_at_the_length_of_a_window() -> None:
    found, tokens = tiny.variant("sa_lstm"), tiny.tokens("sa_lstm")
    assert found.family.batch_sampler is not None
    stream = found.family.batch_sampler(tokens, tiny.reader("sa_lstm"), found.pretrain, seed=1)
    sizes = [stream.get_batch(i).ids_BT.shape[1] for i in range(stream.set_epoch(0))]
    starts = np.sort(stream.starts)
    assert max(sizes) == 11 and len(set(sizes)) > 3
    expected = [
        a + k
        for a, b in zip(tokens.document_starts[:-1], tokens.document_starts[1:], strict=True)
        for k in range(0, b - a, 11)
    ]
    assert starts.tolist() == expected


@pytest.mark.parametrize("objective", ["autoencoder", "language_model"])
def test_joint_training_adds_the_loss_of_pretraining_on_the_task_s_texts(objective: str) -> None:
    """Dai and Le's variant: the answer's loss and the text's, and the gradients of both together."""
    reader, gold = tiny.reader("sa_lstm"), np.array([0, 1, 1])
    encoder = tiny.model("sa_lstm", architecture={"objective": objective, "dropout": 0.0})
    items = encode_items(
        pd.DataFrame({"text": ["the cat sat .", "a dog", "the old man saw it ."]}),
        reader,
        max_length=None,
        language="en",
    )
    settings = tiny.variant(
        "sa_lstm", evaluate={"finetune": {"aux_lm_weight": 0.5, "dropout": 0.0}}
    ).evaluate.finetune
    model = FinetunedModel(encoder, tiny.labels(2), settings, seed=1, example_item=items[0])
    batch = collate_items(reader, items, gold)
    found = {}
    for name, loss in {
        "joint": finetuning_objective(model, batch, aux_lm_weight=settings.aux_lm_weight, auxiliary_loss=FAMILY.auxiliary_loss).loss,
        "task": finetuning_objective(model, batch).loss,
        "text": autoencoder_or_lm_loss(encoder, batch).loss,
    }.items():  # fmt: skip
        grads = torch.autograd.grad(loss, [*encoder.body.parameters()])
        found[name] = torch.cat(
            [loss.detach().view(1), *(gradient.flatten() for gradient in grads)]
        )
    assert float(found["text"][1:].norm()) > 0.01
    torch.testing.assert_close(found["joint"], found["task"] + 0.5 * found["text"])
