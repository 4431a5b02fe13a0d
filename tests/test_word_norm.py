"""`evaluate.tuned.word_norm`: a new head over words reads vectors of one size, however small the encoder makes them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lineage.family import Encoder
from lineage.transfer.answers import Tags
from lineage.transfer.reading import collate, read_items
from lineage.transfer.settings import TunedSettings
from lineage.transfer.tuning import Tuned, fine_tune, predict
from tests import tiny
from tests.test_networks import CASES, WORDS

TUNED = TunedSettings(
    epochs=10, batch=16, rate=0.004, layer_decay=1.0, cut_share=0.1, ratio=32.0, unfreeze_share=0.0, weight_decay=0.0, dropout=0.0, clip_norm=1.0,
    word_norm=True,
)  # fmt: skip


def shrunk(encoder: Encoder, factor: float) -> Encoder:
    """The encoder with a smaller top layer."""
    whole = encoder.encode
    encoder.encode = lambda batch: (*(layers := whole(batch))[:-1], layers[-1] * factor)  # type: ignore[method-assign]
    return encoder


ASKED = ("tags", "sense")  # of words; texts are read by families' own heads, of which ULMFiT's has a norm that has seen nothing yet


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in ("ulmfit", "elmo", "bert", "word2vec") for case in CASES if name != "ulmfit" or case in ASKED]
)
def test_words_are_read_at_one_size_and_everything_else_as_it_is(name: str, case: str, norms: bool) -> None:
    make, answer = CASES[case]
    settings = replace(TUNED, word_norm=norms)
    items = read_items(make(6), tiny.reader(name), limit=None, language="en")
    batch = collate(tiny.reader(name), items)

    def scores(factor: float) -> torch.Tensor:
        model = Tuned(shrunk(tiny.model(name), factor), answer, settings, seed=1, like=items[0]).eval()
        with torch.no_grad():
            return model(batch)

    whole, small = scores(1.0), scores(1 / 16)
    assert torch.allclose(whole, small, atol=1e-4) == (norms and case in ASKED), "without it, and of texts, the size is read too"
    vectors = Tuned(tiny.model(name), answer, settings, seed=1, like=items[0]).eval()
    with torch.no_grad():
        sizes = vectors.asked(vectors.vectors(batch)[0], batch).square().mean(-1).sqrt()
    assert torch.allclose(sizes, torch.ones_like(sizes), atol=1e-3) == (norms and case in ASKED)


@pytest.mark.parametrize("norms", [True, False])
def test_an_encoder_of_small_vectors_learns_tags_under_it(norms: bool) -> None:
    """As an untrained AWD-LSTM's are. Without it every word has one tag."""
    rng, answer = np.random.default_rng(3), Tags(("a", "b", "c"))
    table = CASES["tags"][0](64)
    table["tokens"] = [[str(word) for word in rng.choice(WORDS, len(tokens))] for tokens in table["tokens"]]
    table["label"] = [[WORDS.index(word) % 3 for word in tokens] for tokens in table["tokens"]]
    items = read_items(table, tiny.reader("ulmfit"), limit=None, language="en")
    encoder = shrunk(tiny.model("ulmfit", model=tiny.dropping("ulmfit", 0.0)), 1 / 64)
    gold = answer.gold(table)
    model = fine_tune(encoder, tiny.reader("ulmfit"), items, gold, answer, replace(TUNED, word_norm=norms, epochs=20), seed=1, precision="fp32")
    said = predict(model, tiny.reader("ulmfit"), items, precision="fp32").argmax(-1)
    assert ((said == gold).mean() > 0.9) == norms and (len({*said}) > 1) == norms


def test_it_can_be_a_trial_and_stands_in_the_recipe() -> None:
    settings = tiny.variant("elmo", evaluate={"tuned": {"trials": [{"rate": 0.02}, {"rate": 0.02, "word_norm": True}]}}).evaluate.tuned
    assert settings.tried(1).word_norm and not settings.tried(0).word_norm
    assert settings.trial_words(1) == "trial 1 (of 2, from 0): rate 0.02, word_norm"
    assert "word norm" in settings.tried(1).recipe and "word norm" not in settings.recipe


def test_ulmfit_has_it_as_shipped_and_no_other_family() -> None:
    assert [name for name in (*tiny.TRAINED, *tiny.STATIC) if tiny.variant(name).evaluate.tuned.word_norm] == ["ulmfit"]
