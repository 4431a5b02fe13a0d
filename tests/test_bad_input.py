"""Bad input ends in exit code 2 and one message that says what is wrong, where, and what to do, before anything is written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lineage.records import read_yaml
from tests.user_project import HERE, make, moods, stage, write


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


def two_texts(folder, tree):
    change(tree, "tasks.mood.text", ["review", "stars"])


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
    two_texts: ("text", "exactly one"),
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
    no_folder_to_write_to: ("artifacts: cannot be written to",),
}


def spoil(folder: Path, case) -> None:
    tree = make(folder)
    case(folder, tree)
    write(folder, tree)


def written(folder: Path) -> set[str]:
    """What a run left besides its own bookkeeping."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not str(p.relative_to(folder)).startswith(".lineage")}


def check_message(said: str, parts: tuple[str, ...]) -> None:
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    assert all(part in lines[0] for part in parts), f"{lines[0]!r} lacks one of {parts}"
    assert "Traceback" not in said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_bad_input_is_one_message_and_exit_code_2(case, tmp_path, monkeypatch, capsys):
    spoil(tmp_path, case)
    before = written(tmp_path)
    code, said = stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2, said
    check_message(said, CASES[case])
    assert written(tmp_path) == before


def test_good_input_passes_and_a_second_time_reads_no_data(tmp_path, monkeypatch, capsys):
    make(tmp_path)
    assert stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys) == (0, "")
    records = {p: p.read_bytes() for p in (tmp_path / "artifacts/sources").rglob("*.json")}
    assert len(records) == 4  # a corpus, a task, a variant, the manifest

    def refuse(*_, **__):
        raise AssertionError("read again")

    monkeypatch.setattr("lineage.sourcing.Table.batches", refuse)
    assert stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys) == (0, "")
    assert records == {p: p.read_bytes() for p in (tmp_path / "artifacts/sources").rglob("*.json")}


def test_a_check_is_repeated_when_the_data_change(tmp_path, monkeypatch, capsys):
    make(tmp_path)
    assert stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    strange_label(tmp_path, {})
    code, said = stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    check_message(said, CASES[strange_label])


def test_the_command_itself_exits_with_2(tmp_path):
    spoil(tmp_path, missing_column)
    environment = {**os.environ, "PYTHONPATH": str(HERE), "LINEAGE_MAIN": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "stages.sources"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    check_message(done.stderr, CASES[missing_column])
    assert not (tmp_path / "artifacts").exists()


def test_results_of_cells_that_the_grid_lost_are_removed(tmp_path, monkeypatch, capsys):
    make(tmp_path)
    kept = ["rows/evaluate-gpt-0-mood.parquet", "predictions/control-mood.parquet", "budgets/pretrain-gpt-0.json", "curves/adapt-gpt-0-mood.parquet"]
    lost = [
        "rows/evaluate-gpt-1-mood.parquet",
        "rows/evaluate-elmo-0-mood.parquet",
        "predictions/control-moods.parquet",
        "budgets/pretrain-gpt-1.json",
    ]
    for name in kept + lost:
        path = tmp_path / "artifacts/results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert stage(tmp_path, "sources", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    assert sorted(str(p.relative_to(tmp_path / "artifacts/results")) for p in (tmp_path / "artifacts/results").rglob("*.*")) == sorted(kept)


# What `python -m flows.pipeline` is tried on: one case of each sort, since each takes a process or two.
BY_PIPELINE = [missing_file, empty_file, not_utf8, missing_column, blank_text, small_corpus, strange_label, misspelt_key, mistyped_key]
BY_PIPELINE += [family_without_block, zero_budget, negative_budget, no_folder_to_write_to]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A committed copy of this project with a user's data in it."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("flows", "stages", "lineage", "profiles", ".dvc"):
        shutil.copytree(HERE / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local"))
    for name in ("dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(HERE / name, root)
    make(root)
    git = ("git", "-C", str(root), "-c", "user.name=user", "-c", "user.email=user@localhost")
    subprocess.run([*git[:3], "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "a project"], check=True)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "options"),
    [*((case, ["--local"]) for case in BY_PIPELINE), (missing_column, []), (misspelt_key, [])],
    ids=lambda value: getattr(value, "__name__", "walker" if value else "prefect"),
)
def test_the_pipeline_ends_with_the_same_message_and_exit_code(case, options, checkout, tmp_path):
    root = tmp_path / "project"
    shutil.copytree(checkout, root)
    tree = read_yaml(root / "params.yaml")
    case(root, tree)
    write(root, tree)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LINEAGE_", "PREFECT_", "GIT_"))} | {"OMP_NUM_THREADS": "1"}
    before = written(root)
    done = subprocess.run([sys.executable, "-m", "flows.pipeline", *options], cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    check_message(done.stderr, CASES[case])
    left = {name for name in written(root) - before if "__pycache__" not in name and not name.startswith((".dvc", ".prefect"))}
    assert left <= {"artifacts"}, left
