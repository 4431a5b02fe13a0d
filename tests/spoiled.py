"""Ways to spoil a user's project in one place, and what the message must then say."""

import pandas as pd

from tests.user_project import moods


def change(tree, path, value):
    *parents, last = path.split(".")
    for key in parents:
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    tree[last] = value


def missing_file(folder, tree):
    change(tree, "tasks.mood.files.test", "mood/tset.csv")


def no_text_file(folder, tree):
    change(tree, "corpora.general.sources", [{"files": "text/*.txt"}])


def empty_file(folder, tree):
    (folder / "texts/07.txt").write_bytes(b"")


def empty_task_file(folder, tree):
    (folder / "mood/test.csv").write_bytes(b"")


def header_only(folder, tree):
    (folder / "mood/test.csv").write_text("review,stars\n")


def not_utf8(folder, tree):
    (folder / "texts/03.txt").write_bytes("Grüße an alle. ".encode() * 3 + "Grüße".encode("latin-1"))


def task_not_utf8(folder, tree):
    (folder / "mood/train.csv").write_bytes(b"review,stars\ncaf\xe9 was good,1\n")


def cut_gzip(folder, tree):
    whole = folder / "mood/train.csv.gz"
    moods(60).to_csv(whole, index=False)
    whole.write_bytes(whole.read_bytes()[:-20])
    change(tree, "tasks.mood.files.train", "mood/train.csv.gz")


def no_parquet(folder, tree):
    (folder / "mood/train.parquet").write_bytes(b"PAR1 this is something else")
    change(tree, "tasks.mood.files.train", "mood/train.parquet")


def unknown_format(folder, tree):
    (folder / "mood/train.xlsx").write_bytes(b"PK")
    change(tree, "tasks.mood.files.train", "mood/train.xlsx")


def broken_json(folder, tree):
    (folder / "mood/train.jsonl").write_text('{"review": "a", "stars": 1}\n{"review": \n')
    change(tree, "tasks.mood.files.train", "mood/train.jsonl")


def ragged_csv(folder, tree):
    with (folder / "mood/train.csv").open("a") as stream:
        stream.write("a,1,2,3,4\n")


def missing_column(folder, tree):
    change(tree, "tasks.mood.text", ["reveiw"])


def corpus_column(folder, tree):
    pd.DataFrame({"body": ["a text of some words"] * 40}).to_parquet(folder / "c.parquet")
    change(tree, "corpora.general.sources", [{"files": "c.parquet", "text": "bodi"}])


def blank_text(folder, tree):
    table = moods(60)
    table.loc[[16, 30], "review"] = "   "
    table.to_csv(folder / "mood/train.csv", index=False)


def missing_label(folder, tree):
    table = moods(60).astype(object)
    table.loc[4, "stars"] = None
    table.to_csv(folder / "mood/train.csv", index=False)


def blank_corpus(folder, tree):
    (folder / "c.jsonl").write_text('{"text": "  "}\n' * 30)
    change(tree, "corpora.general.sources", [{"files": "c.jsonl"}])


def small_corpus(folder, tree):
    change(tree, "models.gpt.tokenizer.vocabulary", 30_000)


def few_documents(folder, tree):
    change(tree, "corpora.general.sources", [{"files": "texts/00.txt"}])


def too_many_passes(folder, tree):
    change(tree, "budget.text_bytes", 50_000_000)


def too_little_to_adapt_to(folder, tree):
    change(tree, "adapt.text_bytes", 5_000_000)


def strange_label(folder, tree):
    table = moods(20)
    table.loc[11, "stars"] = 7
    table.to_csv(folder / "mood/test.csv", index=False)


def one_label(folder, tree):
    moods(60).assign(stars=1).to_csv(folder / "mood/train.csv", index=False)


def no_test(folder, tree):
    change(tree, "tasks.mood.files", {"train": "mood/train.csv"})


def three_texts(folder, tree):
    change(tree, "tasks.mood.text", ["review", "stars", "review"])


