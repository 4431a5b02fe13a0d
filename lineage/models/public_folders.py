"""Public checkpoints: folders that transformers saved, on disk or in the Hub's cache, known by their digests and checked before anything runs.

Nothing here needs transformers: config.json and tokenizer.json are JSON, and of safetensors the headers say which heads are there. Only
safetensors are read, never a pickle. `lineage.models.public` is the model.
"""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lineage.artifacts import read_json
from lineage.config.records import MAX_LAYERS, suggest_nearest
from lineage.data.files import file_digests
from lineage.data.hub import download_snapshot
from lineage.errors import InputError, shorten_value
from lineage.models import weights

REQUIRED_FILES = ("config.json", "tokenizer.json")  # beside the weights
OPTIONAL_FILES = ("tokenizer_config.json", "1_Pooling/config.json")  # read where they are there
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
HUB_REPOSITORY_PATTERN = re.compile(r"[\w.-]+(/[\w.-]+)?")
TRANSFORMERS_MISSING = "a public checkpoint is read with transformers, which is not installed; pip install --requirement constraints.txt"


PoolingMode = Literal[
    "first", "cls", "last", "mean"
]  # cls: as it stands, of an encoder of sentences that no pooler follows


@dataclass(frozen=True)
class ModelType:
    """One of the library's model types, as far as a folder's names are concerned."""

    tensor_prefix: str  # of the body's tensors; files of a bare body are without it
    lm_head_tensor: str  # a tensor that only a file with the head of its language model has; none: the embedding alone is that head
    max_positions_key: str  # the key of config.json that says how many there are
    mask_token: (
        str  # the masked word, where tokenizer_config.json does not say; none: a causal model
    )


ROBERTA = ModelType("roberta.", "lm_head.dense.weight", "max_position_embeddings", "<mask>")
MODEL_TYPES = {
    "bert": ModelType(
        "bert.", "cls.predictions.transform.dense.weight", "max_position_embeddings", "[MASK]"
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "openai-gpt": ModelType("transformer.", "", "n_positions", ""),
    "gpt2": ModelType("transformer.", "", "n_positions", ""),
}


DROPOUT_KEYS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
)
NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY = {
    "hidden_size": "num_attention_heads",
    "n_embd": "n_head",
}  # they share the width
SIZE_KEYS = (
    *NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY,
    *NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY.values(),
    "vocab_size",
    "intermediate_size",
    "max_position_embeddings",
    "n_positions",
    "type_vocab_size",
)
NUM_LAYERS_KEYS = ("num_hidden_layers", "n_layer")
SMALL_NUMBER_KEYS = ("layer_norm_eps", "layer_norm_epsilon", "initializer_range")
ACTIVATION_KEYS = ("hidden_act", "activation_function", "afn")
SPECIAL_TOKEN_ID_KEYS = ("pad_token_id", "bos_token_id")


def check_hf_config(hf_config: Mapping[str, Any]) -> None:
    """Raise ValueError where one of these keys of a config.json has a value that no model has. Who needs a key asks for it."""
    for keys, good, what in (
        (
            SIZE_KEYS,
            lambda value: type(value) is int and value > 0,
            "a whole number above zero",
        ),  # true is an int too
        (
            NUM_LAYERS_KEYS,
            lambda value: type(value) is int and 0 < value <= MAX_LAYERS,
            f"a whole number from 1 to {MAX_LAYERS:,}",
        ),
        (
            ("n_inner",),
            lambda value: value is None or (type(value) is int and value > 0),
            "a whole number above zero, or null",
        ),
        (
            SMALL_NUMBER_KEYS,
            lambda value: type(value) in (int, float) and 0 < value <= 1,
            "a number above 0, up to 1",
        ),
        (
            DROPOUT_KEYS,
            lambda value: type(value) in (int, float) and 0 <= value <= 1,
            "a share, from 0 to 1",
        ),
        (ACTIVATION_KEYS, lambda value: isinstance(value, str), "a name"),
        (
            ("dtype", "torch_dtype"),
            lambda value: value is None or isinstance(value, str),
            "a name, or null",
        ),
        (
            SPECIAL_TOKEN_ID_KEYS,
            lambda value: value is None or type(value) is int,
            "an id, or null",
        ),
    ):
        for key in keys:
            if key in hf_config and not good(hf_config[key]):
                raise ValueError(f"{key} is {shorten_value(repr(hf_config[key]))}; it is {what}")
    for width, heads in NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY.items():
        if width in hf_config and heads in hf_config and hf_config[width] % hf_config[heads]:
            raise ValueError(
                f"{width}, {hf_config[width]}, is not a multiple of {heads}, {hf_config[heads]}"
            )


