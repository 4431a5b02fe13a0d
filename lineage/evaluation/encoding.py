"""A task's items as a family reads them, one by one and in batches.

Shapes: N items, B rows of a batch, T positions, M words that a task asks about, D width.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from lineage.data.language import join_words, spaces_before_words, word_spans
from lineage.models.batch import Batch
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.tokenizer import Encoding, Tokenizer

MAX_BATCH_POSITIONS = 8192  # positions, padding included, of a batch that is only read
MIN_BATCH_POSITIONS = 1024  # so many are worth a batch of their own, where more would be padding
MAX_PADDING_SHARE = 0.05
WORD_POOLING_REDUCTIONS = {"last": "amax", "first": "amin"}  # of a word's positions
STRIDES_PER_WINDOW = (
    3  # windows of a text that is too long begin a third of the positions after one another
)


@dataclass(frozen=True)
class EncodedItem:
    """A task's item as a family reads it: ids, and, where the task asks about words, which of them stands at each position.

    An item may be read several times: two texts in both orders, whose vectors are summed; a text with each of its choices, which are scored one by
    one (Radford et al. 2018, section 3.3); a sentence, or a question's context, that is too long for the model in overlapping windows, for each of
    which there stand here the words that have the most context in it.
    """

    encoded: Encoding
    word_pieces: tuple[
        np.ndarray, ...
    ] = ()  # for each reading (P, 2): a position, and the number of an asked word to which its piece belongs
    num_answers: int = 1  # answers: one, or one for every word
    other_encodings: tuple[Encoding, ...] = ()  # readings after the first
    is_multiple_choice: bool = False
    texts: tuple[
        tuple[str, ...], ...
    ] = ()  # for each reading the text whose characters its spans count, of two texts both, by segment

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """All of them, in order."""
        return (self.encoded, *self.other_encodings)

    @property
    def truncated(self) -> bool:
        """Whether any of them was longer than the limit."""
        return any(reading.truncated for reading in self.encodings)

    @property
    def length(self) -> int:
        """Positions of the longest."""
        return max(len(reading.ids) for reading in self.encodings)

    @property
    def num_uncovered_words(self) -> int:
        """How many asked words no piece stands for: one that the tokenizer leaves out, or that lies beyond the limit. Their vectors are zeros."""
        return (
            self.num_answers - len({*np.concatenate(self.word_pieces)[:, 1].tolist()})
            if self.word_pieces
            else 0
        )


def collate_items(
    tokenizer: Tokenizer, items: Sequence[EncodedItem], labels: np.ndarray | None = None
) -> Batch:
    """Items, and their gold answers where given, as one batch: a row for each reading, those of an item one after another."""
    readings = [reading for item in items for reading in item.encodings]
    batch = tokenizer.collate(readings)
    segments = asked = None
    if readings[0].token_type_ids is not None:
        segments = torch.zeros_like(batch.ids_BT)
        for row, reading in enumerate(readings):
            assert reading.token_type_ids is not None
            segments[row, : len(reading.ids)] = torch.from_numpy(reading.token_type_ids)
    if items[0].word_pieces:
        words, T = np.cumsum([0, *(item.num_answers for item in items)]), batch.ids_BT.shape[1]
        own = [
            pieces + np.array((0, first))
            for item, first in zip(items, words, strict=False)
            for pieces in item.word_pieces
        ]
        asked = torch.from_numpy(
            np.concatenate([pieces + np.array((row * T, 0)) for row, pieces in enumerate(own)])
        )
    answers = None if labels is None else torch.from_numpy(np.array(labels))
    more: dict[str, Any] = {
        "segment_ids_BT": segments,
        "answer_pieces_P2": asked,
        "labels_M": answers,
        "answers_per_item": tuple(item.num_answers for item in items),
    }
    return dataclasses.replace(
        batch, second_token_type_id=tokenizer.special_token_template.second_token_type_id, **more
    )


def batch_by_length(items: Sequence[EncodedItem]) -> list[np.ndarray]:
    """Indices of items in batches of like length: of at most READ_POSITIONS where one item is not more, and of FEW_POSITIONS if more were padding."""
    order = np.argsort([-item.length for item in items], kind="stable")
    found: list[list[int]] = []
    longest = rows = real = 0
    for i in order:
        own, count = (
            len(items[i].encodings),
            sum(len(reading.ids) for reading in items[i].encodings),
        )
        positions = (rows + own) * longest
        padded = (
            rows * longest >= MIN_BATCH_POSITIONS
            and positions - real - count > MAX_PADDING_SHARE * positions
        )
        if not found or positions > MAX_BATCH_POSITIONS or padded:
            found.append([])
            longest, rows, real = items[i].length, 0, 0
        found[-1].append(int(i))
        rows, real = rows + own, real + count
    return [np.array(indices) for indices in found]


def answer_rows(items: Sequence[EncodedItem]) -> list[np.ndarray]:
    """For each item the rows of its answers, where those of all items stand one after another."""
    ends = np.cumsum([item.num_answers for item in items])
    return [np.arange(end - item.num_answers, end) for item, end in zip(items, ends, strict=True)]


def pool_words(model: Any, x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(M, D): each asked word's pieces as one vector, zeros where it has none.

    The mean of its pieces; of a model that reads one way the last piece, or the first (`read_word`), the only one that has read the whole word.
    """
    assert batch.answer_pieces_P2 is not None
    (place_P, word_P), M, flat_PD = (
        batch.answer_pieces_P2.unbind(1),
        batch.num_answers,
        x_BTD.flatten(0, 1),
    )
    if model.word_pooling == "mean":
        counts_M1 = x_BTD.new_zeros(M, 1).index_add(0, word_P, x_BTD.new_ones(len(word_P), 1))
        return x_BTD.new_zeros(M, x_BTD.shape[-1]).index_add(
            0, word_P, flat_PD[place_P]
        ) / counts_M1.clamp_min(1)
    place_M = place_P.new_full((M,), -1).scatter_reduce(
        0, word_P, place_P, WORD_POOLING_REDUCTIONS[model.word_pooling], include_self=False
    )
    return flat_PD[place_M.clamp_min(0)] * (place_M >= 0)[:, None]


