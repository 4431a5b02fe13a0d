"""Decisions follow from rankings, costs and gains by fixed rules."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineage.analysis.cells import ResultCell
from lineage.analysis.decision import (
    Choice,
    Costs,
    Decision,
    SystemCost,
    decide,
    pareto_front,
    printed_gap,
)
from lineage.analysis.labels import measure_label_gains
from lineage.analysis.ranking import rank_setting
from lineage.analysis.records import (
    Analysis,
    Comparison,
    LabelGain,
    Setting,
    System,
    TaskSummary,
    read_analysis,
    write_analysis,
)
from lineage.analysis.settings import OmittedMethod
from lineage.data.dataset_stats import FoldStats, SplitStats
from lineage.report.costs import build_costs, describe_devices
from lineage.report.decisions import (
    describe_decision,
    describe_finding,
    describe_limits,
    describe_omitted,
    name_labels,
    summarize_decisions,
)
from lineage.report.formatting import format_percent
from lineage.report.section import ReportData
from lineage.report.sections.answer import describe_untried, find_titles
from lineage.report.sections.quality_cost import describe_front
from lineage.report.sections.what_to_use import (
    build_decision_table,
    describe_alternative,
    draw_main_panels,
    list_shown_label_counts,
)
from lineage.results import PUBLIC_FAMILY
from tests.helpers.result_cells import (
    analyze_cells,
    build_cell,
    build_cells,
    compare_on,
    decide_one,
)
from tests.helpers.sections import read_table
from tests.helpers.study_rows import GRID, build_analysis

SETTING = Setting("sense", "100")


def read_decision(analysis: Analysis, decision: Decision) -> dict[str, str]:
    """Return the line of a decision in the table "what to use"."""
    (line,) = read_table(build_decision_table(ReportData(analysis, [decision])))
    return line


def costs_of(cells: list[ResultCell], **seconds: float) -> Costs:
    return {
        (cell.system, SETTING): SystemCost(seconds=seconds[cell.system.model])
        for cell in cells
        if cell.system.model in seconds
    }


def with_floor(cells: list[ResultCell], share: float = 0.5) -> list[ResultCell]:
    """Add a majority class that is correct in this share of the items."""
    num_items = next(iter(cells[0].item_scores.values())).size
    constant = (np.arange(num_items) < share * num_items).astype(float)
    return [*cells, build_cell("majority", np.tile(constant, (3, 1)))]


def test_a_clear_winner_is_recommended_whatever_it_costs() -> None:
    cells = with_floor(build_cells(elmo=0.9, gpt=0.7, tfidf=0.65))
    decision = decide_one(cells, costs_of(cells, elmo=5000.0, gpt=10.0, tfidf=1.0))
    assert (decision.use.standing.system.model, decision.certainty) == ("elmo", "clear")
    assert decision.as_good == () and decision.advice == "pretrain on your text"
    assert describe_decision(decision) == (
        "Use ELMo, fine-tuned: 90.0 % (88.3 to 91.7); all other models are shown to score lower; "
        "it takes 83 min to build."
    )


def test_the_cheaper_of_two_equal_systems_is_recommended() -> None:
    elmo, gpt, tfidf = build_cells(elmo=0.9, gpt=0.5, tfidf=0.6)
    gpt = dataclasses.replace(elmo, system=gpt.system)  # the same answers
    cells = with_floor([elmo, gpt, tfidf])
    for cheap, dear in (("elmo", "gpt"), ("gpt", "elmo")):
        decision = decide_one(cells, costs_of(cells, **{cheap: 10.0, dear: 20.0, "tfidf": 1.0}))
        assert (decision.use.standing.system.model, decision.certainty) == (cheap, "cheapest")
        assert [one.standing.system.model for one in decision.as_good] == [dear]


def test_systems_that_take_about_as_long_are_decided_by_their_score() -> None:
    elmo, gpt = build_cells(elmo=0.9, gpt=0.9)
    answers = next(iter(elmo.item_scores.values()))
    fewer = answers.copy()
    fewer.iloc[int(np.argmax(answers.to_numpy()))] = 0.0
    elmo.item_scores = dict.fromkeys(elmo.item_scores, answers)
    gpt.item_scores = dict.fromkeys(gpt.item_scores, fewer)
    cells = with_floor([elmo, gpt])
    for seconds, model in ((14.0, "elmo"), (16.0, "gpt")):
        decision = decide_one(cells, costs_of(cells, elmo=seconds, gpt=10.0))
        assert decision.use.standing.system.model == model


def test_a_system_that_may_be_far_behind_is_not_chosen_for_its_price() -> None:
    """With 600 items a gap of two points may be five, so the highest score is recommended."""
    rng = np.random.default_rng(0)
    cells = with_floor(
        [
            build_cell(name, np.tile(rng.permutation(600) < share * 600, (3, 1)).astype(float))
            for name, share in (("elmo", 0.72), ("gpt", 0.70))
        ]
    )
    decision = decide_one(cells, costs_of(cells, elmo=100.0, gpt=1.0))
    assert (decision.use.standing.system.model, decision.certainty) == ("elmo", "open")
    assert [one.standing.system.model for one in decision.as_good] == ["gpt"]
    sentence = describe_decision(decision)
    assert "no other model scores higher (P = 0." in sentence
    assert " of being the best), but GPT (fine-tuned) may be as good" in sentence


def test_of_equal_scores_the_cheapest_is_recommended() -> None:
    """Ten items cannot show that two systems are equal, and all are right here."""
    cells = with_floor(build_cells(num_items=10, elmo=1.0, gpt=1.0, tfidf=1.0))
    decision = decide_one(cells, costs_of(cells, elmo=100.0, gpt=50.0, tfidf=1.0))
    assert (decision.use.standing.system.model, decision.certainty) == ("tfidf", "open")
    assert "; no other model scores higher (P = 0." in describe_decision(decision)


@pytest.mark.parametrize("seconds", [{"gpt": 2.0, "tfidf": 5.0}, {"gpt": 130.0, "tfidf": 170.0}])
def test_of_equal_scores_the_load_of_the_machine_does_not_decide(seconds: dict[str, float]) -> None:
    """Both take about as long, and TF-IDF needs no pretraining."""
    for num_items in (10, 2000):
        cells = with_floor(build_cells(num_items=num_items, gpt=1.0, tfidf=1.0))
        decision = decide_one(cells, costs_of(cells, **seconds))
        assert decision.use.standing.system.model == "tfidf"


def test_tfidf_is_recommended_where_it_is_best() -> None:
    cells = with_floor(build_cells(elmo=0.6, tfidf=0.8))
    decision = decide_one(cells, costs_of(cells, elmo=100.0, tfidf=1.0))
    assert decision.use.standing.system.model == "tfidf"
    assert (decision.certainty, decision.advice) == ("clear", "use TF-IDF")
    answer = summarize_decisions(analyze_cells(cells), [decision])
    assert (
        answer == "For the task sense, use TF-IDF: no pretrained model is shown to be worth more."
    )


def test_methods_that_were_not_run_limit_what_is_said() -> None:
    """ELMo is fine-tuned with 100 labels only, and frozen with 100 and all."""
    elmo, tfidf = with_floor(build_cells(elmo=0.6, tfidf=0.8))[:2]
    frozen = dataclasses.replace(elmo.system, transfer="frozen")
    fewer = [dataclasses.replace(tfidf), dataclasses.replace(elmo)]
    all_labels = [
        dataclasses.replace(elmo, system=frozen, label_count="all", train_examples=400),
        dataclasses.replace(tfidf, label_count="all", train_examples=400),
    ]
    fewer.append(dataclasses.replace(elmo, system=frozen))
    rankings = [*rank_setting(fewer, []), *rank_setting(all_labels, [])]
    stats = SplitStats(400, dropped={"limit": 1600, "blank": 3})
    task = TaskSummary(
        "sense", "text_classification", True, 128, "words", False, False, {"train": stats}, None, ()
    )
    analysis = build_analysis([*fewer, *all_labels], rankings=tuple(rankings), tasks=(task,))
    with_100, with_all = decide(analysis, {})
    assert with_100.omitted == () and with_100.unused_labels == 0
    assert with_all.omitted == (OmittedMethod("finetuned", "linear", "all"),)
    assert with_all.unused_labels == 1600
    assert "; all other models are shown to score lower" in describe_decision(with_100)
    assert "; all other models that were run with so many labels are" in describe_decision(with_all)
    assert describe_limits(analysis, with_all) == [
        "1,600 more labelled items are available: raise the task's limit."
    ]
    assert describe_omitted(with_all) == "Not run with 400 labels: fine-tuned."
    report = ReportData(analysis, [with_100, with_all])
    untried = "Not tried: a public model; fine-tuning with 400 labels (sense)."
    assert describe_untried(report, [with_all]) == untried
    assert describe_untried(report, [with_100]) == "Not tried: a public model."
    assert summarize_decisions(analysis, [with_100, with_all]) == (
        "For the task sense, use TF-IDF: no pretrained model is shown to be worth more (with so "
        "many labels, none was fine-tuned)."
    )


def test_each_number_of_labels_has_its_own_finding() -> None:
    with_100 = decide_one(build_cells(elmo=0.5, tfidf=0.9))
    with_all = decide_one(build_cells(elmo=0.9, tfidf=0.6))
    with_all = dataclasses.replace(with_all, label_count="all", train_examples=400)
    assert find_titles(ReportData(build_analysis([]), [with_100, with_all])) == {
        "100": "With 100 labels: use TF-IDF for sense",
        "all": "With all labels: use ELMo for sense",
    }
    assert find_titles(ReportData(build_analysis([]), [with_all])) == {}


def test_labels_in_folds_are_counted_with_those_for_tuning_and_those_left_out() -> None:
    """Of 300 items in three folds, 100 are tested, and 40 of the other 200 are for tuning."""
    cells = [
        dataclasses.replace(cell, label_count="all", train_examples=160)
        for cell in with_floor(build_cells(elmo=0.9, tfidf=0.6))
    ]
    stats = SplitStats(300, dropped={"limit": 766})
    folds = FoldStats(folds=3, groups=0, missing_a_label=0, training_sets=9)
    task = TaskSummary(
        "sense",
        "text_classification",
        True,
        128,
        "words",
        False,
        False,
        {"train": stats},
        folds,
        (),
    )
    rankings = tuple(rank_setting(cells, []))
    (decision,) = decide(build_analysis(cells, rankings=rankings, tasks=(task,)), {})
    assert name_labels(decision) == "160 of 1,066 labels + 40 for tuning"


def test_on_minimal_pairs_a_model_must_be_better_than_counting() -> None:
    analysis = analyze_cells(with_floor(build_cells(elmo=0.9, gpt=0.6)))
    (comparison,) = compare_with_counting(analysis, "no significant difference")
    open_analysis = dataclasses.replace(analysis, comparisons=(comparison,))
    (decision,) = decide(open_analysis, {})
    assert decision.advice == "nothing above a 5-gram model"
    assert summarize_decisions(open_analysis, [decision]) == (
        "For the task sense, no model is shown to be better than a 5-gram model, which only counts."
    )
    line = read_decision(open_analysis, decision)
    assert line["Use"] == "**none** (ELMo (fine-tuned) scores highest)"
    assert line["Next step"].startswith("**Let models read more text.**")
    assert describe_decision(decision).startswith(
        "No model is shown to be better than a 5-gram model, which only counts; ELMo, fine-tuned: 90.0 % ("
    )
    (better,) = compare_with_counting(analysis, "better")
    (decision,) = decide(dataclasses.replace(analysis, comparisons=(better,)), {})
    assert decision.advice == "pretrain on your text"


@pytest.mark.parametrize(
    ("kind", "knowledge", "without", "start"),
    [
        ("minimal_pairs", "grammar", " without labels", "Without labels, ELMo"),
        ("tree_depth", "sentence form", "", "ELMo"),
    ],
)
def test_what_measures_knowledge_tells_which_model_knows_most_and_not_what_to_use(
    kind: str, knowledge: str, without: str, start: str
) -> None:
    """The highest score is named, although a model that is as good builds faster."""
    cells = with_floor(build_cells(elmo=0.9, gpt=0.895))
    for cell in cells:
        cell.kind = kind
        cell.train_examples = 0 if without else 100
    analysis = analyze_cells(cells)
    (decision,) = decide(analysis, costs_of(cells, elmo=5000.0, gpt=10.0))
    assert (decision.use.standing.system.model, decision.certainty) == ("elmo", "open")
    assert describe_finding([decision]) == f"On {knowledge} (sense), ELMo scores highest"
    assert summarize_decisions(analysis, [decision]) == (
        f"{start} scores highest on the {knowledge} of sense (GPT may be as good)."
    )
    assert describe_decision(decision).startswith(
        f"The highest on {knowledge}{without} is ELMo, fine-tuned: 90.0 % ("
    )
    line = read_decision(analysis, decision)
    assert (
        line["Use"] == "Highest: **ELMo** fine-tuned"
        and line["May be as good or better"] == "GPT 89.5"
    )
    assert line["Sure?"].startswith("no (P = 0.")
    assert line["Next step"].startswith(
        f"**Not for use: it tells which model knows most about {knowledge}.**"
    )


def compare_with_counting(analysis: Analysis, verdict: str) -> tuple[Comparison]:
    """Return a comparison of the best system with a 5-gram model."""
    best = analysis.rankings[0].best.system
    counting = System("kneser_ney", "kneser_ney", *["none"] * 6)
    one = dataclasses.replace(
        compare_on("sense", "elmo", verdict), label_count="100", first=best, second=counting
    )
    return (one,)


def test_what_a_public_model_loses_by_reading_on_is_said_where_it_is_shown() -> None:
    *own, public = build_cells(elmo=0.7, tfidf=0.6, minilm=0.9)
    public.system = dataclasses.replace(public.system, family=PUBLIC_FAMILY)
    analysis = analyze_cells(with_floor([*own, public]))
    continued = dataclasses.replace(public.system, model="gpt")
    for verdict, difference, words in (
        ("worse", -0.04, " loses 4.0 points."),
        ("better", 0.03, " gains 3.0 points."),
        ("no significant difference", -0.02, "without public weights."),
    ):
        comparison = dataclasses.replace(
            compare_on("sense", "gpt", verdict),
            comparison_type="continuation",
            label_count="100",
            first=continued,
            second=public.system,
            difference=difference,
        )
        changed = dataclasses.replace(analysis, comparisons=(comparison,))
        assert summarize_decisions(changed, decide(changed, {})).endswith(words)


def test_a_gap_is_that_of_the_scores_as_printed() -> None:
    assert format_percent(printed_gap(0.74578, 0.61344)) == "13.3", "74.6 - 61.3, and not 13.2"


def test_a_public_model_that_is_worth_it_is_used_and_the_best_under_the_budget_is_named() -> None:
    *own, public = build_cells(elmo=0.7, tfidf=0.6, minilm=0.9)
    public.system = dataclasses.replace(public.system, family=PUBLIC_FAMILY)
    cells = with_floor([*own, public])
    decision = decide_one(cells)
    assert decision.under_budget is not None and decision.overall is not None
    assert decision.under_budget.standing.system.model == "elmo"
    assert decision.use == decision.overall
    assert decision.use.standing.system.model == "minilm"
    assert decision.overall_gain == pytest.approx(0.2)
    assert decision.advice == "use a public model"
    answer = summarize_decisions(analyze_cells(cells), [decision])
    assert answer == (
        "For the task sense, use the public model minilm: 20.0 points above the best without public weights."
    )
    sentence = describe_decision(decision)
    public_sentence, own_sentence = sentence.split(" Without public weights, ")
    assert public_sentence.startswith("Use the public model minilm, fine-tuned: 90.0 % (")
    assert (
        "), 20.0 points above the best without public weights; all other models" in public_sentence
    )
    assert own_sentence.startswith("use ELMo, fine-tuned: 70.0 % (")
    analysis = dataclasses.replace(analyze_cells(cells), public_models=("minilm",))
    line = read_decision(analysis, decision)
    assert line["Use"].startswith("**minilm**")
    assert line["Score, 95 % interval"].startswith("**90.0**")
    assert line["Alternative"] == "without public weights: ELMo (fine-tuned) 70.0"


@pytest.mark.parametrize(
    ("verdict", "model", "expected", "alternative"),
    [
        ("better", "elmo", "Use ELMo.", ""),
        (
            "too few seeds",
            "elmo",
            "Its lead over TF-IDF may be luck.",
            "whose lead over TF-IDF may",
        ),
        (
            "no significant difference",
            "tfidf",
            "**Undecided; cheapest: TF-IDF.** TF-IDF scores lower here, which may be luck. More test items or seeds would decide.",
            "ELMo (fine-tuned) 70.0, whose lead over TF-IDF may be luck",
        ),
    ],
)
def test_a_lead_over_tfidf_that_tests_do_not_show_is_undecided_or_may_be_luck(
    verdict: str, model: str, expected: str, alternative: str
) -> None:
    *own, public = build_cells(elmo=0.7, tfidf=0.6, minilm=0.9)
    public.system = dataclasses.replace(public.system, family=PUBLIC_FAMILY)
    elmo, tfidf = own
    comparison = dataclasses.replace(
        compare_on("sense", "elmo", verdict),
        comparison_type="tfidf",
        label_count="100",
        first=elmo.system,
        second=tfidf.system,
    )
    analysis = dataclasses.replace(analyze_cells(with_floor(own)), comparisons=(comparison,))
    (decision,) = decide(analysis, {})
    assert decision.use.standing.system.model == model
    line = read_decision(analysis, decision)
    assert expected in line["Next step"]
    assert line["Sure?"] == ("yes" if verdict == "better" else "no")
    assert "**+10.0** (0.0 to" in line["vs TF-IDF"]
    assert ("ELMo (fine-tuned): " in line["vs TF-IDF"]) is (model == "tfidf")
    finding = "Undecided for sense (ELMo or TF-IDF)" if model == "tfidf" else "Use ELMo for sense"
    assert describe_finding([decision]) == finding
    with_public = dataclasses.replace(
        analyze_cells(with_floor([*own, public])), comparisons=(comparison,)
    )
    (decision,) = decide(with_public, {})
    assert decision.use.standing.is_public and decision.undecided_lead is None
    assert alternative in describe_alternative(with_public, decision)


def test_a_public_model_that_is_no_better_changes_no_advice() -> None:
    *own, public = build_cells(elmo=0.9, tfidf=0.6, minilm=0.7)
    public.system = dataclasses.replace(public.system, family=PUBLIC_FAMILY)
    cells = with_floor([*own, public])
    decision = decide_one(cells)
    assert decision.advice == "pretrain on your text" and decision.overall is not None
    assert read_decision(analyze_cells(cells), decision)["Use"].startswith("**ELMo**")
    assert describe_alternative(analyze_cells(cells), decision) == "with public weights: the same"


def test_at_chance_nothing_is_recommended() -> None:
    cells = with_floor(build_cells(elmo=0.52, gpt=0.5, tfidf=0.49), share=0.52)
    decision = decide_one(cells, costs_of(cells, elmo=9.0, gpt=5.0, tfidf=1.0))
    assert decision.advice == "nothing above chance" and decision.certainty == "open"
    assert describe_decision(decision).startswith(
        "Nothing is shown to be above chance; of each model's best system on validation, ELMo"
    )
    answer = summarize_decisions(analyze_cells(cells), [decision])
    assert answer == "For the task sense, nothing is shown to be above chance."


def test_at_chance_the_highest_score_is_named_and_not_that_of_tfidf() -> None:
    cells = with_floor(build_cells(elmo=0.52, tfidf=0.49), share=0.52)
    elmo, tfidf, *_ = cells
    comparison = dataclasses.replace(
        compare_on("sense", "elmo", "no significant difference"),
        comparison_type="tfidf",
        label_count="100",
        first=elmo.system,
        second=tfidf.system,
    )
    analysis = dataclasses.replace(analyze_cells(cells), comparisons=(comparison,))
    (decision,) = decide(analysis, {})
    assert decision.advice == "nothing above chance" and decision.undecided_lead is None
    assert decision.use.standing.system.model == "elmo"
    assert "Label more" in read_decision(analysis, decision)["Next step"]
    without_labels = dataclasses.replace(decision, train_examples=0)
    assert "Label more" not in read_decision(analysis, without_labels)["Next step"]


def test_an_undecided_lead_is_named_where_tfidf_is_at_chance() -> None:
    cells = with_floor(build_cells(elmo=0.7, tfidf=0.49), share=0.5)
    elmo, tfidf, *_ = cells
    comparison = dataclasses.replace(
        compare_on("sense", "elmo", "no significant difference"),
        comparison_type="tfidf",
        label_count="100",
        first=elmo.system,
        second=tfidf.system,
    )
    analysis = dataclasses.replace(analyze_cells(cells), comparisons=(comparison,))
    (decision,) = decide(analysis, {})
    assert decision.use.standing.system.model == "elmo"
    assert (decision.advice, decision.certainty) == ("decide with more data", "undecided")
    line = read_decision(analysis, decision)
    assert line["Use"].startswith("**ELMo**") and line["Sure?"] == "no"
    assert line["Next step"].startswith(
        "**Undecided; cheapest: ELMo.** TF-IDF is not shown to be above chance."
    )
    assert describe_finding([decision]) == "Undecided for sense (ELMo or TF-IDF)"


def plant(name: str, num_right: int, *, num_items: int = 4000, public: bool = False) -> ResultCell:
    """Return a cell whose first answers are right: the items are nested."""
    cell = build_cell(name, np.tile(np.arange(num_items) < num_right, (2, 1)).astype(float))
    transfer = "none" if name == "tfidf" else "finetuned"
    family = PUBLIC_FAMILY if public else cell.system.family
    cell.system = dataclasses.replace(cell.system, transfer=transfer, family=family)
    return cell


def with_majority(cells: list[ResultCell], num_right: int) -> list[ResultCell]:
    num_items = next(iter(cells[0].item_scores.values())).size
    right = np.arange(num_items) >= num_items - num_right  # of other items
    return [*cells, build_cell("majority", np.tile(right, (2, 1)).astype(float))]


def test_a_cheap_system_at_chance_is_not_recommended_beside_one_above_it() -> None:
    cells = with_majority([plant("elmo", 2140), plant("tfidf", 2070)], 2000)
    decision = decide_one(cells, costs_of(cells, elmo=100.0, tfidf=1.0))
    assert decision.use.standing.system.model == "elmo"
    assert decision.advice == "pretrain on your text"
    # The highest score is that of ELMo, which is not above chance, but TF-IDF is.
    analysis = analyze_cells(cells)
    (ranking,) = analysis.rankings
    standings = tuple(
        dataclasses.replace(one, above_chance=one.system.model == "tfidf")
        for one in ranking.standings
    )
    changed = dataclasses.replace(ranking, standings=standings)
    (decision,) = decide(dataclasses.replace(analysis, rankings=(changed,)), {})
    assert decision.use.standing.system.model == "tfidf"
    assert decision.advice == "use TF-IDF"


def test_of_equal_scores_at_chance_the_cheapest_is_named() -> None:
    cells = with_majority([plant("elmo", 2010), plant("tfidf", 2010)], 2400)
    decision = decide_one(cells, costs_of(cells, elmo=100.0, tfidf=1.0))
    assert decision.advice == "nothing above chance"
    assert decision.use.standing.system.model == "tfidf"


def test_a_public_model_below_the_majority_class_is_not_recommended() -> None:
    cells = with_majority([plant("elmo", 1600), plant("minilm", 2000, public=True)], 2400)
    decision = decide_one(cells)
    assert decision.advice == "nothing above chance"


def test_the_gain_of_a_public_model_is_that_over_the_best_of_the_budget() -> None:
    cells = with_majority(
        [plant("elmo", 3200), plant("tfidf", 3160), plant("minilm", 3260, public=True)], 2000
    )
    decision = decide_one(cells, costs_of(cells, elmo=100.0, tfidf=1.0, minilm=50.0))
    assert decision.use.standing.system.model == "tfidf", "it is at most 2 points below the best"
    assert decision.overall is not None and decision.overall_gain is not None
    assert decision.overall_gain <= 0.015 + 1e-9
    assert decision.advice == "use TF-IDF"


def test_an_unknown_time_of_tfidf_makes_it_no_dearer() -> None:
    cells = with_majority([plant("tfidf", 3200), plant("elmo", 3170)], 2000)
    decision = decide_one(cells, costs_of(cells, elmo=100.0))
    assert decision.use.standing.system.model == "tfidf"
    assert "cheaper than" not in describe_decision(decision)


def test_only_systems_that_take_longer_are_called_dearer() -> None:
    cells = with_majority([plant("elmo", 3210), plant("gpt", 3205), plant("tfidf", 3200)], 2000)
    decision = decide_one(cells, costs_of(cells, elmo=1000.0, gpt=12.0, tfidf=10.0))
    assert decision.use.standing.system.model == "gpt"
    sentence = describe_decision(decision)
    assert "cheaper than ELMo (fine-tuned); TF-IDF may be as good" in sentence


def test_public_models_alone_get_a_decision() -> None:
    cells = with_majority([plant("minilm", 3200, public=True)], 2000)
    decision = decide_one(cells)
    assert decision.use.standing.system.model == "minilm" and decision.overall_gain is None
    assert decision.advice == "use a public model"
    answer = summarize_decisions(analyze_cells(cells), [decision])
    assert answer == "For the task sense, use the public model minilm."
    assert describe_alternative(analyze_cells(cells), decision) == ""


def test_an_alternative_at_chance_is_not_praised() -> None:
    *own, public = build_cells(elmo=0.52, tfidf=0.49, minilm=0.9)
    public.system = dataclasses.replace(public.system, family=PUBLIC_FAMILY)
    cells = with_floor([*own, public], share=0.52)
    decision = decide_one(cells)
    assert decision.advice == "use a public model"
    assert describe_alternative(analyze_cells(cells), decision) == (
        "without public weights: nothing is shown to be above chance (highest: ELMo, fine-tuned, "
        "52.0)"
    )


def test_few_items_show_no_system_to_be_as_good() -> None:
    """Twenty equal answers are no proof that two systems are within 2 points."""
    cells = with_majority([plant("elmo", 20, num_items=20), plant("tfidf", 20, num_items=20)], 5)
    decision = decide_one(cells, costs_of(cells, elmo=100.0, tfidf=1.0))
    assert decision.certainty == "open"
    many = with_majority([plant("elmo", 3000), plant("tfidf", 3000)], 2000)
    decision = decide_one(many, costs_of(many, elmo=100.0, tfidf=1.0))
    assert (decision.use.standing.system.model, decision.certainty) == ("tfidf", "cheapest")


def test_an_analysis_of_a_single_item_can_be_stored(tmp_path: Path) -> None:
    cells = [plant("elmo", 1, num_items=1), plant("tfidf", 0, num_items=1)]
    analysis = analyze_cells(cells)
    write_analysis(tmp_path / "results.json", analysis)
    assert read_analysis(tmp_path / "results.json").rankings == analysis.rankings
    assert analysis.rankings[0].best.probability_best is None


def test_one_system_is_recommended_without_a_comparison() -> None:
    decision = decide_one(with_floor(build_cells(elmo=0.9)))
    assert decision.certainty == "alone"
    assert "there is nothing to compare it with" in describe_decision(decision)


def gain_for(system: System, **changes: Any) -> LabelGain:
    values: dict[str, Any] = {
        "task": "sense",
        "system": system,
        "fewer": 50,
        "most": 100,
        "score": 0.7,
        "gain": 0.05,
        "low": 0.04,
        "high": 0.06,
    }
    return LabelGain(**values | changes)


@pytest.mark.parametrize(
    ("fewer", "low", "advice"),
    [
        (50, 0.04, "label more first"),
        (50, 0.01, "pretrain on your text"),
        (25, 0.03, "pretrain on your text"),  # over two doublings
        (10, 0.2, "pretrain on your text"),  # too large a step
    ],
)
def test_more_labels_come_first_if_they_bring_more_than_the_choice_of_a_model(
    fewer: int, low: float, advice: str
) -> None:
    cells = with_floor(build_cells(elmo=0.71, tfidf=0.70))
    gain = gain_for(cells[0].system, fewer=fewer, low=low)
    costs = costs_of(cells, elmo=100.0, tfidf=1.0)
    decision = decide_one(cells, costs, label_gains=(gain,))
    assert decision.advice == advice
    expected = f"from {fewer} to 100 labels it gained 5.0 points (+{100 * low:.1f} to +6.0)"
    assert f"{expected}, so more may help" in describe_decision(decision)


def test_a_large_lead_is_worth_more_than_labels() -> None:
    cells = with_floor(build_cells(elmo=0.9, tfidf=0.6))
    costs = costs_of(cells, elmo=100.0, tfidf=1.0)
    decision = decide_one(cells, costs, label_gains=(gain_for(cells[0].system),))
    assert decision.advice == "pretrain on your text"


def test_labels_have_brought_what_the_same_system_gained() -> None:
    """A jump to another use of the model says nothing about labels."""
    line = []
    for count, share in ((100, 0.6), (200, 0.7), (400, 0.78)):
        (cell,) = build_cells(elmo=share)
        line.append(dataclasses.replace(cell, label_count=str(count), train_examples=count))
    rankings = [ranking for cell in line for ranking in rank_setting([cell], [])]
    (gain,) = measure_label_gains(line, rankings)
    assert (gain.system, gain.fewer, gain.most) == (line[-1].system, 200, 400)
    assert gain.score == pytest.approx(0.78) and gain.gain == pytest.approx(0.08)
    assert 0.03 < gain.low < gain.gain < gain.high < 0.13
    assert measure_label_gains(line[2:], rankings[2:]) == []
    frozen = dataclasses.replace(line[2].system, transfer="frozen", head="linear")
    line[2] = dataclasses.replace(line[2], system=frozen)
    rankings = [ranking for cell in line for ranking in rank_setting([cell], [])]
    assert measure_label_gains(line, rankings) == []


def test_costs_are_those_of_the_stages_that_built_a_system(analysis: Analysis) -> None:
    budget = tuple(
        dataclasses.replace(one, seconds=100.0, peak_memory_bytes=5e8, total_parameters=1e6)
        for one in analysis.budget
    )
    effects = tuple(dataclasses.replace(one, seconds=20.0) for one in analysis.adaptation)
    analysis = dataclasses.replace(analysis, budget=budget, adaptation=effects)
    runs = [
        {
            "init": init,
            "transfer": transfer,
            "head": "linear",
            "label_count": count,
            "finetune_seed": seed,
            "seconds": seconds / (1 + seed),
            "items_per_second": 100.0 + 20 * seed,
        }
        for init in ("pretrained", "adapted", "random")
        for transfer, seconds in (("frozen", 2.0), ("finetuned", 30.0))
        for count in (100, "all")
        for seed in (0, 1)
    ]
    zero_shot = [{"init": "pretrained", "transfer": "zero_shot", "head": "linear",
                  "label_count": None, "seconds": 3.0}]  # fmt: skip
    metadata = {
        f"{stage}@{model}-0-{task}": {
            "run_costs": zero_shot if task == "agreement" else runs,
            "peak_memory_bytes": 6e8,
        }
        for stage in ("evaluate", "evaluate_adapted")
        for model in GRID.models
        for task in GRID.tasks
    }
    tfidf = [
        {"label_count": count, "seconds": 1.5, "items_per_second": rate, "model_bytes": 2e5}
        for count, rate in (("100", 4000.0), ("all", 5000.0))
    ]
    metadata["pretrain@elmo-0"] = {"device": "cuda:0"}
    metadata["pretrain@gpt-0"] = {"device": "cpu"}
    metadata["baselines@sense"] = {"seconds": 9.0, "peak_memory_bytes": 1e8, "tfidf": tfidf}
    found = {}
    costs = build_costs(analysis, metadata)
    for (system, setting), cost in costs.items():
        found[system.model, system.init, system.transfer, setting.task] = cost
    assert found["elmo", "pretrained", "zero_shot", "agreement"].seconds == 100.0, "no head"
    assert found["tfidf", "none", "none", "sense"].seconds == 1.5
    assert found["tfidf", "none", "none", "sense"].model_bytes == 2e5
    assert found["tfidf", "none", "none", "sense"].items_per_second == 5000.0
    assert found["elmo", "pretrained", "zero_shot", "agreement"].items_per_second == 400 / 3.0
    assert found["tfidf", "none", "none", "sentiment"].seconds is None
    trained = [
        cost
        for key, cost in found.items()
        if key[3] in ("sense", "sentiment") and key[0] != "tfidf"
    ]
    adapted = [cost.seconds for key, cost in found.items() if key[1] == "adapted"]
    assert {cost.model_bytes for cost in trained} == {4e6}
    assert {cost.peak_memory_bytes for cost in trained} == {6e8}
    assert {cost.items_per_second for cost in trained} == {110.0}
    assert adapted and set(adapted) <= {122.0, 150.0}
    plain = {cost.seconds for key, cost in found.items() if key[1] == "pretrained"}
    assert plain <= {100.0, 102.0, 103.0, 130.0}
    assert {key[0] for key, cost in found.items() if cost.on_gpu} == {"elmo"}
    assert "on a GPU and others on a CPU" in describe_devices(costs)
    metadata["pretrain@elmo-0"] = {"device": "cpu"}
    assert describe_devices(build_costs(analysis, metadata)) == ""


def test_the_figure_marks_what_may_be_the_best() -> None:
    analysis = analyze_cells(with_floor(build_cells(elmo=0.9, gpt=0.6, tfidf=0.65)))
    analysis = dataclasses.replace(
        analysis, grid=dataclasses.replace(analysis.grid, label_counts=(100,))
    )
    assert list_shown_label_counts(analysis) == ["100"]
    (panel,) = draw_main_panels(analysis, "100")
    assert "<title>sense: ELMo fine-tuned 90.0; GPT fine-tuned 60.0; TF-IDF" in panel
    assert panel.count('fill="var(--background') == 2, "the marks of gpt and TF-IDF are open"


def test_the_front_has_the_systems_that_no_cheaper_one_beats() -> None:
    def choice(mean: float, seconds: float | None) -> Choice:
        ranking = analyze_cells(build_cells(elmo=mean)).rankings[0]
        standing = dataclasses.replace(ranking.best, mean=mean)
        return Choice(standing, SystemCost(seconds=seconds))

    cheap, worse, better, unknown = (
        choice(0.7, 1.0),
        choice(0.65, 20.0),
        choice(0.9, 100.0),
        choice(0.95, None),
    )
    equal = choice(0.705, 50.0)
    front = pareto_front([better, unknown, worse, equal, cheap])
    assert front == [cheap, equal, better]
    assert describe_front(front, margin=0.02) == (
        "ELMo is the cheapest; ELMo takes 100 s for +20.0 points."
    ), "a gain within the margin is not worth a sentence"
    assert describe_front([cheap], margin=0.02) == (
        "ELMo is the cheapest, and no other scores higher."
    )


def test_what_labels_brought_is_told_of_the_recommended_system_alone() -> None:
    cells = build_cells(elmo=0.9, gpt=0.6)
    own = cells[0].system
    frozen = gain_for(dataclasses.replace(own, transfer="frozen"))
    other_count = gain_for(own, most=90)
    decision = decide_one(cells, label_gains=(frozen, other_count))
    assert decision.label_gain is None
    assert (
        "Run ELMo (fine-tuned) with a second number of labels to see what labels bring."
        in read_decision(analyze_cells(cells), decision)["Next step"]
    )
    flat = decide_one(cells, label_gains=(frozen, gain_for(own, low=-0.01)))
    assert "from 50 to 100 labels no gain is shown" in describe_decision(flat)
