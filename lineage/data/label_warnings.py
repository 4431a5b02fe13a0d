"""Warn of labels that may be misspelt, or that are too rare to be learned."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from lineage.config.data import Task
from lineage.data.labels import too_many_labels
from lineage.errors import is_short_name, shorten_value
from lineage.evaluation.spans import are_span_tags
from lineage.tasks.base import Kind

MAX_RARE_COUNT = 2
MAX_SHOWN_LABELS = 5


def describe_doubtful_labels(splits: dict[str, pd.DataFrame], task: Task, kind: Kind) -> list[str]:
    """Return at most two warnings about the labels of train: similar ones, and rare ones.

    Tags are as the user wrote them. The rare ones are types of spans, counted by sentence: plain
    tags, such as parts of speech, are often rare.
    """
    if kind.answer_type not in ("label", "tags") or task.generated:
        return []
    labels = splits["train"]["label"]
    counts = Counter(labels.explode())
    # Too many labels may be texts, of a column that was named by mistake: none is shown.
    num_shown = 0 if too_many_labels(list(counts), len(labels)) else MAX_SHOWN_LABELS
    warnings = []
    if similar := _group_similar(counts):
        warnings.append(_describe_similar(similar, counts, num_shown))
    if kind.answer_type == "tags":
        counts = _count_span_types(labels)
    for first, *others in _group_similar(counts):
        counts[first] += sum(counts.pop(other) for other in others)
    rare = {label: counts[label] for label in sorted(counts) if counts[label] <= MAX_RARE_COUNT}
    if rare:
        note = ""
        if 1 in rare.values():
            note = _explain_single(task, has_validation="validation" in splits)
        warnings.append(_describe_rare(rare, kind, note, num_shown))
    return warnings


def _group_similar(counts: Mapping[str, int]) -> list[list[str]]:
    """Return the labels that differ only in capitals or spaces, the most frequent one first."""
    groups: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        groups.setdefault(" ".join(label.split()).casefold(), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def _count_span_types(labels: "pd.Series[list[str]]") -> Counter[str]:
    """Count the sentences with each type of span; nothing is counted where tags are plain."""
    counts: Counter[str] = Counter()
    if are_span_tags(labels.explode()):
        for tags in labels:
            counts.update({tag[2:] for tag in tags if tag[2:]})
    return counts


def _describe_similar(groups: list[list[str]], counts: Mapping[str, int], num_shown: int) -> str:
    shown = [" and ".join(_show_counts(group, counts)) for group in groups[:num_shown]]
    targets: dict[str, str | None] = {}
    for first, *others in groups:
        targets |= dict.fromkeys(others, first)
    return (
        f"some labels of train differ only in capitals or spaces{_list_shown(shown, len(groups))}; "
        f"if they mean the same, write them alike, or merge them{_suggest_map(targets, num_shown)}"
    )


def _describe_rare(rare: Mapping[str, int], kind: Kind, note: str, num_shown: int) -> str:
    shown = _show_counts([*rare][:num_shown], rare)
    fix = f"merge them with other labels, or leave them out{_suggest_map(dict.fromkeys(rare), num_shown)}"
    noun = "label that occurs" if len(rare) == 1 else "labels that occur"
    times = "once or twice"
    if kind.answer_type == "tags":  # these are not left out, since a tag belongs to one word
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