def encode_items(
    table: pd.DataFrame,
    tokenizer: Tokenizer,
    *,
    max_length: int | None,
    language: str,
    symmetric: bool = False,
) -> list[EncodedItem]:
    """Texts, pairs of them, choices beside a text, words in their context, or all words of sentences or contexts: at most `limit` positions."""
    if "context" in table:
        asked = zip(
            *(table[name] for name in ("question", "context", "starts", "ends")), strict=True
        )
        return [
            encode_question_context(
                q, c, np.array(a), np.array(b), tokenizer, max_length=max_length, language=language
            )
            for q, c, a, b in asked
        ]
    if "tokens" in table:
        sentences = [[str(token) for token in tokens] for tokens in table["tokens"]]
        if "target" not in table:
            return [
                encode_sentence(tokens, tokenizer, max_length=max_length, language=language)
                for tokens in sentences
            ]
        both = zip(sentences, table["target"], strict=True)
        return [
            encode_word_in_context(
                tokens, int(target), tokenizer, max_length=max_length, language=language
            )
            for tokens, target in both
        ]
    texts = table["text"].tolist()
    if "second" not in table and "choices" not in table:
        return [
            EncodedItem(encoded, texts=((text,),))
            for text, encoded in zip(
                texts, tokenizer.encode_batch(texts, max_length=max_length), strict=True
            )
        ]
    if "choices" in table:
        columns = [(texts, list(column)) for column in zip(*table["choices"], strict=True)]
    else:
        seconds = table["second"].tolist()
        columns = [(texts, seconds), (seconds, texts)][: 1 + symmetric]
    own = zip(*(zip(*both, strict=True) for both in columns), strict=True)
    ends = table["asked"].tolist() if "asked" in table else None
    readings = zip(
        *(
            encode_pairs(tokenizer, *both, max_length=max_length, question_lengths=ends)
            for both in columns
        ),
        strict=True,
    )
    return [
        EncodedItem(
            first, other_encodings=tuple(others), is_multiple_choice="choices" in table, texts=read
        )
        for read, (first, *others) in zip(own, readings, strict=True)
    ]


