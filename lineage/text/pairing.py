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

from lineage.text.language import fitting
from lineage.text.tokenization import Encoded, Reader


def encode_pairs(
    reader: Reader, firsts: Sequence[str], seconds: Sequence[str], *, limit: int | None = None, asked: Sequence[int] | None = None
) -> list[Encoded]:
    """Each pair as one input of at most `limit` positions, marks included, with `segments`: 0 for the first text and its marks, 1 for the second.

    Where both do not fit, the longer one is cut until they do: at its end, or, of a first text, before its last `asked` characters, a question, which
    stay as long as they fit. Spans are of the text that a position belongs to.
    """
    starts = [len(text) - own for text, own in zip(firsts, asked or [0] * len(firsts), strict=True)]
    both = zip(reader.encode_many(firsts), reader.encode_many(seconds), starts, strict=True)
    if reader.direction == "backward":  # joined as it is written, and read from the end of the second text
        return [_joined(reader, first.turned(), second.turned(), limit, start).turned() for first, second, start in both]
    return [_joined(reader, first, second, limit, start) for first, second, start in both]


def _joined(reader: Reader, first: Encoded, second: Encoded, limit: int | None, start: int) -> Encoded:
    """Both as one; `start`: the character of the first text where its question begins, or its end."""
    frame, words = reader.frame, reader.unit == "word"
    last, marks = 1 if words else len(frame.last), frame.round_one + len(frame.between)
    long = len(first.ids) + len(second.ids) - 2 * frame.round_one  # pieces without their marks, or words with theirs
    if cut := limit is not None and long + marks > limit:
        assert limit is not None
        lengths = fitting(len(first.ids) - frame.round_one, len(second.ids) - frame.round_one, most=limit - marks)
        kept = (_question(first, start, last=last), 0)
        first, second = (_shortened(text, length + frame.round_one, last=last, asked=asked)
                         for text, length, asked in zip((first, second), lengths, kept, strict=True))  # fmt: skip
    if not words:
        ended = len(first.ids) - len(frame.last)
        between = np.zeros((len(frame.between), 2), np.int64)
        first = replace(
            first, ids=np.append(first.ids[:ended], np.array(frame.between, np.int64)), spans=np.concatenate([first.spans[:ended], between])
        )
        second = replace(second, ids=second.ids[len(frame.first) :], spans=second.spans[len(frame.first) :])
    return Encoded(
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.spans, second.spans]),
        (*first.words, *second.words),
        cut,
        segments=np.repeat([0, 1], [len(first.ids), len(second.ids)]),
    )


def _question(text: Encoded, start: int, *, last: int) -> int:
    """How many positions of a text, but for its `last` marks, are what is asked from the character `start` on, and the marks of a sentence before."""
    there = np.flatnonzero(text.spans[:, 1] > start)
    if not len(there):
        return 0
    before = np.flatnonzero(text.spans[: there[0], 1] > 0)
    return len(text.ids) - last - int(before[-1] + 1 if len(before) else there[0])


def _shortened(text: Encoded, length: int, *, last: int, asked: int) -> Encoded:
    """The first positions of a text and its last `asked` ones, as many as fit, and its marks: those before its first letter, and the `last` ones."""
    end, room, marks = len(text.ids) - last, length - last, int((text.spans[:, 1] > 0).argmax())
    before = max(room - asked, marks) if asked else room
    kept = np.concatenate([np.arange(before), np.arange(end - asked, end)[: max(room - before, 0)], np.arange(end, len(text.ids))])
    return Encoded(text.ids[kept], text.spans[kept], tuple(text.words[i] for i in kept) if text.words else ())
