"""Two texts as one input, joined as each type of tokenizer does.

(Radford et al. 2018, section 3.3; Devlin et al. 2019, section 3.2.)

- wordpiece: [CLS] a [SEP] b [SEP], with segments.
- bpe: begin, a, delimiter, b, extract. BPE of bytes has no delimiter: the begin token stands
  between, which pretraining has read between documents. In GPT-1 begin, delimiter and extract are
  all new in fine-tuning.
- word: the sentences of a, then those of b. Every sentence has its special tokens, and no other
  token shows where b begins.
- pretrained: as the public checkpoint's tokenizer joins them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lineage.language import truncate_pair_lengths
from lineage.tokenizers.tokenizer import Encoding, Tokenizer


def encode_pairs(
    tokenizer: Tokenizer,
    firsts: Sequence[str],
    seconds: Sequence[str],
    *,
    max_length: int | None = None,
    question_lengths: Sequence[int] | None = None,
) -> list[Encoding]:
    """Encode each pair as one input of at most `max_length` tokens, special tokens included.

    `token_type_ids` are 0 for the first text and its special tokens and 1 for the second. If a pair
    is too long, the longer text is truncated: at its end, or before the question of so many
    characters with which a first text ends. Offsets refer to the text that a token belongs to.
    """
    if question_lengths is None:
        question_lengths = [0] * len(firsts)
    encodings = []
    for first_text, first, second, question_length in zip(
        firsts,
        tokenizer.encode_batch(firsts),
        tokenizer.encode_batch(seconds),
        question_lengths,
        strict=True,
    ):
        question_start = len(first_text) - question_length
        if tokenizer.direction == "backward":
            # Texts are joined as they are written, and read from the end of the second.
            joined = _join_pair(
                tokenizer, first.reverse(), second.reverse(), max_length, question_start
            ).reverse()
        else:
            joined = _join_pair(tokenizer, first, second, max_length, question_start)
        encodings.append(joined)
    return encodings


def _join_pair(
    tokenizer: Tokenizer,
    first: Encoding,
    second: Encoding,
    max_length: int | None,
    question_start: int,
) -> Encoding:
    """Join two texts; the question is the characters of the first from `question_start` on."""
    template = tokenizer.special_token_template
    is_word = tokenizer.tokenizer_type == "word"
    # For one text. It is 0 for words, whose special tokens are counted among those of the text.
    num_special = template.num_special_tokens
    num_joined_special = num_special + len(template.separator)
    first_len = len(first.ids) - num_special
    second_len = len(second.ids) - num_special
    truncated = False
    if max_length is not None and first_len + second_len + num_joined_special > max_length:
        truncated = True
        num_suffix = 1 if is_word else len(template.suffix)
        first_max, second_max = truncate_pair_lengths(
            first_len, second_len, max_length=max_length - num_joined_special
        )
        question_len = _question_length(first, question_start, num_suffix=num_suffix)
        first = _truncate(
            first, first_max + num_special, num_suffix=num_suffix, question_len=question_len
        )
        second = _truncate(second, second_max + num_special, num_suffix=num_suffix, question_len=0)
    if not is_word:
        first, second = _replace_inner_special_tokens(tokenizer, first, second)
    return Encoding(
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.offsets, second.offsets]),
        (*first.words, *second.words),
        truncated,
        token_type_ids=np.repeat([0, 1], [len(first.ids), len(second.ids)]),
    )


def _replace_inner_special_tokens(
    tokenizer: Tokenizer, first: Encoding, second: Encoding
) -> tuple[Encoding, Encoding]:
    """Replace the first text's suffix by the separator, and drop the second text's prefix."""
    template = tokenizer.special_token_template
    end = len(first.ids) - len(template.suffix)
    separator = np.array(template.separator, np.int64)
    empty_spans = np.zeros((len(separator), 2), np.int64)
    first = replace(
        first,
        ids=np.append(first.ids[:end], separator),
        offsets=np.concatenate([first.offsets[:end], empty_spans]),
    )
    start = len(template.prefix)
    second = replace(second, ids=second.ids[start:], offsets=second.offsets[start:])
    return first, second


def _question_length(text: Encoding, question_start: int, *, num_suffix: int) -> int:
    """Return how many tokens hold the question, without the suffix."""
    in_question = np.flatnonzero(text.offsets[:, 1] > question_start)
    if not len(in_question):
        return 0
    first_token = in_question[0]
    before = np.flatnonzero(text.offsets[:first_token, 1] > 0)
    if len(before):
        first_token = before[-1] + 1
    return len(text.ids) - num_suffix - int(first_token)


def _truncate(text: Encoding, max_len: int, *, num_suffix: int, question_len: int) -> Encoding:
    """Keep the first tokens, as many of the question at the end as fit, and the special tokens."""
    question_end = len(text.ids) - num_suffix
    max_tokens = max_len - num_suffix
    num_prefix = int((text.offsets[:, 1] > 0).argmax())
    num_first = max_tokens
    if question_len:
        num_first = max(max_tokens - question_len, num_prefix)
    question = np.arange(question_end - question_len, question_end)
    kept = np.concatenate(
        [
            np.arange(num_first),
            question[: max(max_tokens - num_first, 0)],
            np.arange(question_end, len(text.ids)),
        ]
    )
    words = tuple(text.words[i] for i in kept) if text.words else ()
    return Encoding(text.ids[kept], text.offsets[kept], words)