def second_text_blank(folder, tree):
    moods(60).assign(other=["a text"] * 59 + [" "]).to_csv(folder / "mood/train.csv", index=False)
    moods(20).assign(other="a text").to_csv(folder / "mood/test.csv", index=False)
    change(tree, "tasks.mood.text", ["review", "other"])


def choose(folder, tree, *, column="two", **columns):
    for split, count in (("train", 60), ("test", 20)):
        moods(count).assign(one="yes it was", two="it was not", **columns).to_csv(folder / f"mood/{split}.csv", index=False)
    tree["tasks"]["mood"] |= {"kind": "choose", "choices": ["one", column]}


def choice_missing(folder, tree):
    choose(folder, tree, column="three")


def choice_out_of_range(folder, tree):
    choose(folder, tree, stars=2)


def weight_without_next_token(folder, tree):
    change(tree, "models.bert.evaluate.tuned.lm_weight", 0.5)


def long_pair(folder, tree):
    second_text_blank(folder, tree)
    change(tree, "models.gpt.pretrain.length", 130)


def strange_kind(folder, tree):
    change(tree, "tasks.mood.kind", "clasify")


def strange_metric(folder, tree):
    change(tree, "tasks.mood.metric", ["acuracy"])


def no_label_key(folder, tree):
    del tree["tasks"]["mood"]["label"]


def key_of_another_kind(folder, tree):
    change(tree, "tasks.mood.good", "review")


def misspelt_key(folder, tree):
    change(tree, "budget.text_byte", 5)


def misspelt_task_key(folder, tree):
    change(tree, "tasks.mood.lable", "stars")


def missing_key(folder, tree):
    del tree["budget"]["parameters"]


def mistyped_key(folder, tree):
    change(tree, "budget.text_bytes", "many")


def yes_for_number(folder, tree):
    change(tree, "threads", True)


def family_without_block(folder, tree):
    change(tree, "grid.families", ["gtp"])


def zero_budget(folder, tree):
    change(tree, "budget.text_bytes", 0)


def negative_budget(folder, tree):
    change(tree, "budget.text_bytes", -1_000)


def moving_revision(folder, tree):
    change(tree, "corpora.general.sources", [{"hub": "a/b", "split": "train", "text": "text", "revision": "main"}])


def no_folder_to_write_to(folder, tree):
    (folder / "artifacts").write_text("in the way")


def no_folder_for_bookkeeping(folder, tree):
    (folder / ".lineage").write_text("in the way")


def negative_seed(folder, tree):
    change(tree, "grid.seeds", [0, -1])


def beta_of_two(folder, tree):
    change(tree, "models.gpt.pretrain.betas", [0.9, 2.0])


def name_of_a_control(folder, tree):
    tree["models"]["tfidf"] = tree["models"]["gpt"] | {"family": "gpt"}


def one_text_to_adapt_to(folder, tree):
    pd.DataFrame({"review": ["the very same review , again and again ."] * 500}).to_csv(folder / "mood/all.csv", index=False)
    tree["tasks"]["mood"]["files"]["unlabelled"] = "mood/all.csv"


def list_for_a_text(folder, tree):
    table = moods(60)
    table["review"] = [text.split() for text in table["review"]]
    table.to_parquet(folder / "mood/train.parquet")
    tree["tasks"]["mood"]["files"]["train"] = "mood/train.parquet"


def missing_grid_key(folder, tree):
    del tree["grid"]["pretrain_seeds"]


