"""The page of the report: its words, in a file that a reviewer reads, and how a section is added.

If a sentence is to change, run `python -m tests.test_page`, and read what git shows as changed.
The committed reports are golden files too; see `test_committed_reports`.
"""

import dataclasses
import re
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from lineage.analysis.build import build_results
from lineage.analysis.decision import decide
from lineage.analysis.records import Analysis
from lineage.artifacts import file_digest
from lineage.config.params import ReportParams
from lineage.report import markdown, page, publication
from lineage.report.decisions import (
    describe_decision,
    name_labels,
    order_decisions,
    summarize_decisions,
)
from lineage.report.formatting import format_model
from lineage.report.provenance import Provenance
from lineage.report.section import Section
from lineage.report.sections.models import format_training_cost
from lineage.report.sections.what_to_use import build_decision_table
from tests.checkout import ROOT, copy_tree, run_command
from tests.full_report import build_full_report
from tests.sections import report_of
from tests.study_rows import GRID, Study, render_pages

FULL_PAGE = ROOT / "tests/pages/full-report.md"
TOY_SECTION = '''"""How many comparisons there are."""

from lineage.report.section import ReportData, Section, Table


def build(report: ReportData) -> Section | None:
    """Return the number of comparisons."""
    count = str(len(report.analysis.comparisons))
    return Section("A toy section", [Table(["counted", "count"], [["comparisons", count]])])
'''


def render_full_report(folder: Path) -> dict[str, str]:
    analysis, decisions, facts = build_full_report(folder)
    return page.render_report(analysis, decisions, **facts)  # type: ignore[arg-type]


def test_the_words_of_the_page_are_those_of_the_golden_file(tmp_path: Path) -> None:
    assert render_full_report(tmp_path)["md"] == FULL_PAGE.read_text(encoding="utf-8")


def test_every_section_is_in_the_list_and_has_one_file() -> None:
    files = {path.stem for path in (ROOT / "lineage/report/sections").glob("*.py")} - {"__init__"}
    assert files == {*page.SECTIONS} and len(page.SECTIONS) == len(files)


def test_a_section_is_one_file_and_one_line(tmp_path: Path) -> None:
    """The page docs/how-to/add-a-section.md names these two files, and no other."""
    copy_tree(tmp_path)
    (tmp_path / "lineage/report/sections/toy.py").write_text(TOY_SECTION)
    listed = tmp_path / "lineage/report/page.py"
    text = listed.read_text()
    assert text.count('    "budget",\n') == 1
    listed.write_text(text.replace('    "budget",\n', '    "budget",\n    "toy",\n'))
    report = tmp_path / "reports/few-labels"
    run_command(tmp_path, "python", "-m", "flows.cli", "report", str(report))
    markdown = (report / "comparison.md").read_text(encoding="utf-8")
    html = (report / "comparison.html").read_text(encoding="utf-8")
    assert "## A toy section\n\n| counted | count |\n|---|---|\n| comparisons | " in markdown
    assert "<h2>A toy section</h2>" in html and '<th scope="row">comparisons</th>' in html
    assert html.index("Budget and cost</h2>") < html.index("A toy section")


PROVENANCE = Provenance(
    pipeline="1a2b",
    package="lineage 0.2.0, code sha256 1a2b",
    study="git commit 0ed60ea",
    parameters="",
    hosts="",
    devices="",
    compute_time="",
    python="",
    versions="",
)


DESCRIPTIONS = [
    {"model": name, "unit": "words | pieces", "objective": "next <token>"} for name in GRID.models
]


@pytest.fixture(scope="module")
def analysis(study_results: tuple[pd.DataFrame, Analysis]) -> Analysis:
    return study_results[1]


def stage_metadata(folder: Path, model: str, **costs: float) -> dict[str, Any]:
    """Return what a pretraining stage recorded, for the curve in this folder."""
    curve = file_digest(folder / f"curves/pretrain-{model}-0.parquet")
    return {"stage": f"pretrain@{model}-0", "curve_sha256": curve, **costs}


@pytest.fixture(scope="module")
def pages(analysis: Analysis, study_folder: Path) -> dict[str, str]:
    stages = {
        f"pretrain@{name}-0": stage_metadata(
            study_folder, name, seconds=41.0, peak_memory_bytes=7e8
        )
        for name in GRID.models
    }
    budget = publication.add_pretraining_costs(
        analysis.budget, stages, curves_dir=study_folder / "curves"
    )
    analysis = dataclasses.replace(analysis, budget=budget)
    return page.render_report(
        analysis,
        decide(analysis, {}),
        provenance=PROVENANCE,
        model_descriptions=DESCRIPTIONS,
    )


