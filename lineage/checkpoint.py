"""A model in a folder: weights as safetensors, what it is as JSON, its tokenizer beside it; and its untrained twin."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lineage import weights
from lineage.artifacts import read_json, write_json
from lineage.family import Encoder, Family
from lineage.randomness import seed_of
from lineage.records import load
from lineage.study import load_family
from lineage.tokenization import Reader


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

    def build(self, device: torch.device, *, trained: bool = True) -> Encoder:
        """The model with its trained weights, or its untrained twin: the very parameters that training started from.

        Raises InputError where the weights do not fit what config.json and the tokenizer ask for.
        """
        with torch.device("meta"):
            model = self.family.build(self.model, vocabulary=self.reader.vocabulary)
        model.to_empty(device=torch.device("cpu"))
        if trained:
            assert self.weights is not None
            weights.fill(model.state_dict(), weights.read(self.weights), self.weights)
        else:
            model.initialise(torch.Generator().manual_seed(seed_of("initialise", self.seed)))
        return model.to(device)

    def save(self, draft: Path, model: Encoder) -> None:
        """Write weights, description and tokenizer into an artifact's folder."""
        save_file({k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}, draft / "model.safetensors")
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
        """Describe what `save` wrote; weights are read by `build`."""
        facts = read_json(folder / "config.json")
        family = load_family(facts["family"])
        records = {name: load(getattr(family, name), facts[name], f"{folder}/config.json: {name}") for name in ("model", "pretrain")}
        return cls(facts["variant"], family, reader=Reader.load(folder), seed=facts["seed"], weights=folder / "model.safetensors", **records)
