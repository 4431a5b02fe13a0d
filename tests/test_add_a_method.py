"""A method is one file and two lines, and so is a type of answer: those of docs/how-to."""

import re
from pathlib import Path

import pandas as pd
import pytest

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
  grade: {kind: text_regression, files: {train: grades.csv, test: grades.csv}, text: [text], label: grade, max_words: 24}
grid:
  models: [gpt]
  pretrain_seeds: [0]
  tasks: [sentiment, grade]
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


def add_lines(path: Path, import_line: str, before: str, line: str) -> None:
    """Add an import, and a line before the first one that begins with `before`."""
    text = path.read_text(encoding="utf-8")
    first_import = text.index("\nfrom lineage.") + 1
    text = f"{text[:first_import]}{import_line}\n{text[first_import:]}"
    place = text.index(before)
    path.write_text(f"{text[:place]}{line}\n{text[place:]}", encoding="utf-8")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study whose code has the method and the answer of docs/how-to, after its run."""
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
    assert {*own["task"]} == {"sentiment"} and {*own["status"]} == {"ok"}
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
