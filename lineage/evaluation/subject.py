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

from lineage.checkpoint import Checkpoint
from lineage.errors import CellError
from lineage.family import Encoder, resize_tables
from lineage.kind import load_kind
from lineage.loading.taskdata import Part, TaskData
from lineage.rows import JOINED, joined_name
from lineage.transfer.answers import Answer
from lineage.transfer.frozen import fit_frozen, frozen_features, read_layers
from lineage.transfer.joined import beside, with_static
from lineage.transfer.networks import Remembered, fit_network, read_network, remember
from lineage.transfer.reading import Item, read_items, rows_of
from lineage.transfer.settings import EvaluateSettings, FrozenSettings, NetworkSettings, Tried, TunedSettings
from lineage.transfer.translator import TranslateSettings
from lineage.transfer.tuning import fine_tune, predict

Init = Literal["pretrained", "adapted", "untrained"]
BEFORE_WORDS = ("\u2581", "xxmaj", "xxup", "xxrep", "xxwrep")  # pieces that say nothing of a word: SentencePiece's space, fastai's marks of case


@dataclass(frozen=True)
class Cell:
    """What tells one training of a reader from another within a stage."""

    init: Init
    transfer: Literal["frozen", "tuned", "zero_shot"]
    labels: int | Literal["all"] | None = None
    seed: int | None = None
    head: Literal["linear", "bilstm"] = "linear"  # of frozen features
    fold: int | None = None

    @property
    def arm(self) -> "Cell":
        """What shares the choice among an arm's trials: all seeds. A fold chooses for itself, since its validation items are test items of others."""
        return self if self.fold is not None else replace(self, seed=None)

    @property
    def block(self) -> str:
        """The block of `evaluate` with the settings of its way of reading."""
        return "tuned" if self.transfer == "tuned" else "network" if self.head == "bilstm" else "frozen"


@dataclass(frozen=True)
class Setting:
    """What all cells of a stage have in common."""

    checkpoint: Checkpoint
    task: TaskData
    settings: EvaluateSettings
    pretrain_seed: int
    text_bytes: int | None  # that the trained model has read; none: nobody knows, of a public one
    precision: str
    device: torch.device
    text: Path | None = None  # the corpus as the model's ids, for families that go on with it in tuning
    failed: str = ""  # why the trained model is none; its untrained twin is evaluated all the same
    static: "Setting | None" = None  # of the model whose static vectors, always trained ones, stand beside this one's frozen features

    @property
    def names(self) -> dict[str, str]:
        """The columns `variant` and `family` of the rows."""
        own, other = self.checkpoint, self.static
        if other is None:
            return {"variant": own.variant, "family": own.family.name}
        return {"variant": joined_name(own.variant, other.checkpoint.variant), "family": JOINED}

    def bytes_read(self, init: Init) -> int | None:
        """The text of everything trained in a model; none where nobody knows."""
        both = [0 if init == "untrained" else self.text_bytes, self.static.text_bytes if self.static else 0]
        known = [one for one in both if one is not None]
        return sum(known) if len(known) == len(both) else None

    def failure(self, init: Init) -> str:
        """Why there is no such model to be read; nothing where there is one."""
        if self.static is not None and self.static.failed:
            return f"{self.static.checkpoint.variant}: {self.static.failed}"
        return "" if init == "untrained" else self.failed

    @property
    def limit(self) -> int | None:
        """What the model can read, in positions: those that its training reached. The text was cut to max_tokens words before, for all alike."""
        positions: int | None = getattr(self.checkpoint.model, "positions", None)
        whole = positions is None or self.checkpoint.family.adopt is not None  # a public one's training reached all that it has
        return positions if whole else min(positions, self.checkpoint.pretrain.length)

    def cut(self, table: str) -> float:
        """The share of a table's items that had to be cut to what the model can read."""
        return float(np.mean([item.cut for item in self.items[table]])) if self.limit else 0.0

    def unread(self, table: str) -> int:
        """How many words that a table's items ask about the model cannot read."""
        return sum(item.unread for item in self.items[table]) if {"tokens", "context"} & {*self.task.splits[table]} else 0

    def unknown(self, table: str) -> float:
        """The share of the tokens of a table's texts that the model reads as its one mark of what it does not know: 0 where it spells."""
        reader, facts = self.checkpoint.reader, self.task.facts
        texts = chain(*load_kind(facts["kind"]).texts(self.task.splits[table], facts["language"]))
        ids = np.concatenate([cut.ids for cut in reader.pieces([*texts])])
        with torch.device("meta"):
            spells = reader.unknown is None or self.checkpoint.family.build(self.checkpoint.model, vocabulary=reader.vocabulary).spells
        return 0.0 if spells or not len(ids) else float(np.mean(ids == reader.unknown))

    @property
    def translate(self) -> TranslateSettings | None:
        """How a translation is learned, where the task is one and the family can."""
        return self.settings.translate if self.task.facts["kind"] == "translate" else None

    @cached_property
    def items(self) -> dict[str, list[Item]]:
        """Each table's items as the family reads them."""
        how: dict[str, Any] = {"language": self.task.facts["language"], "symmetric": self.task.facts.get("symmetric", False)}
        found = {name: read_items(table, self.checkpoint.reader, limit=self.limit, **how) for name, table in self.task.splits.items()}
        scored = [name for name in found if name != "train" or self.task.facts.get("folds")]
        return found | {order: one_order(found[name], place) for name in scored for place, order in enumerate(self.orders(name))}

    def orders(self, table: str) -> list[str]:
        """The names of a table's items as read in each order alone, where they are read in both."""
        return [f"{table}, order {place}" for place in (0, 1)] if self.task.facts.get("symmetric") else []


