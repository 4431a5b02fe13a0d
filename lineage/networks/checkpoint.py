"""A model in a folder: weights as safetensors, config.json and its tokenizer."""

import dataclasses
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lineage.artifacts import read_json, write_json
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.networks import weights
from lineage.networks.base import Architecture, Encoder, Family, Pretrain, Public, with_dropout
from lineage.networks.public_tokenizer import check_token_ids
from lineage.networks.registry import load_family
from lineage.randomness import derive_seed
from lineage.tokenizers.tokenizer import Tokenizer

# In the folder of a pretrained model, the folder of an earlier checkpoint; a share follows.
INTERMEDIATE_PREFIX = "intermediate-"


@dataclass(frozen=True)
class _CheckpointConfig:
    """The contents of config.json."""

    model_name: str
    family: str
    seed: int
    architecture: Any
    pretrain: Any


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be built, with trained weights or without."""

    model_name: str
    family: Family
    architecture: Architecture  # with all sizes
    pretrain: Pretrain
    tokenizer: Tokenizer
    seed: int  # of the initial parameters
    weights_path: Path | None = None
    num_new_words: int = 0  # the vocabulary's last words, which have no rows in the weights yet

    def with_added_words(self, words: Sequence[str]) -> "Checkpoint":
        """Extend the vocabulary by words of another text, which start as the mean of all rows."""
        assert self.family.vocab_parameters and not self.num_new_words, "the study was checked"
        tokenizer = self.tokenizer.with_added_words(words)
        return dataclasses.replace(self, tokenizer=tokenizer, num_new_words=len(words))

    def build(
        self,
        device: torch.device,
        *,
        load_weights: bool = True,
        body_dropout: float | dict[str, float] | None = None,
    ) -> Encoder:
        """Build the model with its trained weights, or with those that its training started from.

        Raises InputError if the weights do not fit config.json and the tokenizer.
        """
        config = with_dropout(self.architecture, body_dropout)
        where = f"models.{self.model_name}"
        if self.weights_path is not None:
            where = str(self.weights_path.with_name("config.json"))
        model: Encoder = weights.build_on_meta(
            lambda: self.family.build(config, vocab_size=self.tokenizer.vocab_size), where=where
        )
        if load_weights:
            self._load_weights(model)
        else:
            seed = derive_seed("initialise", self.seed)
            model.to_empty(device=torch.device("cpu"))
            model.init_weights(torch.Generator().manual_seed(seed))
        return model.to(device)

    def _load_weights(self, model: Encoder) -> None:
        """Copy the weights into a model on the meta device, with rows for the new words."""
        path = self.weights_path
        assert path is not None
        tensors = weights.read_tensors(path)
        if self.num_new_words:
            for pattern in self.family.vocab_parameters:
                names = fnmatch.filter(tensors, pattern)
                if not names:
                    raise InputError(
                        f"{path}: the tensor {pattern} is missing; new words need its rows"
                    )
                for name in names:
                    mean = tensors[name].mean(0, keepdim=True)
                    new_rows = mean.expand(self.num_new_words, *mean.shape[1:])
                    tensors[name] = torch.cat([tensors[name], new_rows])
        weights.load_into_model(model, nn.Module.state_dict, tensors, path)

    def save(self, folder: Path, model: Encoder) -> None:
        """Write weights, config.json and the tokenizer into an artifact's folder."""
        weights.save_tensors(model.state_dict(), folder / weights.WEIGHTS_FILE)
        config = _CheckpointConfig(
            model_name=self.model_name,
            family=self.family.name,
            seed=self.seed,
            architecture=dataclasses.asdict(self.architecture),
            pretrain=dataclasses.asdict(self.pretrain),
        )
        write_json(folder / "config.json", vars(config))
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path) -> "Checkpoint":
        """Read all but the weights, which `build` reads. Raises InputError."""
        path = folder / "config.json"
        if not path.is_file():
            raise InputError(
                f"{folder}: no model is here; run `dvc repro` to make it, or name a folder of "
                "artifacts/pretrained, artifacts/adapted or artifacts/target_only"
            )
        config = parse_record(_CheckpointConfig, read_json(path), str(path))
        family = load_family(config.family, f"{path}: family")
        architecture = parse_record(
            family.architecture_class, config.architecture, f"{path}: architecture"
        )
        pretrain = parse_record(family.pretrain_class, config.pretrain, f"{path}: pretrain")
        missing = family.missing_keys(architecture)
        if missing:
            raise InputError(
                f"{path}: architecture.{missing[0]} is null, but the weights have a fixed size; "
                "set it, or train the model again"
            )
        tokenizer = Tokenizer.load(folder)
        if isinstance(family, Public):
            check_token_ids(
                tokenizer,
                architecture.checkpoint_info,
                tokenizer_place=f"{folder}/tokenizer.json",
                template_place=f"{folder}/tokenizer_config.json: special_token_template",
            )
        return cls(
            model_name=config.model_name,
            family=family,
            architecture=architecture,
            pretrain=pretrain,
            tokenizer=tokenizer,
            seed=config.seed,
            weights_path=folder / weights.WEIGHTS_FILE,
        )
