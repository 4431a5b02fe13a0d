"""Task networks over frozen features: the CRF against all taggings written out, and what the network reads of every kind of item."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lineage.data.task_data import TaskData
from lineage.evaluation.answers import Answer, LabelAnswer, NumberAnswer, TagsAnswer
from lineage.evaluation.bilstm_probe import (
    BilstmProbe,
    cache_features,
    fit_bilstm_probe,
    predict_bilstm_probe,
)
from lineage.evaluation.encoding import answer_rows, collate_items, encode_items
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.finetuning import finetune
from lineage.evaluation.settings import EvaluateSettings, FinetuneSettings, LinearProbeSettings
from lineage.evaluation.systems import EvalContext
from lineage.models.layers.crf import LinearChainCRF
from tests import tiny

WORDS = sorted(
    word for word in tiny.reader("ulmfit").backend_tokenizer.get_vocab() if word.isalpha()
)[:24]


def chain(tags: int) -> LinearChainCRF:
    crf, draw = LinearChainCRF(tags), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_(generator=draw)
    return crf


def test_the_chain_is_the_sum_over_all_taggings() -> None:
    """Log of the sum, log-probability of the gold one, probabilities of each tag, and the likeliest tagging, of sentences of 4, 1, 3 and 2 words."""
    crf, K, lengths = chain(3), 3, [4, 1, 3, 2]
    draw = torch.Generator().manual_seed(5)
    scores, gold = torch.randn(4, 4, K, generator=draw), torch.randint(K, (4, 4), generator=draw)
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    total, nats, marginals, best = (
        crf.log_partition(scores, mask),
        crf.neg_log_likelihood(scores, mask, gold),
        crf.marginals(scores, mask),
        crf.viterbi_decode(scores, mask),
    )
    for n, length in enumerate(lengths):
        every = {}
        for tags in itertools.product(range(K), repeat=length):
            value = (
                crf.start_transitions_K[tags[0]]
                + crf.end_transitions_K[tags[-1]]
                + sum(scores[n, place, tag] for place, tag in enumerate(tags))
            )
            every[tags] = float(
                (
                    value + sum(crf.transitions_KK[a, b] for a, b in itertools.pairwise(tags))
                ).detach()
            )
        log_total = np.logaddexp.reduce(list(every.values()))
        assert float(total[n].detach()) == pytest.approx(log_total, abs=1e-4)
        assert float(nats[n].detach()) == pytest.approx(
            log_total - every[tuple(gold[n, :length].tolist())], abs=1e-4
        )
        assert tuple(best[n, :length].tolist()) == max(every, key=every.__getitem__)
        for place, tag in itertools.product(range(length), range(K)):
            share = sum(
                np.exp(value - log_total) for tags, value in every.items() if tags[place] == tag
            )
            assert float(marginals[n, place, tag]) == pytest.approx(share, abs=1e-4)
        assert not marginals[n, length:].any() and not best[n, length:].any()


def sentences(count: int) -> pd.DataFrame:
    """The tag of a word is that of the word before it, so that it can be learned from an LSTM alone, and a gap that transitions forbid."""
    rng = np.random.default_rng(3)
    tokens = [list(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]
    return pd.DataFrame(
        {
            "tokens": tokens,
            "label": [[0, *(int(word in WORDS[:12]) for word in some[:-1])] for some in tokens],
        }
    )


def asked(count: int) -> pd.DataFrame:
    """The label of a word is whether it stands after one of twelve."""
    table = sentences(count)
    targets = [len(tokens) // 2 for tokens in table["tokens"]]
    return table.assign(
        target=targets, label=[tags[at] for tags, at in zip(table["label"], targets, strict=True)]
    )


def texts(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(6)
    labels = rng.integers(2, size=count)
    return pd.DataFrame(
        {
            "text": [
                " ".join([*rng.choice(WORDS[2:], 4), WORDS[label], *rng.choice(WORDS[2:], 2)])
                for label in labels
            ],
            "label": labels,
        }
    )


def pairs(count: int) -> pd.DataFrame:
    return texts(count).assign(second=" ".join(WORDS[3:6]))


def numbers(count: int) -> pd.DataFrame:
    table = texts(count)
    return table.assign(label=10.0 + 5 * table["label"])


def choices(count: int) -> pd.DataFrame:
    table = texts(count)
    right = [" ".join((WORDS[0], WORDS[5])), " ".join((WORDS[1], WORDS[6]))]
    return table.assign(
        text=" ".join(WORDS[7:10]),
        choices=[right if label == 0 else right[::-1] for label in table["label"]],
    )


CASES: dict[str, tuple[Callable[[int], pd.DataFrame], Answer]] = {
    "tags": (sentences, TagsAnswer(("a", "b"))), "sense": (asked, LabelAnswer(("a", "b"))), "text_classification": (texts, LabelAnswer(("a", "b"))),
    "pairs": (pairs, LabelAnswer(("a", "b"))), "multiple_choice": (choices, LabelAnswer(("0", "1"), is_multiple_choice=True)), "text_regression": (numbers, NumberAnswer(12.5, 2.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", ["bert", *tiny.slow(["word2vec", "elmo"])])
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_item_is_learned_and_read_alike_in_any_company(name: str, case: str) -> None:
    make, answer = CASES[case]
    table, reader = make(90), tiny.reader(name)
    items = encode_items(table, reader, max_length=None, language="en", symmetric=case == "pairs")
    model = tiny.model(name)
    whole = cache_features(model, reader, items, precision="fp32")
    for place, layer in enumerate(model.encode(collate_items(reader, [items[4]]))):
        own = torch.from_numpy(whole.layers[4][-1][:, place, : layer.shape[-1]])
        torch.testing.assert_close(own, layer[-1, : len(own)], atol=2e-6, rtol=1e-5)
    settings = replace(tiny.NETWORK, epochs=20) if name == "elmo" else tiny.NETWORK
    network = fit_bilstm_probe(
        whole, answer.labels(table), answer, settings, seed=1, device=tiny.CPU
    )
    read, best = predict_bilstm_probe(network, whole)
    gold = answer.labels(table)
    assert (best is not None) == (case == "tags")
    said = (
        read[:, 0] > 12.5 if case == "text_regression" else read.argmax(1) if best is None else best
    )
    assert (said == (gold > 12 if case == "text_regression" else gold)).mean() > 0.9
    short = replace(tiny.NETWORK, epochs=2)
    one, other = (
        predict_bilstm_probe(
            fit_bilstm_probe(whole, gold, answer, short, seed=1, device=tiny.CPU), whole
        )[0]
        for _ in range(2)
    )
    assert np.array_equal(one, other)
    for number in (0, 17, 60):
        alone, _ = predict_bilstm_probe(
            network, cache_features(model, reader, [items[number]], precision="fp32")
        )
        np.testing.assert_allclose(
            alone, read[answer_rows(items)[number]], atol=1e-5 if name == "elmo" else 1e-6, rtol=0
        )


def test_both_directions_are_those_of_a_packed_lstm() -> None:
    """What torch makes of the same weights where it is told the lengths: outputs and the gradients of all weights."""
    reader, items = (
        tiny.reader("bert"),
        encode_items(texts(3), tiny.reader("bert"), max_length=None, language="en"),
    )
    network = BilstmProbe(
        LabelAnswer(("a", "b")),
        tiny.NETWORK,
        cache_features(tiny.model("bert"), reader, items, precision="fp32"),
        seed=1,
    )
    (ahead,), (back,) = network.bilstm.forward_lstms, network.bilstm.backward_lstms
    assert isinstance(ahead, nn.LSTM)
    theirs = nn.LSTM(ahead.input_size, ahead.hidden_size, batch_first=True, bidirectional=True)
    for suffix, own in (("", ahead), ("_reverse", back)):
        theirs.load_state_dict(
            {f"{name}{suffix}": weight for name, weight in own.state_dict().items()}, strict=False
        )
    lengths, draw = torch.tensor([5, 1, 9, 4]), torch.Generator().manual_seed(8)
    x, mask = (
        torch.randn(4, 9, theirs.input_size, generator=draw),
        torch.arange(9) < lengths[:, None],
    )
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, found = (
        pad_packed_sequence(theirs(packed)[0], batch_first=True)[0],
        network.bilstm(x, mask),
    )
    weight = torch.randn(expected.shape, generator=draw)
    for y in (expected, found):
        (y * weight)[mask].sum().backward()
    torch.testing.assert_close(found[mask], expected[mask])
    for suffix, own in (("", ahead), ("_reverse", back)):
        for name, value in own.named_parameters():
            torch.testing.assert_close(value.grad, theirs.get_parameter(f"{name}{suffix}").grad)


@pytest.mark.parametrize("arm", ["finetuned", "network"])
def test_few_labels_are_read_until_there_are_enough_steps(arm: str) -> None:
    """Nine items in batches of five are two steps an epoch: seven steps are four epochs, to the last bit, and three steps no more than the epochs."""
    table, reader = texts(9), tiny.reader("bert")
    items, answer = (
        encode_items(table, reader, max_length=None, language="en"),
        LabelAnswer(("a", "b")),
    )
    gold = answer.labels(table)

    def ends(**more: Any) -> torch.Tensor:
        model: torch.nn.Module
        if arm == "network":
            whole = cache_features(tiny.model("bert"), reader, items, precision="fp32")
            model = fit_bilstm_probe(
                whole,
                gold,
                answer,
                replace(tiny.NETWORK, batch_size=5, **more),
                seed=1,
                device=tiny.CPU,
            )
        else:
            tuned = replace(
                tiny.variant("bert").evaluate.finetune,
                batch_size=5,
                **({"min_steps": None} | more),
            )
            model = finetune(
                tiny.model("bert"), reader, items, gold, answer, tuned, seed=1, precision="fp32"
            ).head
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(ends(epochs=2, min_steps=7), ends(epochs=4))
    assert torch.equal(ends(epochs=2, min_steps=3), ends(epochs=2)) and not torch.equal(
        ends(epochs=2), ends(epochs=4)
    )


def test_a_stage_has_a_cell_for_each_head_that_the_task_names(tmp_path: Any) -> None:
    facts = {
        "name": "x",
        "kind": "token_classification",
        "answer": "tags",
        "labels": ["a", "b"],
        "metric": ["token_accuracy"],
        "language": "en",
        "probes": ["linear", "bilstm"],
    }
    table = sentences(40).assign(id=[f"train-{i}" for i in range(40)], group="all")
    data = TaskData(
        facts,
        {"train": table, "validation": table[:10], "test": table[10:20].reset_index(drop=True)},
    )
    tuned = FinetuneSettings(epochs=1, batch_size=8, learning_rate=0.01, layer_lr_decay=1.0, cut_frac=0.1, ratio=32.0, gradual_unfreezing=0.0, weight_decay=0.0, dropout=0.0,
                          max_grad_norm=1.0)  # fmt: skip
    settings = EvaluateSettings(
        linear_probe=LinearProbeSettings(l2=0.001, max_iter=30),
        bilstm_probe=tiny.NETWORK,
        finetune=tuned,
    )
    found = EvalContext(tiny.checkpoint("gpt"), data, settings, 0, 1000, "fp32", tiny.CPU)
    some = [*list_runs(facts, ("random",), ("all",), (0,))]
    rows, predictions = evaluate_runs(
        found, some, cache_dir=tmp_path, report_progress=lambda *_: None
    )
    assert {(row.transfer, row.head, row.features) for row in rows} == {
        ("frozen", "linear", "scalar_mix"),
        ("frozen", "bilstm_crf", "scalar_mix"),
        ("finetuned", "linear", "last"),
    }
    assert {row.status for row in rows} == {"ok"} and set(predictions["split"]) == {
        "validation",
        "test",
    }
    values = {
        row.head: row.value for row in rows if row.split == "test" and row.transfer == "frozen"
    }
    own = (
        predictions[(predictions["split"] == "test") & (predictions["transfer"] == "frozen")]
        .groupby("head")["correct"]
        .mean()
    )
    assert own.to_dict() == pytest.approx(values)
    assert values["bilstm_crf"] > values["linear"], "only the one reads the word before"
