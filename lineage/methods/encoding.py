"""The items of a task as token ids, one by one and in batches.

Shapes: N items, B rows, T positions, W words of a text, P pieces of words, M words that a task asks
about, D width.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd
import torch

from lineage.language import join_words, spaces_before_words, word_spans
from lineage.networks.batch import Batch
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.tokenizer import Encoding, Tokenizer

# Limits of a batch for inference. The positions include padding.
MAX_BATCH_POSITIONS = 8192
MIN_BATCH_POSITIONS = 1024  # a larger batch ends early to avoid padding
MAX_PADDING_SHARE = 0.05
# How to find the one piece that gives a word's vector, by reducing over the pieces' positions.
WORD_POOLING_REDUCTIONS = {"last": "amax", "first": "amin"}
STRIDES_PER_WINDOW = 3  # windows of a long text begin a third of the positions apart


@dataclass(frozen=True)
class EncodedItem:
    """An item of a task as a model reads it.

    It has several encodings if it is two texts in both orders, whose vectors are summed; a text
    with each of its choices, scored one by one (Radford et al. 2018, section 3.3); or the
    overlapping windows of a sentence, or of a context with its question, that is too long for the
    model. `word_pieces` then holds for each window only the words with the most context in it.
    """

    encoded: Encoding  # the first encoding
    # For each encoding (P, 2): the position of a piece, and the number of the word it belongs to.
    # Empty if the task does not ask about words.
    word_pieces: tuple[np.ndarray, ...] = ()
    num_answers: int = 1  # one, or one for every word
    # The number of the answer that the others are related to: a verb, or a pronoun.
    predicate: int | None = None
    other_encodings: tuple[Encoding, ...] = ()
    is_multiple_choice: bool = False
    # For each encoding the texts to which its character offsets refer, by token type.
    texts: tuple[tuple[str, ...], ...] = ()

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        return (self.encoded, *self.other_encodings)

    @property
    def truncated(self) -> bool:
        return any(encoding.truncated for encoding in self.encodings)

    @property
    def length(self) -> int:
        return max(len(encoding.ids) for encoding in self.encodings)

    @property
    def num_uncovered_words(self) -> int:
        """Number of words without any piece, whose vectors are zeros."""
        if not self.word_pieces:
            return 0
        return self.num_answers - len(self.covered_words)

    @cached_property
    def covered_words(self) -> np.ndarray:
        """The numbers of the words that have a piece, in order."""
        return np.unique(np.concatenate(self.word_pieces)[:, 1])


class HasWordPooling(Protocol):
    """A model whose `word_pooling` says which pieces give a word's vector: mean, last or first."""

    @property
    def word_pooling(self) -> str: ...


def collate_items(
    tokenizer: Tokenizer, items: Sequence[EncodedItem], labels: np.ndarray | None = None
) -> Batch:
    """Build one batch with a row for each encoding; the encodings of an item follow each other."""
    encodings = [encoding for item in items for encoding in item.encodings]
    batch = tokenizer.collate(encodings)
    return dataclasses.replace(
        batch,
        segment_ids_BT=_pad_token_type_ids(encodings, batch.ids_BT),
        second_token_type_id=tokenizer.special_token_template.second_token_type_id,
        labels_M=None if labels is None else torch.from_numpy(np.array(labels)),
        answer_pieces_P2=_stack_word_pieces(items, num_positions=batch.ids_BT.shape[1]),
        answers_per_item=tuple(item.num_answers for item in items),
        predicates_M=_number_predicates(items),
    )


def collate_positions(items: Sequence[EncodedItem], labels: np.ndarray | None = None) -> Batch:
    """Build the batch of `collate_items` with zeros for ids, for a head on computed features."""
    encodings = [encoding for item in items for encoding in item.encodings]
    mask_BT = _padding_mask([len(encoding.ids) for encoding in encodings])
    text_mask_BT = np.zeros_like(mask_BT)
    for row, encoding in enumerate(encodings):
        offsets = encoding.offsets
        text_mask_BT[row, : len(offsets)] = offsets[:, 1] > offsets[:, 0]
    batch = _batch_without_ids(mask_BT, items, labels)
    return dataclasses.replace(
        batch,
        text_mask_BT=torch.from_numpy(text_mask_BT),
        segment_ids_BT=_pad_token_type_ids(encodings, batch.ids_BT),
        answer_pieces_P2=_stack_word_pieces(items, num_positions=mask_BT.shape[1]),
    )


