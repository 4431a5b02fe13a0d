"""Spans in tagged sequences (Ramshaw and Marcus 1995), and how well predicted ones agree with gold ones (Tjong Kim Sang and De Meulder 2003).

An example is its tags: a list of them, or one text with spaces between. seqeval cuts them into spans. It is imported where it is used:
few stages score tags, and it brings scikit-learn with it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from lineage.errors import InputError, shorten_value

IOB_TAG = re.compile(r"O|[BI](-.+)?")
SCHEMES = {
    "IOB2": "BIO",
    "IOB1": "BIO",
    "BIOES": "BIOES",
    "BMES": "BMOES",
    "BILOU": "BILOU",
}  # and their letters
ANY_SCHEME_TAG = re.compile(r"O|[BIMESLU]-.+")
# The same in another order, with another sign between, or in small letters.
OTHER_TAG_FORMAT = re.compile(
    r"(?P<place>[BIMESLU])[-_:/.|](?P<type>.+)|(?P<before>.+)[-_:/.|](?P<after>[BIMESLU])",
    re.IGNORECASE,
)
PREFIX_TO_IOB = {
    "S": "B",
    "U": "B",
    "M": "I",
    "E": "I",
    "L": "I",
}  # what the letters of BIOES, BMES and BILOU are in IOB
Span = tuple[str, int, int]  # type, first token, the one after the last
# conlleval: an I that continues nothing begins a span, as the Perl script of CoNLL-2000 has it. The other two take only what their scheme
# allows, and leave out the rest: IOB2 begins every span with B; IOB1 with I, and with B only right after a span of the same type.
TaggingScheme = Literal["conlleval", "IOB2", "IOB1"]


@dataclass(frozen=True)
class SpanScore:
    """Precision, recall and F1 from 0 to 1, each 0 where it would divide by zero; `support` is the number of gold spans."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class SpanScores:
    """Over all spans; the mean over types; and by type, of those that stand in gold or prediction."""

    micro: SpanScore
    macro: SpanScore
    by_type: dict[str, SpanScore]


def split_tags(example: str | Iterable[str]) -> list[str]:
    """The tags of one example."""
    return example.split() if isinstance(example, str) else list(example)


def extract_spans(tags: Sequence[str], scheme: TaggingScheme = "conlleval") -> list[Span]:
    """The spans of one sequence, from left to right; a tag without a type (B, I) has the type "_". Raises InputError at what is no tag."""
    return list(_extract_spans(tuple(tags), scheme))


@lru_cache(maxsize=1 << 16)  # gold tags are asked for again for each cell and metric
def _extract_spans(tags: tuple[str, ...], scheme: TaggingScheme) -> tuple[Span, ...]:
    from seqeval.metrics.sequence_labeling import get_entities
    from seqeval.scheme import IOB1, IOB2, Tokens

    for place, tag in enumerate(tags):
        if not IOB_TAG.fullmatch(tag):
            raise InputError(
                f"tag {place + 1} of {len(tags)}: '{shorten_value(tag)}' is neither O nor B-TYPE nor I-TYPE; write the spans in IOB2"
            )
    if scheme == "conlleval":
        return tuple((kind, first, last + 1) for kind, first, last in get_entities(list(tags)))
    return tuple(
        (span.tag, span.start, span.end)
        for span in Tokens(list(tags), {"IOB1": IOB1, "IOB2": IOB2}[scheme]).entities
    )


def are_span_tags(tags: Iterable[str]) -> bool:
    """Whether tags are of spans: at least one with the letter of its place before its type, and O, unless all are such."""
    some = set(tags)
    letters = {tag for tag in some if ANY_SCHEME_TAG.fullmatch(tag) and tag != "O"}
    return bool(letters) and ("O" in some or letters == some)


def suggest_label_map(tags: Iterable[str]) -> str:
    """Of tags that all say a place and a type but for one, which stands outside of spans, what `names` makes O, B-TYPE and I-TYPE of them: of that
    one, `"_": "O"`, and of the first other, `"B_PER": "B-PER"`, where they are written otherwise. Nothing of other tags.
    """
    found = {tag: OTHER_TAG_FORMAT.fullmatch(tag) for tag in sorted({*tags})}
    outside = [tag for tag, match in found.items() if match is None]
    if len(outside) != 1 or len(found) < (2 if outside[0] in "Oo" else 3):
        return ""
    first, match = next((tag, match) for tag, match in found.items() if match is not None)
    proper = f"{(match['place'] or match['after']).upper()}-{match['type'] or match['before']}"
    return ", ".join(
        f'"{shorten_value(one)}": "{shorten_value(other)}"'
        for one, other in ((outside[0], "O"), (first, proper))
        if one != other
    )


