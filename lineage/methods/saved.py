"""Systems in folders: saved by an evaluation, loaded by their methods to answer new items.

A folder holds system.json and weights. A system with an encoder refers to the folder of its
pretrained or adapted model; an exported system has a copy of it, in MODEL_FOLDER.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
from torch import nn

from lineage.answers.base import HeadAnswer, PredictionColumns
from lineage.artifacts import read_json, write_json
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.methods.encoding import EncodedItem, encode_items
from lineage.methods.frozen_features import FeatureExtractor
from lineage.networks.base import Encoder
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.weights import (
    WEIGHTS_FILE,
    build_on_meta,
    load_into_model,
    read_tensors,
    save_tensors,
)
from lineage.tasks.base import load_kind

RECORD_FILE = "system.json"
REFITTED_SUFFIX = "-refitted"  # of the name of a system that was fitted again
ModelT = TypeVar("ModelT", bound=nn.Module)
MODEL_FOLDER = "model"  # of an exported system: its pretrained or adapted model
# Answers to the items of a table, without labels.
AnswerItems = Callable[[pd.DataFrame], PredictionColumns]


@dataclass(frozen=True)
class RefitRecord:
    """The origin of a system that was fitted again: the score of those before it."""

    train_examples: int
    split: str  # on which they were scored
    num_seeds: int
    mean_score: float  # over the seeds
    seed_score: float | None  # of the one with the same seeds; None: undefined


@dataclass(frozen=True)
class SystemRecord:
    """The contents of system.json: what the system is, and how it reads and answers items."""

    # As in the result rows.
    model: str
    family: str
    init: str
    adapt_text: str
    transfer: str
    features: str
    head: str
    recipe: str
    task: str
    kind: str
    label_count: str
    train_examples: int
    pretrain_seed: int | None
    finetune_seed: int
    fold: int | None
    metric: str
    validation_score: float | None  # None: undefined
    language: str
    symmetric: bool  # the order of two texts means nothing
    character_spans: bool  # the labels were spans of characters: texts are split into words
    labels: tuple[str, ...]
    # Those of the training labels, for numbers.
    label_mean: float | None
    label_std: float | None
    settings_block: str  # the name of the method
    settings: dict[str, Any]
    precision: str
    max_input_positions: int | None  # that the model reads of a text; None: any number
    model_folder: str | None  # relative to the study; None: the system has no encoder
    refit: RefitRecord | None = None  # of a system that has learned from validation items too

    @property
    def name(self) -> str:
        """The system's name: elmo-adapted-finetuned, elmo-frozen-linear, tfidf, tfidf-refitted."""
        name = system_name(self.model, self.init, self.transfer, self.head)
        return name if self.refit is None else f"{name}{REFITTED_SUFFIX}"

    @property
    def answer(self) -> HeadAnswer:
        """How the outputs of a head answer."""
        answer = load_kind(self.kind).answer
        assert issubclass(answer, HeadAnswer)
        return answer(self.labels, mean=self.label_mean or 0.0, std=self.label_std or 1.0)


def system_name(model: str, init: str, transfer: str, head: str) -> str:
    """Return the name of a system from the columns of its result rows."""
    if transfer == "none":
        return model
    parts = [model]
    if init != "pretrained":
        parts.append(init)
    parts.append(transfer)
    if transfer == "frozen":
        parts.append(head)
    return "-".join(parts)


def save_system(folder: Path, record: SystemRecord, tensors: dict[str, torch.Tensor]) -> None:
    """Write a head or a whole network. The record is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(tensors, folder / WEIGHTS_FILE)
    write_record(folder, record)


def write_record(folder: Path, record: SystemRecord) -> None:
    """Write system.json; `refit` is in it only if the system was fitted again."""
    content = asdict(record)
    if record.refit is None:
        del content["refit"]
    write_json(folder / RECORD_FILE, content)


def read_record(folder: Path) -> SystemRecord:
    path = folder / RECORD_FILE
    if not path.is_file():
        raise InputError(
            f"{folder}: no system is here; run `dvc repro` to make it, or `dvc pull` to fetch it"
        )
    return parse_record(SystemRecord, read_json(path), str(path))


def locate_model(folder: Path, record: SystemRecord) -> Path:
    """Return the folder of a system's pretrained or adapted model: a copy in it, or the study's."""
    assert record.model_folder is not None
    copied = folder / MODEL_FOLDER
    if copied.is_dir():
        return copied
    return Path(record.model_folder)


@dataclass(frozen=True)
class SavedSystem:
    """A system in its folder, and the parts of it that a method may need."""

    folder: Path
    record: SystemRecord
    device: torch.device

    @property
    def weights_path(self) -> Path:
        return self.folder / WEIGHTS_FILE

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        return read_tensors(self.weights_path)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The pretrained or adapted model that the system is built on."""
        return Checkpoint.load(locate_model(self.folder, self.record))

    def encode(self, table: pd.DataFrame) -> list[EncodedItem]:
        record = self.record
        return encode_items(
            table,
            self.checkpoint.tokenizer,
            max_length=record.max_input_positions,
            language=record.language,
            symmetric=record.symmetric,
        )

    def build_encoder(self) -> Encoder:
        return self.checkpoint.build(self.device, load_weights=self.record.init != "random")

    def build_empty_encoder(self) -> Encoder:
        """Build the encoder with memory for weights that are loaded afterwards."""
        checkpoint = self.checkpoint
        vocab_size = checkpoint.tokenizer.vocab_size
        encoder: Encoder = build_on_meta(
            lambda: checkpoint.family.build(checkpoint.architecture, vocab_size=vocab_size),
            where=str(self.weights_path),
        )
        # Heads are drawn at random, which on the meta device takes seconds of imports.
        return encoder.to_empty(device="cpu")

    def load_weights(self, model: ModelT) -> ModelT:
        """Load the weights that are left in `tensors` into a network, on the device."""
        load_into_model(model, nn.Module.state_dict, self.tensors, self.weights_path)
        return model.to(self.device)

    def extractors(self, encoder: Encoder, items: list[EncodedItem]) -> Iterator[FeatureExtractor]:
        """Yield extractors of the table `new`: parts of the items that fit into memory."""
        tokenizer = self.checkpoint.tokenizer
        extractor = FeatureExtractor(encoder, tokenizer, {}, precision=self.record.precision)
        for part in extractor.parts(items):
            yield replace(extractor, tables={"new": items[part]})
