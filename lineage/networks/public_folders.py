"""Public checkpoints: folders that transformers saved, on disk or in the Hub's cache.

They are identified by digests and checked before anything runs. Nothing here needs transformers,
and only safetensors are read, never a pickle. `lineage.families.public` is the model.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lineage.artifacts import read_json
from lineage.config.records import MAX_LAYERS, check_positive, parse_record, suggest_nearest
from lineage.data.files import file_digests
from lineage.data.hub import download_snapshot
from lineage.errors import InputError, shorten_value
from lineage.networks import weights

HFConfig = dict[str, Any]  # the contents of a config.json that transformers wrote

REQUIRED_FILES = ("config.json", "tokenizer.json")  # besides the weights
MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
DENSE_FOLDER = "2_Dense"
DENSE_WEIGHTS_FILE = f"{DENSE_FOLDER}/{weights.WEIGHTS_FILE}"
OPTIONAL_FILES = (  # read if they exist
    "tokenizer_config.json",
    MODULES_FILE,
    POOLING_FILE,
    f"{DENSE_FOLDER}/config.json",
    DENSE_WEIGHTS_FILE,
)
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
HUB_REPOSITORY_PATTERN = re.compile(r"[\w.-]+(/[\w.-]+)?")
TRANSFORMERS_MISSING = (
    "a public checkpoint is read with transformers, which is not installed; "
    'pip install "lineage-pretraining[formats]"'
)

# first: [CLS] through the pooler, if there is one. cls: [CLS] as it is, of a sentence encoder.
PoolingMode = Literal["first", "cls", "last", "mean", "max"]
POOLING_MODES: dict[str, PoolingMode] = {  # in 1_Pooling/config.json, of older folders too
    "mean_tokens": "mean",
    "cls_token": "cls",
    "max_tokens": "max",
    "lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
    "max": "max",
}
DenseActivation = Literal["Identity", "Tanh", "ReLU", "GELU"]  # classes of torch.nn
# The modules of a sentence encoder in order, with their folders; the last two are optional.
SENTENCE_MODULES = {
    "Transformer": "",
    "Pooling": "1_Pooling",
    "Dense": DENSE_FOLDER,
    "Normalize": None,  # has no files
}


@dataclass(frozen=True)
class LmHeadLayout:
    """A masked model's head: dense, activation and norm, then the tied table and a bias."""

    dense: str  # names of tensors, without .weight and .bias
    norm: str
    bias: str  # the name of the tensor
    activation_key: str  # in config.json; empty: always the exact GELU
    norm_eps_key: str = "layer_norm_eps"  # empty: 1e-12

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How the names of its tensors begin, those of the tied table's copies included."""
        return tuple(f"{name.split('.')[0]}." for name in (self.dense, self.norm, self.bias))


@dataclass(frozen=True)
class ModelType:
    """The peculiarities of one of transformers' model types."""

    tensor_prefix: str  # of the body's tensors; files of a bare body lack it
    blocks: str  # the list of blocks in the library's model
    lm_head: LmHeadLayout | None  # None: there is no head, or the tied embedding is the head
    mask_token: str  # if tokenizer_config.json does not name it; empty: a causal model
    embeddings: tuple[str, ...] = ("embeddings",)  # modules of the library's model
    final_norm: str = ""  # the norm after the last block
    pooler_tensor: str = ""  # a layer over [CLS]; empty: the type has none
    max_positions_key: str = "max_position_embeddings"  # in config.json
    padding_id: int = 0  # the library's, if config.json does not give it
    counts_from_padding: bool = False  # positions begin after the padding id, as in RoBERTa
    min_token_types: int | None = 1  # of type_vocab_size; None: it reads no token types
    takes_causal_mask: bool = True  # its attention takes a mask of two positions
    # Initial weights whose names end so shrink with the number of layers, as in GPT-2.
    output_projections: tuple[str, ...] = ()
    ignored_tensors: str = ""  # a pattern: heads of other tasks that only this type has
    # Keys for which only this value, or null, can be read; see REQUIRED_VALUES.
    required_values: Mapping[str, object] = field(default_factory=dict)