def find_scheme_violations(sequences: Sequence[Sequence[str]]) -> list[bool]:
    """Which sequences break the rules of the scheme that most keep, of `SCHEMES`: what `iob2` makes of them is a guess."""
    return min(
        ([not _follows_scheme(tags, scheme) for tags in sequences] for scheme in SCHEMES), key=sum
    )


def _follows_scheme(tags: Sequence[str], scheme: str) -> bool:
    """Whether every tag may stand after the one before it; BMES and BILOU are BIOES with other letters."""
    if not {tag[0] for tag in tags} <= {*SCHEMES[scheme]}:
        return False
    pairs = [
        (one[0], other[0], one[1:] == other[1:])
        for one, other in zip(["O", *tags], [*tags, "O"], strict=True)
    ]
    if scheme == "IOB1":
        return all(before in "BI" and same for before, after, same in pairs if after == "B")
    goes_on = all(before in "BIM" and same for before, after, same in pairs if after in "IMEL")
    return goes_on and (
        scheme == "IOB2"
        or all(after in "IMEL" and same for before, after, same in pairs if before in "BIM")
    )


def convert_to_iob2(tags: Sequence[str]) -> list[str]:
    """The same spans in IOB2, from any of `SCHEMES`. Raises InputError at what is no tag of them."""
    for place, tag in enumerate(tags):
        if not ANY_SCHEME_TAG.fullmatch(tag):
            raise InputError(
                f"tag {place + 1} of {len(tags)}: '{shorten_value(tag)}' is neither O nor a letter of IOB, BIOES, BMES or BILOU before a type, such as B-PER"
            )
    plain = [PREFIX_TO_IOB.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    found = ["O"] * len(tags)
    for kind, first, end in extract_spans(plain):
        found[first:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - first - 1)]
    return found


def score_spans(
    labels: np.ndarray, predictions: np.ndarray, scheme: TaggingScheme = "conlleval"
) -> SpanScores:
    """A predicted span is right where type and both ends are. gold, prediction: (N,) examples, each with as many tags in both."""
    num_correct, num_predicted, num_labels = Counter[str](), Counter[str](), Counter[str]()
    for said, right in _tag_pairs(labels, predictions):
        ours, theirs = set(extract_spans(said, scheme)), set(extract_spans(right, scheme))
        for counts, some in (
            (num_correct, ours & theirs),
            (num_predicted, ours),
            (num_labels, theirs),
        ):
            counts.update(kind for kind, _, _ in some)
    by_type = {
        kind: _span_score(num_correct[kind], num_predicted[kind], num_labels[kind])
        for kind in sorted({*num_predicted, *num_labels})
    }
    precision, recall, f1 = np.mean(
        [(one.precision, one.recall, one.f1) for one in by_type.values()] or [(0.0, 0.0, 0.0)],
        axis=0,
    ).tolist()
    return SpanScores(
        _span_score(num_correct.total(), num_predicted.total(), num_labels.total()),
        SpanScore(precision, recall, f1, num_labels.total()),
        by_type,
    )


def count_spans(labels: np.ndarray, predictions: np.ndarray) -> list[tuple[int, int, int]]:
    """For each example the spans that are right, those that are predicted, and the gold ones."""
    both = (
        (set(extract_spans(said)), set(extract_spans(right)))
        for said, right in _tag_pairs(labels, predictions)
    )
    return [(len(ours & theirs), len(ours), len(theirs)) for ours, theirs in both]


def span_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of all spans by the rules of conlleval; 0 where there are none."""
    return score_spans(labels, predictions).micro.f1


def token_accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The share of tags that are right, of any set of tags; (N,) examples, each with as many tags in both and at least one in all."""
    return float(
        np.mean(
            [
                said == right
                for pair in _tag_pairs(labels, predictions)
                for said, right in zip(*pair, strict=True)
            ]
        )
    )


def _tag_pairs(
    labels: np.ndarray, predictions: np.ndarray
) -> Iterable[tuple[list[str], list[str]]]:
    """(predicted tags, gold tags) of each example."""
    for number, (right, said) in enumerate(
        zip(map(split_tags, labels), map(split_tags, predictions), strict=True)
    ):
        if len(said) != len(right):
            raise InputError(
                f"example {number + 1}: {len(said)} predicted tags for {len(right)} tokens; give a tag for each token"
            )
        yield said, right


def _span_score(num_correct: int, num_predicted: int, num_labels: int) -> SpanScore:
    return SpanScore(
        num_correct / max(num_predicted, 1),
        num_correct / max(num_labels, 1),
        2 * num_correct / max(num_predicted + num_labels, 1),
        num_labels,
    )
