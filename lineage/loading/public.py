"""Public checkpoints: folders that transformers saved, on disk or in the Hub's cache, known by their digests and checked before anything runs.

Nothing here needs transformers: config.json and tokenizer.json are JSON, and of safetensors the headers say which heads are there. Only
safetensors are read, never a pickle. `lineage.families.public` is the model.
"""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lineage import weights
from lineage.artifacts import read_json
from lineage.errors import InputError, shown
from lineage.loading.files import digests
from lineage.loading.hub import snapshot
from lineage.records import MOST_LAYERS, nearest

WANTED = ("config.json", "tokenizer.json")  # beside the weights
ASIDE = ("tokenizer_config.json", "1_Pooling/config.json")  # read where they are there
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
NEEDS_LIBRARY = "a public checkpoint is read with transformers, which is not installed; pip install --requirement constraints.txt"


Reads = Literal["first", "cls", "last", "mean"]  # cls: as it stands, of an encoder of sentences that no pooler follows


@dataclass(frozen=True)
class Kind:
    """One of the library's model types, as far as a folder's names are concerned."""

    prefix: str  # of the body's tensors; files of a bare body are without it
    head: str  # a tensor that only a file with the head of its language model has; none: the embedding alone is that head
    positions: str  # the key of config.json that says how many there are
    mask: str  # the masked word, where tokenizer_config.json does not say; none: a causal model


ROBERTA = Kind("roberta.", "lm_head.dense.weight", "max_position_embeddings", "<mask>")
KINDS = {
    "bert": Kind("bert.", "cls.predictions.transform.dense.weight", "max_position_embeddings", "[MASK]"),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "openai-gpt": Kind("transformer.", "", "n_positions", ""),
    "gpt2": Kind("transformer.", "", "n_positions", ""),
}


DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop")
HEADS = {"hidden_size": "num_attention_heads", "n_embd": "n_head"}  # they share the width
SIZES = (*HEADS, *HEADS.values(), "vocab_size", "intermediate_size", "max_position_embeddings", "n_positions", "type_vocab_size")
LAYERS = ("num_hidden_layers", "n_layer")
NUMBERS = ("layer_norm_eps", "layer_norm_epsilon", "initializer_range")
ACTIVATIONS = ("hidden_act", "activation_function", "afn")
MARKS = ("pad_token_id", "bos_token_id")


def check_values(theirs: Mapping[str, Any]) -> None:
    """Raise ValueError where one of these keys of a config.json has a value that no model has. Who needs a key asks for it."""
    for keys, good, what in (
        (SIZES, lambda value: type(value) is int and value > 0, "a whole number above zero"),  # true is an int too
        (LAYERS, lambda value: type(value) is int and 0 < value <= MOST_LAYERS, f"a whole number from 1 to {MOST_LAYERS:,}"),
        (("n_inner",), lambda value: value is None or (type(value) is int and value > 0), "a whole number above zero, or null"),
        (NUMBERS, lambda value: type(value) in (int, float) and 0 < value <= 1, "a number above 0, up to 1"),
        (DROPOUTS, lambda value: type(value) in (int, float) and 0 <= value <= 1, "a share, from 0 to 1"),
        (ACTIVATIONS, lambda value: isinstance(value, str), "a name"),
        (("dtype", "torch_dtype"), lambda value: value is None or isinstance(value, str), "a name, or null"),
        (MARKS, lambda value: value is None or type(value) is int, "an id, or null"),
    ):
        for key in keys:
            if key in theirs and not good(theirs[key]):
                raise ValueError(f"{key} is {shown(repr(theirs[key]))}; it is {what}")
    for width, heads in HEADS.items():
        if width in theirs and heads in theirs and theirs[width] % theirs[heads]:
            raise ValueError(f"{width}, {theirs[width]}, is not a multiple of {heads}, {theirs[heads]}")


@dataclass(frozen=True)
class About:
    """What a folder holds."""

    config: dict[str, Any]  # its config.json
    positions: int  # that it can read, marks included
    head: bool  # whether its language model's head is there
    pooler: bool  # whether a layer over [CLS] is there
    reads: Reads  # its own vector of a text: [CLS] through its pooler, if it is there, the last piece, or, of a sentence encoder, as it says

    def __post_init__(self) -> None:
        if positions_of(self.config) != self.positions:
            raise ValueError(f"positions is {self.positions}, and config says {positions_of(self.config)}")

    @property
    def kind(self) -> Kind:
        """Its model type's names."""
        return KINDS[self.config["model_type"]]

    @property
    def causal(self) -> bool:
        """Whether it reads from left to right."""
        return not self.kind.mask


@dataclass(frozen=True)
class Origin:
    """The keys `from` and `revision` of a model: a folder, or a repository of the Hub at a commit."""

    place: str
    revision: str | None
    where: str  # the place in params.yaml, for messages

    def folder(self, root: Path) -> Path:
        """The folder, under `root` unless it is absolute; of the Hub the one in its cache, filled once. Raises InputError."""
        folder = root / Path(self.place).expanduser()
        if folder.is_dir():
            return folder
        if not self.revision or not HUB.fullmatch(self.place):
            raise InputError(f"{self.where}.from: {folder} is no folder; name one that transformers saved, under data_root or absolute, or a "
                             "repository of the Hub with 'revision', a commit of 40 hex digits")  # fmt: skip
        wanted = [*WANTED, weights.WHOLE, weights.INDEX, "model-*-of-*.safetensors", *ASIDE]
        return snapshot(
            self.place, self.revision, f"{self.where}.from", kind="model", patterns=lambda local: wanted, check=_check_whole,
            instead="save the folder and name it",
        )  # fmt: skip

    def facts(self, root: Path) -> dict[str, Any]:
        """What tells this checkpoint from any other: the sha256 of each file that is read."""
        folder = self.folder(root)
        paths = [folder / WANTED[0], *weights.files(weights.place(folder)), *(folder / name for name in (*WANTED[1:], *ASIDE))]
        paths = [path for path in paths if path.is_file()]
        files = [{"name": p.relative_to(folder).as_posix(), "sha256": d} for p, d in zip(paths, digests(paths), strict=True)]
        return {"from": self.place, "revision": self.revision, "files": files}

    def unchanged(self, root: Path, looked_at: Mapping[str, Any]) -> Path:
        """The folder, if it is the one that the sources stage has looked at. Raises InputError."""
        if self.facts(root) != looked_at:
            raise InputError(f"{self.where}.from: {self.folder(root)} changed after the sources stage had read it; run again")
        return self.folder(root)


