"""Spans in tagged sequences (Ramshaw and Marcus 1995) and their scores.

The scores are those of Tjong Kim Sang and De Meulder 2003.

An example is a sequence of tags, given as a list or as one text with spaces between the tags.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lineage.errors import InputError, shorten_value

IOB_TAG = re.compile(r"O|[BI](-.+)?")
ANY_SCHEME_TAG = re.compile(r"O|[BIMESLU]-.+")
# The same parts in another order, with another separator, or in lower case.
OTHER_TAG_FORMAT = re.compile(
    r"(?P<prefix>[BIMESLU])[-_:/.|](?P<type>.+)|(?P<type_first>.+)[-_:/.|](?P<suffix>[BIMESLU])",
    re.IGNORECASE,
)
# The prefixes that each scheme allows.
SCHEMES = {"IOB2": "BIO", "IOB1": "BIO", "BIOES": "BIOES", "BMES": "BMOES", "BILOU": "BILOU"}
# The IOB prefix of each prefix of BIOES, BMES and BILOU that IOB lacks.
PREFIX_TO_IOB = {"S": "B", "U": "B", "M": "I", "E": "I", "L": "I"}


class Span(NamedTuple):
    """A typed span of tokens; `end` is the token after the last."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class SpanScore:
    """F1 from 0 to 1 (0 instead of 0/0), and the number of labelled spans."""

    f1: float
    support: int


@dataclass(frozen=True)
class SpanScores:
    """Scores over all spans, and by type; types are those that occur."""

    micro: SpanScore
    by_type: dict[str, SpanScore]


def split_tags(example: str | Iterable[str]) -> list[str]:
    return example.split() if isinstance(example, str) else list(example)


