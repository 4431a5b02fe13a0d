"""The inputs of all methods: an encoder under test on one task, and which run of it is meant.

Shapes: N items, M answers of the items, L layers, D width, V words.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch

from lineage.data.task_data import TaskData
from lineage.methods.encoding import EncodedItem, encode_items
from lineage.methods.frozen_features import FeatureExtractor
from lineage.networks.base import Encoder, Public
from lineage.networks.checkpoint import Checkpoint
from lineage.results import JOINED_FAMILY, Note, joined_system_name
from lineage.tasks.base import Kind, load_kind
from lineage.work import Stopwatch, Work

# target_only: pretrained on the text of the task alone
Init = Literal["pretrained", "adapted", "target_only", "random", "none"]
Transfer = Literal["frozen", "finetuned", "setfit", "zero_shot", "none"]
LabelCount = int | Literal["all"]


class HasBytes(Protocol):
    """Features of a table."""

    @property
    def num_bytes(self) -> int:
        """The memory that they take."""


T = TypeVar("T", bound=HasBytes)


class HasMethods(Protocol):
    """The block `evaluate` of a model, see `lineage.methods.registry`."""

    @property
    def methods(self) -> Mapping[str, Any]:
        """The methods of using the model, by name."""


@dataclass(frozen=True)
class EvalRun:
    """One evaluation within a stage: which system, from how many labels, with which seed."""

    init: Init
    method: str  # its name
    label_count: LabelCount | None = None
    finetune_seed: int | None = None
    fold: int | None = None

    @property
    def selection_key(self) -> "EvalRun":
        """A key that is equal for the runs that share their chosen trial: those of all seeds.

        Each fold chooses for itself, since its validation items are test items of other folds.
        """
        return self if self.fold is not None else replace(self, finetune_seed=None)


class TaskContext:
    """The facts that every method needs: the task, and the methods themselves."""

    task: TaskData
    settings: HasMethods
    pretrain_seed: int | None
    checkpoint_seconds: float = math.inf  # between two saves of a training
    # The share of its steps after which a training ends; None: validation ends it.
    trained_share: float | None = None

    @cached_property
    def kind(self) -> Kind:
        return load_kind(self.task.info.kind)

    @property
    def language(self) -> str:
        return self.task.info.language

    @property
    def is_symmetric(self) -> bool:
        """True if the order of the two texts means nothing, so that both orders are read."""
        return self.task.info.symmetric

    def name_model(self, run: EvalRun) -> dict[str, str]:
        """Return the columns `model` and `family` of a run's rows."""
        return {"model": run.method, "family": self.settings.methods[run.method].family}

    def adapt_text(self, init: Init) -> Literal["none", "task", "general"]:
        """Return the text that a model was adapted to: the task's, or the corpus (general)."""
        return "none"

    def text_bytes_read(self, init: Init) -> int | None:
        """Return the bytes of text that all trained parts of a model have read; None: unknown."""
        return 0

    def missing_note(self, init: Init) -> Note | None:
        """Return why there is no such model to evaluate; None if there is one."""
        return None

    def reading_notes(self, table: str) -> list[Note]:
        """Return notes on what the model could not read of a table's items."""
        return []

    @property
    def keeps_systems(self) -> bool:
        return self.kind.labels_new_items

    @property
    def system_columns(self) -> dict[str, Any]:
        """How a kept system reads and computes, for its record."""
        return {"precision": "fp32", "max_input_positions": None, "model_folder": None}

    def order_names(self, table: str) -> list[str]:
        """Return the names of a table's items in each single order, if a model reads both."""
        return []

    def open(self, init: Init, *, scratch_dir: Path | None = None) -> "Subject":
        return Subject(self, init)


@dataclass(frozen=True)
class BaselineContext(TaskContext):
    """The inputs of methods without a model."""

    task: TaskData
    settings: HasMethods
    pretrain_seed: None = None


