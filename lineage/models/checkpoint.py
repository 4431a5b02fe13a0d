"""A model in a folder: weights as safetensors, what it is as JSON, its tokenizer beside it; and its untrained twin."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lineage.artifacts import read_json, write_json
from lineage.config.records import parse_record
from lineage.config.study import load_family
from lineage.errors import InputError
from lineage.models import weights
from lineage.models.base import Encoder, Family, with_dropout
from lineage.models.public_tokenizer import check_token_ids
from lineage.randomness import derive_seed
from lineage.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class _CheckpointConfig:
    """config.json."""

    model_name: str
    family: str
    seed: int
    architecture: Any
    pretrain: Any


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be built: trained weights, or none yet."""

    model_name: str
    family: Family
    architecture: Any  # the family's model record, sized
    pretrain: Any  # the family's pretrain record
    tokenizer: Tokenizer
    seed: int  # of the parameters' start
    weights_path: Path | None = None
    num_new_words: int = 0  # the last ones of its vocabulary, which its weights do not know yet

    def with_added_words(self, words: Sequence[str]) -> "Checkpoint":
        """The model for a text in which these words stand too: its own rows stay, theirs begin as the mean of all rows (as in fastai)."""
        assert self.family.vocab_parameters and not self.num_new_words, "the study was checked"
        return dataclasses.replace(
            self, tokenizer=self.tokenizer.with_added_words(words), num_new_words=len(words)
        )

    def build(
        self,
        device: torch.device,
        *,
        load_weights: bool = True,
        body_dropout: float | dict[str, float] | None = None,
    ) -> Encoder:
        """The model with its trained weights, or its untrained twin: the very parameters that training started from; with other dropouts if given.

        Raises InputError where the weights do not fit what config.json and the tokenizer ask for.
        """
        config = with_dropout(self.architecture, body_dropout)
        where = (
            f"models.{self.model_name}"
            if self.weights_path is None
            else str(self.weights_path.with_name("config.json"))
        )
        model: Encoder = weights.build_on_meta(
            lambda: self.family.build(config, vocab_size=self.tokenizer.vocab_size), where=where
        )
        if load_weights:
            assert self.weights_path is not None
            tensors = weights.read_tensors(self.weights_path)
            for name in self.family.vocab_parameters if self.num_new_words else ():
                if name not in tensors:
                    raise InputError(
                        f"{self.weights_path}: the tensor {name} is missing; new words need its rows"
                    )
                row = tensors[name].mean(0, keepdim=True)
                tensors[name] = torch.cat(
                    [tensors[name], row.expand(self.num_new_words, *row.shape[1:])]
                )
            weights.load_into_model(model, nn.Module.state_dict, tensors, self.weights_path)
        else:
            model.to_empty(device=torch.device("cpu")).init_weights(
                torch.Generator().manual_seed(derive_seed("initialise", self.seed))
            )
        return model.to(device)

    def save(self, folder: Path, model: Encoder) -> None:
        """Write weights, description and tokenizer into an artifact's folder."""
        weights.save_tensors(model.state_dict(), folder / weights.WEIGHTS_FILE)
        facts = {
            "model": self.model_name,
            "family": self.family.name,
            "finetune_seed": self.seed,
            "architecture": dataclasses.asdict(self.architecture),
            "pretrain": dataclasses.asdict(self.pretrain),
        }
        write_json(folder / "config.json", facts)
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path) -> "Checkpoint":
        """Describe what `save` wrote; weights are read by `build`. Raises InputError where it is not that."""
        if not (folder / "config.json").is_file():
            raise InputError(
                f"{folder}: no model is here; run `dvc repro` to make it, or name a folder of artifacts/pretrained or artifacts/adapted"
            )
        where = f"{folder}/config.json"
        facts = parse_record(_CheckpointConfig, read_json(folder / "config.json"), where)
        family = load_family(facts.family, f"{where}: family")
        model, pretrain = (
            parse_record(family.architecture_class, facts.architecture, f"{where}: model"),
            parse_record(family.pretrain_class, facts.pretrain, f"{where}: pretrain"),
        )
        if left := family.missing_keys(model):
            raise InputError(
                f"{where}: model.{left[0]} is null, and the weights beside it are of one size; give that, or train the model again"
            )
        tokenizer = Tokenizer.load(folder)
        if family.load_pretrained:
            check_token_ids(
                tokenizer,
                model.checkpoint_info,
                tokenizer_place=f"{folder}/tokenizer.json",
                template_place=f"{folder}/reader.json: frame",
            )
        return cls(
            facts.model_name,
            family,
            model,
            pretrain,
            tokenizer,
            facts.seed,
            folder / "model.safetensors",
        )
