"""Public checkpoints: folders that transformers saved, on disk or in the Hub's cache.

They are identified by digests and checked before anything runs. Nothing here needs transformers:
config.json and tokenizer.json are JSON, and the headers of safetensors tell which heads exist. Only
safetensors are read, never a pickle. `lineage.models.public` is the model.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lineage.artifacts import read_json
from lineage.config.records import MAX_LAYERS, suggest_nearest
from lineage.data.files import file_digests
from lineage.data.hub import download_snapshot
from lineage.errors import InputError, shorten_value
from lineage.models import weights

HFConfig = dict[str, Any]  # the contents of a config.json that transformers wrote

REQUIRED_FILES = ("config.json", "tokenizer.json")  # besides the weights
OPTIONAL_FILES = ("tokenizer_config.json", "1_Pooling/config.json")  # read if they exist
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
HUB_REPOSITORY_PATTERN = re.compile(r"[\w.-]+(/[\w.-]+)?")
TRANSFORMERS_MISSING = (
    "a public checkpoint is read with transformers, which is not installed; "
    'pip install "lineage-pretraining[formats]"'
)

# first: [CLS] through the pooler, if there is one. cls: [CLS] as it is, of a sentence encoder.
PoolingMode = Literal["first", "cls", "last", "mean"]


@dataclass(frozen=True)
class ModelType:
    """The names of config keys and tensors for one of transformers' model types."""

    tensor_prefix: str  # of the body's tensors; files of a bare body lack it
    # A tensor that only files with the language model's head have; empty: the tied embedding is
    # the head.
    lm_head_tensor: str
    max_positions_key: str  # in config.json
    mask_token: str  # if tokenizer_config.json does not name it; empty: a causal model


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
# The heads divide the hidden size.
NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY = {"hidden_size": "num_attention_heads", "n_embd": "n_head"}
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
# Keys for which only this value, or null, can be read.
REQUIRED_VALUES = {
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "quantization_config": None,
    "position_embedding_type": "absolute",
}


@dataclass(frozen=True)
class _KeyRule:
    keys: tuple[str, ...]
    is_valid: Callable[[Any], bool]
    expected: str  # for the message


def _is_whole(value: object) -> bool:
    return type(value) is int  # isinstance would accept true


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


KEY_RULES = (
    _KeyRule(SIZE_KEYS, lambda v: _is_whole(v) and v > 0, "a whole number above zero"),
    _KeyRule(
        NUM_LAYERS_KEYS,
        lambda v: _is_whole(v) and 0 < v <= MAX_LAYERS,
        f"a whole number from 1 to {MAX_LAYERS:,}",
    ),
    _KeyRule(
        ("n_inner",),
        lambda v: v is None or (_is_whole(v) and v > 0),
        "a whole number above zero, or null",
    ),
    _KeyRule(
        SMALL_NUMBER_KEYS, lambda v: _is_number(v) and 0 < v <= 1, "a number above 0, up to 1"
    ),
    _KeyRule(DROPOUT_KEYS, lambda v: _is_number(v) and 0 <= v <= 1, "a share, from 0 to 1"),
    _KeyRule(ACTIVATION_KEYS, lambda v: isinstance(v, str), "a name"),
    _KeyRule(
        ("dtype", "torch_dtype"), lambda v: v is None or isinstance(v, str), "a name, or null"
    ),
    _KeyRule(SPECIAL_TOKEN_ID_KEYS, lambda v: v is None or _is_whole(v), "an id, or null"),
)


def check_hf_config(hf_config: HFConfig) -> None:
    """Raise ValueError if a key of a config.json has an impossible value; keys may be missing."""
    for rule in KEY_RULES:
        for key in rule.keys:
            if key in hf_config and not rule.is_valid(hf_config[key]):
                value = shorten_value(repr(hf_config[key]))
                raise ValueError(f"{key} is {value}; it is {rule.expected}")
    for width, heads in NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY.items():
        if width in hf_config and heads in hf_config and hf_config[width] % hf_config[heads]:
            raise ValueError(
                f"{width}, {hf_config[width]}, is not a multiple of {heads}, {hf_config[heads]}"
            )


