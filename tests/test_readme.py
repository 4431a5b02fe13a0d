"""The commands and code that README and docs show work, from an empty folder with only the wheel."""

import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from flows.cli import app
from lineage import __version__
from lineage.artifacts import create_artifact, read_json
from lineage.synthetic.grammar import generate_documents
from tests.helpers import tiny
from tests.helpers.checkout import ROOT, run_command
from tests.helpers.installation import build_wheel, install_wheel
from tests.helpers.toy_project import free_port, read_dvc_lock

README = (ROOT / "README.md").read_text(encoding="utf-8")
MODELS_IN_AND_OUT = (ROOT / "docs/how-to/models-in-and-out.md").read_text(encoding="utf-8")
NUM_DOCUMENTS = 400
QUEUES = {
    "billing": ("invoice", "refund", "payment"),
    "hardware": ("printer", "screen", "keyboard"),
    "access": ("password", "login", "badge"),
}


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


def readme_block(first_words: str) -> list[str]:
    """Return the commands of README's block that begins with these words, without comments."""
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        if block.startswith(first_words):
            return [line.partition("  #")[0].strip() for line in block.splitlines()]
    raise AssertionError(f"README has no block that begins with {first_words}")


def write_user_files(folder: Path) -> None:
    """Write a folder of texts and a csv of tickets with three queues."""
    (folder / "texts").mkdir()
    for number, text in enumerate(generate_documents(NUM_DOCUMENTS, seed=5)):
        (folder / f"texts/{number:03d}.txt").write_text(text, encoding="utf-8")
    rng = np.random.default_rng(6)
    rows = []
    for number in range(360):
        queue = [*QUEUES][number % len(QUEUES)]
        word = QUEUES[queue][rng.integers(3)]
        body = f"hello , my {word} gives me trouble since {rng.integers(2, 30)} days , please help"
        rows.append({"id": number, "body": body, "queue": queue})
    pd.DataFrame(rows).to_csv(folder / "train.csv", index=False)


def run(environment: Path, folder: Path, command: str, **variables: str) -> str:
    """Run a line as in a shell with the environment activated, and return what it prints."""
    completed = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={
            "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "BROWSER": "true",
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert completed.returncode == 0, (command, completed.stdout[-3000:], completed.stderr[-3000:])
    return completed.stdout + completed.stderr


def shorten_study(path: Path) -> None:
    """Edit params.yaml by hand, as its comments invite to: two models and one seed."""
    text = path.read_text(encoding="utf-8")
    for line, shorter in (
        (
            "models: [word2vec, elmo, gpt_modern, bert_modern, gpt_bert]",
            "models: [word2vec, gpt_modern]",
        ),
        ("finetune_seeds: [0, 1, 2]", "finetune_seeds: [0]"),
    ):
        assert line in text
        text = text.replace(line, shorter)
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return install_wheel(build_wheel(folder / "dist"), folder / "venv")


@pytest.mark.slow
def test_the_commands_of_the_readme_work_in_an_empty_folder(
    environment: Path, tmp_path: Path
) -> None:
    """All lines of "Your own text" run, then `dvc repro` in a copy, and a second run."""
    assert run(environment, tmp_path, "lineage --version") == f"lineage {__version__}\n"
    write_user_files(tmp_path)
    install, init, cd, *commands = readme_block("pip install lineage-pretraining")
    assert install == "pip install lineage-pretraining"
    printed = run(environment, tmp_path, init)
    assert "text_classification" in printed and "label = queue" in printed
    assert cd == "cd tickets"
    study = tmp_path / "tickets"
    params = (study / "params.yaml").read_text(encoding="utf-8")
    assert (len(params.splitlines()) < 60 and "# guessed" in params) or "guess" in params
    shorten_study(study / "params.yaml")
    outputs = {}
    clock = {}
    for command in commands:
        begun = time.monotonic()
        outputs[command] = run(environment, study, command)
        clock[command] = time.monotonic() - begun
    assert commands == ["lineage check", "lineage run", "lineage report --open"]
    forecast = re.search(r"about ([\d.]+) (s|min|h) on", outputs["lineage check"])
    assert forecast is not None, outputs["lineage check"]
    forecast_seconds = float(forecast[1]) * {"s": 1, "min": 60, "h": 3600}[forecast[2]]
    assert 1 / 1.5 < forecast_seconds / clock["lineage run"] < 1.5, clock
    assert str(study / "reports/comparison.html") in outputs["lineage report --open"]
    assert (study / "dvc.yaml").read_bytes() == (ROOT / "dvc.yaml").read_bytes()
    provenance = read_json(study / "reports/comparison.json")["provenance"]
    assert provenance["package"].startswith("lineage 0.2.0, code sha256 ")
    assert provenance["study"] == "not in a git repository"
    assert "the run that began at" in run(environment, study, "lineage status")
    before = read_dvc_lock(study)
    second = run(environment, study, "lineage run")
    assert "stages: 2 ran" in second
    assert read_dvc_lock(study) == before
    by_hand = tmp_path / "by_hand"
    shutil.copytree(
        study, by_hand, ignore=shutil.ignore_patterns("artifacts", "cache", ".lineage", "dvc.lock")
    )
    # The environment has the wheel's own command only, not those of its requirements.
    run(environment, by_hand, "python -m dvc repro -q")
    assert read_dvc_lock(by_hand) == before
    results = "reports/results.csv"
    assert (by_hand / results).read_bytes() == (study / results).read_bytes()


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1100
