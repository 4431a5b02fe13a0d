"""No sentence of a user's data leaves the artifacts: not into reports, MLflow, Prefect or logs. (With Prefect and workers: test_routes.py.)"""

from pathlib import Path

from tests.private_text import leaks, texts_of
from tests.toy_project import HERE


def test_a_run_tells_nobody_what_the_texts_say(walked: Path) -> None:
    data = walked.parent / "mine"
    assert len(texts_of(data)) > 100
    assert (walked / "reports/comparison.html").is_file() and (walked / "mlflow.db").is_file() and [*(walked / ".lineage/logs").iterdir()]
    assert not leaks(walked, data)


def test_a_canary_is_found_in_a_page_a_database_and_a_log(walked: Path, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("The quokka sings at dawn, and nobody is to know of it.")
    for place, text in (
        ("reports/x.html", "<p>sings at dawn, and nobody</p>"),
        ("mlflow.db", "\0\1nobody is to know of\0"),
        ("logs/y.log", "quokka"),
    ):
        (tmp_path / "run" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / place).write_text(text)
    assert [line.split(":")[0] for line in leaks(tmp_path / "run", tmp_path / "data")] == ["mlflow.db", "reports/x.html"]


def test_show_text_is_off_unless_it_is_asked_for() -> None:
    assert "show_text: false" in (HERE / "profiles/base.yaml").read_text() and "show_text: false" in (HERE / "params.yaml").read_text()
