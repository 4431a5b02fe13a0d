"""The page of the report: its words, in files that a reviewer reads, and how a section is added.

If a sentence is to change, run `python -m tests.test_page`, and read what git shows as changed.
The committed reports are golden files too; see `test_committed_reports`.
"""

import io
import re
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lineage.analysis.records import Analysis
from lineage.report import page
from lineage.report.section import ReportData
from lineage.report.sections.answer import format_text_read
from lineage.runtime.code import imported_names
from tests.helpers.checkout import ROOT, copy_tree, run_command
from tests.helpers.full_report import build_full_report

PAGES = ROOT / "tests/pages"
HOW_TO = ROOT / "docs/how-to/add-a-section.md"
TERMINAL_WIDTH = 200


def render_full_report(folder: Path) -> dict[str, str]:
    """Return the pages of a report with something in every section, and what a run prints."""
    report = build_full_report(folder)
    pages = page.render_report(report)
    stream = io.StringIO()
    page.print_table(report.analysis, report.decisions, Console(file=stream, width=TERMINAL_WIDTH))
    return pages | {"txt": stream.getvalue()}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return render_full_report(tmp_path_factory.mktemp("full"))


@pytest.mark.parametrize("kind", ["md", "txt"])
def test_the_words_of_the_page_are_those_of_the_golden_file(
    kind: str, pages: dict[str, str]
) -> None:
    assert pages[kind] == (PAGES / f"full-report.{kind}").read_text(encoding="utf-8")


def test_both_pages_have_the_same_sections_and_links_that_lead_somewhere(
    pages: dict[str, str],
) -> None:
    headings = re.findall(r"<h2>([^<]*)", pages["html"])
    for name in re.findall(r"^## ([^(\n]*)", pages["md"], re.MULTILINE):
        assert name.strip() in [heading.strip() for heading in headings], name
    targets = set(re.findall(r'href="#([^"]*)"', pages["html"]))
    assert len(targets) >= 9 and targets <= set(re.findall(r' id="([^"]*)"', pages["html"]))


def test_the_page_loads_no_other_file(pages: dict[str, str]) -> None:
    html = pages["html"]
    assert not re.findall(r"<(?:link|iframe|img|object|embed|base)\b", html)
    assert not re.findall(r'\s(?:src|href|xlink:href)="(?!#)', html)
    assert "@import" not in html and "url(" not in html


def test_all_css_variables_of_the_figures_are_defined(pages: dict[str, str]) -> None:
    used = set(re.findall(r"var\((--\w+)", pages["html"]))
    assert used and used <= set(re.findall(r"(--\w+):", pages["html"]))


def test_names_from_outside_are_escaped(pages: dict[str, str]) -> None:
    """Labels, groups, texts of items and descriptions of the full report have marks of HTML."""
    assert "A text | with &lt;b&gt;" in pages["html"]
    for name in ("<token>", "<far>", "<no>", "<b>marks"):
        assert name not in pages["html"] and name not in pages["md"]
    assert "near \\| far" in pages["md"]


def test_the_stated_budget_is_that_of_the_model_that_read_the_most_text(analysis: Analysis) -> None:
    """With several epochs, a family that counts co-occurrences reads less text than the others."""
    first, *others = analysis.budget
    budget = (replace(first, text_bytes=1e6), *(replace(one, text_bytes=4e6) for one in others))
    budget = tuple(replace(one, epochs=1.0) for one in budget)
    assert format_text_read(ReportData(replace(analysis, budget=budget))) == "4 MB of text"
    twice = tuple(replace(one, epochs=2.0) for one in budget)
    read = format_text_read(ReportData(replace(analysis, budget=twice)))
    assert read == "2 MB of text, read 2 times"


def test_every_section_is_in_the_list_and_has_one_file() -> None:
    files = {path.stem for path in (ROOT / "lineage/report/sections").glob("*.py")} - {"__init__"}
    assert files == {*page.SECTIONS} and len(page.SECTIONS) == len(files)


@pytest.mark.parametrize("name", page.SECTIONS)
def test_a_section_knows_neither_the_page_nor_a_renderer(name: str) -> None:
    """The page loads sections by their names, so the test of cycles does not see them."""
    imported = imported_names(ROOT / f"lineage/report/sections/{name}.py")
    above = {
        f"lineage.report.{one}" for one in ("page", "html", "markdown", "terminal", "evidence")
    }
    assert imported and not imported & above


def test_a_section_is_one_file_and_one_line(tmp_path: Path) -> None:
    """The section of docs/how-to/add-a-section.md is on both pages, and no other file changes."""
    (code,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    copy_tree(tmp_path)
    (tmp_path / "lineage/report/sections/toy.py").write_text(textwrap.dedent(code))
    listed = tmp_path / "lineage/report/page.py"
    text = listed.read_text()
    assert text.count('    "budget",\n') == 1
    listed.write_text(text.replace('    "budget",\n', '    "budget",\n    "toy",\n'))
    report = tmp_path / "reports/few-labels"
    run_command(tmp_path, "python", "-m", "flows.cli", "report", str(report))
    markdown = (report / "comparison.md").read_text(encoding="utf-8")
    html = (report / "comparison.html").read_text(encoding="utf-8")
    section = markdown.partition("## Comparisons by type\n")[2].partition("\n## ")[0]
    assert "| type | count |\n|---|---:|\n| pretraining | " in section
    assert "<h2>Comparisons by type</h2>" in html and '<th scope="row">pretraining</th>' in html
    assert html.index("Budget and cost</h2>") < html.index("Comparisons by type</h2>")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for kind, text in render_full_report(Path(folder)).items():
            if kind != "html":
                (PAGES / f"full-report.{kind}").write_text(text, encoding="utf-8")
