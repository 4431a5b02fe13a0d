"""Names of labels: how messages show them, and warnings of names that are misspelt or rare."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from lineage.config.data import Task
from lineage.errors import is_short_name, shorten_value

WHOLE_NUMBER = re.compile(r"-?\d+")
MAX_LABELS = 100  # more are hardly names of labels
MAX_SHOWN_LABELS = 3
MAX_RARE_COUNT = 2
MAX_WARNED_LABELS = 5


def sort_labels(labels: Sequence[str]) -> list[str]:
    """Return the distinct labels, sorted; as numbers where all are whole numbers."""
    distinct = sorted(set(labels))  # 1 and 01 are two labels, but one number
    if all(WHOLE_NUMBER.fullmatch(name) for name in distinct):
        return sorted(distinct, key=int)
    return distinct


def too_many_labels(labels: Sequence[str], num_rows: int) -> bool:
    """Return whether there are too many for labels: they may be texts."""
    return len(labels) > min(MAX_LABELS, num_rows - 1)


def list_some(names: Sequence[str], most: int = MAX_SHOWN_LABELS) -> str:
    """Return as many names as a message shows."""
    more = ", ..." if len(names) > most else ""
    return f"{', '.join(map(shorten_value, names[:most]))}{more}"


def describe_labels(labels: Sequence[str], num_rows: int, most: int = MAX_SHOWN_LABELS) -> str:
    """Return some of the labels, or only their number if they may be texts."""
    if too_many_labels(labels, num_rows):
        return f"{len(labels):,} of them in {num_rows:,} rows: are they labels?"
    return list_some(labels, most)


def warn_of_names(
    splits: dict[str, pd.DataFrame], task: Task, span_types: Counter[str] | None = None
) -> list[str]:
    """Return at most two warnings about the labels of train: similar ones, and rare ones.

    For tags, the rare labels are `span_types`, counted by sentence.
    """
    if task.generated:
        return []
    labels = splits["train"]["label"]
    counts = Counter(labels.explode())
    # Too many labels may be texts, of a column that was named by mistake: none is shown.
    num_shown = 0 if too_many_labels(list(counts), len(labels)) else MAX_WARNED_LABELS
    warnings = []
    if similar := _group_similar(counts):
        warnings.append(_describe_similar(similar, counts, num_shown))
    are_spans = span_types is not None
    if span_types is not None:
        counts = span_types
    for first, *others in _group_similar(counts):
        counts[first] += sum(counts.pop(other) for other in others)
    rare = {label: counts[label] for label in sorted(counts) if counts[label] <= MAX_RARE_COUNT}
    if rare:
        note = ""
        if 1 in rare.values():
            note = _explain_single(task, has_validation="validation" in splits)
        warnings.append(_describe_rare(rare, note, num_shown, are_spans=are_spans))
    return warnings


def _group_similar(counts: Mapping[str, int]) -> list[list[str]]:
    """Return the labels that differ only in capitals or spaces, the most frequent one first."""
    groups: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        groups.setdefault(" ".join(label.split()).casefold(), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def _describe_similar(groups: list[list[str]], counts: Mapping[str, int], num_shown: int) -> str:
    shown = [" and ".join(_show_counts(group, counts)) for group in groups[:num_shown]]
    targets: dict[str, str | None] = {}
    for first, *others in groups:
        targets |= dict.fromkeys(others, first)
    return (
        f"some labels of train differ only in capitals or spaces{_list_shown(shown, len(groups))}; "
        f"if they mean the same, write them alike, or merge them{_suggest_map(targets, num_shown)}"
    )


def _describe_rare(rare: Mapping[str, int], note: str, num_shown: int, *, are_spans: bool) -> str:
    shown = _show_counts([*rare][:num_shown], rare)
    fix = f"merge them with other labels, or leave them out{_suggest_map(dict.fromkeys(rare), num_shown)}"
    noun = "label that occurs" if len(rare) == 1 else "labels that occur"
    times = "once or twice"
    if are_spans:  # these are not left out, since a tag belongs to one word
        fix = "or merge them with other types in 'label_map'"
        noun = "type of span that occurs" if len(rare) == 1 else "types of span that occur"
        times = "in one or two sentences"
    return (
        f"train has {len(rare):,} {noun} {times}, too rarely to be learned"
        f"{_list_shown(shown, len(rare))}{note}; add more of them, {fix}"
    )


def _explain_single(task: Task, *, has_validation: bool) -> str:
    """Tell what folds, or a validation split, do to a label that occurs once."""
    if task.folds:
        return "; with folds, what occurs once cannot be both learned and tested"
    if has_validation:
        return ""
    return "; validation is taken from train, and what occurs once cannot be in both"


def _show_counts(labels: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    return [f"'{shorten_value(label)}' ({counts[label]:,})" for label in labels]


def _list_shown(shown: Sequence[str], count: int) -> str:
    """List what is shown of so many after a colon; nothing if nothing is shown."""
    others = count - len(shown)
    more = f", and {others:,} more" if others else ""
    return f": {', '.join(shown)}{more}" if shown else ""


def _suggest_map(targets: Mapping[str, str | None], num_shown: int) -> str:
    """Suggest a label_map that can be copied, if a message may show all of its names."""
    names = [name for entry in targets.items() for name in entry if name is not None]
    if len(targets) > num_shown or not all(is_short_name(name, is_label=True) for name in names):
        return " in 'label_map'"
    return f": label_map: {json.dumps(targets, ensure_ascii=False)}"
