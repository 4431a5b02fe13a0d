"""The reports of real studies in reports/ follow from the results and predictions beside them."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lineage.analysis.records import System
from lineage.artifacts import read_json
from lineage.report.evidence import EVIDENCE_DIR, rebuild_report
from lineage.report.formatting import format_model, format_use
from tests.helpers.checkout import ROOT

MAX_PAGE_BYTES = 1_000_000
LABEL_CHART = re.compile("<title>[^<]*, scores with [^<]* labels: [^<]*</title>")
REPORTS = sorted(path.parent for path in (ROOT / "reports").glob(f"*/{EVIDENCE_DIR}"))


def read_decisions(folder: Path) -> list[tuple[Any, ...]]:
    return [
        (
            one["task"],
            one["label_count"],
            one["system"],
            pytest.approx(one["use"]["standing"]["mean"]),
        )
        for one in read_json(folder / "decisions.json")
    ]


def test_there_is_a_committed_report() -> None:
    assert REPORTS


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_a_committed_report_is_made_again_from_its_evidence(report: Path, tmp_path: Path) -> None:
    shutil.copytree(report / EVIDENCE_DIR, tmp_path / EVIDENCE_DIR)
    page = rebuild_report(tmp_path)
    assert page.stat().st_size <= MAX_PAGE_BYTES
    charts = LABEL_CHART.findall(page.read_text(encoding="utf-8"))
    decisions = read_json(tmp_path / "decisions.json")
    for decision in (one for one in decisions if one["label_count"] != "none"):
        system = decision["use"]["standing"]["system"]
        name = f"{format_model(system['model'])} {format_use(System(**system))}".strip()
        assert any(name in chart for chart in charts), f"no label chart shows {name}"
    assert read_decisions(tmp_path) == read_decisions(report)
    made_again = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert made_again == (report / "comparison.md").read_text(encoding="utf-8"), (
        "the committed page is older than the code; run `lineage report` on its folder"
    )
