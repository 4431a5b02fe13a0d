"""Text as GPT-1 and ULMFiT read it, with the place that every character came from, so that words are found and bytes are counted in the raw text.

GPT-1: `ftfy.fix_text`, then rules for punctuation and white space (Radford et al. 2018, section 4.1, and the code released with it). Lower case is
a key of the tokenizer there. ULMFiT: fastai's rules, by which case and repetitions become words (Howard and Ruder 2018, section 4.1). The spaCy
tokenizer that cut words after that is left out of both: it is a large dependency, and its words differ from version to version;
`lineage.tokenizers.train` cuts clitics, numbers and abbreviations by rules of its own.
"""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

Edit = tuple[int, int, str]  # characters start to end become this
NormalizerName = Literal["ftfy", "fastai"]

TYPOGRAPHIC_SIGN = re.compile("[—–―…´]")
ASCII_EQUIVALENTS = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
PUNCTUATION_RUN = re.compile(r"""([-~!";?+,()\\/*\[\]{}|_])\1*""")  # of one and the same mark
LINE_END, IRREGULAR_SPACES = re.compile(r"\s*\n\s*"), re.compile(r"[^\S\n]{2,}|[^\S\n ]")
WORD_WITH_SPACE = re.compile(r"\S+\s*|\s+")

# fastai 2, text/core.py: what is written for what, one after another, and what its rules look for
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
CHARACTER_REFERENCE = re.compile(
    r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)"
)  # of a character in HTML, as Python's own `html` finds them
REPEATED_CHARACTER, REPEATED_WORD = (
    re.compile(r"(\S)\1{2,}"),
    re.compile(r"(?:\s|^)(\w+)\s+((?:\1\s+)+)\1(\s|\W|$)"),
)
SPACED_SYMBOL, MULTIPLE_SPACES = re.compile(r"[/#\\]"), re.compile(" {2,}")
ALL_CAPS_WORD, CAPITALIZED_WORD = (
    re.compile(r"(?:\s|^)([A-Z]+[^a-z\s]*)(?=\s|$)"),
    re.compile(r"(?:\s|^)([A-Z][^A-Z\s]*)(?=\s|$)"),
)


@dataclass(frozen=True)
class AlignedText:
    """A text made from another: character i of it stands for characters `starts[i]` to `ends[i]` of the raw one; what was put in has an empty span.

    `starts` never falls, so that the bytes from each piece's start to the next one's add up to the raw text.
    """

    text: str
    starts: np.ndarray
    ends: np.ndarray

    def apply_edits(self, edits: Iterable[Edit]) -> "AlignedText":
        """The text after edits that stand in order and do not overlap; new characters stand for all of what they replace."""
        found = [edit for edit in edits if self.text[edit[0] : edit[1]] != edit[2]]
        if not found:
            return self
        pieces, at = list[str](), 0
        for start, end, new in found:
            pieces += [self.text[at:start], new]
            at = end
        where = np.array([edit[:2] for edit in found])
        lengths = [len(edit[2]) for edit in found]
        begun, ended = (np.bincount(column, minlength=len(self.text) + 1) for column in where.T)
        kept = np.cumsum(begun - ended)[:-1] == 0
        after = self.ends[-1:] if len(self.ends) else np.zeros(1, np.int64)
        firsts = np.append(self.starts, after)[where[:, 0]]
        lasts = np.where(
            where[:, 1] > where[:, 0], np.append(after, self.ends)[where[:, 1]], firsts
        )
        places = np.repeat(np.append(0, np.cumsum(kept))[where[:, 0]], lengths)
        starts, ends = (
            np.insert(own[kept], places, np.repeat(new, lengths))
            for own, new in ((self.starts, firsts), (self.ends, lasts))
        )
        return AlignedText("".join([*pieces, self.text[at:]]), starts, ends)

    def strip(self) -> "AlignedText":
        """Without space at either end."""
        inner = self.text.strip()
        first = self.text.find(inner)
        return self.apply_edits([(0, first, ""), (first + len(inner), len(self.text), "")])

    def to_lowercase(self) -> "AlignedText":
        """In lower case. Of what becomes longer (one character in all of Unicode) every new character stands for the old one."""
        lower = self.text.lower()
        if len(lower) == len(self.text):
            return replace(self, text=lower)
        ends = np.cumsum([len(character.lower()) for character in self.text]).tolist()
        return self.apply_edits(
            (i, i + 1, lower[a:b]) for i, (a, b) in enumerate(zip([0, *ends], ends, strict=False))
        )

    def to_raw_offsets(self, offsets: np.ndarray) -> np.ndarray:
        """(T, 2) spans of this text as spans of the raw one."""
        if not len(self.text):
            return offsets
        firsts = self.starts[np.minimum(offsets[:, 0], len(self.text) - 1)]
        return np.stack(
            [
                firsts,
                np.where(
                    offsets[:, 1] > offsets[:, 0],
                    self.ends[np.maximum(offsets[:, 1], 1) - 1],
                    firsts,
                ),
            ],
            1,
        )


