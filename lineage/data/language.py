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

from lineage.errors import UNSPACED_SCRIPTS

SPACELESS_LANGUAGES = ("zh", "ja")
CJK_RANGES = (
    "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
WORD_CATEGORIES = frozenset(
    ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl"]
)  # of Unicode
SUPPLEMENTARY_RANGES = (
    "\U00010000-\U0001cfff\U0001d400-\U0001efff"  # scripts; letters of mathematics
)
CJK_CHARACTER = re.compile(f"[{CJK_RANGES}]")
WORD_CHARACTER = re.compile(
    rf"[^\W{CJK_RANGES}]"
)  # a character that is of one word with those beside it
# Variation selectors, the fillers of Hangul and the blank of Braille are letters, marks or symbols to Unicode, and are drawn as nothing.
INVISIBLE_CHARACTERS = frozenset(
    "\u034f\u115f\u1160\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)

LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Controls, lone surrogates (JSON can hold them, UTF-8 cannot), the byte order mark, and what says where a word may or may not be parted at a line's
# end (soft hyphens, word joiners), or in which of two ways a sign is drawn (variation selectors, marks to Unicode: one after a heart would be the
# first letter of the word behind it); the tab is turned into a space before.
CONTROL_CHARACTERS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u2060\ud800-\udfff\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]"
)
GEORGIAN_LETTER = re.compile(
    "[\u10d0-\u10ff]"
)  # small letters to Unicode, whose capitals begin no sentence
ZERO_WIDTH_JOINERS = "\u200c\u200d"  # stand within words of Persian and of scripts of India, and say how letters are drawn
MAX_MEAN_RUN_LENGTH = 15  # of their letters, on average, between two spaces: with more of them words have not been parted

SENTENCE_END = re.compile(r"""\n|[.!?…।؟۔]+(?:[^\S\n]?["'”’)\]»])*(?=\s)""")
# What the first half finds ends a sentence for sure; a stop before a space is that of Latin text, and may be an abbreviation's.
SPACELESS_SENTENCE_END = re.compile(r"""\n|[。！？!?…]+["'”’」』）》]*|\.+(?:["'”’)\]»])*(?=\s)""")
ABBREVIATIONS = re.compile(
    r"mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|no|vol|fig|ca|approx|inc|ltd|co|corp|gen|col|sgt|capt|lt|rev|hon|pp"
)


def to_lowercase(text: str) -> str:
    """Letter by letter, as `tokenizers` does it: str.lower looks at what stands beside a capital sigma, and would write ΛΟΓΟΣ in two ways."""
    return "".join(map(str.lower, text))


def normalize_text(text: str) -> str:
    """NFC, line ends as newlines, tabs as spaces, control characters, soft hyphens and variation selectors out, no space at either end."""
    text = LINE_ENDS.sub("\n", unicodedata.normalize("NFC", text)).replace("\t", " ")
    return CONTROL_CHARACTERS.sub("", text).strip()


def is_blank(text: str) -> bool:
    """Whether there is nothing to see: spaces, or what is drawn as nothing (zero-width characters, soft hyphens, marks of direction, fillers)."""
    return all(
        c.isspace() or c in INVISIBLE_CHARACTERS or unicodedata.category(c) in ("Cf", "Cc")
        for c in text
    )


def sentence_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Where each sentence starts and ends, in characters; the space between sentences belongs to none."""
    is_spaceless_language, has_capitals = is_spaceless(language), text != text.lower()
    is_english, end_pattern = (
        is_spaceless_language or base_language(language) == "en",
        SPACELESS_SENTENCE_END if is_spaceless_language else SENTENCE_END,
    )  # Latin text in Chinese is taken for English
    certain_ends = ("\n",) if not is_spaceless_language else tuple("\n。！？!?…")
    cuts = [
        m.end()
        for m in end_pattern.finditer(text)
        if m.group().startswith(certain_ends)
        or _is_sentence_end(text, m, is_english=is_english, has_capitals=has_capitals)
    ]
    spans = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        body = text[start:end]
        if stripped := body.strip():
            first = start + len(body) - len(body.lstrip())
            spans.append((first, first + len(stripped)))
    return spans


def split_words(text: str, language: str) -> list[str]:
    """The words of a text, in order, punctuation included."""
    return _compile_word_pattern(base_language(language)).findall(text)


def word_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Where each of the `words` starts and ends, in characters."""
    return [match.span() for match in _compile_word_pattern(base_language(language)).finditer(text)]