@dataclass(frozen=True)
class CheckpointInfo:
    """The contents of a folder."""

    hf_config: HFConfig
    max_positions: int  # special tokens included
    has_lm_head: bool
    has_pooler: bool  # a layer over [CLS]
    pooling: PoolingMode  # the model's default vector of a text

    def __post_init__(self) -> None:
        max_positions = get_max_positions(self.hf_config)
        if max_positions != self.max_positions:
            raise ValueError(
                f"max_positions is {self.max_positions}, and hf_config says {max_positions}"
            )

    @property
    def model_type(self) -> ModelType:
        """The names of its model type."""
        return MODEL_TYPES[self.hf_config["model_type"]]

    @property
    def causal(self) -> bool:
        """True if it reads from left to right."""
        return not self.model_type.mask_token


@dataclass(frozen=True)
class CheckpointSource:
    """The keys `from` and `revision` of a model: a folder, or a Hub repository at a commit."""

    path_or_repo: str
    revision: str | None
    where: str  # the place in params.yaml, for messages

    def resolve_folder(self, root: Path) -> Path:
        """Return the folder, relative to `root`, or the Hub's cached one, downloaded once.

        Raises InputError if there is neither.
        """
        folder = root / Path(self.path_or_repo).expanduser()
        if folder.is_dir():
            return folder
        if not self.revision or not HUB_REPOSITORY_PATTERN.fullmatch(self.path_or_repo):
            raise InputError(
                f"{self.where}.from: {folder} is not a folder; name one that transformers saved, "
                "under data_root or absolute, or a repository of the Hub with 'revision', a commit "
                "of 40 hex digits"
            )
        patterns = [
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
            patterns=lambda local: patterns,
            check=_check_download_complete,
            alternative="save the folder and name it",
        )

    def fingerprint(self, root: Path) -> dict[str, Any]:
        """Return the source and the sha256 of each file that is read."""
        folder = self.resolve_folder(root)
        paths = [
            folder / "config.json",
            *weights.list_weight_files(weights.find_weights_file(folder)),
            folder / "tokenizer.json",
            *(folder / name for name in OPTIONAL_FILES),
        ]
        paths = [path for path in paths if path.is_file()]
        files = []
        for path, digest in zip(paths, file_digests(paths), strict=True):
            files.append({"name": path.relative_to(folder).as_posix(), "sha256": digest})
        return {"from": self.path_or_repo, "revision": self.revision, "files": files}

    def verify_unchanged(self, root: Path, recorded_fingerprint: Mapping[str, Any]) -> Path:
        """Return the folder if it has the fingerprint that the sources stage recorded.

        Raises InputError if it does not.
        """
        folder = self.resolve_folder(root)
        if self.fingerprint(root) != recorded_fingerprint:
            raise InputError(
                f"{self.where}.from: {folder} changed after the sources stage had read it; "
                "run again"
            )
        return folder


def parse_checkpoint_source(path_or_repo: object, revision: object, where: str) -> CheckpointSource:
    """Check the keys `from` and `revision`. Raises InputError."""
    if not isinstance(path_or_repo, str) or not path_or_repo:
        raise InputError(
            f"{where}.from: expected a folder that transformers saved, or a repository of the Hub, "
            f"found {path_or_repo!r}; name it"
        )
    if revision is None:
        return CheckpointSource(path_or_repo, None, where)
    if not isinstance(revision, str) or not COMMIT_PATTERN.fullmatch(revision):
        raise InputError(
            f"{where}.revision: {revision!r} is not a commit of 40 hex digits; give one, so that "
            "the checkpoint never changes"
        )
    return CheckpointSource(path_or_repo, revision, where)


def is_transformers_available() -> bool:
    """Return True if transformers is installed, without importing it, which takes seconds."""
    return importlib.util.find_spec("transformers") is not None


def inspect_checkpoint(folder: Path) -> CheckpointInfo:
    """Read config.json and the headers of the weights.

    Raises InputError if a file is missing or cannot be read.
    """
    _check_checkpoint_files(folder)
    path = folder / "config.json"
    hf_config = read_json_mapping(path)
    try:
        max_positions = get_max_positions(hf_config)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    model_type = MODEL_TYPES[hf_config["model_type"]]
    tensor_names = weights.list_tensor_names(weights.find_weights_file(folder))
    pooler_names = {"pooler.dense.weight", f"{model_type.tensor_prefix}pooler.dense.weight"}
    has_lm_head = not model_type.lm_head_tensor or model_type.lm_head_tensor in tensor_names
    return CheckpointInfo(
        hf_config=hf_config,
        max_positions=max_positions,
        has_lm_head=has_lm_head,
        has_pooler=bool(pooler_names & tensor_names),
        pooling=_read_pooling(folder, causal=not model_type.mask_token),
    )


