"""Two language models in one training: each reads the documents of its language, and learns as if alone."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.consistency import check_study
from lineage.errors import InputError
from lineage.families.seq2seq import TwoLanguageLanes, either_lm
from lineage.params import read_params
from lineage.study import load_variant
from tests import tiny

ROOT = Path(__file__).parent.parent


def test_a_language_model_reads_the_documents_of_its_language_all_of_them_and_no_others() -> None:
    tokens, found = tiny.two_languages(), tiny.bilingual(batch=1)
    stream = TwoLanguageLanes(tokens, tiny.reader("seq2seq"), found, seed=1)
    read: dict[int, list[int]] = {0: [], 1: []}
    for number in range(stream.start(0)):
        batch = stream.batch(number)
        read[batch.side] += batch.ids_BT.flatten().tolist()
    documents = [tokens.ids[a:b].tolist() for a, b in zip(tokens.documents[:-1], tokens.documents[1:], strict=True)]
    for side in (0, 1):
        own = sorted(piece for document in documents[side::2] for piece in document)
        assert 0 <= len(own) - len(read[side]) <= 1 and set(read[side]) <= set(own), "but for the last, which is only a target"
    part = tokens.part("xx")
    assert part.text_bytes + tokens.part("en").text_bytes == tokens.text_bytes
    assert set(part.sentences) >= set(part.documents) and (np.diff(part.sentences) > 0).all()


def test_a_step_trains_the_language_model_of_its_batch_and_leaves_the_other_as_it_is() -> None:
    model, stream = tiny.model("seq2seq"), TwoLanguageLanes(tiny.two_languages(), tiny.reader("seq2seq"), tiny.bilingual(), seed=1)
    stream.start(0)
    batches = [stream.batch(number) for number in range(6)]
    assert {batch.side for batch in batches} == {0, 1}
    carry = None
    for batch in batches:
        model.zero_grad()
        out = either_lm(model, batch, carry)  # type: ignore[arg-type]
        out.loss.backward()
        learned = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
        assert learned == {("source", "target")[batch.side]}
        if carry is not None:
            assert all(torch.equal(a, b) for a, b in zip(out.carry[1 - batch.side], carry[1 - batch.side], strict=True)), "and its state"
        carry = out.carry


def test_where_there_is_one_language_both_models_read_it_and_a_tasks_text_of_none_is_the_sources() -> None:
    reader, one = tiny.reader("seq2seq"), tiny.tokens("seq2seq")
    for settings, sides in ((tiny.variant("seq2seq").pretrain, {0, 1}), (tiny.bilingual(), {0})):
        stream = TwoLanguageLanes(one, reader, settings, seed=1)
        assert {stream.batch(number).side for number in range(stream.start(0))} == sides


def test_languages_are_checked_before_anything_runs() -> None:
    with pytest.raises(InputError, match="no document in 'fr'"):
        TwoLanguageLanes(tiny.two_languages(), tiny.reader("seq2seq"), tiny.bilingual(target="fr"), seed=1)
    shipped = read_params(ROOT / "params.yaml")
    general = shipped.corpora["general"]
    second = dataclasses.replace(general.sources[0], language="de")
    mixed = dataclasses.replace(general, sources=(*general.sources, second))
    grid = dataclasses.replace(shipped.grid, families=("seq2seq",), adapt_families=(), adapt_tasks=())

    def check(**pretrain: Any) -> None:
        block = shipped.models["seq2seq"]
        models = {"seq2seq": {**block, "pretrain": {**block["pretrain"], **pretrain}}}
        check_study(dataclasses.replace(shipped, corpora={"general": mixed}, grid=grid, models=models))

    check(source="en", target="de")
    with pytest.raises(InputError, match="holds de, en; say which"):
        check()
    with pytest.raises(InputError, match="no source of the corpus 'general' is in 'fr'"):
        check(source="en", target="fr")
    with pytest.raises(InputError, match="name both source and target"):
        check(source="en")
    block = shipped.models["gpt"]
    translating = {**block, "evaluate": {**block["evaluate"], "translate": shipped.models["seq2seq"]["evaluate"]["translate"]}}
    with pytest.raises(InputError, match="gpt has no decoder"):
        load_variant("gpt", translating, "models.gpt")
