"""What the gold answers of a task may be, and what they are called: labels, places of choices, numbers, tags. Checked over all of its splits."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lineage.data import Task
from lineage.errors import InputError, is_name, shown
from lineage.kind import Kind, bad_row, label_names
from lineage.loading.taskdata import SECOND
from lineage.scoring.tags import broken, iob2, is_spans, other_form

BRACKETS = re.compile(r"(\([^()*]*)*\*?\)*")  # such as (PERSON*, *, *) and (GPE)
MOST_SHOWN = 3  # labels or tags, of a column that holds such: of one of texts, which was named by mistake, none
LIKE = 0.6  # as much as difflib has two names have in common, so that one may be meant by the other
BY_CHANCE = 1e-6  # that a split without labels of its own is taken for one of a single label
MOST_NAMED = 10  # labels that train lacks, to be copied into 'names'
KNOWN = 0.5  # of a split's labels: where train has fewer of them, its others may be texts
MANY_ALIKE = 20  # numbers, or places of right choices, that are all the same by no chance
OUTSIDE = {"o", "other", "none", "outside"}  # of spans, as plain tags may call it
MANY = 100  # more are hardly names of labels


def named(
    splits: dict[str, pd.DataFrame], places: dict[str, str], tasks: Mapping[str, Task], dropped: dict[str, dict[str, int]], where: str
) -> dict[str, pd.DataFrame]:
    """Labels, or lists of tags, by the names that the task of their split gives them; what a mapping does not name stays.

    Items whose label is named null are left out, and counted. Raises InputError, also where a name is that of a label which no split has, and some
    label has none.
    """
    owners: dict[str, list[str]] = {}
    for split in splits:
        owners.setdefault(f"{where}.also_test.{split.removeprefix(SECOND)}" if split.startswith(SECOND) else where, []).append(split)
    for owner, own in owners.items():
        if isinstance(tasks[own[0]].names, dict):
            _check_names([splits[split]["label"] for split in own], tasks[own[0]], f"{owner}.names")
    return {split: _named(table, tasks[split], places[split], dropped[split]) if tasks[split].names else table for split, table in splits.items()}


def _check_names(labels: list["pd.Series[Any]"], task: Task, where: str) -> None:
    """Raise InputError for the first key of `names` that is no label, and may be misspelt; a map of all classes may have some that the data lack."""
    found = pd.concat(labels).explode().to_list()
    there = label_names(found)
    strange = [key for key in task.renamed if key not in there]
    if strange and any(label not in task.renamed for label in there):
        mend = "correct it, or take it out" if len(strange) < len(task.renamed) else "correct them, or take 'names' out"
        raise InputError(f"{where}: no label of any split is '{shown(strange[0])}'; there are {_told(there, len(found), MOST_NAMED)}; {mend}")


def _named(table: pd.DataFrame, task: Task, where: str, dropped: dict[str, int]) -> pd.DataFrame:
    names = task.renamed
    for one, row_id in zip(table["label"], table["id"], strict=True) if isinstance(task.names, tuple) else ():
        if strange := [label for label in ([one] if isinstance(one, str) else one) if label not in names]:
            said, numbered = shown(strange[0]), strange[0].lstrip("-").isdecimal()
            what = (f"none of 0 to {len(names) - 1} of 'names'; give the names of all labels, from 0 on, or as 'label: name'" if numbered else
                    "a name already, and 'names' is a list, of numbers; take 'names' out, or write it as 'label: name'")  # fmt: skip
            raise bad_row(_row_of(row_id) - 1, where, f"column '{task.label}': '{said}' is {what}")
    labels = [names.get(one, one) if isinstance(one, str) else [names.get(tag, tag) for tag in one] for one in table["label"]]
    table = table.assign(label=pd.Series(labels, table.index))
    if unused := int(table["label"].isna().sum()):
        dropped["unused_label"], table = unused, table[table["label"].notna()].reset_index(drop=True)
    if table.empty:
        raise InputError(f"{where}: 'names' leaves out every item; name a label that stays")
    return table


def _row_of(item: str) -> int:
    """The row of the user's table that an item's id names, the first of which is 1."""
    return int(item.rsplit("-", 1)[1])


def _check_labels(splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]) -> list[str]:
    """The names of the labels, which train decides. Raises InputError where another split has one that train lacks."""
    labels = label_names(list(splits["train"]["label"]))
    if len(labels) < 2:
        raise InputError(f"{places['train']}: column '{columns['train']}': every label is '{shown(labels[0])}'; there is nothing to learn, name "
                         "another column")  # fmt: skip
    _check_held_back(splits, places, columns)
    for split, table in splits.items():
        known = table["label"].isin(labels)
        if not known.all():
            many = _many(labels, len(splits["train"]))
            what, mend = _strange(label_names([*table["label"][~known]]), labels, whole=not many and bool(known.mean() >= KNOWN), many=many)
            row, has = _row_of(table["id"][~known].iloc[0]), _told(labels, len(splits["train"]))
            raise InputError(f"{places[split]}: row {row}{_more(int((~known).sum()) - 1)}: column '{columns[split]}': {what} not occur in train, "
                             f"which has {has}; correct it, add such items to train, or {mend}")  # fmt: skip
    return labels


def _strange(strange: list[str], labels: Sequence[str], *, whole: bool, many: bool) -> tuple[str, str]:
    """Labels that train lacks, as a sentence begins with them, and what to do in `names`; `whole`, to be copied, where they are labels for sure."""
    if many:
        return "its label does" if len(strange) == 1 else f"{len(strange):,} labels do", "give its name there in 'names'"
    whole = whole and all(is_name(label, label=True) for label in strange[:MOST_NAMED])
    said = strange[:MOST_NAMED] if whole else [*map(shown, strange[:MOST_SHOWN])]
    rest = f", and {len(strange) - len(said):,} more" if len(said) < len(strange) else ""
    what = f"label '{said[0]}' does" if len(strange) == 1 else f"{len(strange):,} labels ({', '.join(said)}{rest}) do"
    if said != strange[: len(said)]:
        return what, "say in 'names' what it is, written out: null, which leaves such items out, or a label of train"
    like = next(iter(difflib.get_close_matches(strange[0], [*map(shown, labels)], n=1, cutoff=LIKE)), None)
    out = ", ".join(f'"{label}": null' for label in said)
    merged = f', or merge them: {{"{said[0]}": "{like or "a label of train"}"}}' if like is None or like in labels else ""
    return what, f"leave such items out, names: {{{out}{rest}}}{merged}"


def _more(count: int) -> str:
    return f" (and {count:,} more)" if count else ""


def _check_held_back(splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]) -> None:
    """Raise InputError where a whole split has one label, or tag, that so many of train's would not have: benchmarks hide those of their tests so."""
    shares = splits["train"]["label"].explode().value_counts(normalize=True)
    for split in sorted({"validation", "test"} & {*splits}):
        found = splits[split]["label"].explode()
        if len(shares) > 1 and len(found) > 1 and found.nunique() == 1 and shares.get(found.iloc[0], 0.0) ** len(found) < BY_CHANCE:
            raise InputError(f"{places[split]}: column '{columns[split]}': all {len(found):,} are '{shown(found.iloc[0])}', as if labels were "
                             "held back; name a split that has them, such as the validation one as test, and this one as unlabelled")  # fmt: skip


