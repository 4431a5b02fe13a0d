"""The notes on a task: its data, its settings, and how its scores are to be read."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lineage import results
from lineage.analysis import build, cells
from lineage.analysis.build import build_results
from lineage.analysis.records import Analysis, DuplicateLabelCount, GroupScore, GroupScores, System
from lineage.config.params import ReportParams
from lineage.data.dataset_stats import SplitStats
from lineage.report.task_notes import describe_task_data
from tests.study_rows import GRID, Study, build_analysis, render_pages


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return build_results(
        Study(tmp_path_factory.mktemp("study"), items=40).write(), GRID, ReportParams()
    )[1]


def test_a_mean_over_groups_and_the_training_task_of_an_extra_test_set_are_named(
    analysis: Analysis,
) -> None:
    groups = tuple(GroupScore(name, 10, (0.5,)) for name in "abc")
    system = System("gpt", "gpt", "pretrained", *["none"] * 5)
    scores = GroupScores("sense", "none", 0, "spearman", (system,), groups)
    summaries = tuple(replace(one, averages_groups=True) for one in analysis.tasks)
    changed = replace(analysis, tasks=summaries, group_scores=(scores,))
    assert describe_task_data(changed, "sense") == [
        "The score is the mean over 3 groups, each with its own correlation."
    ]
    for other in (replace(changed, tasks=analysis.tasks), replace(changed, group_scores=())):
        assert describe_task_data(other, "sense") == []
    assert describe_task_data(analysis, "sentiment on films") == [
        "Trained on sentiment and scored on films. The majority class is that of sentiment."
    ]


GPT = System("gpt", "gpt", "pretrained", "none", "frozen", "scalar_mix", "linear", "none")


def small_analysis(folder: Path, **changes: Any) -> Analysis:
    """Return the analysis of a study with 40 items."""
    grid = dataclasses.replace(GRID, **changes)
    return build_results(Study(folder, items=40).write(), grid, ReportParams())[1]


def swap_rows(task: str, **values: list[float]) -> list[results.ResultRow]:
    """Return rows of swap consistency by init, a value per fine-tuning seed."""
    return [
        results.ResultRow(
            model="gpt",
            family="gpt",
            task="sense",
            kind="text_classification",
            metric="swap_consistency",
            value=value,
            num_examples=40,
            finetune_seed=seed,
            init=init,  # type: ignore[arg-type]
            transfer="finetuned",
            head="linear",
            label_count="all",
            test_set=task,
        )
        for init, seed_values in values.items()
        for seed, value in enumerate(seed_values)
    ]


def test_notes_on_the_data_and_on_swapped_texts_are_next_to_their_task(tmp_path: Path) -> None:
    analysis = small_analysis(tmp_path)
    train = SplitStats(
        90, invalid_tags=2, numeric_tags=9, tags_without_scheme=8, dropped={"unusable": 4}
    )
    test = SplitStats(
        40, duplicates_of_train=3, groups_in_train=30, blank_words=5, tags_not_in_train=6
    )
    summaries = [
        replace(one, splits={"train": train, "test": test}) if one.task == "sense" else one
        for one in analysis.tasks
    ]
    table = results.results_frame(swap_rows("sense", pretrained=[0.9, 0.8], random=[1.0, 1.0]))
    changed = replace(
        analysis,
        tasks=tuple(summaries),
        swap_consistency=tuple(build.swap_consistency(table, "test")),
        duplicate_label_counts=(DuplicateLabelCount("sense", "100", 49, "all"),),
    )
    notes = [
        "3 of the 40 test items also occur in train, word for word.",
        "2 of the 90 train sentences have tags that break their scheme",
        "4 train items were dropped: empty or not distinguishable.",
        "6 of the 40 test sentences have a tag or a type of span that train lacks",
        "5 blank words of test were dropped, with their tags.",
        "30 of the 40 test items belong to groups that train has too.",
        "The 8 tags have no span scheme, so accuracy is scored.",
        "The 9 tags are numbers without names, so accuracy is scored.",
        "There are only 49 labels, so 100 labels are the same setting as all.",
    ]
    swaps = "GPT, fine-tuned 85.0 %, all others 100 %."
    notes.append(f"Same answer when the two texts are swapped, all labels: {swaps}")
    for text in render_pages(changed).values():
        for note in notes:
            assert text.count(note) == 1, note
    assert "word for word" not in render_pages(analysis)["md"]


def scores_of(task: str, methods: list[tuple[str, str, list[str]]]) -> list[cells.ResultCell]:
    """Return cells with these transfers, heads and label counts."""
    return [
        cells.ResultCell(
            replace(GPT, transfer=transfer, head=head),
            task,
            "text_classification",
            label_count,
            "accuracy",
        )
        for transfer, head, label_counts in methods
        for label_count in label_counts
    ]


def test_settings_that_a_study_left_out_are_named(tmp_path: Path) -> None:
    counts = ["100", "1000", "all"]
    methods = [("frozen", "linear", counts), ("finetuned", "linear", ["100", "all"])]
    own = scores_of("mood", methods)
    note = "Not run: fine-tuned with 1,000 labels"
    assert describe_task_data(build_analysis(own), "mood") == [f"{note}."]
    other = scores_of("names", [("frozen", "bilstm_crf", ["all"])])
    both = build_analysis([*own, *other])
    assert describe_task_data(both, "mood") == [f"{note}, a BiLSTM probe."]
    assert not describe_task_data(both, "names")
