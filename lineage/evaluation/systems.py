"""An encoder under test on one task: pretrained, adapted, target-only or random-init.

Shapes: N items, M answers of the items, L layers, D width, V words.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from lineage.data.task_data import TaskData
from lineage.errors import EvaluationError
from lineage.evaluation.bilstm_probe import CachedFeatures
from lineage.evaluation.encoding import EncodedItem, answer_rows, encode_items
from lineage.evaluation.frozen_features import FeatureExtractor
from lineage.evaluation.linear_probe import StoredFeatures, extract_features
from lineage.evaluation.setfit import TunedEncoder, tune_encoder
from lineage.evaluation.settings import (
    EvaluateSettings,
    FinetuneSettings,
    HyperparameterTrials,
    LabelCount,
    SetfitSettings,
)
from lineage.evaluation.translator import TranslationSettings
from lineage.models.base import Encoder, Public
from lineage.models.checkpoint import Checkpoint
from lineage.results import JOINED_FAMILY, Note, joined_system_name
from lineage.tasks.base import Kind, load_kind
from lineage.tokenizers.tokenizer import Tokenizer

# target_only: pretrained on the text of the task alone
Init = Literal["pretrained", "adapted", "target_only", "random"]
# Tokens that tell nothing about a word: SentencePiece's space, fastai's tokens of case and
# repetition.
NON_WORD_TOKENS = ("\u2581", "xxmaj", "xxup", "xxrep", "xxwrep")


@dataclass(frozen=True)
class EvalRun:
    """One evaluation within a stage: which system, from how many labels, with which seed."""

    init: Init
    transfer: Literal["frozen", "finetuned", "setfit", "zero_shot"]
    label_count: LabelCount | None = None
    finetune_seed: int | None = None
    head: Literal["linear", "bilstm"] = "linear"  # of frozen features
    fold: int | None = None

    @property
    def selection_key(self) -> "EvalRun":
        """A key that is equal for the runs that share their chosen trial.

        The first seed chooses for all seeds. Each fold chooses for itself, since its validation
        items are test items of other folds.
        """
        return self if self.fold is not None else replace(self, finetune_seed=None)

    @property
    def settings_block(self) -> str:
        """The block of `evaluate` in params.yaml that holds the settings of the head."""
        if self.transfer == "finetuned":
            return "finetune"
        if self.transfer == "setfit":
            return "setfit"
        return "bilstm_probe" if self.head == "bilstm" else "linear_probe"


@dataclass(frozen=True)
class EvalContext:
    """Inputs shared by all evaluations of a stage."""

    checkpoint: Checkpoint
    task: TaskData
    settings: EvaluateSettings
    pretrain_seed: int
    text_bytes: int | None  # that the trained model has read; None: unknown, for a public one
    precision: str
    device: torch.device
    # Holds the corpus as the model's ids, for families that continue with it in fine-tuning.
    tokens_dir: Path | None = None
    # Why training failed; empty if it did not. The random-init baseline is evaluated all the same.
    failure_reason: str = ""
    # The model whose trained static vectors are joined with this one's frozen features.
    static_context: "EvalContext | None" = None
    checkpoint_seconds: float = math.inf  # between two saves of a training

    @cached_property
    def kind(self) -> Kind:
        """The task's kind."""
        return load_kind(self.task.info["kind"])

    @property
    def language(self) -> str:
        """The task's language."""
        return str(self.task.info["language"])

    @property
    def is_symmetric(self) -> bool:
        """Whether the order of the two texts means nothing, so that both orders are read."""
        return bool(self.task.info.get("symmetric", False))

    @property
    def model_columns(self) -> dict[str, str]:
        """The columns `model` and `family` of the rows."""
        name = self.checkpoint.model_name
        if self.static_context is None:
            return {"model": name, "family": self.checkpoint.family.name}
        static_name = self.static_context.checkpoint.model_name
        return {"model": joined_system_name(name, static_name), "family": JOINED_FAMILY}

    def adapt_text(self, init: Init) -> Literal["none", "task", "general"]:
        """Return the text that a model was adapted to: the task's, or the corpus (general)."""
        family = self.checkpoint.family
        if init == "adapted":
            return "task"
        if init != "pretrained" or not isinstance(family, Public):
            return "none"
        return "general" if family.reads_corpus(self.checkpoint.pretrain) else "none"

    def text_bytes_read(self, init: Init) -> int | None:
        """Return the bytes of text that all trained parts of a model have read; None: unknown."""
        text_bytes = 0 if init == "random" else self.text_bytes
        static_bytes = self.static_context.text_bytes if self.static_context else 0
        if text_bytes is None or static_bytes is None:
            return None
        return text_bytes + static_bytes

    def missing_note(self, init: Init) -> Note | None:
        """Return why there is no such model to evaluate; None if there is one."""
        static = self.static_context
        if static is not None and static.failure_reason:
            failed = {"model": static.checkpoint.model_name, "error": static.failure_reason}
            return Note("failed_model", failed)
        if init != "random" and self.failure_reason:
            return Note("error", self.failure_reason)
        return None

    @property
    def max_input_positions(self) -> int | None:
        """The number of positions that the model can read; None: any number.

        The task stage has already cut the texts to max_words words, for all models alike.
        """
        return max_input_positions(self.checkpoint)

    def truncated_share(self, table: str) -> float:
        """Return the share of a table's items that were longer than the model can read."""
        if not self.max_input_positions:
            return 0.0
        return float(np.mean([item.truncated for item in self.items[table]]))

    def count_unreadable_words(self, table: str) -> int:
        """Return how many of the words that a table's items ask about the model cannot read."""
        if not {"tokens", "context"} & {*self.task.splits[table]}:
            return 0
        return sum(item.num_uncovered_words for item in self.items[table])

    def unknown_token_share(self, table: str) -> float:
        """Return the share of unknown tokens in a table's texts.

        It is 0 where the model reads the characters of words.
        """
        tokenizer = self.checkpoint.tokenizer
        if tokenizer.unk_token_id is None:
            return 0.0
        texts = chain(*self.kind.extract_texts(self.task.splits[table], self.language))
        ids = np.concatenate([text.ids for text in tokenizer.tokenize([*texts])])
        with torch.device("meta"):
            model = self.checkpoint.family.build(
                self.checkpoint.architecture, vocab_size=tokenizer.vocab_size
            )
        if model.handles_oov or not len(ids):
            return 0.0
        return float(np.mean(ids == tokenizer.unk_token_id))

    @property
    def translate_settings(self) -> TranslationSettings | None:
        """The settings of the translator; None if the task needs none or the family has none."""
        return self.settings.translation if self.kind.answer.answered_by == "translator" else None

    @cached_property
    def items(self) -> dict[str, list[EncodedItem]]:
        """Each table's items, encoded; scored symmetric items in each single order too."""
        items = {
            name: encode_items(
                table,
                self.checkpoint.tokenizer,
                max_length=self.max_input_positions,
                language=self.language,
                symmetric=self.is_symmetric,
            )
            for name, table in self.task.splits.items()
        }
        for name in self.task.splits:
            if name != "train" or self.task.info.get("folds"):
                for order, order_name in enumerate(self.order_names(name)):
                    items[order_name] = keep_one_order(items[name], order)
        return items

    def order_names(self, table: str) -> list[str]:
        """Return the names of a table's items in each single order, if they are read in both."""
        return [f"{table}, order {order}" for order in (0, 1)] if self.is_symmetric else []


