"""Turn character spans, as annotation tools and some data sets write named entities, into tags and back."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lineage.answers.spans import extract_spans
from lineage.errors import shorten_value
from lineage.language import is_blank, is_spaceless, normalize_text, word_spans

# Names that tools and data sets give to the parts of a span object.
START_KEYS = ("start", "start_offset", "start_idx", "start_pos", "begin")
END_KEYS = ("end", "end_offset", "end_idx", "end_pos")
TYPE_KEYS = ("label", "labels", "type", "label_type", "entity_group")  # Label Studio: list of one
SPAN_KEYS = (START_KEYS, END_KEYS, TYPE_KEYS)
TEXT_KEYS = ("text", "entity", "mention")  # only some have the text of the span


class Span(NamedTuple):
    """One annotated span; `end` is the character after the last."""

    start: int
    end: int
    type: str


def is_span_annotation(annotation: Any) -> bool:
    """Return whether a cell of tags holds spans instead.

    Accepted forms: {TYPE: {text: [[first, last]]}}, [[start, end, TYPE]] and [{start, end, TYPE}].
    """
    if isinstance(annotation, dict):
        return True
    if not isinstance(annotation, list) or not annotation:
        return False
    return all(
        isinstance(entry, dict) or (isinstance(entry, list) and len(entry) == 3)
        for entry in annotation
    )


def spans_to_iob2(text: str, annotation: Any, language: str) -> tuple[list[str], list[str], bool]:
    """Return the words of a text, their IOB2 tags, and whether spans overlap.

    The longest of overlapping spans is kept. Positions count characters from 0. An end is
    exclusive, as in spaCy and doccano; where the span has its own text, as in CLUENER and CMeEE,
    the text decides. Raises ValueError for a span that is outside the text or cuts a word.
    """
    word_offsets = _find_words(text, language)
    tags = ["O"] * len(word_offsets)
    has_overlap = False
    spans = set(_parse_spans(text, annotation))
    for span in sorted(spans, key=lambda span: (span.start - span.end, span)):
        word_indices = _words_in_span(span, word_offsets)
        if any(tags[index] != "O" for index in word_indices):
            has_overlap = True
            continue
        type_name = "_".join(span.type.split())
        for index in word_indices:
            tags[index] = f"I-{type_name}"
        tags[word_indices[0]] = f"B-{type_name}"
    words = [text[start:end] for start, end in word_offsets]
    return words, tags, has_overlap


def iob2_to_spans(text: str, tags: Sequence[str], language: str) -> list[dict[str, int | str]]:
    """Return the spans of tags as [{start, end, label}], with the end exclusive.

    `tags` belong to the words of `spans_to_iob2` that are not blank. Spans begin and end as those
    do that are scored.
    """
    words = [
        (start, end)
        for start, end in _find_words(text, language)
        if not is_blank(normalize_text(text[start:end]))
    ]
    assert len(words) == len(tags)
    return [
        {"start": words[span.start][0], "end": words[span.end - 1][1], "label": span.type}
        for span in extract_spans(tags)
    ]


def _find_words(text: str, language: str) -> list[tuple[int, int]]:
    """Return where each word starts and ends; without spaces each character is one."""
    if is_spaceless(language):
        return [(start, start + 1) for start in range(len(text))]
    return word_spans(text, language)


def _words_in_span(span: Span, word_offsets: list[tuple[int, int]]) -> list[int]:
    """Return the indices of the words of a span. Raises ValueError if it cuts one."""
    indices = [
        index
        for index, (start, end) in enumerate(word_offsets)
        if start < span.end and span.start < end
    ]
    if (
        not indices
        or word_offsets[indices[0]][0] < span.start
        or word_offsets[indices[-1]][1] > span.end
    ):
        raise ValueError(
            f"the span from character {span.start} to {span.end} contains no word, or "
            "only part of one"
        )
    return indices


def _parse_spans(text: str, annotation: Any) -> Iterator[Span]:
    if isinstance(annotation, dict):
        has_span_keys = [not annotation.keys().isdisjoint(keys) for keys in SPAN_KEYS]
        if all(has_span_keys):
            annotation = _split_columns(annotation)
    if isinstance(annotation, list):
        for entry in annotation:
            yield _parse_entry(text, entry)
    else:
        yield from _parse_spans_by_type(text, annotation or {})


def _split_columns(annotation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one object per span; `datasets` keeps lists of objects as an object of lists."""
    columns = list(annotation.values())
    are_lists = all(isinstance(column, list) for column in columns)
    if not are_lists or len({len(column) for column in columns}) > 1:
        raise ValueError("starts, ends and labels of spans are not lists of one length")
    return [dict(zip(annotation, row, strict=True)) for row in zip(*columns, strict=True)]


def _parse_entry(text: str, entry: Any) -> Span:
    """Return the span of [start, end, TYPE] or {start, end, TYPE}."""
    span_text = None
    if isinstance(entry, dict):
        start, end, span_type, span_text = _parse_span_object(entry)
    else:
        start, end, span_type = entry
    are_integers = type(start) is int and type(end) is int
    in_text = are_integers and 0 <= start <= end <= len(text)
    if not in_text or (span_text is None and start == end):
        raise ValueError(
            f"a span is not [start, end, type] within its text of {len(text)} characters, "
            "with an exclusive end"
        )
    return Span(start, _exclusive_end(text, start, end, span_text, str(span_type)), str(span_type))


def _parse_spans_by_type(text: str, spans_by_type: dict[str, Any]) -> Iterator[Span]:
    """Yield the spans of {TYPE: {text: [[first, last]]}}, as CLUENER writes them."""
    for span_type, texts in spans_by_type.items():
        malformed = ValueError(
            f"the spans of type '{shorten_value(span_type)}' are not of the form "
            "{text: [[first, last]]}"
        )
        if not isinstance(texts, dict | None):
            raise malformed
        for span_text, pairs in (texts or {}).items():
            if not isinstance(pairs, list) or not all(map(_is_integer_pair, pairs)):
                raise malformed
            for first, last in pairs:
                end = _exclusive_end(text, first, last, span_text, str(span_type))
                yield Span(first, end, str(span_type))


def _is_integer_pair(pair: Any) -> bool:
    return isinstance(pair, list) and [type(value) for value in pair] == [int, int]


def _parse_span_object(span: dict[str, Any]) -> tuple[Any, Any, str | int, str | None]:
    """Return start, end, type and, if there is one, the text of a span object."""
    start = _first_value(span, START_KEYS)
    end = _first_value(span, END_KEYS)
    span_type = _first_value(span, TYPE_KEYS)
    span_text = _first_value(span, TEXT_KEYS)
    if isinstance(span_type, list) and len(span_type) == 1:
        (span_type,) = span_type
    if not isinstance(span_type, str | int):
        raise ValueError(
            "a span is an object without a start, an end and a label; these are read: "
            "[[start, end, type]], [{start, end, label}] and {type: {text: [[first, last]]}}"
        )
    return start, end, span_type, span_text if isinstance(span_text, str) else None


def _first_value(span: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((span[key] for key in keys if span.get(key) is not None), None)


def _exclusive_end(text: str, start: int, end: int, span_text: str | None, span_type: str) -> int:
    """Return the position after a span. The span's text tells whether `end` is inclusive."""
    if span_text is None:
        return end
    matches = text[start : start + len(span_text)] == span_text
    if not matches or end - start not in (len(span_text) - 1, len(span_text)):
        raise ValueError(
            f"a span of type '{shorten_value(span_type)}', characters {start} to {end}, does not "
            "match the text given with it"
        )
    return start + len(span_text)
