"""A study: params.yaml and the families that it names. A family's blocks become its own typed records here."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineage.config.params import Params
from lineage.config.records import parse_record, suggest_nearest
from lineage.config.resolve import MODELS_DIR, family_names, family_of, fill_in_defaults
from lineage.errors import InputError
from lineage.evaluation.settings import AdaptSettings, EvaluateSettings
from lineage.models.base import Family, Public, Static, Trained, with_dropout
from lineage.models.public_folders import CheckpointSource, parse_checkpoint_source
from lineage.tokenizers.tokenizer import SPECIAL_TOKENS, TokenizerSettings, TokenizerType

MODEL_BLOCKS = ("tokenizer", "architecture", "pretrain", "adapt", "evaluate")
MODEL_KEYS = ("family", "from", "revision")


@dataclass(frozen=True)
class ModelConfig:
    """One key of `models`: a family with its numbers."""

    name: str
    family: Family
    tokenizer: TokenizerSettings | None  # none: a public checkpoint's own
    architecture: Any
    pretrain: Any
    evaluate: EvaluateSettings
    adapt: AdaptSettings | None = None  # none where a family has no language model to go on with
    checkpoint_source: CheckpointSource | None = (
        None  # where a public checkpoint comes from; none there: a block that others are `like`
    )

    @property
    def tokenizer_type(self) -> TokenizerType:
        """What its tokenizer cuts text into."""
        return (
            "bpe"
            if self.tokenizer and self.tokenizer.end_of_word_suffix
            else self.family.tokenizer_type
        )

    @property
    def mechanism(self) -> dict[str, str]:
        """The family's line in the table of mechanisms, with the unit that this variant reads, and in which direction."""
        found = self.family.mechanism_row(self.architecture, self.pretrain) | (
            {"unit": "BPE of characters"} if self.tokenizer_type == "bpe" else {}
        )
        found |= (
            {"unit": "words, by fastai's rules"}
            if self.tokenizer and self.tokenizer.normalizer == "fastai"
            else {}
        )
        return found | (
            {"direction": "right to left"}
            if self.tokenizer and self.tokenizer.direction == "backward"
            else {}
        )


def load_family(name: str, where: str = "models") -> Family:
    """The family whose file this is. Raises InputError that names the nearest."""
    known = family_names()
    if name not in known:
        raise InputError(f"{where}: there is no family '{name}'{suggest_nearest(name, known)}")
    family = importlib.import_module(f"lineage.models.{name}").FAMILY
    assert isinstance(family, Family)
    if family.name != name:
        raise InputError(
            f"lineage/models/{name}.py: its FAMILY is named '{family.name}'; name it '{name}', as its file"
        )
    return family


def family_source_file(family: str) -> Path:
    """The file that a family is written in."""
    return MODELS_DIR / f"{family}.py"


def parse_model_config(name: str, block: Mapping[str, Any], where: str) -> ModelConfig:
    """One block of `models` as records; its family is the key itself unless the block says `family`. Raises InputError."""
    for key in block:
        if key not in (*MODEL_BLOCKS, *MODEL_KEYS):
            raise InputError(
                f"{where}: unknown key '{key}'{suggest_nearest(key, (*MODEL_BLOCKS, *MODEL_KEYS))}"
            )
    family = load_family(family_of(name, block), where)
    block = fill_in_defaults(name, block)
    _check_family_options(family, block, where)
    kinds: dict[str, type[Any]] = (
        {} if isinstance(family, Public) else {"tokenizer": TokenizerSettings}
    )
    kinds |= {"architecture": family.architecture_class, "pretrain": family.pretrain_class}
    kinds |= ({} if isinstance(family, Static) else {"adapt": AdaptSettings}) | {
        "evaluate": EvaluateSettings
    }
    if isinstance(family, Static) and "adapt" in block:
        raise InputError(
            f"{where}: {family.name} has no language model to adapt; take the key 'adapt' out"
        )
    origin = _parse_checkpoint_source(family, block, where)
    records: dict[str, Any] = {"tokenizer": None} | {
        key: parse_record(kind, block.get(key, {}), f"{where}.{key}") for key, kind in kinds.items()
    }
    found = ModelConfig(name, family, **records, checkpoint_source=origin)
    _check_family_support(found, where)
    return found


def _parse_checkpoint_source(
    family: Family, block: Mapping[str, Any], where: str
) -> CheckpointSource | None:
    """Where a public checkpoint comes from. Raises InputError where another family has such keys, or a public one is to be trained."""
    if not isinstance(family, Public):
        if named := [key for key in ("from", "revision") if key in block]:
            raise InputError(
                f"{where}.{named[0]}: {family.name} is trained here, and comes from nowhere; take it out, or the key 'family'"
            )
        return None
    if block.get("tokenizer") != "pretrained":
        raise InputError(
            f"{where}.tokenizer: a public checkpoint brings its own; write tokenizer: pretrained"
        )
    architecture = block.get("architecture")
    if isinstance(architecture, Mapping) and "checkpoint_info" in architecture:
        raise InputError(
            f"{where}.architecture.checkpoint_info: it is what the folder says; take the key out"
        )
    return (
        None
        if block.get("from") is None
        else parse_checkpoint_source(block["from"], block.get("revision"), where)
    )


