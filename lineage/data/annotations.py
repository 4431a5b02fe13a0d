"""Spans of characters as tags of words: how tools for annotation, and some data sets, write named entities."""

from collections.abc import Iterator
from typing import Any

from lineage.data.language import is_spaceless, word_spans
from lineage.errors import shorten_value

SPAN_KEYS = {  # of a span that is an object: what they are called by tools and data sets, and the text only by some
    "start": ("start", "start_offset", "start_idx", "start_pos", "begin"),
    "end": ("end", "end_offset", "end_idx", "end_pos"),
    "type": (
        "label",
        "label_count",
        "type",
        "label_type",
        "entity_group",
    ),  # of Label Studio a list of one
    "text": ("text", "entity", "mention"),
}


def is_span_annotation(annotation: Any) -> bool:
    """Whether a cell of tags holds spans instead: {TYPE: {text: [[first, last]]}}, [[start, end, TYPE]] or [{start, end, TYPE}]."""
    many = isinstance(annotation, list) and bool(annotation)
    return isinstance(annotation, dict) or (
        many
        and all(
            isinstance(one, dict) or (isinstance(one, list) and len(one) == 3) for one in annotation
        )
    )


def spans_to_iob2(text: str, annotation: Any, language: str) -> tuple[list[str], list[str], bool]:
    """Words, in a language without spaces characters; their tags in IOB2; and whether spans overlap, of which the longest are read.

    Places are characters from 0. An end is the one after the last, as in spaCy and doccano; beside the span's own text, as in CLUENER and CMeEE, it
    is what that says. Of a type's name in several words the spaces become _.
    Raises ValueError where a span is not in the text, or cuts a word.
    """
    word_offsets = (
        [(at, at + 1) for at in range(len(text))]
        if is_spaceless(language)
        else word_spans(text, language)
    )
    tags, overlap = ["O"] * len(word_offsets), False
    for start, end, kind in sorted(
        {*_parse_spans(text, annotation)}, key=lambda span: (span[0] - span[1], span)
    ):
        word_indices = [
            number
            for number, (first, last) in enumerate(word_offsets)
            if first < end and start < last
        ]
        if (
            not word_indices
            or word_offsets[word_indices[0]][0] < start
            or word_offsets[word_indices[-1]][1] > end
        ):
            raise ValueError(
                f"the span from character {start} to {end} holds no word, or a part of one"
            )
        if {tags[number] for number in word_indices} != {"O"}:
            overlap = True
            continue
        kind = "_".join(kind.split())
        tags[word_indices[0] : word_indices[-1] + 1] = [
            f"B-{kind}",
            *[f"I-{kind}"] * (len(word_indices) - 1),
        ]
    return [text[first:last] for first, last in word_offsets], tags, overlap


def _parse_spans(text: str, annotation: Any) -> Iterator[tuple[int, int, str]]:
    """(start, the character after the last, type) of each."""
    if isinstance(annotation, dict) and all(
        any(key in annotation for key in SPAN_KEYS[name]) for name in ("start", "end", "type")
    ):
        if not all(
            isinstance(own, list) and len(own) == len(next(iter(annotation.values())))
            for own in annotation.values()
        ):
            raise ValueError("starts, ends and labels of spans are not lists of one length")
        annotation = [
            dict(zip(annotation, row, strict=True))
            for row in zip(*annotation.values(), strict=True)
        ]  # as `datasets` keeps lists of objects
    if isinstance(annotation, list):
        for one in annotation:
            start, end, kind, said = (
                _parse_span_object(one) if isinstance(one, dict) else (*one, None)
            )
            if not (type(start) is type(end) is int and 0 <= start <= end <= len(text)) or (
                said is None and start == end
            ):
                raise ValueError(
                    f"a span is no [start, end, type] within its text of {len(text)} characters, the end the one after the last"
                )
            yield (start, _exclusive_end(text, start, end, said, str(kind)), str(kind))
        return
    for kind, texts in (annotation or {}).items():
        malformed = ValueError(
            f"the spans of type '{shorten_value(kind)}' are not of the form {{text: [[first, last]]}}"
        )
        if not isinstance(texts, dict | None):
            raise malformed
        for said, own in (texts or {}).items():
            if not isinstance(own, list) or not all(
                isinstance(one, list) and [*map(type, one)] == [int, int] for one in own
            ):
                raise malformed
            for first, last in own:
                yield first, _exclusive_end(text, first, last, said, str(kind)), str(kind)


def _parse_span_object(span: dict[str, Any]) -> tuple[Any, Any, Any, str | None]:
    """Start, end, type and text, if it has one, of a span that is an object."""
    start, end, kind, said = (
        next((span[key] for key in keys if span.get(key) is not None), None)
        for keys in SPAN_KEYS.values()
    )
    if isinstance(kind, list) and len(kind) == 1:
        (kind,) = kind
    if not isinstance(kind, str | int):
        raise ValueError(
            "a span is an object without a start, an end and a label; these are read: [[start, end, type]], [{start, end, label}] and "
            "{type: {text: [[first, last]]}}"
        )
    return start, end, kind, said if isinstance(said, str) else None


def _exclusive_end(text: str, first: int, last: int, span_text: str | None, kind: str) -> int:
    """The character after the last of a span: `last`, unless its own text says that it is the last itself."""
    if span_text is None:
        return last
    if text[first : first + len(span_text)] != span_text or last - first not in (
        len(span_text) - 1,
        len(span_text),
    ):
        raise ValueError(
            f"a span of type '{shorten_value(kind)}', characters {first} to {last}, does not have the text that stands with it"
        )
    return first + len(span_text)
