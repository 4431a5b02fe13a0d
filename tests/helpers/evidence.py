"""The tasks, parameters and facts of the synthetic study, which its report keeps."""

import dataclasses

from lineage.analysis.decision import SystemCost
from lineage.analysis.records import Analysis
from lineage.config.data import Task
from lineage.config.params import ReportParams, read_params
from lineage.report.evidence import ReportFacts, list_costs
from tests.helpers.checkout import ROOT
from tests.helpers.full_report import PROVENANCE
from tests.helpers.study_rows import GRID, KINDS

TASKS = {
    name: Task(kind=kind, files={"test": "test.csv"}, text=("text",), label="label")
    for name, kind in KINDS.items()
}


PARAMS = dataclasses.replace(
    read_params(ROOT / "params.yaml"), grid=GRID, report=ReportParams(), tasks=TASKS
)


def facts_of(analysis: Analysis) -> ReportFacts:
    """Return facts in which every system takes a minute for each place in its ranking."""
    costs = {
        (standing.system, ranking.setting): SystemCost(60.0 * place, 5e8, None)
        for ranking in analysis.rankings
        for place, standing in enumerate(ranking.standings, start=1)
    }
    return ReportFacts(
        costs=list_costs(costs),
        budget=analysis.budget,
        adaptation=analysis.adaptation,
        provenance=PROVENANCE,
        disagreements=(),
    )