def _check_family_support(found: ModelConfig, where: str) -> None:
    """Refuse what a family has no use for."""
    tokenizer = found.tokenizer
    least = len(SPECIAL_TOKENS[found.tokenizer_type]) + (
        256 if found.tokenizer_type == "byte_bpe" else 1
    )
    if tokenizer and tokenizer.vocab_size < least:
        what = "all bytes" if least > 256 else "one more"
        raise InputError(
            f"{where}.tokenizer.vocab_size: {tokenizer.vocab_size} is less than its marks and {what} are; set it to {least} or more"
        )
    able = (
        "ftfy"
        if found.family.tokenizer_type != "word"
        else "fastai"
        if found.family.unidirectional
        else None
    )
    if tokenizer and tokenizer.normalizer not in (None, able):
        has = (
            f"that of {able} alone; set it to that"
            if able
            else "none, as words are read as they are written"
        )
        raise InputError(
            f"{where}.tokenizer.normalizer: {found.family.name} has {has}, or take it out"
        )
    if tokenizer and tokenizer.end_of_word_suffix and found.family.tokenizer_type != "byte_bpe":
        raise InputError(
            f"{where}.tokenizer.end_of_word_suffix: {found.family.name} has no BPE, which alone may be of characters; take it out"
        )
    has_auxiliary_loss = isinstance(found.family, Trained) and found.family.auxiliary_loss
    if found.evaluate.finetune.aux_lm_weight and not has_auxiliary_loss:
        raise InputError(
            f"{where}.evaluate.finetune.aux_lm_weight: {found.family.name} has no loss of its own on a task's texts; set it to 0"
        )
    if found.evaluate.finetune.linear_label_gain and not found.family.pools_last_state:
        raise InputError(
            f"{where}.evaluate.finetune.linear_label_gain: {found.family.name} does not read a text's answer off the state after its last word; "
            "set it to false"
        )
    _check_layer_settings(found, f"{where}.evaluate")
    for key, settings in (("adapt", found.adapt), ("evaluate.finetune", found.evaluate.finetune)):
        try:
            with_dropout(found.architecture, settings.body_dropout if settings else None)
        except ValueError as error:
            raise InputError(f"{where}.{key}.body_dropout: {error}") from None
    if found.evaluate.translation is not None and not found.family.can_translate:
        raise InputError(
            f"{where}.evaluate.translation: {found.family.name} has no decoder to translate with; take the key out"
        )
    if found.evaluate.translation is None and found.family.can_translate:
        raise InputError(f"{where}.evaluate: the key 'translation' is missing; add it")


def _check_layer_settings(found: ModelConfig, where: str) -> None:
    """Refuse what is asked of tables or of layers that the model lacks."""
    tuned = found.evaluate.finetune
    small = any([tuned.rescale_embeddings, *(trial.rescale_embeddings for trial in tuned.trials)])
    second = [
        block
        for block in ("linear_probe", "bilstm_probe")
        if getattr(found.evaluate, block).features == "second_to_last"
    ]
    model = found.family.build_meta_model(found.architecture) if small or second else None
    if model is None:
        return
    if small and not model.embedding_matrices():
        raise InputError(
            f"{where}.finetune.rescale_embeddings: {found.family.name} reads words by their characters; set it to false"
        )
    if second and len(model.hidden_sizes()) < 2:
        raise InputError(
            f"{where}.{second[0]}.features: {found.family.name} has one layer, and none is second to last; set it to scalar_mix or last"
        )


def _check_family_options(family: Family, block: Mapping[str, Any], where: str) -> None:
    """Keys of the shared blocks that ask for something only some families have. Raises InputError."""
    one_way = family.unidirectional, "does not read words in one direction with a state"
    needs = {
        "adapt.new_words": (
            bool(family.vocab_parameters),
            "has no table of words that new ones could join",
        )
    }
    needs |= dict.fromkeys(
        (
            "tokenizer.direction",
            "evaluate.finetune.bptt_window",
            "evaluate.finetune.pooled_positions",
        ),
        one_way,
    )
    needs["evaluate.finetune.classifier_hidden_dropout"] = (
        "classifier_hidden_size" in family.architecture_class.__dataclass_fields__,
        "has no hidden layer in its classifier",
    )
    for key, (able, reason) in needs.items():
        inner: Any = block
        for part in key.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        if inner is not None and not able:
            raise InputError(f"{where}.{key}: {family.name} {reason}; take the key out")


def load_model_config(params: Params, name: str) -> ModelConfig:
    """One variant of a study. Raises InputError."""
    return parse_model_config(name, params.models[name], f"params.yaml: models.{name}")
