"""Sentences and contexts that are too long for a model: every word is read once, where it has the most context."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.data.language import join_words, word_spans
from lineage.evaluation.encoding import EncodedItem, encode_question_context, encode_sentence
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from tests import tiny
from tests.test_chinese import MIXED
from tests.test_chinese import reader as of_chinese
from tests.test_span import READERS

KNOWN = sorted(
    word
    for word in tiny.reader("ulmfit").backend_tokenizer.get_vocab()
    if word.isalpha() and len(tiny.reader("bert").encode(word).ids) == 3
)
STRANGE = [
    *KNOWN[:20],
    "na\u00efve",
    "3.5",
    "didn't",
    "(any)",
    "\u2014",
    "dogs\u2026",
    ".",
    "Ann.",
    "U.S.",
    "\U0001f989\U0001f989",
    "x" * 70,
    "\u4e2d\u6587",
]
Windows = list[tuple[int, int]]  # words from the first to the one after the last


def places(text: str) -> tuple[np.ndarray, np.ndarray]:
    starts, ends = (np.array(column) for column in zip(*word_spans(text, "en"), strict=True))
    return starts, ends


def in_the_reference(
    words: int, *, question: int, limit: int, marks: int, stride: int
) -> tuple[Windows, list[list[int]]]:
    """Of words of one piece: the windows of run_squad.py, and of each the words of which it has the most context; those that have any."""
    windows, begin = Windows(), 0
    while begin < words:
        length = min(words - begin, limit - question - marks)
        windows.append((begin, begin + length))
        if begin + length == words:
            break
        begin += min(length, stride)
    own: list[list[int]] = [[] for _ in windows]
    for word in range(words):
        best: tuple[float, int] | None = None
        for number, (first, end) in enumerate(windows):
            if first <= word < end:
                score = min(word - first, end - 1 - word) + 0.01 * (end - first)
                if best is None or score > best[0]:
                    best = score, number
        assert best is not None
        own[best[1]].append(word)
    return [window for window, some in zip(windows, own, strict=True) if some], [
        some for some in own if some
    ]


@pytest.mark.parametrize(("name", "marks"), [("bert", 3), ("ulmfit", 4), ("backward", 4)])
def test_where_a_word_is_a_piece_windows_and_words_are_those_of_the_released_code(
    name: str, marks: int
) -> None:
    reader = READERS[name]()
    assert len(KNOWN) > 90

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(words=st.integers(1, 90), question=st.integers(1, 3), limit=st.integers(12, 60))
    def check(words: int, question: int, limit: int) -> None:
        context = " ".join(KNOWN[:words])
        item = encode_question_context(
            " ".join(KNOWN[-question:]),
            context,
            *places(context),
            reader,
            max_length=limit,
            language="en",
        )
        read = [
            (KNOWN.index(part.split()[0]), KNOWN.index(part.split()[-1]) + 1)
            for _, part in item.texts
        ]
        windows, own = in_the_reference(
            words, question=question, limit=limit, marks=marks, stride=limit // 3
        )
        assert (
            read == windows
            and [sorted(pieces[:, 1].tolist()) for pieces in item.word_pieces] == own
        )

    check()


def check_words(item: EncodedItem, text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Windows hold all words, one after another; each word's pieces are all that there are in the window in which it has the most context."""
    begin, windows, own = -1, Windows(), list[set[int]]()
    for reading, pieces, (*_, part) in zip(
        item.encodings, item.word_pieces, item.texts, strict=True
    ):
        later = [int(at) for at in starts if at > begin and text.startswith(part, at)]
        begin = next(
            at
            for at in later
            if all(
                a + at < ends[w] and b + at > starts[w]
                for (a, b), w in zip(reading.offsets[pieces[:, 0]], pieces[:, 1], strict=True)
            )
        )
        windows.append(
            (int(np.searchsorted(starts, begin)), int(np.searchsorted(ends, begin + len(part))) + 1)
        )
        assert ends[windows[-1][1] - 1] == begin + len(part), "a window ends with a word"
        asked = reading.offsets[:, 1] > reading.offsets[:, 0]
        if reading.token_type_ids is not None:
            asked &= reading.token_type_ids == 1
        own.append({*pieces[:, 1].tolist()})
        for word in own[-1]:
            held = (
                asked
                & (reading.offsets[:, 0] + begin < ends[word])
                & (reading.offsets[:, 1] + begin > starts[word])
            )
            assert pieces[pieces[:, 1] == word, 0].tolist() == np.flatnonzero(held).tolist()
    assert windows[0][0] == 0 and windows[-1][1] == len(starts)
    assert all(a < b <= before for (a, before), (b, _) in pairwise(windows)), (
        "no word lies between two windows"
    )
    for word in range(len(starts)):
        context = [
            100 * min(word - a, b - 1 - word) + b - a if a <= word < b else -1 for a, b in windows
        ]
        best = context.index(max(context))
        assert all(word not in some for number, some in enumerate(own) if number != best)
    assert item.num_uncovered_words == len(starts) - len(set().union(*own))