def truncate_to_words(text: str, max_words: int, language: str) -> str:
    """The text up to the end of its `count`-th word; the text itself where it has no more words than that."""
    if len(text) <= max_words:
        return text
    for number, match in enumerate(
        _compile_word_pattern(base_language(language)).finditer(text), 1
    ):
        if number == max_words:
            rest = _compile_word_pattern(base_language(language)).search(text, match.end())
            return text[: match.end()] if rest else text
    return text


def truncate_pair_lengths(
    first_length: int, second_length: int, *, max_length: int
) -> tuple[int, int]:
    """How much of two texts is kept where both together may have `most`: the longer one is cut, at equal length the second (as in BERT)."""
    if first_length + second_length <= max_length:
        return first_length, second_length
    if first_length > second_length:
        return max_length - min(second_length, max_length // 2), min(second_length, max_length // 2)
    return min(first_length, max_length - max_length // 2), max_length - min(
        first_length, max_length - max_length // 2
    )


def join_words(tokens: Sequence[str], language: str) -> str:
    """Words as running text: with spaces between, or without where the language has none."""
    return "".join(
        " " * gap + token
        for gap, token in zip(spaces_before_words(tokens, language), tokens, strict=True)
    )


def spaces_before_words(tokens: Sequence[str], language: str) -> list[int]:
    """How many spaces, 0 or 1, stand before each word in running text.

    In a language without spaces one stands between two runs of letters or digits, which would be one word without it (New York). Two single
    characters have none: a text that was given in characters (2, 0, 2, 6) has lost where its spaces were, and mostly had none there.
    """
    if not is_spaceless(language):
        return [0, *[1] * (len(tokens) - 1)][: len(tokens)]
    apart = (
        len(a) + len(b) > 2
        and WORD_CHARACTER.match(a[-1:]) is not None
        and WORD_CHARACTER.match(b) is not None
        for a, b in pairwise(tokens)
    )
    return [0, *map(int, apart)][: len(tokens)]


def byte_count(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text.encode())


def base_language(language: str) -> str:
    """`zh` of zh, zh-TW or zh_Hant."""
    return re.split("[-_]", language, maxsplit=1)[0].lower()


def is_spaceless(language: str) -> bool:
    """Whether a word is a character in this language."""
    return base_language(language) in SPACELESS_LANGUAGES


def is_mostly_cjk(texts: Iterable[str], language: str) -> bool:
    """Whether texts are Chinese or Japanese for the most part where the language has spaces: a clause of them would be one word."""
    if is_spaceless(language):
        return False
    counts = [(len(CJK_CHARACTER.findall(text)), sum(map(len, text.split()))) for text in texts]
    return 2 * sum(found for found, _ in counts) > sum(size for _, size in counts)


def is_mojibake(texts: Iterable[str], language: str) -> bool:
    """Whether texts in a language without spaces are, for the most part, letters such as Ñ and ¡, as which LATIN1 reads the bytes of another code."""
    letters = "".join(texts)
    non_ascii = [letter for letter in letters if not letter.isascii()]
    latin = sum(letter <= "\xff" for letter in non_ascii)
    return is_spaceless(language) and 2 * latin > len(non_ascii) and 20 * latin > len(letters)


def lacks_word_boundaries(texts: Iterable[str]) -> bool:
    """Whether texts are, for the most part, of a script that has no spaces between words, in which none have been put between them either."""
    runs = [run for text in texts for run in text.split()]
    unspaced_runs = [run for run in runs if UNSPACED_SCRIPTS.search(run)]
    return 2 * sum(map(len, unspaced_runs)) > sum(map(len, runs)) and sum(
        map(len, unspaced_runs)
    ) > MAX_MEAN_RUN_LENGTH * len(unspaced_runs)


def word_pattern(language: str) -> str:
    """The regular expression that `words` finds words with, for tokenizers that cut text the same way."""
    return _compile_word_pattern(base_language(language)).pattern


@functools.cache
def _compile_word_pattern(language: str) -> re.Pattern[str]:
    number = r"\d+(?:[.,]\d+)+"
    if language in SPACELESS_LANGUAGES:
        return re.compile(
            rf"[{CJK_RANGES}]|{number}|[{_word_character_ranges(include_cjk=False)}]+|[^{_word_character_ranges(include_cjk=True)}\s]"
        )
    run, other = (
        rf"[{_word_character_ranges(include_cjk=True)}]+",
        rf"[^{_word_character_ranges(include_cjk=True)}\s]",
    )
    if language != "en":
        return re.compile(rf"{number}|{run}(?:['’]{run})*|{other}")
    no, clitic = r"[nN]['’][tT]\b", r"['’](?:[sSmMdD]|[rR][eE]|[vV][eE]|[lL][lL])\b"
    return re.compile(rf"{number}|{no}|(?!{run}{no}){run}|{run}?(?={no})|{clitic}|{other}")


@functools.cache
def _word_character_ranges(*, include_cjk: bool) -> str:
    """The characters of words, for the inside of a class: letters, marks (vowel signs of Devanagari, Arabic, Thai ...), digits and the low line.

    Spelt out, since engines differ on what \\w is: Python counts the two of km² and no vowel sign, that of `tokenizers` the other way round. Beyond
    the first 65,536 whole blocks of letters: a class of many ranges is slow.
    """
    codes = [
        code
        for code in range(0x10000)
        if unicodedata.category(chr(code)) in WORD_CATEGORIES or chr(code) == "_"
    ]
    codes = [code for code in codes if include_cjk or not CJK_CHARACTER.match(chr(code))]
    ends = [
        0,
        *(place for place in range(1, len(codes)) if codes[place] != codes[place - 1] + 1),
        len(codes),
    ]
    runs = "".join(f"{chr(codes[start])}-{chr(codes[end - 1])}" for start, end in pairwise(ends))
    return (
        runs
        + ZERO_WIDTH_JOINERS
        + SUPPLEMENTARY_RANGES
        + ("\U00020000-\U0003ffff" if include_cjk else "")
    )


def _is_sentence_end(
    text: str, match: re.Match[str], *, is_english: bool, has_capitals: bool
) -> bool:
    """Whether a stop between spaced words ends a sentence: not after an abbreviation, and not before a small letter where the text has capitals."""
    before = text[max(0, match.start() - 12) : match.start()]
    if before[-1:].isspace():
        return True  # "a b . c d": tokenised text, where the stop stands alone
    following = text[match.end() : match.end() + 3].lstrip()[:1]
    small = following.islower() and not GEORGIAN_LETTER.match(following)
    return not (has_capitals and small) and not (
        match.group() == "." and _is_abbreviation(before, is_english=is_english)
    )


def _is_abbreviation(before: str, *, is_english: bool) -> bool:
    word = (
        re.split(f"[{CJK_RANGES}]", before.split()[-1])[-1].lstrip("(\"'“‘[")
        if before.strip()
        else ""
    )
    return (len(word) == 1 and word.isalpha()) or (
        is_english and ABBREVIATIONS.fullmatch(word.lower()) is not None
    )


def cell_to_text(value: object) -> str:
    """One cell of a user's table as text; nothing where it is missing. Raises TypeError where it is no single value."""
    if value is None or value != value:
        return ""
    if isinstance(value, list | tuple | dict | set | bytes):
        raise TypeError(
            f"holds {'raw bytes' if isinstance(value, bytes) else f'a {type(value).__name__}'}, not text"
        )
    return str(value)
