"""Clean text, and split it into sentences and words. `language` decides how.

In Chinese and Japanese a word is a character, but runs of Latin letters or digits stay whole.
Elsewhere a word is a run of letters, marks and digits, or one punctuation character; English
clitics stand apart (do n't, it 's), as in the field's data sets.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from lineage.errors import UNSPACED_SCRIPTS, InputError

SPACELESS_LANGUAGES = ("zh", "ja")
CJK_RANGES = (
    "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Unicode categories of the characters of words.
WORD_CATEGORIES = frozenset(["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl"])
# Scripts beyond the first 65,536 characters, and letters of mathematics.
SUPPLEMENTARY_RANGES = "\U00010000-\U0001cfff\U0001d400-\U0001efff"
CJK_CHARACTER = re.compile(f"[{CJK_RANGES}]")
WORD_CHARACTER = re.compile(rf"[^\W{CJK_RANGES}]")  # joins with its neighbours into one word
# Variation selectors, the fillers of Hangul and the blank of Braille are letters, marks or symbols
# in Unicode, but are drawn as nothing.
INVISIBLE_CHARACTERS = frozenset(
    "\u034f\u115f\u1160\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)

LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Characters that are removed from text, after spaces have replaced tabs: controls, lone surrogates
# (JSON can hold them, UTF-8 cannot), the byte order mark, soft hyphens and word joiners, and
# variation selectors (marks in Unicode: one after a heart would begin the next word).
CONTROL_CHARACTERS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u2060\ud800-\udfff\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]"
)
# Georgian letters are lower case in Unicode, but their capitals begin no sentence.
GEORGIAN_LETTER = re.compile("[\u10d0-\u10ff]")
ZERO_WIDTH_JOINERS = "\u200c\u200d"  # occur within words of Persian and of scripts of India
# In scripts without spaces between words: with longer runs of their letters between two spaces,
# on average, no spaces have been put between words.
MAX_MEAN_RUN_LENGTH = 15

SENTENCE_END = re.compile(r"""\n|[.!?…।؟۔]+(?:[^\S\n]?["'”’)\]»])*(?=\s)""")
# The first half ends a sentence for sure. A stop before a space, as Latin text has it, may belong
# to an abbreviation.
SPACELESS_SENTENCE_END = re.compile(r"""\n|[。！？!?…]+["'”’」』）》]*|\.+(?:["'”’)\]»])*(?=\s)""")
CERTAIN_SPACELESS_ENDS = tuple("\n。！？!?…")
ABBREVIATIONS = re.compile(
    r"mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|no|vol|fig|ca|approx|inc|ltd|co|corp|gen|col"
    r"|sgt|capt|lt|rev|hon|pp"
)
ABBREVIATION_CONTEXT = 12  # characters before a stop that may hold an abbreviation


def to_lowercase(text: str) -> str:
    """Lower each letter by itself, as `tokenizers` does."""
    return "".join(map(str.lower, text))


def normalize_text(text: str) -> str:
    """Return the text in NFC, with newlines as line ends and spaces for tabs, stripped.

    Control characters, soft hyphens and variation selectors are removed.
    """
    text = LINE_ENDS.sub("\n", unicodedata.normalize("NFC", text)).replace("\t", " ")
    return CONTROL_CHARACTERS.sub("", text).strip()


def is_blank(text: str) -> bool:
    """Return whether a text shows nothing: spaces, or characters that are drawn as nothing."""
    return all(map(_is_invisible, text))


def _is_invisible(character: str) -> bool:
    if character.isspace() or character in INVISIBLE_CHARACTERS:
        return True
    return unicodedata.category(character) in ("Cf", "Cc")


def sentence_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Return where each sentence starts and ends, in characters."""
    if is_spaceless(language):
        end_pattern = SPACELESS_SENTENCE_END
        certain_ends: tuple[str, ...] = CERTAIN_SPACELESS_ENDS
        is_english = True  # Latin text among Chinese is taken for English
    else:
        end_pattern = SENTENCE_END
        certain_ends = ("\n",)
        is_english = base_language(language) == "en"
    has_capitals = text != text.lower()
    ends = [
        match.end()
        for match in end_pattern.finditer(text)
        if match.group().startswith(certain_ends)
        or _is_sentence_end(text, match, is_english=is_english, has_capitals=has_capitals)
    ]
    spans = []
    for start, end in pairwise([0, *ends, len(text)]):
        sentence = text[start:end]
        if stripped := sentence.strip():
            first = start + len(sentence) - len(sentence.lstrip())
            spans.append((first, first + len(stripped)))
    return spans


def split_words(text: str, language: str) -> list[str]:
    """Return the words of a text, in order, punctuation included."""
    return _compile_word_pattern(base_language(language)).findall(text)


def shuffle_words(text: str, language: str, rng: np.random.Generator) -> str:
    """Return the text with the words of each sentence in another order, punctuation included."""
    sentences = []
    for start, end in sentence_spans(text, language):
        words = split_words(text[start:end], language)
        sentences.append(join_words([words[i] for i in rng.permutation(len(words))], language))
    return join_words(sentences, language)


def word_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Return where each word of `split_words` starts and ends, in characters."""
    return [match.span() for match in _compile_word_pattern(base_language(language)).finditer(text)]


def truncate_to_words(text: str, max_words: int, language: str) -> str:
    """Return the text up to the end of word number `max_words`; all of it if it has no more."""
    if len(text) <= max_words:
        return text
    pattern = _compile_word_pattern(base_language(language))
    for number, match in enumerate(pattern.finditer(text), 1):
        if number == max_words:
            has_more = pattern.search(text, match.end()) is not None
            return text[: match.end()] if has_more else text
    return text


def truncate_pair_lengths(
    first_length: int, second_length: int, *, max_length: int
) -> tuple[int, int]:
    """Return how much of two texts to keep within `max_length`: the longer is cut (as in BERT)."""
    if first_length + second_length <= max_length:
        return first_length, second_length
    if first_length > second_length:
        kept_second = min(second_length, max_length // 2)
        return max_length - kept_second, kept_second
    kept_first = min(first_length, max_length - max_length // 2)
    return kept_first, max_length - kept_first


def join_words(tokens: Sequence[str], language: str) -> str:
    """Join words into running text, without spaces where the language has none."""
    spaces = spaces_before_words(tokens, language)
    return "".join(" " * count + token for count, token in zip(spaces, tokens, strict=True))


def spaces_before_words(tokens: Sequence[str], language: str) -> list[int]:
    """Return how many spaces, 0 or 1, stand before each word in running text.

    In a language without spaces one is between two runs of letters or digits, which would merge
    without it (New York), but none is between two single characters.
    """
    if not tokens:
        return []
    if not is_spaceless(language):
        return [0] + [1] * (len(tokens) - 1)
    return [0] + [int(_needs_space(a, b)) for a, b in pairwise(tokens)]


def _needs_space(token: str, following: str) -> bool:
    if len(token) + len(following) <= 2:
        return False
    ends_in_word = WORD_CHARACTER.match(token[-1:]) is not None
    return ends_in_word and WORD_CHARACTER.match(following) is not None


def byte_count(text: str) -> int:
    return len(text.encode())


def base_language(language: str) -> str:
    """Return `zh` for zh, zh-TW and zh_Hant."""
    return re.split("[-_]", language, maxsplit=1)[0].lower()


def is_spaceless(language: str) -> bool:
    """Return whether a word is a character in this language."""
    return base_language(language) in SPACELESS_LANGUAGES


def is_mostly_cjk(texts: Iterable[str], language: str) -> bool:
    """Return whether texts are mostly Chinese or Japanese in a language that has spaces."""
    if is_spaceless(language):
        return False
    num_cjk = 0
    num_characters = 0
    for text in texts:
        num_cjk += len(CJK_CHARACTER.findall(text))
        num_characters += sum(map(len, text.split()))
    return 2 * num_cjk > num_characters


def is_mojibake(texts: Iterable[str], language: str) -> bool:
    """Return whether texts in a language without spaces are mostly letters such as Ñ and ¡."""
    letters = "".join(texts)
    non_ascii = [letter for letter in letters if not letter.isascii()]
    num_latin = sum(letter <= "\xff" for letter in non_ascii)
    is_mostly_latin = 2 * num_latin > len(non_ascii) and 20 * num_latin > len(letters)
    return is_spaceless(language) and is_mostly_latin


def lacks_word_boundaries(texts: Iterable[str]) -> bool:
    """Return whether texts are mostly in a script without spaces between words, and have none."""
    run_lengths = []
    unspaced_lengths = []
    for text in texts:
        for run in text.split():
            run_lengths.append(len(run))
            if UNSPACED_SCRIPTS.search(run):
                unspaced_lengths.append(len(run))
    num_unspaced = sum(unspaced_lengths)
    is_mostly_unspaced = 2 * num_unspaced > sum(run_lengths)
    return is_mostly_unspaced and num_unspaced > MAX_MEAN_RUN_LENGTH * len(unspaced_lengths)


def check_script(texts: Sequence[str], language: str, where: str) -> None:
    """Raise InputError if the script of texts does not fit their language."""
    if lacks_word_boundaries(texts):
        raise InputError(
            f"{where}: its texts are mostly Thai, Lao, Burmese or Khmer, which have no spaces "
            "between words, so a whole clause would be one word; first separate the words with "
            "spaces, by a tool for that language"
        )
    if is_mojibake(texts, language):
        raise InputError(
            f"{where}: its texts are mostly characters such as ÄãºÃ, and its language is "
            f"{language}: the file was read in the wrong encoding; convert it again, for example "
            "with iconv -f GB18030 -t UTF-8"
        )
    if is_mostly_cjk(texts, language):
        raise InputError(
            f"{where}: its texts are mostly Chinese or Japanese, and in its language, "
            f"{language}, a whole clause would be one word; set language: zh or ja (of the "
            "corpus too, from which tokenizers are trained)"
        )


def word_pattern(language: str) -> str:
    """Return the regular expression of `split_words`, for tokenizers that cut alike."""
    return _compile_word_pattern(base_language(language)).pattern


@functools.cache
def _compile_word_pattern(language: str) -> re.Pattern[str]:
    number = r"\d+(?:[.,]\d+)+"
    word_ranges = _word_character_ranges(include_cjk=True)
    other = rf"[^{word_ranges}\s]"
    if language in SPACELESS_LANGUAGES:
        latin_ranges = _word_character_ranges(include_cjk=False)
        return re.compile(rf"[{CJK_RANGES}]|{number}|[{latin_ranges}]+|{other}")
    run = rf"[{word_ranges}]+"
    if language != "en":
        return re.compile(rf"{number}|{run}(?:['’]{run})*|{other}")
    negation = r"[nN]['’][tT]\b"
    clitic = r"['’](?:[sSmMdD]|[rR][eE]|[vV][eE]|[lL][lL])\b"
    return re.compile(
        rf"{number}|{negation}|(?!{run}{negation}){run}|{run}?(?={negation})|{clitic}|{other}"
    )


@functools.cache
def _word_character_ranges(*, include_cjk: bool) -> str:
    """Return the characters of words, for a character class: letters, marks, digits and `_`.

    They are spelled out because engines differ on \\w: Python counts the two of km² and no vowel
    sign, that of `tokenizers` vice versa.
    """
    codes = []
    for code in range(0x10000):
        character = chr(code)
        is_word = character == "_" or unicodedata.category(character) in WORD_CATEGORIES
        if is_word and (include_cjk or not CJK_CHARACTER.match(character)):
            codes.append(code)
    run_starts = [0]
    run_starts += [i for i in range(1, len(codes)) if codes[i] != codes[i - 1] + 1]
    runs = "".join(
        f"{chr(codes[start])}-{chr(codes[end - 1])}"
        for start, end in pairwise([*run_starts, len(codes)])
    )
    supplementary_cjk = "\U00020000-\U0003ffff" if include_cjk else ""
    return runs + ZERO_WIDTH_JOINERS + SUPPLEMENTARY_RANGES + supplementary_cjk


def _is_sentence_end(
    text: str, match: re.Match[str], *, is_english: bool, has_capitals: bool
) -> bool:
    """Return whether a stop between spaced words ends a sentence.

    It does not after an abbreviation, nor before a small letter where the text has capitals.
    """
    before = text[max(0, match.start() - ABBREVIATION_CONTEXT) : match.start()]
    if before[-1:].isspace():
        return True  # "a b . c d": tokenised text, where the stop stands alone
    next_letter = text[match.end() : match.end() + 3].lstrip()[:1]
    is_small = next_letter.islower() and not GEORGIAN_LETTER.match(next_letter)
    if has_capitals and is_small:
        return False
    return match.group() != "." or not _is_abbreviation(before, is_english=is_english)


def _is_abbreviation(before: str, *, is_english: bool) -> bool:
    """Return whether the text before a stop ends in an initial or an abbreviation."""
    if not before.strip():
        return False
    last_run = before.split()[-1]
    word = re.split(f"[{CJK_RANGES}]", last_run)[-1].lstrip("(\"'“‘[")
    if len(word) == 1 and word.isalpha():
        return True
    return is_english and ABBREVIATIONS.fullmatch(word.lower()) is not None


def cell_to_text(value: object) -> str:
    """Return one cell of a user's table as text; empty if it is missing.

    Raises TypeError if it is not a single value.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        raise TypeError("holds raw bytes, not text")
    if isinstance(value, list | tuple | dict | set):
        raise TypeError(f"holds a {type(value).__name__}, not text")
    return str(value)
