"""Suggest how to convert a file that is not UTF-8."""

import codecs
import re

from charset_normalizer import from_bytes

NON_UTF8_BYTE = re.compile("[\udc80-\udcff]")  # as `surrogateescape` decodes it
# A UTF-8 file with a few wrong bytes has far more valid multi-byte characters than wrong bytes.
# In a file of another encoding hardly any character is valid by chance.
MIN_VALID_PER_STRAY = 10
MAX_MESS = 0.1  # charset-normalizer's share of implausible characters; real text has less
TIE_MESS = 0.05  # several encodings fit a short text almost equally well
# Python's name of an encoding -> (its usual name, iconv's name). Ties go to the first multi-byte
# encoding: the most common one; CP949 last, since most Chinese and Japanese text is valid in it.
MULTI_BYTE_ENCODINGS = {
    "gb18030": ("GB18030", "GB18030"),
    "big5": ("Big5", "BIG5"),
    "cp932": ("Shift-JIS", "CP932"),  # a superset of Shift-JIS, as Windows writes it
    "euc_jp": ("EUC-JP", "EUC-JP"),
    "cp949": ("EUC-KR", "CP949"),  # a superset of EUC-KR, as Windows writes it
    "utf_16_le": ("UTF-16", "UTF-16LE"),
}
SINGLE_BYTE_ENCODINGS = {
    "cp1252": ("Windows-1252", "CP1252"),
    "cp1251": ("Windows-1251", "CP1251"),
    "koi8_r": ("KOI8-R", "KOI8-R"),
    "cp1250": ("Windows-1250", "CP1250"),
}
ENCODINGS = MULTI_BYTE_ENCODINGS | SINGLE_BYTE_ENCODINGS
LATIN1 = ("LATIN1", "LATIN1")


def suggest_encoding_fix(block: bytes, *, is_first_block: bool) -> str:
    """Return what to do about a block that is not valid UTF-8."""
    if is_first_block and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return (
            "it begins with the byte order mark of UTF-16; convert it with iconv -f UTF-16 -t UTF-8"
        )
    text = block.decode(errors="surrogateescape")
    num_stray = len(NON_UTF8_BYTE.findall(text))
    num_valid = _count_non_ascii(NON_UTF8_BYTE.sub("", text))
    if MIN_VALID_PER_STRAY * num_stray < num_valid:
        return (
            "nearly all other characters are UTF-8; correct that one, or drop such bytes with "
            "iconv -c -f UTF-8 -t UTF-8"
        )
    last_line_end = block.rfind(b"\n")
    sample = block[:last_line_end] if last_line_end > 0 else block  # do not end within a character
    encoding, option = _detect_encoding(sample)
    usual_name, iconv_name = encoding
    return f"it looks like {usual_name}; convert it with iconv {option}-f {iconv_name} -t UTF-8"


def _detect_encoding(sample: bytes) -> tuple[tuple[str, str], str]:
    """Return the likely encoding, and the option with which iconv skips invalid bytes."""
    if name := _best_match(sample, list(ENCODINGS)):
        # Windows-1252 without the letters in which they differ is LATIN1.
        is_latin1 = name == "cp1252" and not re.search(rb"[\x80-\x9f]", sample)
        return LATIN1 if is_latin1 else ENCODINGS[name], ""
    for name in MULTI_BYTE_ENCODINGS:
        # One damaged character makes a strict decoder fail: judge the text without it.
        text = sample.decode(name, errors="replace")
        num_stray = text.count("\ufffd")
        clean = text.replace("\ufffd", "")
        if MIN_VALID_PER_STRAY * num_stray < _count_non_ascii(clean) and _best_match(
            clean.encode(name, errors="ignore"), [name]
        ):
            return ENCODINGS[name], "-c "
    return LATIN1, ""


def _best_match(sample: bytes, names: list[str]) -> str | None:
    """Return the likeliest of some encodings; None if the text makes no sense in any."""
    matches = from_bytes(sample, cp_isolation=names, threshold=MAX_MESS)
    best = matches.best()
    if best is None:
        return None
    if best.encoding in MULTI_BYTE_ENCODINGS:
        tied = {match.encoding for match in matches if match.chaos - best.chaos < TIE_MESS}
        return next(name for name in MULTI_BYTE_ENCODINGS if name in tied)
    for match in matches:
        # Western encodings tie where a text has few letters: take the most common one.
        is_tied = (match.chaos, match.coherence) == (best.chaos, best.coherence)
        if is_tied and "cp1252" in match.could_be_from_charset:
            return "cp1252"
    return best.encoding


def _count_non_ascii(text: str) -> int:
    return sum(not letter.isascii() for letter in text)
