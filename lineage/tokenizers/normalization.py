"""Normalize text as GPT-1 and ULMFiT did, and keep track of where every character came from.

GPT-1: `ftfy.fix_text`, then rules for punctuation and white space (Radford et al. 2018, section
4.1, and the released code). ULMFiT: fastai's rules, which turn case and repetitions into words
(Howard and Ruder 2018, section 4.1). Both then split words with spaCy's tokenizer, which is left
out: `lineage.tokenizers.train` has rules of its own.
"""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

import numpy as np

NormalizerName = Literal["ftfy", "fastai"]

TYPOGRAPHIC_SIGN = re.compile("[—–―…´]")
ASCII_EQUIVALENTS = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
PUNCTUATION_RUN = re.compile(r"""([-~!";?+,()\\/*\[\]{}|_])\1*""")  # of the same sign
LINE_END = re.compile(r"\s*\n\s*")
IRREGULAR_SPACES = re.compile(r"[^\S\n]{2,}|[^\S\n ]")
WORD_WITH_SPACE = re.compile(r"\S+\s*|\s+")

# Replacements of fastai 2, text/core.py, in order.
HTML_REMNANTS = (
    ("#39;", "'"),
    ("amp;", "&"),
    ("#146;", "'"),
    ("nbsp;", " "),
    ("#36;", "$"),
    (r"\n", "\n"),
    ("quot;", "'"),
    ("<br />", "\n"),
    (r"\"", '"'),
    (" @.@ ", "."),
    (" @-@ ", "-"),
    ("...", " …"),
)
# Character references in HTML, as Python's `html` finds them.
CHARACTER_REFERENCE = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")
REPEATED_CHARACTER = re.compile(r"(\S)\1{2,}")
REPEATED_WORD = re.compile(r"(?:\s|^)(\w+)\s+((?:\1\s+)+)\1(\s|\W|$)")
SPACED_SYMBOL = re.compile(r"[/#\\]")
MULTIPLE_SPACES = re.compile(" {2,}")
ALL_CAPS_WORD = re.compile(r"(?:\s|^)([A-Z]+[^a-z\s]*)(?=\s|$)")
CAPITALIZED_WORD = re.compile(r"(?:\s|^)([A-Z][^A-Z\s]*)(?=\s|$)")


class Edit(NamedTuple):
    """Replace the characters from start to end."""

    start: int
    end: int
    replacement: str


@dataclass(frozen=True)
class AlignedText:
    """A text made from a raw one, with the raw span of every character.

    Character i stands for the raw characters `starts[i]` to `ends[i]`; an inserted character has an
    empty span. `starts` never decreases.
    """

    text: str
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def from_raw(cls, text: str) -> "AlignedText":
        places = np.arange(len(text))
        return cls(text, places, places + 1)

    def apply_edits(self, edits: Iterable[Edit]) -> "AlignedText":
        """Apply edits that are in order and do not overlap."""
        edits = [e for e in edits if self.text[e.start : e.end] != e.replacement]
        if not edits:
            return self
        pieces: list[str] = []
        position = 0
        for edit in edits:
            pieces += [self.text[position : edit.start], edit.replacement]
            position = edit.end
        pieces.append(self.text[position:])

        edit_starts = np.array([edit.start for edit in edits])
        edit_ends = np.array([edit.end for edit in edits])
        new_lengths = [len(edit.replacement) for edit in edits]
        # The raw span of each edit.
        text_end = self.ends[-1:] if len(self.ends) else np.zeros(1, np.int64)
        raw_starts = np.append(self.starts, text_end)[edit_starts]
        raw_ends = np.append(text_end, self.ends)[edit_ends]
        raw_ends = np.where(edit_ends > edit_starts, raw_ends, raw_starts)
        # Drop the replaced characters and insert the new ones.
        opened = np.bincount(edit_starts, minlength=len(self.text) + 1)
        closed = np.bincount(edit_ends, minlength=len(self.text) + 1)
        is_kept = np.cumsum(opened - closed)[:-1] == 0
        num_kept_before = np.append(0, np.cumsum(is_kept))
        places = np.repeat(num_kept_before[edit_starts], new_lengths)
        return AlignedText(
            "".join(pieces),
            np.insert(self.starts[is_kept], places, np.repeat(raw_starts, new_lengths)),
            np.insert(self.ends[is_kept], places, np.repeat(raw_ends, new_lengths)),
        )

    def substitute(
        self, pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str]
    ) -> "AlignedText":
        """Replace every match of a pattern by a literal text or by the result of a function."""
        edits = []
        for match in pattern.finditer(self.text):
            new = replacement if isinstance(replacement, str) else replacement(match)
            edits.append(Edit(match.start(), match.end(), new))
        return self.apply_edits(edits)

    def put_spaces_around(self, pattern: re.Pattern[str]) -> "AlignedText":
        places = [place for match in pattern.finditer(self.text) for place in match.span()]
        return self.apply_edits([Edit(place, place, " ") for place in places])

    def strip(self) -> "AlignedText":
        inner = self.text.strip()
        start = self.text.find(inner)
        end = start + len(inner)
        return self.apply_edits([Edit(0, start, ""), Edit(end, len(self.text), "")])

    def to_lowercase(self) -> "AlignedText":
        """Convert to lower case."""
        lower = self.text.lower()
        if len(lower) == len(self.text):
            return replace(self, text=lower)
        edits = []
        start = 0
        for place, character in enumerate(self.text):
            end = start + len(character.lower())
            edits.append(Edit(place, place + 1, lower[start:end]))
            start = end
        return self.apply_edits(edits)

    def to_raw_offsets(self, offsets: np.ndarray) -> np.ndarray:
        """Convert (T, 2) spans of this text to spans of the raw text."""
        if not self.text:
            return offsets
        starts = offsets[:, 0]
        ends = offsets[:, 1]
        raw_starts = self.starts[np.minimum(starts, len(self.text) - 1)]
        raw_ends = self.ends[np.maximum(ends, 1) - 1]
        return np.stack([raw_starts, np.where(ends > starts, raw_ends, raw_starts)], 1)


