"""A method, a type of answer and a kind of task are one file each, as in docs/how-to."""

import re
from pathlib import Path

import pandas as pd
import pytest

from lineage.config.records import read_yaml
from lineage.synthetic.grammar import generate_documents
from tests.helpers.checkout import ROOT, copy_tree, run_command

STUDY = """\
corpora:
  general:
    language: en
    sources:
      - {generated: synthetic, num_documents: 40}
budget: {corpus: general, text_bytes: 50_000, max_epochs: 1, body_parameters: 20_000}
tasks:
  sentiment: {kind: text_classification, generated: synthetic, max_words: 24, limit: {train: 60, validation: 20, test: 40}}
  stance: {kind: stance, files: {train: stance.csv, test: stance.csv}, text: [text], about: about, label: label, max_words: 24}
  grade: {kind: text_regression, files: {train: grades.csv, test: grades.csv}, text: [text], label: grade, max_words: 24}
grid:
  models: [gpt]
  pretrain_seeds: [0]
  tasks: [sentiment, grade, stance]
  adapt_models: []
  adapt_tasks: []
  target_only_models: []
  finetune_seeds: [0]
  label_counts: [all]
  tfidf_C: [10.0]
  join_models: []
  join_tasks: []
  join_static_model: word2vec
defaults:
  evaluate: {linear_probe: {l2: 0.01}, finetune: {epochs: 1, min_steps: null, trials: []}}
models:
  gpt:
    tokenizer: {vocab_size: 500}
    architecture: {num_layers: 1, num_heads: 2}
    pretrain: {seq_len: 40}
"""


def read_example(name: str) -> str:
    """Return the first block of code of a page of docs/how-to."""
    text = (ROOT / "docs/how-to" / name).read_text(encoding="utf-8")
    example = re.search(r'```python\n(""".*?)```', text, re.DOTALL)
    return example[1]


def add_stance(folder: Path) -> None:
    """Add the kind of task of docs/how-to, and a file of 80 rows."""
    (folder / "lineage/tasks/stance.py").write_text(read_example("add-a-kind-of-task.md"))
    add_lines(
        folder / "lineage/config/data.py",
        "",
        "    label: str | None = None\n    tokens",
        "    about: str | None = None  # for stance: what a text is for or against",
    )
    rows = [
        (f"w{n % 7} w{n} {'yes' if n % 3 else 'no'}", f"s{n % 2}", f"{n % 3 % 2}")
        for n in range(80)
    ]
    pd.DataFrame(rows, columns=["text", "about", "label"]).to_csv(
        folder / "stance.csv", index=False
    )


