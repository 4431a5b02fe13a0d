"""A model under test: pretrained, adapted, or its untrained twin, on one task, and the ways in which it is read.

Shapes: M answers that are asked for, L layers, D width, K outputs, V words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import nn

from lineage.data.task_data import SplitItems, TaskData
from lineage.errors import EvaluationError
from lineage.evaluation.answers import Answer
from lineage.evaluation.bilstm_probe import (
    CachedFeatures,
    cache_features,
    fit_bilstm_probe,
    predict_bilstm_probe,
)
from lineage.evaluation.encoding import EncodedItem, answer_rows, encode_items
from lineage.evaluation.finetuning import finetune, predict_finetuned
from lineage.evaluation.joined import add_static_vectors, concatenate_static
from lineage.evaluation.linear_probe import extract_features, fit_linear_probe, select_layers
from lineage.evaluation.settings import (
    BilstmProbeSettings,
    EvaluateSettings,
    FinetuneSettings,
    HyperparameterTrials,
    LinearProbeSettings,
)
from lineage.evaluation.translator import TranslationSettings
from lineage.models.base import Encoder, Public, Trained, rescale_embeddings
from lineage.models.checkpoint import Checkpoint
from lineage.results import JOINED_FAMILY, joined_system_name
from lineage.tasks.base import load_kind

Init = Literal["pretrained", "adapted", "random"]
NON_WORD_TOKENS = (
    "\u2581",
    "xxmaj",
    "xxup",
    "xxrep",
    "xxwrep",
)  # pieces that say nothing of a word: SentencePiece's space, fastai's marks of case


@dataclass(frozen=True)
class EvalRun:
    """What tells one training of a reader from another within a stage."""

    init: Init
    transfer: Literal["frozen", "finetuned", "zero_shot"]
    label_count: int | Literal["all"] | None = None
    finetune_seed: int | None = None
    head: Literal["linear", "bilstm"] = "linear"  # of frozen features
    fold: int | None = None

    @property
    def selection_key(self) -> "EvalRun":
        """What shares the choice among an arm's trials: all seeds. A fold chooses for itself, since its validation items are test items of others."""
        return self if self.fold is not None else replace(self, finetune_seed=None)

    @property
    def settings_block(self) -> str:
        """The block of `evaluate` with the settings of its way of reading."""
        return (
            "finetune"
            if self.transfer == "finetuned"
            else "bilstm_probe"
            if self.head == "bilstm"
            else "linear_probe"
        )


@dataclass(frozen=True)
class EvalContext:
    """What all cells of a stage have in common."""

    checkpoint: Checkpoint
    task: TaskData
    settings: EvaluateSettings
    pretrain_seed: int
    text_bytes: int | None  # that the trained model has read; none: nobody knows, of a public one
    precision: str
    device: torch.device
    tokens_dir: Path | None = (
        None  # the corpus as the model's ids, for families that go on with it in tuning
    )
    failure_reason: str = (
        ""  # why the trained model is none; its untrained twin is evaluated all the same
    )
    static_context: "EvalContext | None" = None  # of the model whose static vectors, always trained ones, stand beside this one's frozen features

    @property
    def model_columns(self) -> dict[str, str]:
        """The columns `variant` and `family` of the rows."""
        own, other = self.checkpoint, self.static_context
        if other is None:
            return {"model": own.model_name, "family": own.family.name}
        return {
            "model": joined_system_name(own.model_name, other.checkpoint.model_name),
            "family": JOINED_FAMILY,
        }

    def text_bytes_read(self, init: Init) -> int | None:
        """The text of everything trained in a model; none where nobody knows."""
        both = [
            0 if init == "random" else self.text_bytes,
            self.static_context.text_bytes if self.static_context else 0,
        ]
        known = [one for one in both if one is not None]
        return sum(known) if len(known) == len(both) else None

    def missing_reason(self, init: Init) -> str:
        """Why there is no such model to be read; nothing where there is one."""
        if self.static_context is not None and self.static_context.failure_reason:
            return (
                f"{self.static_context.checkpoint.model_name}: {self.static_context.failure_reason}"
            )
        return "" if init == "random" else self.failure_reason

    @property
    def max_input_positions(self) -> int | None:
        """What the model can read, in positions: those that its training reached. The text was cut to max_tokens words before, for all alike."""
        positions: int | None = getattr(self.checkpoint.architecture, "max_positions", None)
        whole = positions is None or isinstance(
            self.checkpoint.family, Public
        )  # a public one's training reached all that it has
        return positions if whole else min(positions, self.checkpoint.pretrain.seq_len)

    def truncated_share(self, table: str) -> float:
        """The share of a table's items that had to be cut to what the model can read."""
        return (
            float(np.mean([item.truncated for item in self.items[table]]))
            if self.max_input_positions
            else 0.0
        )

    def count_unreadable_words(self, table: str) -> int:
        """How many words that a table's items ask about the model cannot read."""
        return (
            sum(item.num_uncovered_words for item in self.items[table])
            if {"tokens", "context"} & {*self.task.splits[table]}
            else 0
        )

    def unknown_token_share(self, table: str) -> float:
        """The share of the tokens of a table's texts that the model reads as its one mark of what it does not know: 0 where it spells."""
        tokenizer, facts = self.checkpoint.tokenizer, self.task.info
        texts = chain(
            *load_kind(facts["kind"]).extract_texts(self.task.splits[table], facts["language"])
        )
        ids = np.concatenate([cut.ids for cut in tokenizer.tokenize([*texts])])
        with torch.device("meta"):
            spells = (
                tokenizer.unk_token_id is None
                or self.checkpoint.family.build(
                    self.checkpoint.architecture, vocab_size=tokenizer.vocab_size
                ).handles_oov
            )
        return 0.0 if spells or not len(ids) else float(np.mean(ids == tokenizer.unk_token_id))

    @property
    def translate_settings(self) -> TranslationSettings | None:
        """How a translation is learned, where the task is one and the family can."""
        return self.settings.translation if self.task.info["kind"] == "translation" else None

    @cached_property
    def items(self) -> dict[str, list[EncodedItem]]:
        """Each table's items as the family reads them."""
        item_options: dict[str, Any] = {
            "language": self.task.info["language"],
            "symmetric": self.task.info.get("symmetric", False),
        }
        found = {
            name: encode_items(
                table,
                self.checkpoint.tokenizer,
                max_length=self.max_input_positions,
                **item_options,
            )
            for name, table in self.task.splits.items()
        }
        scored = [name for name in found if name != "train" or self.task.info.get("folds")]
        return found | {
            order: keep_one_order(found[name], place)
            for name in scored
            for place, order in enumerate(self.order_names(name))
        }

    def order_names(self, table: str) -> list[str]:
        """The names of a table's items as read in each order alone, where they are read in both."""
        return (
            [f"{table}, order {place}" for place in (0, 1)]
            if self.task.info.get("symmetric")
            else []
        )


