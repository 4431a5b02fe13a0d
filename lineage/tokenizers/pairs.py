"""Two texts as one input, as each unit of tokenizer joins them (Radford et al. 2018, section 3.3; Devlin et al. 2019, section 3.2).

- wordpiece: [CLS] a [SEP] b [SEP], with segments.
- bpe: begin, a, delimiter, b, extract. BPE of bytes has no mark of its own for it: the begin mark stands between, which pretraining has read
  between documents. In GPT-1 begin, delimiter and extract are all new in fine-tuning.
- word: the sentences of a, then those of b; every sentence has its marks, and no other mark says where b begins.
- own: as the public checkpoint's tokenizer joins them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lineage.data.language import truncate_pair_lengths
from lineage.tokenizers.tokenizer import Encoding, Tokenizer


def encode_pairs(
    tokenizer: Tokenizer,
    firsts: Sequence[str],
    seconds: Sequence[str],
    *,
    max_length: int | None = None,
    question_lengths: Sequence[int] | None = None,
) -> list[Encoding]:
    """Each pair as one input of at most `limit` positions, marks included, with `segments`: 0 for the first text and its marks, 1 for the second.

    Where both do not fit, the longer one is cut until they do: at its end, or, of a first text, before its last `asked` characters, a question, which
    stay as long as they fit. Spans are of the text that a position belongs to.
    """
    starts = [
        len(text) - own
        for text, own in zip(firsts, question_lengths or [0] * len(firsts), strict=True)
    ]
    both = zip(tokenizer.encode_batch(firsts), tokenizer.encode_batch(seconds), starts, strict=True)
    if (
        tokenizer.direction == "backward"
    ):  # joined as it is written, and read from the end of the second text
        return [
            _join_pair(tokenizer, first.reverse(), second.reverse(), max_length, start).reverse()
            for first, second, start in both
        ]
    return [
        _join_pair(tokenizer, first, second, max_length, start) for first, second, start in both
    ]


def _join_pair(
    tokenizer: Tokenizer,
    first: Encoding,
    second: Encoding,
    max_length: int | None,
    question_start: int,
) -> Encoding:
    """Both as one; `start`: the character of the first text where its question begins, or its end."""
    template, words = tokenizer.special_token_template, tokenizer.tokenizer_type == "word"
    num_suffix_tokens, num_special_tokens = (
        1 if words else len(template.suffix),
        template.num_special_tokens + len(template.separator),
    )
    long = (
        len(first.ids) + len(second.ids) - 2 * template.num_special_tokens
    )  # pieces without their marks, or words with theirs
    if truncated := max_length is not None and long + num_special_tokens > max_length:
        assert max_length is not None
        lengths = truncate_pair_lengths(
            len(first.ids) - template.num_special_tokens,
            len(second.ids) - template.num_special_tokens,
            max_length=max_length - num_special_tokens,
        )
        kept = (_question_length(first, question_start, num_suffix_tokens=num_suffix_tokens), 0)
        first, second = (
            _truncate(
                text,
                length + template.num_special_tokens,
                num_suffix_tokens=num_suffix_tokens,
                question_length=asked,
            )
            for text, length, asked in zip((first, second), lengths, kept, strict=True)
        )
    if not words:
        ended = len(first.ids) - len(template.suffix)
        between = np.zeros((len(template.separator), 2), np.int64)
        first = replace(
            first,
            ids=np.append(first.ids[:ended], np.array(template.separator, np.int64)),
            offsets=np.concatenate([first.offsets[:ended], between]),
        )
        second = replace(
            second,
            ids=second.ids[len(template.prefix) :],
            offsets=second.offsets[len(template.prefix) :],
        )
    return Encoding(
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.offsets, second.offsets]),
        (*first.words, *second.words),
        truncated,
        token_type_ids=np.repeat([0, 1], [len(first.ids), len(second.ids)]),
    )


def _question_length(text: Encoding, start: int, *, num_suffix_tokens: int) -> int:
    """How many positions of a text, but for its `last` marks, are what is asked from the character `start` on, and the marks of a sentence before."""
    there = np.flatnonzero(text.offsets[:, 1] > start)
    if not len(there):
        return 0
    before = np.flatnonzero(text.offsets[: there[0], 1] > 0)
    return len(text.ids) - num_suffix_tokens - int(before[-1] + 1 if len(before) else there[0])


def _truncate(
    text: Encoding, length: int, *, num_suffix_tokens: int, question_length: int
) -> Encoding:
    """The first positions of a text and its last `asked` ones, as many as fit, and its marks: those before its first letter, and the `last` ones."""
    end, room, marks = (
        len(text.ids) - num_suffix_tokens,
        length - num_suffix_tokens,
        int((text.offsets[:, 1] > 0).argmax()),
    )
    before = max(room - question_length, marks) if question_length else room
    kept = np.concatenate(
        [
            np.arange(before),
            np.arange(end - question_length, end)[: max(room - before, 0)],
            np.arange(end, len(text.ids)),
        ]
    )
    return Encoding(
        text.ids[kept], text.offsets[kept], tuple(text.words[i] for i in kept) if text.words else ()
    )