def add_lines(path: Path, import_line: str, before: str, line: str) -> None:
    """Add an import, if any, and a line before the first one that begins with `before`."""
    text = path.read_text(encoding="utf-8")
    if import_line:
        first_import = text.index("\nfrom lineage.") + 1
        text = f"{text[:first_import]}{import_line}\n{text[first_import:]}"
    place = text.index(before)
    path.write_text(f"{text[:place]}{line}\n{text[place:]}", encoding="utf-8")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study whose code has the examples of docs/how-to, after its run."""
    folder = copy_tree(tmp_path_factory.mktemp("extended"))
    (folder / "lineage/methods/nearest.py").write_text(read_example("add-a-method.md"))
    add_lines(
        folder / "lineage/methods/registry.py",
        "from lineage.methods.nearest import NearestMethod",
        "    translation: TranslationMethod",
        "    nearest: NearestMethod = field(default_factory=NearestMethod)",
    )
    (folder / "lineage/answers/grade.py").write_text(read_example("add-a-type-of-answer.md"))
    kind = folder / "lineage/tasks/text_regression.py"
    text = kind.read_text()
    assert text.count("    answer=NumberAnswer,\n") == 1
    kind.write_text(
        text.replace("    answer=NumberAnswer,\n", "    answer=GradeAnswer,\n").replace(
            "from lineage.answers.number import NumberAnswer",
            "from lineage.answers.grade import GradeAnswer",
        )
    )
    add_stance(folder)
    (folder / "params.yaml").write_text(STUDY)
    grades = pd.DataFrame(
        {
            "text": [f"w{n % 7} w{n % 5} w{n}" for n in range(80)],
            "grade": [n % 7 for n in range(80)],
        }
    )
    grades.to_csv(folder / "grades.csv", index=False)
    run_command(folder, "python", "-m", "flows.cli", "run", "--no-prefect", "--jobs", "2")
    return folder


def test_a_method_is_one_file_and_two_lines(study: Path) -> None:
    rows = pd.read_csv(study / "reports/results.csv", keep_default_na=False)
    own = rows[(rows["head"] == "nearest") & (rows["group"] == "all")]
    assert {*own["init"]} == {"pretrained", "random"}
    assert {*own["task"]} == {"sentiment", "stance"} and {*own["status"]} == {"ok"}
    page = (study / "reports/comparison.md").read_text(encoding="utf-8")
    assert "GPT, nearest neighbour" in page
    (study / "new.csv").write_text("text\nw1 w2\nw3\n")
    run_command(
        study, "python", "-m", "flows.cli", "predict", "new.csv", "-o", "out.csv",
        "--task", "sentiment", "--system", "gpt-frozen-nearest",
    )  # fmt: skip
    answers = pd.read_csv(study / "out.csv")["prediction"]
    assert len(answers) == 2 and answers.notna().all()


def test_a_type_of_answer_is_one_file_that_a_kind_names(study: Path) -> None:
    predictions = pd.read_parquet(
        study / "artifacts/results/predictions/evaluate-gpt-0-grade.parquet"
    )
    answers = predictions["prediction"].astype(float)
    assert len(answers) and (answers == answers.round()).all()
    baselines = pd.read_parquet(study / "artifacts/results/predictions/baselines-grade.parquet")
    assert (baselines["prediction"].astype(float) % 1 == 0).all()


def test_a_kind_of_task_is_one_file_and_one_line(study: Path) -> None:
    rows = pd.read_csv(study / "reports/results.csv", keep_default_na=False)
    own = rows[(rows["task"] == "stance") & (rows["group"] == "all")]
    assert {*own.loc[own["status"] == "ok", "model"]} >= {"gpt", "majority", "tfidf"}
    assert {*own.loc[own["status"] == "ok", "transfer"]} >= {"frozen", "finetuned"}
    (study / "new.csv").write_text("text,about\nw1 yes,s1\n,s0\nw3 no,s0\n")
    run_command(
        study, "python", "-m", "flows.cli", "predict", "new.csv", "-o", "stances.csv",
        "--task", "stance", "--system", "tfidf",
    )  # fmt: skip
    answers = pd.read_csv(study / "stances.csv")["prediction"]
    assert answers.notna().tolist() == [True, False, True]


def test_init_proposes_the_new_kind_and_check_refuses_a_bad_row(study: Path) -> None:
    documents = generate_documents(60, seed=1)
    (study / "texts.txt").write_text("\n\n".join(documents), encoding="utf-8")
    run_command(
        study, "python", "-m", "flows.cli", "init", "own", "--corpus", "texts.txt",
        "--task", "view=stance.csv",
    )  # fmt: skip
    task = read_yaml(study / "own/params.yaml")["tasks"]["view"]
    assert task["kind"] == "stance"
    assert (task["text"], task["about"], task["label"]) == (["text"], "about", "label")
    table = pd.read_csv(study / "stance.csv")
    table.loc[4, "about"] = " "
    table.to_csv(study / "stance.csv", index=False)
    printed = run_command(
        study / "own", "python", "-m", "flows.cli", "check", code=2, PYTHONPATH=str(study)
    )
    assert "row 5: column 'about': the subject is blank" in printed