def collate_words(items: Sequence[EncodedItem], labels: np.ndarray | None = None) -> Batch:
    """Build a batch whose positions are the words that the items ask about, without ids."""
    return _batch_without_ids(_padding_mask([item.num_answers for item in items]), items, labels)


def _padding_mask(lengths: Sequence[int]) -> np.ndarray:
    return np.arange(max(lengths)) < np.array(lengths)[:, None]


def _batch_without_ids(
    mask_BT: np.ndarray, items: Sequence[EncodedItem], labels: np.ndarray | None
) -> Batch:
    return Batch(
        torch.zeros(mask_BT.shape, dtype=torch.int64),
        torch.from_numpy(mask_BT),
        num_tokens=int(mask_BT.sum()),
        labels_M=None if labels is None else torch.from_numpy(np.array(labels)),
        answers_per_item=tuple(item.num_answers for item in items),
        predicates_M=_number_predicates(items),
    )


def _number_predicates(items: Sequence[EncodedItem]) -> torch.Tensor | None:
    """Return (M,) for each word the predicate of its item, as words are numbered in the batch."""
    numbers = []
    num_words = 0
    for item in items:
        if item.predicate is None:
            return None
        numbers.append(np.full(item.num_answers, num_words + item.predicate))
        num_words += item.num_answers
    return torch.from_numpy(np.concatenate(numbers))


def _pad_token_type_ids(encodings: Sequence[Encoding], ids_BT: torch.Tensor) -> torch.Tensor | None:
    if encodings[0].token_type_ids is None:
        return None
    padded_BT = torch.zeros_like(ids_BT)
    for row, encoding in enumerate(encodings):
        assert encoding.token_type_ids is not None
        padded_BT[row, : len(encoding.ids)] = torch.from_numpy(encoding.token_type_ids)
    return padded_BT


def _stack_word_pieces(items: Sequence[EncodedItem], *, num_positions: int) -> torch.Tensor | None:
    """Return (P, 2): positions in the flattened batch, and words numbered through the batch."""
    if not items[0].word_pieces:
        return None
    pieces = []
    num_rows = 0
    num_words = 0
    for item in items:
        for pieces_P2 in item.word_pieces:
            pieces.append(pieces_P2 + np.array((num_rows * num_positions, num_words)))
            num_rows += 1
        num_words += item.num_answers
    return torch.from_numpy(np.concatenate(pieces))


def batch_by_length(items: Sequence[EncodedItem]) -> list[np.ndarray]:
    """Group the indices of items into batches of similar length, the longest first.

    A batch has at most MAX_BATCH_POSITIONS unless a single item has more. From MIN_BATCH_POSITIONS
    on its padding is at most MAX_PADDING_SHARE.
    """
    order = np.argsort([-item.length for item in items], kind="stable")
    batches: list[list[int]] = []
    longest = num_rows = num_real = 0
    for index in order:
        item = items[index]
        item_rows = len(item.encodings)
        item_real = sum(len(encoding.ids) for encoding in item.encodings)
        positions = (num_rows + item_rows) * longest
        padding = positions - num_real - item_real
        is_large_enough = num_rows * longest >= MIN_BATCH_POSITIONS
        is_padded = is_large_enough and padding > MAX_PADDING_SHARE * positions
        if not batches or positions > MAX_BATCH_POSITIONS or is_padded:
            batches.append([])
            longest = item.length
            num_rows = num_real = 0
        batches[-1].append(int(index))
        num_rows += item_rows
        num_real += item_real
    return [np.array(indices) for indices in batches]


def answer_rows(items: Sequence[EncodedItem]) -> list[np.ndarray]:
    """Return for each item the rows of its answers in an array of the answers of all items."""
    ends = np.cumsum([item.num_answers for item in items])
    return [np.arange(end - item.num_answers, end) for item, end in zip(items, ends, strict=True)]


