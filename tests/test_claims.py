"""A claim of a paper is shown where it is planted, and nothing is shown where it is not."""

import re
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lineage.analysis.claims import QUESTIONS
from lineage.analysis.records import Analysis, ClaimFinding
from lineage.artifacts import read_table, write_json, write_table
from lineage.report.section import Cell, ReportData, Row, Table
from lineage.report.sections import claims as section
from lineage.results import PUBLIC_FAMILY
from tests.helpers import study_rows
from tests.helpers.study_rows import GRID, Study, analyze, build_comparison

PRETRAINING = "Pretraining is better than random weights."
LABELS = "Pretraining is worth more than ten times the labels."
BERT = "BERT is better than GPT on texts."
MIX = "A mix of all layers is better than the top layer."
DISTANCE = "Over long distances, Transformers are better than LSTMs."
TRANSFORMERS = "Transformers are better than LSTMs."
NEXT_SENTENCE = "Next-sentence prediction helps."
FEWER_BITS_THAN_GPT = {
    "bits_per_byte": 0.5,
    "model": "gpt",
    "metric": "bits_per_byte",
    "text_bytes": 9,
    "train_bytes": 9,
}
SMALL_GRID = replace(GRID, models=("gpt", "bert"), adapt_models=(), adapt_tasks=())


def find(analysis: Analysis, text: str) -> ClaimFinding:
    (finding,) = (one for one in analysis.claims if one.text == text)
    return finding


def test_planted_effects_are_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_rows, "SKILL", study_rows.SKILL | {"bert": 1.4, "gpt": -0.2})
    analysis = analyze(Study(tmp_path, grid=SMALL_GRID, items=401).write(), SMALL_GRID)
    pretraining = find(analysis, PRETRAINING)
    assert pretraining.verdict == "supported" and pretraining.num_for > 4
    assert find(analysis, BERT).verdict == "supported"


def make_systems_equal(monkeypatch: pytest.MonkeyPatch, *, number: int) -> None:
    """Let all systems be equally good, and draw their answers from other random numbers."""
    monkeypatch.setattr(study_rows, "SKILL", dict.fromkeys(study_rows.SKILL, 0.5))
    salted = SimpleNamespace(crc32=lambda value: zlib.crc32(value + str(number).encode()))
    monkeypatch.setattr(study_rows, "zlib", salted)


def test_nothing_is_shown_without_an_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_systems_equal(monkeypatch, number=0)
    study = Study(tmp_path, grid=SMALL_GRID, pretraining=0.0, items=399)
    analysis = analyze(study.write(), SMALL_GRID)
    assert {PRETRAINING, BERT} <= {one.text for one in analysis.claims}
    assert {one.verdict for one in analysis.claims} == {"not shown"}


@pytest.mark.slow
def test_claims_are_rarely_shown_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 60 studies of equal systems, a claim may be shown, or its opposite, in 5 of 100."""
    grid = replace(SMALL_GRID, tasks=("sentiment", "sense"))
    verdicts = []
    for number in range(60):
        make_systems_equal(monkeypatch, number=number)
        folder = tmp_path / str(number)
        Study(folder, grid=grid, pretraining=0.0, items=400 + number).write()
        verdicts += [one.verdict for one in analyze(folder, grid).claims]
    assert len(verdicts) == 240
    # With 5 of 100, there would be 18 or more in 5 of 100 such tests.
    assert sum(verdict != "not shown" for verdict in verdicts) < 18


@pytest.mark.parametrize(
    ("block", "text", "is_evidence"),
    [
        ({"evaluate": {"linear_probe": {"features": "last"}}}, MIX, True),
        (
            {"pretrain": {"learning_rate": 1, "next_sentence_prediction": False}},
            NEXT_SENTENCE,
            False,
        ),
    ],
    ids=["one change", "two changes"],
)
def test_an_ablation_is_evidence_if_nothing_else_differs(
    tmp_path: Path, block: dict[str, Any], text: str, is_evidence: bool
) -> None:
    """GPT stands for BERT with a change, and is worse by 0.6 in logits."""
    grid = replace(SMALL_GRID, ablation_of={"gpt": "bert"})
    folder = Study(tmp_path, grid=grid).write()
    analysis = analyze(folder, grid, models={"gpt": block, "bert": {}})
    found = {one.text: one for one in analysis.claims}
    assert (text in found) == is_evidence
    if is_evidence:
        assert found[text].verdict in ("supported", "supported in part")
        assert {one.first.model for one in found[text].comparisons} == {"bert"}


def test_models_that_learned_less_than_counting_are_no_evidence(tmp_path: Path) -> None:
    grid = replace(SMALL_GRID, tasks=("sentiment",))
    folder = Study(tmp_path, grid=grid).write()
    write_json(folder / "ngram/ngram.json", {"models": [FEWER_BITS_THAN_GPT]})
    analysis = analyze(folder, grid)
    assert {one.first.model for one in find(analysis, PRETRAINING).comparisons} == {"bert"}
    assert BERT not in {one.text for one in analysis.claims}


def test_public_models_are_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_rows, "SKILL", study_rows.SKILL | {"bert": 1.4, "gpt": -0.2})
    folder = Study(tmp_path, grid=SMALL_GRID, items=401).write()
    for path in folder.rglob("*.parquet"):
        table = read_table(path)
        if "family" in table:
            write_table(path, table.replace({"family": {"bert": PUBLIC_FAMILY}}))
    analysis = analyze(folder, SMALL_GRID)
    assert any(one.first.family == PUBLIC_FAMILY for one in analysis.comparisons)
    of_claims = [one for claim in analysis.claims for one in claim.comparisons]
    assert of_claims and {one.first.family for one in of_claims} == {"gpt"}


@pytest.mark.parametrize("is_helped", [True, False])
def test_an_ablation_of_weak_models_counts_where_pretraining_is_shown_to_help(
    tmp_path: Path, is_helped: bool
) -> None:
    grid = replace(SMALL_GRID, tasks=("sentiment",), ablation_of={"gpt": "bert"})
    study = Study(tmp_path, grid=grid) if is_helped else Study(tmp_path, grid=grid, pretraining=0.0)
    folder = study.write()
    write_json(folder / "ngram/ngram.json", {"models": [FEWER_BITS_THAN_GPT]})
    block = {"pretrain": {"next_sentence_prediction": False}}
    analysis = analyze(folder, grid, models={"gpt": block, "bert": {}})
    assert (NEXT_SENTENCE in {one.text for one in analysis.claims}) == is_helped


def test_distance_is_judged_by_the_items_that_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models are equally good on the whole, and one of them falls off with distance."""
    make_systems_equal(monkeypatch, number=0)
    grid = replace(SMALL_GRID, models=("gpt", "bert"), tasks=("agreement",))
    folder = Study(tmp_path, grid=grid, items=400).write()
    for name in grid.models:
        path = folder / f"predictions/evaluate-{name}-0-agreement.parquet"
        table = read_table(path)
        is_far = np.arange(len(table)) % 2 == 1
        table["group"] = np.where(is_far, "clause_other", "simple")
        if name == "bert":
            table.loc[is_far, "correct"] = 0.0
            table.loc[~is_far, "correct"] = 1.0
        write_table(path, table)
    models = {
        "gpt": {"architecture": {"contextualizer": "transformer"}},
        "bert": {"architecture": {"contextualizer": "lstm"}},
    }
    grid = replace(grid, ablation_of={"bert": "gpt"})
    (comparison,) = find(analyze(folder, grid, models=models), DISTANCE).comparisons
    assert comparison.task == "agreement over distance" and comparison.num_examples == 200
    assert comparison.verdict == "better" and comparison.difference > 0.3
    (whole,) = find(analyze(folder, grid, models=models), TRANSFORMERS).comparisons
    assert whole.num_examples == 400 and whole.difference != comparison.difference


