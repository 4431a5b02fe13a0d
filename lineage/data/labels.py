"""What the gold answers of a task may be, and what they are called: labels, places of choices, numbers, tags. Checked over all of its splits."""

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
MAX_SHOWN_LABELS = 3  # labels or tags, of a column that holds such: of one of texts, which was named by mistake, none
NAME_SIMILARITY_CUTOFF = (
    0.6  # as much as difflib has two names have in common, so that one may be meant by the other
)
MAX_CHANCE_PROBABILITY = (
    1e-6  # that a split without labels of its own is taken for one of a single label
)
MAX_SUGGESTED_LABELS = 10  # labels that train lacks, to be copied into 'names'
MIN_KNOWN_SHARE = 0.5  # of a split's labels: where train has fewer of them, its others may be texts
MIN_CONSTANT_LABELS = 20  # numbers, or places of right choices, that are all the same by no chance
OUTSIDE_TAGS = {"o", "other", "none", "outside"}  # of spans, as plain tags may call it
MAX_LABELS = 100  # more are hardly names of labels


def apply_label_map(
    splits: dict[str, pd.DataFrame],
    places: dict[str, str],
    tasks: Mapping[str, Task],
    dropped: dict[str, dict[str, int]],
    where: str,
) -> dict[str, pd.DataFrame]:
    """Labels, or lists of tags, by the names that the task of their split gives them; what a mapping does not name stays.

    Items whose label is named null are left out, and counted. Raises InputError, also where a name is that of a label which no split has, and some
    label has none.
    """
    owners: dict[str, list[str]] = {}
    for split in splits:
        owners.setdefault(
            f"{where}.extra_test_sets.{split.removeprefix(EXTRA_TEST_PREFIX)}"
            if split.startswith(EXTRA_TEST_PREFIX)
            else where,
            [],
        ).append(split)
    for owner, own in owners.items():
        if isinstance(tasks[own[0]].label_map, dict):
            _check_label_map(
                [splits[split]["label"] for split in own], tasks[own[0]], f"{owner}.names"
            )
    return {
        split: _map_table_labels(table, tasks[split], places[split], dropped[split])
        if tasks[split].label_map
        else table
        for split, table in splits.items()
    }


def _check_label_map(labels: list["pd.Series[Any]"], task: Task, where: str) -> None:
    """Raise InputError for the first key of `names` that is no label, and may be misspelt; a map of all classes may have some that the data lack."""
    found = pd.concat(labels).explode().to_list()
    there = sort_labels(found)
    strange = [key for key in task.label_names_by_value if key not in there]
    if strange and any(label not in task.label_names_by_value for label in there):
        mend = (
            "correct it, or take it out"
            if len(strange) < len(task.label_names_by_value)
            else "correct them, or take 'names' out"
        )
        raise InputError(
            f"{where}: no label of any split is '{shorten_value(strange[0])}'; there are {_describe_labels(there, len(found), MAX_SUGGESTED_LABELS)}; {mend}"
        )


def _map_table_labels(
    table: pd.DataFrame, task: Task, where: str, dropped: dict[str, int]
) -> pd.DataFrame:
    names = task.label_names_by_value
    for one, row_id in (
        zip(table["label"], table["id"], strict=True) if isinstance(task.label_map, tuple) else ()
    ):
        if strange := [
            label for label in ([one] if isinstance(one, str) else one) if label not in names
        ]:
            said, numbered = shorten_value(strange[0]), strange[0].lstrip("-").isdecimal()
            what = (
                f"none of 0 to {len(names) - 1} of 'names'; give the names of all labels, from 0 on, or as 'label: name'"
                if numbered
                else "a name already, and 'names' is a list, of numbers; take 'names' out, or write it as 'label: name'"
            )
            raise row_error(
                _row_number(row_id) - 1, where, f"column '{task.label}': '{said}' is {what}"
            )
    labels = [
        names.get(one, one) if isinstance(one, str) else [names.get(tag, tag) for tag in one]
        for one in table["label"]
    ]
    table = table.assign(label=pd.Series(labels, table.index))
    if unused := int(table["label"].isna().sum()):
        dropped["unused_label"], table = (
            unused,
            table[table["label"].notna()].reset_index(drop=True),
        )
    if table.empty:
        raise InputError(f"{where}: 'names' leaves out every item; name a label that stays")
    return table


