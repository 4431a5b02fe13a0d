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


def encode_pairs(reader: Reader, firsts: Sequence[str], seconds: Sequence[str], *, limit: int | None = None) -> list[Encoded]:
    """Each pair as one input of at most `limit` positions, marks included, with `segments`: 0 for the first text and its marks, 1 for the second.

    Where both do not fit, the longer one is cut at its end until they do. Spans are of the text that a position belongs to.
    """
    both = zip(reader.encode_many(firsts), reader.encode_many(seconds), strict=True)
    if reader.direction == "backward":  # joined as it is written, and read from the end of the second text
        return [_joined(reader, first.turned(), second.turned(), limit).turned() for first, second in both]
    return [_joined(reader, first, second, limit) for first, second in both]


def _joined(reader: Reader, first: Encoded, second: Encoded, limit: int | None) -> Encoded:
    frame, words = reader.frame, reader.unit == "word"
    last, marks = 1 if words else len(frame.last), frame.round_one + len(frame.between)
    long = len(first.ids) + len(second.ids) - 2 * frame.round_one  # pieces without their marks, or words with theirs
    if cut := limit is not None and long + marks > limit:
        assert limit is not None
        lengths = fitting(len(first.ids) - frame.round_one, len(second.ids) - frame.round_one, most=limit - marks)
        first, second = (_shortened(text, length + frame.round_one, last=last) for text, length in zip((first, second), lengths, strict=True))
    if not words:
        kept = len(first.ids) - len(frame.last)
        between = np.zeros((len(frame.between), 2), np.int64)
        first = replace(
            first, ids=np.append(first.ids[:kept], np.array(frame.between, np.int64)), spans=np.concatenate([first.spans[:kept], between])
        )
        second = replace(second, ids=second.ids[len(frame.first) :], spans=second.spans[len(frame.first) :])
    return Encoded(
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.spans, second.spans]),
        (*first.words, *second.words),
        cut,
        segments=np.repeat([0, 1], [len(first.ids), len(second.ids)]),
    )


def _shortened(text: Encoded, length: int, *, last: int) -> Encoded:
    """The first positions of a text, its `last` marks kept."""
    kept = np.append(np.arange(length - last), np.arange(len(text.ids) - last, len(text.ids)))
    return Encoded(text.ids[kept], text.spans[kept], tuple(text.words[i] for i in kept) if text.words else ())
