"""The tasks, and what was done to their data before anything was learned of it: what a sceptical reader asks of a table first."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from lineage.analysis import contamination
from lineage.analysis.cells import TEST_SET_SEPARATOR, TRAINED_INITS, disambiguate
from lineage.config.data import SPLITS, Task, extra_test_task
from lineage.config.params import Grid
from lineage.data.language import is_spaceless
from lineage.report import sentences
from lineage.results import DROPPED_METRIC_PREFIX, JOINED_FAMILY
from lineage.tasks.base import load_kind

JsonDict = dict[str, Any]
DATA_NOTES = {  # what the controls count in a task's data
    "left_out": "Left out of {split}, for they hold nothing to read, or to tell apart: {count}.",
    "repeated_in_train": "Of its {items} {split} items in train too, word for word: {count}.",
    "repeated_in_folds": "Of its {items} items such as stand several times in train, word for word, and may stand on both sides of a fold: {count}.",
    "group_in_train": "{count} of its {items} {split} items are of groups that have items in train too.",
    "mended_tags": "{count} of its {items} sentences of {split} break the scheme of their tags, and conlleval's rules say what is a span, or have "
    "spans that overlap, of which the longest are read.",
    "blank_words": "{count} blank words of {split} were left out, with their tags.",
    "unlearned_tags": "{count} of its {items} sentences of {split} hold a tag, or a type of spans, that train has not: it is never right.",
    "numbered_tags": "Its {count} tags are numbers without names, and scored by the share that is right: if they are of spans, give their `names`.",
    "plain_tags": "Its {count} tags are plain ones, one of them such as O: no spans are read, and they are scored by the share that is right: if "
    "they are of spans, give `names` such as I-PER.",
    "folds_without_a_label": "In {count} of {items} folds a label is missing from {split}.",
}
DROP_REASONS = {
    "left_out": "with nothing to read, or to tell apart",
    "dropped_limit": "over the limit",
    "dropped_per_group": "over the limit of their group",
    "dropped_blank": "blank",
    "dropped_scored": "that are scored",
    "dropped_answer_cut_off": "whose answer was cut off",
    "dropped_unused_label": "with a label that is not used",
}

# The parts of a scored row's reason that say how its items were read (`lineage.evaluation.result_rows`); others are of its trial.
TRUNCATION_NOTE = re.compile(
    r"of the texts were longer than|words have no piece that is read|questions have no answer within"
)


def describe_tasks(
    tasks: Mapping[str, Task], table: pd.DataFrame, grid: Grid, *, split: str
) -> list[JsonDict]:
    """For results.json, a record a task, and a second test set, in the grid's order: what params.yaml says. What was counted stands in `data`."""
    own = disambiguate(
        table[["task", "kind", "test_set", "model", "split", "status", "reason"]].drop_duplicates()
    )
    kinds = {str(task): str(kind) for task, kind in own[["task", "kind"]].itertuples(index=False)}
    found = []
    for name in sorted(
        kinds, key=lambda name: (grid.tasks.index(name.split(TEST_SET_SEPARATOR)[0]), name)
    ):
        first, _, second = name.partition(TEST_SET_SEPARATOR)
        task = tasks.get(first)
        if task is not None and second:
            task = extra_test_task(task, second, f"params.yaml: tasks.{first}")
        settings: JsonDict = {"max_tokens": None, "unit": "words", "generated": False}
        if task is not None:
            settings = {
                "max_tokens": task.max_tokens if load_kind(task.kind).may_truncate else None,
                "generated": task.generated is not None,
                "unit": "characters" if is_spaceless(task.language) else "words",
            }
        found.append(
            {
                "task": name,
                "kind": kinds[name],
                "notes": _truncation_notes(own[(own["task"] == name) & (own["split"] == split)]),
            }
            | settings
        )
    return found


def _truncation_notes(table: pd.DataFrame) -> list[str]:
    """What scored rows say of how their items were read: `bert, gpt: 12% of the texts were longer than 128 pieces, and cut`."""
    scored = table[(table["status"] == "ok") & (table["reason"] != "")]
    models_by_note: dict[str, dict[str, None]] = {}
    for model, reason in scored[["model", "reason"]].drop_duplicates().itertuples(index=False):
        for part in filter(TRUNCATION_NOTE.search, str(reason).split("; ")):
            models_by_note.setdefault(part, {})[str(model)] = None
    return [f"{', '.join(variants)}: {part}" for part, variants in models_by_note.items()]


def format_task_table(tree: JsonDict) -> list[JsonDict]:
    """The same for the pages, in words, with what was counted."""
    return [_format_task(tree, one) for one in tree["tasks"]]