def keep_one_order(items: Sequence[EncodedItem], order: int) -> list[EncodedItem]:
    """Items that are read in both orders, read twice in one of them: for a reader that has learned from sums of two vectors."""
    twice = [(len(item.encodings), item.encodings[order], item.texts[order]) for item in items]
    return [
        EncodedItem(reading, other_encodings=(reading,) * (count - 1), texts=(texts,) * count)
        for count, reading, texts in twice
    ]


class EncoderUnderTest:
    """One model under test; its frozen features are computed when they are first asked for."""

    def __init__(self, context: EvalContext, init: Init) -> None:
        self.context, self.init = context, init

    def build_encoder(self, finetuned_settings: FinetuneSettings | None = None) -> Encoder:
        """The model anew, so that one cell's tuning leaves no trace in another; to be tuned with the dropouts of tuning, and its size of tables."""
        checkpoint, device, trained = (
            self.context.checkpoint,
            self.context.device,
            self.init != "random",
        )
        model = checkpoint.build(
            device,
            load_weights=trained,
            body_dropout=finetuned_settings.body_dropout if finetuned_settings else None,
        )
        if finetuned_settings and finetuned_settings.rescale_embeddings and trained:
            rescale_embeddings(model, checkpoint.build(device, load_weights=False))
        return model

    def compute_layers(self) -> dict[str, np.ndarray]:
        """Each table's (N, L, D), of all layers and of this model alone."""
        model, context = self.build_encoder(), self.context
        return {
            s: extract_features(
                model, context.checkpoint.tokenizer, items, precision=context.precision
            )
            for s, items in context.items.items()
        }

    @cached_property
    def static_features(self) -> dict[str, np.ndarray]:
        """Each table's (N, 1, S) of the static vectors that stand beside the features, trained ones beside an untrained twin too; or none."""
        return (
            {}
            if self.context.static_context is None
            else EncoderUnderTest(self.context.static_context, "pretrained").compute_layers()
        )

    @cached_property
    def features(self) -> dict[str, np.ndarray]:
        """Each table's (N, L, D) of the layers that are read, with static vectors behind them where there are any."""
        found = {
            name: select_layers(layers, self.context.settings.linear_probe)
            for name, layers in self.compute_layers().items()
        }
        return found | {
            name: concatenate_static(found[name], static)
            for name, static in self.static_features.items()
        }

    @cached_property
    def cached_features(self) -> dict[str, CachedFeatures]:
        """Each table's items with the layers that are read at every position, and static vectors behind them where there are any."""
        model, context, options = (
            self.build_encoder(),
            self.context,
            {"precision": self.context.precision},
        )
        bilstm_settings = context.settings.bilstm_probe
        found = {
            name: cache_features(
                model, context.checkpoint.tokenizer, items, **options
            ).select_layers(bilstm_settings)
            for name, items in context.items.items()
        }
        if context.static_context is None:
            return found
        other = EncoderUnderTest(context.static_context, "pretrained").build_encoder()
        return {
            name: add_static_vectors(
                items, other, context.static_context.checkpoint.tokenizer, **options
            )
            for name, items in found.items()
        }

    def answer_features(self, table: str, rows_N: np.ndarray) -> np.ndarray:
        """(M, L, D): the frozen features of some items' answers."""
        answers, features = answer_rows(self.context.items[table]), self.features[table]
        return (
            features
            if len(rows_N) == len(answers)
            else features[np.concatenate([answers[i] for i in rows_N])]
        )

    def embed_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(V, L, D): each word's layers, read alone as a text, and (V,): whether the model knows it.

        It does not where all that it reads is the mark of an unknown word and it does not spell, or where all of its vectors are zero.
        """
        context, model = self.context, self.build_encoder()
        tokenizer, language = context.checkpoint.tokenizer, context.task.info["language"]
        items = encode_items(
            pd.DataFrame({"text": list(words)}),
            tokenizer,
            max_length=context.max_input_positions,
            language=language,
        )
        vectors_VLD = extract_features(model, tokenizer, items, precision=context.precision)
        if not np.isfinite(vectors_VLD).all():
            raise EvaluationError("the vectors of the task's words are not finite; lower the rate")
        ids_by_word = [
            item.encoded.ids[item.encoded.offsets[:, 1] > item.encoded.offsets[:, 0]]
            for item in items
        ]
        uninformative_ids = [
            number
            for number in (
                tokenizer.unk_token_id,
                *map(tokenizer.backend_tokenizer.token_to_id, NON_WORD_TOKENS),
            )
            if number is not None
        ]
        known_V = np.array(
            [model.handles_oov or not np.isin(ids, uninformative_ids).all() for ids in ids_by_word]
        )
        return vectors_VLD, known_V & (vectors_VLD != 0).any((1, 2))


HeadOutput = tuple[
    np.ndarray, np.ndarray | None
]  # (M, K) what is made of the scores, and the (M,) best where that is not the highest


@dataclass(frozen=True)
class FittedHead:
    """A reader that has learned: what it says of some items, and its network, where all of a network was tuned."""

    predict: Callable[[SplitItems], HeadOutput]
    model: nn.Module | None = None


def settings_of_run(context: EvalContext, run: EvalRun) -> HyperparameterTrials:
    """The settings of a cell's way of reading."""
    return context.settings.methods[run.settings_block]


