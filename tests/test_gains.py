"""The report shows the gains of pretraining and adaptation, and chance marks."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lineage import artifacts
from lineage.analysis.convergence import ConvergenceControl
from lineage.analysis.gains import summarize_gains
from lineage.analysis.records import Analysis, Comparison, NgramComparison
from lineage.analysis.settings import baseline_is_near_chance, chance_level, comparison_outcome
from lineage.methods.registry import name_use
from lineage.networks.registry import load_family
from lineage.report.formatting import format_comparison, format_model, format_verdict
from lineage.report.section import Section, Table, as_row
from lineage.report.sections import comparisons, gains
from lineage.report.sections.gains import build
from lineage.report.sections.tasks import build_label_count_table
from lineage.report.task_scores import list_task_scores
from tests.helpers.sections import (
    find_blocks,
    find_figures,
    find_texts,
    read_cell,
    read_table,
    report_of,
)
from tests.helpers.study_rows import FAMILIES, SENSE_GRID, Study, analyze


def with_scores(analysis: Analysis, init: str, **changed: Any) -> Analysis:
    """Return the analysis with other values in all scores of systems with this init."""
    scores = []
    for score in analysis.scores:
        has_init = score.system.init == init and score.mean is not None
        scores.append(replace(score, **changed) if has_init else score)
    return replace(analysis, scores=tuple(scores))


def with_comparisons(analysis: Analysis, comparisons: list[Comparison]) -> Analysis:
    return replace(analysis, comparisons=tuple(comparisons))


def pretraining_comparison(analysis: Analysis, **changed: Any) -> Comparison:
    """Return a comparison with the random-init baseline at all labels, with these changes."""
    first = next(
        comparison
        for comparison in analysis.comparisons
        if comparison.comparison_type == "pretraining" and comparison.label_count == "all"
    )
    return replace(first, **changed)


def build_parts(analysis: Analysis) -> list[Section]:
    """Return a section for each type of gain."""
    section = build(report_of(analysis))
    parts = section.blocks if section is not None else ()
    return [part for part in parts if isinstance(part, Section)]


def test_every_comparison_with_a_baseline_is_a_gain(analysis: Analysis) -> None:
    summaries = summarize_gains(analysis)
    assert [one.comparison_type for one in summaries] == ["pretraining", "adaptation"]
    for summary in summaries:
        own = [
            one for one in analysis.comparisons if one.comparison_type == summary.comparison_type
        ]
        assert [gain.comparison for gain in summary.gains] == own != []
    by_use = Counter((gain.model, gain.method) for gain in summaries[0].gains)
    methods = {"frozen": 4, "fine-tuned": 4, "zero-shot": 1}
    assert by_use == {(model, name): n for model in FAMILIES for name, n in methods.items()}, (
        "two tasks have two label counts"
    )


def test_a_method_that_was_run_with_fewer_labels_is_named(analysis: Analysis) -> None:
    kept = [
        one
        for one in analysis.comparisons
        if one.comparison_type == "pretraining"
        and (one.first.transfer, one.label_count) != ("finetuned", "all")
    ]
    (section,) = build_parts(with_comparisons(analysis, kept))
    finding = find_texts(section)[0]
    assert finding.startswith(
        "With these labels, the most of each method (frozen: 600; fine-tuned: 100), "
    )
    figures = [figure.svg for figure in find_figures(section)]
    assert any("fine-tuned, 100 labels" in figure for figure in figures)
    assert not any("frozen, " in figure for figure in figures)


def test_models_whose_random_weights_read_no_context_are_named(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        modern = {"gpt": "gpt_modern"}
        patch.setattr(gains, "load_family", lambda name: load_family(modern.get(name, name)))
        (first, _) = build_parts(analysis)
    note = (
        " That of GPT, frozen, reads no context, since its output matrices start at zero: "
        "a frozen gain is one over random vectors of tokens."
    )
    assert sum(note in text for text in find_texts(first)) == 1
    (first, _) = build_parts(analysis)
    assert not any("reads no context" in text for text in find_texts(first))


def test_missing_comparisons_are_empty_and_marks_follow_verdicts(analysis: Analysis) -> None:
    """Two models are compared at the largest label count; all kinds of BiLSTM are one method."""
    verdicts = {
        ("elmo", "sense"): "worse",
        ("elmo", "sentiment"): "equivalent",
        ("gpt", "sense"): "identical predictions",
    }
    kept = [
        replace(one, verdict=verdicts[one.first.model, one.task])
        for one in analysis.comparisons
        if one.comparison_type == "pretraining"
        and (one.first.transfer, one.label_count) == ("frozen", "all")
        and (one.first.model, one.task) in verdicts
    ]
    (section,) = build_parts(with_comparisons(analysis, kept))
    (table,) = find_blocks(section, Table)
    marks = {}
    for row in table.rows:
        task, *texts = map(read_cell, as_row(row).cells)
        marks[task.partition(",")[0]] = [text.lstrip("+−.0123456789") for text in texts]
    assert marks == {"sentiment": [" =", "–"], "sense": [" ▼", " ="]}
    assert find_texts(section)[0] == (
        "With these labels, the most of each task, we could not show that pretraining helped GPT. "
        "A loss is shown for ELMo in 1 of 2."
    )
    few = [replace(one, verdict="too few seeds") for one in kept]
    (section,) = build_parts(with_comparisons(analysis, few))
    assert find_texts(section)[0] == (
        "Whether ELMo and GPT gain is not known: there are fewer than 3 seeds of fine-tuning."
    )
    few = [one for one in few if one.first.model == "elmo"]
    (section,) = build_parts(with_comparisons(analysis, few))
    assert find_texts(section)[0] == (
        "Whether ELMo gains is not known: there are fewer than 3 seeds of fine-tuning."
    )
    better = [replace(one, verdict="better") if one.task == "sense" else one for one in kept]
    (section,) = build_parts(with_comparisons(analysis, better))
    assert find_texts(section)[0] == (
        "With these labels, the most of each task, a gain is shown for GPT° in 1 of 1 comparisons; ELMo in 1 of 2. By task: sentiment in 0 of 1, sense in 2 of 2."
    )
    learned_less = NgramComparison("gpt", 2.1, 2.0, (), ("agreement",))
    analysis = replace(with_comparisons(analysis, better), ngram_comparisons=(learned_less,))
    (section,) = build_parts(analysis)
    assert find_texts(section)[0] == (
        "With these labels, the most of each task, a gain is shown for ELMo in 1 of 2 comparisons. "
        "By task: sentiment in 0 of 1, sense in 1 of 1. Not counted: GPT (‡), not shown to have learned more than 5-grams. "
        "All the same, a gain is shown for GPT° in 1 of 1 comparisons. "
        "Counted, but not tested against 5-grams: ELMo (not compared)."
    )
    masked = replace(learned_less, predicted="masked tokens", low=-0.1, high=0.2)
    (section,) = build_parts(replace(analysis, ngram_comparisons=(masked,)))
    assert "Not counted: GPT (‡)" in find_texts(section)[0]
    (section,) = build_parts(replace(analysis, public_models=("elmo",)))
    assert find_texts(section)[0] == (
        "Not counted: GPT (‡), not shown to have learned more than 5-grams. All the same, a gain is shown for GPT° in 1 of 1 comparisons. Of public models, "
        "a gain is shown for ELMo in 1 of 2 comparisons."
    )
    names = []
    for one, head in zip(kept, ("bilstm", "bilstm_crf", "linear"), strict=True):
        own = replace(one, first=replace(one.first, head=head))
        names.append(name_use(own.first.transfer, own.first.head))
    assert names == ["frozen + BiLSTM(-CRF)", "frozen + BiLSTM(-CRF)", "frozen"]


def test_where_fine_tuning_did_not_converge_no_gain_and_no_loss_is_stated(
    analysis: Analysis,
) -> None:
    tuned = next(one for one in analysis.comparisons if one.first.transfer == "finetuned")
    for fine_tuned, outcome in ((0.5, "not converged"), (0.69, "worse")):
        control = ConvergenceControl(
            tuned.task, tuned.label_count, "word2vec", "accuracy", fine_tuned, 0.7
        )
        comparison = replace(tuned, comparison_type="pretraining", verdict="worse")
        changed = replace(with_comparisons(analysis, [comparison]), convergence_controls=(control,))
        assert comparison_outcome(changed, comparison) == outcome
        (section,) = build_parts(changed)
        texts = " ".join(find_texts(section))
        assert ("did not converge on" in texts) is (outcome == "not converged")
        assert ("a loss is shown" in texts) is (outcome == "worse")


def test_without_random_init_baselines_there_is_no_gain_section(analysis: Analysis) -> None:
    kept = [
        one
        for one in analysis.comparisons
        if one.comparison_type not in ("pretraining", "adaptation")
    ]
    analysis = with_comparisons(analysis, kept)
    assert build_parts(analysis) == []


@pytest.mark.parametrize("verdict", ["better", "no significant difference", "worse"])
@pytest.mark.parametrize("above", [{"pretrained"}, {"random"}, set()])
def test_a_comparison_has_no_outcome_if_both_systems_are_at_chance(
    analysis: Analysis, verdict: Any, above: set[str]
) -> None:
    comparison = pretraining_comparison(analysis, verdict=verdict)
    for init in ("pretrained", "random"):
        analysis = with_scores(analysis, init, above_chance=init in above)
    expected = verdict if above else "neither shown above chance"
    assert comparison_outcome(analysis, comparison) == expected
    analysis = with_comparisons(analysis, [comparison])
    scores = next(one for one in list_task_scores(analysis, []) if one.task == comparison.task)
    rows = [
        line
        for label_count in scores.train_examples
        for line in read_table(build_label_count_table(scores, label_count))
    ]
    differences = [line["vs. baseline"] for line in rows if line["vs. baseline"]]
    words = format_verdict(comparison) if above else expected
    interval = format_comparison(comparison)
    assert len(differences) == 1
    assert differences[0].removesuffix(" °") in (f"{interval}: {words}", interval)


def test_a_baseline_with_less_than_a_tenth_of_the_lead_is_near_chance(analysis: Analysis) -> None:
    better = pretraining_comparison(analysis, verdict="better")
    level = chance_level(analysis, better.setting)
    for lead, is_near in ((0.029, True), (0.031, False)):
        changed = with_scores(analysis, "random", mean=level + lead, above_chance=True)
        changed = with_scores(changed, "pretrained", mean=level + 0.3)
        assert baseline_is_near_chance(changed, better) == is_near, lead
    unclear = replace(better, verdict="no significant difference")
    assert not baseline_is_near_chance(changed, unclear), "only a gain is marked"


def test_gains_are_in_brackets_where_both_are_at_chance(analysis: Analysis) -> None:
    """The golden page shows the other marks."""
    near_chance = with_scores(analysis, "random", mean=0.0, above_chance=False)
    both = with_scores(near_chance, "pretrained", mean=0.0, above_chance=False)
    num_better = sum(
        one.comparison_type == "pretraining" and one.verdict == "better"
        for one in near_chance.comparisons
    )
    gains = summarize_gains(near_chance)[0].gains
    assert num_better and sum(gain.baseline_near_chance for gain in gains) == num_better
    section = build_parts(both)[0]
    tables = find_blocks(section, Table)
    cells = [
        read_cell(cell) for table in tables for row in table.rows for cell in as_row(row).cells[1:]
    ]
    assert cells and all(re.fullmatch(r"\([+−]?\d+\.\d\)", cell) for cell in cells)
    drawn = "".join(figure.svg for figure in find_figures(section))
    gained = re.findall(r">(\(?[+−]?\d+\.\d\)?) \([+−\d. to]+\)(?: °)?<", drawn)
    assert gained and all(text.startswith("(") for text in gained)
    assert any("In brackets: on a task" in text for text in find_texts(section))
    (table,) = find_blocks(comparisons.build(report_of(both)), Table)
    verdicts = [row["verdict"] for row in read_table(table) if row["type"] == "pretraining"]
    assert verdicts and all(text.endswith("(neither shown above chance)") for text in verdicts)


@pytest.mark.parametrize(("continued", "plain"), [("bert", "gpt"), ("gpt", "bert")])
def test_a_public_model_that_read_the_corpus_is_compared_with_itself_before(
    tmp_path: Path, continued: str, plain: str
) -> None:
    """bert is 0.6 logits better than gpt, so one is a gain of the other and the other a loss."""
    grid = replace(SENSE_GRID, models=("gpt", "bert"))
    folder = Study(tmp_path, grid).write()
    for path in folder.glob("*/evaluate*.parquet"):
        artifacts.write_table(path, artifacts.read_table(path).assign(family="public"))
    before = analyze(folder, grid).comparisons
    analysis = analyze(folder, grid, continued_models={continued: plain})
    found = [one for one in analysis.comparisons if one.comparison_type == "continuation"]
    assert tuple(one for one in analysis.comparisons if one not in found) == before
    assert {(one.first.model, one.second.model) for one in found} == {(continued, plain)}
    verdicts = {one.verdict for one in found} - {"no significant difference"}
    assert verdicts == {"better" if continued == "bert" else "worse"}
    section = build_parts(analysis)[-1]
    word = "gain" if continued == "bert" else "loss"
    name = format_model(continued)
    assert section.title == "What continued pretraining adds"
    finding = find_texts(section)[0]
    assert finding.startswith(
        f"With these labels, the most of each task, a {word} is shown for {name} in "
    )
    assert finding.endswith(" comparisons.")