def origin_of(place: object, revision: object, where: str) -> Origin:
    """The two keys as a record. Raises InputError."""
    if not isinstance(place, str) or not place:
        raise InputError(f"{where}.from: expected a folder that transformers saved, or a repository of the Hub, found {place!r}; name it")
    if revision is not None and not (isinstance(revision, str) and COMMIT.fullmatch(revision)):
        raise InputError(f"{where}.revision: {revision!r} is no commit of 40 hex digits; give one, so that the checkpoint never changes")
    return Origin(place, revision, where)


def library_is_there() -> bool:
    """Whether transformers can be imported; importing it takes seconds."""
    return importlib.util.find_spec("transformers") is not None


def describe(folder: Path) -> About:
    """What config.json and the headers of the weights say. Raises InputError where a file is missing or is nothing that can be read."""
    _check_files(folder)
    path = folder / "config.json"
    theirs = mapping(path)
    try:
        positions = positions_of(theirs)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    kind, names = KINDS[theirs["model_type"]], weights.names(weights.place(folder))
    pooler = bool({"pooler.dense.weight", f"{kind.prefix}pooler.dense.weight"} & names)
    return About(theirs, positions, not kind.head or kind.head in names, pooler, _own_pooling(folder, causal=not kind.mask))


def positions_of(theirs: Mapping[str, Any]) -> int:
    """How many positions a model of this config.json can read, marks included. Raises ValueError where it is none that can be read here."""
    found = theirs.get("model_type")
    kind = KINDS.get(str(found))
    if kind is None:
        raise ValueError(f"model_type is {found!r}{nearest(str(found), KINDS)}; other types cannot be read")
    for key, value in (("is_decoder", False), ("add_cross_attention", False), ("tie_word_embeddings", True), ("quantization_config", None),
                       ("position_embedding_type", "absolute")):  # fmt: skip
        if theirs.get(key, value) not in (value, None):
            raise ValueError(f"{key} is {theirs[key]!r}; only {value!r} can be read")
    check_values(theirs)
    for key in (kind.positions, "vocab_size"):
        if key not in theirs:
            raise ValueError(f"the key '{key}' is missing")
    pad = theirs.get("pad_token_id", 1 if kind is ROBERTA else 0)
    if kind.mask and not (0 <= pad < theirs["vocab_size"] if pad is not None else kind is not ROBERTA):
        raise ValueError(f"pad_token_id is {pad!r}; it is one of {theirs['vocab_size']} ids")
    spare = pad + 1 if kind is ROBERTA else 0  # its positions are counted from behind that of padding
    if theirs[kind.positions] <= spare:
        raise ValueError(f"{kind.positions} is {theirs[kind.positions]}; {spare} of them are before a text's")
    return int(theirs[kind.positions]) - spare


def mapping(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a mapping of keys, found {type(found).__name__}; save the model again")
    return found


def _check_files(folder: Path) -> None:
    path = weights.place(folder)
    if not path.is_file() and (pickles := sorted(p.name for p in folder.glob("*.bin"))):
        raise InputError(f"{folder}: its weights are in {pickles[0]}, a pickle, which may run any code and is never read; load it where "
                         "you trust it, and save_pretrained writes model.safetensors")  # fmt: skip
    hints = {"tokenizer.json": "only fast tokenizers are read: save_pretrained of AutoTokenizer writes it"}
    for name in (WANTED[0], path.name, *WANTED[1:]):
        if not (folder / name).is_file():
            raise InputError(f"{folder}: {name} is missing; {hints.get(name, 'name a folder that save_pretrained wrote')}")


def _own_pooling(folder: Path, *, causal: bool) -> Reads:
    """How a sentence encoder pools stands in its folder; other models have [CLS], or the last piece."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "last" if causal else "first"
    said = mapping(path)
    on = [key for key, value in said.items() if key.startswith("pooling_mode") and value not in (False, None)]
    ways: dict[str, Reads] = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "last", "mean": "mean", "cls": "cls"}
    named = [said["pooling_mode"]] if isinstance(said.get("pooling_mode"), str) else [key.removeprefix("pooling_mode_") for key in on]
    if len(named) != 1 or named[0] not in ways:
        raise InputError(
            f"{path}: pools by {', '.join(named) or 'nothing'}; only the mean, [CLS] or the last piece can be read; take 1_Pooling out of a copy"
        )
    return ways[named[0]]


def _check_whole(folder: Path) -> None:
    """Raise InputError where a file is missing that is read."""
    for path in (*(folder / name for name in WANTED), *weights.files(weights.place(folder))):
        if not path.is_file():
            raise InputError(f"it has no {path.name}")