def is_requested(context: EvalContext, run: EvalRun) -> bool:
    """Whether the cell's way of reading learns from so many labels: from any, where its settings name none."""
    return run.label_count is None or run.label_count in (
        settings_of_run(context, run).label_counts or (run.label_count,)
    )


def fit_head(
    encoder: EncoderUnderTest,
    run: EvalRun,
    settings: Any,
    train_rows: np.ndarray,
    labels_M: np.ndarray,
    answer: Answer,
) -> FittedHead:
    """A reader of the `chosen` training items with their gold answers. Raises CellError where it does not learn."""
    context, seed = encoder.context, run.finetune_seed or 0
    if isinstance(settings, LinearProbeSettings):
        static_size = encoder.static_features["train"].shape[-1] if encoder.static_features else 0
        head = fit_linear_probe(
            encoder.answer_features("train", train_rows),
            labels_M,
            answer,
            settings,
            seed=seed,
            static_size=static_size,
        )
        return FittedHead(
            lambda part: (head(encoder.answer_features(part.table, part.rows_N)), None)
        )
    if isinstance(settings, BilstmProbeSettings):
        bilstm = fit_bilstm_probe(
            encoder.cached_features["train"].select(train_rows),
            labels_M,
            answer,
            settings,
            seed=seed,
            device=context.device,
        )
        return FittedHead(
            lambda part: predict_bilstm_probe(
                bilstm, encoder.cached_features[part.table].select(part.rows_N)
            )
        )
    family = context.checkpoint.family
    tokenizer, items, auxiliary = (
        context.checkpoint.tokenizer,
        [context.items["train"][i] for i in train_rows],
        family.auxiliary_loss if isinstance(family, Trained) else None,
    )
    model = finetune(
        encoder.build_encoder(settings),
        tokenizer,
        items,
        labels_M,
        answer,
        settings,
        seed=seed,
        precision=context.precision,
        auxiliary_loss=auxiliary,
    )

    def predict_part(part: SplitItems) -> HeadOutput:
        return predict_finetuned(
            model,
            tokenizer,
            [context.items[part.table][i] for i in part.rows_N],
            precision=context.precision,
        ), None

    return FittedHead(predict_part, model)
