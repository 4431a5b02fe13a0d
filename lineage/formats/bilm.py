"""ELMo's files, options.json and weights.hdf5, as bilm-tf and AllenNLP read and write them.

Also the small interface that tutorials teach:

    elmo = Elmo.load(Path("options.json"), Path("weights.hdf5"))
    ids = batch_to_ids([["First", "sentence", "."], ["Another", "."]])
    vectors, mask = elmo(ids)  # (2, 3, 2 P), (2, 3)

Shapes: B sentences, T words, C byte ids of a word, U distinct words, P projection; a leading 2 is
the direction.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import h5py
import numpy as np
import torch
from torch import nn

from lineage.artifacts import read_json, write_json
from lineage.config.records import check_positive, parse_record
from lineage.errors import InputError
from lineage.families.elmo import CharacterCNN, ElmoConfig, ElmoModel
from lineage.networks.batch import Batch
from lineage.networks.layers.lstm import LSTMStates, ProjectedLSTMLayer
from lineage.networks.layers.scalar_mix import ScalarMix
from lineage.networks.weights import build_on_meta
from lineage.tokenizers.word_bytes import (
    MAX_WORD_BYTES_RANGE,
    NUM_BYTE_IDS,
    trim_padding,
    word_byte_table,
)

MAX_WORD_BYTES = 50
OptionsT = TypeVar("OptionsT", "_LSTMOptions", "_CharCNNOptions")
FORGET_BIAS = 1.0  # TensorFlow adds it when it uses the cell, so that it is not in the file


@dataclass(frozen=True)
class _LSTMOptions:
    projection_dim: int
    dim: int
    n_layers: int
    cell_clip: float | None = None
    proj_clip: float | None = None
    use_skip_connections: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "projection_dim", "dim", "n_layers")


@dataclass(frozen=True)
class _CharCNNOptions:
    filters: tuple[tuple[int, ...], ...]
    embedding: dict[str, Any]
    n_characters: int  # 261 in training; 262, including padding, afterwards
    max_characters_per_token: int
    activation: Literal["relu", "tanh"] = "relu"
    n_highway: int | None = None

    def __post_init__(self) -> None:
        dim = self.embedding.get("dim")
        valid_dim = type(dim) is int and dim >= 1  # isinstance would accept true
        if not valid_dim or any(len(pair) != 2 for pair in self.filters):
            raise ValueError(
                "filters is a list of [width, number], and embedding has a whole number 'dim' "
                "above zero"
            )
        # At least a byte between the begin and end of a word, and the widest filter.
        minimum = max([3, *(width for width, _ in self.filters)])
        maximum = MAX_WORD_BYTES_RANGE[-1]
        if not minimum <= self.max_characters_per_token <= maximum:
            raise ValueError(
                f"max_characters_per_token is {self.max_characters_per_token}; it is from "
                f"{minimum} to {maximum:,}"
            )


def read_options(path: Path) -> tuple[ElmoConfig, int]:
    """Return the architecture that an options.json describes, and the number of bytes of a word.

    Options of training are ignored. Raises InputError.
    """
    tree = read_json(path)
    lstm = _parse_block(_LSTMOptions, tree, "lstm", path)
    char_cnn = _parse_block(_CharCNNOptions, tree, "char_cnn", path)
    if char_cnn.n_characters not in (NUM_BYTE_IDS - 1, NUM_BYTE_IDS):
        raise InputError(
            f"{path}: char_cnn.n_characters is {char_cnn.n_characters}; a model over bytes has "
            f"{NUM_BYTE_IDS - 1} or {NUM_BYTE_IDS}"
        )
    filters = tuple((width, number) for width, number in char_cnn.filters)
    try:
        config = ElmoConfig(
            num_layers=lstm.n_layers,
            cell_to_projection_ratio=max(1, lstm.dim // lstm.projection_dim),
            filters=filters,
            char_embedding_size=char_cnn.embedding["dim"],
            num_highway_layers=char_cnn.n_highway or 0,
            dropout=0.0,
            cell_clip=lstm.cell_clip or None,
            projection_clip=lstm.proj_clip or None,
            softmax_samples=None,
            activation=char_cnn.activation,
            residual=lstm.use_skip_connections,
            projection_size=lstm.projection_dim,
            cell_size=lstm.dim,
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return config, char_cnn.max_characters_per_token


def _parse_block(record_type: type[OptionsT], tree: object, name: str, path: Path) -> OptionsT:
    """Parse one block of options.json; keys that the record lacks are ignored."""
    if not isinstance(tree, dict) or not isinstance(tree.get(name), dict):
        raise InputError(
            f"{path}: the block '{name}' is missing; only options of a biLM over characters can be "
            "read"
        )
    known = record_type.__dataclass_fields__
    block = {key: value for key, value in tree[name].items() if key in known}
    return parse_record(record_type, block, f"{path}: {name}")


def read_bilm(options_path: Path, weights_path: Path) -> ElmoModel:
    """Read a model without a softmax, which such files do not hold."""
    config, _ = read_options(options_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        model, shapes = build_on_meta(lambda: _build_model(config), where=str(options_path))
    arrays = _read_arrays(weights_path, shapes, options_path)
    model.to_empty(device=torch.device("cpu"))
    _load_arrays(model, arrays)
    return model.eval()


def _build_model(config: ElmoConfig) -> tuple[ElmoModel, dict[str, tuple[int, ...]]]:
    """Build a model without vocabulary, and the shapes of its tensors in the file."""
    model = ElmoModel(config, vocab_size=0)
    return model, {name: tuple(tensor.shape) for name, tensor in _file_tensors(model).items()}


def write_bilm(
    model: ElmoModel, options_path: Path, weights_path: Path, *, max_word_bytes: int
) -> None:
    """Write a character model without its softmax; `max_word_bytes` is its tokenizer's.

    AllenNLP reads only models with residuals. Raises InputError for other models.
    """
    if (
        not isinstance(model, ElmoModel)
        or model.config.input_unit == "words"
        or model.config.initial_state == "trained"
    ):
        raise InputError(
            "ELMo's own files hold models of the family elmo with input_unit: characters and "
            "initial_state: zeros; this is another one"
        )
    config = model.config
    lstm = {
        "projection_dim": config.projection_size,
        "dim": config.cell_size,
        "n_layers": config.num_layers,
        "cell_clip": config.cell_clip,
        "proj_clip": config.projection_clip,
        "use_skip_connections": config.residual,
    }
    char_cnn = {
        "filters": [list(pair) for pair in config.filters],
        "embedding": {"dim": config.char_embedding_size},
        "n_characters": NUM_BYTE_IDS,
        "max_characters_per_token": max_word_bytes,
        "activation": config.activation,
        "n_highway": config.num_highway_layers,
    }
    write_json(options_path, {"lstm": lstm, "char_cnn": char_cnn})
    draft = weights_path.with_name(f".{weights_path.name}.draft")
    with h5py.File(draft, "w") as file:
        for name, tensor in _file_tensors(model).items():
            file.create_dataset(name, data=tensor.detach().cpu().numpy().astype(np.float32))
    draft.replace(weights_path)


def _read_arrays(
    path: Path, shapes: Mapping[str, tuple[int, ...]], options_path: Path
) -> dict[str, np.ndarray]:
    """Read the arrays of these names and shapes, after checking that all of them exist."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    if not h5py.is_hdf5(path):
        raise InputError(f"{path}: not an HDF5 file")
    try:
        with h5py.File(path, "r") as file:
            items = _list_items(file)
            for name in [*shapes, *sorted(items.keys() - shapes.keys())]:
                where = f"{path}: the tensor {name}"
                _check_item(items.get(name), shapes.get(name), where, options_path)
            arrays = {name: item[...].astype(np.float32) for name, item in items.items()}
    # h5py raises these for damaged files, and numpy a MemoryError for a shape that no file fills.
    except (OSError, RuntimeError, MemoryError) as error:
        raise InputError(f"{path}: {error}") from None
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InputError(
                f"{path}: the tensor {name} holds values that are not finite; the training that "
                "made it went wrong"
            )
    return arrays


