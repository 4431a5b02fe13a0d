"""Check that the parts of a study fit each other, before anything runs."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lineage.config.params import Params
from lineage.config.records import suggest_nearest
from lineage.data.checks import TextLengthLimit, check_corpus, check_task_data
from lineage.data.outside_predictions import match_outside_predictions
from lineage.errors import InputError
from lineage.language import base_language, is_spaceless
from lineage.methods.registry import list_baselines
from lineage.networks.base import LanguageModelFamily, Public, Static
from lineage.study.models import ModelConfig, load_model_config
from lineage.tasks.base import load_kind
from lineage.training.budget import match_parameter_budget

Models = dict[str, ModelConfig]
# Names of result rows that come from no model and no baseline method.
OTHER_ROW_NAMES = ("kneser_ney", "word_frequency", "ceiling")


def check_study(params: Params) -> Models:
    """Return every model of the study after all checks that need the whole of params.yaml.

    Raises InputError.
    """
    for name, task in params.tasks.items():
        load_kind(task.kind, f"params.yaml: tasks.{name}.kind")
    _check_names(params)
    models = {name: load_model_config(params, name) for name in params.models}
    corpus = params.corpora[params.budget.corpus]
    languages = sorted({source.language or corpus.language for source in corpus.sources})
    _check_adaptation(params, models)
    _check_public_checkpoints(params, models)
    _check_joined_models(params, models)
    _check_setfit(params)
    _check_sweep(params, models)
    _check_tasks_supported(params, models)
    _check_scripts(params, models, languages)
    _check_ensembles(params, models)
    for name in params.grid.models:
        _check_model(params, models[name], languages)
    return models


def check_data(params: Params, models: Models, root: Path) -> dict[str, dict[str, Any]]:
    """Check the corpus and the tasks of a study against their data, and return their records.

    A record has the name `corpora/NAME`, `tasks/NAME` or `outside_systems/NAME`. Relative files are
    looked up in `root`. Raises InputError.
    """
    vocab_sizes = {}
    languages = {}
    for name in params.grid.models:
        model = models[name]
        if model.tokenizer is not None:
            vocab_sizes[name] = model.tokenizer.vocab_size
        if model.family.can_translate:
            settings = model.pretrain
            languages[name] = (settings.source_language, settings.target_language)
    corpus = params.budget.corpus
    records = {f"corpora/{corpus}": check_corpus(corpus, params, vocab_sizes, languages, root)}
    for name in params.grid.tasks:
        limits = text_length_limits(params, models, name)
        records[f"tasks/{name}"] = check_task_data(name, params, root, limits)
        records[f"outside_systems/{name}"] = match_outside_predictions(name, params, root)
    return records


def _check_names(params: Params) -> None:
    """Raise InputError if the user gives the name of a baseline to something else."""
    reserved = {*list_baselines().methods, *OTHER_ROW_NAMES}
    named: dict[str, Iterable[str]] = {
        "models": params.models,
        "grid.ensembles": params.grid.ensembles,
    }
    for task_name, task in params.tasks.items():
        named[f"tasks.{task_name}.outside_systems"] = task.outside_systems
    for key, names in named.items():
        for name in sorted(reserved & {*names}):
            raise InputError(
                f"params.yaml: {key}: the name '{name}' is that of a baseline; choose another"
            )


def _check_adaptation(params: Params, models: Models) -> None:
    for name in params.grid.adapt_models:
        if isinstance(models[name].family, Static):
            raise InputError(
                f"params.yaml: grid.adapt_models: {name} has no language model to adapt to the "
                "text of a task; remove it"
            )
    for name in params.grid.target_only_models:
        if isinstance(models[name].family, Public):
            raise InputError(
                f"params.yaml: grid.target_only_models: {name} is a public checkpoint, which is "
                "not pretrained here; remove it"
            )
    for name in params.grid.adapt_tasks:
        answer = load_kind(params.tasks[name].kind).answer
        if answer.answered_by == "translator":
            beginning = f"{name}:" if answer.shortens_source else f"{name} is in two languages, and"
            raise InputError(
                f"params.yaml: grid.adapt_tasks: {beginning} fine-tuning already trains its "
                "language models on their own text; remove it"
            )


def _check_ensembles(params: Params, models: Models) -> None:
    for name, members in params.grid.ensembles.items():
        blocks = [models[member].evaluate for member in members]
        first, second = [
            (block.linear_probe.features, block.bilstm_probe.features, block.finetune.pooling)
            for block in blocks
        ]
        if first != second:
            raise InputError(
                f"params.yaml: grid.ensembles.{name}: its members have different features or "
                f"pooling, {', '.join(first)} and {', '.join(second)}; set both alike"
            )


def _check_model(params: Params, model: ModelConfig, languages: list[str]) -> None:
    for block, method in model.evaluate.methods.items():
        known = params.grid.label_counts
        unknown = [str(count) for count in method.requested_label_counts if count not in known]
        if unknown:
            raise InputError(
                f"params.yaml: models.{model.name}.evaluate.{block}.label_counts: "
                f"{', '.join(unknown)} is not in grid.label_counts; add it there, or remove it "
                "here"
            )
    match_parameter_budget(
        model.family,
        model.architecture,
        vocab_size=1000,
        body_parameters=params.budget.body_parameters,
    )
    if model.family.can_translate:
        _check_languages(params, model, languages)
    max_positions = getattr(model.architecture, "max_positions", None)
    if max_positions is not None:
        _check_positions(params, model, max_positions)


def _check_tasks_supported(params: Params, models: Models) -> None:
    """Raise InputError unless some model of the grid can do each task.

    Print a warning if a translator of lowercase text is scored with capitals.
    """
    for name in params.grid.tasks:
        kind = load_kind(params.tasks[name].kind)
        # A public checkpoint counts as able: it is not known yet if its folder has the head of a
        # language model.
        compared = [models[model_name] for model_name in params.grid.models]
        able = [
            model
            for model in compared
            if any(
                model.family.can_answer(answered_by, model.architecture)
                for answered_by in kind.answer.list_answered_by()
            )
        ]
        if not able:
            raise InputError(
                f"params.yaml: grid.tasks: {name} is of kind {kind.name}, which no model of "
                "grid.models supports; remove the task, or add a family that supports it"
            )
        lowercase = [one.name for one in able if one.tokenizer and one.tokenizer.lowercase]
        if kind.answer.answered_by == "translator" and lowercase:
            print(
                f"params.yaml: models.{lowercase[0]}.tokenizer.lowercase: the model writes no "
                f"capitals, but the reference {kind.answer.text_nouns} of '{name}' may have them; "
                "set it to false, or lowercase the references",
                file=sys.stderr,
            )


def _check_scripts(params: Params, models: Models, languages: list[str]) -> None:
    """Raise InputError, or warn for a task, if a tokenizer would find no words in a text."""
    corpus = params.corpora[params.budget.corpus]
    if is_spaceless(corpus.language):
        return
    for language in languages:
        if is_spaceless(language):
            raise InputError(
                f"params.yaml: corpora.{params.budget.corpus}: its language is {corpus.language}, "
                f"but that of a source is {language}, and a tokenizer that expects spaces would "
                "take a clause for one word; set the language of the corpus to "
                f"{language}, whose words are characters and runs of Latin letters, and give "
                "sources in another language their own"
            )
    by_words = [name for name in params.grid.models if models[name].tokenizer_type == "word"]
    for name in params.grid.tasks:
        language = params.tasks[name].language
        if by_words and is_spaceless(language):
            print(
                f"params.yaml: tasks.{name}.language: {language}, but that of the corpus is "
                f"{corpus.language}: {', '.join(by_words)} would take a clause for one word; use a "
                f"corpus in {language}, to which text in other languages may be added",
                file=sys.stderr,
            )


def _check_public_checkpoints(params: Params, models: Models) -> None:
    """Raise InputError unless public checkpoints have a source and stay out of fair comparisons."""
    public = {name for name, model in models.items() if isinstance(model.family, Public)}
    for name in params.grid.models:
        if name in public and models[name].checkpoint_source is None:
            raise InputError(
                f"params.yaml: models.{name}: the key 'from' is missing; name a folder that "
                "transformers saved, or a repository of the Hub"
            )
    compared: dict[str, tuple[str, ...]] = {}
    for name, members in params.grid.ensembles.items():
        compared[f"ensembles.{name}"] = members
    for name, other in params.grid.ablation_of.items():
        compared[f"ablation_of.{name}"] = (name, other)
    compared["join_models"] = params.grid.join_models
    for key, names in compared.items():
        for name in sorted(public & set(names)):
            raise InputError(
                f"params.yaml: grid.{key}: {name} is a public checkpoint, which is not "
                "budget-matched and is only shown beside the others; remove it here"
            )


def _check_joined_models(params: Params, models: Models) -> None:
    grid = params.grid
    if grid.join_models and not isinstance(models[grid.join_static_model].family, Static):
        raise InputError(
            f"params.yaml: grid.join_static_model: {grid.join_static_model} has no static vectors; "
            "name a model of word2vec, fastText or GloVe"
        )
    for name in grid.join_models:
        if isinstance(models[name].family, Static):
            raise InputError(
                f"params.yaml: grid.join_models: {name} has static vectors itself; remove it"
            )
    for name in grid.models:
        join = models[name].evaluate.bilstm_probe.join
        if join != "input" and name not in grid.join_models:
            raise InputError(
                f"params.yaml: models.{name}.evaluate.bilstm_probe.join: '{join}' needs static "
                f"vectors, but {name} is not in grid.join_models; name it there, or set join: input"
            )


def _check_setfit(params: Params) -> None:
    tasks = [params.tasks[name] for name in params.grid.tasks]
    if params.grid.setfit_models and not any(
        load_kind(task.kind).suits_setfit(task) for task in tasks
    ):
        raise InputError(
            "params.yaml: grid.setfit_models: SetFit learns labels of single texts, and no task of "
            "grid.tasks has them; add one of kind text_classification with one text, or set it to "
            "[]"
        )


def _check_sweep(params: Params, models: Models) -> None:
    for name in params.grid.sweep:
        family = models[name].family
        if isinstance(family, Public):
            reason = "is a public checkpoint, which has its recipe already"
        elif not isinstance(family, LanguageModelFamily):
            reason = "has no loss on held-out text by which a recipe could be chosen"
        else:
            continue
        raise InputError(f"params.yaml: grid.sweep: {name} {reason}; remove it")
    for names in params.grid.ablation_of.items():
        for name in names:
            if name in params.grid.sweep:
                raise InputError(
                    f"params.yaml: grid.sweep: {name} is in grid.ablation_of, whose models differ in "
                    "one setting, and a search would change more; remove it from one of the two"
                )


def _check_languages(params: Params, model: ModelConfig, languages: list[str]) -> None:
    """Raise InputError unless the corpus has the languages of a translator's two language models.

    The source language must also be that of the texts to be translated.
    """
    where = f"params.yaml: models.{model.name}.pretrain"
    source_language = model.pretrain.source_language
    target_language = model.pretrain.target_language
    for name in params.grid.tasks:
        task = params.tasks[name]
        answer = load_kind(task.kind).answer
        is_written = answer.answered_by == "translator"
        if is_written and source_language not in (None, task.language):
            raise InputError(
                f"params.yaml: tasks.{name}.language: '{task.language}' differs from "
                f"{where}.source_language, '{source_language}'; set it to the language of the "
                "task's source texts"
            )
        if answer.shortens_source and target_language not in (None, task.language):
            raise InputError(
                f"{where}.target_language: '{target_language}', but the summaries of '{name}' are "
                f"in the language of their documents, '{task.language}'; set source_language and "
                "target_language to null, or to that language"
            )
    if source_language is None and target_language is None and len(languages) > 1:
        raise InputError(
            f"{where}: the corpus has text in {', '.join(languages)}; set 'source_language' and "
            "'target_language'"
        )
    for key in ("source_language", "target_language"):
        language = getattr(model.pretrain, key)
        if language is not None and language not in languages:
            nearest = suggest_nearest(language, languages)
            raise InputError(
                f"{where}.{key}: no source of the corpus '{params.budget.corpus}' is in "
                f"'{language}'{nearest}"
            )


def _check_positions(params: Params, model: ModelConfig, max_positions: int) -> None:
    """Raise InputError unless pretraining reaches every position that a task's texts need."""
    key = f"params.yaml: models.{model.name}.pretrain.seq_len"
    seq_len = model.pretrain.seq_len
    if seq_len > max_positions:
        raise InputError(
            f"{key}: {seq_len} is more than its architecture.max_positions, {max_positions}; raise "
            "max_positions, or lower seq_len"
        )
    for name in params.grid.tasks:
        task = params.tasks[name]
        kind = load_kind(task.kind)
        if kind.unit == "word":
            # Sentences are read in windows, contexts in parts, a word with the context that fits.
            continue
        num_special = 3 if kind.is_text_pair(task) else 2
        if task.max_words + num_special > seq_len:
            raise InputError(
                f"{key}: {seq_len} is less than tasks.{name}.max_words, {task.max_words}, plus "
                f"{num_special} special tokens, so the positions beyond it would never be trained; "
                "raise seq_len (and lower batch_size), or lower max_words"
            )


