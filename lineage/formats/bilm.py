"""ELMo's own files, options.json and weights.hdf5, as bilm-tf and AllenNLP read and write them; and the small interface that tutorials teach.

    elmo = Elmo.load(Path("options.json"), Path("weights.hdf5"))
    ids = batch_to_ids([["First", "sentence", "."], ["Another", "."]])
    vectors, mask = elmo(ids)  # (2, 3, 2 P), (2, 3)

Shapes: B sentences, T words, C byte ids a word, P projection; a leading 2 is the direction, R rows of a kept state.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch
from torch import nn

from lineage.artifacts import read_json, write_json
from lineage.config.records import check_positive, parse_record
from lineage.errors import InputError
from lineage.models.batch import Batch
from lineage.models.elmo import ElmoConfig, ElmoModel
from lineage.models.layers.lstm import LSTMStates
from lineage.models.layers.scalar_mix import ScalarMix
from lineage.models.weights import build_on_meta
from lineage.tokenizers.tokenizer import (
    MAX_WORD_BYTES_RANGE,
    NUM_BYTE_IDS,
    trim_padding,
    word_byte_table,
)

MAX_WORD_BYTES = 50
FORGET_BIAS = 1.0  # TensorFlow adds it when the cell is used, and so it is not in the file


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
    n_characters: int  # 261 in training, 262 after: only then there is padding
    max_characters_per_token: int
    activation: Literal["relu", "tanh"] = "relu"
    n_highway: int | None = None

    def __post_init__(self) -> None:
        width = self.embedding.get("dim")
        if (
            any(len(pair) != 2 for pair in self.filters) or type(width) is not int or width < 1
        ):  # true is an int too
            raise ValueError(
                "filters is a list of [width, number], and embedding has a whole number 'dim' above zero"
            )
        least = max(
            [3, *(width for width, _ in self.filters)]
        )  # a word's marks and a byte, and the widest filter
        if not least <= self.max_characters_per_token <= MAX_WORD_BYTES_RANGE[-1]:
            raise ValueError(
                f"max_characters_per_token is {self.max_characters_per_token}; it is from {least} to {MAX_WORD_BYTES_RANGE[-1]:,}"
            )


def read_options(path: Path) -> tuple[ElmoConfig, int]:
    """The structure that an options.json describes, and the byte ids of a word. What it says of training is passed over. Raises InputError."""
    tree = read_json(path)
    blocks: dict[str, Any] = {}
    for name, kind in (("lstm", _LSTMOptions), ("char_cnn", _CharCNNOptions)):
        if not isinstance(tree, dict) or not isinstance(tree.get(name), dict):
            raise InputError(
                f"{path}: the block '{name}' is missing; only options of a biLM over characters can be read"
            )
        blocks[name] = parse_record(
            kind,
            {k: v for k, v in tree[name].items() if k in kind.__dataclass_fields__},
            f"{path}: {name}",
        )
    lstm, characters = blocks["lstm"], blocks["char_cnn"]
    if characters.n_characters not in (NUM_BYTE_IDS - 1, NUM_BYTE_IDS):
        raise InputError(
            f"{path}: char_cnn.n_characters is {characters.n_characters}; a model over bytes has {NUM_BYTE_IDS - 1} or {NUM_BYTE_IDS}"
        )
    try:
        config = ElmoConfig(
            num_layers=lstm.n_layers,
            cell_to_projection_ratio=max(1, lstm.dim // lstm.projection_dim),
            filters=characters.filters,
            char_embedding_size=characters.embedding["dim"],
            num_highway_layers=characters.n_highway or 0,
            dropout=0.0,
            cell_clip=lstm.cell_clip or None,
            projection_clip=lstm.proj_clip or None,
            softmax_samples=None,
            activation=characters.activation,
            residual=lstm.use_skip_connections,
            projection_size=lstm.projection_dim,
            cell_size=lstm.dim,
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return config, characters.max_characters_per_token


def read_bilm(options_path: Path, weights_path: Path) -> ElmoModel:
    """A model with the weights of a file, without a softmax, which such files do not hold.

    Raises InputError where a tensor is missing, too many, of another shape or not of numbers; nothing is loaded then.
    """
    config, _ = read_options(options_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        model, layout = build_on_meta(
            lambda: (model := ElmoModel(config, vocab_size=0), _bilm_tensors(model)),
            where=str(options_path),
        )
    found = _read_tensors(
        weights_path, {name: tuple(value.shape) for name, value in layout.items()}, options_path
    )
    _load_bilm_tensors(model.to_empty(device=torch.device("cpu")), found)
    return model.eval()


def write_bilm(
    model: ElmoModel, options_path: Path, weights_path: Path, *, max_word_bytes: int
) -> None:
    """Write a model over characters, but for its softmax; `word_bytes` as its reader has them. (AllenNLP reads models with residuals only.)"""
    if (
        not isinstance(model, ElmoModel)
        or model.config.input_unit == "words"
        or model.config.initial_state == "trained"
    ):
        raise InputError(
            "ELMo's own files hold models of the family elmo that read characters (input) from a cold start; this is another one"
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
    characters = {
        "filters": [list(pair) for pair in config.filters],
        "embedding": {"dim": config.char_embedding_size},
        "n_characters": NUM_BYTE_IDS,
        "max_characters_per_token": max_word_bytes,
        "activation": config.activation,
        "n_highway": config.num_highway_layers,
    }
    write_json(options_path, {"lstm": lstm, "char_cnn": characters})
    draft = weights_path.with_name(f".{weights_path.name}.draft")
    with h5py.File(draft, "w") as file:
        for name, value in _bilm_tensors(model).items():
            file.create_dataset(name, data=value.detach().cpu().numpy().astype(np.float32))
    draft.replace(weights_path)


def _read_tensors(
    path: Path, expected: Mapping[str, tuple[int, ...]], options_path: Path
) -> dict[str, np.ndarray]:
    """The arrays of these names and shapes; nothing is read before all of them are known to be there."""
    if not path.is_file() or not h5py.is_hdf5(path):
        raise InputError(
            f"{path}: {'not an HDF5 file' if path.is_file() else 'there is no such file'}"
        )
    links: dict[str, Any] = {}
    try:
        with h5py.File(path, "r") as file:
            file.visititems_links(links.__setitem__)
            items = {
                name: file[name] if isinstance(link, h5py.HardLink) else link
                for name, link in links.items()
            }
            items = {name: item for name, item in items.items() if not isinstance(item, h5py.Group)}
            for name in [*expected, *sorted(items.keys() - expected.keys())]:
                _check_tensor(
                    items.get(name), expected.get(name), f"{path}: the tensor {name}", options_path
                )
            found = {name: item[...].astype(np.float32) for name, item in items.items()}
    except (
        OSError,
        RuntimeError,
        MemoryError,
    ) as error:  # h5py's of a damaged file; numpy's of a shape that no file fills
        raise InputError(f"{path}: {error}") from None
    for name, value in found.items():
        if not np.isfinite(value).all():
            raise InputError(
                f"{path}: the tensor {name} holds values that are not finite; the training that made it went wrong"
            )
    return found


def _check_tensor(item: Any, shape: tuple[int, ...] | None, where: str, options_path: Path) -> None:
    if item is None:
        raise InputError(f"{where} is missing; {options_path} asks for it")
    if shape is None:
        raise InputError(f"{where} has no place in the model that {options_path} describes")
    if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual or item.shape is None:
        raise InputError(
            f"{where} is a link, or empty, or its numbers lie in another file; every tensor stands in this file itself"
        )
    if item.dtype.kind != "f":
        raise InputError(f"{where} holds {item.dtype}, not floating-point numbers")
    if item.shape != shape:
        raise InputError(f"{where} is of shape {item.shape}; {options_path} asks for {shape}")


def _bilm_tensors(model: ElmoModel) -> dict[str, torch.Tensor]:
    """The model's weights under the names and in the shapes of the file."""
    characters = model.require_char_cnn()
    found: dict[str, torch.Tensor] = {"char_embed": characters.byte_embeddings.weight[1:]}
    for i, convolution in enumerate(characters.convolutions):
        assert isinstance(convolution, nn.Conv1d) and convolution.bias is not None
        found |= {
            f"CNN/W_cnn_{i}": convolution.weight.permute(2, 1, 0)[None],
            f"CNN/b_cnn_{i}": convolution.bias,
        }
    for i, highway in enumerate(characters.highways):
        for name in ("transform", "carry"):
            linear: Any = getattr(highway, name)
            found |= {
                f"CNN_high_{i}/W_{name}": linear.weight.T,
                f"CNN_high_{i}/b_{name}": linear.bias,
            }
    found |= {
        "CNN_proj/W_proj": characters.projection.weight.T,
        "CNN_proj/b_proj": characters.projection.bias,
    }
    for i, part in enumerate(model.body.layers):
        layer: Any = part
        H, biases = layer.cell_size, layer.bias.view(2, -1)
        for way in (0, 1):
            where = f"RNN_{way}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            joined = torch.cat([layer.weight_ih[way], layer.weight_hh[way]])
            shift = torch.zeros_like(biases[way])
            shift[2 * H : 3 * H] = FORGET_BIAS
            found |= {
                f"{where}/W_0": _swap_gate_order(joined),
                f"{where}/B": _swap_gate_order(biases[way] - shift),
                f"{where}/W_P_0": layer.weight_hr[way],
            }
    return found