def normalize_gpt1(text: str) -> AlignedText:
    """The text as GPT-1 read it. ftfy is imported here: every tokenizer stands on this file, and a machine that only trains has it not."""
    import ftfy

    aligned = _identity_alignment(text).apply_edits(_ftfy_edits(text, ftfy.fix_text(text)))
    aligned = aligned.apply_edits(
        (m.start(), m.end(), ASCII_EQUIVALENTS[m.group()])
        for m in TYPOGRAPHIC_SIGN.finditer(aligned.text)
    )
    aligned = aligned.apply_edits(
        (place, place, " ") for m in PUNCTUATION_RUN.finditer(aligned.text) for place in m.span()
    )
    aligned = aligned.apply_edits(
        (m.start(), m.end(), " \n ") for m in LINE_END.finditer(aligned.text)
    )
    return aligned.apply_edits(
        (m.start(), m.end(), " ") for m in IRREGULAR_SPACES.finditer(aligned.text)
    ).strip()


def normalize_fastai(text: str) -> AlignedText:
    """The text by fastai's rules: THE Cat!!! is xxup the xxmaj cat xxrep 3 !

    What tells of case stands for the word's first character, what tells of a repetition for all that is repeated: pieces of the word that they are.
    Case is lost where its rules pass by: in a word behind a quote or a bracket, and in one of small and capital letters. Of the rules two are not
    here: <unk> is no unknown word, since raw text has none, and no xxbos stands at the beginning, where <S> stands.
    """
    aligned = _identity_alignment(text)
    for old, new in HTML_REMNANTS:
        aligned = aligned.apply_edits(
            (m.start(), m.end(), new) for m in re.finditer(re.escape(old), aligned.text)
        )
    aligned = aligned.apply_edits(
        (m.start(), m.end(), html.unescape(m.group()))
        for m in CHARACTER_REFERENCE.finditer(aligned.text)
    )
    aligned = aligned.apply_edits(
        (m.start(), m.end(), f" xxrep {len(m[0])} {m[1]} ")
        for m in REPEATED_CHARACTER.finditer(aligned.text)
    )
    aligned = aligned.apply_edits(
        edit for m in REPEATED_WORD.finditer(aligned.text) for edit in _repeated_word_edits(m)
    )
    aligned = aligned.apply_edits(
        (place, place, " ") for m in SPACED_SYMBOL.finditer(aligned.text) for place in m.span()
    )
    aligned = aligned.apply_edits(
        (m.start(), m.end(), " ") for m in MULTIPLE_SPACES.finditer(aligned.text)
    )
    case_tokens = {
        m.start(1): "xxmaj" * (len(m[1]) > 1) for m in CAPITALIZED_WORD.finditer(aligned.text)
    }
    case_tokens |= {
        m.start(1): "xxup" * (len(m[1]) > 1) for m in ALL_CAPS_WORD.finditer(aligned.text)
    }
    return (
        aligned.apply_edits(
            (place, place + 1, f"{case_tokens[place]} {aligned.text[place]}")
            for place in sorted(case_tokens)
            if case_tokens[place]
        )
        .to_lowercase()
        .strip()
    )


def _repeated_word_edits(match: re.Match[str]) -> Iterator[Edit]:
    yield match.start(), match.start(1), " "
    yield match.start(1), match.start(3), f"xxwrep {len(match[2].split()) + 2} {match[1]} "


NORMALIZERS: dict[NormalizerName, Callable[[str], AlignedText]] = {
    "ftfy": normalize_gpt1,
    "fastai": normalize_fastai,
}


def _identity_alignment(text: str) -> AlignedText:
    places = np.arange(len(text))
    return AlignedText(text, places, places + 1)


def _ftfy_edits(raw: str, fixed: str) -> Iterator[Edit]:
    """What ftfy changed, word by word and within words; where it changed how many words there are, the place as a whole."""
    if raw == fixed:
        return
    ours, theirs = WORD_WITH_SPACE.findall(raw), WORD_WITH_SPACE.findall(fixed)
    firsts = np.concatenate([[0], np.cumsum([len(word) for word in ours])]).astype(int).tolist()
    for tag, a, b, c, d in (
        SequenceMatcher(None, ours, theirs).get_opcodes()
        if len(ours) != len(theirs)
        else [("", 0, len(ours), 0, len(theirs))]
    ):
        if tag == "equal":
            continue
        if b - a != d - c:
            yield firsts[a], firsts[b], "".join(theirs[c:d])
            continue
        for first, old, new in zip(firsts[a:b], ours[a:b], theirs[c:d], strict=True):
            if old != new:
                yield from (
                    (first + start, first + end, put)
                    for start, end, put in _character_edits(old, new)
                )


def _character_edits(old: str, new: str) -> Iterator[Edit]:
    """One word's edits; what is only taken out belongs to the character before it (&amp; becomes &)."""
    if len(old) == len(new):
        yield from ((i, i + 1, b) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
        return
    for tag, a, b, c, d in SequenceMatcher(None, old, new).get_opcodes():
        if tag != "equal":
            back = int(tag == "delete" and a > 0)
            yield a - back, b, new[c - back : d]