@pytest.mark.parametrize("name", READERS)
def test_however_long_a_context_is_each_word_is_read_where_it_has_the_most_context(
    name: str,
) -> None:
    reader = READERS[name]()

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(words=st.lists(st.sampled_from(STRANGE), min_size=1, max_size=60), asked=st.lists(st.sampled_from(STRANGE), min_size=1, max_size=30),
           limit=st.none() | st.integers(12, 70))  # fmt: skip
    def check(words: list[str], asked: list[str], limit: int | None) -> None:
        context = " ".join(words)
        item = encode_question_context(
            " ".join(asked), context, *places(context), reader, max_length=limit, language="en"
        )
        assert limit is None or all(len(reading.ids) <= limit for reading in item.encodings)
        assert len({part[0] for part in item.texts}) == 1, "beside the same question"
        check_words(item, context, *places(context))
        alone = reader.encode(context).offsets
        read = {
            w
            for w, (a, b) in enumerate(zip(*places(context), strict=True))
            if ((alone[:, 0] < b) & (alone[:, 1] > a)).any()
        }
        assert {int(w) for pieces in item.word_pieces for w in pieces[:, 1]} == read, (
            "what a tokenizer has a piece for is read"
        )

    check()


@pytest.mark.parametrize(
    ("name", "language"),
    [("bert", "en"), ("gpt", "en"), ("ulmfit", "en"), ("bert", "zh"), ("gpt", "zh")],
)
@pytest.mark.parametrize("limit", [11, 14, 20])
def test_a_sentence_is_read_in_the_same_windows(name: str, language: str, limit: int) -> None:
    reader, tokens = (
        (tiny.reader(name), KNOWN[:50]) if language == "en" else (of_chinese(name), [*MIXED] * 3)
    )
    item = encode_sentence(tokens, reader, max_length=limit, language=language)
    ends = np.array(
        [len(join_words(tokens[: count + 1], language)) for count in range(len(tokens))]
    )
    assert len(item.encodings) > 1 and item.truncated and item.num_answers == len(tokens)
    check_words(item, join_words(tokens, language), ends - [len(token) for token in tokens], ends)


@pytest.mark.parametrize("name", READERS)
def test_a_context_that_fits_is_one_reading_to_the_last_position(name: str) -> None:
    reader, question, context = READERS[name](), "Ann saw", " ".join(STRANGE[:26])
    starts, ends = places(context)

    def read(limit: int | None) -> EncodedItem:
        return encode_question_context(
            question, context, starts, ends, reader, max_length=limit, language="en"
        )

    texts = (question, context) if reader.direction == "forward" else (context, question)
    (pair,) = encode_pairs(reader, *([text] for text in texts))
    assert pair.token_type_ids is not None
    segments = pair.token_type_ids if reader.direction == "forward" else 1 - pair.token_type_ids
    pieces = [(place, word) for place, (a, b) in enumerate(pair.offsets) if segments[place] == 1
              for word in range(len(starts)) if a < ends[word] and b > starts[word]]  # fmt: skip
    for limit in (None, len(pair.ids)):
        item = read(limit)
        (only,) = item.encodings
        assert (
            only.token_type_ids is not None
            and not item.truncated
            and item.texts == ((question, context),)
            and item.num_answers == len(starts)
        )
        for ours, wanted in (
            (only.ids, pair.ids),
            (only.offsets, pair.offsets),
            (only.token_type_ids, segments),
            (item.word_pieces[0], np.array(pieces)),
        ):
            assert ours.dtype == wanted.dtype and ours.tobytes() == wanted.tobytes()
        assert only.words == pair.words
    longer = read(len(pair.ids) - 1)
    assert longer.truncated and len(longer.encodings) == 2


def test_the_marks_round_a_questions_sentences_take_nothing_from_the_context() -> None:
    """Of a word model, which has two a sentence."""
    reader: Tokenizer = train_tokenizer(
        [*tiny.documents(), "Ann saw."],
        TokenizerSettings(vocab_size=499),
        tokenizer_type="word",
        language="en",
    )
    question, context = " ".join(f"{word.title()}." for word in KNOWN[:8]), " ".join(KNOWN[:40])
    item = encode_question_context(
        question, context, *places(context), reader, max_length=24, language="en"
    )
    assert item.truncated
    assert all(len(part.split()) >= 10 for _, part in item.texts[:-1]), (
        "half of the positions, less two marks"
    )
    for reading in item.encodings:
        assert (
            reading.token_type_ids is not None
            and (reading.token_type_ids == 0).sum() <= 12
            and len(reading.ids) <= 24
        )
