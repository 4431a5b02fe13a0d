"""A study: params.yaml and the families that it names, checked as a whole. A family's blocks become its own typed records here."""

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
from lineage.text.language import spaceless
from lineage.text.tokenization import MARKS, TokenizerSettings, Unit
from lineage.training.budget import sized
from lineage.transfer.settings import AdaptSettings, EvaluateSettings

# Kinds whose items are never too long for a model: sentences are read in windows and contexts in parts, a word in as much of its sentence as fits.
NARROWED = ("tag", "span", "sense", "similarity", "analogy")
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


def check_study(params: Params) -> dict[str, Variant]:
    """Every variant, with what only the whole can tell: widths within the budget, positions enough for every text. Raises InputError."""
    variants = {name: variant(params, name) for name in params.models}
    corpus = params.corpora[params.budget.corpus]
    languages = sorted({source.language or corpus.language for source in corpus.sources})
    if not spaceless(corpus.language) and (strange := [one for one in languages if spaceless(one)]):
        raise InputError(f"params.yaml: corpora.{params.budget.corpus}: its language is {corpus.language}, but a source's is {strange[0]}, and a "
                         f"tokenizer that expects spaces would take a clause of it for one word; set the corpus's language to {strange[0]}, whose "
                         "words are characters and runs of Latin letters, and that source's to its own")  # fmt: skip
    for name in params.grid.adapt_families:
        if variants[name].family.stream is None:
            raise InputError(f"params.yaml: grid.adapt_families: {name} has no language model to go on with on a task's text; take it out")
    for name in params.grid.adapt_tasks:
        if params.tasks[name].kind == "translate":
            raise InputError(f"params.yaml: grid.adapt_tasks: {name} is in two languages, and its language models go on with their own text in "
                             "tuning; take it out")  # fmt: skip
    _check_public(params, variants)
    _check_joined(params, variants)
    for name, members in params.grid.ensembles.items():
        read = [variants[member].evaluate for member in members]
        one, other = ((how.frozen.features, how.network.features, how.tuned.pool) for how in read)
        if one != other:
            raise InputError(f"params.yaml: grid.ensembles.{name}: its members are read in different ways, {', '.join(one)} and {', '.join(other)}; "
                             "set features and pool of both alike")  # fmt: skip
    for name in params.grid.families:
        found = variants[name]
        _check_labels(params, found)
        kinds = {params.tasks[task].kind for task in params.grid.tasks}
        if found.evaluate.translate is not None and found.evaluate.tuned.trials and kinds == {"translate"}:
            raise InputError(f"params.yaml: models.{name}.evaluate.tuned.trials: all tasks are of kind translate, which evaluate.translate alone is "
                             "for, and it has no trials; take it out")  # fmt: skip
        sized(found.family, found.model, vocabulary=1000, parameters=params.budget.parameters)
        if found.family.translator is not None:
            _check_languages(params, found, languages)
        positions = getattr(found.model, "positions", None)
        if positions is not None:
            _check_positions(params, found, positions)
    return variants


def _check_labels(params: Params, found: Variant) -> None:
    """What an arm learns from is of the grid's numbers of labels."""
    for block, arm in found.evaluate.arms.items():
        if strange := [str(count) for count in arm.labels if count not in params.grid.labels]:
            where = f"params.yaml: models.{found.name}.evaluate.{block}.labels"
            raise InputError(f"{where}: {', '.join(strange)} is not in grid.labels; add it there, or take it out here")


def _check_public(params: Params, variants: dict[str, Variant]) -> None:
    """A public checkpoint has a place that it comes from, and no part in what one budget is asked for."""
    public = {name for name, found in variants.items() if found.family.adopt}
    for name in params.grid.families:
        if name in public and variants[name].origin is None:
            raise InputError(
                f"params.yaml: models.{name}: the key 'from' is missing; name a folder that transformers saved, or a repository of the Hub"
            )
    asked = {f"ensembles.{name}": members for name, members in params.grid.ensembles.items()}
    asked |= {f"against.{name}": (name, other) for name, other in params.grid.against.items()}
    asked["join_families"] = params.grid.join_families
    for key, names in asked.items():
        if found := sorted(public & {*names}):
            raise InputError(f"params.yaml: grid.{key}: {found[0]} is a public checkpoint, which is not budget-matched; it stands beside the others, "
                             "take it out here")  # fmt: skip


def _check_joined(params: Params, variants: dict[str, Variant]) -> None:
    """Static vectors stand beside contextual features, and beside nothing else."""
    grid = params.grid
    if grid.join_families and variants[grid.join_static].family.fit is None:
        raise InputError(f"params.yaml: grid.join_static: {grid.join_static} has no static vectors, one a word; name a variant of word2vec, fastText "
                         "or GloVe")  # fmt: skip
    for name in grid.join_families:
        if variants[name].family.fit is not None:
            raise InputError(f"params.yaml: grid.join_families: {name} has static vectors itself; take it out")
    for name in grid.families:
        join = variants[name].evaluate.network.join
        if join != "input" and name not in grid.join_families:
            raise InputError(f"params.yaml: models.{name}.evaluate.network.join: '{join}' is for features beside static vectors, and {name} is not "
                             "in grid.join_families; name it there, or set join: input")  # fmt: skip


def _check_languages(params: Params, found: Variant, languages: list[str]) -> None:
    """The languages of the two language models are languages of the corpus, and the first is that of the texts to be translated."""
    where, named = f"params.yaml: models.{found.name}.pretrain", (found.pretrain.source, found.pretrain.target)
    for name in params.grid.tasks:
        task = params.tasks[name]
        if task.kind == "translate" and named[0] not in (None, task.language):
            raise InputError(f"params.yaml: tasks.{name}.language: '{task.language}' is not the language that {where}.source reads, '{named[0]}'; "
                             "name the language of the task's source texts")  # fmt: skip
    if named == (None, None) and len(languages) > 1:
        raise InputError(f"{where}: the corpus holds {', '.join(languages)}; say which is the language of 'source' and which of 'target'")
    for key, language in zip(("source", "target"), named, strict=True):
        if language is not None and language not in languages:
            raise InputError(f"{where}.{key}: no source of the corpus '{params.budget.corpus}' is in '{language}'{nearest(language, languages)}")


def _check_positions(params: Params, found: Variant, positions: int) -> None:
    """A model of learned positions must have been trained on as many as a task's texts have words."""
    where = f"params.yaml: models.{found.name}"
    if found.pretrain.length > positions:
        raise InputError(
            f"{where}.pretrain.length: {found.pretrain.length} is more than its model.positions, {positions}; raise positions, or lower it"
        )
    for task in params.grid.tasks:
        if params.tasks[task].kind in NARROWED:
            continue
        longest, marks = params.tasks[task].max_tokens, 3 if params.tasks[task].paired else 2
        if longest + marks > found.pretrain.length:
            raise InputError(
                f"{where}.pretrain.length: {found.pretrain.length} is less than tasks.{task}.max_tokens, {longest}, and {marks} marks: positions "
                "beyond it would never be trained; raise the length (and lower the batch), or lower max_tokens"
            )
