"""No language model sees what it has to predict.

Later positions must not change a prediction, and randomly drawn words must remain unpredictable.
"""

import dataclasses
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from lineage.networks.batch import IGNORE_INDEX, Batch
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.tokenizers.train import train_tokenizer
from lineage.training.budget import match_parameter_budget
from lineage.training.optimizers import build_adamw, build_param_groups, densify_gradients
from tests.helpers import tiny

# Few, so that a leaked word is learned soon.
WORDS = ("bade", "cove", "dime", "fuse", "gale", "hymn", "jolt", "kiln")
# By default these two see some of their targets: an autoencoder reads the text that it writes, and
# BERT leaves a tenth of its targets unmasked.
WITHOUT_VISIBLE_TARGETS = {
    "sa_lstm": {"architecture": {"objective": "language_model"}},
    "bert": {"pretrain": {"mask_replacement": {"mask": 1.0, "random": 0.0}}},
}


def predict_one_position(batch: Batch, position: int, *, changed_from: int) -> Batch:
    """Keep only the targets at one position, and change all words from `changed_from` on."""
    targets_BT = torch.full_like(batch.targets_BT, IGNORE_INDEX)
    targets_BT[:, position] = batch.targets_BT[:, position]
    changed: dict[str, Any] = {}
    for name in ("ids_BT", "word_rows_BT"):
        if (table := getattr(batch, name)) is not None:
            changed[name] = torch.cat(
                [table[:, :changed_from], table[:, changed_from:].roll(1, 0)], 1
            )
    return dataclasses.replace(batch, targets_BT=targets_BT, **changed)


@pytest.mark.parametrize("name", tiny.TRAINED)
def test_later_positions_never_change_a_prediction(name: str) -> None:
    config = tiny.model_config(name)
    model = tiny.model(name).eval()
    batch = tiny.batch(name, 2)
    if not torch.equal(batch.ids_BT[:, 1:], batch.targets_BT[:, :-1]):
        return  # masked or bidirectional: the test with random words covers these
    for position in range(batch.ids_BT.shape[1] - 1):
        batches = [
            predict_one_position(batch, position, changed_from=changed_from)
            for changed_from in (10**6, position + 1, position)
        ]
        nats, later_changed, target_changed = (
            config.family.objective(model, changed_batch, None).nats for changed_batch in batches
        )
        assert later_changed == nats, position
        assert all(target_changed[key] != nats[key] for key in nats), (
            "the word at this position is read"
        )


def random_documents(count: int, *, seed: int) -> list[str]:
    """Return documents of three sentences, each of ten independent random words."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(" ".join(rng.choice(WORDS, 10)) + " ." for _ in range(3)) for _ in range(count)
    ]


def minimum_nats(measure: str, negatives: int) -> float:
    """Return the lowest possible mean loss of a random word.

    With a full softmax it is the log of the number of words. With sampled negatives it is the loss
    of knowing only how often each word is drawn.
    """
    others = negatives * (1 - 1 / len(WORDS))
    if measure == "sampled":
        return math.log(1 + others) + others * math.log(1 + 1 / others)
    return math.log(len(WORDS))


def random_word_share(batch: Batch, tokenizer: Tokenizer) -> float:
    """Return the share of targets that are random words; all other targets are predictable."""
    word_ids = np.concatenate([tokenizer.encode(f"{WORDS[0]} {word}").ids for word in WORDS])
    targets = batch.targets_BT[batch.targets_BT != IGNORE_INDEX].numpy()
    return float(np.isin(targets, np.setdiff1d(word_ids, tokenizer.encode("").ids)).mean())


@pytest.mark.parametrize(
    "name",
    # The other modern ones have the objectives of gpt and bert.
    [
        *(name for name in tiny.TRAINED if name not in ("gpt_modern", "bert_modern")),
        *tiny.mark_slow(["gpt_modern", "bert_modern"]),
    ],
)
def test_random_words_stay_unpredictable_after_training(name: str) -> None:
    config = tiny.model_config(name, **WITHOUT_VISIBLE_TARGETS.get(name, {}))
    family = config.family
    tokenizer = train_tokenizer(
        random_documents(200, seed=1),
        config.tokenizer,
        tokenizer_type=config.tokenizer_type,
        language="en",
    )
    train_sampler, validation_sampler = (
        family.batch_sampler(
            encode_corpus(random_documents(400, seed=seed), tokenizer),
            tokenizer,
            config.pretrain,
            seed=1,
        )
        for seed in (2, 3)
    )
    model = family.build(
        match_parameter_budget(
            family,
            config.architecture,
            vocab_size=tokenizer.vocab_size,
            body_parameters=tiny.BODY_PARAMETERS,
        ),
        vocab_size=tokenizer.vocab_size,
    )
    model.init_weights(torch.Generator().manual_seed(1))
    optimizer = build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for index in range(min(200, train_sampler.set_epoch(0))):
        optimizer.zero_grad()
        family.objective(model, train_sampler.get_batch(index), None).loss.backward()
        densify_gradients(optimizer)
        optimizer.step()
    nats: defaultdict[str, float] = defaultdict(float)
    minimum: defaultdict[str, float] = defaultdict(float)
    model.eval()
    for index in range(min(20, validation_sampler.set_epoch(0))):
        batch = validation_sampler.get_batch(index)
        output = family.objective(model, batch, None)
        for measure in output.target_counts:
            if measure.startswith("next"):  # next-sentence prediction
                continue
            nats[measure] += float(output.nats[measure])
            minimum[measure] += (
                output.target_counts[measure]
                * random_word_share(batch, tokenizer)
                * minimum_nats(measure, getattr(config.pretrain, "num_negatives", 1))
            )
    assert nats
    for measure in nats:
        assert nats[measure] > 0.97 * minimum[measure], measure
        assert nats[measure] < 1.5 * minimum[measure], "the model learned the word frequencies"
