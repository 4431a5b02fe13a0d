"""Named entities given as character spans become word tags, and no entity is moved or lost."""

import json
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.answers.annotations import iob2_to_spans, is_span_annotation, spans_to_iob2
from lineage.answers.spans import extract_spans
from lineage.config.data import Task
from lineage.data.items import TaskItems
from lineage.errors import InputError
from lineage.language import is_blank, normalize_text
from lineage.tasks.token_classification import make_items
from tests.helpers.tasks import build_task_items

TEXT = "叶老桂在 iPhone6与中国中央银行说话"
SPANS = {
    "name": {"叶老桂": [[0, 2]]},
    "thing": {"iPhone6": [[5, 11]]},
    "org": {"中国中央银行": [[13, 18]]},
}


def build_task(root: Path, rows: list[dict[str, Any]], **fields: Any) -> TaskItems:
    (root / "t.json").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    )
    task_fields = {
        "kind": "token_classification",
        "tokens": "text",
        "label": "label",
        "files": {"train": "t.json", "test": "t.json"},
    } | fields
    return build_task_items(root, task_fields)


def span_texts(items: TaskItems, row: int) -> set[tuple[str, str]]:
    """Return the type and the words of each span of a test item."""
    item = items.splits["test"].iloc[row]
    tags = [items.info.labels[label_id] for label_id in item["label"]]
    return {(kind, " ".join(item["tokens"][first:end])) for kind, first, end in extract_spans(tags)}


EXCLUSIVE_SPANS = {
    "name": {"叶老桂": [[0, 3]]},
    "thing": {"iPhone6": [[5, 12]]},
    "org": {"中国中央银行": [[13, 19]]},
}
TRIPLES = [[0, 3, "name"], [5, 12, "thing"], [13, 19, "org"]]
# The same three spans, as annotation tools and datasets write them.
CELLS: dict[str, Any] = {
    "texts, inclusive end": SPANS,
    "texts, exclusive end": EXCLUSIVE_SPANS,
    "triples": TRIPLES,
    # as `datasets` stores a list of objects
    "lists": {"start": [0, 5, 13], "end": [3, 12, 19], "label": ["name", "thing", "org"]},
    "Label Studio": [{"start": a, "end": b, "labels": [kind]} for a, b, kind in TRIPLES],
    "Prodigy": [{"start": a, "end": b, "label": kind, "id": 7} for a, b, kind in TRIPLES],
    "doccano": [
        {"start_offset": a, "end_offset": b, "label": kind, "id": 7} for a, b, kind in TRIPLES
    ],
    "CMeEE": [
        {"start_idx": a, "end_idx": b - 1, "type": kind, "entity": TEXT[a:b]}
        for a, b, kind in TRIPLES
    ],
    "CCKS": [{"start_pos": a, "end_pos": b, "label_type": kind} for a, b, kind in TRIPLES],
}


@pytest.mark.parametrize("form", CELLS)
def test_chinese_spans_become_tags_of_characters_and_spaces_are_dropped(
    form: str, tmp_path: Path
) -> None:
    task_items = build_task(
        tmp_path,
        [
            {"text": TEXT, "label": CELLS[form]},
            {"text": "没有名字"},
            {"text": "无", "label": {} if "texts" in form else []},
        ]
        * 9,
        language="zh",
    )
    assert span_texts(task_items, 0) == {
        ("name", "叶 老 桂"),
        ("thing", "i P h o n e 6"),
        ("org", "中 国 中 央 银 行"),
    }
    assert not span_texts(task_items, 1)
    assert not span_texts(task_items, 2)
    assert "".join(task_items.splits["test"]["tokens"].iloc[0]) == TEXT.replace(" ", "")
    assert task_items.info.invalid_tags["test"] == 0
    assert task_items.info.blank_words["test"] == 9
    assert task_items.info.metric == ["span_f1"]


def test_the_name_of_a_type_can_have_several_words(tmp_path: Path) -> None:
    task_items = build_task(
        tmp_path, [{"text": "I met Anna Lee today .", "label": [[6, 14, "Person  Name"]]}] * 30
    )
    assert span_texts(task_items, 0) == {("Person_Name", "Anna Lee")}


def test_spans_in_a_language_with_spaces_become_tags_of_words(tmp_path: Path) -> None:
    task_items = build_task(
        tmp_path,
        [{"text": "Cafe\u0301 Lee's owner, Ann Lee.", "label": [[0, 9, "ORG"], [19, 26, "PER"]]}]
        * 30,
    )
    assert span_texts(task_items, 0) == {("ORG", "Café Lee"), ("PER", "Ann Lee")}


def test_the_longest_of_overlapping_spans_is_kept_and_the_sentence_is_counted(
    tmp_path: Path,
) -> None:
    nested = {"text": TEXT, "label": SPANS | {"loc": {"中国": [[13, 14]]}}}
    task_items = build_task(tmp_path, [nested, {"text": TEXT, "label": SPANS}] * 9, language="zh")
    assert (
        span_texts(task_items, 0) == span_texts(task_items, 1)
        and task_items.info.invalid_tags["test"] == 9
    )