def encode_word_in_context(
    tokens: list[str], target: int, tokenizer: Tokenizer, *, max_length: int | None, language: str
) -> EncodedItem:
    """A word in its context; where the context is too long, a window round the word, so that the word itself is never cut off.

    A word that has no piece even alone is `unread`, in its whole context: the item is answered without it, so that all models answer the same items.
    """
    whole: EncodedItem | None = None
    reach = len(tokens)
    while True:
        first = max(0, target - reach)
        window = tokens[first : target + reach + 1]
        text = join_words(window, language)
        encoded = tokenizer.encode(text, max_length=max_length)
        whole = whole or EncodedItem(encoded, (np.zeros((0, 2), np.int64),), texts=((text,),))
        pieces = align_pieces_to_words(encoded, *_token_offsets(window, language))
        pieces = pieces[pieces[:, 1] == target - first] * [1, 0]
        inside = len(pieces) and (
            pieces[:, 0].max() < len(encoded.ids) - 2
            if tokenizer.direction == "forward"
            else pieces[:, 0].min() > 1
        )
        if len(pieces) and (
            not encoded.truncated or reach == 0 or inside
        ):  # at the edge where a text is cut a word may have lost pieces
            return EncodedItem(
                dataclasses.replace(
                    encoded, truncated=encoded.truncated or len(window) < len(tokens)
                ),
                (pieces,),
                texts=((text,),),
            )
        if reach == 0:
            return whole
        reach //= 2


def encode_sentence(
    tokens: list[str], tokenizer: Tokenizer, *, max_length: int | None, language: str
) -> EncodedItem:
    """Every word of a sentence, in windows (see `_windows`) where it is too long for the model, so that no word is left unread."""
    text, starts_W, ends_W = join_words(tokens, language), *_token_offsets(tokens, language)
    return _encode_windows(
        text,
        starts_W,
        ends_W,
        lambda part: tokenizer.encode(part, max_length=max_length),
        max_length=max_length,
    )


def encode_question_context(
    question: str,
    context: str,
    starts_W: np.ndarray,
    ends_W: np.ndarray,
    tokenizer: Tokenizer,
    *,
    max_length: int | None,
    language: str,
) -> EncodedItem:
    """A question and every word of its context, from characters `starts` to `ends`; in windows (see `_windows`) where they are too long.

    Each window is read beside the whole question, of which no more is read than fills half of the positions (in run_squad.py 64 of 384).
    """
    asked = _truncate_question(question, tokenizer, max_length=max_length, language=language)
    found = _encode_windows(
        context,
        starts_W,
        ends_W,
        lambda part: _encode_pair(tokenizer, asked, part, max_length=max_length),
        max_length=max_length,
        paired_texts=(asked,),
    )
    return (
        found
        if asked == question
        else dataclasses.replace(found, encoded=dataclasses.replace(found.encoded, truncated=True))
    )


def _encode_pair(
    tokenizer: Tokenizer, question: str, context: str, *, max_length: int | None
) -> Encoding:
    """Both as two texts, the question (segment 0) as the one that is read first: a model of one direction knows it when it reads the context."""
    if tokenizer.direction == "forward":
        return encode_pairs(tokenizer, [question], [context], max_length=max_length)[0]
    encoded = encode_pairs(tokenizer, [context], [question], max_length=max_length)[0]
    assert encoded.token_type_ids is not None
    return dataclasses.replace(encoded, token_type_ids=1 - encoded.token_type_ids)


def _truncate_question(
    question: str, tokenizer: Tokenizer, *, max_length: int | None, language: str
) -> str:
    """The words of a question that fit half of the positions; of a word that alone does not, its first characters."""
    if max_length is None:
        return question
    num_special_tokens = tokenizer.special_token_template.num_special_tokens
    read = tokenizer.encode(
        question,
        max_length=num_special_tokens
        + (max_length - num_special_tokens - len(tokenizer.special_token_template.separator)) // 2,
    )
    edge = int(read.offsets.max())
    return (
        question[
            : max((end for _, end in word_spans(question, language) if end <= edge), default=edge)
        ]
        if read.truncated
        else question
    )


EncodedWindow = tuple[
    int, int, Encoding, np.ndarray
]  # words a to b, how they are read, and pieces as an Item has them


