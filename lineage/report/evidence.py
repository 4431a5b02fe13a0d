"""The evidence of a report, kept with it: all that `rebuild_report` makes its pages from."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from lineage import artifacts
from lineage.analysis.build import build_results, read_results_csv, write_results_csv
from lineage.analysis.decision import Decision, SystemCost, decide
from lineage.analysis.disagreements import Disagreements
from lineage.analysis.neighbours import OccurrenceText
from lineage.analysis.records import (
    AdaptationEffect,
    Analysis,
    PretrainingBudget,
    Setting,
    System,
    record_to_json,
)
from lineage.config.params import Params, read_params
from lineage.config.records import parse_record
from lineage.errors import InputError
from lineage.report import page, publication, versions
from lineage.report.provenance import Provenance
from lineage.report.section import Refit, ReportData
from lineage.results import INTERMEDIATE_TRIAL, LAYER_TRIAL
from lineage.tasks.base import load_kind

EVIDENCE_DIR = "evidence"  # in the folder of a report
PARAMS_FILE = "params.yaml"
FACTS_FILE = "facts.json"
RESULTS_DIR = "results"
# Evidence of earlier versions has them, for a table of models that the page no longer has.
FORMER_FACTS = ("model_descriptions", "description_columns")


@dataclass(frozen=True)
class CostOfSystem:
    """The cost of one system in one setting."""

    system: System
    setting: Setting
    cost: SystemCost


@dataclass(frozen=True)
class ReportFacts:
    """Facts that a report shows and that do not follow from results and predictions."""

    costs: tuple[CostOfSystem, ...]
    budget: tuple[PretrainingBudget, ...]  # with seconds and memory
    adaptation: tuple[AdaptationEffect, ...]  # with seconds
    provenance: Provenance
    disagreements: tuple[Disagreements, ...]
    refits: tuple[Refit, ...] = ()  # of the recommended systems
    occurrences: tuple[OccurrenceText, ...] = ()  # that examples of neighbours name


def list_costs(costs: Mapping[tuple[System, Setting], SystemCost]) -> tuple[CostOfSystem, ...]:
    """Return costs as records."""
    return tuple(CostOfSystem(*key, cost) for key, cost in costs.items())


def write_report(
    folder: Path, analysis: Analysis, facts: ReportFacts, params: Params
) -> list[Decision]:
    """Write the pages, tables and decisions of a report, and return the decisions."""
    analysis = replace(analysis, budget=facts.budget, adaptation=facts.adaptation)
    costs = {(one.system, one.setting): one.cost for one in facts.costs}
    decisions = decide(analysis, costs)
    report = ReportData(
        analysis,
        decisions,
        costs,
        facts.provenance,
        facts.disagreements,
        facts.refits,
        params,
        facts.occurrences,
    )
    for kind, text in page.render_report(report).items():
        (folder / f"comparison.{kind}").write_text(text, encoding="utf-8")
    artifacts.write_json(folder / "decisions.json", publication.decision_records(decisions))
    versions.write_metrics(folder / "metrics.json", analysis, decisions)
    versions.write_plots(folder / "plots", analysis)
    content = {
        "decisions": record_to_json(decisions),
        **record_to_json(analysis),
        "provenance": record_to_json(facts.provenance),
        "disagreements": record_to_json(facts.disagreements),
        "results": read_results_csv(folder / "results.csv"),
    }
    artifacts.write_json(folder / "comparison.json", content)
    return decisions


def write_evidence(
    folder: Path,
    facts: ReportFacts,
    params: Params,
    *,
    params_file: Path,
    results_dir: Path,
    stages: Sequence[str],
) -> None:
    """Copy parameters and results of a grid into a report's folder, with the facts.

    `stages` name the files of the grid. Predictions of other trials are left out. If a task's
    answers are texts, nothing is kept unless `report.show_text` allows it.
    """
    evidence = folder / EVIDENCE_DIR
    shutil.rmtree(evidence, ignore_errors=True)
    kinds = [load_kind(params.tasks[name].kind) for name in params.grid.tasks]
    if any(kind.answer.are_texts for kind in kinds) and not params.report.show_text:
        return
    evidence.mkdir(parents=True)
    shutil.copyfile(params_file, evidence / PARAMS_FILE)
    artifacts.write_json(evidence / FACTS_FILE, record_to_json(facts))
    for path in sorted(results_dir.rglob("*")):
        target = evidence / RESULTS_DIR / path.relative_to(results_dir)
        if not path.is_file() or path.stem not in stages:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.name == "predictions":
            table = artifacts.read_table(path)
            is_shown = table["trial"].isin(("chosen", INTERMEDIATE_TRIAL))
            is_shown |= table["trial"].str.startswith(LAYER_TRIAL)
            artifacts.write_table(target, table[is_shown])
        else:
            shutil.copyfile(path, target)


def rebuild_report(folder: Path) -> Path:
    """Make the pages again from the evidence of a report or a study; return the HTML page.

    Raises InputError if there is no evidence.
    """
    folder = find_report(folder)
    params = read_params(folder / EVIDENCE_DIR / PARAMS_FILE)
    facts_file = folder / EVIDENCE_DIR / FACTS_FILE
    content = artifacts.read_json(facts_file)
    if isinstance(content, dict):
        content = {name: fact for name, fact in content.items() if name not in FORMER_FACTS}
    facts = parse_record(ReportFacts, content, str(facts_file))
    table, analysis = analyze_evidence(folder, params)
    write_results_csv(folder / "results.csv", table)
    write_report(folder, analysis, facts, params)
    return folder / "comparison.html"


def find_report(folder: Path) -> Path:
    """Return the folder of the report of a study, or the folder itself if it is one.

    Raises InputError if there is no evidence.
    """
    if not (folder / EVIDENCE_DIR).is_dir() and (folder / "reports" / EVIDENCE_DIR).is_dir():
        folder = folder / "reports"
    evidence = folder / EVIDENCE_DIR
    if not (evidence / FACTS_FILE).is_file():
        raise InputError(
            f"{folder}: there is no folder '{EVIDENCE_DIR}' of a report here; name the folder of a "
            "report or of a study that `lineage run` has finished. Reports of tasks whose answers "
            "are texts keep none, unless the study has `report: {show_text: true}`"
        )
    return folder


def analyze_evidence(folder: Path, params: Params) -> tuple[pd.DataFrame, Analysis]:
    """Return the rows and the analysis of the results that a report's folder keeps."""
    return build_results(
        folder / EVIDENCE_DIR / RESULTS_DIR,
        params.grid,
        params.report,
        params.tasks,
        params.continued_models,
        params.models,
    )
