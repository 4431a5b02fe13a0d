"""The reports of real studies in reports/ follow from the results and predictions beside them."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lineage.analysis.records import System
from lineage.answers.metrics import RANKING_METRICS
from lineage.artifacts import read_json
from lineage.report.evidence import EVIDENCE_DIR, rebuild_report
from lineage.report.formatting import format_model, format_use
from tests.helpers.checkout import ROOT

MAX_PAGE_BYTES = 1_000_000
LABEL_CHART = re.compile("<title>[^<]*, scores with [^<]* labels: [^<]*</title>")
REPORTS = sorted(path.parent for path in (ROOT / "reports").glob(f"*/{EVIDENCE_DIR}"))
SYSTEM_COLUMNS = ("model", "init", "adapt_text", "transfer", "features", "head", "recipe")
Decision = Mapping[str, Any]


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


@pytest.fixture(scope="module", params=REPORTS, ids=lambda path: path.name)
def report(request: pytest.FixtureRequest) -> Path:
    """Return the folder of a committed report."""
    folder: Path = request.param
    return folder


@pytest.fixture(scope="module")
def made_again(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the report that its evidence gives."""
    folder = tmp_path_factory.mktemp(report.name)
    shutil.copytree(report / EVIDENCE_DIR, folder / EVIDENCE_DIR)
    rebuild_report(folder)
    return folder


def test_a_committed_report_is_made_again_from_its_evidence(report: Path, made_again: Path) -> None:
    page = made_again / "comparison.html"
    assert page.stat().st_size <= MAX_PAGE_BYTES
    charts = LABEL_CHART.findall(page.read_text(encoding="utf-8"))
    decisions = read_json(made_again / "decisions.json")
    for decision in (one for one in decisions if one["label_count"] != "none"):
        system = decision["use"]["standing"]["system"]
        name = f"{format_model(system['model'])} {format_use(System(**system))}".strip()
        assert any(name in chart for chart in charts), f"no label chart shows {name}"
    assert read_decisions(made_again) == read_decisions(report)
    text = (made_again / "comparison.md").read_text(encoding="utf-8")
    assert text == (report / "comparison.md").read_text(encoding="utf-8"), (
        "the committed page is older than the code; run `lineage report` on its folder"
    )


class Report:
    """The files of a committed report."""

    def __init__(self, folder: Path) -> None:
        self.analysis: dict[str, Any] = read_json(folder / "comparison.json")
        self.decisions: list[Decision] = read_json(folder / "decisions.json")
        page = (folder / "comparison.md").read_text()
        self.rows = page[page.index("| Task |") :].split("\n\n")[0].splitlines()
        table = pd.read_csv(folder / "results.csv", dtype={"label_count": str})
        self.results = table.query("trial == 'chosen' and group == 'all' and item_filter == 'all'")

    def find_row(self, decision: Decision) -> str:
        """Return the row of a decision in the first table."""
        count = f"{decision['train_examples']:,}"
        names = (f"{count} labels", f"{count} of ", f"all {count} labels", "no labels")
        starts = tuple(f"| {decision['task']}, {name}" for name in names)
        (row,) = (row for row in self.rows if row.startswith(starts))
        return row

    def seed_scores(
        self, decision: Decision, system: Mapping[str, str], split: str = "test"
    ) -> pd.Series:
        """Return the score of each fine-tuning seed in percent; folds count by their items."""
        names = ("task", "label_count", "metric")
        wanted = {name: decision[name] for name in names} | {"split": split}
        wanted |= {"test_set": decision["task"]} | {name: system[name] for name in SYSTEM_COLUMNS}
        own = self.results
        for name, value in wanted.items():
            own = own[own[name].fillna("none") == value]
        items = own["num_examples"]
        seeds = own["finetune_seed"].fillna(0)
        sums = (own["value"] / RANKING_METRICS[decision["metric"]] * items).groupby(seeds).sum()
        return 100 * sums / items.groupby(seeds).sum()

    def find_lead(self, decision: Decision) -> Mapping[str, Any] | None:
        """Return the comparison of the system to use, or the undecided one, with TF-IDF."""
        if decision["undecided_lead"] is not None:
            return decision["undecided_lead"]  # type: ignore[no-any-return]
        system = decision["use"]["standing"]["system"]
        found = [
            one
            for one in self.analysis["comparisons"]
            if (one["task"], one["label_count"]) == (decision["task"], decision["label_count"])
            and one["first"] == system
            and one["comparison_type"] in ("tfidf", "kneser_ney")
        ]
        return found[0] if found else None


def in_points(*values: float, signed: bool = False) -> str:
    """Return percentages with one digit, joined as the ends of an interval are."""
    texts = [f"{value:+.1f}" if signed else f"{value:.1f}" for value in values]
    return " to ".join("0.0" if text in ("+0.0", "-0.0") else text for text in texts).replace(
        "-", "−"
    )


def test_scores_and_differences_of_the_first_table_follow_from_the_results(
    made_again: Path,
) -> None:
    """Scores are computed again from results.csv, without the code of the analysis."""
    made = Report(made_again)
    num_leads = 0
    for decision in made.decisions:
        row = made.find_row(decision)
        standing = decision["use"]["standing"]
        scores = made.seed_scores(decision, standing["system"])
        low, high = 100 * standing["ci_low"], 100 * standing["ci_high"]
        assert f"**{in_points(scores.mean())}** % ({in_points(low, high)})" in row
        validation = made.seed_scores(decision, standing["system"], "validation")
        assert (f"validation {in_points(validation.mean())}" in row) == (len(validation) > 0)
        lead = made.find_lead(decision)
        if lead is not None:
            first, second = (made.seed_scores(decision, lead[key]) for key in ("first", "second"))
            ends = in_points(100 * lead["ci_low"], 100 * lead["ci_high"], signed=True)
            points = in_points(first.mean() - second.mean(), signed=True)
            assert f"**{points}** ({ends})" in row
            assert len(first) == len(second) or len(second) == 1
            num_leads += 1
    assert num_leads > 0 and len(made.decisions) > 1


def test_label_counts_and_gains_of_the_first_table_follow_from_the_results(
    made_again: Path,
) -> None:
    """Scores are computed again from results.csv, without the code of the analysis."""
    made = Report(made_again)
    for decision in made.decisions:
        row = made.find_row(decision)
        task = decision["task"]
        own = made.results.query("task == @task and split == 'test' and status == 'ok'")
        own = own[own["label_count"].fillna("none") == decision["label_count"]]
        assert own["train_examples"].max() == decision["train_examples"]
        if decision["tuning_labels"] and not own["fold"].notna().any():
            validation = made.results.query("task == @task and split == 'validation'")
            assert validation["num_examples"].max() == decision["tuning_labels"]
            assert f"+ {decision['tuning_labels']:,} for tuning" in row
        if decision["unused_labels"]:
            assert f"{decision['unused_labels']:,} more labelled items are available" in row
        gain = decision["label_gain"]
        if gain is not None and " it gained " in row:
            (fewer,) = (
                one
                for one in made.decisions
                if (one["task"], one["train_examples"]) == (task, gain["fewer"])
            )
            scores = [made.seed_scores(one, gain["system"]).mean() for one in (fewer, decision)]
            ends = in_points(100 * gain["low"], 100 * gain["high"], signed=True)
            points = in_points(scores[1] - scores[0])
            assert f"to {gain['most']:,} labels it gained {points} points ({ends})" in row