class PageParser(HTMLParser):
    """Collects the text of a page and what a browser would fetch for it."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in attrs}
        if tag in ("link", "iframe", "img", "object", "embed", "base"):
            self.fetched.append(tag)
        self.fetched += [
            value
            for key, value in attributes.items()
            if key in ("src", "href", "xlink:href") and not value.startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_loads_no_other_file(pages: dict[str, str]) -> None:
    parser = PageParser()
    parser.feed(pages["html"])
    assert parser.fetched == []
    assert "@import" not in pages["html"] and "url(" not in pages["html"]


def test_both_pages_open_with_the_decisions(analysis: Analysis, pages: dict[str, str]) -> None:
    parser = PageParser()
    parser.feed(pages["html"])
    text = " ".join(" ".join(parser.words).split())
    own = decide(analysis, {})
    answer = summarize_decisions(analysis, own)
    for page_text in (text, pages["md"]):
        assert page_text.index(answer) < page_text.rindex("Provenance")
    assert [(one.task, one.label_count) for one in order_decisions(own)] == [
        ("sentiment", "all"),
        ("sentiment", "100"),
        ("sense", "all"),
        ("sense", "100"),
        ("agreement", "none"),
    ]
    lines = markdown.render_page(
        [Section(blocks=(build_decision_table(report_of(analysis, own)),))]
    )
    assert len(lines.splitlines()) == 2 + len(own) and lines in pages["md"]
    for one in own:
        assert f'title="{describe_decision(one)}"' in pages["html"]
    systems = {(one.system, one.task) for one in analysis.scores if one.mean is not None}
    assert pages["html"].count('<svg class="strip"') >= len(systems), "one strip per system"


def test_all_css_variables_of_the_figures_are_defined(pages: dict[str, str]) -> None:
    used = set(re.findall(r"var\((--\w+)", pages["html"]))
    defined = set(re.findall(r"(--\w+):", pages["html"]))
    assert used and used <= defined


def test_names_from_outside_are_escaped(pages: dict[str, str]) -> None:
    assert "next &lt;token&gt;" in pages["html"] and "next <token>" not in pages["html"]
    assert "words \\| pieces" in pages["md"]


def test_each_model_has_its_cost_per_byte_of_text(pages: dict[str, str]) -> None:
    assert "| model | unit | objective | cost |" in pages["md"]
    for name in GRID.models:
        line = f"| {format_model(name)} | words \\| pieces | next &lt;token> | 775 k FLOPs a byte |"
        assert line in pages["md"]
    assert pages["html"].count('<td class="n">775 k FLOPs a byte</td>') == len(GRID.models)


def test_a_model_whose_flops_are_not_counted_has_no_cost(analysis: Analysis) -> None:
    budget = dataclasses.replace(analysis.budget[0], model="glove", train_flops=None)
    assert format_training_cost(budget) == "n/a"
    assert format_training_cost(None) == "n/a", "a model without a line in the budget"


def test_the_terminal_table_is_plain_where_there_is_no_terminal(
    analysis: Analysis, capsys: pytest.CaptureFixture[str]
) -> None:
    own = decide(analysis, {})
    page.print_table(analysis, own, Console(width=120))
    output = capsys.readouterr().out
    assert output.isascii() and "BERT adapted, fine-tuned" in output
    assert summarize_decisions(analysis, own) in output
    for one in own:
        assert f"- {one.task}, {name_labels(one)}: {describe_decision(one)}" in output
    assert output.count("*") >= 5, "one for each setting, and in the caption"


def small_analysis(folder: Path, **changes: Any) -> Analysis:
    """Return the analysis of a study with 40 items."""
    grid = dataclasses.replace(GRID, **changes)
    return build_results(Study(folder, items=40).write(), grid, ReportParams())[1]


def test_the_stated_budget_is_that_of_the_model_that_read_the_most_text(tmp_path: Path) -> None:
    """With several epochs, a family that counts co-occurrences reads less text than the others."""
    analysis = small_analysis(tmp_path)
    budget = [
        replace(one, text_bytes=4e6 if number else 1e6)
        for number, one in enumerate(analysis.budget)
    ]
    text = render_pages(replace(analysis, budget=tuple(budget)))["html"]
    assert "BERT · 4 MB of text" in text.replace("\n", " ")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FULL_PAGE.write_text(render_full_report(Path(folder))["md"], encoding="utf-8")
