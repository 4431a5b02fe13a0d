"""What a file that is not UTF-8 is said to be written in, and what is noticed when it was converted from the wrong one."""

import pytest

from lineage.data.encodings import suggest_encoding_fix
from lineage.data.language import is_mojibake

CHINESE = "这家酒店的房间很大，早餐也不错，下次还会再来。\n"
FRENCH = "L'été dernier, nous avons déjà mangé à l'hôtel; c'était très bon, où que l'on soit.\n"
LINKED = "http://www.example.com/item/{}/index.html 很好的酒店\n"


@pytest.mark.parametrize(("written", "said"), [
    (CHINESE.encode("gb18030") * 9, "iconv -f GB18030 -t UTF-8"),
    ("".join(map(LINKED.format, range(40))).encode("gb18030"), "iconv -f GB18030 -t UTF-8"),  # ASCII for the most part
    (CHINESE.encode("gb18030") * 9 + b"\xff\n" + CHINESE.encode("gb18030") * 9, "iconv -c -f GB18030 -t UTF-8"),
    ("這家酒店的房間很大，早餐也不錯，下次還會再來。\n".encode("gbk") * 9, "iconv -f GB18030 -t UTF-8"),
    ("Grüße an alle. ".encode() * 3 + "Grüße".encode("latin-1"), "iconv -f LATIN1 -t UTF-8"),
    (FRENCH.encode("latin-1") * 9, "iconv -f LATIN1 -t UTF-8"),
    (b"What is the Se\xf1or's name ?\n" + b"What is it ?\n" * 90, "iconv -f LATIN1 -t UTF-8"),
    (CHINESE.encode() * 9 + b"\xff\n", "iconv -c -f UTF-8 -t UTF-8"),
    (CHINESE.encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
])  # fmt: skip
def test_the_code_of_a_file_is_told_by_its_bytes(written: bytes, said: str) -> None:
    assert suggest_encoding_fix(written, first=True).endswith(said)


@pytest.mark.parametrize(("text", "language", "expected"), [
    (CHINESE.encode("gb18030").decode("latin-1"), "zh", True),
    (LINKED.encode("gb18030").decode("latin-1"), "zh", True),
    (CHINESE, "zh", False),
    (LINKED, "zh", False),
    ("The café of the hotel was closed, and nobody had told us of it before we came.", "zh", False),
    ("élève déjà 是学生的意思，法语里有很多这样的词，写法各不相同。", "zh", False),
    (FRENCH, "fr", False),
    ("", "zh", False),
])  # fmt: skip
def test_bytes_of_chinese_that_were_read_as_latin1_are_noticed(
    text: str, language: str, expected: bool
) -> None:
    assert is_mojibake([text] * 3, language) is expected
