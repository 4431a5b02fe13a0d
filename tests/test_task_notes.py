"""The notes on a task: its data, its settings, and how its scores are to be read."""

from dataclasses import replace
from pathlib import Path

from lineage.analysis import cells
from lineage.analysis.records import Analysis, GroupScore, GroupScores, System
from lineage.report.task_notes import describe_task_data
from tests.helpers.study_rows import GPT, build_analysis


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
