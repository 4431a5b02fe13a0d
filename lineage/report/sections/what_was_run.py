"""The texts and tasks of a study, the models' recipes, and the choices of validation."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from lineage.analysis.records import ChosenTrial, group_by
from lineage.config.data import CorpusSource, Task
from lineage.config.params import Params
from lineage.methods.registry import list_method_types
from lineage.methods.tfidf import TfidfMethod
from lineage.networks.registry import load_family
from lineage.report.formatting import format_kind
from lineage.report.section import Block, Cells, Column, Paragraph, ReportData, Section, Table
from lineage.report.styles import format_model_name

# Keys of a model's `pretrain` block that make its recipe, with their names on the page.
RECIPE_KEYS = {
    "learning_rate": "learning rate",
    "batch_size": "sequences a step",
    "seq_len": "tokens a sequence",
    "weight_decay": "weight decay",
    "mlm_probability": "masked",
}


CHANGED_BLOCKS = ("architecture", "pretrain")
COPY_NOTE = "A copy is named in params.yaml, and was read if it was there."
END_HEADING = "the first or last tried"


def build(report: ReportData) -> Section | None:
    """Return tables of the data, the recipes, and the chosen hyperparameters."""
    if report.params is None:
        return None
    blocks = [_build_data(report.params), _build_recipes(report, report.params)]
    blocks += _build_chosen(report.analysis.chosen_trials)
    return Section("What was run", blocks, anchor="run", link="What was run", is_folded=True)


def _build_data(params: Params) -> Block:
    """Return a line for each source of text and each task, with its language if there are several."""
    corpus = params.corpora[params.budget.corpus]
    tasks = {name: params.tasks[name] for name in params.grid.tasks}
    lines = [
        ("text", source.language or corpus.language, name_origin(source))
        for source in corpus.sources
    ]
    lines += [
        (f"{name}, {format_kind(task.kind)}", task.language, name_origin(task))
        for name, task in tasks.items()
    ]
    languages = {language for _, language, _ in lines}
    mirrors = [one.mirror for one in corpus.sources] + [one.mirror for one in tasks.values()]
    note = COPY_NOTE if any(mirrors) else ""
    origin = Column("from", "wrap")
    if len(languages) > 1:
        return Table(["data", "language", origin], lines, note=note)
    note = f"All is in one language: {languages.pop()}. {note}".strip()
    return Table(["data", origin], [(name, source) for name, _, source in lines], note=note)


def name_origin(source: CorpusSource | Task, *, short: bool = False) -> str:
    """Name a data set of the Hub with its revision, or files.

    Of files, a relative folder is named if it says more: `ud-english-ewt: train.parquet, ...`.
    """
    if source.hub:
        if short:
            return source.hub
        parts = [source.hub]
        if source.config:
            parts.append("all configurations" if source.config == "*" else source.config)
        if source.revision:
            parts.append(f"revision {source.revision[:8]}")
        if source.mirror:
            parts.append("or a copy")
        return ", ".join(parts)
    if source.files:
        files = [source.files] if isinstance(source.files, str) else [*source.files.values()]
        return _name_files(files, short=short)
    return "generated text" if short else f"generated: {source.generated}"


def _name_files(files: Sequence[str], *, short: bool) -> str:
    """Name files, with the folder that several share; folders of a machine stay unnamed."""
    paths = [*map(PurePath, files)]
    names = ", ".join(dict.fromkeys(path.name for path in paths))
    folders = {path.parent.name for path in paths if not path.is_absolute()}
    is_set = len(paths) > 1 or "*" in names
    if not is_set or len(folders) != 1 or folders & {"", "..", "**"}:
        return names
    (folder,) = folders
    return folder if short else f"{folder}: {names}"


def _build_recipes(report: ReportData, params: Params) -> Block:
    rows: list[Cells] = []
    for name in params.grid.models:
        block = params.models[name]
        recipe = _describe_recipe(block, report.analysis.model_families.get(name, ""))
        if name in params.grid.sweep:
            recipe = "searched for, see Recipes"
        model = format_model_name(report.analysis, name)
        rows.append([model, recipe])
    note = "What is not named has its default."
    return Table(["model", Column("recipe", "wrap")], rows, note=note)


def _describe_recipe(block: Mapping[str, Any], family: str) -> str:
    """Return `learning rate 0.003, 8 sequences a step, ...`, or the name of a public checkpoint.

    Other keys of the model's blocks are named where they differ from the family's defaults.
    """
    if "from" in block:
        name = f"public checkpoint {PurePath(block['from']).name}"
        return f"{name} at {block['revision'][:7]}" if block.get("revision") else name
    parts = []
    tokenizer = block.get("tokenizer", {})
    if "vocab_size" in tokenizer:
        parts.append(f"vocabulary {tokenizer['vocab_size']:,}")
    for key, name in RECIPE_KEYS.items():
        value = block.get("pretrain", {}).get(key)
        if value is not None:
            parts.append(f"{value:g} {name}" if isinstance(value, int) else f"{name} {value:g}")
    return ", ".join([*parts, *_list_changes(block, family)])


def _list_changes(block: Mapping[str, Any], family: str) -> Iterator[str]:
    """Yield the keys that differ from the family's defaults, such as `norm_first: true`."""
    if not family:
        return
    for name in CHANGED_BLOCKS:
        defaults = load_family(family).defaults.get(name, {})
        for key, value in block.get(name, {}).items():
            if key not in (*RECIPE_KEYS, "vocab_size") and value != defaults.get(key):
                shown = str(value).lower() if isinstance(value, bool) else value
                yield f"{key}: {shown}"


def _build_chosen(trials: tuple[ChosenTrial, ...]) -> Iterator[Block]:
    """Return what validation chose for each method, and a warning of the ends of a list."""
    if not trials:
        return
    nouns = {TfidfMethod.name: TfidfMethod.noun}
    nouns |= {method.name: method.noun for method in list_method_types()}
    rows: list[Cells] = []
    for method, own in group_by(trials, lambda one: one.method).items():
        by_settings: Counter[str] = Counter()
        for one in own:  # the lists of families differ, so the same value has several places
            by_settings[one.settings.replace("_", " ")] += one.count
        chosen = _list_chosen(by_settings)
        at_end = sum(one.count for one in own if one.is_at_end)
        rows.append([nouns[method], chosen, f"{at_end} of {by_settings.total()}"])
    chosen_column = Column("chosen on validation: times", "wrap")
    yield Table(["method", chosen_column, Column(END_HEADING, "n")], rows)
    yield Paragraph(
        "Where the first or the last value tried was best, a better one may lie beyond it.", "note"
    )


def _list_chosen(counts: Mapping[str, int]) -> str:
    """Return values with their counts: `learning rate 0.1: 3, 0.2: 4`.

    Other keys come before: `body dropout 0.25, learning rate 0.1: 3`.
    """
    values_by_key: dict[str, list[str]] = {}
    for settings, count in counts.items():
        first, *others = settings.split(", ")
        name, _, value = first.rpartition(" ")
        values_by_key.setdefault(", ".join([*others, name]), []).append(f"{value}: {count}")
    return "; ".join(f"{key} {', '.join(values)}" for key, values in values_by_key.items())