def change_most_labels(folder: Path, most: int) -> None:
    for path in (folder / "rows").glob("evaluate*.parquet"):
        rows = read_table(path)
        rows.loc[rows["train_examples"] >= 600, "train_examples"] = most
        write_table(path, rows)


def test_fewer_labels_are_compared_with_ten_times_as_many(tmp_path: Path) -> None:
    """The study has 100 and 600 labels, which are worth 0.5, and pretraining 1.6."""
    folder = Study(tmp_path, grid=SMALL_GRID).write()
    assert LABELS not in {one.text for one in analyze(folder, SMALL_GRID).claims}
    change_most_labels(folder, 1000)
    finding = find(analyze(folder, SMALL_GRID), LABELS)
    assert finding.verdict == "supported"
    assert {(one.first.init, one.second.init) for one in finding.comparisons} == {
        ("pretrained", "random")
    }


def test_losing_to_twenty_times_the_labels_contradicts_nothing(tmp_path: Path) -> None:
    folder = Study(tmp_path, grid=SMALL_GRID, pretraining=-0.5).write()
    change_most_labels(folder, 1000)
    assert find(analyze(folder, SMALL_GRID), LABELS).verdict == "contradicted"
    change_most_labels(folder, 2000)
    finding = find(analyze(folder, SMALL_GRID), LABELS)
    assert finding.verdict == "not shown" and finding.num_excused > 0
    lost = [one for one in finding.comparisons if one.ci_high < 0]
    assert len(lost) == finding.num_excused == sum(one.verdict == "worse" for one in lost)
    assert f", {finding.num_excused} lost to far more" in section.describe_evidence(finding)


def make_finding(*verdicts: str) -> ClaimFinding:
    comparisons = [
        build_comparison(verdict=verdict, difference=0.01 * place, detectable=0.03)
        for place, verdict in enumerate(verdicts)
    ]
    return ClaimFinding("Does it help?", "It helps.", "A 2018", "no number", tuple(comparisons))


def test_a_claim_is_supported_in_part_by_less_than_half_of_its_comparisons() -> None:
    no, yes, against = "no significant difference", "better", "worse"
    assert make_finding(no, no).verdict == "not shown"
    assert make_finding(yes, no).verdict == "supported"
    assert make_finding(yes, no, no).verdict == "supported in part"
    assert make_finding(yes, yes, against).verdict == "mixed"
    assert make_finding(no, against).verdict == "contradicted"


def test_the_section_says_how_much_was_shown_and_what_could_have_been() -> None:
    finding = make_finding("better", "no significant difference", "equivalent")
    built = section.build(ReportData(study_rows.build_analysis(claims=(finding,))))
    assert built is not None
    (table,) = (block for block in built.blocks if isinstance(block, Table))
    question, row = table.rows
    assert isinstance(question, Row) and question.cells == [Cell("Does it help?", span=5)]
    assert isinstance(row, list)
    assert row[2] == (
        "GPT beside BERT: shown in 1 of 3 comparisons, all fine-tuned (sense), 0.0 to +2.0 points"
    )
    assert row[3] == "3.0"
    assert row[4].text == "supported in part"
    assert section.build(ReportData(study_rows.build_analysis())) is None


def test_each_claim_names_its_paper() -> None:
    claims = [claim for of_question in QUESTIONS.values() for claim in of_question]
    assert len({claim.text for claim in claims}) == len(claims) >= 15
    for claim in claims:
        assert re.search(r"\b20\d\d\b", claim.source), claim.text
        assert "no number" in claim.published or re.search(r"\d", claim.published), claim.text
