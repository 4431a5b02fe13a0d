"""Adaptation to a target's own text: a pretrained model goes on with its objective there (Howard and Ruder 2018, section 3.2)."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from lineage.artifacts import manifest, read_json, read_table
from lineage.checkpoint import Checkpoint
from lineage.errors import CellError
from lineage.family import Encoder
from lineage.kind import load_kind
from lineage.params import Adapt, Params
from lineage.pretraining import Conditions, Outcome, Part, as_measured, held_measures, trained
from lineage.randomness import generator, seed_of
from lineage.text.language import byte_count
from lineage.text.tokenization import Reader
from lineage.text.tokens import encode_corpus
from lineage.training.curve import Curve
from lineage.training.train import Course, Draws, Run
from lineage.transfer.settings import AdaptSettings


def target_texts(folder: Path, how: Adapt, *, seed: int) -> tuple[list[str], list[str]]:
    """The target's text for adaptation, and what is held out: of its unlabelled texts, else of those of its training items, in the order of the data.

    No more than the budget reads, and its share of that, since a target may have a thousand times as much: which texts, the seed says.
    """
    manifest(folder, "task")
    facts = read_json(folder / "task.json")
    path = folder / "unlabelled.parquet"
    if path.is_file():
        texts = read_table(path)["text"].tolist()
    else:
        texts = [*itertools.chain(*load_kind(facts["kind"]).texts(read_table(folder / "train.parquet"), facts["language"]))]
    texts = list(dict.fromkeys(texts))  # a text that is there twice must not stand on both sides
    assert len(texts) >= 2, "the sources stage refuses less"
    order = generator("held", seed, facts["name"]).permutation(len(texts))
    count = min(max(1, round(how.held_share * len(texts))), len(texts) - 1)
    parts = (order[count:], how.text_bytes), (order[:count], how.held_share * how.text_bytes)
    learned, held = ([texts[i] for i in np.sort(_as_many(texts, some, most))] for some, most in parts)
    return learned, held


def _as_many(texts: Sequence[str], order: np.ndarray, most_bytes: float) -> np.ndarray:
    """The first of the order that have so many bytes together, the one with the last of them included."""
    before = np.cumsum([0, *(byte_count(texts[i]) for i in order[:-1])])
    return order[before < most_bytes]


def new_words(texts: Sequence[str], reader: Reader, *, most: int, minimum_count: int) -> list[str]:
    """The most frequent words of a target's texts that the vocabulary lacks; equal counts in alphabetical order."""
    unknown, counts = reader.marks["<unk>"], Counter[str]()
    for cut in reader.pieces(texts):
        counts.update(reader.written(cut.text, *span) for span in cut.own[cut.ids == unknown])
    return sorted((word for word, count in counts.items() if count >= minimum_count), key=lambda word: (-counts[word], word))[:most]


def adapt(
    checkpoint: Checkpoint,
    settings: AdaptSettings,
    texts: list[str],
    held_texts: list[str],
    params: Params,
    conditions: Conditions,
    *,
    failed: str = "",
) -> tuple[Outcome, dict[str, dict[str, float]]]:
    """Go on with the family's own objective on the target's text (Howard and Ruder 2018, section 3.2): discriminative rates, slanted triangle.

    Gives the outcome, and the measures on held target text before and after. A model whose pretraining `failed` is not adapted.
    """
    if failed:
        return Outcome(checkpoint.build(conditions.device, trained=False), Curve(), {"text_bytes": 0}, "failed", failed), {"before": {}, "after": {}}
    family = checkpoint.family
    assert family.stream is not None and family.objective is not None, "the study was checked"
    tokens, target = (encode_corpus(some, checkpoint.reader) for some in (texts, held_texts))
    stream = family.stream(tokens, checkpoint.reader, checkpoint.pretrain, seed=seed_of("adapt", checkpoint.seed))
    held = family.stream(target, checkpoint.reader, as_measured(checkpoint.pretrain), seed=0)
    model = checkpoint.build(conditions.device, body_dropout=settings.body_dropout)
    run = Run(model, settings.optimizer(_with_heads(model)), Draws(seed_of("adapt draws", checkpoint.seed)))
    text_bytes = min(params.adapt.text_bytes, params.adapt.max_passes * tokens.text_bytes)
    course = Course(
        progress=lambda spent: spent.text_bytes / text_bytes,
        rate=settings.course(),
        highest=settings.rate,
        clip_norm=settings.clip_norm,
        precision=params.precision,
        accumulation=checkpoint.pretrain.accumulation,
        clipped=model.independent(),
    )
    try:
        before = held_measures(model, family.objective, held, precision=params.precision)
    except CellError as error:
        return Outcome(model, Curve(), {"text_bytes": 0}, "failed", str(error)), {"before": {}, "after": {}}
    outcome = trained(run, checkpoint, [Part(stream, held)], course, conditions, corpus_bytes=tokens.text_bytes)
    after = held_measures(model, family.objective, held, precision=params.precision) if outcome.status == "ok" else {}
    return outcome, {"before": before, "after": after}


def _with_heads(model: Encoder) -> list[list[nn.Parameter]]:
    """The layers' groups; the heads of pretraining learn with the top layer, at the full rate, also where their weights are those of the embedding.

    Howard and Ruder 2018, section 3.2, leave open whose layer a tied table is. In their scripts (imdb_scripts, finetune_lm.py) the last LSTM has the
    full rate, and table and softmax half of it; in fastai since version 1 they are a group above that LSTM, which then learns more slowly.
    """
    tied = {id(p) for p in model.tied()}
    layers = [[p for p in layer if id(p) not in tied] for layer in model.layer_groups()]
    inside = {id(p) for layer in layers for p in layer}
    return [*layers[:-1], [*layers[-1], *(p for p in model.parameters() if id(p) not in inside)]]
