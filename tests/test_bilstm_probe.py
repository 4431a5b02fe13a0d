"""BiLSTM probes over frozen features learn every kind of task.

The CRF is compared with an enumeration of all tag sequences.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lineage.answers.label import LabelAnswer
from lineage.data.task_data import TaskData
from lineage.methods.bilstm_probe import BilstmProbe, predict_bilstm_probe
from lineage.methods.encoding import answer_rows, collate_items
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.networks.layers.crf import LinearChainCRF
from lineage.tasks.info import TaskInfo
from tests.helpers import tiny
from tests.helpers.answer_cases import CASES, labelled_texts, tagged_sentences
from tests.helpers.fitting import PLAIN_FINETUNE, cache_features, fit_bilstm_probe


def random_crf(num_tags: int) -> LinearChainCRF:
    crf = LinearChainCRF(num_tags)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_(generator=generator)
    return crf


def test_the_crf_agrees_with_an_enumeration_of_all_tag_sequences() -> None:
    """Check partition function, loss, marginals and best tags of sentences of 1 to 4 words."""
    crf = random_crf(3)
    K = 3
    lengths = [4, 1, 3, 2]
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(4, 4, K, generator=generator)
    labels = torch.randint(K, (4, 4), generator=generator)
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    log_partition = crf.log_partition(scores, mask)
    nats = crf.neg_log_likelihood(scores, mask, labels)
    marginals = crf.marginals(scores, mask)
    best = crf.viterbi_decode(scores, mask)
    for n, length in enumerate(lengths):
        sequence_scores = {}
        for tags in itertools.product(range(K), repeat=length):
            value = (
                crf.start_transitions_K[tags[0]]
                + crf.end_transitions_K[tags[-1]]
                + sum(scores[n, position, tag] for position, tag in enumerate(tags))
            )
            transitions = sum(crf.transitions_KK[pair] for pair in itertools.pairwise(tags))
            sequence_scores[tags] = float((value + transitions).detach())
        log_total = np.logaddexp.reduce(list(sequence_scores.values()))
        assert float(log_partition[n].detach()) == pytest.approx(log_total, abs=1e-4)
        assert float(nats[n].detach()) == pytest.approx(
            log_total - sequence_scores[tuple(labels[n, :length].tolist())], abs=1e-4
        )
        assert tuple(best[n, :length].tolist()) == max(
            sequence_scores, key=sequence_scores.__getitem__
        )
        for position, tag in itertools.product(range(length), range(K)):
            probability = sum(
                np.exp(value - log_total)
                for tags, value in sequence_scores.items()
                if tags[position] == tag
            )
            assert float(marginals[n, position, tag]) == pytest.approx(probability, abs=1e-4)
        assert not marginals[n, length:].any() and not best[n, length:].any()


@pytest.mark.parametrize("name", ["bert", *tiny.mark_slow(["word2vec", "elmo"])])
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_task_is_learned_and_scores_do_not_depend_on_the_batch(
    name: str, case: str
) -> None:
    build_table, answer = CASES[case]
    table = build_table(90)
    tokenizer = tiny.tokenizer(name)
    items = tiny.encode(name, table, symmetric=case == "pairs")
    model = tiny.model(name)
    features = cache_features(model, tokenizer, items)
    for layer_index, layer in enumerate(model.encode(collate_items(tokenizer, [items[4]]))):
        cached_layer = torch.from_numpy(features.layers[4][-1][:, layer_index, : layer.shape[-1]])
        torch.testing.assert_close(
            cached_layer, layer[-1, : len(cached_layer)], atol=2e-6, rtol=1e-5
        )
    settings = replace(tiny.BILSTM_PROBE, epochs=20) if name == "elmo" else tiny.BILSTM_PROBE
    if case == "tags":
        features = features.pool_words()
    probe = fit_bilstm_probe(features, answer.labels(table), answer, settings)
    scores, best, _ = predict_bilstm_probe(probe, features)
    labels = answer.labels(table)
    assert (best is not None) == (case == "tags")
    if case == "text_regression":
        is_correct = (scores[:, 0] > 12.5) == (labels > 12)
    elif best is None:
        is_correct = scores.argmax(1) == labels
    else:
        is_correct = best == labels
    assert is_correct.mean() > 0.9
    short_settings = replace(tiny.BILSTM_PROBE, epochs=2)
    first, second = (
        predict_bilstm_probe(fit_bilstm_probe(features, labels, answer, short_settings), features)[
            0
        ]
        for _ in range(2)
    )
    assert np.array_equal(first, second)
    for number in (0, 17, 60):
        single = cache_features(model, tokenizer, [items[number]])
        single_scores, *_ = predict_bilstm_probe(
            probe, single.pool_words() if case == "tags" else single
        )
        np.testing.assert_allclose(
            single_scores,
            scores[answer_rows(items)[number]],
            atol=1e-5 if name == "elmo" else 1e-6,
            rtol=0,
        )


def test_the_bilstm_matches_a_packed_lstm_of_torch() -> None:
    """Outputs and gradients match those of torch with the same weights and known lengths."""
    tokenizer = tiny.tokenizer("bert")
    items = tiny.encode("bert", labelled_texts(3))
    probe = BilstmProbe(
        LabelAnswer(("a", "b")),
        tiny.BILSTM_PROBE,
        cache_features(tiny.model("bert"), tokenizer, items),
        seed=1,
    )
    (forward_lstm,), (backward_lstm,) = probe.bilstm.forward_lstms, probe.bilstm.backward_lstms
    assert isinstance(forward_lstm, nn.LSTM)
    reference = nn.LSTM(
        forward_lstm.input_size, forward_lstm.hidden_size, batch_first=True, bidirectional=True
    )
    for suffix, lstm in (("", forward_lstm), ("_reverse", backward_lstm)):
        reference.load_state_dict(
            {f"{name}{suffix}": weight for name, weight in lstm.state_dict().items()}, strict=False
        )
    lengths = torch.tensor([5, 1, 9, 4])
    generator = torch.Generator().manual_seed(8)
    x_BTD = torch.randn(4, 9, reference.input_size, generator=generator)
    mask = torch.arange(9) < lengths[:, None]
    packed = pack_padded_sequence(x_BTD, lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(reference(packed)[0], batch_first=True)[0]
    actual = probe.bilstm(x_BTD, mask)
    weight = torch.randn(expected.shape, generator=generator)
    for outputs in (expected, actual):
        (outputs * weight)[mask].sum().backward()
    torch.testing.assert_close(actual[mask], expected[mask])
    for suffix, lstm in (("", forward_lstm), ("_reverse", backward_lstm)):
        for name, value in lstm.named_parameters():
            torch.testing.assert_close(value.grad, reference.get_parameter(f"{name}{suffix}").grad)


def test_an_evaluation_has_results_for_each_probe_of_the_task(tmp_path: Any) -> None:
    task_info = TaskInfo(
        name="x",
        kind="token_classification",
        labels=["a", "b"],
        metric=["token_accuracy"],
        language="en",
        probes=["linear", "bilstm"],
    )
    table = tagged_sentences(40).assign(id=[f"train-{i}" for i in range(40)], group="all")
    data = TaskData(
        task_info,
        {"train": table, "validation": table[:10], "test": table[10:20].reset_index(drop=True)},
    )
    finetune_settings = replace(PLAIN_FINETUNE, epochs=1)  # fmt: skip
    settings = tiny.eval_settings(
        LinearProbeMethod(trials=(), l2=0.001, max_iter=30), finetune_settings
    )
    context = tiny.eval_context("gpt", data, settings)
    runs = [*tiny.list_runs(task_info, ("random",), ("all",), (0,))]
    rows, predictions, *_ = tiny.evaluate_runs(context, runs, tmp_path)
    assert {(row.transfer, row.head, row.features) for row in rows} == {
        ("frozen", "linear", "scalar_mix"),
        ("frozen", "bilstm_crf", "scalar_mix"),
        ("finetuned", "linear", "last"),
    }
    assert {row.status for row in rows} == {"ok"}
    assert set(predictions["split"]) == {"validation", "test"}
    values = {
        row.head: row.value for row in rows if row.split == "test" and row.transfer == "frozen"
    }
    accuracies = (
        predictions[(predictions["split"] == "test") & (predictions["transfer"] == "frozen")]
        .groupby("head")["correct"]
        .mean()
    )
    assert accuracies.to_dict() == pytest.approx(values)
    assert values["bilstm_crf"] > values["linear"], "only the BiLSTM sees the previous word"