BERT_POOLER = "pooler.dense.weight"
ROBERTA_HEAD = LmHeadLayout("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "")
ROBERTA = ModelType(
    "roberta.",
    "encoder.layer",
    ROBERTA_HEAD,
    "<mask>",
    pooler_tensor=BERT_POOLER,
    padding_id=1,
    counts_from_padding=True,
)
MODEL_TYPES = {
    "bert": ModelType(
        "bert.",
        "encoder.layer",
        LmHeadLayout(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
            "hidden_act",
        ),
        "[MASK]",
        pooler_tensor=BERT_POOLER,
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": ModelType(
        "distilbert.",
        "transformer.layer",
        LmHeadLayout(
            "vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "activation", ""
        ),
        "[MASK]",
        min_token_types=None,
        ignored_tensors=r".*\bpre_classifier\..*",
    ),
    "mpnet": ModelType(
        "mpnet.",
        "encoder.layer",
        ROBERTA_HEAD,
        "<mask>",
        pooler_tensor=BERT_POOLER,
        padding_id=1,
        counts_from_padding=True,
        min_token_types=None,
        takes_causal_mask=False,
        # The library's code has these numbers, whatever config.json says.
        required_values={"pad_token_id": 1, "relative_attention_num_buckets": 32},
    ),
    # A discriminator tells replaced tokens from original ones, so it has no language model.
    "electra": ModelType(
        "electra.",
        "encoder.layer",
        None,
        "[MASK]",
        ignored_tensors=r".*\b(discriminator_predictions|generator_predictions|generator_lm_head)\..*",
    ),
    "albert": ModelType(
        "albert.",
        "encoder.albert_layer_groups",
        LmHeadLayout(
            "predictions.dense", "predictions.LayerNorm", "predictions.bias", "hidden_act"
        ),
        "[MASK]",
        pooler_tensor="pooler.weight",
        ignored_tensors=r".*\bsop_classifier\..*",
        required_values={"inner_group_num": 1},
    ),
    # DeBERTa-v3 is a discriminator too, and transformers gives its folders a head that was never
    # trained.
    "deberta-v2": ModelType(
        "deberta.",
        "encoder.layer",
        None,
        "[MASK]",
        min_token_types=0,
        ignored_tensors=(
            r"cls\..*|.*\b(pooler|lm_predictions|mask_predictions|position_embeddings)\..*"
        ),
    ),
    "modernbert": ModelType(
        "model.",
        "layers",
        LmHeadLayout(
            "head.dense", "head.norm", "decoder.bias", "classifier_activation", "norm_eps"
        ),
        "[MASK]",
        final_norm="final_norm",
        padding_id=50283,
        min_token_types=None,
        output_projections=("Wo.weight", "head.dense.weight"),
        ignored_tensors=r"head\..*|decoder\..*",
    ),
    "openai-gpt": ModelType(
        "transformer.",
        "h",
        None,
        "",
        embeddings=("tokens_embed", "positions_embed"),
        max_positions_key="n_positions",
        min_token_types=None,
    ),
    "gpt2": ModelType(
        "transformer.",
        "h",
        None,
        "",
        embeddings=("wte", "wpe"),
        final_norm="ln_f",
        max_positions_key="n_positions",
        min_token_types=None,
        output_projections=("c_proj.weight",),
    ),
}

DROPOUT_KEYS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
)
# The heads divide the hidden size.
NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY = {
    "hidden_size": "num_attention_heads",
    "n_embd": "n_head",
    "dim": "n_heads",
}
SIZE_KEYS = (
    *NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY,
    *NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY.values(),
    "vocab_size",
    "embedding_size",
    "intermediate_size",
    "hidden_dim",
    "max_position_embeddings",
    "n_positions",
    "num_hidden_groups",
)
NUM_LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers")
SMALL_NUMBER_KEYS = ("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "initializer_range")
ACTIVATION_KEYS = (
    "hidden_act",
    "activation_function",
    "afn",
    "activation",
    "hidden_activation",
    "classifier_activation",
)
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
        ("type_vocab_size",), lambda v: _is_whole(v) and v >= 0, "a whole number, at least zero"
    ),
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
class DenseLayer:
    """The layer of a sentence encoder over its pooled vector: 2_Dense/config.json."""

    in_features: int
    out_features: int
    bias: bool
    activation: DenseActivation

    def __post_init__(self) -> None:
        check_positive(self, "in_features", "out_features")