def _encode_windows(
    text: str,
    starts_W: np.ndarray,
    ends_W: np.ndarray,
    encode: Callable[[str], Encoding],
    *,
    max_length: int | None,
    paired_texts: tuple[str, ...] = (),
) -> EncodedItem:
    """Every word of a text, each in that window in which it has the most context; one in which no word has it is not read."""
    windows = _split_windows(
        text, starts_W, ends_W, encode, stride=(max_length or 0) // STRIDES_PER_WINDOW
    )
    best_W = _choose_max_context_windows(windows, len(starts_W))
    kept = [
        (a, b, encoded, pieces[best_W[pieces[:, 1]] == number])
        for number, (a, b, encoded, pieces) in enumerate(windows)
        if number in best_W
    ]
    first, *others = (
        dataclasses.replace(encoded, truncated=encoded.truncated or len(kept) > 1)
        for _, _, encoded, _ in kept
    )
    texts = tuple((*paired_texts, text[starts_W[a] : ends_W[b - 1]]) for a, b, _, _ in kept)
    return EncodedItem(
        first, tuple(pieces for *_, pieces in kept), len(starts_W), tuple(others), texts=texts
    )


def _split_windows(
    text: str,
    starts_W: np.ndarray,
    ends_W: np.ndarray,
    encode: Callable[[str], Encoding],
    *,
    stride: int,
) -> list[EncodedWindow]:
    """The words of a text in one window or in overlapping ones, each as long as the model can read; of a word that alone is too long, what fits.

    A window begins at the word that stands `stride` pieces after the former one's beginning, at least one word further, and never beyond its end: in
    the code released with Devlin et al. 2019 (run_squad.py) 128 of 384. Models here may have some dozens of positions, of which 128 would leave
    nothing to overlap; with a third of them each word has about a third of them, less half of the question, on either side that the text has.
    That costs readings: a long text is read up to three times over, in training as well.
    """
    found, a, W = list[EncodedWindow](), 0, len(starts_W)
    while True:
        b, encoded = W, encode(text[starts_W[a] : ends_W[-1]])
        while (
            encoded.truncated and b > a + 1
        ):  # words may have other pieces or marks where the text ends with them
            reached = starts_W[a] + _context_spans(encoded).max(initial=0)
            b = int(np.searchsorted(ends_W, reached, side="right").clip(a + 1, b - 1))
            encoded = encode(text[starts_W[a] : ends_W[b - 1]])
        pieces = align_pieces_to_words(
            encoded, starts_W[a:b] - starts_W[a], ends_W[a:b] - starts_W[a]
        )
        if encoded.token_type_ids is not None:
            pieces = pieces[encoded.token_type_ids[pieces[:, 0]] == 1]
        found.append((a, b, encoded, pieces + np.array((0, a))))
        if b == W:
            return found
        counts = np.bincount(pieces[:, 1], minlength=b - a)
        a += max(1, int(np.searchsorted(counts.cumsum(), stride, side="right")))


def _choose_max_context_windows(windows: Sequence[EncodedWindow], num_words: int) -> np.ndarray:
    """(W,) the number of the window in which each word has the most context: words on that side of it that has fewer.

    With a hundredth of the window's words, as in the code released with Devlin et al. 2019; of equals the first window.
    """
    firsts_V1, ends_V1 = (
        np.array([window[side] for window in windows])[:, None] for side in (0, 1)
    )
    fewer_VW = np.minimum(np.arange(num_words) - firsts_V1, ends_V1 - 1 - np.arange(num_words))
    return np.where(fewer_VW >= 0, 100 * fewer_VW + ends_V1 - firsts_V1, -1).argmax(0)


def _context_spans(encoded: Encoding) -> np.ndarray:
    """Spans in the text whose words are asked: all, or those of the second of two texts."""
    return (
        encoded.offsets
        if encoded.token_type_ids is None
        else encoded.offsets[encoded.token_type_ids == 1]
    )


def _token_offsets(tokens: list[str], language: str) -> tuple[np.ndarray, np.ndarray]:
    """(W,) first characters of tokens that are joined to one text, and (W,) those after their last."""
    lengths = np.array([len(token) for token in tokens])
    ends = np.cumsum(lengths + spaces_before_words(tokens, language))
    return ends - lengths, ends


def align_pieces_to_words(encoded: Encoding, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(P, 2): a position and a word that its piece overlaps, in order; a piece of several words stands with each of them."""
    firsts = np.searchsorted(ends, encoded.offsets[:, 0], side="right")
    counts = (np.searchsorted(starts, encoded.offsets[:, 1], side="left") - firsts).clip(0)
    places = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.column_stack([places, firsts[places] + within])
