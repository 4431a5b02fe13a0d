"""Check the labels of a task over all its splits, and name them.

Labels are names, positions of choices, numbers or tags.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lineage.config.data import Task
from lineage.data.task_data import EXTRA_TEST_PREFIX
from lineage.errors import InputError, is_short_name, shorten_value
from lineage.evaluation.spans import (
    are_span_tags,
    convert_to_iob2,
    find_scheme_violations,
    suggest_label_map,
)
from lineage.tasks.base import Kind
from lineage.tasks.columns import row_error, sort_labels

CONLL2012_BRACKETS = re.compile(r"(\([^()*]*)*\*?\)*")  # such as (PERSON*, *, *) and (GPE)
MAX_SHOWN_LABELS = 3
NAME_SIMILARITY_CUTOFF = 0.6  # of difflib: one name may be meant by the other
# A constant label column that is less probable than this, given train, means withheld labels.
MIN_PLAUSIBLE_PROBABILITY = 1e-6
MAX_SUGGESTED_LABELS = 10  # labels that train lacks, to be copied into label_map
MIN_KNOWN_SHARE = 0.5  # of a split's labels: if train has fewer, the others may be texts
MIN_CONSTANT_LABELS = 20  # so many equal numbers or right choices are no chance
OUTSIDE_TAGS = {"o", "other", "none", "outside"}  # names of the plain tag outside of spans
MAX_LABELS = 100  # more are hardly names of labels
LabelCheck = Callable[[dict[str, pd.DataFrame], dict[str, str], dict[str, str]], list[str]]


def apply_label_map(
    splits: dict[str, pd.DataFrame],
    places: dict[str, str],
    tasks: Mapping[str, Task],
    dropped: dict[str, dict[str, int]],
    where: str,
) -> dict[str, pd.DataFrame]:
    """Rename labels or tags by the `label_map` of the task of each split.

    A label that a mapping does not name stays. Items whose label is mapped to null are dropped
    and counted. Raises InputError, also for a key that no split has as a label while some label
    has no key.
    """
    splits_by_place: dict[str, list[str]] = {}
    for split in splits:
        place = where
        if split.startswith(EXTRA_TEST_PREFIX):
            place = f"{where}.extra_test_sets.{split.removeprefix(EXTRA_TEST_PREFIX)}"
        splits_by_place.setdefault(place, []).append(split)
    for place, names in splits_by_place.items():
        task = tasks[names[0]]
        if isinstance(task.label_map, dict):
            _check_label_map([splits[name]["label"] for name in names], task, f"{place}.label_map")
    mapped = {}
    for split, table in splits.items():
        if tasks[split].label_map:
            table = _map_table_labels(table, tasks[split], places[split], dropped[split])
        mapped[split] = table
    return mapped


def _check_label_map(labels: list["pd.Series[Any]"], task: Task, where: str) -> None:
    """Raise InputError for the first key of label_map that is no label, and may be misspelt.

    A map that names every label may have keys that the data lack.
    """
    all_labels = pd.concat(labels).explode().to_list()
    known = sort_labels(all_labels)
    keys = task.label_names_by_value
    unknown = [key for key in keys if key not in known]
    if not unknown or all(label in keys for label in known):
        return
    if len(unknown) < len(keys):
        fix = "correct it, or remove it"
    else:
        fix = "correct them, or remove 'label_map'"
    raise InputError(
        f"{where}: no label of any split is '{shorten_value(unknown[0])}'; there are "
        f"{_describe_labels(known, len(all_labels), MAX_SUGGESTED_LABELS)}; {fix}"
    )


def _map_table_labels(
    table: pd.DataFrame, task: Task, where: str, dropped: dict[str, int]
) -> pd.DataFrame:
    if isinstance(task.label_map, tuple):
        _check_numbered_labels(table, task, where)
    names = task.label_names_by_value
    labels: list[Any] = []
    for label in table["label"]:
        if isinstance(label, str):
            labels.append(names.get(label, label))
        else:
            labels.append([names.get(tag, tag) for tag in label])
    table = table.assign(label=pd.Series(labels, table.index))
    if num_unused := int(table["label"].isna().sum()):
        dropped["unused_label"] = num_unused
        table = table[table["label"].notna()].reset_index(drop=True)
    if table.empty:
        raise InputError(f"{where}: 'label_map' leaves out every item; name a label that stays")
    return table


def _check_numbered_labels(table: pd.DataFrame, task: Task, where: str) -> None:
    """Raise InputError for the first label that is no place in a list of names."""
    names = task.label_names_by_value
    for item_label, item_id in zip(table["label"], table["id"], strict=True):
        labels = [item_label] if isinstance(item_label, str) else item_label
        unknown = [label for label in labels if label not in names]
        if not unknown:
            continue
        if unknown[0].lstrip("-").isdecimal():
            problem = (
                f"none of 0 to {len(names) - 1} of 'label_map'; give the names of all labels, "
                "from 0 on, or as 'label: name'"
            )
        else:
            problem = (
                "a name already, and 'label_map' is a list, of numbers; remove 'label_map', or "
                "write it as 'label: name'"
            )
        raise row_error(
            _row_number(item_id) - 1,
            where,
            f"column '{task.label}': '{shorten_value(unknown[0])}' is {problem}",
        )


def _row_number(item_id: str) -> int:
    """Return the row of the user's table that an item's id names; the first is 1."""
    return int(item_id.rsplit("-", 1)[1])


def _check_labels(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> list[str]:
    """Return the names of the labels, which train decides.

    Raises InputError if train has one label, and if another split has one that train lacks.
    """
    labels = sort_labels(list(splits["train"]["label"]))
    if len(labels) < 2:
        raise InputError(
            f"{places['train']}: column '{columns['train']}': every label is "
            f"'{shorten_value(labels[0])}'; there is nothing to learn, name another column"
        )
    _check_labels_hidden(splits, places, columns)
    num_train = len(splits["train"])
    for split, table in splits.items():
        is_known = table["label"].isin(labels)
        if is_known.all():
            continue
        too_many = too_many_labels(labels, num_train)
        problem, fix = _describe_unknown_labels(
            sort_labels(list(table["label"][~is_known])),
            labels,
            are_names=not too_many and bool(is_known.mean() >= MIN_KNOWN_SHARE),
            too_many=too_many,
        )
        unknown_ids = table["id"][~is_known]
        others = len(unknown_ids) - 1
        more = f" (and {others:,} more)" if others else ""
        raise InputError(
            f"{places[split]}: row {_row_number(unknown_ids.iloc[0])}{more}: column "
            f"'{columns[split]}': {problem} not occur in train, which has "
            f"{_describe_labels(labels, num_train)}; correct it, add such items to train, or {fix}"
        )
    return labels


def _describe_unknown_labels(
    unknown: list[str], labels: Sequence[str], *, are_names: bool, too_many: bool
) -> tuple[str, str]:
    """Return the beginning of a sentence about labels that train lacks, and what to do.

    `are_names` says that they are names for sure: then they are shown whole, to be copied.
    """
    count = f"{len(unknown):,} labels"
    if too_many:
        subject = "its label does" if len(unknown) == 1 else f"{count} do"
        return subject, "give its name there in 'label_map'"
    suggested = unknown[:MAX_SUGGESTED_LABELS]
    if are_names and all(is_short_name(label, is_label=True) for label in suggested):
        shown = suggested
    else:
        shown = [shorten_value(label) for label in unknown[:MAX_SHOWN_LABELS]]
    num_others = len(unknown) - len(shown)
    rest = f", and {num_others:,} more" if num_others else ""
    if len(unknown) == 1:
        subject = f"label '{shown[0]}' does"
    else:
        subject = f"{count} ({', '.join(shown)}{rest}) do"
    if shown != unknown[: len(shown)]:
        return subject, (
            "say in 'label_map' what it is, written out: null, which leaves such items out, or a "
            "label of train"
        )
    dropped = ", ".join(f'"{label}": null' for label in shown)
    fix = f"leave such items out, label_map: {{{dropped}{rest}}}"
    return subject, fix + _suggest_merge(unknown[0], labels, shown[0])


def _suggest_merge(label: str, labels: Sequence[str], shown: str) -> str:
    """Suggest to merge a label into the most similar one of train, if a message may show it."""
    short_labels = [shorten_value(known) for known in labels]
    similar = difflib.get_close_matches(label, short_labels, n=1, cutoff=NAME_SIMILARITY_CUTOFF)
    target = similar[0] if similar else "a label of train"
    if similar and target not in labels:  # it was shortened
        return ""
    return f', or merge them: {{"{shown}": "{target}"}}'


def _check_labels_hidden(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> None:
    """Raise InputError if a whole split has one label, which is improbable given train.

    Benchmarks hide the labels of their tests so.
    """
    shares = splits["train"]["label"].explode().value_counts(normalize=True)
    if len(shares) < 2:
        return
    for split in ("test", "validation"):
        if split not in splits:
            continue
        labels = splits[split]["label"].explode()
        if len(labels) < 2 or labels.nunique() != 1:
            continue
        if shares.get(labels.iloc[0], 0.0) ** len(labels) < MIN_PLAUSIBLE_PROBABILITY:
            raise InputError(
                f"{places[split]}: column '{columns[split]}': all {len(labels):,} are "
                f"'{shorten_value(labels.iloc[0])}', as if labels were held back; name a split "
                "that has them, such as the validation one as test, and this one as unlabelled"
            )


def _list_some(names: Sequence[str], most: int = MAX_SHOWN_LABELS) -> str:
    """Return as many names as a message shows."""
    more = ", ..." if len(names) > most else ""
    return f"{', '.join(map(shorten_value, names[:most]))}{more}"


def too_many_labels(labels: Sequence[str], num_rows: int) -> bool:
    """Return whether there are too many for labels: they may be texts."""
    return len(labels) > min(MAX_LABELS, num_rows - 1)


def _describe_labels(labels: Sequence[str], num_rows: int, most: int = MAX_SHOWN_LABELS) -> str:
    """Return some of the labels, or only their number if they may be texts."""
    if too_many_labels(labels, num_rows):
        return f"{len(labels):,} of them in {num_rows:,} rows: are they labels?"
    return _list_some(labels, most)


def _check_choices(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> list[str]:
    """Return the positions of the choices: these are labels even if train lacks one.

    Raises InputError if splits differ in the number of choices, and if all right choices
    of a scored split have the same position.
    """
    counts = {split: len(table["choices"].iloc[0]) for split, table in splits.items()}
    for split, count in counts.items():
        if count != counts["train"]:
            raise InputError(
                f"{places[split]}: its items have {count} choices, those of train "
                f"{counts['train']}; give every item the same number"
            )
    _check_labels_hidden(splits, places, columns)
    scored = set(splits)
    if "validation" in splits:  # else validation is split off train
        scored.remove("train")
    for split in sorted(scored):
        labels = splits[split]["label"]
        if labels.nunique() == 1 and len(labels) >= MIN_CONSTANT_LABELS:
            raise InputError(
                f"{places[split]}: column '{columns[split]}': the right choice is number "
                f"{labels.iloc[0]} in all {len(labels):,} items, so a model that learns only "
                "the position would be right; shuffle the choices of each item, of train too"
            )
    return [str(position) for position in range(counts["train"])]


def _check_numbers(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> list[str]:
    """Return no names.

    Raises InputError if all numbers of train are equal, or all of a larger scored split:
    benchmarks hide them so.
    """
    for split in ("train", "test", "validation"):
        if split not in splits:
            continue
        numbers = splits[split]["label"]
        if numbers.nunique() > 1:
            continue
        if split == "train":
            fix = "there is nothing to learn, name another column"
        elif len(numbers) >= MIN_CONSTANT_LABELS:
            fix = "nothing can be compared; name a split that has them"
        else:
            continue
        raise InputError(
            f"{places[split]}: column '{columns[split]}': every number is {numbers.iloc[0]}; {fix}"
        )
    return []


def _check_tags(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> list[str]:
    """Convert spans to IOB2, whatever their scheme, and return the tags of all splits.

    Raises InputError.
    """
    all_tags = set[str]().union(*map(_distinct_tags, splits.values()))
    if are_span_tags(all_tags):
        for split, table in splits.items():
            _convert_table_to_iob2(table, places[split], columns[split])
    tags = {split: _distinct_tags(table) for split, table in splits.items()}
    if len(tags["train"]) < 2:
        (only_tag,) = tags["train"]
        raise InputError(
            f"{places['train']}: column '{columns['train']}': every tag is "
            f"'{shorten_value(only_tag)}'; there is nothing to learn, name another column"
        )
    _check_labels_hidden(splits, places, columns)
    train_types = set(map(_span_type, tags["train"]))
    for split, table in splits.items():
        split_tags = [tag for sentence in table["label"] for tag in sentence if tag != "O"]
        has_known_type = not train_types.isdisjoint(map(_span_type, split_tags))
        if len(split_tags) >= MIN_CONSTANT_LABELS and not has_known_type:
            raise InputError(
                f"{places[split]}: column '{columns[split]}': none of its tags "
                f"({_list_some(sort_labels(split_tags))}) occurs in train, which has "
                f"{_list_some(sorted(tags['train'] - {'O'}))}; say in 'label_map' which are the "
                "same"
            )
    return sort_labels(list(set[str]().union(*tags.values())))


def _distinct_tags(table: pd.DataFrame) -> set[str]:
    return set[str]().union(*table["label"])


def _convert_table_to_iob2(table: pd.DataFrame, where: str, column: str) -> None:
    """Convert the tags of a table in place; `has_invalid_tags` is true where they were repaired."""
    violations = pd.Series(find_scheme_violations(list(table["label"])), table.index)
    table["has_invalid_tags"] = table.get("has_invalid_tags", False) | violations
    converted = []
    for tags, item_id in zip(table["label"], table["id"], strict=True):
        try:
            converted.append(convert_to_iob2(tags))
        except InputError as error:
            raise row_error(
                _row_number(item_id) - 1, where, f"column '{column}': {error}"
            ) from None
    table["label"] = converted


def _span_type(tag: str) -> str:
    """Return the type of a span; a plain tag is its own type."""
    return tag[2:] if tag[:2] in ("B-", "I-") else tag


def count_unseen_tags(splits: dict[str, pd.DataFrame], kind: Kind) -> dict[str, int]:
    """Count the sentences of each split with a tag or type of span that train lacks.

    No model can predict it.
    """
    if kind.answer_type != "tags":
        return {}
    train_types = set(map(_span_type, _distinct_tags(splits["train"])))
    counts = {}
    for split, table in splits.items():
        if "label" in table:
            counts[split] = sum(
                not train_types.issuperset(map(_span_type, tags)) for tags in table["label"]
            )
    return counts


def _accept_answers(*_: object) -> list[str]:
    """Return no names: an answer is a part of its context, which its kind has checked."""
    return []


# By answer type. The arguments are splits, their places in params.yaml, and the names of their
# label columns; the result is the names of the labels.
LABEL_CHECKS: dict[str, LabelCheck] = {
    "label": _check_labels,
    "choice": _check_choices,
    "number": _check_numbers,
    "tags": _check_tags,
    "span": _accept_answers,
}


def choose_tag_metric(labels: list[str], requested: Sequence[str], where: str) -> str:
    """Return span_f1 if the tags are spans, else token_accuracy.

    Raises InputError if span_f1 is requested without spans, and if tags look like spans in
    a form that is not read.
    """
    if are_span_tags(labels):
        return "span_f1"
    shown = _list_some(labels)
    if "token_accuracy" not in requested:
        if label_map := suggest_label_map(labels):
            raise InputError(
                f"{where}.label: the tags ({shown}) look like spans in an unknown scheme, "
                "and only token accuracy would be scored; write O, B-PER and I-PER, or rename "
                f"them: label_map: {{{label_map}}}; if they are not spans, set "
                "metric: [token_accuracy]"
            )
        if "*" in labels and all(map(CONLL2012_BRACKETS.fullmatch, labels)):
            raise InputError(
                f"{where}.label: the tags ({shown}) are the brackets of CoNLL-2012, which are not "
                "read; write O, B-PER and I-PER"
            )
    if "span_f1" in requested:
        are_numbers = all(map(str.isdecimal, labels))
        numbers = " but numbers: give their names in 'label_map'" if are_numbers else ""
        raise InputError(
            f"{where}.metric: span_f1 needs spans, and the tags ({shown}) are neither O nor "
            f"B-TYPE nor I-TYPE{numbers}; rename types of spans, such as "
            "label_map: {PER: I-PER}, remove the metric, or name another column"
        )
    return "token_accuracy"


def count_unread_spans(labels: Sequence[str], kind: Kind, task: Task) -> dict[str, dict[str, int]]:
    """Count the tags that may be spans but are not read as such.

    These are unnamed numbers, and plain tags of which one is such as O. Nothing is counted where
    the task itself asks for token_accuracy.
    """
    unread: dict[str, dict[str, int]] = {"numeric_tags": {}, "tags_without_scheme": {}}
    requested = task.metric or ()
    if kind.answer_type != "tags" or are_span_tags(labels) or "token_accuracy" in requested:
        return unread
    if all(map(str.isdecimal, labels)):
        unread["numeric_tags"] = {"train": len(labels)}
    if not OUTSIDE_TAGS.isdisjoint(map(str.lower, labels)):
        unread["tags_without_scheme"] = {"train": len(labels)}
    return unread


def drop_unanswerable(
    splits: dict[str, pd.DataFrame],
    places: dict[str, str],
    dropped: dict[str, dict[str, int]],
    *,
    folds: int | None,
) -> None:
    """Drop and count training questions whose answer max_words cut off: none can be learned.

    They stay in other splits, and cannot be answered there. With folds they stay in train too,
    since each is scored (`TaskData.split_items` trains on none of them). Raises InputError if
    train has no other question; with folds if fewer than half have an answer.
    """
    has_answer = splits["train"]["label"].map(len) > 0
    num_unanswerable = int((~has_answer).sum())
    if folds and has_answer.mean() < 0.5:
        raise InputError(
            f"{places['train']}: {num_unanswerable:,} of {len(has_answer):,} questions have no "
            "answer within the first max_words words, and with folds each is scored; raise "
            "max_words"
        )
    if not has_answer.any():
        raise InputError(
            f"{places['train']}: no answer is within the first max_words words of its "
            "context; raise max_words"
        )
    if folds:
        return
    dropped["train"]["answer_cut_off"] = num_unanswerable
    splits["train"] = splits["train"][has_answer].reset_index(drop=True)
