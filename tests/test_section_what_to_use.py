"""The table of decisions, the main figure, and how to read them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lineage.analysis.decision import decide
from lineage.analysis.records import Analysis, NgramComparison, Setting
from lineage.analysis.settings import find_random_score
from lineage.report.formatting import format_model
from lineage.report.section import Paragraph, Table
from lineage.report.sections import answer
from lineage.report.sections.what_to_use import build, describe_intervals, draw_main_panels
from tests.helpers.sections import find_blocks, find_texts, read_table, report_of
from tests.helpers.study_rows import GRID, Study, analyze


def test_the_main_figure_shows_the_other_systems_of_a_model(analysis: Analysis) -> None:
    panel = draw_main_panels(analysis, "all")[0]
    ranking = [
        one for one in analysis.rankings if (one.task, one.label_count) == ("sentiment", "all")
    ][-1]
    models = [one.system.model for one in ranking.standings]
    others = [
        one
        for one in analysis.scores_of(Setting("sentiment", "all"))
        if one.system.model in models and one.system.init != "random"
    ]
    assert panel.count('r="2.2"') == len(others) - len(models) > 0


def test_the_command_that_labels_a_file_follows_the_choice_of_labels(analysis: Analysis) -> None:
    section = build(report_of(analysis, decide(analysis, {})))
    assert section is not None and list(section.switch) == ["100", "all"]
    commands = {
        one.labels: re.findall(r"lineage predict .*?`", one.text)
        for one in find_blocks(section, Paragraph)
        if one.only == "html" and "lineage predict" in one.text
    }
    start = "lineage predict FILE -o OUT.csv --task sentiment"
    assert commands == {"100": [f"{start} --labels 100`"], "all": [f"{start}`"]}


def test_no_command_labels_a_file_for_a_kind_that_only_asks_what_models_know(
    analysis: Analysis,
) -> None:
    scores = tuple(
        replace(one, kind="tree_depth") if one.task == "sentiment" else one
        for one in analysis.scores
    )
    probing = replace(analysis, scores=scores)
    section = build(report_of(probing, decide(analysis, {})))
    assert section is not None
    texts = [one.text for one in find_blocks(section, Paragraph) if "lineage predict" in one.text]
    assert texts and all("--task sense" in text for text in texts)
    assert not any("sentiment" in text for text in texts)


def test_no_command_labels_a_file_with_texts_that_tfidf_does_not_keep(analysis: Analysis) -> None:
    decisions = []
    for one in decide(analysis, {}):
        standing = one.use.standing
        system = replace(standing.system, model="tfidf", family="tfidf")
        decisions.append(
            replace(one, use=replace(one.use, standing=replace(standing, system=system)))
        )
    scores = tuple(
        replace(one, kind="summarization") if one.task == "sentiment" else one
        for one in analysis.scores
    )
    section = build(report_of(replace(analysis, scores=scores), decisions))
    assert section is not None
    texts = [one.text for one in find_blocks(section, Paragraph) if "lineage predict" in one.text]
    assert texts and all("--task sense" in text for text in texts)
    assert not any("sentiment" in text for text in texts)


@pytest.mark.parametrize(
    ("tasks", "pretrain_seeds", "finetune_seeds", "expected"),
    [
        (("sense",), (0, 1, 2), (0, 1, 2), "over items, pretraining seeds and fine-tuning seeds."),
        (("sense",), (0,), (0,), "over items only. Nothing was repeated with another seed"),
        (
            ("sense",),
            (0, 1, 2),
            (0, 1),
            "over items and pretraining seeds. With 2 fine-tuning seeds,",
        ),
        (("agreement",), (0, 1, 2), (0, 1), "over items and pretraining seeds."),
    ],
)
def test_the_text_on_intervals_names_only_what_was_repeated(
    tasks: tuple[str, ...],
    pretrain_seeds: tuple[int, ...],
    finetune_seeds: tuple[int, ...],
    expected: str,
    tmp_path: Path,
) -> None:
    grid = replace(
        GRID,
        models=("elmo", "bert"),
        tasks=tasks,
        pretrain_seeds=pretrain_seeds,
        finetune_seeds=finetune_seeds,
        adapt_models=(),
        adapt_tasks=(),
    )
    text = describe_intervals(analyze(Study(tmp_path, grid=grid, items=40).write(), grid))
    assert text.startswith(expected)


def test_random_init_is_a_tick_beside_each_trained_model(analysis: Analysis) -> None:
    """A tick is an upright line of 12 pixels; all other upright lines cross the whole panel."""
    ranking = [
        one for one in analysis.rankings if (one.task, one.label_count) == ("sentiment", "all")
    ][-1]
    random = [find_random_score(analysis, one.system, ranking.setting) for one in ranking.standings]
    num_known = sum(score is not None for score in random)
    assert 0 < num_known < len(random), "TF-IDF has no weights"
    upright = re.findall(
        r'<line x1="([\d.]+)" x2="\1" y1="([\d.]+)" y2="([\d.]+)"',
        draw_main_panels(analysis, "all")[0],
    )
    assert [float(high) - float(low) for _, low, high in upright].count(12.0) == num_known


def test_a_model_in_use_that_learned_little_is_marked_and_excused(analysis: Analysis) -> None:
    decisions = decide(analysis, {})
    model = next(
        one.use.standing.system.model for one in decisions if one.advice == "pretrain on your text"
    )
    worse = NgramComparison(model, 2.1, 2.0, (), (), low=0.05, high=0.15)
    weak = replace(analysis, ngram_comparisons=(worse,))
    section = build(report_of(weak, decisions))
    name = format_model(model)
    uses = [row["Use"] for row in read_table(find_blocks(section, Table)[0])]
    assert any(f"{name} ‡" in text for text in uses), uses
    warning = find_texts(answer.build(report_of(weak, decisions)))
    excuse = f"Where the scores of a task decide for {name}, use it all the same."
    assert any(text.endswith(excuse) for text in warning), warning
    other = replace(analysis, ngram_comparisons=(replace(worse, model="unused"),))
    texts = find_texts(answer.build(report_of(other, decisions)))
    assert not any("all the same" in text for text in texts)