def pool_words(model: HasWordPooling, x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return (M, D): a vector for each word that the task asks about, zeros without pieces.

    It is the mean of the word's pieces. A unidirectional model takes the piece that it reads last.
    """
    assert batch.answer_pieces_P2 is not None
    position_P, word_P = batch.answer_pieces_P2.unbind(1)
    M = batch.num_answers
    D = x_BTD.shape[-1]
    flattened = x_BTD.flatten(0, 1)
    if model.word_pooling == "mean":
        ones_P1 = x_BTD.new_ones(len(word_P), 1)
        counts_M1 = x_BTD.new_zeros(M, 1).index_add(0, word_P, ones_P1)
        sums_MD = x_BTD.new_zeros(M, D).index_add(0, word_P, flattened[position_P])
        return sums_MD / counts_M1.clamp_min(1)
    reduction = WORD_POOLING_REDUCTIONS[model.word_pooling]
    missing_M = position_P.new_full((M,), -1)
    position_M = missing_M.scatter_reduce(0, word_P, position_P, reduction, include_self=False)
    return flattened[position_M.clamp_min(0)] * (position_M >= 0)[:, None]


def encode_items(
    table: pd.DataFrame,
    tokenizer: Tokenizer,
    *,
    max_length: int | None,
    language: str,
    symmetric: bool = False,
) -> list[EncodedItem]:
    """Encode every row of a table with at most `max_length` positions per encoding.

    Columns: question and context; or tokens, perhaps with target; or text, alone, with `second`,
    with choices or with spans. Words and spans may have a predicate. `symmetric` pairs are encoded
    in both orders.
    """
    if "firsts" in table:
        items = _encode_spans(table, tokenizer, max_length=max_length)
        return _relate_to_predicates(items, table)
    if "context" in table:
        return _encode_contexts(table, tokenizer, max_length=max_length, language=language)
    if "tokens" in table:
        items = _encode_sentences(table, tokenizer, max_length=max_length, language=language)
        return _relate_to_predicates(items, table)
    texts = table["text"].tolist()
    question_lengths = table["asked"].tolist() if "asked" in table else None
    if "choices" in table:
        columns = [(texts, list(choices)) for choices in zip(*table["choices"], strict=True)]
        items = _encode_text_pairs(columns, tokenizer, max_length, question_lengths)
        return [dataclasses.replace(item, is_multiple_choice=True) for item in items]
    if "second" in table:
        seconds = table["second"].tolist()
        columns = [(texts, seconds)]
        if symmetric:
            columns.append((seconds, texts))
        return _encode_text_pairs(columns, tokenizer, max_length, question_lengths)
    encodings = tokenizer.encode_batch(texts, max_length=max_length)
    return [
        EncodedItem(encoding, texts=((text,),))
        for text, encoding in zip(texts, encodings, strict=True)
    ]


def _relate_to_predicates(items: list[EncodedItem], table: pd.DataFrame) -> list[EncodedItem]:
    if "predicate" not in table:
        return items
    return [
        dataclasses.replace(item, predicate=int(place))
        for item, place in zip(items, table["predicate"], strict=True)
    ]


def _encode_contexts(
    table: pd.DataFrame, tokenizer: Tokenizer, *, max_length: int | None, language: str
) -> list[EncodedItem]:
    columns = (table[name] for name in ("question", "context", "starts", "ends"))
    return [
        encode_question_context(
            question,
            context,
            np.array(starts),
            np.array(ends),
            tokenizer,
            max_length=max_length,
            language=language,
        )
        for question, context, starts, ends in zip(*columns, strict=True)
    ]


def _encode_sentences(
    table: pd.DataFrame, tokenizer: Tokenizer, *, max_length: int | None, language: str
) -> list[EncodedItem]:
    sentences = [[str(token) for token in tokens] for tokens in table["tokens"]]
    if "target" not in table:
        return [
            encode_sentence(tokens, tokenizer, max_length=max_length, language=language)
            for tokens in sentences
        ]
    return [
        encode_word_in_context(
            tokens, int(target), tokenizer, max_length=max_length, language=language
        )
        for tokens, target in zip(sentences, table["target"], strict=True)
    ]


def _encode_spans(
    table: pd.DataFrame, tokenizer: Tokenizer, *, max_length: int | None
) -> list[EncodedItem]:
    """Encode texts, and ask about spans of their words."""

    def encode(part: str) -> Encoding:
        return tokenizer.encode(part, max_length=max_length)

    items = []
    columns = (table[name] for name in ("text", "starts", "ends", "firsts", "lasts"))
    for text, starts, ends, firsts, lasts in zip(*columns, strict=True):
        item = _encode_windows(
            text, np.array(starts), np.array(ends), encode, max_length=max_length
        )
        items.append(_select_spans(item, [*zip(firsts, lasts, strict=True)]))
    return items


def _select_spans(item: EncodedItem, spans: Sequence[tuple[int, int]]) -> EncodedItem:
    """Return an item that asks about spans, from their first to their last word, of its words.

    Windows without a span are left out, but the first if none has one.
    """
    encodings = []
    word_pieces = []
    texts = []
    for window, pieces_P2 in enumerate(item.word_pieces):
        position_P, word_P = pieces_P2.T
        selected = [np.zeros((0, 2), np.int64)]
        for number, (first, last) in enumerate(spans):
            # A piece that belongs to several words of a span counts once.
            inside = np.unique(position_P[(first <= word_P) & (word_P <= last)])
            selected.append(np.column_stack([inside, np.full(len(inside), number)]))
        pieces = np.concatenate(selected)
        if len(pieces):
            encodings.append(item.encodings[window])
            word_pieces.append(pieces)
            texts.append(item.texts[window])
    if not encodings:
        encodings = [item.encoded]
        word_pieces = [np.zeros((0, 2), np.int64)]
        texts = [item.texts[0]]
    return EncodedItem(
        encodings[0],
        tuple(word_pieces),
        num_answers=len(spans),
        other_encodings=tuple(encodings[1:]),
        texts=tuple(texts),
    )


def _encode_text_pairs(
    columns: Sequence[tuple[list[str], list[str]]],
    tokenizer: Tokenizer,
    max_length: int | None,
    question_lengths: list[int] | None,
) -> list[EncodedItem]:
    """Encode items of several pairs each; a column holds the first and second texts of all."""
    encodings = [
        encode_pairs(
            tokenizer, firsts, seconds, max_length=max_length, question_lengths=question_lengths
        )
        for firsts, seconds in columns
    ]
    items = []
    for row, (first, *others) in enumerate(zip(*encodings, strict=True)):
        texts = tuple((firsts[row], seconds[row]) for firsts, seconds in columns)
        items.append(EncodedItem(first, other_encodings=tuple(others), texts=texts))
    return items


def encode_word_in_context(
    tokens: list[str], target: int, tokenizer: Tokenizer, *, max_length: int | None, language: str
) -> EncodedItem:
    """Encode a word with its context, or with so much of it that the word is never cut off.

    A word without any piece has the whole context and no word pieces.
    """
    full_item: EncodedItem | None = None
    reach = len(tokens)  # context words on either side; halved until the word is not cut off
    while True:
        first = max(0, target - reach)
        window = tokens[first : target + reach + 1]
        text = join_words(window, language)
        encoded = tokenizer.encode(text, max_length=max_length)
        if full_item is None:
            no_pieces_P2 = np.zeros((0, 2), np.int64)
            full_item = EncodedItem(encoded, (no_pieces_P2,), texts=((text,),))
        pieces_P2 = align_pieces_to_words(encoded, *_token_offsets(window, language))
        pieces_P2 = pieces_P2[pieces_P2[:, 1] == target - first] * [1, 0]
        is_complete = not encoded.truncated or reach == 0
        if len(pieces_P2) and (is_complete or not _touches_cut(pieces_P2, encoded, tokenizer)):
            truncated = encoded.truncated or len(window) < len(tokens)
            encoded = dataclasses.replace(encoded, truncated=truncated)
            return EncodedItem(encoded, (pieces_P2,), texts=((text,),))
        if reach == 0:
            return full_item
        reach //= 2


def _touches_cut(pieces_P2: np.ndarray, encoded: Encoding, tokenizer: Tokenizer) -> bool:
    """Tell whether a word is at the edge where the text is cut, and may have lost pieces."""
    if tokenizer.direction == "forward":
        return bool(pieces_P2[:, 0].max() >= len(encoded.ids) - 2)
    return bool(pieces_P2[:, 0].min() <= 1)


def encode_sentence(
    tokens: list[str], tokenizer: Tokenizer, *, max_length: int | None, language: str
) -> EncodedItem:
    """Encode all words of a sentence, in overlapping windows if it is too long for the model."""
    starts_W, ends_W = _token_offsets(tokens, language)

    def encode(part: str) -> Encoding:
        return tokenizer.encode(part, max_length=max_length)

    text = join_words(tokens, language)
    return _encode_windows(text, starts_W, ends_W, encode, max_length=max_length)


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
    """Encode a question and all words of its context, in overlapping windows if they are too long.

    starts_W, ends_W: character offsets of the context's words. Each window includes the question,
    cut to half of the positions (run_squad.py: 64 of 384).
    """
    truncated_question = _truncate_question(
        question, tokenizer, max_length=max_length, language=language
    )

    def encode(part: str) -> Encoding:
        return _encode_question_pair(tokenizer, truncated_question, part, max_length=max_length)

    item = _encode_windows(
        context, starts_W, ends_W, encode, max_length=max_length, paired_texts=(truncated_question,)
    )
    if truncated_question == question:
        return item
    return dataclasses.replace(item, encoded=dataclasses.replace(item.encoded, truncated=True))


def _encode_question_pair(
    tokenizer: Tokenizer, question: str, context: str, *, max_length: int | None
) -> Encoding:
    """Encode both as a pair in which the model reads the question first, with token type 0."""
    if tokenizer.direction == "forward":
        return encode_pairs(tokenizer, [question], [context], max_length=max_length)[0]
    encoded = encode_pairs(tokenizer, [context], [question], max_length=max_length)[0]
    assert encoded.token_type_ids is not None
    return dataclasses.replace(encoded, token_type_ids=1 - encoded.token_type_ids)


def _truncate_question(
    question: str, tokenizer: Tokenizer, *, max_length: int | None, language: str
) -> str:
    """Keep the first words, or characters, of a question that fit into half of the positions."""
    if max_length is None:
        return question
    template = tokenizer.special_token_template
    num_special_tokens = template.num_special_tokens
    half = (max_length - num_special_tokens - len(template.separator)) // 2
    encoded = tokenizer.encode(question, max_length=num_special_tokens + half)
    if not encoded.truncated:
        return question
    edge = int(encoded.offsets.max())
    word_ends = [end for _, end in word_spans(question, language) if end <= edge]
    return question[: max(word_ends, default=edge)]


@dataclass(frozen=True)
class _Window:
    """Words `start` to `end` (exclusive) of a text, encoded together."""

    start: int
    end: int
    encoding: Encoding
    word_pieces_P2: np.ndarray  # as in EncodedItem


def _encode_windows(
    text: str,
    starts_W: np.ndarray,
    ends_W: np.ndarray,
    encode: Callable[[str], Encoding],
    *,
    max_length: int | None,
    paired_texts: tuple[str, ...] = (),
) -> EncodedItem:
    """Encode every word of a text in the window in which it has the most context."""
    stride = (max_length or 0) // STRIDES_PER_WINDOW
    windows = _split_windows(text, starts_W, ends_W, encode, stride=stride)
    best_W = _choose_max_context_windows(windows, len(starts_W))
    encodings = []
    word_pieces = []
    texts = []
    for number in np.unique(best_W):
        window = windows[number]
        encodings.append(window.encoding)
        is_best_P = best_W[window.word_pieces_P2[:, 1]] == number
        word_pieces.append(window.word_pieces_P2[is_best_P])
        window_text = text[starts_W[window.start] : ends_W[window.end - 1]]
        texts.append((*paired_texts, window_text))
    if len(encodings) > 1:
        encodings = [dataclasses.replace(encoding, truncated=True) for encoding in encodings]
    return EncodedItem(
        encodings[0],
        tuple(word_pieces),
        num_answers=len(starts_W),
        other_encodings=tuple(encodings[1:]),
        texts=tuple(texts),
    )


def _split_windows(
    text: str,
    starts_W: np.ndarray,
    ends_W: np.ndarray,
    encode: Callable[[str], Encoding],
    *,
    stride: int,
) -> list[_Window]:
    """Split the words of a text into overlapping windows, each as long as the model can read.

    A window begins `stride` pieces after the one before, at least one word further, and never
    beyond its end (run_squad.py: 128 of 384). A word that is too long for a window is cut.
    """
    windows: list[_Window] = []
    start = 0
    while True:
        end, encoding = _fit_window(text, starts_W, ends_W, start, encode)
        pieces_P2 = align_pieces_to_words(
            encoding, starts_W[start:end] - starts_W[start], ends_W[start:end] - starts_W[start]
        )
        if encoding.token_type_ids is not None:
            pieces_P2 = pieces_P2[encoding.token_type_ids[pieces_P2[:, 0]] == 1]
        windows.append(_Window(start, end, encoding, pieces_P2 + np.array((0, start))))
        if end == len(starts_W):
            return windows
        pieces_per_word = np.bincount(pieces_P2[:, 1], minlength=end - start)
        num_words = int(np.searchsorted(pieces_per_word.cumsum(), stride, side="right"))
        start += max(1, num_words)


def _fit_window(
    text: str,
    starts_W: np.ndarray,
    ends_W: np.ndarray,
    start: int,
    encode: Callable[[str], Encoding],
) -> tuple[int, Encoding]:
    """Return the end of the words from `start` on that fit, and their encoding.

    At the end of a text a word may have other pieces, so this takes several tries.
    """
    end = len(starts_W)
    encoding = encode(text[starts_W[start] : ends_W[-1]])
    while encoding.truncated and end > start + 1:
        last_character = starts_W[start] + _context_offsets(encoding).max(initial=0)
        num_complete = np.searchsorted(ends_W, last_character, side="right")
        end = int(num_complete.clip(start + 1, end - 1))
        encoding = encode(text[starts_W[start] : ends_W[end - 1]])
    return end, encoding


def _choose_max_context_windows(windows: Sequence[_Window], num_words: int) -> np.ndarray:
    """Return (W,) the window in which each word has the most context; ties go to the first.

    Context is the number of words on the side that has fewer, plus a hundredth of the window's
    words (Devlin et al. 2019, released code).
    """
    starts_V1 = np.array([window.start for window in windows])[:, None]
    ends_V1 = np.array([window.end for window in windows])[:, None]
    word_W = np.arange(num_words)
    context_VW = np.minimum(word_W - starts_V1, ends_V1 - 1 - word_W)
    scores_VW = np.where(context_VW >= 0, 100 * context_VW + ends_V1 - starts_V1, -1)
    return scores_VW.argmax(0)


def _context_offsets(encoded: Encoding) -> np.ndarray:
    """Return the offsets of a single text, or those of the second of two texts."""
    if encoded.token_type_ids is None:
        return encoded.offsets
    return encoded.offsets[encoded.token_type_ids == 1]


def _token_offsets(tokens: list[str], language: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (W,) start and (W,) end offsets, in characters, of tokens joined by `join_words`."""
    lengths = np.array([len(token) for token in tokens])
    ends = np.cumsum(lengths + spaces_before_words(tokens, language))
    return ends - lengths, ends


def align_pieces_to_words(encoded: Encoding, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return (P, 2): the position of a piece and a word that it overlaps, for each overlap."""
    firsts = np.searchsorted(ends, encoded.offsets[:, 0], side="right")
    counts = (np.searchsorted(starts, encoded.offsets[:, 1], side="left") - firsts).clip(0)
    positions = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.column_stack([positions, firsts[positions] + within])
