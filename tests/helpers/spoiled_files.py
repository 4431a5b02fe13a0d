"""Ways to spoil a user's files in one place, and the message that each must cause."""

from typing import Any

import pandas as pd

from tests.helpers.user_project import mood_reviews

Tree = dict[str, Any]
REMOVED = object()


def set_value(tree, path, value):
    """Set the value at a dotted path of nested blocks and lists, or remove it."""
    *parents, last = path.split(".")
    for key in parents:
        tree = tree[int(key)] if isinstance(tree, list) else tree.setdefault(key, {})
    if value is REMOVED:
        del tree[last]
    else:
        tree[last] = value


def empty_file(folder, tree):
    (folder / "texts/07.txt").write_bytes(b"")


def byte_order_mark_only(folder, tree):
    (folder / "mood/test.csv").write_bytes(b"\xef\xbb\xbf\n")


def unclosed_quote_in_header(folder, tree):
    path = folder / "mood/train.csv"
    path.write_text('"' + path.read_text().replace(" film ", ' "film" ') * 2000)


def empty_task_file(folder, tree):
    (folder / "mood/test.csv").write_bytes(b"")


def header_only(folder, tree):
    (folder / "mood/test.csv").write_text("review,stars\n")


def not_utf8(folder, tree):
    (folder / "texts/03.txt").write_bytes(
        "Grüße an alle. ".encode() * 3 + "Grüße".encode("latin-1")
    )


def chinese_with_a_broken_character(folder, tree):
    rows = b"review,stars\n" + "房间很小,0\n早餐丰富。,1\n".encode() * 20
    (folder / "mood/train.csv").write_bytes(rows[:100] + rows[101:])


def truncated_gzip(folder, tree):
    path = folder / "mood/train.csv.gz"
    mood_reviews(60).to_csv(path, index=False)
    path.write_bytes(path.read_bytes()[:-20])
    set_value(tree, "tasks.mood.files.train", "mood/train.csv.gz")


def invalid_parquet(folder, tree):
    (folder / "mood/train.parquet").write_bytes(b"PAR1 this is something else")
    set_value(tree, "tasks.mood.files.train", "mood/train.parquet")


def unknown_format(folder, tree):
    (folder / "mood/train.xlsx").write_bytes(b"PK")
    set_value(tree, "tasks.mood.files.train", "mood/train.xlsx")


def ragged_csv(folder, tree):
    with (folder / "mood/train.csv").open("a") as stream:
        stream.write("a,1,2,3,4\n")


def missing_corpus_column(folder, tree):
    pd.DataFrame({"body": ["a text of some words"] * 40}).to_parquet(folder / "c.parquet")
    set_value(tree, "corpora.general.sources", [{"files": "c.parquet", "text": "bodi"}])


def blank_text(folder, tree):
    table = mood_reviews(60)
    table.loc[[16, *range(30, 40)], "review"] = "   "
    table.to_csv(folder / "mood/train.csv", index=False)


def blank_corpus(folder, tree):
    (folder / "c.jsonl").write_text('{"text": "  "}\n' * 30)
    set_value(tree, "corpora.general.sources", [{"files": "c.jsonl"}])


def unknown_label(folder, tree):
    table = mood_reviews(20)
    table.loc[11, "stars"] = 7
    table.to_csv(folder / "mood/test.csv", index=False)


def single_label(folder, tree):
    mood_reviews(60).assign(stars=1).to_csv(folder / "mood/train.csv", index=False)


def blank_second_text(folder, tree):
    mood_reviews(60).assign(other=["a text"] * 50 + [" "] * 10).to_csv(
        folder / "mood/train.csv", index=False
    )
    mood_reviews(20).assign(other="a text").to_csv(folder / "mood/test.csv", index=False)
    set_value(tree, "tasks.mood.text", ["review", "other"])


def chinese_reviews(folder, tree):
    for split in ("train", "test"):
        path = folder / f"mood/{split}.csv"
        pd.read_csv(path).assign(
            review=lambda table: [f"这家酒店的房间很大，服务也好 {n}" for n in range(len(table))]
        ).to_csv(path, index=False)