def max_input_positions(checkpoint: Checkpoint) -> int | None:
    """Return the number of positions that a model's training reached; None: any number."""
    positions: int | None = getattr(checkpoint.architecture, "max_positions", None)
    is_public = isinstance(checkpoint.family, Public)
    if positions is None or is_public:  # a public model was trained on all its positions
        return positions
    return min(positions, checkpoint.pretrain.seq_len)


def keep_one_order(items: Sequence[EncodedItem], order: int) -> list[EncodedItem]:
    """Replace both encodings of each symmetric item by the encoding of one order, twice.

    The head was fitted on sums of two vectors, so it must see two here too.
    """
    return [
        EncodedItem(
            item.encodings[order],
            other_encodings=(item.encodings[order],),
            texts=(item.texts[order],) * 2,
        )
        for item in items
    ]


class EncoderUnderTest:
    """One encoder under test; its frozen features are computed when they are first needed."""

    def __init__(
        self, context: EvalContext, init: Init, *, scratch_dir: Path | None = None
    ) -> None:
        """`scratch_dir` is for features that take much memory; None: the system's."""
        self.context = context
        self.init = init
        self.scratch_dir = scratch_dir
        # The last encoder that was fine-tuned on pairs, and the key of what it was tuned with.
        self._tuned: tuple[Any, TunedEncoder] | None = None
        # The time it took to compute the frozen features of an item; 0 until they are computed.
        self.feature_seconds_per_item = 0.0

    def build_encoder(self, finetune_settings: FinetuneSettings | None = None) -> Encoder:
        """Build the model again, so that fine-tuning in one run does not affect another.

        `finetune_settings` give the dropout.
        """
        return self.context.checkpoint.build(
            self.context.device,
            load_weights=self.init != "random",
            body_dropout=finetune_settings.body_dropout if finetune_settings else None,
        )

    def build_extractor(self) -> FeatureExtractor:
        """Return this model for computing features, with the static model that is joined.

        The static vectors are trained ones for a random-init encoder too.
        """
        context = self.context
        static: FeatureExtractor | None = None
        if context.static_context is not None:
            static = EncoderUnderTest(context.static_context, "pretrained").build_extractor()
        return FeatureExtractor(
            model=self.build_encoder(),
            tokenizer=context.checkpoint.tokenizer,
            tables=context.items,
            precision=context.precision,
            static=static,
        )

    @cached_property
    def features(self) -> dict[str, StoredFeatures]:
        """Each table's features for linear probes: layers, and static vectors that are joined."""
        settings = self.context.settings.linear_probe
        extractor = self.build_extractor()
        with self._timed_per_item():
            return extractor.store(settings, folder=self.scratch_dir)

    @cached_property
    def cached_features(self) -> dict[str, CachedFeatures]:
        """Each table's features for BiLSTM probes; a probe of tags reads words."""
        extractor = self.build_extractor()
        with self._timed_per_item():
            return extractor.store_cached(
                self.context.settings.bilstm_probe,
                is_per_word=self.context.kind.answer.are_words,
                folder=self.scratch_dir,
            )

    @contextmanager
    def _timed_per_item(self) -> Iterator[None]:
        """Set `feature_seconds_per_item` to the time that the block takes."""
        start = time.monotonic()
        yield
        num_items = sum(map(len, self.context.items.values()))
        self.feature_seconds_per_item = (time.monotonic() - start) / max(1, num_items)

    def answer_features(self, table: str, rows_N: np.ndarray) -> StoredFeatures:
        """Return the frozen features of the answers of some items."""
        rows_by_item = answer_rows(self.context.items[table])
        features = self.features[table]
        if len(rows_N) == len(rows_by_item):
            return features
        return features.select(np.concatenate([rows_by_item[i] for i in rows_N]))

    def tune_on_pairs(
        self,
        settings: SetfitSettings,
        train_rows: np.ndarray,
        labels_M: np.ndarray,
        *,
        seed: int,
    ) -> TunedEncoder:
        """Return the encoder fine-tuned on pairs of labelled texts of the table train.

        Heads that follow each other and differ in their L2 alone share it. Raises EvaluationError
        if the training fails.
        """
        key = (settings.without_probe, seed, train_rows.tobytes())
        if self._tuned is not None and self._tuned[0] == key:
            return self._tuned[1]
        self._tuned = None  # frees its memory
        context = self.context
        items = context.items["train"]
        tuned = tune_encoder(
            self.build_encoder(),
            context.checkpoint.tokenizer,
            [items[i] for i in train_rows],
            labels_M,
            settings,
            uses_mean_pooling=context.settings.finetune.pooling == "mean",
            seed=seed,
            precision=context.precision,
        )
        self._tuned = key, tuned
        return tuned

    def embed_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return (V, L, D) layers of each word, read alone as a text, and (V,) whether it is known.

        A word is unknown if all its vectors are zero. It is also unknown if all its tokens are the
        unknown token or in NON_WORD_TOKENS, unless the model reads characters. Raises
        EvaluationError if a vector is not finite.
        """
        context = self.context
        model = self.build_encoder()
        tokenizer = context.checkpoint.tokenizer
        items = encode_items(
            pd.DataFrame({"text": list(words)}),
            tokenizer,
            max_length=context.max_input_positions,
            language=context.language,
        )
        vectors_VLD = extract_features(model, tokenizer, items, precision=context.precision)
        if not np.isfinite(vectors_VLD).all():
            raise EvaluationError(
                "the vectors of the task's words are not finite; lower the learning_rate"
            )
        ignored_ids = _non_word_ids(tokenizer)
        has_word_V = np.array(
            [model.handles_oov or not np.isin(ids, ignored_ids).all() for ids in _text_ids(items)]
        )
        return vectors_VLD, has_word_V & (vectors_VLD != 0).any((1, 2))


def _text_ids(items: Sequence[EncodedItem]) -> Iterator[np.ndarray]:
    """Yield the ids of each item's text, without special tokens, which cover no characters."""
    for item in items:
        offsets = item.encoded.offsets
        yield item.encoded.ids[offsets[:, 1] > offsets[:, 0]]


def _non_word_ids(tokenizer: Tokenizer) -> list[int]:
    ids = [tokenizer.backend_tokenizer.token_to_id(token) for token in NON_WORD_TOKENS]
    return [number for number in (tokenizer.unk_token_id, *ids) if number is not None]


def settings_of_run(context: EvalContext, run: EvalRun) -> HyperparameterTrials:
    """Return the settings of the run's head, with the hyperparameters to try."""
    return context.settings.methods[run.settings_block]


def is_requested(context: EvalContext, run: EvalRun) -> bool:
    """Return whether the head is evaluated at the run's label count; by default at all."""
    label_counts = settings_of_run(context, run).label_counts
    return run.label_count is None or not label_counts or run.label_count in label_counts
