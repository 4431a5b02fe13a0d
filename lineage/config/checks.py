"""Whether the parts of a study fit each other: what only the whole of params.yaml can tell, and what is refused before anything runs."""

import sys

from lineage.config.params import Params
from lineage.config.records import suggest_nearest
from lineage.config.study import ModelConfig, load_model_config
from lineage.data.checks import TextLengthLimit
from lineage.data.language import base_language, is_spaceless
from lineage.errors import InputError
from lineage.models.base import Public, Static
from lineage.tasks.base import load_kind
from lineage.training.budget import match_parameter_budget


def check_study(params: Params) -> dict[str, ModelConfig]:
    """Every variant, with what only the whole can tell: widths within the budget, positions enough for every text. Raises InputError."""
    for name, task in params.tasks.items():
        load_kind(task.kind, f"params.yaml: tasks.{name}.kind")
    variants = {name: load_model_config(params, name) for name in params.models}
    corpus = params.corpora[params.budget.corpus]
    languages = sorted({source.language or corpus.language for source in corpus.sources})
    for name in params.grid.adapt_models:
        if isinstance(variants[name].family, Static):
            raise InputError(
                f"params.yaml: grid.adapt_models: {name} has no language model to go on with on a task's text; take it out"
            )
    for name in params.grid.adapt_tasks:
        if load_kind(params.tasks[name].kind).answered_by == "translator":
            raise InputError(
                f"params.yaml: grid.adapt_tasks: {name} is in two languages, and its language models go on with their own text in "
                "tuning; take it out"
            )
    _check_public_checkpoints(params, variants)
    _check_joined_models(params, variants)
    _check_tasks_supported(params, variants)
    _check_scripts(params, variants, languages)
    for name, members in params.grid.ensembles.items():
        read = [variants[member].evaluate for member in members]
        one, other = (
            (how.linear_probe.features, how.bilstm_probe.features, how.finetune.pooling)
            for how in read
        )
        if one != other:
            raise InputError(
                f"params.yaml: grid.ensembles.{name}: its members are read in different ways, {', '.join(one)} and {', '.join(other)}; "
                "set features and pool of both alike"
            )
    for name in params.grid.models:
        found = variants[name]
        _check_label_counts(params, found)
        methods = {load_kind(params.tasks[task].kind).answered_by for task in params.grid.tasks}
        if (
            found.evaluate.translation is not None
            and found.evaluate.finetune.trials
            and methods == {"translator"}
        ):
            raise InputError(
                f"params.yaml: models.{name}.evaluate.finetune.trials: all tasks are of kind translation, which evaluate.translation alone is "
                "for, and it has no trials; take it out"
            )
        match_parameter_budget(
            found.family,
            found.architecture,
            vocab_size=1000,
            body_parameters=params.budget.body_parameters,
        )
        if found.family.can_translate:
            _check_languages(params, found, languages)
        positions = getattr(found.architecture, "max_positions", None)
        if positions is not None:
            _check_positions(params, found, positions)
    return variants


def _check_label_counts(params: Params, found: ModelConfig) -> None:
    """What an arm learns from is of the grid's numbers of labels."""
    for block, method in found.evaluate.methods.items():
        if strange := [
            str(count) for count in method.label_counts if count not in params.grid.label_counts
        ]:
            where = f"params.yaml: models.{found.name}.evaluate.{block}.label_counts"
            raise InputError(
                f"{where}: {', '.join(strange)} is not in grid.label_counts; add it there, or take it out here"
            )


def _check_tasks_supported(params: Params, variants: dict[str, ModelConfig]) -> None:
    """Some variant of the grid has an answer to each task; what a translator cannot write is told."""
    asked = [variants[name] for name in params.grid.models]
    for name in params.grid.tasks:
        kind = load_kind(params.tasks[name].kind)
        # of a public checkpoint it is not known yet whether its folder holds the head of a language model
        able = [
            one
            for one in asked
            if one.family.can_answer(kind.answered_by, one.architecture)
        ]
        if not able:
            raise InputError(
                f"params.yaml: grid.tasks: {name} is of kind {kind.name}, which no model of grid.models has an answer to; take the task "
                "out, or add a family that has one"
            )
        if low := [
            one.name
            for one in able
            if kind.answered_by == "translator" and one.tokenizer and one.tokenizer.lowercase
        ]:
            print(
                f"params.yaml: models.{low[0]}.tokenizer.lowercase: it writes no capital, and '{name}' is scored with those of its translations; "
                "set it to false, or give them without",
                file=sys.stderr,
            )


def _check_scripts(params: Params, variants: dict[str, ModelConfig], languages: list[str]) -> None:
    """Text in words that have no spaces is read by tokenizers that know it: they are the corpus's."""
    corpus = params.corpora[params.budget.corpus]
    if is_spaceless(corpus.language):
        return
    if strange := [one for one in languages if is_spaceless(one)]:
        raise InputError(
            f"params.yaml: corpora.{params.budget.corpus}: its language is {corpus.language}, but a source's is {strange[0]}, and a "
            f"tokenizer that expects spaces would take a clause of it for one word; set the corpus's language to {strange[0]}, whose "
            "words are characters and runs of Latin letters, and that source's to its own"
        )
    for name in params.grid.tasks:
        language, by_words = (
            params.tasks[name].language,
            [one for one in params.grid.models if variants[one].tokenizer_type == "word"],
        )
        if by_words and is_spaceless(language):
            print(
                f"params.yaml: tasks.{name}.language: {language}, and that of the corpus is {corpus.language}: to {', '.join(by_words)} a clause "
                f"would be one word; give a corpus in {language}, to which text in others may be added",
                file=sys.stderr,
            )