@pytest.mark.parametrize(("text", "cell", "message"), [
    (TEXT, {"name": {"叶老桂": [[1, 3]]}}, "row 1: column 'label': a span of type 'name', characters 1 to 3, does not match the text given with"),
    (TEXT, {"name": {"叶老桂": [[0, 4]]}}, "characters 0 to 4, does not match the text"),
    (TEXT, {"name": {"行说": [[-3, -2]]}}, "the span from character -3 to -1 contains no word"),
    (TEXT, {"name": [[0, 2]]}, r"the spans of type 'name' are not of the form \{text: \[\[first, last\]\]\}"),
    (TEXT, {"name": {"叶老桂": [0, 2]}}, r"the spans of type 'name' are not of the form"),
    (TEXT, [[3, 3, "X"]], "a span is not .start, end, type. within its text of 21 characters, with an exclusive end"),
    (TEXT, [[3, 99, "X"]], "a span is not .start, end, type."),
    ("Ann Lee", [[0, 2, "X"]], "the span from character 0 to 2 contains no word, or only part of one"),
    ("Ann Lee", [[3, 4, "X"]], "the span from character 3 to 4 contains no word, or only part of one"),
    ("Ann Lee", [[0, 5, "X"]], "the span from character 0 to 5 contains no word, or only part of one"),
    (TEXT, [{"start": 0, "end": 3}], r"a span is an object without a start, an end and a label; these are read: \[\[start, end, type\]\], "),
    (TEXT, [{"index": [0, 1, 2], "type": "X"}], "a span is not .start, end, type. within its text"),
    (TEXT, [{"start": 3, "end": 3, "label": "X"}], "a span is not .start, end, type. within its text"),
    (TEXT, [{"start_idx": 0, "end_idx": 4, "type": "X", "entity": "叶老桂"}], "characters 0 to 4, does not match the text given with it"),
    (["Ann"], [[0, 3, "X"]], "column 'label' holds spans of characters, but column 'text' does not hold a text"),
])  # fmt: skip
def test_a_span_that_does_not_match_its_text_or_cuts_a_word_is_refused(
    text: Any, cell: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        build_task(
            tmp_path, [{"text": text, "label": cell}] * 9, language="zh" if text == TEXT else "en"
        )


@given(st.data())
def test_every_character_span_is_recovered_from_its_tags(data: st.DataObject) -> None:
    text = data.draw(st.text("中国a 1。", min_size=1, max_size=20))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    given_spans = [
        [first, end, kind] for first, end, kind in zip(cuts[::2], cuts[1::2], "XYXY", strict=False)
    ]
    tokens, tags, overlap = spans_to_iob2(text, given_spans, "zh")
    assert "".join(tokens) == text and not overlap
    assert [[first, end, kind] for kind, first, end in extract_spans(tags)] == given_spans
    objects = [
        {"start": first, "end": end - 1, "label": kind, "text": text[first:end]}
        for first, end, kind in given_spans
    ]
    assert spans_to_iob2(text, objects, "zh") == (tokens, tags, overlap), (
        "the texts show that the end is the last character"
    )


@given(st.data())
@pytest.mark.parametrize(
    ("language", "letters"), [("zh", "中国a 1。"), ("en", "ab1 .-\u00a0\u200b\r\nﬁ😀é\u0301\t")]
)
def test_predicted_tags_are_spans_of_the_text_as_it_is(
    language: str, letters: str, data: st.DataObject
) -> None:
    text = data.draw(st.text(letters, min_size=1, max_size=30))
    words, _, _ = spans_to_iob2(text, [], language)
    task = Task("token_classification", files={"test": "-"}, tokens="text", language=language)
    items = make_items({"text": [words or [""]]}, task, "new")
    (kept,) = items["tokens"] if len(items) else ([],)
    tags = [data.draw(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])) for _ in kept]
    found = iob2_to_spans(text, tags, language)
    expected = [kept[span.start : span.end] for span in extract_spans(tags)]
    for one, own_words in zip(found, expected, strict=True):
        own_text = text[int(one["start"]) : int(one["end"])]
        parts = map(normalize_text, spans_to_iob2(own_text, [], language)[0])
        assert [part for part in parts if not is_blank(part)] == own_words
    assert [one["label"] for one in found] == [span.type for span in extract_spans(tags)]
    again, new_tags, has_overlap = spans_to_iob2(text, found, language)
    assert again == words and not has_overlap
    shown = [not is_blank(normalize_text(word)) for word in words]
    assert iob2_to_spans(text, [*compress(new_tags, shown)], language) == found


@pytest.mark.parametrize("cell", ["O O", ["O", "B-X"], [], None, [["O", "B-X", "I-X", "O"]], 3])
def test_tags_are_not_taken_for_spans(cell: Any) -> None:
    assert not is_span_annotation(cell)