def _some(names: Sequence[str], most: int = MOST_SHOWN) -> str:
    """As many of them as a message shows."""
    return f"{', '.join(map(shown, names[:most]))}{', ...' if len(names) > most else ''}"


def _many(labels: Sequence[str], rows: int) -> bool:
    """Whether there are too many in so many rows for labels: they may be texts."""
    return len(labels) > min(MANY, rows - 1)


def _told(labels: Sequence[str], rows: int, most: int = MOST_SHOWN) -> str:
    """Some of the labels, if they are labels."""
    return f"{len(labels):,} of them in {rows:,} rows: are they labels?" if _many(labels, rows) else _some(labels, most)


def _check_choices(splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]) -> list[str]:
    """The places of the choices, which are the labels whether or not train has them all.

    Raises InputError where a split has another number of choices, and where all right ones that are scored stand in one place.
    """
    counts = {split: len(table["choices"].iloc[0]) for split, table in splits.items()}
    for split, count in counts.items():
        if count != counts["train"]:
            raise InputError(f"{places[split]}: its items have {count} choices, those of train {counts['train']}; give all of them as many")
    _check_held_back(splits, places, columns)
    for split in sorted({*splits} - {"train"} if "validation" in splits else splits):  # validation is carved of train
        found = splits[split]["label"]
        if found.nunique() == 1 and len(found) >= MANY_ALIKE:
            raise InputError(f"{places[split]}: column '{columns[split]}': the right choice is number {found.iloc[0]} in all {len(found):,} items, "
                             "so that who knows nothing may have all of them right; shuffle the choices of each item, of train too")  # fmt: skip
    return [str(place) for place in range(counts["train"])]


