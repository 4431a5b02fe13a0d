"""Load the tensors of safetensors files into a model: all of them or none."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from lineage.artifacts import read_json
from lineage.errors import InputError

# As transformers names them; the index tells which shard holds a tensor.
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD_NAME_PATTERN = re.compile(r"[\w.-]+\.safetensors")  # a file in the same folder
ModelT = TypeVar("ModelT")
# A tensor's name in the file -> the part of the model that it fills, to be read or written.
TensorViews = Mapping[str, torch.Tensor]


def save_tensors(
    tensors: Mapping[str, torch.Tensor], path: Path, *, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors from any device into a safetensors file with the usual file permissions."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(on_cpu, path, metadata=metadata)
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def find_weights_file(folder: Path) -> Path:
    """Return a folder's file of weights, or the index of its shards if only that exists."""
    whole = folder / WEIGHTS_FILE
    index = folder / INDEX_FILE
    return index if index.is_file() and not whole.is_file() else whole


def list_weight_files(path: Path) -> list[Path]:
    """Return the file itself; for an index, the index and its shards."""
    return [path, *_list_shards(path)] if path.name == INDEX_FILE else [path]


def _list_shards(index: Path) -> list[Path]:
    return sorted(set(_read_shard_index(index).values()))


def list_tensor_names(path: Path) -> set[str]:
    """Return the tensor names in the header of a file, or of the shards of an index.

    Raises InputError for other files, and if shards and index disagree.
    """
    if path.name != INDEX_FILE:
        return _file_tensor_names(path)
    shard_by_tensor = _read_shard_index(path)
    for shard in _list_shards(path):
        named = {name for name, place in shard_by_tensor.items() if place == shard}
        wrong = sorted(named ^ _file_tensor_names(shard))
        if wrong:
            raise InputError(
                f"{path}: it and {shard.name} disagree about the tensor {wrong[0]}; save the model "
                "again"
            )
    return set(shard_by_tensor)


def _read_shard_index(path: Path) -> dict[str, Path]:
    tree = read_json(path)
    weight_map = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(
            f"{path}: 'weight_map' is missing, the shard of each tensor; save the model again"
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not SHARD_NAME_PATTERN.fullmatch(shard):
            raise InputError(
                f"{path}: the tensor {name} is in {shard!r}, which names no safetensors file of "
                "this folder; save the model again"
            )
        if not (path.parent / shard).is_file():
            raise InputError(f"{path}: {shard} is missing; copy all shards into this folder")
    return {name: path.parent / shard for name, shard in weight_map.items()}


def _file_tensor_names(path: Path) -> set[str]:
    try:
        with safe_open(path, "pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file: {error}; save the model again") from None


def read_tensors(
    path: Path, *, prefix: str | None = None, head_prefixes: Sequence[str] = ()
) -> dict[str, torch.Tensor]:
    """Read the tensors of a file, or of the shards of an index.

    With `prefix`, that of a body, names are brought to those that transformers writes today;
    `head_prefixes` are those of heads. Raises InputError for other files, pickles among them, and
    if two tensors have the same name.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file; only safetensors are read, so save the model with "
            "safe_serialization=True"
        )
    files = [path]
    if path.name == INDEX_FILE:
        list_tensor_names(path)  # raises if shards and index disagree
        files = _list_shards(path)
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{file}: not a safetensors file: {error}; save the model again"
            ) from None
    if prefix is None:
        return tensors
    old_names: dict[str, str] = {}
    for old_name in tensors:
        name = _current_tensor_name(old_name, prefix, head_prefixes)
        if name in old_names:
            raise InputError(
                f"{path}: the tensors {old_names[name]} and {old_name} are one and the same; "
                "remove one"
            )
        old_names[name] = old_name
    return {name: tensors[old_name] for name, old_name in old_names.items()}


def _current_tensor_name(name: str, prefix: str, head_prefixes: Sequence[str]) -> str:
    """Return the name that transformers writes today, which has a body's prefix."""
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    known_prefixes = (prefix, "cls.", "lm_head.", *head_prefixes)
    return name if name.startswith(known_prefixes) else prefix + name


def build_on_meta(build: Callable[[], ModelT], *, where: str) -> ModelT:
    """Call `build` on the meta device, where a model takes no memory; `load_into_model` fills it.

    Raises InputError if the sizes described in `where` are too large for torch to count.
    """
    try:
        with torch.device("meta"):
            return build()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (RuntimeError, TypeError, OverflowError) as error:
        # A product of sizes overflows with a RuntimeError or TypeError, a single size with an
        # OverflowError.
        if not isinstance(error, OverflowError) and "overflow" not in str(error).lower():
            raise
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{where}: its sizes ask for a tensor of more numbers than can be counted ({reason}); "
            "correct its widths"
        ) from None


@torch.no_grad()
def load_into_model(
    model: nn.Module,
    get_views: Callable[[Any], TensorViews],
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    *,
    ignored: re.Pattern[str] | None = None,
) -> None:
    """Copy the tensors of `path` into a model; names that match `ignored` are skipped.

    Raises InputError for a tensor that is missing, unexpected, not finite, or of another shape or
    type; the model is then unchanged, and on the meta device still takes no memory.
    """
    views = get_views(model)
    for name, view in views.items():
        if name not in tensors:
            raise InputError(f"{path}: the tensor {name} is missing; config.json requires it")
        _check_tensor(tensors[name], view, f"{path}: the tensor {name}")
    for name in sorted(tensors.keys() - views.keys()):
        if ignored is None or not ignored.fullmatch(name):
            raise InputError(
                f"{path}: the tensor {name} has no place in the model that config.json describes"
            )
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=torch.device("cpu"))
        views = get_views(model)
    for name, view in views.items():
        view.copy_(tensors[name])


def _check_tensor(tensor: torch.Tensor, view: torch.Tensor, where: str) -> None:
    if tensor.shape != view.shape:
        raise InputError(
            f"{where} is of shape {tuple(tensor.shape)}; config.json requires {tuple(view.shape)}"
        )
    if tensor.is_floating_point() != view.is_floating_point():
        raise InputError(f"{where} is of type {tensor.dtype}, which cannot be read as {view.dtype}")
    if not torch.isfinite(tensor).all():
        raise InputError(
            f"{where} holds values that are not finite; the training that made it went wrong"
        )


def check_tied_copies(
    tensors: Mapping[str, torch.Tensor], copies: Mapping[str, torch.Tensor], path: Path
) -> None:
    """Raise InputError if a tensor is no copy of its tied weight, which `copies` maps it to."""
    for name, weight in copies.items():
        if name in tensors and not torch.equal(tensors[name].to(weight), weight):
            raise InputError(
                f"{path}: the tensor {name} differs from the embedding or the head, "
                "whose copy it must be in a tied model"
            )
