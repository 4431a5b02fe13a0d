"""A model in a folder: weights as safetensors, what it is as JSON, its tokenizer beside it; and its untrained twin."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lineage import weights
from lineage.artifacts import read_json, write_json
from lineage.errors import InputError
from lineage.family import Encoder, Family, dropping
from lineage.loading.public_reader import check_ids
from lineage.randomness import seed_of
from lineage.records import load
from lineage.study import load_family
from lineage.text.tokenization import Reader


@dataclass(frozen=True)
class _Facts:
    """config.json."""

    variant: str
    family: str
    seed: int
    model: Any
    pretrain: Any


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be built: trained weights, or none yet."""

    variant: str
    family: Family
    model: Any  # the family's model record, sized
    pretrain: Any  # the family's pretrain record
    reader: Reader
    seed: int  # of the parameters' start
    weights: Path | None = None
    new_words: int = 0  # the last ones of its vocabulary, which its weights do not know yet

    def with_words(self, words: Sequence[str]) -> "Checkpoint":
        """The model for a text in which these words stand too: its own rows stay, theirs begin as the mean of all rows (as in fastai)."""
        assert self.family.word_rows and not self.new_words, "the study was checked"
        return dataclasses.replace(self, reader=self.reader.with_words(words), new_words=len(words))

    def build(self, device: torch.device, *, trained: bool = True, body_dropout: float | dict[str, float] | None = None) -> Encoder:
        """The model with its trained weights, or its untrained twin: the very parameters that training started from; with other dropouts if given.

        Raises InputError where the weights do not fit what config.json and the tokenizer ask for.
        """
        config = dropping(self.model, body_dropout)
        where = f"models.{self.variant}" if self.weights is None else str(self.weights.with_name("config.json"))
        model: Encoder = weights.outlined(lambda: self.family.build(config, vocabulary=self.reader.vocabulary), where=where)
        if trained:
            assert self.weights is not None
            found = weights.read(self.weights)
            for name in self.family.word_rows if self.new_words else ():
                if name not in found:
                    raise InputError(f"{self.weights}: the tensor {name} is missing; new words need its rows")
                row = found[name].mean(0, keepdim=True)
                found[name] = torch.cat([found[name], row.expand(self.new_words, *row.shape[1:])])
            weights.fill(model, nn.Module.state_dict, found, self.weights)
        else:
            model.to_empty(device=torch.device("cpu")).initialise(torch.Generator().manual_seed(seed_of("initialise", self.seed)))
        return model.to(device)

    def save(self, draft: Path, model: Encoder) -> None:
        """Write weights, description and tokenizer into an artifact's folder."""
        weights.save(model.state_dict(), draft / weights.WHOLE)
        facts = {
            "variant": self.variant,
            "family": self.family.name,
            "seed": self.seed,
            "model": dataclasses.asdict(self.model),
            "pretrain": dataclasses.asdict(self.pretrain),
        }
        write_json(draft / "config.json", facts)
        self.reader.save(draft)

    @classmethod
    def load(cls, folder: Path) -> "Checkpoint":
        """Describe what `save` wrote; weights are read by `build`. Raises InputError where it is not that."""
        if not (folder / "config.json").is_file():
            raise InputError(f"{folder}: no model is here; run `dvc repro` to make it, or name a folder of artifacts/pretrained or artifacts/adapted")
        where = f"{folder}/config.json"
        facts = load(_Facts, read_json(folder / "config.json"), where)
        family = load_family(facts.family, f"{where}: family")
        model, pretrain = load(family.model, facts.model, f"{where}: model"), load(family.pretrain, facts.pretrain, f"{where}: pretrain")
        if left := family.left_open(model):
            raise InputError(f"{where}: model.{left[0]} is null, and the weights beside it are of one size; give that, or train the model again")
        reader = Reader.load(folder)
        if family.adopt:
            check_ids(reader, model.about, tokenizer=f"{folder}/tokenizer.json", frame=f"{folder}/reader.json: frame")
        return cls(facts.variant, family, model, pretrain, reader, facts.seed, folder / "model.safetensors")
