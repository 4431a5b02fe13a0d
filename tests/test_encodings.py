"""A file that is not UTF-8 gets a suggested encoding, and wrongly decoded text is detected."""

import pytest

from lineage.data.encodings import suggest_encoding_fix
from lineage.language import is_mojibake

CHINESE = "这家酒店的房间很大，早餐也不错，下次还会再来。\n"
TRADITIONAL = "這家酒店的房間很大，早餐也不錯，下次還會再來。服務人員非常親切，離捷運站也很近。\n"
JAPANESE = (
    "去年の夏、私たちはこのホテルに泊まりました。朝食はおいしく、部屋も広かったです。\n"
    "また来年も来たいと思います。\n"
)
KOREAN = "작년 여름에 우리는 이 호텔에 묵었습니다. 아침 식사가 맛있었고 방도 넓었습니다.\n"
RUSSIAN = "Прошлым летом мы жили в этой гостинице. Завтрак был хороший, а номер просторный.\n"
POLISH = "Zeszłego lata mieszkaliśmy w tym hotelu. Śniadanie było dobre, a pokój duży.\n"
FRENCH = "L'été dernier, nous avons déjà mangé à l'hôtel; c'était très bon, où que l'on soit.\n"
GERMAN = "Das Frühstück war schön, und die Zimmer waren groß. Wir kommen nächstes Jahr wieder.\n"
QUOTED = "He said “we’ll be back” — the café’s owner smiled… It cost 20 €, which wasn’t much.\n"
LINKED = "http://www.example.com/item/{}/index.html 很好的酒店\n"


@pytest.mark.parametrize(
    ("content", "suggested"),
    [
        (CHINESE.encode("gb18030") * 9, "iconv -f GB18030 -t UTF-8"),
        # mostly ASCII
        ("".join(map(LINKED.format, range(40))).encode("gb18030"), "iconv -f GB18030 -t UTF-8"),
        (
            CHINESE.encode("gb18030") * 9 + b"\xff\n" + CHINESE.encode("gb18030") * 9,
            "iconv -c -f GB18030 -t UTF-8",
        ),
        (
            "這家酒店的房間很大，早餐也不錯，下次還會再來。\n".encode("gbk") * 9,
            "iconv -f GB18030 -t UTF-8",
        ),
        ("Grüße an alle. ".encode() * 3 + "Grüße".encode("latin-1"), "iconv -f LATIN1 -t UTF-8"),
        (FRENCH.encode("latin-1") * 9, "iconv -f LATIN1 -t UTF-8"),
        (b"What is the Se\xf1or's name ?\n" + b"What is it ?\n" * 90, "iconv -f LATIN1 -t UTF-8"),
        (CHINESE.encode() * 9 + b"\xff\n", "iconv -c -f UTF-8 -t UTF-8"),
        (CHINESE.encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
    ],
)
def test_the_suggested_encoding_is_detected_from_the_bytes_of_a_file(
    content: bytes, suggested: str
) -> None:
    assert suggest_encoding_fix(content, is_first_block=True).endswith(suggested)


@pytest.mark.parametrize("repeats", [1, 9])
@pytest.mark.parametrize(
    ("text", "encoding", "name", "iconv_name"),
    [
        (CHINESE, "gb18030", "GB18030", "GB18030"),
        (TRADITIONAL, "big5", "Big5", "BIG5"),
        (JAPANESE, "shift_jis", "Shift-JIS", "CP932"),
        (JAPANESE, "euc_jp", "EUC-JP", "EUC-JP"),
        (KOREAN, "euc_kr", "EUC-KR", "CP949"),
        (RUSSIAN, "cp1251", "Windows-1251", "CP1251"),
        (RUSSIAN, "koi8_r", "KOI8-R", "KOI8-R"),
        (POLISH, "cp1250", "Windows-1250", "CP1250"),
        (FRENCH, "latin-1", "LATIN1", "LATIN1"),
        (GERMAN, "latin-1", "LATIN1", "LATIN1"),
        (QUOTED, "cp1252", "Windows-1252", "CP1252"),
        (CHINESE, "utf_16_le", "UTF-16", "UTF-16LE"),
    ],
)
def test_a_few_sentences_are_enough_to_name_the_encoding(
    text: str, encoding: str, name: str, iconv_name: str, repeats: int
) -> None:
    suggestion = suggest_encoding_fix(text.encode(encoding) * repeats, is_first_block=True)
    assert suggestion == f"it looks like {name}; convert it with iconv -f {iconv_name} -t UTF-8"


@pytest.mark.parametrize(
    ("text", "encoding", "iconv_name"),
    [
        ("review,stars\n房间很小,0\n早餐丰富。,1\n", "gb18030", "GB18030"),
        ("review,stars\n服务好,1\n", "gb18030", "GB18030"),
        ("review,stars\n房間很小,0\n早餐豐富。,1\n", "big5", "BIG5"),
        ("review,stars\n部屋が狭い,0\n朝食は良かった。,1\n", "shift_jis", "CP932"),
        ("review,stars\n방이 작아요,0\n아침이 좋아요,1\n", "euc_kr", "CP949"),
    ],
)
def test_with_few_words_the_most_common_encoding_wins_a_tie(
    text: str, encoding: str, iconv_name: str
) -> None:
    suggestion = suggest_encoding_fix(text.encode(encoding), is_first_block=True)
    assert suggestion.endswith(f"iconv -f {iconv_name} -t UTF-8")


@pytest.mark.parametrize("encoding", ["utf_16_le", "utf_16_be"])
@pytest.mark.parametrize("text", [CHINESE, FRENCH, RUSSIAN])
def test_utf16_is_recognized_by_its_byte_order_mark(text: str, encoding: str) -> None:
    suggestion = suggest_encoding_fix(f"\ufeff{text}".encode(encoding), is_first_block=True)
    assert suggestion.endswith("UTF-16; convert it with iconv -f UTF-16 -t UTF-8")


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        (CHINESE.encode("gb18030").decode("latin-1"), "zh", True),
        (LINKED.encode("gb18030").decode("latin-1"), "zh", True),
        (CHINESE, "zh", False),
        (LINKED, "zh", False),
        ("The café of the hotel was closed, and nobody had told us before we came.", "zh", False),
        ("élève déjà 是学生的意思，法语里有很多这样的词，写法各不相同。", "zh", False),
        (FRENCH, "fr", False),
        ("", "zh", False),
    ],
)
def test_chinese_text_that_was_decoded_as_latin1_is_detected(
    text: str, language: str, expected: bool
) -> None:
    assert is_mojibake([text] * 3, language) is expected