@dataclass(frozen=True)
class CheckpointInfo:
    """What a folder holds."""

    hf_config: dict[str, Any]  # its config.json
    max_positions: int  # that it can read, marks included
    has_lm_head: bool  # whether its language model's head is there
    has_pooler: bool  # whether a layer over [CLS] is there
    pooling: PoolingMode  # its own vector of a text: [CLS] through its pooler, if it is there, the last piece, or, of a sentence encoder, as it says

    def __post_init__(self) -> None:
        if get_max_positions(self.hf_config) != self.max_positions:
            raise ValueError(
                f"positions is {self.max_positions}, and config says {get_max_positions(self.hf_config)}"
            )

    @property
    def model_type(self) -> ModelType:
        """Its model type's names."""
        return MODEL_TYPES[self.hf_config["model_type"]]

    @property
    def causal(self) -> bool:
        """Whether it reads from left to right."""
        return not self.model_type.mask_token


@dataclass(frozen=True)
class CheckpointSource:
    """The keys `from` and `revision` of a model: a folder, or a repository of the Hub at a commit."""

    path_or_repo: str
    revision: str | None
    where: str  # the place in params.yaml, for messages

    def resolve_folder(self, root: Path) -> Path:
        """The folder, under `root` unless it is absolute; of the Hub the one in its cache, filled once. Raises InputError."""
        folder = root / Path(self.path_or_repo).expanduser()
        if folder.is_dir():
            return folder
        if not self.revision or not HUB_REPOSITORY_PATTERN.fullmatch(self.path_or_repo):
            raise InputError(
                f"{self.where}.from: {folder} is no folder; name one that transformers saved, under data_root or absolute, or a "
                "repository of the Hub with 'revision', a commit of 40 hex digits"
            )
        wanted = [
            *REQUIRED_FILES,
            weights.WEIGHTS_FILE,
            weights.INDEX_FILE,
            "model-*-of-*.safetensors",
            *OPTIONAL_FILES,
        ]
        return download_snapshot(
            self.path_or_repo,
            self.revision,
            f"{self.where}.from",
            repo_type="model",
            patterns=lambda local: wanted,
            check=_check_download_complete,
            alternative="save the folder and name it",
        )

    def fingerprint(self, root: Path) -> dict[str, Any]:
        """What tells this checkpoint from any other: the sha256 of each file that is read."""
        folder = self.resolve_folder(root)
        paths = [
            folder / REQUIRED_FILES[0],
            *weights.list_weight_files(weights.find_weights_file(folder)),
            *(folder / name for name in (*REQUIRED_FILES[1:], *OPTIONAL_FILES)),
        ]
        paths = [path for path in paths if path.is_file()]
        files = [
            {"name": p.relative_to(folder).as_posix(), "sha256": d}
            for p, d in zip(paths, file_digests(paths), strict=True)
        ]
        return {"from": self.path_or_repo, "revision": self.revision, "files": files}

    def verify_unchanged(self, root: Path, recorded_fingerprint: Mapping[str, Any]) -> Path:
        """The folder, if it is the one that the sources stage has looked at. Raises InputError."""
        if self.fingerprint(root) != recorded_fingerprint:
            raise InputError(
                f"{self.where}.from: {self.resolve_folder(root)} changed after the sources stage had read it; run again"
            )
        return self.resolve_folder(root)


def parse_checkpoint_source(path_or_repo: object, revision: object, where: str) -> CheckpointSource:
    """The two keys as a record. Raises InputError."""
    if not isinstance(path_or_repo, str) or not path_or_repo:
        raise InputError(
            f"{where}.from: expected a folder that transformers saved, or a repository of the Hub, found {path_or_repo!r}; name it"
        )
    if revision is not None and not (
        isinstance(revision, str) and COMMIT_PATTERN.fullmatch(revision)
    ):
        raise InputError(
            f"{where}.revision: {revision!r} is no commit of 40 hex digits; give one, so that the checkpoint never changes"
        )
    return CheckpointSource(path_or_repo, revision, where)


def is_transformers_available() -> bool:
    """Whether transformers can be imported; importing it takes seconds."""
    return importlib.util.find_spec("transformers") is not None