@dataclass(frozen=True)
class EvalContext(TaskContext):
    """Inputs shared by all evaluations of a stage."""

    checkpoint: Checkpoint
    task: TaskData
    settings: HasMethods
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
    trained_share: float | None = None

    @property
    def model_columns(self) -> dict[str, str]:
        """The columns `model` and `family` of the rows."""
        name = self.checkpoint.model_name
        if self.static_context is None:
            return {"model": name, "family": self.checkpoint.family.name}
        static_name = self.static_context.checkpoint.model_name
        return {"model": joined_system_name(name, static_name), "family": JOINED_FAMILY}

    def adapt_text(self, init: Init) -> Literal["none", "task", "general"]:
        family = self.checkpoint.family
        if init == "adapted":
            return "task"
        if init != "pretrained" or not isinstance(family, Public):
            return "none"
        return "general" if family.reads_corpus(self.checkpoint.pretrain) else "none"

    def text_bytes_read(self, init: Init) -> int | None:
        text_bytes = 0 if init == "random" else self.text_bytes
        static_bytes = self.static_context.text_bytes if self.static_context else 0
        if text_bytes is None or static_bytes is None:
            return None
        return text_bytes + static_bytes

    def missing_note(self, init: Init) -> Note | None:
        static = self.static_context
        if static is not None and static.failure_reason:
            failed = {"model": static.checkpoint.model_name, "error": static.failure_reason}
            return Note("failed_model", failed)
        if init != "random" and self.failure_reason:
            return Note("error", self.failure_reason)
        return None

    def name_model(self, run: EvalRun) -> dict[str, str]:
        return self.model_columns

    @property
    def keeps_systems(self) -> bool:
        is_single = self.static_context is None  # two models together use two budgets
        return is_single and super().keeps_systems

    @property
    def system_columns(self) -> dict[str, Any]:
        weights_path = self.checkpoint.weights_path
        return {
            "precision": self.precision,
            "max_input_positions": self.max_input_positions,
            "model_folder": None if weights_path is None else weights_path.parent.as_posix(),
        }

    def open(self, init: Init, *, scratch_dir: Path | None = None) -> "EncoderUnderTest":
        return EncoderUnderTest(self, init, scratch_dir=scratch_dir)

    def reading_notes(self, table: str) -> list[Note]:
        notes = []
        share = self.truncated_share(table)
        if share:
            effect = "read_in_parts" if self.kind.answer.reads_in_parts else "cut"
            max_positions = self.max_input_positions
            value = {"share": share, "max_positions": max_positions, "effect": effect}
            notes.append(Note("truncated", value))
        num_words = self.count_unreadable_words(table)
        if num_words:
            notes.append(Note("unreadable_words", num_words))
        return notes

    @property
    def max_input_positions(self) -> int | None:
        """The number of positions that the model can read; None: any number."""
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
        """Return the share of unknown tokens in a table's texts."""
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
            if name != "train" or self.task.info.folds:
                for order, order_name in enumerate(self.order_names(name)):
                    items[order_name] = keep_one_order(items[name], order)
        return items

    def order_names(self, table: str) -> list[str]:
        return [f"{table}, order {order}" for order in (0, 1)] if self.is_symmetric else []


def max_input_positions(checkpoint: Checkpoint) -> int | None:
    """Return the number of positions that a model's training reached; None: any number."""
    positions: int | None = getattr(checkpoint.architecture, "max_positions", None)
    is_public = isinstance(checkpoint.family, Public)
    if positions is None or is_public:  # a public model was trained on all its positions
        return positions
    return min(positions, checkpoint.pretrain.seq_len)


def keep_one_order(items: Sequence[EncodedItem], order: int) -> list[EncodedItem]:
    """Replace both encodings of symmetric items by one order, twice: a head reads sums of two."""
    return [
        EncodedItem(
            item.encodings[order],
            other_encodings=(item.encodings[order],),
            texts=(item.texts[order],) * 2,
        )
        for item in items
    ]


class Subject:
    """The subject of a method: a task, and the results that methods keep between runs."""

    def __init__(self, context: TaskContext, init: Init) -> None:
        self.task_context = context
        self.init = init
        self.chosen_trials: dict[EvalRun, int] = {}  # by `EvalRun.selection_key`
        # Results that a method shares between runs, by its name.
        self.kept: dict[str, Any] = {}
        self.shared_work: list[Work] = []  # of computing it


class EncoderUnderTest(Subject):
    """One encoder under test; its frozen features are computed when they are first needed."""

    def __init__(
        self, context: EvalContext, init: Init, *, scratch_dir: Path | None = None
    ) -> None:
        """`scratch_dir` is for features that take much memory; None: the system's."""
        super().__init__(context, init)
        self.context = context
        self.scratch_dir = scratch_dir
        # The time it took to compute the frozen features of an item; 0 until they are computed.
        self.feature_seconds_per_item = 0.0

    def build_encoder(self, *, body_dropout: float | dict[str, float] | None = None) -> Encoder:
        """Build the model again, so that fine-tuning in one run does not affect another."""
        return self.context.checkpoint.build(
            self.context.device, load_weights=self.init != "random", body_dropout=body_dropout
        )

    def build_extractor(self) -> FeatureExtractor:
        """Return this model for computing features, with the static model that is joined."""
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

    def share(self, name: str, compute: Callable[[FeatureExtractor], dict[str, T]]) -> dict[str, T]:
        """Return the features that a method computes once for all of its heads."""
        if name not in self.kept:
            extractor = self.build_extractor()
            stopwatch = Stopwatch()
            features = compute(extractor)
            self.kept[name] = features
            num_items = sum(map(len, self.context.items.values()))
            seconds = stopwatch.seconds
            self.feature_seconds_per_item = seconds / max(1, num_items)
            num_bytes = sum(table.num_bytes for table in features.values())
            part = features_part(self.init, name)
            self.shared_work.append(Work(part, num_items, seconds, num_bytes))
        kept: dict[str, T] = self.kept[name]
        return kept


def features_part(init: Init, method: str) -> str:
    """Return the name of the work that the runs of a method share."""
    return f"{init} {method} features"


def under_test(subject: Subject) -> EncoderUnderTest:
    assert isinstance(subject, EncoderUnderTest)
    return subject
