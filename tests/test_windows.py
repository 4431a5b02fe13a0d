"""Long sentences and contexts are read in windows, each word where it has the most context."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.language import join_words, word_spans
from lineage.methods.encoding import EncodedItem, encode_question_context, encode_sentence
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from tests.helpers import tiny
from tests.helpers.tokenizers import MIXED_SCRIPT_WORDS, TOKENIZERS, chinese_tokenizer

ONE_PIECE_WORDS = sorted(
    word
    for word in tiny.tokenizer("ulmfit").backend_tokenizer.get_vocab()
    if word.isalpha() and len(tiny.tokenizer("bert").encode(word).ids) == 3
)
MIXED_WORDS = [
    *ONE_PIECE_WORDS[:20],
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
Windows = list[tuple[int, int]]  # (first word, word after the last)


def word_boundaries(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and ends of the words of a text."""
    starts, ends = (np.array(column) for column in zip(*word_spans(text, "en"), strict=True))
    return starts, ends


def reference_windows(
    words: int, *, question_length: int, limit: int, num_special_tokens: int, stride: int
) -> tuple[Windows, list[list[int]]]:
    """Return run_squad.py's windows, and the words that have the most context in each.

    Every word is one piece. Windows without such a word are left out.
    """
    windows = Windows()
    start = 0
    while start < words:
        length = min(words - start, limit - question_length - num_special_tokens)
        windows.append((start, start + length))
        if start + length == words:
            break
        start += min(length, stride)
    words_by_window: list[list[int]] = [[] for _ in windows]
    for word in range(words):
        best: tuple[float, int] | None = None
        for number, (first, end) in enumerate(windows):
            if first <= word < end:
                score = min(word - first, end - 1 - word) + 0.01 * (end - first)
                if best is None or score > best[0]:
                    best = score, number
        assert best is not None
        words_by_window[best[1]].append(word)
    used = [number for number, window_words in enumerate(words_by_window) if window_words]
    return [windows[number] for number in used], [words_by_window[number] for number in used]


@pytest.mark.parametrize(
    ("name", "num_special_tokens"), [("bert", 3), ("ulmfit", 4), ("backward", 4)]
)
def test_windows_of_one_piece_words_equal_those_of_the_released_code(
    name: str, num_special_tokens: int
) -> None:
    tokenizer = TOKENIZERS[name]()
    assert len(ONE_PIECE_WORDS) > 90

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(words=st.integers(1, 90), question=st.integers(1, 3), limit=st.integers(12, 60))
    def check(words: int, question: int, limit: int) -> None:
        context = " ".join(ONE_PIECE_WORDS[:words])
        item = encode_question_context(
            " ".join(ONE_PIECE_WORDS[-question:]),
            context,
            *word_boundaries(context),
            tokenizer,
            max_length=limit,
            language="en",
        )
        actual_windows = [
            (
                ONE_PIECE_WORDS.index(window_text.split()[0]),
                ONE_PIECE_WORDS.index(window_text.split()[-1]) + 1,
            )
            for _, window_text in item.texts
        ]
        windows, words_by_window = reference_windows(
            words,
            question_length=question,
            limit=limit,
            num_special_tokens=num_special_tokens,
            stride=limit // 3,
        )
        assert actual_windows == windows
        assert [sorted(pieces[:, 1].tolist()) for pieces in item.word_pieces] == words_by_window

    check()


