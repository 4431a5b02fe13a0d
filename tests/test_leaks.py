"""No model is shown what it has to predict: neither among what stands later, nor as a word that was drawn by lot, which nothing foretells."""

import dataclasses
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from lineage.models.base import LanguageModelFamily
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.tokenizers.train import train_tokenizer
from lineage.training.budget import match_parameter_budget
from lineage.training.optimizers import build_adamw, build_param_groups, densify_gradients
from tests import tiny

WORDS = [
    "bade",
    "cove",
    "dime",
    "fuse",
    "gale",
    "hymn",
    "jolt",
    "kiln",
]  # few, so that what is shown is soon learned
# As they are by default both are shown it: a text that is written again was read before, and a tenth of what BERT predicts stands there as it is.
BLIND = {
    "sa_lstm": {"architecture": {"objective": "language_model"}},
    "bert": {"pretrain": {"mask_replacement": {"mask": 1.0, "random": 0.0}}},
}


def asked_at(batch: Batch, place: int, *, changed_from: int) -> Batch:
    """The batch with the targets of one place alone, and from another place on with the words of other rows."""
    assert batch.targets_BT is not None
    targets_BT = torch.full_like(batch.targets_BT, IGNORE_INDEX)
    targets_BT[:, place] = batch.targets_BT[:, place]
    changed: dict[str, Any] = {}
    for name in ("ids_BT", "word_rows_BT"):
        if (table := getattr(batch, name)) is not None:
            changed[name] = torch.cat(
                [table[:, :changed_from], table[:, changed_from:].roll(1, 0)], 1
            )
    return dataclasses.replace(batch, targets_BT=targets_BT, **changed)


@pytest.mark.parametrize("name", tiny.TRAINED)
def test_nothing_of_what_comes_later_changes_what_a_language_model_says(name: str) -> None:
    found, model = tiny.variant(name), tiny.model(name).eval()
    assert isinstance(found.family, LanguageModelFamily)
    batch = tiny.batch(name, 2)
    assert batch.targets_BT is not None
    if not torch.equal(batch.ids_BT[:, 1:], batch.targets_BT[:, :-1]):
        return  # masked, or a whole text: the words that were drawn by lot tell
    for place in range(batch.ids_BT.shape[1] - 1):
        nats, later, now = (
            found.family.objective(model, asked_at(batch, place, changed_from=at), None).nats
            for at in (10**6, place + 1, place)
        )
        assert later == nats, place
        assert all(now[way] != nats[way] for way in nats), "what stands there is read"


def drawn(count: int, *, seed: int) -> list[str]:
    """Documents of three sentences, each of ten words that have nothing to do with one another."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(" ".join(rng.choice(WORDS, 10)) + " ." for _ in range(3)) for _ in range(count)
    ]


def least_nats(measure: str, negatives: int) -> float:
    """What a word costs at least: the log of their number; told from drawn ones, what it costs to know how often it is drawn, and no more."""
    others = negatives * (1 - 1 / len(WORDS))
    return (
        math.log(1 + others) + others * math.log(1 + 1 / others)
        if measure == "sampled"
        else math.log(len(WORDS))
    )


def share_of_words(batch: Batch, reader: Tokenizer) -> float:
    """Of all targets, those that are one of the words; the others, marks and full stops, can be foretold."""
    assert batch.targets_BT is not None
    own = np.concatenate([reader.encode(f"{WORDS[0]} {word}").ids for word in WORDS])
    targets = batch.targets_BT[batch.targets_BT != IGNORE_INDEX].numpy()
    return float(np.isin(targets, np.setdiff1d(own, reader.encode("").ids)).mean())


@pytest.mark.parametrize("name", tiny.TRAINED)
def test_words_that_were_drawn_by_lot_cannot_be_foretold(name: str) -> None:
    found = tiny.variant(name, **BLIND.get(name, {}))
    family = found.family
    assert isinstance(family, LanguageModelFamily)
    reader = train_tokenizer(
        drawn(200, seed=1), found.tokenizer, tokenizer_type=found.tokenizer_type, language="en"
    )
    learned, held = (
        family.batch_sampler(
            encode_corpus(drawn(400, seed=seed), reader), reader, found.pretrain, seed=1
        )
        for seed in (2, 3)
    )
    model = family.build(
        match_parameter_budget(
            family,
            found.architecture,
            vocab_size=reader.vocab_size,
            body_parameters=tiny.PARAMETERS,
        ),
        vocab_size=reader.vocab_size,
    )
    model.init_weights(torch.Generator().manual_seed(1))
    optimizer = build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for index in range(min(200, learned.set_epoch(0))):
        optimizer.zero_grad()
        family.objective(model, learned.get_batch(index), None).loss.backward()
        densify_gradients(optimizer)
        optimizer.step()
    nats: defaultdict[str, float] = defaultdict(float)
    least: defaultdict[str, float] = defaultdict(float)
    model.eval()
    for index in range(min(20, held.set_epoch(0))):
        out = family.objective(model, batch := held.get_batch(index), None)
        for measure in (
            own for own in out.target_counts if not own.startswith("next")
        ):  # of sentences
            nats[measure] += float(out.nats[measure])
            least[measure] += (
                out.target_counts[measure]
                * share_of_words(batch, reader)
                * least_nats(measure, getattr(found.pretrain, "num_negatives", 1))
            )
    assert nats
    for measure in nats:
        assert nats[measure] > 0.97 * least[measure], measure
        assert nats[measure] < 1.5 * least[measure], "and how often each stands there was learned"