def get_max_positions(hf_config: HFConfig) -> int:
    """Return the number of positions that a model can read, special tokens included.

    Raises ValueError if the config describes a model that cannot be read here.
    """
    name = hf_config.get("model_type")
    model_type = MODEL_TYPES.get(str(name))
    if model_type is None:
        raise ValueError(
            f"model_type is {name!r}{suggest_nearest(str(name), MODEL_TYPES)}; other types cannot "
            "be read"
        )
    for key, value in REQUIRED_VALUES.items():
        if hf_config.get(key, value) not in (value, None):
            raise ValueError(f"{key} is {hf_config[key]!r}; only {value!r} can be read")
    check_hf_config(hf_config)
    for key in (model_type.max_positions_key, "vocab_size"):
        if key not in hf_config:
            raise ValueError(f"the key '{key}' is missing")
    padding_id = _check_padding_id(hf_config, model_type)
    max_positions = int(hf_config[model_type.max_positions_key])
    if model_type is not ROBERTA:
        return max_positions
    # RoBERTa counts positions from the one after the padding id.
    unused = padding_id + 1
    if max_positions <= unused:
        raise ValueError(
            f"{model_type.max_positions_key} is {max_positions}; {unused} of them are before a "
            "text's"
        )
    return max_positions - unused


def _check_padding_id(hf_config: HFConfig, model_type: ModelType) -> int:
    """Return the padding id; raise ValueError if a masked model's is not one of its ids."""
    padding_id = hf_config.get("pad_token_id", 1 if model_type is ROBERTA else 0)
    if padding_id is None:
        valid = model_type is not ROBERTA
    else:
        valid = 0 <= padding_id < hf_config["vocab_size"]
    if model_type.mask_token and not valid:
        raise ValueError(
            f"pad_token_id is {padding_id!r}; it is one of {hf_config['vocab_size']} ids"
        )
    return padding_id or 0


def read_json_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold a mapping. Raises InputError."""
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise InputError(
            f"{path}: expected a mapping of keys, found {type(tree).__name__}; save the model again"
        )
    return tree


def _check_checkpoint_files(folder: Path) -> None:
    """Raise InputError if a file is missing, or the weights are a pickle."""
    weights_path = weights.find_weights_file(folder)
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles and not weights_path.is_file():
        raise InputError(
            f"{folder}: its weights are in {pickles[0]}, a pickle, which may run any code and is "
            "never read; load it where you trust it, and save_pretrained writes model.safetensors"
        )
    hints = {
        "tokenizer.json": (
            "only fast tokenizers are read: save_pretrained of AutoTokenizer writes it"
        )
    }
    for name in ("config.json", weights_path.name, "tokenizer.json"):
        if not (folder / name).is_file():
            hint = hints.get(name, "name a folder that save_pretrained wrote")
            raise InputError(f"{folder}: {name} is missing; {hint}")


def _read_pooling(folder: Path, *, causal: bool) -> PoolingMode:
    """Read how a sentence encoder pools; other models have [CLS], or the last piece."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "last" if causal else "first"
    tree = read_json_mapping(path)
    names: list[str] = []
    if isinstance(tree.get("pooling_mode"), str):
        names = [tree["pooling_mode"]]
    else:  # older folders have one switch per mode
        for key, value in tree.items():
            if key.startswith("pooling_mode") and value not in (False, None):
                names.append(key.removeprefix("pooling_mode_"))
    modes: dict[str, PoolingMode] = {
        "mean_tokens": "mean",
        "cls_token": "cls",
        "lasttoken": "last",
        "mean": "mean",
        "cls": "cls",
    }
    if len(names) != 1 or names[0] not in modes:
        raise InputError(
            f"{path}: pools by {', '.join(names) or 'nothing'}; only the mean, [CLS] or the last "
            "piece can be read; remove 1_Pooling from a copy"
        )
    return modes[names[0]]


def _check_download_complete(folder: Path) -> None:
    """Raise InputError if a required file was not downloaded."""
    weight_files = weights.list_weight_files(weights.find_weights_file(folder))
    for path in (*(folder / name for name in REQUIRED_FILES), *weight_files):
        if not path.is_file():
            raise InputError(f"it has no {path.name}")