def text_length_limits(params: Params, models: Models, task: str) -> dict[str, TextLengthLimit]:
    """Return the length limits of a task's texts that cannot be read in parts, by their key.

    These are sentences that are scored whole, and texts to learn to write. Lengths are counted
    in words, and in characters where these are the tokens: in Chinese, except in byte-level BPE.
    """
    trained = [
        models[name] for name in params.grid.models if not isinstance(models[name].family, Public)
    ]
    limits: dict[str, TextLengthLimit] = {}
    answered_by = load_kind(params.tasks[task].kind).answer.answered_by
    if answered_by == "sentence_probability":
        # Japanese is not counted so: tokenizers do not split runs of kana, as they do not split
        # runs of letters.
        is_chinese = base_language(params.tasks[task].language) == "zh"
        for model in trained:
            if hasattr(model.architecture, "max_positions"):
                in_characters = is_chinese and model.tokenizer_type in ("wordpiece", "bpe")
                limit = TextLengthLimit(model.pretrain.seq_len - 2, in_characters)
                limits[f"models.{model.name}.pretrain.seq_len"] = limit
    if answered_by == "translator":
        for model in trained:
            translation = model.evaluate.translation
            if translation is not None:
                limits[f"models.{model.name}.evaluate.translation.max_new_tokens"] = (
                    TextLengthLimit(
                        translation.max_new_tokens - 1,
                        label_counts=model.evaluate.finetune.label_counts
                        or params.grid.label_counts,
                    )
                )
    return limits
