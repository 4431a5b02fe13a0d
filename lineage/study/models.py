"""The models of a study: their blocks in params.yaml as the typed records of their families."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lineage.config.params import Params
from lineage.config.records import parse_record, suggest_nearest
from lineage.config.resolve import family_of
from lineage.errors import InputError
from lineage.methods.registry import EvaluateSettings
from lineage.networks.base import Family, LanguageModelFamily, Public, Static, Trained, with_dropout
from lineage.networks.public_folders import CheckpointSource, parse_checkpoint_source
from lineage.networks.registry import load_family
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, TokenizerSettings, TokenizerType
from lineage.training.optimizers import AdaptSettings

T = TypeVar("T")
MODEL_BLOCKS = ("tokenizer", "architecture", "pretrain", "adapt", "evaluate")
MODEL_KEYS = ("family", "from", "revision")


@dataclass(frozen=True)
class ModelConfig:
    """One entry of `models`: a family and its settings."""

    name: str
    family: Family
    tokenizer: TokenizerSettings | None  # None: a public checkpoint has its own
    architecture: Any
    pretrain: Any
    evaluate: EvaluateSettings
    adapt: AdaptSettings | None = None  # None: the family has no language model to adapt
    # For a public checkpoint; None there: a block without `from`, which others are `like`.
    checkpoint_source: CheckpointSource | None = None

    @property
    def tokenizer_type(self) -> TokenizerType:
        """The units into which its tokenizer splits text."""
        if self.tokenizer and self.tokenizer.end_of_word_suffix:
            return "bpe"
        return self.family.tokenizer_type

    @property
    def is_trained_by_loop(self) -> bool:
        """The shared training loop trains it on the study's corpus, step by step."""
        return isinstance(self.family, LanguageModelFamily) and self.family.reads_corpus(
            self.pretrain
        )


def parse_model_config(name: str, block: Mapping[str, Any], where: str) -> ModelConfig:
    """Parse one entry of `models` in which defaults are filled in. Raises InputError.

    The family is the key `family`, or else the name of the entry.
    """
    known_keys = (*MODEL_BLOCKS, *MODEL_KEYS)
    for key in block:
        if key not in known_keys:
            raise InputError(f"{where}: unknown key '{key}'{suggest_nearest(key, known_keys)}")
    family = load_family(family_of(name, block), where)
    _check_family_options(family, block, where)
    if isinstance(family, Static) and "adapt" in block:
        raise InputError(
            f"{where}: {family.name} has no language model to adapt; remove the key 'adapt'"
        )
    checkpoint_source = _parse_checkpoint_source(family, block, where)

    def parse(record_type: type[T], key: str) -> T:
        return parse_record(record_type, block.get(key, {}), f"{where}.{key}")

    is_public = isinstance(family, Public)
    is_static = isinstance(family, Static)
    model = ModelConfig(
        name,
        family,
        tokenizer=None if is_public else parse(TokenizerSettings, "tokenizer"),
        architecture=parse(family.architecture_class, "architecture"),
        pretrain=parse(family.pretrain_class, "pretrain"),
        adapt=None if is_static else parse(AdaptSettings, "adapt"),
        evaluate=parse(EvaluateSettings, "evaluate"),
        checkpoint_source=checkpoint_source,
    )
    _check_family_support(model, where)
    return model


def _parse_checkpoint_source(
    family: Family, block: Mapping[str, Any], where: str
) -> CheckpointSource | None:
    """Return the source of a public checkpoint, None for other families.

    Raises InputError if another family has such keys, or if a public one has keys for training.
    """
    if not isinstance(family, Public):
        for key in ("from", "revision"):
            if key in block:
                raise InputError(
                    f"{where}.{key}: {family.name} is trained from scratch; remove '{key}', or "
                    "the key 'family'"
                )
        return None
    if block.get("tokenizer") != "pretrained":
        raise InputError(
            f"{where}.tokenizer: a public checkpoint has its own; write tokenizer: pretrained"
        )
    architecture = block.get("architecture")
    if isinstance(architecture, Mapping) and "checkpoint_info" in architecture:
        raise InputError(
            f"{where}.architecture.checkpoint_info: it is read from the checkpoint's folder; take "
            "the key out"
        )
    if block.get("from") is None:
        return None
    return parse_checkpoint_source(block["from"], block.get("revision"), where)