CASES = {
    missing_file: ("tasks.mood.files.test", "mood/tset.csv", "data_root"),
    no_text_file: ("corpora.general.sources[0].files", "text/*.txt"),
    empty_file: ("corpora.general.sources[0].files", "texts/07.txt is empty"),
    empty_task_file: ("tasks.mood.files.test", "mood/test.csv is empty"),
    header_only: ("tasks.mood.files.test", "mood/test.csv", "no rows"),
    not_utf8: ("texts/03.txt is not UTF-8 at byte 53", "iconv"),
    task_not_utf8: ("mood/train.csv is not UTF-8 at byte 16",),
    cut_gzip: ("mood/train.csv.gz cannot be read",),
    no_parquet: ("mood/train.parquet cannot be read",),
    unknown_format: (".xlsx", ".parquet, .jsonl, .csv, .tsv, .txt"),
    broken_json: ("mood/train.jsonl, line 2: not JSON",),
    ragged_csv: ("mood/train.csv cannot be read",),
    missing_column: ("mood/train.csv has no column 'reveiw'", "did you mean 'review'?"),
    corpus_column: ("c.parquet has no column 'bodi'", "did you mean 'body'?"),
    blank_text: ("mood/train.csv: row 17 (and 1 more)", "the text is blank"),
    missing_label: ("mood/train.csv: row 5", "the label is missing"),
    blank_corpus: ("corpora.general", "0 usable documents of 30 read (30 blank)"),
    small_corpus: ("corpora.general", "vocabulary of 30,000 in models.gpt.tokenizer"),
    few_documents: ("corpora.general", "1 usable document", "document: blank_line"),
    too_many_passes: ("budget.text_bytes: 50,000,000 are more than 4 passes",),
    too_little_to_adapt_to: ("adapt.text_bytes: 5,000,000 are more than 4 passes",),
    strange_label: ("tasks.mood.files.test", "row 12", "label '7' does not occur in train, which has 0, 1"),
    one_label: ("tasks.mood.files.train", "every label is '1'"),
    no_test: ("tasks.mood", "no test split"),
    three_texts: ("names 3 columns", "one or two"),
    second_text_blank: ("mood/train.csv: row 60", "column 'other'", "blank"),
    choice_missing: ("mood/train.csv has no column 'three'",),
    choice_out_of_range: ("mood/train.csv: row 1", "column 'stars'", "'2' is none of the 2 choices"),
    weight_without_next_token: ("models.bert.evaluate.tuned.lm_weight", "bert does not predict the next token"),
    long_pair: ("models.gpt.pretrain.length: 130", "128, and 3 marks"),
    strange_kind: ("tasks.mood.kind", "did you mean 'classify'?"),
    strange_metric: ("tasks.mood.metric", "did you mean 'accuracy'?"),
    no_label_key: ("tasks.mood", "'label' is missing"),
    key_of_another_kind: ("tasks.mood.good", "no use"),
    misspelt_key: ("budget", "unknown key 'text_byte'", "did you mean 'text_bytes'?"),
    misspelt_task_key: ("tasks.mood", "unknown key 'lable'", "did you mean 'label'?"),
    missing_key: ("budget", "'parameters' is missing"),
    mistyped_key: ("budget.text_bytes", "expected a whole number, found 'many'"),
    yes_for_number: ("threads", "expected a whole number"),
    family_without_block: ("grid.families", "'gtp' has no entry in models", "did you mean 'gpt'?"),
    zero_budget: ("budget", "text_bytes is 0"),
    negative_budget: ("budget", "text_bytes is -1000"),
    moving_revision: ("corpora.general.sources[0]", "40 hex digits"),
    negative_seed: ("params.yaml: grid: ", "'seeds' holds -1"),
    beta_of_two: ("models.gpt.pretrain", "betas", "2.0"),
    name_of_a_control: ("models", "'tfidf'", "choose another"),
    one_text_to_adapt_to: ("tasks.mood", "1 distinct texts", "adapt_tasks"),
    list_for_a_text: ("mood/train.parquet: row 1: column 'review' holds a list, not text",),
    missing_grid_key: ("params.yaml: grid: ", "the key 'pretrain_seeds' is missing"),
    no_folder_to_write_to: ("artifacts: cannot be written to",),
    no_folder_for_bookkeeping: (".lineage", "cannot be written to"),
}
