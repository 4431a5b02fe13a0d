"""What a clean text, a sentence and a word are. `language` decides; a newline ends a sentence in every language.

In Chinese and Japanese a word is a character (runs of Latin letters or digits stay whole, so that English among them can be read too);
elsewhere it is a run of letters, marks and digits, or one punctuation character, and English clitics stand apart (do n't, it 's), as in the
field's data sets.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise

from lineage.errors import WITHOUT_SPACES

SPACELESS = ("zh", "ja")
CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD_CATEGORIES = frozenset(["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl"])  # of Unicode
RARE = "\U00010000-\U0001cfff\U0001d400-\U0001efff"  # scripts; letters of mathematics
CHARACTER = re.compile(f"[{CJK}]")
RUN = re.compile(rf"[^\W{CJK}]")  # a character that is of one word with those beside it
# Variation selectors, the fillers of Hangul and the blank of Braille are letters, marks or symbols to Unicode, and are drawn as nothing.
UNSEEN = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0" + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))))

LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Controls, lone surrogates (JSON can hold them, UTF-8 cannot), the byte order mark, and what says where a word may or may not be parted at a line's
# end (soft hyphens, word joiners), or in which of two ways a sign is drawn (variation selectors, marks to Unicode: one after a heart would be the
# first letter of the word behind it); the tab is turned into a space before.
CONTROL_CHARACTERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u2060\ud800-\udfff\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]")
GEORGIAN = re.compile("[\u10d0-\u10ff]")  # small letters to Unicode, whose capitals begin no sentence
JOINERS = "\u200c\u200d"  # stand within words of Persian and of scripts of India, and say how letters are drawn
LONGEST_RUN = 15  # of their letters, on average, between two spaces: with more of them words have not been parted

SENTENCE_END = re.compile(r"""\n|[.!?…।؟۔]+(?:[^\S\n]?["'”’)\]»])*(?=\s)""")
# What the first half finds ends a sentence for sure; a stop before a space is that of Latin text, and may be an abbreviation's.
SPACELESS_END = re.compile(r"""\n|[。！？!?…]+["'”’」』）》]*|\.+(?:["'”’)\]»])*(?=\s)""")
ABBREVIATIONS = re.compile(r"mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|no|vol|fig|ca|approx|inc|ltd|co|corp|gen|col|sgt|capt|lt|rev|hon|pp")


def lowered(text: str) -> str:
    """Letter by letter, as `tokenizers` does it: str.lower looks at what stands beside a capital sigma, and would write ΛΟΓΟΣ in two ways."""
    return "".join(map(str.lower, text))


def normalise(text: str) -> str:
    """NFC, line ends as newlines, tabs as spaces, control characters, soft hyphens and variation selectors out, no space at either end."""
    text = LINE_ENDS.sub("\n", unicodedata.normalize("NFC", text)).replace("\t", " ")
    return CONTROL_CHARACTERS.sub("", text).strip()


def blank(text: str) -> bool:
    """Whether there is nothing to see: spaces, or what is drawn as nothing (zero-width characters, soft hyphens, marks of direction, fillers)."""
    return all(c.isspace() or c in UNSEEN or unicodedata.category(c) in ("Cf", "Cc") for c in text)


def sentence_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Where each sentence starts and ends, in characters; the space between sentences belongs to none."""
    alone, capitals = spaceless(language), text != text.lower()
    english, ends = alone or base(language) == "en", SPACELESS_END if alone else SENTENCE_END  # Latin text in Chinese is taken for English
    sure = ("\n",) if not alone else tuple("\n。！？!?…")
    cuts = [m.end() for m in ends.finditer(text) if m.group().startswith(sure) or _ends(text, m, english=english, capitals=capitals)]
    spans = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        body = text[start:end]
        if stripped := body.strip():
            first = start + len(body) - len(body.lstrip())
            spans.append((first, first + len(stripped)))
    return spans


def words(text: str, language: str) -> list[str]:
    """The words of a text, in order, punctuation included."""
    return _word(base(language)).findall(text)


def word_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Where each of the `words` starts and ends, in characters."""
    return [match.span() for match in _word(base(language)).finditer(text)]


def first_words(text: str, count: int, language: str) -> str:
    """The text up to the end of its `count`-th word; the text itself where it has no more words than that."""
    if len(text) <= count:
        return text
    for number, match in enumerate(_word(base(language)).finditer(text), 1):
        if number == count:
            rest = _word(base(language)).search(text, match.end())
            return text[: match.end()] if rest else text
    return text


def fitting(first: int, second: int, *, most: int) -> tuple[int, int]:
    """How much of two texts is kept where both together may have `most`: the longer one is cut, at equal length the second (as in BERT)."""
    if first + second <= most:
        return first, second
    if first > second:
        return most - min(second, most // 2), min(second, most // 2)
    return min(first, most - most // 2), most - min(first, most - most // 2)


def join(tokens: Sequence[str], language: str) -> str:
    """Words as running text: with spaces between, or without where the language has none."""
    return "".join(" " * gap + token for gap, token in zip(gaps(tokens, language), tokens, strict=True))


def gaps(tokens: Sequence[str], language: str) -> list[int]:
    """How many spaces, 0 or 1, stand before each word in running text.

    In a language without spaces one stands between two runs of letters or digits, which would be one word without it (New York). Two single
    characters have none: a text that was given in characters (2, 0, 2, 6) has lost where its spaces were, and mostly had none there.
    """
    if not spaceless(language):
        return [0, *[1] * (len(tokens) - 1)][: len(tokens)]
    apart = (len(a) + len(b) > 2 and RUN.match(a[-1:]) is not None and RUN.match(b) is not None for a, b in pairwise(tokens))
    return [0, *map(int, apart)][: len(tokens)]


def byte_count(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text.encode())


def base(language: str) -> str:
    """`zh` of zh, zh-TW or zh_Hant."""
    return re.split("[-_]", language, maxsplit=1)[0].lower()


def spaceless(language: str) -> bool:
    """Whether a word is a character in this language."""
    return base(language) in SPACELESS


def in_other_script(texts: Iterable[str], language: str) -> bool:
    """Whether texts are Chinese or Japanese for the most part where the language has spaces: a clause of them would be one word."""
    if spaceless(language):
        return False
    counts = [(len(CHARACTER.findall(text)), sum(map(len, text.split()))) for text in texts]
    return 2 * sum(found for found, _ in counts) > sum(size for _, size in counts)


def misread(texts: Iterable[str], language: str) -> bool:
    """Whether texts in a language without spaces are, for the most part, letters such as Ñ and ¡, as which LATIN1 reads the bytes of another code."""
    letters = "".join(texts)
    strange = [letter for letter in letters if not letter.isascii()]
    latin = sum(letter <= "\xff" for letter in strange)
    return spaceless(language) and 2 * latin > len(strange) and 20 * latin > len(letters)


def unparted(texts: Iterable[str]) -> bool:
    """Whether texts are, for the most part, of a script that has no spaces between words, in which none have been put between them either."""
    runs = [run for text in texts for run in text.split()]
    own = [run for run in runs if WITHOUT_SPACES.search(run)]
    return 2 * sum(map(len, own)) > sum(map(len, runs)) and sum(map(len, own)) > LONGEST_RUN * len(own)


def word_pattern(language: str) -> str:
    """The regular expression that `words` finds words with, for tokenizers that cut text the same way."""
    return _word(base(language)).pattern


@functools.cache
def _word(language: str) -> re.Pattern[str]:
    number = r"\d+(?:[.,]\d+)+"
    if language in SPACELESS:
        return re.compile(rf"[{CJK}]|{number}|[{_letters(cjk=False)}]+|[^{_letters(cjk=True)}\s]")
    run, other = rf"[{_letters(cjk=True)}]+", rf"[^{_letters(cjk=True)}\s]"
    if language != "en":
        return re.compile(rf"{number}|{run}(?:['’]{run})*|{other}")
    no, clitic = r"[nN]['’][tT]\b", r"['’](?:[sSmMdD]|[rR][eE]|[vV][eE]|[lL][lL])\b"
    return re.compile(rf"{number}|{no}|(?!{run}{no}){run}|{run}?(?={no})|{clitic}|{other}")


@functools.cache
def _letters(*, cjk: bool) -> str:
    """The characters of words, for the inside of a class: letters, marks (vowel signs of Devanagari, Arabic, Thai ...), digits and the low line.

    Spelt out, since engines differ on what \\w is: Python counts the two of km² and no vowel sign, that of `tokenizers` the other way round. Beyond
    the first 65,536 whole blocks of letters: a class of many ranges is slow.
    """
    codes = [code for code in range(0x10000) if unicodedata.category(chr(code)) in WORD_CATEGORIES or chr(code) == "_"]
    codes = [code for code in codes if cjk or not CHARACTER.match(chr(code))]
    ends = [0, *(place for place in range(1, len(codes)) if codes[place] != codes[place - 1] + 1), len(codes)]
    runs = "".join(f"{chr(codes[start])}-{chr(codes[end - 1])}" for start, end in pairwise(ends))
    return runs + JOINERS + RARE + ("\U00020000-\U0003ffff" if cjk else "")


def _ends(text: str, match: re.Match[str], *, english: bool, capitals: bool) -> bool:
    """Whether a stop between spaced words ends a sentence: not after an abbreviation, and not before a small letter where the text has capitals."""
    before = text[max(0, match.start() - 12) : match.start()]
    if before[-1:].isspace():
        return True  # "a b . c d": tokenised text, where the stop stands alone
    following = text[match.end() : match.end() + 3].lstrip()[:1]
    small = following.islower() and not GEORGIAN.match(following)
    return not (capitals and small) and not (match.group() == "." and _abbreviated(before, english=english))


def _abbreviated(before: str, *, english: bool) -> bool:
    word = re.split(f"[{CJK}]", before.split()[-1])[-1].lstrip("(\"'“‘[") if before.strip() else ""
    return (len(word) == 1 and word.isalpha()) or (english and ABBREVIATIONS.fullmatch(word.lower()) is not None)


def cell_text(value: object) -> str:
    """One cell of a user's table as text; nothing where it is missing. Raises TypeError where it is no single value."""
    if value is None or value != value:
        return ""
    if isinstance(value, list | tuple | dict | set | bytes):
        raise TypeError(f"holds {'raw bytes' if isinstance(value, bytes) else f'a {type(value).__name__}'}, not text")
    return str(value)
