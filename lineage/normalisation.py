"""GPT-1's normalisation of text, with the place that every character came from, so that words are found and bytes are counted in the raw text.

`ftfy.fix_text`, then rules for punctuation and white space (Radford et al. 2018, section 4.1, and the code released with it). The spaCy tokenizer
that cut words after that is left out: it is a large dependency, and its words differ from version to version; `lineage.vocabulary` cuts clitics,
numbers and abbreviations by rules of its own. Lower case is a key of the tokenizer.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

Edit = tuple[int, int, str]  # characters start to end become this

SIGNS = re.compile("[—–―…´]")
PLAIN = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
RUN = re.compile(r"""([-~!";?+,()\\/*\[\]{}|_])\1*""")  # of one and the same mark
LINE_END, SPACES = re.compile(r"\s*\n\s*"), re.compile(r"[^\S\n]{2,}|[^\S\n ]")
WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True)
class Aligned:
    """A text made from another: character i of it stands for characters `starts[i]` to `ends[i]` of the raw one; what was put in has an empty span.

    `starts` never falls, so that the bytes from each piece's start to the next one's add up to the raw text.
    """

    text: str
    starts: np.ndarray
    ends: np.ndarray

    def edited(self, edits: Iterable[Edit]) -> "Aligned":
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
        lasts = np.where(where[:, 1] > where[:, 0], np.append(after, self.ends)[where[:, 1]], firsts)
        places = np.repeat(np.append(0, np.cumsum(kept))[where[:, 0]], lengths)
        starts, ends = (np.insert(own[kept], places, np.repeat(new, lengths)) for own, new in ((self.starts, firsts), (self.ends, lasts)))
        return Aligned("".join([*pieces, self.text[at:]]), starts, ends)

    def raw(self, spans: np.ndarray) -> np.ndarray:
        """(T, 2) spans of this text as spans of the raw one."""
        if not len(self.text):
            return spans
        firsts = self.starts[np.minimum(spans[:, 0], len(self.text) - 1)]
        return np.stack([firsts, np.where(spans[:, 1] > spans[:, 0], self.ends[np.maximum(spans[:, 1], 1) - 1], firsts)], 1)


def gpt1(text: str) -> Aligned:
    """The text as GPT-1 read it. ftfy is imported here: every tokenizer stands on this file, and a machine that only trains has it not."""
    import ftfy

    places = np.arange(len(text))
    made = Aligned(text, places, places + 1).edited(_mended(text, ftfy.fix_text(text)))
    made = made.edited((m.start(), m.end(), PLAIN[m.group()]) for m in SIGNS.finditer(made.text))
    made = made.edited((place, place, " ") for m in RUN.finditer(made.text) for place in m.span())
    made = made.edited((m.start(), m.end(), " \n ") for m in LINE_END.finditer(made.text))
    made = made.edited((m.start(), m.end(), " ") for m in SPACES.finditer(made.text))
    inner = made.text.strip()
    first = made.text.find(inner)
    return made.edited([(0, first, ""), (first + len(inner), len(made.text), "")])


def _mended(raw: str, mended: str) -> Iterator[Edit]:
    """What ftfy changed, word by word and within words; where it changed how many words there are, the place as a whole."""
    if raw == mended:
        return
    ours, theirs = WORD.findall(raw), WORD.findall(mended)
    firsts = np.concatenate([[0], np.cumsum([len(word) for word in ours])]).astype(int).tolist()
    for tag, a, b, c, d in SequenceMatcher(None, ours, theirs).get_opcodes() if len(ours) != len(theirs) else [("", 0, len(ours), 0, len(theirs))]:
        if tag == "equal":
            continue
        if b - a != d - c:
            yield firsts[a], firsts[b], "".join(theirs[c:d])
            continue
        for first, old, new in zip(firsts[a:b], ours[a:b], theirs[c:d], strict=True):
            if old != new:
                yield from ((first + start, first + end, put) for start, end, put in _within(old, new))


def _within(old: str, new: str) -> Iterator[Edit]:
    """One word's edits; what is only taken out belongs to the character before it (&amp; becomes &)."""
    if len(old) == len(new):
        yield from ((i, i + 1, b) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
        return
    for tag, a, b, c, d in SequenceMatcher(None, old, new).get_opcodes():
        if tag != "equal":
            back = int(tag == "delete" and a > 0)
            yield a - back, b, new[c - back : d]
