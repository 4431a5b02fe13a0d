"""No sentence of a user's data leaves the artifacts: not into reports, MLflow or logs.

The demo's sentences are looked for in test_demo.py, and a user's with Prefect and workers in test_routes.py.
"""

import json
from pathlib import Path

import pytest

from lineage.errors import InputError, shown
from lineage.loading.files import check_columns, columns_of
from tests.private_text import leaks, texts_of
from tests.toy_project import HERE


@pytest.mark.slow
def test_a_run_tells_nobody_what_the_texts_say(walked: Path) -> None:
    texts = texts_of(walked.parent / "mine")
    assert len(texts) > 100
    assert (walked / "reports/comparison.html").is_file() and (walked / "mlflow.db").is_file() and [*(walked / ".lineage/logs").iterdir()]
    assert not leaks(walked, texts)


def test_a_canary_is_found_in_a_page_and_a_database(tmp_path: Path) -> None:
    """Else the others could not fail. One word alone is no sentence."""
    kept = "mlruns/lineage/1f/artifacts/comparison.json"
    written = {
        "reports/x.html": "<p>sings at dawn, and nobody</p>",
        "mlflow.db": "\0\1nobody is to know of\0",
        "logs/y.log": "quokka",
        "logs/zh.log": "谁也不该知道它唱",
        kept: json.dumps({"said": "短尾矮袋鼠在黎明时歌唱"}),
        "artifacts/tasks/x/train.parquet": "sings at dawn, and nobody",
    }
    for place, words in written.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(words)
    found = leaks(tmp_path, ["The quokka sings at dawn, and nobody is to know of it.", "短尾矮袋鼠在黎明时歌唱，谁也不该知道。"])
    assert [line.split(":")[0] for line in found] == ["logs/zh.log", "mlflow.db", kept, "reports/x.html"]


def test_show_text_is_off_unless_it_is_asked_for() -> None:
    assert "show_text: false" in (HERE / "profiles/base.yaml").read_text() and "show_text: false" in (HERE / "params.yaml").read_text()


@pytest.mark.parametrize(("row", "kept"), [
    ("the patient of room nine has hepatitis, and nobody is to know", "patient of room nine"),
    ("病人张伟得了乙肝，妻子尚不知情，请勿告知家属", "张伟得了乙肝"),
])  # fmt: skip
@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_a_file_without_names_of_columns_does_not_show_its_first_row(row: str, kept: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"train.{suffix}"
    path.write_text("".join(f"{row} {n}\t{n % 2}\n" if suffix == "tsv" else json.dumps({f"{row} {n}": n % 2}) + "\n" for n in range(30)))
    with pytest.raises(InputError, match="has no column 'text'") as caught:
        check_columns(["text"], columns_of(path, path.name, "tasks.mine.files.train"), path.name, "tasks.mine.files.train")
    assert kept not in str(caught.value) and len(str(caught.value)) < 1_500
    if suffix == "tsv":
        path.write_text(f"{row}\t{row}\n" * 30)
        with pytest.raises(InputError, match=r"names the column .* twice") as caught:
            columns_of(path, path.name, "tasks.mine.files.train")
        assert kept not in str(caught.value)


def test_a_shown_value_is_no_sentence() -> None:
    assert shown("one two three four five") == "one two three four f..." and shown("号" * 4) == "号" * 4 and shown("张伟得了乙肝") == "张伟得了..."
    assert shown("one\r\ntwo\nthree") == "one two three"