def inspect_checkpoint(folder: Path) -> CheckpointInfo:
    """What config.json and the headers of the weights say. Raises InputError where a file is missing or is nothing that can be read."""
    _check_checkpoint_files(folder)
    path = folder / "config.json"
    hf_config = read_json_mapping(path)
    try:
        positions = get_max_positions(hf_config)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    kind, names = (
        MODEL_TYPES[hf_config["model_type"]],
        weights.list_tensor_names(weights.find_weights_file(folder)),
    )
    pooler = bool({"pooler.dense.weight", f"{kind.tensor_prefix}pooler.dense.weight"} & names)
    return CheckpointInfo(
        hf_config,
        positions,
        not kind.lm_head_tensor or kind.lm_head_tensor in names,
        pooler,
        _read_pooling(folder, causal=not kind.mask_token),
    )


def get_max_positions(hf_config: Mapping[str, Any]) -> int:
    """How many positions a model of this config.json can read, marks included. Raises ValueError where it is none that can be read here."""
    found = hf_config.get("model_type")
    kind = MODEL_TYPES.get(str(found))
    if kind is None:
        raise ValueError(
            f"model_type is {found!r}{suggest_nearest(str(found), MODEL_TYPES)}; other types cannot be read"
        )
    for key, value in (
        ("is_decoder", False),
        ("add_cross_attention", False),
        ("tie_word_embeddings", True),
        ("quantization_config", None),
        ("position_embedding_type", "absolute"),
    ):
        if hf_config.get(key, value) not in (value, None):
            raise ValueError(f"{key} is {hf_config[key]!r}; only {value!r} can be read")
    check_hf_config(hf_config)
    for key in (kind.max_positions_key, "vocab_size"):
        if key not in hf_config:
            raise ValueError(f"the key '{key}' is missing")
    pad = hf_config.get("pad_token_id", 1 if kind is ROBERTA else 0)
    if kind.mask_token and not (
        0 <= pad < hf_config["vocab_size"] if pad is not None else kind is not ROBERTA
    ):
        raise ValueError(f"pad_token_id is {pad!r}; it is one of {hf_config['vocab_size']} ids")
    spare = (
        pad + 1 if kind is ROBERTA else 0
    )  # its positions are counted from behind that of padding
    if hf_config[kind.max_positions_key] <= spare:
        raise ValueError(
            f"{kind.max_positions_key} is {hf_config[kind.max_positions_key]}; {spare} of them are before a text's"
        )
    return int(hf_config[kind.max_positions_key]) - spare


def read_json_mapping(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(
            f"{path}: expected a mapping of keys, found {type(found).__name__}; save the model again"
        )
    return found


def _check_checkpoint_files(folder: Path) -> None:
    path = weights.find_weights_file(folder)
    if not path.is_file() and (pickles := sorted(p.name for p in folder.glob("*.bin"))):
        raise InputError(
            f"{folder}: its weights are in {pickles[0]}, a pickle, which may run any code and is never read; load it where "
            "you trust it, and save_pretrained writes model.safetensors"
        )
    hints = {
        "tokenizer.json": "only fast tokenizers are read: save_pretrained of AutoTokenizer writes it"
    }
    for name in (REQUIRED_FILES[0], path.name, *REQUIRED_FILES[1:]):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder}: {name} is missing; {hints.get(name, 'name a folder that save_pretrained wrote')}"
            )


def _read_pooling(folder: Path, *, causal: bool) -> PoolingMode:
    """How a sentence encoder pools stands in its folder; other models have [CLS], or the last piece."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "last" if causal else "first"
    said = read_json_mapping(path)
    on = [
        key
        for key, value in said.items()
        if key.startswith("pooling_mode") and value not in (False, None)
    ]
    ways: dict[str, PoolingMode] = {
        "mean_tokens": "mean",
        "cls_token": "cls",
        "lasttoken": "last",
        "mean": "mean",
        "cls": "cls",
    }
    named = (
        [said["pooling_mode"]]
        if isinstance(said.get("pooling_mode"), str)
        else [key.removeprefix("pooling_mode_") for key in on]
    )
    if len(named) != 1 or named[0] not in ways:
        raise InputError(
            f"{path}: pools by {', '.join(named) or 'nothing'}; only the mean, [CLS] or the last piece can be read; take 1_Pooling out of a copy"
        )
    return ways[named[0]]


def _check_download_complete(folder: Path) -> None:
    """Raise InputError where a file is missing that is read."""
    for path in (
        *(folder / name for name in REQUIRED_FILES),
        *weights.list_weight_files(weights.find_weights_file(folder)),
    ):
        if not path.is_file():
            raise InputError(f"it has no {path.name}")
