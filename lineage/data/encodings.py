"""What a file that is not UTF-8 may be written in, and how it becomes UTF-8."""

import codecs
import re

NON_UTF8_BYTE = re.compile(
    "[\udc80-\udcff]"
)  # bytes that are no UTF-8, as surrogateescape reads them
MIN_VALID_PER_STRAY = 10  # letters of two bytes or more that are right to each such byte: in a file of another code hardly any are right


def suggest_encoding_fix(block: bytes, *, first: bool) -> str:
    """What to do about bytes that are no UTF-8; where nearly all of them are, other bytes must stay as they are."""
    text = block.decode(errors="surrogateescape")
    bad, good = (
        len(NON_UTF8_BYTE.findall(text)),
        sum(not letter.isascii() for letter in NON_UTF8_BYTE.sub("", text)),
    )
    if first and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "its first bytes are the mark of UTF-16; convert it with iconv -f UTF-16 -t UTF-8"
    if MIN_VALID_PER_STRAY * bad < good:
        return "nearly all else is UTF-8; correct the letter there, or leave such bytes out with iconv -c -f UTF-8 -t UTF-8"
    return f"convert it, for example with iconv {_likely_encoding(block)} -t UTF-8"


def _likely_encoding(block: bytes) -> str:
    """What bytes that are no UTF-8 may be, as iconv is told: of Chinese most stand two by two for the common characters of GB2312."""
    strays, letters = _count_undecodable(block, "gb18030")
    others, common = _count_undecodable(block, "gb2312")
    if MIN_VALID_PER_STRAY * strays > letters or others > common:
        return "-f LATIN1"
    return "-c -f GB18030" if strays else "-f GB18030"  # -c leaves out what is no character


def _count_undecodable(block: bytes, code: str) -> tuple[int, int]:
    """How many places cannot be read in a code, and how many letters that are not ASCII can."""
    read = codecs.getincrementaldecoder(code)("replace").decode(block)
    return read.count("\ufffd"), sum(not letter.isascii() and letter != "\ufffd" for letter in read)
