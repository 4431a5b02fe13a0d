"""The crossover point with TF-IDF follows the verdicts at every label count that was tried."""

from dataclasses import replace
from pathlib import Path

import pytest

from lineage import artifacts
from lineage.analysis.cells import ResultCell
from lineage.analysis.crossover import LabelCurve, find_overtaking, labels_needed
from lineage.analysis.records import Analysis, System
from lineage.report.crossovers import build_tables
from lineage.report.sections.labels import describe_label_curves
from tests.helpers.sections import read_table
from tests.helpers.study_rows import SENSE_GRID, Study, analyze, build_analysis, build_comparison

TFIDF = System("tfidf", "tfidf", "none", "none", "none", "none", "none", "none")


def analysis_with(verdicts: dict[str, str], train_examples: dict[str, int]) -> Analysis:
    """Return an analysis in which gpt is compared with TF-IDF at these label counts."""
    cells = [
        ResultCell(TFIDF, "mine", "text_classification", label_count, "accuracy", count)
        for label_count, count in train_examples.items()
    ]
    comparisons = [
        build_comparison(
            comparison_type="tfidf",
            task="mine",
            label_count=label_count,
            second=TFIDF,
            difference=0.1,
            ci_low=-0.05,
            ci_high=0.25,
            verdict=verdict,
        )
        for label_count, verdict in verdicts.items()
    ]
    return build_analysis(cells, comparisons=tuple(comparisons))


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (("worse", "better", "better"), "from 100 labels"),
        (("better", "better", "better"), "from 30 labels"),
        (("better", "no significant difference", "better"), "at 216 labels, the largest number"),
        (("better", "better", "equivalent"), "only at 30 and 100 labels"),
    ],
)
def test_the_crossover_point_is_where_a_system_stays_better(
    verdicts: tuple[str, ...], text: str
) -> None:
    counts = {"30": 30, "all": 216, "100": 100}  # not sorted
    by_count = dict(zip(("30", "100", "all"), verdicts, strict=True))
    (table,) = build_tables(analysis_with(by_count, counts))
    (line,) = read_table(table)
    counts_shown = ("30 labels", "100 labels", "all 216 labels")
    assert [*line] == ["system", "crossover point", *counts_shown]
    assert tuple(line[count].partition(") ")[2] for count in counts_shown) == verdicts
    assert line["system"] == "GPT, fine-tuned"
    assert line["crossover point"] == text


def test_systems_that_are_never_better_than_tfidf_have_no_line() -> None:
    verdicts = {"30": "worse", "100": "equivalent", "all": "no significant difference"}
    (table,) = build_tables(analysis_with(verdicts, {"30": 30, "100": 100, "all": 216}))
    assert not table.rows
    assert table.lead.endswith(": no system is shown to be better at any number of labels.")


def test_one_label_count_has_no_crossover_point() -> None:
    assert build_tables(analysis_with({"all": "better"}, {"all": 216})) == []


def test_label_counts_without_a_comparison_are_ignored() -> None:
    (table,) = build_tables(analysis_with({"30": "better"}, {"30": 30, "all": 216}))
    (line,) = read_table(table)
    assert line["crossover point"] == "at 30 labels, the largest tried"
    assert line["all 216 labels"] == ""
    counts = {"100": 100, "1000": 1000, "all": 2000}
    (table,) = build_tables(analysis_with({"100": "better", "all": "better"}, counts))
    (line,) = read_table(table)
    assert line["crossover point"] == "from 100 labels" and line["1,000 labels"] == ""
    (table,) = build_tables(analysis_with({"100": "better", "1000": "better"}, counts))
    (line,) = read_table(table)
    assert line["crossover point"] == "from 100 to 1000 labels, the largest tried"


def test_a_public_checkpoint_changes_no_other_result(tmp_path: Path) -> None:
    folder = Study(tmp_path, SENSE_GRID, items=40).write()
    other_models = replace(SENSE_GRID, models=("elmo", "gpt"))
    before = analyze(folder, other_models)
    for kind in ("rows", "predictions"):
        for path in folder.glob(f"{kind}/evaluate*-bert-*"):
            artifacts.write_table(path, artifacts.read_table(path).assign(family="public"))
    analysis = analyze(folder, SENSE_GRID)
    other_comparisons = [
        record
        for record in analysis.comparisons
        if "public" not in (record.first.family, record.second.family)
    ]
    assert tuple(other_comparisons) == before.comparisons
    other_scores = [one for one in analysis.scores if one.system.family != "public"]
    assert tuple(other_scores) == before.scores
    assert before.public_models == ()


def label_curve(model: str, scores: tuple[float, ...]) -> LabelCurve:
    system = System(model, model, "pretrained", "none", "frozen", "last", "linear", "none")
    return LabelCurve("sense", "accuracy", system, (100, 1000, 10_000)[: len(scores)], scores)


def test_the_labels_that_a_score_takes_are_read_off_the_curve() -> None:
    curve = label_curve("tfidf", (0.5, 0.6, 0.8))
    assert labels_needed(curve, 0.45) == 100
    assert labels_needed(curve, 0.55) == pytest.approx(10**2.5)
    assert labels_needed(curve, 0.8) == pytest.approx(10_000)
    assert labels_needed(curve, 0.81) is None


@pytest.mark.parametrize(
    ("best", "elmo", "sentence"),
    [
        (
            "elmo",
            (0.55, 0.7, 0.9),
            "ELMo, frozen, with 100 labels equals TF-IDF with about 320 labels.",
        ),
        (
            "elmo",
            (0.85, 0.87, 0.9),
            "ELMo, frozen, with 100 labels is above TF-IDF with 10,000 labels.",
        ),
        ("elmo", (0.4, 0.7, 0.9), "ELMo, frozen, passes TF-IDF at about 320 labels."),
        ("elmo", (0.4, 0.5, 0.7), "TF-IDF scores higher than ELMo, frozen, with 10,000 labels."),
        ("tfidf", (0.4, 0.5, 0.7), "TF-IDF leads at every number of labels."),
        ("tfidf", (0.6, 0.5, 0.7), "TF-IDF leads with 1,000 and 10,000 labels, but not with 100."),
        ("tfidf", (0.5, 0.5, 0.7), "TF-IDF leads with 1,000 and 10,000 labels, but not with 100."),
        ("tfidf", (0.6, 0.7, 0.9), ""),
    ],
)
def test_a_sentence_tells_how_many_labels_a_model_saves(
    best: str, elmo: tuple[float, ...], sentence: str
) -> None:
    tfidf = label_curve("tfidf", (0.5, 0.6, 0.8))
    curves = [label_curve("elmo", elmo), tfidf]
    assert describe_label_curves(curves, best=best) == sentence
    assert describe_label_curves(curves[:1], best=best) == "", "without TF-IDF"


def test_overtaking_is_where_a_curve_stays_above_another() -> None:
    first = label_curve("elmo", (0.6, 0.5, 0.7))
    second = label_curve("gpt", (0.5, 0.6, 0.6))
    assert find_overtaking(first, second) == pytest.approx(10**3.5)
    assert find_overtaking(second, first) is None
    assert find_overtaking(label_curve("elmo", (0.6, 0.7)), second) == 100
