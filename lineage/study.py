"""A study: params.yaml and the families that it names. A family's blocks become its own typed records here."""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lineage.families
from lineage.errors import InputError
from lineage.family import Family, dropping
from lineage.loading.public import Origin, origin_of
from lineage.params import Params
from lineage.records import load, nearest
from lineage.rows import PUBLIC
from lineage.text.tokenization import MARKS, TokenizerSettings, Unit
from lineage.transfer.settings import AdaptSettings, EvaluateSettings

BLOCKS = ("tokenizer", "model", "pretrain", "adapt", "evaluate")
KEYS = ("family", "from", "revision")


@dataclass(frozen=True)
class Variant:
    """One key of `models`: a family with its numbers."""

    name: str
    family: Family
    tokenizer: TokenizerSettings | None  # none: a public checkpoint's own
    model: Any
    pretrain: Any
    evaluate: EvaluateSettings
    adapt: AdaptSettings | None = None  # none where a family has no language model to go on with
    origin: Origin | None = None  # where a public checkpoint comes from; none there: a block that others are `like`

    @property
    def unit(self) -> Unit:
        """What its tokenizer cuts text into."""
        return "bpe" if self.tokenizer and self.tokenizer.end_of_word else self.family.tokenizer

    @property
    def mechanism(self) -> dict[str, str]:
        """The family's line in the table of mechanisms, with the unit that this variant reads, and in which direction."""
        found = self.family.mechanism(self.model, self.pretrain) | ({"unit": "BPE of characters"} if self.unit == "bpe" else {})
        found |= {"unit": "words, by fastai's rules"} if self.tokenizer and self.tokenizer.normalise == "fastai" else {}
        return found | ({"direction": "right to left"} if self.tokenizer and self.tokenizer.direction == "backward" else {})


def load_family(name: str, where: str = "models") -> Family:
    """The family whose file this is. Raises InputError that names the nearest."""
    known = [m.name for m in pkgutil.iter_modules(lineage.families.__path__)]
    if name not in known:
        raise InputError(f"{where}: there is no family '{name}'{nearest(name, known)}")
    family = importlib.import_module(f"lineage.families.{name}").FAMILY
    assert isinstance(family, Family)
    if family.name != name:
        raise InputError(f"lineage/families/{name}.py: its FAMILY is named '{family.name}'; name it '{name}', as its file")
    return family


def family_file(family: str) -> Path:
    """The file that a family is written in."""
    return Path(lineage.families.__path__[0]) / f"{family}.py"


def load_variant(name: str, block: Mapping[str, Any], where: str) -> Variant:
    """One block of `models` as records; its family is the key itself unless the block says `family`. Raises InputError."""
    for key in block:
        if key == "like":
            raise InputError(f"{where}: 'like' is read in a profile, which is written out; run one with --profile, or write the whole block here")
        if key not in (*BLOCKS, *KEYS):
            raise InputError(f"{where}: unknown key '{key}'{nearest(key, (*BLOCKS, *KEYS))}")
    family = load_family(block.get("family", PUBLIC if "from" in block else name), where)
    _check_options(family, block, where)
    kinds: dict[str, type[Any]] = {} if family.adopt else {"tokenizer": TokenizerSettings}
    kinds |= {"model": family.model, "pretrain": family.pretrain}
    kinds |= ({} if family.fit else {"adapt": AdaptSettings}) | {"evaluate": EvaluateSettings}
    for key in kinds:
        if key not in block:
            whole = ", or write the block into a profile, and run that with --profile: there 'from' is enough" if "from" in block else ""
            raise InputError(f"{where}: the key '{key}' is missing; add it{whole}")
    if family.fit and "adapt" in block:
        raise InputError(f"{where}: {family.name} has no language model to adapt; take the key 'adapt' out")
    origin = _origin(family, block, where)
    records: dict[str, Any] = {"tokenizer": None} | {key: load(kind, block[key], f"{where}.{key}") for key, kind in kinds.items()}
    found = Variant(name, family, **records, origin=origin)
    _check_switches(found, where)
    return found