def one_order(items: Sequence[Item], place: int) -> list[Item]:
    """Items that are read in both orders, read twice in one of them: for a reader that has learned from sums of two vectors."""
    twice = [(len(item.readings), item.readings[place], item.texts[place]) for item in items]
    return [Item(reading, others=(reading,) * (count - 1), texts=(texts,) * count) for count, reading, texts in twice]


class Subject:
    """One model under test; its frozen features are computed when they are first asked for."""

    def __init__(self, setting: Setting, init: Init) -> None:
        self.setting, self.init = setting, init

    def encoder(self, tuned: TunedSettings | None = None) -> Encoder:
        """The model anew, so that one cell's tuning leaves no trace in another; to be tuned with the dropouts of tuning, and its size of tables."""
        checkpoint, device, trained = self.setting.checkpoint, self.setting.device, self.init != "untrained"
        model = checkpoint.build(device, trained=trained, body_dropout=tuned.body_dropout if tuned else None)
        if tuned and tuned.small_tables and trained:
            resize_tables(model, checkpoint.build(device, trained=False))
        return model

    def layers(self) -> dict[str, np.ndarray]:
        """Each table's (N, L, D), of all layers and of this model alone."""
        model, setting = self.encoder(), self.setting
        return {s: frozen_features(model, setting.checkpoint.reader, items, precision=setting.precision) for s, items in setting.items.items()}

    @cached_property
    def static(self) -> dict[str, np.ndarray]:
        """Each table's (N, 1, S) of the static vectors that stand beside the features, trained ones beside an untrained twin too; or none."""
        return {} if self.setting.static is None else Subject(self.setting.static, "pretrained").layers()

    @cached_property
    def features(self) -> dict[str, np.ndarray]:
        """Each table's (N, L, D) of the layers that are read, with static vectors behind them where there are any."""
        found = {name: read_layers(layers, self.setting.settings.frozen) for name, layers in self.layers().items()}
        return found | {name: beside(found[name], static) for name, static in self.static.items()}

    @cached_property
    def remembered(self) -> dict[str, Remembered]:
        """Each table's items with the layers that are read at every position, and static vectors behind them where there are any."""
        model, setting, how = self.encoder(), self.setting, {"precision": self.setting.precision}
        network = setting.settings.network
        found = {name: remember(model, setting.checkpoint.reader, items, **how).read(network) for name, items in setting.items.items()}
        if setting.static is None:
            return found
        other = Subject(setting.static, "pretrained").encoder()
        return {name: with_static(items, other, setting.static.checkpoint.reader, **how) for name, items in found.items()}

    def vectors(self, table: str, rows_N: np.ndarray) -> np.ndarray:
        """(M, L, D): the frozen features of some items' answers."""
        answers, features = rows_of(self.setting.items[table]), self.features[table]
        return features if len(rows_N) == len(answers) else features[np.concatenate([answers[i] for i in rows_N])]

    def words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(V, L, D): each word's layers, read alone as a text, and (V,): whether the model knows it.

        It does not where all that it reads is the mark of an unknown word and it does not spell, or where all of its vectors are zero.
        """
        setting, model = self.setting, self.encoder()
        reader, language = setting.checkpoint.reader, setting.task.facts["language"]
        items = read_items(pd.DataFrame({"text": list(words)}), reader, limit=setting.limit, language=language)
        vectors_VLD = frozen_features(model, reader, items, precision=setting.precision)
        if not np.isfinite(vectors_VLD).all():
            raise CellError("the vectors of the task's words are not finite; lower the rate")
        read = [item.encoded.ids[item.encoded.spans[:, 1] > item.encoded.spans[:, 0]] for item in items]
        nothing = [number for number in (reader.unknown, *map(reader.tokenizer.token_to_id, BEFORE_WORDS)) if number is not None]
        known_V = np.array([model.spells or not np.isin(ids, nothing).all() for ids in read])
        return vectors_VLD, known_V & (vectors_VLD != 0).any((1, 2))


Read = tuple[np.ndarray, np.ndarray | None]  # (M, K) what is made of the scores, and the (M,) best where that is not the highest


@dataclass(frozen=True)
class Learned:
    """A reader that has learned: what it says of some items, and its network, where all of a network was tuned."""

    read: Callable[[Part], Read]
    model: nn.Module | None = None


def arm(setting: Setting, cell: Cell) -> Tried:
    """The settings of a cell's way of reading."""
    return setting.settings.arms[cell.block]