def normalize_gpt1(text: str) -> AlignedText:
    """Normalize a text as GPT-1 did."""
    import ftfy

    aligned = AlignedText.from_raw(text)
    aligned = aligned.apply_edits(_ftfy_edits(text, ftfy.fix_text(text)))
    aligned = aligned.substitute(TYPOGRAPHIC_SIGN, lambda match: ASCII_EQUIVALENTS[match.group()])
    aligned = aligned.put_spaces_around(PUNCTUATION_RUN)
    aligned = aligned.substitute(LINE_END, " \n ")
    aligned = aligned.substitute(IRREGULAR_SPACES, " ")
    return aligned.strip()


def normalize_fastai(text: str) -> AlignedText:
    """Apply fastai's rules: "THE Cat!!!" becomes "xxup the xxmaj cat xxrep 3 !".

    A case token stands for the word's first character, a repetition token for all that is repeated.
    Two rules are left out: <unk> has no token for unknown words, and no xxbos begins a text: <S>
    does.
    """
    aligned = AlignedText.from_raw(text)
    for old, new in HTML_REMNANTS:
        aligned = aligned.substitute(re.compile(re.escape(old)), new)
    aligned = aligned.substitute(CHARACTER_REFERENCE, lambda match: html.unescape(match.group()))
    aligned = aligned.substitute(
        REPEATED_CHARACTER, lambda match: f" xxrep {len(match[0])} {match[1]} "
    )
    repeated_words = REPEATED_WORD.finditer(aligned.text)
    aligned = aligned.apply_edits(
        edit for match in repeated_words for edit in _repeated_word_edits(match)
    )
    aligned = aligned.put_spaces_around(SPACED_SYMBOL)
    aligned = aligned.substitute(MULTIPLE_SPACES, " ")
    aligned = aligned.apply_edits(_case_edits(aligned.text))
    return aligned.to_lowercase().strip()


def _repeated_word_edits(match: re.Match[str]) -> Iterator[Edit]:
    count = len(match[2].split()) + 2
    yield Edit(match.start(), match.start(1), " ")
    yield Edit(match.start(1), match.start(3), f"xxwrep {count} {match[1]} ")


def _case_edits(text: str) -> list[Edit]:
    """Put a case token before capitalized words; a single letter gets none."""
    case_tokens: dict[int, str] = {}
    for pattern, token in ((CAPITALIZED_WORD, "xxmaj"), (ALL_CAPS_WORD, "xxup")):
        for match in pattern.finditer(text):
            case_tokens[match.start(1)] = token if len(match[1]) > 1 else ""
    return [
        Edit(place, place + 1, f"{token} {text[place]}")
        for place, token in sorted(case_tokens.items())
        if token
    ]


NORMALIZERS: dict[NormalizerName, Callable[[str], AlignedText]] = {
    "ftfy": normalize_gpt1,
    "fastai": normalize_fastai,
}


def _ftfy_edits(raw: str, fixed: str) -> Iterator[Edit]:
    """Find the changes of ftfy, word by word and within words."""
    if raw == fixed:
        return
    old_words = WORD_WITH_SPACE.findall(raw)
    new_words = WORD_WITH_SPACE.findall(fixed)
    word_starts = [0]
    for word in old_words:
        word_starts.append(word_starts[-1] + len(word))
    for old_start, old_end, new_start, new_end in _changed_spans(old_words, new_words):
        if old_end - old_start != new_end - new_start:
            replacement = "".join(new_words[new_start:new_end])
            yield Edit(word_starts[old_start], word_starts[old_end], replacement)
            continue
        for word_start, old, new in zip(
            word_starts[old_start:old_end],
            old_words[old_start:old_end],
            new_words[new_start:new_end],
            strict=True,
        ):
            if old != new:
                for start, end, replacement in _character_edits(old, new):
                    yield Edit(word_start + start, word_start + end, replacement)


def _changed_spans(
    old_words: list[str], new_words: list[str]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the spans of words that may differ, in the old and in the new words."""
    if len(old_words) == len(new_words):
        yield 0, len(old_words), 0, len(new_words)
        return
    for tag, *span in SequenceMatcher(None, old_words, new_words).get_opcodes():
        if tag != "equal":
            old_start, old_end, new_start, new_end = span
            yield old_start, old_end, new_start, new_end


def _character_edits(old: str, new: str) -> Iterator[Edit]:
    """Find the edits of one word.

    Deleted characters belong to the character before them (&amp; becomes &).
    """
    if len(old) == len(new):
        for place, (a, b) in enumerate(zip(old, new, strict=True)):
            if a != b:
                yield Edit(place, place + 1, b)
        return
    opcodes = SequenceMatcher(None, old, new).get_opcodes()
    for tag, old_start, old_end, new_start, new_end in opcodes:
        if tag != "equal":
            back = int(tag == "delete" and old_start > 0)
            yield Edit(old_start - back, old_end, new[new_start - back : new_end])
