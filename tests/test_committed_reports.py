"""The reports of real studies in reports/ follow from the results and predictions next to them."""

import json
import shutil
from pathlib import Path

import pytest

from lineage.report.evidence import EVIDENCE_DIR, rebuild_report
from tests.checkout import ROOT

MAX_PAGE_BYTES = 1_000_000
REPORTS = sorted(path.parent for path in (ROOT / "reports").glob(f"*/{EVIDENCE_DIR}"))


def test_there_is_a_committed_report() -> None:
    assert REPORTS


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_a_committed_report_is_made_again_from_its_evidence(report: Path, tmp_path: Path) -> None:
    shutil.copytree(report / EVIDENCE_DIR, tmp_path / EVIDENCE_DIR)
    page = rebuild_report(tmp_path)
    assert page.stat().st_size <= MAX_PAGE_BYTES
    for name in ("decisions.json", "results.csv"):
        again = (tmp_path / name).read_text(encoding="utf-8")
        kept = (report / name).read_text(encoding="utf-8")
        if name.endswith(".json"):
            assert json.loads(again) == json.loads(kept), "run `lineage report` on its folder"
        else:
            assert again == kept, "run `lineage report` on its folder"
