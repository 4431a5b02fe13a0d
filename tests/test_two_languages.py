"""Two language models in one training: each reads the documents of its language, and learns as if alone."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.config.checks import check_study
from lineage.config.params import read_params
from lineage.config.resolve import fill_in_defaults
from lineage.config.study import parse_model_config
from lineage.errors import InputError
from lineage.models.seq2seq import TwoLanguageBpttBatches, one_language_lm_loss
from tests import tiny

ROOT = Path(__file__).parent.parent


def test_a_language_model_reads_the_documents_of_its_language_all_of_them_and_no_others() -> None:
    tokens, found = tiny.two_languages(), tiny.bilingual(batch_size=1)
    stream = TwoLanguageBpttBatches(tokens, tiny.reader("seq2seq"), found, seed=1)
    read: dict[int, list[int]] = {0: [], 1: []}
    for number in range(stream.set_epoch(0)):
        batch = stream.get_batch(number)
        read[batch.lm_index] += batch.ids_BT.flatten().tolist()
    documents = [
        tokens.ids[a:b].tolist()
        for a, b in zip(tokens.document_starts[:-1], tokens.document_starts[1:], strict=True)
    ]
    for side in (0, 1):
        own = sorted(piece for document in documents[side::2] for piece in document)
        assert 0 <= len(own) - len(read[side]) <= 1 and set(read[side]) <= set(own), (
            "but for the last, which is only a target"
        )
    part = tokens.select_language("xx")
    assert part.text_bytes + tokens.select_language("en").text_bytes == tokens.text_bytes
    assert (
        set(part.sentence_starts) >= set(part.document_starts)
        and (np.diff(part.sentence_starts) > 0).all()
    )


def test_a_step_trains_the_language_model_of_its_batch_and_leaves_the_other_as_it_is() -> None:
    model, stream = (
        tiny.model("seq2seq"),
        TwoLanguageBpttBatches(
            tiny.two_languages(), tiny.reader("seq2seq"), tiny.bilingual(), seed=1
        ),
    )
    stream.set_epoch(0)
    batches = [stream.get_batch(number) for number in range(6)]
    assert {batch.lm_index for batch in batches} == {0, 1}
    carry = None
    for batch in batches:
        model.zero_grad()
        out = one_language_lm_loss(model, batch, carry)  # type: ignore[arg-type]
        out.loss.backward()
        learned = {
            name.split(".")[0]
            for name, p in model.named_parameters()
            if p.grad is not None and bool(p.grad.abs().sum() > 0)
        }
        assert learned == {("source", "target")[batch.lm_index]}
        if carry is not None:
            assert all(
                torch.equal(a, b)
                for a, b in zip(
                    out.recurrent_state[1 - batch.lm_index], carry[1 - batch.lm_index], strict=True
                )
            ), "and its state"
        carry = out.recurrent_state


def test_where_there_is_one_language_both_models_read_it_and_a_tasks_text_of_none_is_the_sources() -> (
    None
):
    reader, one = tiny.reader("seq2seq"), tiny.tokens("seq2seq")
    for settings, sides in ((tiny.variant("seq2seq").pretrain, {0, 1}), (tiny.bilingual(), {0})):
        stream = TwoLanguageBpttBatches(one, reader, settings, seed=1)
        assert {stream.get_batch(number).lm_index for number in range(stream.set_epoch(0))} == sides


def test_languages_are_checked_before_anything_runs() -> None:
    with pytest.raises(InputError, match="no document in 'fr'"):
        TwoLanguageBpttBatches(
            tiny.two_languages(),
            tiny.reader("seq2seq"),
            tiny.bilingual(target_language="fr"),
            seed=1,
        )
    shipped = read_params(ROOT / "params.yaml")
    general = shipped.corpora["general"]
    second = dataclasses.replace(general.sources[0], language="de")
    mixed = dataclasses.replace(general, sources=(*general.sources, second))
    grid = dataclasses.replace(shipped.grid, models=("seq2seq",), adapt_models=(), adapt_tasks=())

    def check(**pretrain: Any) -> None:
        block = fill_in_defaults("seq2seq", {})
        models = {"seq2seq": {**block, "pretrain": {**block["pretrain"], **pretrain}}}
        check_study(
            dataclasses.replace(shipped, corpora={"general": mixed}, grid=grid, models=models)
        )

    check(source_language="en", target_language="de")
    with pytest.raises(InputError, match="the corpus has text in de, en; set 'source_language'"):
        check()
    with pytest.raises(InputError, match="no source of the corpus 'general' is in 'fr'"):
        check(source_language="en", target_language="fr")
    with pytest.raises(InputError, match="name both source_language and target_language"):
        check(source_language="en")
    block = shipped.models["gpt"]
    translating = {
        **block,
        "evaluate": {
            **block["evaluate"],
            "translation": {},
        },
    }
    with pytest.raises(InputError, match="gpt has no decoder"):
        parse_model_config("gpt", translating, "models.gpt")
