"""No sentence of a user's data leaves the artifacts: not into reports, MLflow or logs.

The demo's sentences are looked for in test_demo.py, and a user's with Prefect and workers in test_routes.py.
"""

import json
from pathlib import Path

import pytest

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