def _list_items(file: h5py.File) -> dict[str, Any]:
    """Return the datasets of a file by name; links that are not resolved are returned as links."""
    links: dict[str, Any] = {}
    file.visititems_links(links.__setitem__)
    items = {}
    for name, link in links.items():
        item = file[name] if isinstance(link, h5py.HardLink) else link
        if not isinstance(item, h5py.Group):
            items[name] = item
    return items


def _check_item(
    item: object, shape: tuple[int, ...] | None, where: str, options_path: Path
) -> None:
    if item is None:
        raise InputError(f"{where} is missing; {options_path} requires it")
    if shape is None:
        raise InputError(f"{where} has no place in the model that {options_path} describes")
    if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual or item.shape is None:
        raise InputError(
            f"{where} is a link, or empty, or its numbers lie in another file; every tensor stands "
            "in this file itself"
        )
    if item.dtype.kind != "f":
        raise InputError(f"{where} holds {item.dtype}, not floating-point numbers")
    if item.shape != shape:
        raise InputError(f"{where} is of shape {item.shape}; {options_path} requires {shape}")


def _linears(char_cnn: CharacterCNN) -> dict[str, nn.Linear]:
    """Return the linear layers by name; {} is W or b in the file."""
    linears = {"CNN_proj/{}_proj": char_cnn.projection}
    for i, highway in enumerate(char_cnn.highways):
        transform, carry = highway.transform, highway.carry
        assert isinstance(transform, nn.Linear) and isinstance(carry, nn.Linear)
        linears[f"CNN_high_{i}/{{}}_transform"] = transform
        linears[f"CNN_high_{i}/{{}}_carry"] = carry
    return linears