def _check_numbers(splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]) -> list[str]:
    """Numbers have no names. Raises InputError where all of train are the same, or all of a larger split that is scored: benchmarks hide them so."""
    for split in ("train", *sorted({"validation", "test"} & splits.keys())):
        numbers = splits[split]["label"]
        if numbers.nunique() < 2 and len(numbers) >= (1 if split == "train" else MANY_ALIKE):
            mend = "there is nothing to learn, name another column" if split == "train" else "nothing can be compared; name a split that has them"
            raise InputError(f"{places[split]}: column '{columns[split]}': every number is {numbers.iloc[0]}; {mend}")
    return []


def _check_tags(splits: dict[str, pd.DataFrame], places: dict[str, str], columns: dict[str, str]) -> list[str]:
    """The tags of all splits, spans in IOB2 whatever scheme they were written in. Raises InputError."""
    if is_spans({tag for table in splits.values() for tags in table["label"] for tag in tags}):
        for split, table in splits.items():
            table["mended"] = table.get("mended", False) | pd.Series(broken(list(table["label"])), table.index)
            table["label"] = [_in_iob2(tags, row_id, places[split], columns[split]) for tags, row_id in zip(table["label"], table["id"], strict=True)]
    names = {split: {tag for tags in table["label"] for tag in tags} for split, table in splits.items()}
    if len(names["train"]) < 2:
        (only,) = map(shown, names["train"])
        raise InputError(f"{places['train']}: column '{columns['train']}': every tag is '{only}'; there is nothing to learn, name another column")
    _check_held_back(splits, places, columns)
    known = {_type(tag) for tag in names["train"]}
    for split, table in splits.items():
        own = [tag for tags in table["label"] for tag in tags if tag != "O"]
        if len(own) >= MANY_ALIKE and known.isdisjoint(map(_type, own)):
            raise InputError(f"{places[split]}: column '{columns[split]}': none of its tags ({_some(label_names(own))}) occurs in train, which has "
                             f"{_some(sorted(names['train'] - {'O'}))}; say in 'names' which are the same")  # fmt: skip
    return label_names([tag for some in names.values() for tag in some])


def _type(tag: str) -> str:
    """What a span is of; a plain tag is its own type."""
    return tag[2:] if tag[:2] in ("B-", "I-") else tag


def unlearned_tags(splits: dict[str, pd.DataFrame], kind: Kind) -> dict[str, int]:
    """In how many sentences of each split a tag, or a type of spans, occurs that train has not: it is never right."""
    if kind.answer != "tags":
        return {}
    known = {_type(tag) for tags in splits["train"]["label"] for tag in tags}
    own = {split: table["label"] for split, table in splits.items() if "label" in table}
    return {split: sum(any(_type(tag) not in known for tag in tags) for tags in labels) for split, labels in own.items()}