def format_folds(tree: JsonDict, task: str) -> str:
    """`5 folds of train, dealt anew for each of 3 seeds, its 40 groups kept whole`; nothing where the task has a test set."""
    folds, groups = (
        _counts_by_split(tree, metric, task).get("train", 0) for metric in ("folds", "groups")
    )
    seeds = len(tree["grid"]["finetune_seeds"])
    anew = f", dealt anew for each of {seeds} seeds" if seeds > 1 else ""
    return (
        f"{folds} folds of train{anew}{f', its {groups:,} groups kept whole' if groups else ''}"
        if folds
        else ""
    )


def build_unknown_token_table(tree: JsonDict) -> JsonDict:
    """A table of the share of tokens that each model does not know, by task, and the variants to which all is known.

    What an adaptation changes of it, as where it takes in new words, has a column of its own.
    """
    found: dict[str, dict[str, float]] = {}
    for model in tree["grid"]["models"]:
        own = {
            init: {
                one["task"]: one["value"]
                for one in tree["unknown"]
                if (one["model"], one["init"]) == (model, init)
            }
            for init in TRAINED_INITS
        }
        changed = any(
            value != own["pretrained"].get(task) for task, value in own["adapted"].items()
        )
        found |= {model: own["pretrained"]} | (
            {f"{model} adapted": own["adapted"]} if changed else {}
        )
    columns = [name for name, values in found.items() if any(values.values())]
    lines = [
        {
            "task": one["task"],
            "cells": [sentences.format_percent(found[name].get(one["task"])) for name in columns],
        }
        for one in tree["tasks"]
    ]
    return {
        "columns": columns,
        "lines": lines,
        "known": [name for name, values in found.items() if values and name not in columns],
    }


def _format_task(tree: JsonDict, task_record: JsonDict) -> JsonDict:
    task = task_record["task"]
    metric = next(
        (
            cell["metric"]
            for cell in tree["cells"]
            if cell["task"] == task and cell["mean"] is not None
        ),
        None,
    )
    counts, folds = _counts_by_split(tree, "items", task), format_folds(tree, task)
    split = {name: f"{counts[name]:,}" if name in counts else "–" for name in SPLITS}
    if _counts_by_split(tree, "carved", task):
        split["validation"] += ", taken out of train"
    if folds:
        split |= {"validation": "part of the other folds", "test": "each item once"}
    official = [
        published["name"]
        for published in tree["published"]
        if published["task"] == task and published["official_split"]
    ]
    source = folds or (
        f"{official[0]}'s own"
        if official
        else "a second one"
        if TEST_SET_SEPARATOR in task
        else "generated"
        if task_record["generated"]
        else "given"
    )
    return {
        "task": task,
        "kind": task_record["kind"].replace("_", " "),
        "metric": sentences.metric_heading(metric) if metric else "–",
        "items": split,
        "source": source,
        "cut": _format_truncation(tree, task_record),
        "dropped": _format_dropped(tree, task),
        "repeated": _format_duplicates(tree, task),
        "read": contamination.format_contamination(tree, task),
        "notes": task_record["notes"],
    }


def _format_duplicates(tree: JsonDict, task: str) -> str:
    """`3 of test`; `3 of test, and by group 40 of test`; with folds `3 several times there`."""
    items, groups = (
        _counts_by_split(tree, metric, task) for metric in ("repeated_in_train", "group_in_train")
    )
    if folds := _counts_by_split(tree, "repeated_in_folds", task).get("train"):
        return f"{folds:,} several times there"
    return _format_split_counts(items) + (
        f", and by group {_format_split_counts(groups)}" if groups else ""
    )


def _format_truncation(tree: JsonDict, task_record: JsonDict) -> str:
    """`128 words: 12 of train, 3 of test`; `128 words: none`."""
    if not load_kind(task_record["kind"]).may_truncate:
        return "never"
    cut = _format_split_counts(_counts_by_split(tree, "cut", task_record["task"]))
    return (
        f"{task_record['max_tokens']} {task_record['unit']}: {cut}"
        if task_record["max_tokens"]
        else cut
    )


def _format_dropped(tree: JsonDict, task: str) -> str:
    """`train: 4,000 over the limit, 3 blank; test: 20 over the limit`."""
    said: dict[str, list[str]] = {}
    for metric in (
        name
        for name in tree["data"]
        if name == "left_out" or name.startswith(DROPPED_METRIC_PREFIX)
    ):
        for split, count in _counts_by_split(tree, metric, task).items():
            said.setdefault(split, []).append(f"{count:,} {DROP_REASONS[metric]}")
    return (
        "; ".join(f"{split}: {', '.join(said[split])}" for split in SPLITS if split in said)
        or "none"
    )