def _file_tensors(model: ElmoModel) -> dict[str, torch.Tensor]:
    """Return the model's weights under the names and in the shapes of the file."""
    char_cnn = model.require_char_cnn()
    tensors: dict[str, torch.Tensor] = {"char_embed": char_cnn.byte_embeddings.weight[1:]}
    for i, convolution in enumerate(char_cnn.convolutions):
        assert isinstance(convolution, nn.Conv1d) and convolution.bias is not None
        tensors[f"CNN/W_cnn_{i}"] = convolution.weight.permute(2, 1, 0)[None]
        tensors[f"CNN/b_cnn_{i}"] = convolution.bias
    for name, linear in _linears(char_cnn).items():
        tensors[name.format("W")] = linear.weight.T
        tensors[name.format("b")] = linear.bias
    for i, layer in enumerate(model.body.layers):
        assert isinstance(layer, ProjectedLSTMLayer)
        biases = layer.bias.view(2, -1)
        for direction in (0, 1):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            weight = torch.cat([layer.weight_ih[direction], layer.weight_hh[direction]])
            forget_bias = torch.zeros_like(biases[direction])
            forget_bias[2 * layer.cell_size : 3 * layer.cell_size] = FORGET_BIAS
            tensors[f"{cell}/W_0"] = _swap_gate_order(weight)
            tensors[f"{cell}/B"] = _swap_gate_order(biases[direction] - forget_bias)
            tensors[f"{cell}/W_P_0"] = layer.weight_hr[direction]
    return tensors


def _swap_gate_order(x: torch.Tensor) -> torch.Tensor:
    """Swap the first two gates: ours are update, input; TensorFlow's are input, update."""
    first, second, *rest = x.chunk(4, -1)
    return torch.cat([second, first, *rest], -1)


