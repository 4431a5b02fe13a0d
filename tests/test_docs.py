"""The documents are up to date: generated pages, commands, files, and links from the index."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML
from typer.core import TyperGroup
from typer.main import get_command

from flows.cli import app
from lineage.config.records import read_yaml
from lineage.results import (
    CURVE_COLUMNS,
    INTERMEDIATE_COLUMNS,
    PREDICTION_COLUMNS,
    RESULT_COLUMNS,
    RESULT_KEY_COLUMNS,
)
from lineage.runtime.provenance import common_tags
from tests.helpers.checkout import ROOT
from tests.helpers.documents import described_names, load_generator

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", *PAGES]
TOP_FOLDERS = ("benchmarks", "docs", "flows", "lineage", "stages", "studies", "tests")
# Named in a record of why they were removed.
REMOVED_FILES = ("tests/planted*.py", "tests/test_planted_bugs.py", "benchmarks/gpu_pretrain.py")
PLACEHOLDER = re.compile(r"[A-Z]{3}")  # NAME, KIND
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def read_page(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def fenced_blocks(language: str) -> Iterator[tuple[Path, str]]:
    """Yield the blocks of a language, with their pages."""
    for page in DOCUMENTS:
        for block in re.findall(rf"```{language}\n(.*?)```", read_page(page), re.DOTALL):
            yield page, block


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"```.*?```", "", read_page(page), flags=re.DOTALL)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_generator()


def test_reference_pages_are_up_to_date(generator: ModuleType) -> None:
    """The third, of claims, is compared where the reports that it shows are made again."""
    assert {*generator.PAGES} == {"params.md", "commands.md", "claims.md"}
    for name in ("params.md", "commands.md"):
        message = f"{name}: run `python docs/reference/generate.py`"
        assert read_page(DOCS / "reference" / name) == generator.PAGES[name](), message


def test_a_stale_reference_page_is_found_and_written_again(
    generator: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(generator, "REFERENCE_DIR", tmp_path)
    monkeypatch.setattr(generator, "PAGES", {"commands.md": generator.PAGES["commands.md"]})
    (tmp_path / "commands.md").write_text("old")
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    assert generator.main() == 1
    assert "commands.md" in capsys.readouterr().err
    assert (tmp_path / "commands.md").read_text() == "old"
    monkeypatch.setattr("sys.argv", ["generate.py"])
    assert generator.main() == 0
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    assert generator.main() == 0


def test_every_column_and_tag_is_described() -> None:
    assert described_names("results.md", "Columns of results") == [*RESULT_COLUMNS]
    own = [name for name in PREDICTION_COLUMNS if name not in RESULT_COLUMNS]
    named = described_names("results.md", "Columns of predictions")
    assert named == [*own, *INTERMEDIATE_COLUMNS]
    own = [name for name in CURVE_COLUMNS if name not in RESULT_KEY_COLUMNS]
    assert described_names("results.md", "Columns of learning curves") == own
    keys = ", ".join(f"`{name}`" for name in PREDICTION_COLUMNS if name in RESULT_COLUMNS)
    assert f"These name the result: {keys}." in read_page(DOCS / "reference" / "results.md")
    own_tags = {name for name in common_tags("0") if not name.startswith("mlflow.")}
    assert own_tags <= set(described_names("tags.md", "Tags"))


def test_every_output_of_a_stage_is_described() -> None:
    outputs = []
    for stage, definition in read_yaml(ROOT / "dvc.yaml")["stages"].items():
        for output in definition.get("outs", ()):
            path = output if isinstance(output, str) else next(iter(output))  # it has options
            for key in ("corpus", "task", "model", "seed"):
                path = path.replace(f"${{item.{key}}}", key.upper())
            outputs.append((stage, path))
    text = read_page(DOCS / "reference" / "files.md").partition("## Outputs of stages")[2]
    assert re.findall(r"^\| (\w+) \| `([^`]+)` \| \w", text, re.MULTILINE) == outputs


def lineage_commands() -> TyperGroup:
    return get_command(app)


def test_every_command_line_of_the_documents_can_be_parsed() -> None:
    commands = lineage_commands().commands
    seen = set()
    for page, block in fenced_blocks("sh"):
        for line in block.splitlines():
            if not line.startswith("lineage "):
                continue
            _, name, *words = shlex.split(line, comments=True)
            if name == "--version":
                continue
            assert name in commands, f"{page.name}: {line}"
            # Raises a usage error for an option that the command does not have.
            commands[name].make_context(name, list(words))
            seen.add(name)
    assert seen >= {"init", "check", "plan", "run", "status", "report", "ui", "up", "down"}


def test_an_option_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(Exception, match="No such option"):
        lineage_commands().commands["run"].make_context("run", ["--profile", "mine"])


def test_every_command_named_in_a_sentence_exists_with_its_options() -> None:
    commands = lineage_commands().commands
    for page in DOCUMENTS:
        for text in INLINE.findall(prose(page)):
            words = text.split()
            if words[0] != "lineage" or len(words) == 1 or PLACEHOLDER.match(words[1]):
                continue
            if words[1] == "--version":
                continue
            assert words[1] in commands, f"{page.name}: {text}"
            known = {name for one in commands[words[1]].params for name in one.opts} | {"--help"}
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert options <= known, f"{page.name}: {text}"


def test_every_file_that_a_document_names_exists() -> None:
    num_seen = 0
    for page in PAGES:
        for text in INLINE.findall(prose(page)):
            path = text.split()[0]
            top_folder, slash, _ = path.partition("/")
            if not slash or top_folder not in TOP_FOLDERS or path in REMOVED_FILES:
                continue
            if PLACEHOLDER.search(path):
                path = str(Path(path).parent)
            assert list(ROOT.glob(path.rstrip("/"))), f"{page.relative_to(ROOT)} names {text}"
            num_seen += 1
    assert num_seen > 20


def test_every_yaml_block_is_yaml() -> None:
    for page, block in fenced_blocks("yaml"):
        assert YAML(typ="safe", pure=True).load(block), page


def test_every_page_can_be_reached_from_the_index() -> None:
    reached = set()
    ahead = [DOCS / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)#:]+\.md)\)", read_page(page)):
            linked = (page.parent / target).resolve()
            if linked.is_relative_to(DOCS):
                ahead.append(linked)
    assert reached == set(PAGES)


def test_links_between_documents_lead_to_files() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
        missing = [target for target in targets if not (document.parent / target).exists()]
        assert not missing, f"{document.relative_to(ROOT)} links to {missing}"