def _swap_gate_order(x: torch.Tensor) -> torch.Tensor:
    """From our order of gates (update, in, forget, out) to TensorFlow's (in, update, forget, out), and back."""
    first, second, *rest = x.chunk(4, -1)
    return torch.cat([second, first, *rest], -1)


@torch.no_grad()
def _load_bilm_tensors(model: ElmoModel, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file's arrays into a model of the same shapes: `_layout` read the other way."""
    value = {name: torch.from_numpy(array) for name, array in arrays.items()}
    characters = model.require_char_cnn()
    characters.byte_embeddings.weight[0], characters.byte_embeddings.weight[1:] = (
        0.0,
        value["char_embed"],
    )
    for i, convolution in enumerate(characters.convolutions):
        assert isinstance(convolution, nn.Conv1d) and convolution.bias is not None
        convolution.weight.copy_(value[f"CNN/W_cnn_{i}"][0].permute(2, 1, 0))
        convolution.bias.copy_(value[f"CNN/b_cnn_{i}"])
    linears: list[tuple[Any, str, str]] = [(characters.projection, "CNN_proj", "proj")]
    for i, highway in enumerate(characters.highways):
        linears += [
            (getattr(highway, name), f"CNN_high_{i}", name) for name in ("transform", "carry")
        ]
    for linear, where, name in linears:
        linear.weight.copy_(value[f"{where}/W_{name}"].T)
        linear.bias.copy_(value[f"{where}/b_{name}"])
    for i, layer in enumerate(model.body.layers):
        cell: Any = layer
        for way in (0, 1):
            where = f"RNN_{way}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            joined, bias = (
                _swap_gate_order(value[f"{where}/W_0"]),
                _swap_gate_order(value[f"{where}/B"]),
            )
            cell.weight_ih[way], cell.weight_hh[way] = joined.chunk(2)
            bias[2 * cell.cell_size : 3 * cell.cell_size] += FORGET_BIAS
            cell.bias.view(2, -1)[way] = bias
            cell.weight_hr[way] = value[f"{where}/W_P_0"]