def _check_family_support(model: ModelConfig, where: str) -> None:
    """Raise InputError if a setting asks for something the family does not have."""
    family = model.family
    finetune = model.evaluate.finetune
    if model.tokenizer is not None:
        _check_tokenizer(model, model.tokenizer, f"{where}.tokenizer")
    has_auxiliary_loss = isinstance(family, Trained) and family.auxiliary_loss
    if finetune.aux_lm_weight and not has_auxiliary_loss:
        raise InputError(
            f"{where}.evaluate.finetune.aux_lm_weight: {family.name} has no loss of its own on a "
            "task's texts; set it to 0"
        )
    if finetune.linear_label_gain and not family.pools_last_state:
        raise InputError(
            f"{where}.evaluate.finetune.linear_label_gain: {family.name} does not classify a text "
            "by the state after its last word; set it to false"
        )
    _check_layer_settings(model, f"{where}.evaluate")
    body_dropouts = {
        "adapt": model.adapt.body_dropout if model.adapt else None,
        "evaluate.finetune": finetune.body_dropout,
    }
    body_dropouts |= {
        f"evaluate.finetune.trials[{number}]": trial.body_dropout
        for number, trial in enumerate(finetune.trials)
    }
    for key, body_dropout in body_dropouts.items():
        try:
            with_dropout(model.architecture, body_dropout)
        except ValueError as error:
            raise InputError(f"{where}.{key}.body_dropout: {error}") from None
    if model.evaluate.translation is not None and not family.can_translate:
        raise InputError(
            f"{where}.evaluate.translation: {family.name} has no decoder to translate with; take "
            "the key out"
        )
    if model.evaluate.translation is None and family.can_translate:
        raise InputError(f"{where}.evaluate: the key 'translation' is missing; add it")


def _check_tokenizer(model: ModelConfig, tokenizer: TokenizerSettings, where: str) -> None:
    family = model.family
    num_special = len(SPECIAL_TOKENS[model.tokenizer_type])
    if model.tokenizer_type == "byte_bpe":
        least, needed = num_special + 256, "all bytes"
    else:
        least, needed = num_special + 1, "one more"
    if tokenizer.vocab_size < least:
        raise InputError(
            f"{where}.vocab_size: {tokenizer.vocab_size} is too small for the special tokens and "
            f"{needed}; set it to {least} or more"
        )
    supported = None
    if family.tokenizer_type != "word":
        supported = "ftfy"
    elif family.supports_windows:
        supported = "fastai"
    if tokenizer.normalizer not in (None, supported):
        advice = f"supports only {supported}; set it to that, or remove it"
        if supported is None:
            advice = "supports none, as it reads words as they are written; remove it"
        raise InputError(f"{where}.normalizer: {family.name} {advice}")
    if tokenizer.end_of_word_suffix and family.tokenizer_type != "byte_bpe":
        raise InputError(
            f"{where}.end_of_word_suffix: {family.name} has no BPE, which is the only tokenizer "
            "with such a suffix; remove it"
        )


def _check_layer_settings(model: ModelConfig, where: str) -> None:
    second_to_last = [
        block
        for block in ("linear_probe", "bilstm_probe")
        if getattr(model.evaluate, block).features == "second_to_last"
    ]
    if not second_to_last:
        return
    network = model.family.build_meta_model(model.architecture)
    if network is not None and len(network.hidden_sizes()) < 2:
        raise InputError(
            f"{where}.{second_to_last[0]}.features: {model.family.name} has one layer, so none is "
            "second to last; set it to scalar_mix or last"
        )


def _check_family_options(family: Family, block: Mapping[str, Any], where: str) -> None:
    """Raise InputError if a key of the shared blocks needs something that the family lacks."""
    needs_new_words = bool(family.vocab_parameters), "has no table of words to extend"
    needs_state = family.supports_windows, "does not read words in one direction with a state"
    needs_hidden_layer = (
        "classifier_hidden_size" in family.architecture_class.__dataclass_fields__,
        "has no hidden layer in its classifier",
    )
    needs = {
        "adapt.new_words": needs_new_words,
        "tokenizer.direction": needs_state,
        "evaluate.finetune.bptt_window": needs_state,
        "evaluate.finetune.pooled_positions": needs_state,
        "evaluate.finetune.classifier_hidden_dropout": needs_hidden_layer,
    }
    for key, (is_supported, reason) in needs.items():
        value: Any = block
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        is_default = value is None or value == "forward"  # `lineage params` prints both
        if not is_default and not is_supported:
            raise InputError(f"{where}.{key}: {family.name} {reason}; remove the key")


def load_model_config(params: Params, name: str) -> ModelConfig:
    """Return one model of a study. Raises InputError."""
    return parse_model_config(name, params.models[name], f"params.yaml: models.{name}")