@dataclass(frozen=True)
class CheckpointInfo:
    """The contents of a folder."""

    hf_config: HFConfig
    max_positions: int  # special tokens included
    has_lm_head: bool
    has_pooler: bool  # a layer over [CLS]
    pooling: PoolingMode  # the model's default vector of a text
    dense: DenseLayer | None = None  # of a sentence encoder, over the pooled vector
    normalize: bool = False  # of a sentence encoder: its vectors have the length one
    new_lm_head: bool = False  # the folder has none; a new one was added, to continue on the corpus

    def __post_init__(self) -> None:
        max_positions = get_max_positions(self.hf_config)
        if max_positions != self.max_positions:
            raise ValueError(
                f"max_positions is {self.max_positions}, and hf_config says {max_positions}"
            )

    @property
    def model_type(self) -> ModelType:
        return MODEL_TYPES[self.hf_config["model_type"]]

    @property
    def causal(self) -> bool:
        """True if it reads from left to right."""
        return not self.model_type.mask_token

    def with_lm_head(self) -> "CheckpointInfo":
        """Return the contents with a new head, if the folder lacks one and its type has one."""
        if self.has_lm_head or self.model_type.lm_head is None:
            return self
        return replace(self, has_lm_head=True, new_lm_head=True)


@dataclass(frozen=True)
class CheckpointSource:
    """The keys `from` and `revision` of a model: a folder, or a Hub repository at a commit."""

    path_or_repo: str
    revision: str | None
    where: str  # the place in params.yaml, for messages

    def resolve_folder(self, root: Path) -> Path:
        """Return the folder below `root`, or the Hub's, downloaded once. Raises InputError."""
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

    def verify_unchanged(self, root: Path, recorded_fingerprint: Mapping[str, object]) -> Path:
        """Return the folder if it has its recorded fingerprint; else raise InputError."""
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
    """Read config.json and the headers of the weights."""
    _check_checkpoint_files(folder)
    path = folder / "config.json"
    hf_config = read_json_mapping(path)
    try:
        max_positions = get_max_positions(hf_config)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    model_type = MODEL_TYPES[hf_config["model_type"]]
    tensor_names = weights.list_tensor_names(weights.find_weights_file(folder))
    causal = not model_type.mask_token
    has_lm_head = causal
    if model_type.lm_head is not None:
        has_lm_head = model_type.lm_head.bias in tensor_names
    pooler_names = {model_type.pooler_tensor, model_type.tensor_prefix + model_type.pooler_tensor}
    modules = _read_sentence_modules(folder)
    pooling = _default_pooling(hf_config, causal=causal)
    if modules or (folder / POOLING_FILE).is_file():
        pooling = _read_pooling(folder / POOLING_FILE)
    return CheckpointInfo(
        hf_config=hf_config,
        max_positions=max_positions,
        has_lm_head=has_lm_head,
        has_pooler=bool(model_type.pooler_tensor and pooler_names & tensor_names),
        pooling=pooling,
        dense=_read_dense(folder, hf_config) if "Dense" in modules else None,
        normalize="Normalize" in modules,
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
    for key, value in {**REQUIRED_VALUES, **model_type.required_values}.items():
        if hf_config.get(key, value) not in (value, None):
            raise ValueError(f"{key} is {hf_config[key]!r}; only {value!r} can be read")
    check_hf_config(hf_config)
    for key in (model_type.max_positions_key, "vocab_size"):
        if key not in hf_config:
            raise ValueError(f"the key '{key}' is missing")
    if hf_config.get("type_vocab_size", 1) < (model_type.min_token_types or 0):
        raise ValueError("type_vocab_size is 0; the model reads at least one type of token")
    padding_id = _check_padding_id(hf_config, model_type)
    max_positions = int(hf_config[model_type.max_positions_key])
    if not model_type.counts_from_padding:
        return max_positions
    unused = padding_id + 1
    if max_positions <= unused:
        raise ValueError(
            f"{model_type.max_positions_key} is {max_positions}; {unused} of them are before a "
            "text's"
        )
    return max_positions - unused


def _check_padding_id(hf_config: HFConfig, model_type: ModelType) -> int:
    """Return the padding id; raise ValueError if a masked model's is not one of its ids."""
    padding_id = hf_config.get("pad_token_id", model_type.padding_id)
    if padding_id is None:
        valid = not model_type.counts_from_padding
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


def _default_pooling(hf_config: HFConfig, *, causal: bool) -> PoolingMode:
    """Return how a model that is no sentence encoder makes the vector of a text."""
    if causal:
        return "last"
    # ModernBERT says so: in its local attention, [CLS] does not see the whole of a long text.
    return "mean" if hf_config.get("classifier_pooling") == "mean" else "first"


def _read_sentence_modules(folder: Path) -> tuple[str, ...]:
    """Return the names of a sentence encoder's modules in order; none for other models."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return ()
    tree = read_json(path)
    entries = tree if isinstance(tree, list) else []
    names = []
    for entry in entries:
        type_name = entry.get("type") if isinstance(entry, dict) else None
        names.append(str(type_name).rsplit(".", 1)[-1])
    expected = [name for name in SENTENCE_MODULES if name in names]
    if names != expected or not {"Transformer", "Pooling"} <= set(names):
        raise InputError(
            f"{path}: its modules are {', '.join(names) or 'missing'}; only a Transformer, a "
            "Pooling, and after them Dense and Normalize can be read; remove the file from a copy "
            "to use the model without them"
        )
    for entry, name in zip(entries, names, strict=True):
        module_folder = SENTENCE_MODULES[name]
        if module_folder is not None and entry.get("path") != module_folder:
            raise InputError(
                f"{path}: {name} is in the folder {entry.get('path')!r}; it must be in "
                f"{module_folder!r}, so save the model with a newer sentence-transformers"
            )
    return tuple(names)


def _read_pooling(path: Path) -> PoolingMode:
    if not path.is_file():
        raise InputError(f"{path}: the file is missing, which {MODULES_FILE} names; copy it too")
    tree = read_json_mapping(path)
    names: list[str] = []
    if isinstance(tree.get("pooling_mode"), str):
        names = [tree["pooling_mode"]]
    else:  # older folders have one switch per mode
        for key, value in tree.items():
            if key.startswith("pooling_mode") and value not in (False, None):
                names.append(key.removeprefix("pooling_mode_"))
    if len(names) != 1 or names[0] not in POOLING_MODES:
        raise InputError(
            f"{path}: pools by {', '.join(names) or 'nothing'}; only the mean, the maximum, [CLS] "
            f"or the last piece can be read; remove 1_Pooling and {MODULES_FILE} from a copy"
        )
    return POOLING_MODES[names[0]]


def _read_dense(folder: Path, hf_config: HFConfig) -> DenseLayer:
    """Read the layer of a sentence encoder over its pooled vector. Raises InputError."""
    path = folder / DENSE_FOLDER / "config.json"
    for required in (path, folder / DENSE_WEIGHTS_FILE):
        if not required.is_file():
            raise InputError(
                f"{required}: the file is missing, which {MODULES_FILE} asks for; only "
                "safetensors are read, so save the model with a newer sentence-transformers"
            )
    tree = read_json_mapping(path)
    activation = str(tree.get("activation_function")).rsplit(".", 1)[-1]
    layer = parse_record(
        DenseLayer,
        {
            "in_features": tree.get("in_features"),
            "out_features": tree.get("out_features"),
            "bias": tree.get("bias", True),
            "activation": activation,
        },
        str(path),
    )
    for key in NUM_HEADS_KEY_BY_HIDDEN_SIZE_KEY:
        if hf_config.get(key, layer.in_features) != layer.in_features:
            raise InputError(
                f"{path}: in_features is {layer.in_features}, and {key} in config.json is "
                f"{hf_config[key]}; copy both from one model"
            )
    return layer


def _check_download_complete(folder: Path) -> None:
    weight_files = weights.list_weight_files(weights.find_weights_file(folder))
    for path in (*(folder / name for name in REQUIRED_FILES), *weight_files):
        if not path.is_file():
            raise InputError(f"it has no {path.name}")