def check_words(item: EncodedItem, text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Check that windows cover all words, and that each word is read where it has most context."""
    window_start = -1
    windows = Windows()
    words_by_window = list[set[int]]()
    for encoding, pieces, (*_, window_text) in zip(
        item.encodings, item.word_pieces, item.texts, strict=True
    ):
        candidates = [
            int(position)
            for position in starts
            if position > window_start and text.startswith(window_text, position)
        ]
        window_start = next(
            position
            for position in candidates
            if all(
                a + position < ends[w] and b + position > starts[w]
                for (a, b), w in zip(encoding.offsets[pieces[:, 0]], pieces[:, 1], strict=True)
            )
        )
        windows.append(
            (
                int(np.searchsorted(starts, window_start)),
                int(np.searchsorted(ends, window_start + len(window_text))) + 1,
            )
        )
        assert ends[windows[-1][1] - 1] == window_start + len(window_text), (
            "a window ends with a word"
        )
        is_context = encoding.offsets[:, 1] > encoding.offsets[:, 0]
        if encoding.token_type_ids is not None:
            is_context &= encoding.token_type_ids == 1
        words_by_window.append({*pieces[:, 1].tolist()})
        for word in words_by_window[-1]:
            is_in_word = (
                is_context
                & (encoding.offsets[:, 0] + window_start < ends[word])
                & (encoding.offsets[:, 1] + window_start > starts[word])
            )
            assert pieces[pieces[:, 1] == word, 0].tolist() == np.flatnonzero(is_in_word).tolist()
    assert windows[0][0] == 0 and windows[-1][1] == len(starts)
    assert all(a < b <= before for (a, before), (b, _) in pairwise(windows)), "windows leave no gap"
    for word in range(len(starts)):
        context = [
            100 * min(word - a, b - 1 - word) + b - a if a <= word < b else -1 for a, b in windows
        ]
        best = context.index(max(context))
        assert all(
            word not in window_words
            for number, window_words in enumerate(words_by_window)
            if number != best
        )
    assert item.num_uncovered_words == len(starts) - len(set().union(*words_by_window))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_word_of_a_long_context_is_read_where_it_has_the_most_context(name: str) -> None:
    tokenizer = TOKENIZERS[name]()

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(words=st.lists(st.sampled_from(MIXED_WORDS), min_size=1, max_size=60),
           question_words=st.lists(st.sampled_from(MIXED_WORDS), min_size=1, max_size=30),
           limit=st.none() | st.integers(12, 70))  # fmt: skip
    def check(words: list[str], question_words: list[str], limit: int | None) -> None:
        context = " ".join(words)
        item = encode_question_context(
            " ".join(question_words),
            context,
            *word_boundaries(context),
            tokenizer,
            max_length=limit,
            language="en",
        )
        assert limit is None or all(len(reading.ids) <= limit for reading in item.encodings)
        assert len({texts[0] for texts in item.texts}) == 1, "every window has the same question"
        check_words(item, context, *word_boundaries(context))
        offsets = tokenizer.encode(context).offsets
        expected = {
            w
            for w, (a, b) in enumerate(zip(*word_boundaries(context), strict=True))
            if ((offsets[:, 0] < b) & (offsets[:, 1] > a)).any()
        }
        assert {int(w) for pieces in item.word_pieces for w in pieces[:, 1]} == expected, (
            "every word with a piece is read"
        )

    check()


@pytest.mark.parametrize(
    ("name", "language"),
    [("bert", "en"), ("gpt", "en"), ("ulmfit", "en")]
    + [(name, "zh") for name in ("bert", "gpt", "elmo", "ulmfit", "fasttext")],
)
@pytest.mark.parametrize("limit", [11, 14, 20])
def test_a_long_sentence_is_read_in_the_same_kind_of_windows(
    name: str, language: str, limit: int
) -> None:
    tokenizer, tokens = (
        (tiny.tokenizer(name), ONE_PIECE_WORDS[:50])
        if language == "en"
        else (chinese_tokenizer(name), [*MIXED_SCRIPT_WORDS] * 3)
    )
    item = encode_sentence(tokens, tokenizer, max_length=limit, language=language)
    ends = np.array(
        [len(join_words(tokens[: count + 1], language)) for count in range(len(tokens))]
    )
    assert len(item.encodings) > 1 and item.truncated and item.num_answers == len(tokens)
    check_words(item, join_words(tokens, language), ends - [len(token) for token in tokens], ends)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_context_that_just_fits_is_one_window(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    question = "Ann saw"
    context = " ".join(MIXED_WORDS[:26])
    starts, ends = word_boundaries(context)

    def encode(limit: int | None) -> EncodedItem:
        return encode_question_context(
            question, context, starts, ends, tokenizer, max_length=limit, language="en"
        )

    texts = (question, context) if tokenizer.direction == "forward" else (context, question)
    (pair,) = encode_pairs(tokenizer, *([text] for text in texts))
    assert pair.token_type_ids is not None
    segments = pair.token_type_ids if tokenizer.direction == "forward" else 1 - pair.token_type_ids
    pieces = [(place, word) for place, (a, b) in enumerate(pair.offsets) if segments[place] == 1
              for word in range(len(starts)) if a < ends[word] and b > starts[word]]  # fmt: skip
    for limit in (None, len(pair.ids)):
        item = encode(limit)
        (encoding,) = item.encodings
        assert encoding.token_type_ids is not None
        assert not item.truncated
        assert item.texts == ((question, context),)
        assert item.num_answers == len(starts)
        for actual, expected in (
            (encoding.ids, pair.ids),
            (encoding.offsets, pair.offsets),
            (encoding.token_type_ids, segments),
            (item.word_pieces[0], np.array(pieces)),
        ):
            assert actual.dtype == expected.dtype and actual.tobytes() == expected.tobytes()
        assert encoding.words == pair.words
    longer = encode(len(pair.ids) - 1)
    assert longer.truncated and len(longer.encodings) == 2
    for encoding in longer.encodings:
        assert encoding.token_type_ids is not None
        assert encoding.token_type_ids[0] == 0, "the question comes first, in both directions"
        question_ids = encoding.ids[encoding.token_type_ids == 0]
        assert question_ids.tolist() == pair.ids[segments == 0].tolist(), "the whole question"


def test_special_tokens_around_question_sentences_do_not_shorten_the_context() -> None:
    """A word tokenizer adds two special tokens per sentence."""
    tokenizer: Tokenizer = train_tokenizer(
        [*tiny.documents(), "Ann saw."],
        TokenizerSettings(vocab_size=499),
        tokenizer_type="word",
        language="en",
    )
    question = " ".join(f"{word.title()}." for word in ONE_PIECE_WORDS[:8])
    context = " ".join(ONE_PIECE_WORDS[:40])
    item = encode_question_context(
        question, context, *word_boundaries(context), tokenizer, max_length=24, language="en"
    )
    assert item.truncated
    assert all(len(window_text.split()) >= 10 for _, window_text in item.texts[:-1]), (
        "half of the positions, less two special tokens"
    )
    for encoding in item.encodings:
        assert encoding.token_type_ids is not None
        assert (encoding.token_type_ids == 0).sum() <= 12
        assert len(encoding.ids) <= 24
