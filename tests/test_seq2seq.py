"""Two language models in one training each read their own language and learn as if alone."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineage.config.params import read_params
from lineage.config.resolve import fill_in_defaults
from lineage.errors import InputError
from lineage.families.seq2seq import TwoLanguageBpttBatches, one_language_lm_loss
from lineage.study.checks import check_study
from lineage.study.models import parse_model_config
from tests.helpers import tiny

ROOT = Path(__file__).parent.parent


def test_each_language_model_reads_exactly_the_documents_of_its_language() -> None:
    corpus = tiny.two_languages()
    settings = tiny.bilingual_settings(batch_size=1)
    sampler = TwoLanguageBpttBatches(corpus, tiny.tokenizer("seq2seq"), settings, seed=1)
    ids_by_model: dict[int, list[int]] = {0: [], 1: []}
    for index in range(sampler.set_epoch(0)):
        batch = sampler.get_batch(index)
        ids_by_model[batch.lm_index] += batch.ids_BT.flatten().tolist()
    documents = [
        corpus.ids[start:end].tolist()
        for start, end in zip(corpus.document_starts[:-1], corpus.document_starts[1:], strict=True)
    ]
    for lm_index in (0, 1):
        expected_ids = sorted(piece for document in documents[lm_index::2] for piece in document)
        assert 0 <= len(expected_ids) - len(ids_by_model[lm_index]) <= 1 and set(
            ids_by_model[lm_index]
        ) <= set(expected_ids), "the last id is only a target"
    xx_corpus = corpus.select_language("xx")
    assert xx_corpus.text_bytes + corpus.select_language("en").text_bytes == corpus.text_bytes
    assert set(xx_corpus.sentence_starts) >= set(xx_corpus.document_starts)
    assert (np.diff(xx_corpus.sentence_starts) > 0).all()


def test_a_step_trains_only_the_language_model_of_its_batch() -> None:
    model = tiny.model("seq2seq")
    sampler = TwoLanguageBpttBatches(
        tiny.two_languages(), tiny.tokenizer("seq2seq"), tiny.bilingual_settings(), seed=1
    )
    sampler.set_epoch(0)
    batches = [sampler.get_batch(index) for index in range(6)]
    assert {batch.lm_index for batch in batches} == {0, 1}
    state = None
    for batch in batches:
        model.zero_grad()
        output = one_language_lm_loss(model, batch, state)  # type: ignore[arg-type]
        output.loss.backward()
        trained_models = {
            name.split(".")[0]
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        }
        assert trained_models == {("source", "target")[batch.lm_index]}
        if state is not None:
            assert all(
                torch.equal(new_tensor, old_tensor)
                for new_tensor, old_tensor in zip(
                    output.recurrent_state[1 - batch.lm_index],
                    state[1 - batch.lm_index],
                    strict=True,
                )
            ), "the state of the other model stays the same"
        state = output.recurrent_state


def test_without_languages_both_models_read_all_text_or_the_source_model_does() -> None:
    """Both read it if pretraining sets no languages; else it belongs to the source language."""
    tokenizer = tiny.tokenizer("seq2seq")
    corpus = tiny.corpus("seq2seq")
    for settings, lm_indices in (
        (tiny.model_config("seq2seq").pretrain, {0, 1}),
        (tiny.bilingual_settings(), {0}),
    ):
        sampler = TwoLanguageBpttBatches(corpus, tokenizer, settings, seed=1)
        assert {
            sampler.get_batch(index).lm_index for index in range(sampler.set_epoch(0))
        } == lm_indices


def test_missing_and_unknown_languages_are_refused() -> None:
    with pytest.raises(InputError, match="no document in 'fr'"):
        TwoLanguageBpttBatches(
            tiny.two_languages(),
            tiny.tokenizer("seq2seq"),
            tiny.bilingual_settings(target_language="fr"),
            seed=1,
        )
    params = read_params(ROOT / "params.yaml")
    general = params.corpora["general"]
    german = dataclasses.replace(general.sources[0], language="de")
    mixed = dataclasses.replace(general, sources=(*general.sources, german))
    grid = dataclasses.replace(params.grid, models=("seq2seq",), adapt_models=(), adapt_tasks=())

    def check(**pretrain: Any) -> None:
        block = fill_in_defaults("seq2seq", {})
        models = {"seq2seq": {**block, "pretrain": {**block["pretrain"], **pretrain}}}
        check_study(
            dataclasses.replace(params, corpora={"general": mixed}, grid=grid, models=models)
        )

    check(source_language="en", target_language="de")
    with pytest.raises(InputError, match="the corpus has text in de, en; set 'source_language'"):
        check()
    with pytest.raises(InputError, match="no source of the corpus 'general' is in 'fr'"):
        check(source_language="en", target_language="fr")
    with pytest.raises(InputError, match="name both source_language and target_language"):
        check(source_language="en")
    block = params.models["gpt"]
    with_translation = {**block, "evaluate": {**block["evaluate"], "translation": {}}}
    with pytest.raises(InputError, match="gpt has no decoder"):
        parse_model_config("gpt", with_translation, "models.gpt")
