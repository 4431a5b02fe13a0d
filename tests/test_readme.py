"""Commands and code shown in README and docs exist and work."""

import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from lineage.artifacts import create_artifact
from tests.helpers import tiny
from tests.helpers.checkout import ROOT, run_command
from tests.helpers.toy_project import free_port

README = (ROOT / "README.md").read_text(encoding="utf-8")
MODELS_IN_AND_OUT = (ROOT / "docs/how-to/models-in-and-out.md").read_text(encoding="utf-8")


def test_readme_names_only_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", run_command(ROOT, "make", "help"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", README))
    assert named <= targets | {"help"}
    assert {"demo", "ui", "test"} <= named


def test_models_are_exported_as_the_docs_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the commands and the code of the docs next to tiny models in the folders of a run."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for name in ("bert", "elmo", "word2vec"):
        with create_artifact(
            tmp_path / f"artifacts/pretrained/{name}/0", "model", status="ok"
        ) as draft:
            tiny.checkpoint(name).save(draft, tiny.model(name))
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^lineage (export (?:bert|elmo|word2vec) \S+)", MODELS_IN_AND_OUT, re.M)
    assert len(commands) == 3
    for command in commands:
        assert CliRunner().invoke(app, command.split()).exit_code == 0, command
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"```python\n(.*?)```", MODELS_IN_AND_OUT, re.DOTALL)), names)
    bert = tiny.model("bert")
    elmo = tiny.model("elmo")
    assert names["bert"].config == bert.config
    assert names["vectors"].shape == (2, 3, 2 * elmo.config.projection_size)
    assert names["mask"].sum() == 5
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} == {
        path.name for path in Path("bert-0").iterdir()
    }
    assert names["known"] > 300 and Path("vectors.bin").is_file()


@pytest.mark.slow
def test_ui_serves_both_pages_on_loopback_and_down_stops_them(project: Path) -> None:
    try:
        output = run_command(
            project,
            "lineage",
            "ui",
            LINEAGE_PREFECT_PORT=str(free_port()),
            LINEAGE_MLFLOW_PORT=str(free_port()),
        )
        pages = re.findall(r"http://\S+", output)
        assert len(pages) == 2 and all(page.startswith("http://127.0.0.1:") for page in pages)
        assert "workflowType=machine_learning" in pages[0]
        for page in pages:
            with urllib.request.urlopen(page, timeout=20) as response:
                assert response.status == 200
    finally:
        run_command(project, "lineage", "down")
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(pages[0], timeout=5)


def test_links_between_documents_lead_to_files() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
        missing = [target for target in targets if not (document.parent / target).exists()]
        assert not missing, f"{document.relative_to(ROOT)} links to {missing}"