def _format_split_counts(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{counts[split]:,} of {split}" for split in SPLITS if split in counts) or "none"
    )


def _counts_by_split(tree: JsonDict, metric: str, task: str) -> dict[str, int]:
    """What was counted in a task's data, by split; what was found nowhere is absent."""
    return {
        one["split"]: one["count"] for one in tree["data"].get(metric, ()) if one["task"] == task
    }


def format_overlap_length(tree: JsonDict) -> str:
    """How much in a row an item has to share with text that was read: `13 words`, of Chinese and Japanese `20 characters`."""
    found = {one["unit"] == "characters" for one in tree["tasks"]}
    return (
        "13 words (of Chinese and Japanese 20 characters)"
        if len(found) > 1
        else "20 characters"
        if True in found
        else "13 words"
    )


def describe_task_data(tree: JsonDict, task: str) -> list[str]:
    """What else is to be known of a task: what its data holds, and whether answers stay when two texts change places."""
    descriptions = [
        text.format(**one)
        for what, text in DATA_NOTES.items()
        for one in tree["data"].get(what, ())
        if one["task"] == task
    ]
    descriptions += [
        f"There are {one['train_examples']} labels: the question of {one['label_count']} is the one of {one['same']}."
        for one in tree["too_many"]
        if one["task"] == task
    ]
    descriptions += [
        *_extra_test_set_note(task),
        *_grouped_score_note(tree, task),
        *_omitted_settings_note(tree, task),
    ]
    swaps = [one for one in tree["swaps"] if one["task"] == task]
    for labels in dict.fromkeys(one["label_count"] for one in swaps):
        own = [one for one in swaps if one["label_count"] == labels]
        systems = [
            f"{sentences.format_system(one)} {sentences.format_percent(one['value'])} %"
            for one in own
            if one["value"] < 1
        ]
        systems += (
            [f"all of {'the others' if systems else 'them'} 100 %"]
            if len(systems) < len(own)
            else []
        )
        descriptions.append(
            f"Answers that stay when the two texts change places, {sentences.format_label_count(labels)}: {', '.join(systems)}."
        )
    if any(cell["task"] == task and cell["family"] == JOINED_FAMILY for cell in tree["cells"]):
        static = tree["grid"]["join_static_model"]
        descriptions.append(
            f"What is joined with {static} has its trained vectors in the untrained twin too: the difference is what the other model's "
            "pretraining adds to them."
        )
    return descriptions


def _extra_test_set_note(task: str) -> list[str]:
    """Where what is scored was learned from."""
    first, _, second = task.partition(TEST_SET_SEPARATOR)
    return (
        [
            f"Learned from {first}, and scored on {second}: majority is the commonest label of {first}."
        ]
        if second
        else []
    )


def _grouped_score_note(tree: JsonDict, task: str) -> list[str]:
    """Where a score is a mean over groups, as of similarities, each of which has a correlation of its own."""
    groups = next((len(one["groups"]) for one in tree["groups"] if one["task"] == task), 0)
    alike = (
        any(
            cell["task"] == task and load_kind(cell["kind"]).averages_groups
            for cell in tree["cells"]
        )
        and groups > 1
    )
    return (
        [f"The mean of {groups} correlations, one of each group, which count alike."]
        if alike
        else []
    )


def _omitted_settings_note(tree: JsonDict, task: str) -> list[str]:
    """Which readings the study left out for a task: with some numbers of its labels, or, of networks, which other tasks have, altogether."""
    networks = {cell["task"] for cell in tree["cells"] if cell["head"].startswith("bilstm")}
    own = [
        cell
        for cell in tree["cells"]
        if cell["task"] == task and cell["init"] != "none" and cell["label_count"] != "none"
    ]
    methods = dict.fromkeys((cell["transfer"], cell["head"]) for cell in own)
    counts, missing = dict.fromkeys(cell["label_count"] for cell in own), list[str]()
    for transfer, head in methods:
        asked = {
            cell["label_count"]
            for cell in own
            if (cell["transfer"], cell["head"]) == (transfer, head)
        }
        missing += [
            f"{transfer}{sentences.format_head({'head': head})} with {sentences.format_label_count(n)}"
            for n in counts
            if n not in asked
        ]
    if networks and task not in networks and ("frozen", "linear") in methods:
        missing.append("a network over frozen features")
    return [f"Not asked here: {', '.join(missing)}."] if missing else []
