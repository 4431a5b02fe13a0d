"""Text as GPT-1 and ULMFiT read it, with the place that every character came from, so that words are found and bytes are counted in the raw text.

GPT-1: `ftfy.fix_text`, then rules for punctuation and white space (Radford et al. 2018, section 4.1, and the code released with it). Lower case is
a key of the tokenizer there. ULMFiT: fastai's rules, by which case and repetitions become words (Howard and Ruder 2018, section 4.1). The spaCy
tokenizer that cut words after that is left out of both: it is a large dependency, and its words differ from version to version;
`lineage.text.vocabulary` cuts clitics, numbers and abbreviations by rules of its own.
"""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

Edit = tuple[int, int, str]  # characters start to end become this
Normaliser = Literal["ftfy", "fastai"]

SIGNS = re.compile("[—–―…´]")
PLAIN = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
RUN = re.compile(r"""([-~!";?+,()\\/*\[\]{}|_])\1*""")  # of one and the same mark
LINE_END, SPACES = re.compile(r"\s*\n\s*"), re.compile(r"[^\S\n]{2,}|[^\S\n ]")
WORD = re.compile(r"\S+\s*|\s+")

# fastai 2, text/core.py: what is written for what, one after another, and what its rules look for
REMAINS = (("#39;", "'"), ("amp;", "&"), ("#146;", "'"), ("nbsp;", " "), ("#36;", "$"), (r"\n", "\n"), ("quot;", "'"), ("<br />", "\n"), (r"\"", '"'),
           (" @.@ ", "."), (" @-@ ", "-"), ("...", " …"))  # fmt: skip
REFERENCE = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")  # of a character in HTML, as Python's own `html` finds them
REPEATED, REPEATED_WORD = re.compile(r"(\S)\1{2,}"), re.compile(r"(?:\s|^)(\w+)\s+((?:\1\s+)+)\1(\s|\W|$)")
ALONE, BLANKS = re.compile(r"[/#\\]"), re.compile(" {2,}")
CAPITALS, CAPITAL = re.compile(r"(?:\s|^)([A-Z]+[^a-z\s]*)(?=\s|$)"), re.compile(r"(?:\s|^)([A-Z][^A-Z\s]*)(?=\s|$)")


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

    def stripped(self) -> "Aligned":
        """Without space at either end."""
        inner = self.text.strip()
        first = self.text.find(inner)
        return self.edited([(0, first, ""), (first + len(inner), len(self.text), "")])

    def lowered(self) -> "Aligned":
        """In lower case. Of what becomes longer (one character in all of Unicode) every new character stands for the old one."""
        lower = self.text.lower()
        if len(lower) == len(self.text):
            return replace(self, text=lower)
        ends = np.cumsum([len(character.lower()) for character in self.text]).tolist()
        return self.edited((i, i + 1, lower[a:b]) for i, (a, b) in enumerate(zip([0, *ends], ends, strict=False)))

    def raw(self, spans: np.ndarray) -> np.ndarray:
        """(T, 2) spans of this text as spans of the raw one."""
        if not len(self.text):
            return spans
        firsts = self.starts[np.minimum(spans[:, 0], len(self.text) - 1)]
        return np.stack([firsts, np.where(spans[:, 1] > spans[:, 0], self.ends[np.maximum(spans[:, 1], 1) - 1], firsts)], 1)


def gpt1(text: str) -> Aligned:
    """The text as GPT-1 read it. ftfy is imported here: every tokenizer stands on this file, and a machine that only trains has it not."""
    import ftfy

    made = _unedited(text).edited(_mended(text, ftfy.fix_text(text)))
    made = made.edited((m.start(), m.end(), PLAIN[m.group()]) for m in SIGNS.finditer(made.text))
    made = made.edited((place, place, " ") for m in RUN.finditer(made.text) for place in m.span())
    made = made.edited((m.start(), m.end(), " \n ") for m in LINE_END.finditer(made.text))
    return made.edited((m.start(), m.end(), " ") for m in SPACES.finditer(made.text)).stripped()


def fastai(text: str) -> Aligned:
    """The text by fastai's rules: THE Cat!!! is xxup the xxmaj cat xxrep 3 !

    What tells of case stands for the word's first character, what tells of a repetition for all that is repeated: pieces of the word that they are.
    Case is lost where its rules pass by: in a word behind a quote or a bracket, and in one of small and capital letters. Of the rules two are not
    here: <unk> is no unknown word, since raw text has none, and no xxbos stands at the beginning, where <S> stands.
    """
    made = _unedited(text)
    for old, new in REMAINS:
        made = made.edited((m.start(), m.end(), new) for m in re.finditer(re.escape(old), made.text))
    made = made.edited((m.start(), m.end(), html.unescape(m.group())) for m in REFERENCE.finditer(made.text))
    made = made.edited((m.start(), m.end(), f" xxrep {len(m[0])} {m[1]} ") for m in REPEATED.finditer(made.text))
    made = made.edited(edit for m in REPEATED_WORD.finditer(made.text) for edit in _repeated_word(m))
    made = made.edited((place, place, " ") for m in ALONE.finditer(made.text) for place in m.span())
    made = made.edited((m.start(), m.end(), " ") for m in BLANKS.finditer(made.text))
    told = {m.start(1): "xxmaj" * (len(m[1]) > 1) for m in CAPITAL.finditer(made.text)}
    told |= {m.start(1): "xxup" * (len(m[1]) > 1) for m in CAPITALS.finditer(made.text)}
    return made.edited((place, place + 1, f"{told[place]} {made.text[place]}") for place in sorted(told) if told[place]).lowered().stripped()


def _repeated_word(found: re.Match[str]) -> Iterator[Edit]:
    yield found.start(), found.start(1), " "
    yield found.start(1), found.start(3), f"xxwrep {len(found[2].split()) + 2} {found[1]} "


NORMALISERS: dict[Normaliser, Callable[[str], Aligned]] = {"ftfy": gpt1, "fastai": fastai}


def _unedited(text: str) -> Aligned:
    places = np.arange(len(text))
    return Aligned(text, places, places + 1)


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