def asked(setting: Setting, cell: Cell) -> bool:
    """Whether the cell's way of reading learns from so many labels: from any, where its settings name none."""
    return cell.labels is None or cell.labels in (arm(setting, cell).labels or (cell.labels,))


def learn(subject: Subject, cell: Cell, how: Any, chosen: np.ndarray, gold_M: np.ndarray, answer: Answer) -> Learned:
    """A reader of the `chosen` training items with their gold answers. Raises CellError where it does not learn."""
    setting, seed = subject.setting, cell.seed or 0
    if isinstance(how, FrozenSettings):
        static = subject.static["train"].shape[-1] if subject.static else 0
        head = fit_frozen(subject.vectors("train", chosen), gold_M, answer, how, seed=seed, static=static)
        return Learned(lambda part: (head(subject.vectors(part.table, part.rows_N)), None))
    if isinstance(how, NetworkSettings):
        network = fit_network(subject.remembered["train"].some(chosen), gold_M, answer, how, seed=seed, device=setting.device)
        return Learned(lambda part: read_network(network, subject.remembered[part.table].some(part.rows_N)))
    reader, items, auxiliary = setting.checkpoint.reader, [setting.items["train"][i] for i in chosen], setting.checkpoint.family.auxiliary
    model = fine_tune(subject.encoder(how), reader, items, gold_M, answer, how, seed=seed, precision=setting.precision, auxiliary=auxiliary)

    def read(part: Part) -> Read:
        return predict(model, reader, [setting.items[part.table][i] for i in part.rows_N], precision=setting.precision), None

    return Learned(read, model)