def _origin(family: Family, block: Mapping[str, Any], where: str) -> Origin | None:
    """Where a public checkpoint comes from. Raises InputError where another family has such keys, or a public one is to be trained."""
    if not family.adopt:
        if named := [key for key in ("from", "revision") if key in block]:
            raise InputError(f"{where}.{named[0]}: {family.name} is trained here, and comes from nowhere; take it out, or the key 'family'")
        return None
    if block.get("tokenizer") != "own":
        raise InputError(f"{where}.tokenizer: a public checkpoint brings its own; write tokenizer: own")
    if isinstance(block["model"], Mapping) and "about" in block["model"]:
        raise InputError(f"{where}.model.about: it is what the folder says; take the key out")
    return None if block.get("from") is None else origin_of(block["from"], block.get("revision"), where)


def _check_switches(found: Variant, where: str) -> None:
    """Refuse what a family has no use for."""
    tokenizer = found.tokenizer
    least = len(MARKS[found.unit]) + (256 if found.unit == "byte_bpe" else 1)
    if tokenizer and tokenizer.vocabulary < least:
        what = "all bytes" if least > 256 else "one more"
        raise InputError(f"{where}.tokenizer.vocabulary: {tokenizer.vocabulary} is less than its marks and {what} are; set it to {least} or more")
    able = "ftfy" if found.family.tokenizer != "word" else "fastai" if found.family.one_way else None
    if tokenizer and tokenizer.normalise not in (None, able):
        has = f"that of {able} alone; set it to that" if able else "none, as words are read as they are written"
        raise InputError(f"{where}.tokenizer.normalise: {found.family.name} has {has}, or take it out")
    if tokenizer and tokenizer.end_of_word and found.family.tokenizer != "byte_bpe":
        raise InputError(f"{where}.tokenizer.end_of_word: {found.family.name} has no BPE, which alone may be of characters; take it out")
    if found.evaluate.tuned.lm_weight and found.family.auxiliary is None:
        raise InputError(f"{where}.evaluate.tuned.lm_weight: {found.family.name} has no loss of its own on a task's texts; set it to 0")
    if found.evaluate.tuned.linear_gain and not found.family.last_state:
        raise InputError(f"{where}.evaluate.tuned.linear_gain: {found.family.name} does not read a text's answer off the state after its last word; "
                         "set it to false")  # fmt: skip
    _check_layers(found, f"{where}.evaluate")
    for key, settings in (("adapt", found.adapt), ("evaluate.tuned", found.evaluate.tuned)):
        try:
            dropping(found.model, settings.body_dropout if settings else None)
        except ValueError as error:
            raise InputError(f"{where}.{key}.body_dropout: {error}") from None
    if found.evaluate.translate is not None and found.family.translator is None:
        raise InputError(f"{where}.evaluate.translate: {found.family.name} has no decoder to translate with; take the key out")
    if found.evaluate.translate is None and found.family.translator is not None:
        raise InputError(f"{where}.evaluate: the key 'translate' is missing; add it")


def _check_layers(found: Variant, where: str) -> None:
    """Refuse what is asked of tables or of layers that the model lacks."""
    tuned = found.evaluate.tuned
    small = any([tuned.small_tables, *(trial.small_tables for trial in tuned.trials)])
    second = [block for block in ("frozen", "network") if getattr(found.evaluate, block).features == "second_to_last"]
    model = found.family.drafted(found.model) if small or second else None
    if model is None:
        return
    if small and not model.tables():
        raise InputError(f"{where}.tuned.small_tables: {found.family.name} reads words by their characters; set it to false")
    if second and len(model.widths()) < 2:
        raise InputError(f"{where}.{second[0]}.features: {found.family.name} has one layer, and none is second to last; set it to mix or top")


def _check_options(family: Family, block: Mapping[str, Any], where: str) -> None:
    """Keys of the shared blocks that ask for something only some families have. Raises InputError."""
    one_way = family.one_way, "does not read words in one direction with a state"
    needs = {"adapt.new_words": (bool(family.word_rows), "has no table of words that new ones could join")}
    needs |= dict.fromkeys(("tokenizer.direction", "evaluate.tuned.window", "evaluate.tuned.pooled"), one_way)
    needs["evaluate.tuned.inner_dropout"] = "head" in family.model.__dataclass_fields__, "has no hidden layer in its classifier"
    for key, (able, reason) in needs.items():
        inner: Any = block
        for part in key.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        if inner is not None and not able:
            raise InputError(f"{where}.{key}: {family.name} {reason}; take the key out")


def variant(params: Params, name: str) -> Variant:
    """One variant of a study. Raises InputError."""
    return load_variant(name, params.models[name], f"params.yaml: models.{name}")