def _check_public_checkpoints(params: Params, variants: dict[str, ModelConfig]) -> None:
    """A public checkpoint has a place that it comes from, and no part in what one budget is asked for."""
    public = {name for name, found in variants.items() if isinstance(found.family, Public)}
    for name in params.grid.models:
        if name in public and variants[name].checkpoint_source is None:
            raise InputError(
                f"params.yaml: models.{name}: the key 'from' is missing; name a folder that transformers saved, or a repository of the Hub"
            )
    asked = {f"ensembles.{name}": members for name, members in params.grid.ensembles.items()}
    asked |= {
        f"ablation_of.{name}": (name, other) for name, other in params.grid.ablation_of.items()
    }
    asked["join_models"] = params.grid.join_models
    for key, names in asked.items():
        if found := sorted(public & {*names}):
            raise InputError(
                f"params.yaml: grid.{key}: {found[0]} is a public checkpoint, which is not budget-matched; it stands beside the others, "
                "take it out here"
            )


def _check_joined_models(params: Params, variants: dict[str, ModelConfig]) -> None:
    """Static vectors stand beside contextual features, and beside nothing else."""
    grid = params.grid
    if grid.join_models and not isinstance(variants[grid.join_static_model].family, Static):
        raise InputError(
            f"params.yaml: grid.join_static_model: {grid.join_static_model} has no static vectors, one a word; name a variant of word2vec, fastText "
            "or GloVe"
        )
    for name in grid.join_models:
        if isinstance(variants[name].family, Static):
            raise InputError(
                f"params.yaml: grid.join_models: {name} has static vectors itself; take it out"
            )
    for name in grid.models:
        join = variants[name].evaluate.bilstm_probe.join
        if join != "input" and name not in grid.join_models:
            raise InputError(
                f"params.yaml: models.{name}.evaluate.bilstm_probe.join: '{join}' is for features beside static vectors, and {name} is not "
                "in grid.join_models; name it there, or set join: input"
            )


def _check_languages(params: Params, found: ModelConfig, languages: list[str]) -> None:
    """The languages of the two language models are languages of the corpus, and the first is that of the texts to be translated."""
    where, named = (
        f"params.yaml: models.{found.name}.pretrain",
        (found.pretrain.source_language, found.pretrain.target_language),
    )
    for name in params.grid.tasks:
        task = params.tasks[name]
        is_translation = load_kind(task.kind).answered_by == "translator"
        if is_translation and named[0] not in (None, task.language):
            raise InputError(
                f"params.yaml: tasks.{name}.language: '{task.language}' is not the language that {where}.source reads, '{named[0]}'; "
                "name the language of the task's source texts"
            )
    if named == (None, None) and len(languages) > 1:
        raise InputError(
            f"{where}: the corpus holds {', '.join(languages)}; say which is the language of 'source' and which of 'target'"
        )
    for key, language in zip(("source", "target"), named, strict=True):
        if language is not None and language not in languages:
            raise InputError(
                f"{where}.{key}: no source of the corpus '{params.budget.corpus}' is in '{language}'{suggest_nearest(language, languages)}"
            )


def _check_positions(params: Params, found: ModelConfig, positions: int) -> None:
    """A model of learned positions must have been trained on as many as a task's texts have words."""
    where = f"params.yaml: models.{found.name}"
    if found.pretrain.seq_len > positions:
        raise InputError(
            f"{where}.pretrain.seq_len: {found.pretrain.seq_len} is more than its model.positions, {positions}; raise positions, or lower it"
        )
    for task in params.grid.tasks:
        if load_kind(params.tasks[task].kind).unit == "word":
            # Sentences are read in windows, contexts in parts, a word in what fits around it.
            continue
        longest, marks = params.tasks[task].max_tokens, 3 if params.tasks[task].is_text_pair else 2
        if longest + marks > found.pretrain.seq_len:
            raise InputError(
                f"{where}.pretrain.seq_len: {found.pretrain.seq_len} is less than tasks.{task}.max_tokens, {longest}, and {marks} marks: positions "
                "beyond it would never be trained; raise the length (and lower the batch), or lower max_tokens"
            )


def text_length_limits(
    params: Params, variants: dict[str, ModelConfig], task: str
) -> dict[str, TextLengthLimit]:
    """How long a text of this task may be where it cannot be read in parts, by the key that says so: sentences that are scored as wholes, and
    translations to learn from. What stands between spaces is a piece at least, and so is a Chinese character but to BPE of bytes."""
    own = {
        name: variants[name]
        for name in params.grid.models
        if not isinstance(variants[name].family, Public)
    }
    answered_by = load_kind(params.tasks[task].kind).answered_by
    if answered_by == "sentence_probability":
        chinese = (
            base_language(params.tasks[task].language) == "zh"
        )  # runs of kana are parted as letters are
        return {
            f"models.{name}.pretrain.seq_len": TextLengthLimit(
                one.pretrain.seq_len - 2, chinese and one.tokenizer_type in ("wordpiece", "bpe")
            )
            for name, one in own.items()
            if hasattr(one.architecture, "max_positions")
        }
    if answered_by == "translator":
        return {
            f"models.{name}.evaluate.translation.longest": TextLengthLimit(
                how.max_new_tokens - 1,
                label_counts=one.evaluate.finetune.label_counts or params.grid.label_counts,
            )
            for name, one in own.items()
            if (how := one.evaluate.translation)
        }
    return {}