def _in_iob2(tags: list[str], row_id: str, where: str, column: str) -> list[str]:
    try:
        return iob2(tags)
    except InputError as error:
        raise bad_row(_row_of(row_id) - 1, where, f"column '{column}': {error}") from None


# What the gold answers are called, of splits, their places in params.yaml and the names of their columns.
NAMES: dict[str, Callable[[dict[str, pd.DataFrame], dict[str, str], dict[str, str]], list[str]]] = {
    "label": _check_labels, "choice": _check_choices, "number": _check_numbers, "tags": _check_tags, "span": lambda *_: []}  # fmt: skip


def tag_metric(labels: list[str], asked: Sequence[str], where: str) -> str:
    """F1 of spans where tags are of spans, else the share of tags that are right.

    Raises InputError where spans are asked for and there are none, and where tags are of spans in a form that is not read.
    """
    if is_spans(labels):
        return "span_f1"
    if "token_accuracy" not in asked and (form := other_form(labels)):
        raise InputError(f"{where}.label: the tags ({_some(labels)}) look like spans in a form that is not read, and only the share of tags that is "
                         f"right would be scored; write O, B-PER and I-PER, or give such names: names: {{{form}}}; if they are no spans, say metric: "
                         "[token_accuracy]")  # fmt: skip
    if "token_accuracy" not in asked and "*" in labels and all(map(BRACKETS.fullmatch, labels)):
        raise InputError(f"{where}.label: the tags ({_some(labels)}) are the brackets of CoNLL-2012, which are not read; write O, B-PER and I-PER")
    if "span_f1" in asked:
        numbers = " but numbers: give their names in 'names'" if all(map(str.isdecimal, labels)) else ""
        raise InputError(f"{where}.metric: span_f1 is of spans, and the tags ({_some(labels)}) are neither O nor B-TYPE nor I-TYPE{numbers}; "
                         "name plain types of spans so, names: {PER: I-PER}, take the metric out, or name another column")  # fmt: skip
    return "token_accuracy"


def unread_spans(labels: Sequence[str], kind: Kind, task: Task) -> dict[str, dict[str, int]]:
    """How many tags there are, in all splits, where they may be spans and are read as none: numbers that nobody named, and plain tags of which one is
    such as O.

    Nothing where the task itself says what they are scored by.
    """
    asked = kind.answer != "tags" or is_spans(labels) or "token_accuracy" in (task.metric or ())
    found = {"numbered_tags": all(map(str.isdecimal, labels)), "plain_tags": not OUTSIDE.isdisjoint(map(str.lower, labels))}
    return {name: {"train": len(labels)} if may and not asked else {} for name, may in found.items()}


def answerable(splits: dict[str, pd.DataFrame], places: dict[str, str], dropped: dict[str, dict[str, int]], *, folds: int | None) -> None:
    """Take the questions out of train of whose context max_tokens left no answer, and count them: nothing can be learned from them.

    Those of the other splits stay, and nobody can answer them; so do all with folds, of which each is scored (`TaskData.parts` learns from none of
    them). Raises InputError where train has no other, with folds where fewer than half are.
    """
    reached = splits["train"]["label"].map(len) > 0
    if folds and reached.mean() < 0.5:
        raise InputError(f"{places['train']}: {int((~reached).sum()):,} of {len(reached):,} questions have no answer within the first max_tokens "
                         "words, and with folds each is scored; raise max_tokens")  # fmt: skip
    if not reached.any():
        raise InputError(f"{places['train']}: no answer stands within the first max_tokens words of its context; raise max_tokens")
    if folds:
        return
    dropped["train"]["answer_cut_off"] = int((~reached).sum())
    splits["train"] = splits["train"][reached].reset_index(drop=True)
