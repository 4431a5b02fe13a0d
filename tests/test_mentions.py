"""Named entities given as spans of characters become tags of words; none is moved, lost or made up without a word."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.annotations import is_span_annotation, spans_to_iob2
from lineage.data.items import TaskItems, build_items
from lineage.errors import InputError
from lineage.evaluation.spans import extract_spans
from lineage.tasks.base import load_kind

TEXT = "叶老桂在 iPhone6与中国中央银行说话"
GIVEN = {
    "name": {"叶老桂": [[0, 2]]},
    "thing": {"iPhone6": [[5, 11]]},
    "org": {"中国中央银行": [[13, 18]]},
}


def made(root: Path, rows: list[dict[str, Any]], **keys: Any) -> TaskItems:
    (root / "t.json").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    )
    tree = {
        "kind": "token_classification",
        "tokens": "text",
        "label": "label",
        "files": {"train": "t.json", "test": "t.json"},
    } | keys
    return build_items(
        "x",
        parse_record(Task, tree, "task"),
        load_kind("token_classification"),
        seed=1,
        root=root,
        where="task",
    )


def texts_of(items: TaskItems, row: int) -> set[tuple[str, str]]:
    """Each span of a test item: its type and what it says, with spaces between words."""
    item = items.splits["test"].iloc[row]
    tags = [items.info["labels"][i] for i in item["label"]]
    return {(kind, " ".join(item["tokens"][first:end])) for kind, first, end in extract_spans(tags)}


OBJECTS = {  # as tools for annotation and data sets write them
    "Prodigy": ("start", "end", "label", None, 0),
    "doccano": ("start_offset", "end_offset", "label", None, 0),
    "CMeEE": ("start_idx", "end_idx", "type", "entity", -1),
    "CCKS": ("start_pos", "end_pos", "label_type", None, 0),
}


@pytest.mark.parametrize(
    "form",
    [
        "texts, both ends within",
        "texts, the end behind",
        "triples",
        "lists",
        "Label Studio",
        *OBJECTS,
    ],
)
def test_spans_of_chinese_are_of_characters_and_blank_ones_are_left_out(
    form: str, tmp_path: Path
) -> None:
    behind = {
        kind: {said: [[first, last + 1] for first, last in own] for said, own in texts.items()}
        for kind, texts in GIVEN.items()
    }
    triples = [
        [first, last, kind]
        for kind, texts in behind.items()
        for own in texts.values()
        for first, last in own
    ]
    cell: Any = {
        "texts, both ends within": GIVEN,
        "texts, the end behind": behind,
        "triples": triples,
    }.get(form)
    if form == "lists":  # as `datasets` keeps a list of objects
        cell = {
            key: list(column)
            for key, column in zip(
                ("start", "end", "label"), zip(*triples, strict=True), strict=True
            )
        }
    if form == "Label Studio":
        cell = [{"start": a, "end": b, "labels": [c]} for a, b, c in triples]
    if form in OBJECTS:
        start, end, kind, said, shift = OBJECTS[form]
        cell = [
            {start: a, end: b + shift, kind: c, "id": 7} | ({said: TEXT[a:b]} if said else {})
            for a, b, c in triples
        ]
    found = made(
        tmp_path,
        [
            {"text": TEXT, "label": cell},
            {"text": "没有名字"},
            {"text": "无", "label": {} if "texts" in form else []},
        ]
        * 9,
        language="zh",
    )
    assert texts_of(found, 0) == {
        ("name", "叶 老 桂"),
        ("thing", "i P h o n e 6"),
        ("org", "中 国 中 央 银 行"),
    }
    assert (
        not texts_of(found, 1)
        and not texts_of(found, 2)
        and "".join(found.splits["test"]["tokens"].iloc[0]) == TEXT.replace(" ", "")
    )
    assert (
        found.info["mended_tags"]["test"] == 0
        and found.info["blank_words"]["test"] == 9
        and found.info["metric"] == ["span_f1"]
    )


def test_a_type_s_name_may_be_several_words(tmp_path: Path) -> None:
    found = made(
        tmp_path, [{"text": "I met Anna Lee today .", "label": [[6, 14, "Person  Name"]]}] * 30
    )
    assert texts_of(found, 0) == {("Person_Name", "Anna Lee")}


def test_spans_of_a_spaced_language_are_of_its_words(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        [{"text": "Cafe\u0301 Lee's owner, Ann Lee.", "label": [[0, 9, "ORG"], [19, 26, "PER"]]}]
        * 30,
    )
    assert texts_of(found, 0) == {("ORG", "Café Lee"), ("PER", "Ann Lee")}


def test_of_spans_that_overlap_the_longest_are_read_and_the_sentences_counted(
    tmp_path: Path,
) -> None:
    nested = {"text": TEXT, "label": GIVEN | {"loc": {"中国": [[13, 14]]}}}
    found = made(tmp_path, [nested, {"text": TEXT, "label": GIVEN}] * 9, language="zh")
    assert texts_of(found, 0) == texts_of(found, 1) and found.info["mended_tags"]["test"] == 9


@pytest.mark.parametrize(("text", "cell", "said"), [
    (TEXT, {"name": {"叶老桂": [[1, 3]]}}, "row 1: column 'label': a span of type 'name', characters 1 to 3, does not match the text given with"),
    (TEXT, {"name": {"叶老桂": [[0, 4]]}}, "characters 0 to 4, does not match the text"),
    (TEXT, {"name": {"行说": [[-3, -2]]}}, "the span from character -3 to -1 contains no word"),
    (TEXT, {"name": [[0, 2]]}, r"the spans of type 'name' are not of the form \{text: \[\[first, last\]\]\}"),
    (TEXT, {"name": {"叶老桂": [0, 2]}}, r"the spans of type 'name' are not of the form"),
    (TEXT, [[3, 3, "X"]], "a span is no .start, end, type. within its text of 21 characters, the end the one after the last"),
    (TEXT, [[3, 99, "X"]], "a span is no .start, end, type."),
    ("Ann Lee", [[0, 2, "X"]], "the span from character 0 to 2 contains no word, or only part of one"),
    ("Ann Lee", [[3, 4, "X"]], "the span from character 3 to 4 contains no word, or only part of one"),
    ("Ann Lee", [[0, 5, "X"]], "the span from character 0 to 5 contains no word, or only part of one"),
    (TEXT, [{"start": 0, "end": 3}], r"a span is an object without a start, an end and a label; these are read: \[\[start, end, type\]\], "),
    (TEXT, [{"index": [0, 1, 2], "type": "X"}], "a span is no .start, end, type. within its text"),
    (TEXT, [{"start": 3, "end": 3, "label": "X"}], "a span is no .start, end, type. within its text"),
    (TEXT, [{"start_idx": 0, "end_idx": 4, "type": "X", "entity": "叶老桂"}], "characters 0 to 4, does not match the text given with it"),
    (["Ann"], [[0, 3, "X"]], "column 'label' holds spans of characters, but column 'text' does not hold a text"),
])  # fmt: skip
def test_a_span_that_is_not_in_its_text_or_cuts_a_word_is_refused(
    text: Any, cell: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        made(tmp_path, [{"text": text, "label": cell}] * 9, language="zh" if text == TEXT else "en")


@given(st.data())
def test_every_span_of_characters_is_found_again(data: st.DataObject) -> None:
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
        "whose texts say that an end is the last character"
    )


@pytest.mark.parametrize("cell", ["O O", ["O", "B-X"], [], None, [["O", "B-X", "I-X", "O"]], 3])
def test_tags_are_no_spans(cell: Any) -> None:
    assert not is_span_annotation(cell)