def _row_number(item: str) -> int:
    """The row of the user's table that an item's id names, the first of which is 1."""
    return int(item.rsplit("-", 1)[1])


def _check_labels(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> list[str]:
    """The names of the labels, which train decides. Raises InputError where another split has one that train lacks."""
    labels = sort_labels(list(splits["train"]["label"]))
    if len(labels) < 2:
        raise InputError(
            f"{places['train']}: column '{columns['train']}': every label is '{shorten_value(labels[0])}'; there is nothing to learn, name "
            "another column"
        )
    _check_labels_hidden(splits, places, columns)
    for split, table in splits.items():
        known = table["label"].isin(labels)
        if not known.all():
            many = _too_many_labels(labels, len(splits["train"]))
            what, mend = _describe_unknown_labels(
                sort_labels([*table["label"][~known]]),
                labels,
                whole=not many and bool(known.mean() >= MIN_KNOWN_SHARE),
                many=many,
            )
            row, has = (
                _row_number(table["id"][~known].iloc[0]),
                _describe_labels(labels, len(splits["train"])),
            )
            raise InputError(
                f"{places[split]}: row {row}{_and_more(int((~known).sum()) - 1)}: column '{columns[split]}': {what} not occur in train, "
                f"which has {has}; correct it, add such items to train, or {mend}"
            )
    return labels


def _describe_unknown_labels(
    strange: list[str], labels: Sequence[str], *, whole: bool, many: bool
) -> tuple[str, str]:
    """Labels that train lacks, as a sentence begins with them, and what to do in `names`; `whole`, to be copied, where they are labels for sure."""
    if many:
        return "its label does" if len(
            strange
        ) == 1 else f"{len(strange):,} labels do", "give its name there in 'names'"
    whole = whole and all(
        is_short_name(label, is_label=True) for label in strange[:MAX_SUGGESTED_LABELS]
    )
    said = (
        strange[:MAX_SUGGESTED_LABELS]
        if whole
        else [*map(shorten_value, strange[:MAX_SHOWN_LABELS])]
    )
    rest = f", and {len(strange) - len(said):,} more" if len(said) < len(strange) else ""
    what = (
        f"label '{said[0]}' does"
        if len(strange) == 1
        else f"{len(strange):,} labels ({', '.join(said)}{rest}) do"
    )
    if said != strange[: len(said)]:
        return (
            what,
            "say in 'names' what it is, written out: null, which leaves such items out, or a label of train",
        )
    like = next(
        iter(
            difflib.get_close_matches(
                strange[0], [*map(shorten_value, labels)], n=1, cutoff=NAME_SIMILARITY_CUTOFF
            )
        ),
        None,
    )
    out = ", ".join(f'"{label}": null' for label in said)
    merged = (
        f', or merge them: {{"{said[0]}": "{like or "a label of train"}"}}'
        if like is None or like in labels
        else ""
    )
    return what, f"leave such items out, names: {{{out}{rest}}}{merged}"


def _and_more(count: int) -> str:
    return f" (and {count:,} more)" if count else ""


def _check_labels_hidden(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> None:
    """Raise InputError where a whole split has one label, or tag, that so many of train's would not have: benchmarks hide those of their tests so."""
    shares = splits["train"]["label"].explode().value_counts(normalize=True)
    for split in sorted({"validation", "test"} & {*splits}):
        found = splits[split]["label"].explode()
        if (
            len(shares) > 1
            and len(found) > 1
            and found.nunique() == 1
            and shares.get(found.iloc[0], 0.0) ** len(found) < MAX_CHANCE_PROBABILITY
        ):
            raise InputError(
                f"{places[split]}: column '{columns[split]}': all {len(found):,} are '{shorten_value(found.iloc[0])}', as if labels were "
                "held back; name a split that has them, such as the validation one as test, and this one as unlabelled"
            )


def _list_some(names: Sequence[str], most: int = MAX_SHOWN_LABELS) -> str:
    """As many of them as a message shows."""
    return f"{', '.join(map(shorten_value, names[:most]))}{', ...' if len(names) > most else ''}"


def _too_many_labels(labels: Sequence[str], rows: int) -> bool:
    """Whether there are too many in so many rows for labels: they may be texts."""
    return len(labels) > min(MAX_LABELS, rows - 1)


def _describe_labels(labels: Sequence[str], rows: int, most: int = MAX_SHOWN_LABELS) -> str:
    """Some of the labels, if they are labels."""
    return (
        f"{len(labels):,} of them in {rows:,} rows: are they labels?"
        if _too_many_labels(labels, rows)
        else _list_some(labels, most)
    )


def _check_choices(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> list[str]:
    """The places of the choices, which are the labels whether or not train has them all.

    Raises InputError where a split has another number of choices, and where all right ones that are scored stand in one place.
    """
    counts = {split: len(table["choices"].iloc[0]) for split, table in splits.items()}
    for split, count in counts.items():
        if count != counts["train"]:
            raise InputError(
                f"{places[split]}: its items have {count} choices, those of train {counts['train']}; give all of them as many"
            )
    _check_labels_hidden(splits, places, columns)
    for split in sorted(
        {*splits} - {"train"} if "validation" in splits else splits
    ):  # validation is carved of train
        found = splits[split]["label"]
        if found.nunique() == 1 and len(found) >= MIN_CONSTANT_LABELS:
            raise InputError(
                f"{places[split]}: column '{columns[split]}': the right choice is number {found.iloc[0]} in all {len(found):,} items, "
                "so that who knows nothing may have all of them right; shuffle the choices of each item, of train too"
            )
    return [str(place) for place in range(counts["train"])]


def _check_numbers(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> list[str]:
    """Numbers have no names. Raises InputError where all of train are the same, or all of a larger split that is scored: benchmarks hide them so."""
    for split in ("train", *sorted({"validation", "test"} & splits.keys())):
        numbers = splits[split]["label"]
        if numbers.nunique() < 2 and len(numbers) >= (
            1 if split == "train" else MIN_CONSTANT_LABELS
        ):
            mend = (
                "there is nothing to learn, name another column"
                if split == "train"
                else "nothing can be compared; name a split that has them"
            )
            raise InputError(
                f"{places[split]}: column '{columns[split]}': every number is {numbers.iloc[0]}; {mend}"
            )
    return []


def _check_tags(
    splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]
) -> list[str]:
    """The tags of all splits, spans in IOB2 whatever scheme they were written in. Raises InputError."""
    if are_span_tags({tag for table in splits.values() for tags in table["label"] for tag in tags}):
        for split, table in splits.items():
            table["mended"] = table.get("mended", False) | pd.Series(
                find_scheme_violations(list(table["label"])), table.index
            )
            table["label"] = [
                _convert_to_iob2(tags, row_id, places[split], columns[split])
                for tags, row_id in zip(table["label"], table["id"], strict=True)
            ]
    names = {
        split: {tag for tags in table["label"] for tag in tags} for split, table in splits.items()
    }
    if len(names["train"]) < 2:
        (only,) = map(shorten_value, names["train"])
        raise InputError(
            f"{places['train']}: column '{columns['train']}': every tag is '{only}'; there is nothing to learn, name another column"
        )
    _check_labels_hidden(splits, places, columns)
    known = {_span_type(tag) for tag in names["train"]}
    for split, table in splits.items():
        own = [tag for tags in table["label"] for tag in tags if tag != "O"]
        if len(own) >= MIN_CONSTANT_LABELS and known.isdisjoint(map(_span_type, own)):
            raise InputError(
                f"{places[split]}: column '{columns[split]}': none of its tags ({_list_some(sort_labels(own))}) occurs in train, which has "
                f"{_list_some(sorted(names['train'] - {'O'}))}; say in 'names' which are the same"
            )
    return sort_labels([tag for some in names.values() for tag in some])


def _span_type(tag: str) -> str:
    """What a span is of; a plain tag is its own type."""
    return tag[2:] if tag[:2] in ("B-", "I-") else tag


def count_unseen_tags(splits: dict[str, pd.DataFrame], kind: Kind) -> dict[str, int]:
    """In how many sentences of each split a tag, or a type of spans, occurs that train has not: it is never right."""
    if kind.answer_type != "tags":
        return {}
    known = {_span_type(tag) for tags in splits["train"]["label"] for tag in tags}
    own = {split: table["label"] for split, table in splits.items() if "label" in table}
    return {
        split: sum(any(_span_type(tag) not in known for tag in tags) for tags in labels)
        for split, labels in own.items()
    }


def _convert_to_iob2(tags: list[str], row_id: str, where: str, column: str) -> list[str]:
    try:
        return convert_to_iob2(tags)
    except InputError as error:
        raise row_error(_row_number(row_id) - 1, where, f"column '{column}': {error}") from None


# What the gold answers are called, of splits, their places in params.yaml and the names of their columns.
LABEL_CHECKS: dict[
    str, Callable[[dict[str, pd.DataFrame], dict[str, str], dict[str, str]], list[str]]
] = {
    "label": _check_labels,
    "choice": _check_choices,
    "number": _check_numbers,
    "tags": _check_tags,
    "span": lambda *_: [],
}


def choose_tag_metric(labels: list[str], requested: Sequence[str], where: str) -> str:
    """F1 of spans where tags are of spans, else the share of tags that are right.

    Raises InputError where spans are asked for and there are none, and where tags are of spans in a form that is not read.
    """
    if are_span_tags(labels):
        return "span_f1"
    if "token_accuracy" not in requested and (form := suggest_label_map(labels)):
        raise InputError(
            f"{where}.label: the tags ({_list_some(labels)}) look like spans in a form that is not read, and only the share of tags that is "
            f"right would be scored; write O, B-PER and I-PER, or give such names: names: {{{form}}}; if they are no spans, say metric: "
            "[token_accuracy]"
        )
    if (
        "token_accuracy" not in requested
        and "*" in labels
        and all(map(CONLL2012_BRACKETS.fullmatch, labels))
    ):
        raise InputError(
            f"{where}.label: the tags ({_list_some(labels)}) are the brackets of CoNLL-2012, which are not read; write O, B-PER and I-PER"
        )
    if "span_f1" in requested:
        numbers = (
            " but numbers: give their names in 'names'" if all(map(str.isdecimal, labels)) else ""
        )
        raise InputError(
            f"{where}.metric: span_f1 is of spans, and the tags ({_list_some(labels)}) are neither O nor B-TYPE nor I-TYPE{numbers}; "
            "name plain types of spans so, names: {PER: I-PER}, take the metric out, or name another column"
        )
    return "token_accuracy"


def count_unread_spans(labels: Sequence[str], kind: Kind, task: Task) -> dict[str, dict[str, int]]:
    """How many tags there are, in all splits, where they may be spans and are read as none: numbers that nobody named, and plain tags of which one is
    such as O.

    Nothing where the task itself says what they are scored by.
    """
    asked = (
        kind.answer_type != "tags"
        or are_span_tags(labels)
        or "token_accuracy" in (task.metric or ())
    )
    found = {
        "numbered_tags": all(map(str.isdecimal, labels)),
        "plain_tags": not OUTSIDE_TAGS.isdisjoint(map(str.lower, labels)),
    }
    return {
        name: {"train": len(labels)} if may and not asked else {} for name, may in found.items()
    }


def drop_unanswerable(
    splits: dict[str, pd.DataFrame],
    places: dict[str, str],
    dropped: dict[str, dict[str, int]],
    *,
    folds: int | None,
) -> None:
    """Take the questions out of train of whose context max_tokens left no answer, and count them: nothing can be learned from them.

    Those of the other splits stay, and nobody can answer them; so do all with folds, of which each is scored (`TaskData.parts` learns from none of
    them). Raises InputError where train has no other, with folds where fewer than half are.
    """
    reached = splits["train"]["label"].map(len) > 0
    if folds and reached.mean() < 0.5:
        raise InputError(
            f"{places['train']}: {int((~reached).sum()):,} of {len(reached):,} questions have no answer within the first max_tokens "
            "words, and with folds each is scored; raise max_tokens"
        )
    if not reached.any():
        raise InputError(
            f"{places['train']}: no answer stands within the first max_tokens words of its context; raise max_tokens"
        )
    if folds:
        return
    dropped["train"]["answer_cut_off"] = int((~reached).sum())
    splits["train"] = splits["train"][reached].reset_index(drop=True)
