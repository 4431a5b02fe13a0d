"""A public checkpoint for a new study: of a folder that the user names, or of the Hub's cache."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from lineage.config.data import NAME_PATTERN
from lineage.data.hub import list_cached_models
from lineage.errors import InputError
from lineage.networks import weights
from lineage.networks.public_folders import (
    TRANSFORMERS_MISSING,
    CheckpointInfo,
    inspect_checkpoint,
    is_transformers_available,
)
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.networks.registry import family_names


@dataclass(frozen=True)
class PublicProposal:
    """A public checkpoint that the user has named, or one in the Hub's cache."""

    name: str  # the key under `models`
    keys: Mapping[str, str]  # from, and the revision of a repository
    is_requested: bool  # the user has named it, so it joins the grid
    has_lm_head: bool  # it can be adapted

    @property
    def grid_lists(self) -> str:
        """The lists of the grid that it may join."""
        return "grid.models and grid.adapt_models" if self.has_lm_head else "grid.models"


def propose_folder(folder: Path, source: str, *, where: str) -> PublicProposal:
    """Return the checkpoint of a folder; `source` is what params.yaml calls it.

    Raises InputError if it cannot be read.
    """
    if not is_transformers_available():
        raise InputError(f"{where}: {TRANSFORMERS_MISSING}")
    if not folder.is_dir():
        raise InputError(f"{where}: {folder} is not a folder; name one that transformers saved")
    info = _inspect(folder)
    name = _name_model(folder.resolve().name)
    return PublicProposal(name, {"from": source}, True, info.has_lm_head)


def find_cached_model() -> PublicProposal | None:
    """Return the smallest model of the Hub's cache that can be read, as the quickest to compare."""
    if not is_transformers_available():
        return None
    proposals: list[tuple[int, PublicProposal]] = []
    for repository, revision in list_cached_models().items():
        folder = revision.snapshot_path
        try:
            info = _inspect(folder)
        except InputError:
            continue  # the cache holds many other models
        files = weights.list_weight_files(weights.find_weights_file(folder))
        num_bytes = sum(file.stat().st_size for file in files)
        name = _name_model(repository.split("/")[-1])
        keys = {"from": repository, "revision": revision.commit_hash}
        proposals.append((num_bytes, PublicProposal(name, keys, False, info.has_lm_head)))
    return min(proposals, key=itemgetter(0))[1] if proposals else None


def _inspect(folder: Path) -> CheckpointInfo:
    """Read config.json, the tokenizer and the names of tensors, as the stage `sources` does."""
    info = inspect_checkpoint(folder)
    load_public_tokenizer(folder, language="en")
    return info


def _name_model(text: str) -> str:
    """Return a key of `models` for a folder or a repository; a family's name stays free."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if NAME_PATTERN.fullmatch(name) and name not in family_names():
        return name
    return f"public_{name}".rstrip("_")