@torch.no_grad()
def _load_arrays(model: ElmoModel, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file's arrays into a model: the inverse of `_file_tensors`."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    char_cnn = model.require_char_cnn()
    char_cnn.byte_embeddings.weight[0] = 0.0
    char_cnn.byte_embeddings.weight[1:] = tensors["char_embed"]
    for i, convolution in enumerate(char_cnn.convolutions):
        assert isinstance(convolution, nn.Conv1d) and convolution.bias is not None
        convolution.weight.copy_(tensors[f"CNN/W_cnn_{i}"][0].permute(2, 1, 0))
        convolution.bias.copy_(tensors[f"CNN/b_cnn_{i}"])
    for name, linear in _linears(char_cnn).items():
        linear.weight.copy_(tensors[name.format("W")].T)
        linear.bias.copy_(tensors[name.format("b")])
    for i, layer in enumerate(model.body.layers):
        assert isinstance(layer, ProjectedLSTMLayer)
        for direction in (0, 1):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            input_weight, state_weight = _swap_gate_order(tensors[f"{cell}/W_0"]).chunk(2)
            layer.weight_ih[direction] = input_weight
            layer.weight_hh[direction] = state_weight
            bias = _swap_gate_order(tensors[f"{cell}/B"])
            bias[2 * layer.cell_size : 3 * layer.cell_size] += FORGET_BIAS
            layer.bias.view(2, -1)[direction] = bias
            layer.weight_hr[direction] = tensors[f"{cell}/W_P_0"]


def batch_to_ids(
    sentences: Sequence[Sequence[str]], *, max_word_bytes: int = MAX_WORD_BYTES
) -> torch.Tensor:
    """Return (B, T, C) byte ids of sentences that are split into words; 0 after a sentence."""
    longest = max((len(words) for words in sentences), default=0)
    ids_BTC = np.zeros((len(sentences), longest, max_word_bytes), np.int64)
    for row, words in enumerate(sentences):
        if words:
            ids_BTC[row, : len(words)] = word_byte_table(words, max_word_bytes)
    return torch.from_numpy(ids_BTC)


class Elmo(nn.Module):
    """Map byte ids to one vector per word, the scalar mix of the biLM's layers.

    The LSTMs' state is kept from call to call, as in ELMo, until `reset_state`.
    """

    def __init__(self, model: ElmoModel, *, max_word_bytes: int = MAX_WORD_BYTES) -> None:
        super().__init__()
        self.model = model
        self.max_word_bytes = max_word_bytes
        self.scalar_mix = ScalarMix(model.config.num_layers + 1)
        self.state: LSTMStates | None = None

    @classmethod
    def load(cls, options_path: Path, weights_path: Path) -> "Elmo":
        """Read a released model. Raises InputError for files that do not go together."""
        _, max_word_bytes = read_options(options_path)
        return cls(read_bilm(options_path, weights_path), max_word_bytes=max_word_bytes)

    def reset_state(self) -> None:
        self.state = None

    def layer_outputs(self, ids_BTC: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Return each layer's (B, T + 2, 2 P) and the mask (B, T + 2), with sentence boundaries.

        Raises InputError for ids with another number of bytes than the model's.
        """
        if ids_BTC.shape[-1] != self.max_word_bytes:
            raise InputError(
                f"these ids have {ids_BTC.shape[-1]} bytes a word, and the model "
                f"{self.max_word_bytes}; give batch_to_ids that number"
            )
        ids_BTC, mask_BT = _add_sentence_boundaries(ids_BTC.long())
        B, T, C = ids_BTC.shape
        device = ids_BTC.device
        distinct_UC, rows = torch.unique(ids_BTC.reshape(B * T, C), dim=0, return_inverse=True)
        rows_BT = rows.view(B, T)
        byte_ids_UC = torch.from_numpy(trim_padding(distinct_UC.cpu().numpy())).to(device)
        batch = Batch(rows_BT, mask_BT, byte_ids_UC=byte_ids_UC, word_rows_BT=rows_BT)
        kept = None
        if self.state is not None:
            self.state = tuple((output.to(device), cell.to(device)) for output, cell in self.state)
            kept = _resize_state(self.state, B)
        layers, state = self.model.encode_from_state(batch, kept)
        self.state = state if self.state is None else _merge_states(self.state, state)
        return tuple(layer * mask_BT[..., None] for layer in layers), mask_BT

    def forward(self, ids_BTC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, T, 2 P) and the mask (B, T)."""
        layers, mask_BT = self.layer_outputs(ids_BTC)
        mixed = self.scalar_mix(layers)
        inner_BT = mask_BT[:, 2:]  # without its boundaries a sentence is two positions shorter
        return mixed[:, 1:-1] * inner_BT[..., None], inner_BT


def _add_sentence_boundaries(ids_BTC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (B, T + 2, C) with the tokens before and after a sentence, and the mask (B, T + 2)."""
    B, T, C = ids_BTC.shape
    device = ids_BTC.device
    lengths_B = (ids_BTC > 0).any(-1).sum(1)
    boundaries = torch.from_numpy(word_byte_table(["<S>", "</S>"], C).astype(np.int64))
    begin_C, end_C = boundaries.to(device)
    extended = ids_BTC.new_zeros(B, T + 2, C)
    extended[:, 0] = begin_C
    extended[:, 1:-1] = ids_BTC
    extended[torch.arange(B, device=device), lengths_B + 1] = end_C
    mask = torch.arange(T + 2, device=device)[None] < (lengths_B + 2)[:, None]
    return extended, mask


def _resize_state(state: LSTMStates, batch_size: int) -> LSTMStates:
    """Return the state's first rows, extended by zeros up to the batch size."""

    def resized(x: torch.Tensor) -> torch.Tensor:
        zeros = x.new_zeros(2, max(0, batch_size - x.shape[1]), x.shape[2])
        return torch.cat([x[:, :batch_size], zeros], 1)

    return tuple((resized(output), resized(cell)) for output, cell in state)


def _merge_states(old: LSTMStates, new: LSTMStates) -> LSTMStates:
    """Return the new state, with the old one's rows that the batch did not have."""
    num_rows = new[0][0].shape[1]
    merged = []
    for (new_output, new_cell), (old_output, old_cell) in zip(new, old, strict=True):
        output = torch.cat([new_output, old_output[:, num_rows:]], 1)
        cell = torch.cat([new_cell, old_cell[:, num_rows:]], 1)
        merged.append((output, cell))
    return tuple(merged)