def chinese_extra_test_set(folder, tree):
    pd.DataFrame(
        {
            "review": [f"这家酒店的房间很大，服务也好 {n}" for n in range(20)],
            "stars": [n % 2 for n in range(20)],
        }
    ).to_csv(folder / "zh.csv")
    set_value(tree, "tasks.mood.extra_test_sets", {"far": {"files": {"test": "zh.csv"}}})


def thai_corpus(folder, tree):
    for path in (folder / "texts").glob("*.txt"):
        path.write_text(
            "\n\n".join(
                f"กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยและมีคนอาศัยอยู่เป็นจำนวนมาก {path.stem} {n}"
                for n in range(40)
            )
        )


def chinese_corpus(folder, tree):
    for path in (folder / "texts").glob("*.txt"):
        path.write_text(
            "\n\n".join(
                f"{path.stem}：北京是中国的首都，有很多人住在那里，第 {n} 段。" for n in range(40)
            )
        )


def long_pair(folder, tree):
    blank_second_text(folder, tree)
    set_value(tree, "models.gpt.pretrain.seq_len", 130)


def artifacts_is_a_file(folder, tree):
    (folder / "artifacts").write_text("in the way")


def lineage_folder_is_a_file(folder, tree):
    (folder / ".lineage").write_text("in the way")


def single_adaptation_text(folder, tree):
    pd.DataFrame({"review": ["the very same review , again and again ."] * 500}).to_csv(
        folder / "mood/all.csv", index=False
    )
    tree["tasks"]["mood"]["files"]["unlabelled"] = "mood/all.csv"


# `...` stands for some other words.
MESSAGES = {
    empty_file: "corpora.general.sources[0].files ... texts/07.txt is empty",
    byte_order_mark_only: "tasks.mood.files.test ... mood/test.csv is empty",
    unclosed_quote_in_header: "mood/train.csv, line 1: a cell begins with a quotation mark that nothing closes",
    empty_task_file: "tasks.mood.files.test ... mood/test.csv is empty",
    header_only: "tasks.mood.files.test ... mood/test.csv ... no rows",
    not_utf8: "texts/03.txt is not UTF-8 at byte 53 ... iconv -f LATIN1 -t UTF-8",
    chinese_with_a_broken_character: (
        "mood/train.csv is not UTF-8 at byte 100, line 7; nearly all other characters are UTF-8 ... "
        "iconv -c -f UTF-8 -t UTF-8"
    ),
    truncated_gzip: "mood/train.csv.gz cannot be read",
    invalid_parquet: "mood/train.parquet cannot be read",
    unknown_format: ".xlsx ... .parquet, .jsonl, .json, .csv, .tsv, .txt",
    ragged_csv: "mood/train.csv, line 62: it has 5 cells",
    missing_corpus_column: "c.parquet has no column 'bodi' ... did you mean 'body'? Say text: COLUMN",
    blank_text: (
        "mood/train.csv: 11 rows (17, 31, 32, 33, 34, ...): column 'review': the text is blank ... "
        "correct the data, or remove these rows"
    ),
    blank_corpus: "corpora.general ... 0 usable documents of 30 read (30 blank)",
    unknown_label: (
        "tasks.mood.files.test ... row 12 ... label '7' does not occur in train, which has 0, 1"
    ),
    single_label: "tasks.mood.files.train ... every label is '1'",
    blank_second_text: "mood/train.csv: 10 rows (51, 52, 53, 54, 55, ...): column 'other': the text is blank",
    long_pair: "models.gpt.pretrain.seq_len: 130 ... 128, plus 3 special tokens",
    single_adaptation_text: "tasks.mood ... 1 distinct texts ... adapt_tasks",
    chinese_reviews: "tasks.mood ... mostly Chinese or Japanese ... its language, en ... set language: zh",
    chinese_extra_test_set: "tasks.mood: far: its texts are mostly Chinese or Japanese",
    thai_corpus: (
        "corpora.general ... Thai, Lao, Burmese or Khmer ... first separate the words with spaces"
    ),
    chinese_corpus: "corpora.general ... mostly Chinese or Japanese ... set language: zh",
    artifacts_is_a_file: "artifacts: cannot be written to",
    lineage_folder_is_a_file: ".lineage ... cannot be written to",
}
