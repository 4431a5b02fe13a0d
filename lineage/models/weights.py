"""Tensors of a safetensors file, or of its shards, into a model: all of them or none, and an error that names the file and the tensor."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from lineage.artifacts import read_json
from lineage.errors import InputError

WEIGHTS_FILE, INDEX_FILE = (
    "model.safetensors",
    "model.safetensors.index.json",
)  # as transformers names them; the index says which shard holds a tensor
SHARD_NAME_PATTERN = re.compile(r"[\w.-]+\.safetensors")  # a file of the same folder
ModelT = TypeVar("ModelT")
TensorViews = Mapping[
    str, torch.Tensor
]  # a tensor's name in the file -> the same numbers within the model, to be read or written


def save_tensors(
    tensors: Mapping[str, torch.Tensor], path: Path, *, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors, from whatever device, into a safetensors file, for others as readable as any file: the library would let its owner alone."""
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        path,
        metadata=metadata,
    )
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def find_weights_file(folder: Path) -> Path:
    """The file of a folder's weights, or the index of its shards where there is no such file."""
    return folder / (
        INDEX_FILE
        if (folder / INDEX_FILE).is_file() and not (folder / WEIGHTS_FILE).is_file()
        else WEIGHTS_FILE
    )


def list_weight_files(path: Path) -> list[Path]:
    """A file of weights itself; an index and its shards. Raises InputError where one is missing, or is no file of this folder."""
    return (
        [path, *sorted(set(_read_shard_index(path).values()))]
        if path.name == INDEX_FILE
        else [path]
    )


def list_tensor_names(path: Path) -> set[str]:
    """The tensors that the headers of a file, or of the shards of an index, have.

    Raises InputError for a file of another kind, and where shards and index do not say the same.
    """
    if path.name != INDEX_FILE:
        return _file_tensor_names(path)
    shard_by_tensor, found = _read_shard_index(path), dict[str, Path]()
    for shard in list_weight_files(path)[1:]:
        for name in sorted(_file_tensor_names(shard)):
            if (other := found.setdefault(name, shard)) != shard:
                raise InputError(
                    f"{path}: the tensor {name} is in {other.name} and in {shard.name}; save the model again"
                )
            if name not in shard_by_tensor:
                raise InputError(
                    f"{path}: the tensor {name} of {shard.name} is not named; save the model again"
                )
    if lost := sorted(name for name, shard in shard_by_tensor.items() if found.get(name) != shard):
        raise InputError(
            f"{path}: the tensor {lost[0]} is not in {shard_by_tensor[lost[0]].name}, which is named for it; save the model again"
        )
    return set(found)


def _read_shard_index(path: Path) -> dict[str, Path]:
    """A tensor's name -> its shard."""
    tree = read_json(path)
    said = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(said, dict) or not said:
        raise InputError(
            f"{path}: 'weight_map' is missing, the shard of each tensor; save the model again"
        )
    for name, shard in said.items():
        if not isinstance(shard, str) or not SHARD_NAME_PATTERN.fullmatch(shard):
            raise InputError(
                f"{path}: the tensor {name} is in {shard!r}, which names no safetensors file of this folder; save the model again"
            )
        if not (path.parent / shard).is_file():
            raise InputError(f"{path}: {shard} is missing; copy all shards into this folder")
    return {name: path.parent / shard for name, shard in said.items()}


def _file_tensor_names(path: Path) -> set[str]:
    try:
        with safe_open(path, "pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file: {error}; save the model again") from None


def read_tensors(path: Path, *, prefix: str | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a file, or of the shards of an index. `prefix`, of a body's tensors, asks for the names that transformers gives them today.

    Nothing in it is executed; raises InputError for a file of another kind, a pickle among them, and for two tensors that are one by name.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file; only safetensors are read, so save the model with safe_serialization=True"
        )
    if path.name == INDEX_FILE:
        list_tensor_names(path)  # says where they do not belong together
    tensors: dict[str, torch.Tensor] = {}
    for file in list_weight_files(path)[path.name == INDEX_FILE :]:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{file}: not a safetensors file: {error}; save the model again"
            ) from None
    if prefix is None:
        return tensors
    written: dict[str, str] = {}
    for name in tensors:
        if (other := written.setdefault(_current_tensor_name(name, prefix), name)) != name:
            raise InputError(
                f"{path}: the tensors {other} and {name} are one and the same; remove one"
            )
    return {name: tensors[old] for name, old in written.items()}


def _current_tensor_name(name: str, prefix: str) -> str:
    """A tensor's name as transformers writes it today: files of a body alone lack its prefix, and old ones have TensorFlow's words for a norm."""
    name = re.sub(
        r"LayerNorm\.gamma$",
        "LayerNorm.weight",
        re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name),
    )
    return name if name.startswith((prefix, "cls.", "lm_head.")) else prefix + name


def build_on_meta(build: Callable[[], ModelT], *, where: str) -> ModelT:
    """What `build` makes, a model, on the meta device, where it takes no memory; `fill` gives it some.

    Raises InputError where the sizes that stand in `where` ask for a tensor of more numbers than torch can count.
    """
    try:
        with torch.device("meta"):
            return build()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (RuntimeError, TypeError, OverflowError) as error:  # of a product, and of one size
        if not isinstance(error, OverflowError) and "overflow" not in str(error).lower():
            raise
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{where}: its sizes ask for a tensor of more numbers than can be counted ({reason}); correct its widths"
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
    """Copy the tensors of `path` into the model's. Names that match `idle` may be there and are left.

    Raises InputError where one is missing, too many, of another shape or type, or not finite; the model is as it was then. One on the meta device
    takes memory, the CPU's, only after that: so what a wrong config asks for never does.
    """
    views = get_views(model)
    for name, view in views.items():
        if name not in tensors:
            raise InputError(
                f"{path}: the tensor {name} is missing; config.json beside it asks for it"
            )
        if tensors[name].shape != view.shape:
            raise InputError(
                f"{path}: the tensor {name} is of shape {tuple(tensors[name].shape)}; config.json beside it asks for {tuple(view.shape)}"
            )
        if tensors[name].is_floating_point() != view.is_floating_point():
            raise InputError(
                f"{path}: the tensor {name} is of type {tensors[name].dtype}, which cannot be read as {view.dtype}"
            )
        if not torch.isfinite(tensors[name]).all():
            raise InputError(
                f"{path}: the tensor {name} holds values that are not finite; the training that made it went wrong"
            )
    if extra := sorted(
        name
        for name in tensors.keys() - views.keys()
        if ignored is None or not ignored.fullmatch(name)
    ):
        raise InputError(
            f"{path}: the tensor {extra[0]} has no place in what config.json beside it describes"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        views = get_views(model.to_empty(device=torch.device("cpu")))
    for name, view in views.items():
        view.copy_(tensors[name])


def check_tied_copies(
    tensors: Mapping[str, torch.Tensor], copies: Mapping[str, torch.Tensor], path: Path
) -> None:
    """Raise InputError where a tensor of the file that ought to be a copy of a weight holds other numbers."""
    for name, weight in copies.items():
        if name in tensors and not torch.equal(tensors[name].to(weight), weight):
            raise InputError(
                f"{path}: the tensor {name} is another than that of the embedding or the head, whose copy it is in a tied model"
            )