def extract_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of one sequence from left to right, as conlleval and seqeval do."""
    return list(_extract_spans(tuple(tags)))


@lru_cache(maxsize=1 << 16)  # the labels are scored again for every system and metric
def _extract_spans(tags: tuple[str, ...]) -> tuple[Span, ...]:
    for index, tag in enumerate(tags):
        if not IOB_TAG.fullmatch(tag):
            raise InputError(
                f"tag {index + 1} of {len(tags)}: '{shorten_value(tag)}' is neither O nor B-TYPE "
                "nor I-TYPE; write the spans in IOB2"
            )
    spans = []
    start: int | None = None  # first token of the open span
    previous = "O"
    for index, tag in enumerate((*tags, "O")):
        is_continued = tag[0] == "I" and _span_type(previous) == _span_type(tag)
        if start is not None and not is_continued:
            spans.append(Span(_span_type(previous), start, index))
            start = None
        if start is None and tag != "O":
            start = index
        previous = tag
    return tuple(spans)


def _span_type(tag: str) -> str:
    return tag[2:] or "_"


def are_span_tags(tags: Iterable[str]) -> bool:
    """Return whether tags are spans: some have a prefix and a type, and all do unless O occurs."""
    distinct = set(tags)
    typed = {tag for tag in distinct if ANY_SCHEME_TAG.fullmatch(tag) and tag != "O"}
    return bool(typed) and ("O" in distinct or typed == distinct)


def suggest_label_map(tags: Iterable[str]) -> str:
    """Suggest entries of `label_map` that turn tags such as PER_B and _ into B-PER and O."""
    matches = {tag: OTHER_TAG_FORMAT.fullmatch(tag) for tag in sorted(set(tags))}
    outside = [tag for tag, match in matches.items() if match is None]
    if len(outside) != 1:
        return ""
    min_tags = 2 if outside[0] in "Oo" else 3
    if len(matches) < min_tags:
        return ""
    first, match = next((tag, match) for tag, match in matches.items() if match is not None)
    prefix = match["prefix"] or match["suffix"]
    span_type = match["type"] or match["type_first"]
    label_map = {outside[0]: "O", first: f"{prefix.upper()}-{span_type}"}
    entries = [
        f'"{shorten_value(tag)}": "{shorten_value(iob_tag)}"'
        for tag, iob_tag in label_map.items()
        if tag != iob_tag
    ]
    return ", ".join(entries)


def find_scheme_violations(sequences: Sequence[Sequence[str]]) -> list[bool]:
    """Tell for each sequence whether it violates the scheme that the fewest sequences violate."""
    violations_by_scheme = (
        [not _follows_scheme(tags, scheme) for tags in sequences] for scheme in SCHEMES
    )
    return min(violations_by_scheme, key=sum)


def _follows_scheme(tags: Sequence[str], scheme: str) -> bool:
    """Tell whether every tag may follow the one before it; BMES and BILOU work like BIOES."""
    prefixes = {tag[0] for tag in tags}
    if not prefixes <= set(SCHEMES[scheme]):
        return False
    for previous, tag in zip(["O", *tags], [*tags, "O"], strict=True):
        same_type = previous[1:] == tag[1:]
        if scheme == "IOB1":
            if tag[0] == "B" and not (previous[0] in "BI" and same_type):
                return False
            continue
        if tag[0] in "IMEL" and not (previous[0] in "BIM" and same_type):
            return False
        must_continue = scheme != "IOB2" and previous[0] in "BIM"
        if must_continue and not (tag[0] in "IMEL" and same_type):
            return False
    return True


def convert_to_iob2(tags: Sequence[str]) -> list[str]:
    """Write the same spans in IOB2, from any of `SCHEMES`. Raises InputError for other tags."""
    for index, tag in enumerate(tags):
        if not ANY_SCHEME_TAG.fullmatch(tag):
            raise InputError(
                f"tag {index + 1} of {len(tags)}: '{shorten_value(tag)}' is neither O nor a letter "
                "of IOB, BIOES, BMES or BILOU before a type, such as B-PER"
            )
    iob_tags = [PREFIX_TO_IOB.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    iob2_tags = ["O"] * len(tags)
    for span in extract_spans(iob_tags):
        iob2_tags[span.start] = f"B-{span.type}"
        for index in range(span.start + 1, span.end):
            iob2_tags[index] = f"I-{span.type}"
    return iob2_tags


def score_spans(labels: np.ndarray, predictions: np.ndarray) -> SpanScores:
    """Score predicted spans; a span is correct if its type and both ends are.

    labels, predictions: (N,) examples, each with equally many tags. Raises InputError otherwise.
    """
    num_correct: Counter[str] = Counter()
    num_predicted: Counter[str] = Counter()
    num_labels: Counter[str] = Counter()
    for predicted, labelled in _span_pairs(labels, predictions):
        num_correct.update(span.type for span in predicted & labelled)
        num_predicted.update(span.type for span in predicted)
        num_labels.update(span.type for span in labelled)
    by_type = {
        span_type: _span_score(
            num_correct[span_type], num_predicted[span_type], num_labels[span_type]
        )
        for span_type in sorted(num_predicted | num_labels)
    }
    micro = _span_score(num_correct.total(), num_predicted.total(), num_labels.total())
    return SpanScores(micro, by_type)


def count_spans(labels: np.ndarray, predictions: np.ndarray) -> list[tuple[int, int, int]]:
    return [
        (len(predicted & labelled), len(predicted), len(labelled))
        for predicted, labelled in _span_pairs(labels, predictions)
    ]


def _span_pairs(
    labels: np.ndarray, predictions: np.ndarray
) -> Iterator[tuple[set[Span], set[Span]]]:
    for predicted_tags, label_tags in _tag_pairs(labels, predictions):
        yield set(extract_spans(predicted_tags)), set(extract_spans(label_tags))


def span_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return F1 over all spans by the rules of conlleval, 0 without spans."""
    return score_spans(labels, predictions).micro.f1


def token_accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of correct tags, of any tag set; there must be at least one tag."""
    correct: list[bool] = []
    for predicted_tags, label_tags in _tag_pairs(labels, predictions):
        pairs = zip(predicted_tags, label_tags, strict=True)
        correct.extend(predicted == label for predicted, label in pairs)
    return float(np.mean(correct))


def _tag_pairs(
    labels: np.ndarray, predictions: np.ndarray
) -> Iterator[tuple[list[str], list[str]]]:
    for number, (label, prediction) in enumerate(zip(labels, predictions, strict=True), 1):
        label_tags = split_tags(label)
        predicted_tags = split_tags(prediction)
        if len(predicted_tags) != len(label_tags):
            raise InputError(
                f"example {number}: {len(predicted_tags)} predicted tags for {len(label_tags)} "
                "tokens; give a tag for each token"
            )
        yield predicted_tags, label_tags


def _span_score(num_correct: int, num_predicted: int, num_labels: int) -> SpanScore:
    return SpanScore(
        2 * num_correct / max(num_predicted + num_labels, 1),
        num_labels,
    )
