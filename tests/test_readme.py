"""Commands and code shown in README and docs exist and work."""

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from lineage.artifacts import create_artifact
from lineage.config.records import read_yaml
from lineage.config.resolve import merge_trees
from tests import tiny
from tests.checkout import MAKE, ROOT, clone, planned_stages, run_command
from tests.toy_project import free_port
from tests.user_project import write_params

README = (ROOT / "README.md").read_text(encoding="utf-8")
MODELS_IN_AND_OUT = (ROOT / "docs/how-to/models-in-and-out.md").read_text(encoding="utf-8")
COMMANDS_SHOWN = re.findall(r"`([^`\n]+)`", README) + re.findall(
    r"^(make \w+|python -m \S+).*$", README, re.MULTILINE
)


def test_readme_names_exactly_the_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", run_command(ROOT, "make", "help"), re.MULTILINE))
    named = {
        target for text in COMMANDS_SHOWN for target in re.findall(r"\bmake ([a-z][a-z-]*)", text)
    }
    assert named | {"help"} == targets


def test_readme_names_exactly_the_options_of_the_pipeline() -> None:
    offered = set(
        re.findall(
            r"--[a-z]+(?:-[a-z]+)*",
            run_command(ROOT, "python", "-m", "flows.pipeline", "--help", COLUMNS="200"),
        )
    ) - {"--help"}
    named = {
        option for text in COMMANDS_SHOWN for option in re.findall(r"--[a-z]+(?:-[a-z]+)*", text)
    } - {"--json"}
    assert named == offered


def test_models_are_exported_as_the_docs_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the code of the docs next to tiny models in the folders of a run."""
    for name in ("bert", "elmo", "word2vec"):
        with create_artifact(
            tmp_path / f"artifacts/pretrained/{name}/0", "model", status="ok"
        ) as draft:
            tiny.checkpoint(name).save(draft, tiny.model(name))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"```python\n(.*?)```", MODELS_IN_AND_OUT, re.DOTALL)), names)
    bert = tiny.model("bert")
    elmo = tiny.model("elmo")
    assert names["again"].config == bert.config
    assert names["vectors"].shape == (2, 3, 2 * elmo.config.projection_size)
    assert names["mask"].sum() == 5
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} == {
        path.name for path in Path("bert-0").iterdir()
    }
    assert names["known"] > 300 and Path("vectors.bin").is_file()


def test_the_study_in_the_readme_works_with_own_corpus_and_task(tmp_path: Path) -> None:
    """Use the study as README shows it, with less text."""
    shown = re.search(r"```yaml\n(corpora:.*?)```", README, re.DOTALL)
    assert shown is not None
    mine = YAML(typ="safe", pure=True).load(shown[1])
    folder = clone(tmp_path / "lineage")
    (folder / "texts").mkdir()
    rng = np.random.default_rng(4)
    for number in range(20):
        words = rng.integers(0, 6000, size=(400, 12))
        (folder / f"texts/{number}.txt").write_text(
            "\n".join(" ".join(f"word{w}" for w in line) + "." for line in words)
        )
    for split, count in (("train", 200), ("test", 40), ("more", 300)):
        body = [
            f"{split} {n}: the printer is {'on fire' if n % 2 else 'out of paper'}"
            for n in range(count)
        ]
        pd.DataFrame({"body": body, "queue": [n % 2 for n in range(count)]}).to_csv(
            folder / f"{split}.csv", index=False
        )
    small = {"budget": {"text_bytes": 700_000}, "adapt": {"text_bytes": 10_000}}
    # The lists of the grid that README leaves out are the demo's.
    grid = {"grid": read_yaml(ROOT / "params.yaml")["grid"]}
    write_params(folder, merge_trees(grid, merge_trees(mine, small)))
    run_command(folder, "python", "-m", "stages.sources")
    assert {
        "pretrain@bert-0",
        "adapt@elmo-0-tickets",
        "evaluate_adapted@gpt-0-tickets",
        "baselines@tickets",
    } <= planned_stages(folder)


@pytest.mark.slow
def test_make_ui_serves_both_pages_on_loopback_and_make_down_stops_them(project: Path) -> None:
    try:
        output = run_command(
            project,
            *MAKE,
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
        run_command(project, *MAKE, "down")
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(pages[0], timeout=5)


def test_links_between_documents_lead_to_files() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
        missing = [target for target in targets if not (document.parent / target).exists()]
        assert not missing, f"{document.relative_to(ROOT)} links to {missing}"