def batch_to_ids(
    sentences: Sequence[Sequence[str]], *, max_word_bytes: int = MAX_WORD_BYTES
) -> torch.Tensor:
    """(B, T, C) byte ids of sentences that are split into words; 0 beyond a sentence. A word's bytes are cut to C - 2, inside a character or not."""
    longest = max((len(words) for words in sentences), default=0)
    found = np.zeros((len(sentences), longest, max_word_bytes), np.int64)
    for row, words in enumerate(sentences):
        if words:
            found[row, : len(words)] = word_byte_table(words, max_word_bytes)
    return torch.from_numpy(found)


class Elmo(nn.Module):
    """Byte ids -> one vector a word: the scalar mix of the biLM's layers. `stateful` keeps the LSTMs' state from call to call, as ELMo did.

    A kept state makes the same sentence give another vector the second time; `reset` forgets it.
    """

    def __init__(
        self,
        model: ElmoModel,
        *,
        max_word_bytes: int = MAX_WORD_BYTES,
        layer_norm: bool = False,
        keep_sentence_boundaries: bool = False,
        carry_state: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.max_word_bytes, self.keep_sentence_boundaries, self.carry_state = (
            model,
            max_word_bytes,
            keep_sentence_boundaries,
            carry_state,
        )
        self.scalar_mix = ScalarMix(model.config.num_layers + 1, layer_norm=layer_norm)
        self.state: LSTMStates | None = None

    @classmethod
    def load(cls, options_path: Path, weights_path: Path, **kwargs: bool) -> "Elmo":
        """Read a released model. Raises InputError for files that do not go together."""
        return cls(
            read_bilm(options_path, weights_path),
            max_word_bytes=read_options(options_path)[1],
            **kwargs,
        )

    def reset_state(self) -> None:
        """Forget the state, as before the first sentence."""
        self.state = None

    def layer_outputs(self, ids_BTC: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Each layer's (B, T + 2, 2 P), the marks of begin and end included, zero at padding; and the mask (B, T + 2).

        Raises InputError for ids of another number of bytes than the model was made for: a long word would be another one.
        """
        if ids_BTC.shape[-1] != self.max_word_bytes:
            raise InputError(
                f"these ids have {ids_BTC.shape[-1]} bytes a word, and the model {self.max_word_bytes}; give batch_to_ids that number"
            )
        ids_BTC, mask_BT = _add_sentence_boundaries(ids_BTC.long())
        B, T, C = ids_BTC.shape
        distinct_UC, words_N = torch.unique(ids_BTC.reshape(B * T, C), dim=0, return_inverse=True)
        characters_UC = torch.from_numpy(trim_padding(distinct_UC.cpu().numpy())).to(ids_BTC.device)
        batch = Batch(
            words_N.view(B, T), mask_BT, byte_ids_UC=characters_UC, word_rows_BT=words_N.view(B, T)
        )
        if self.state is not None:
            self.state = tuple(
                (output.to(ids_BTC.device), cell.to(ids_BTC.device)) for output, cell in self.state
            )
        layers, state = self.model.encode_from_state(
            batch,
            _resize_state(self.state, B) if self.carry_state and self.state is not None else None,
        )
        if self.carry_state:
            self.state = state if self.state is None else _merge_states(self.state, state)
        return tuple(x * mask_BT[..., None] for x in layers), mask_BT

    def forward(self, ids_BTC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, T, 2 P) and the mask (B, T); both with the marks of begin and end where `boundaries` are asked for."""
        layers, mask_BT = self.layer_outputs(ids_BTC)
        mixed = self.scalar_mix(layers, mask_BT)
        if self.keep_sentence_boundaries:
            return mixed, mask_BT
        inner_BT = mask_BT[:, 2:]  # a sentence is two shorter without its marks
        return mixed[:, 1:-1] * inner_BT[..., None], inner_BT


def _add_sentence_boundaries(ids_BTC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T + 2, C) with the marks before the first and after the last word, and the mask (B, T + 2)."""
    B, T, C = ids_BTC.shape
    lengths_B = (ids_BTC > 0).any(-1).sum(1)
    begin, end = torch.from_numpy(word_byte_table(["<S>", "</S>"], C).astype(np.int64)).to(
        ids_BTC.device
    )
    found = ids_BTC.new_zeros(B, T + 2, C)
    found[:, 0], found[:, 1:-1] = begin, ids_BTC
    found[torch.arange(B, device=ids_BTC.device), lengths_B + 1] = end
    return found, torch.arange(T + 2, device=ids_BTC.device)[None] < (lengths_B + 2)[:, None]


def _resize_state(state: LSTMStates, batch_size: int) -> LSTMStates:
    """The first rows of a kept state, with new ones that are cold."""

    def sized(x: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [x[:, :batch_size], x.new_zeros(2, max(0, batch_size - x.shape[1]), x.shape[2])], 1
        )

    return tuple((sized(output), sized(cell)) for output, cell in state)


def _merge_states(old: LSTMStates, new: LSTMStates) -> LSTMStates:
    """The new state, and the old one in the rows that this batch did not have."""
    rows = new[0][0].shape[1]
    return tuple(
        (torch.cat([a, c[:, rows:]], 1), torch.cat([b, d[:, rows:]], 1))
        for (a, b), (c, d) in zip(new, old, strict=True)
    )
