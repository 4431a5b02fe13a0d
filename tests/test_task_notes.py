"""The notes on a task: its data, its settings, and how its scores are to be read."""

from dataclasses import replace

from lineage.analysis.records import (
    Analysis,
    AnswerDetails,
    ClassScore,
    GroupScore,
    GroupScores,
    System,
)
from lineage.report.task_notes import describe_few_groups, describe_rare_labels, describe_task_data


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


def test_items_of_few_groups_are_drawn_and_the_groups_are_named(analysis: Analysis) -> None:
    groups = tuple(GroupScore(str(number), 10, (0.5,)) for number in range(9))
    system = System("gpt", "gpt", "pretrained", *["none"] * 5)
    scores = GroupScores("sense", "none", 0, "accuracy", (system,), groups)
    changed = replace(analysis, group_scores=(scores,))
    note = "9 groups of 'author': intervals are for these groups, not for others."
    assert [*describe_few_groups(changed, "sense", "author")] == [note]
    assert [*describe_few_groups(changed, "sense", None)] == [note.replace(" of 'author'", "")]
    assert not [*describe_few_groups(changed, "sentiment", "author")]
    many = replace(scores, groups=(*groups, GroupScore("9", 10, (0.5,))))
    assert not [*describe_few_groups(replace(analysis, group_scores=(many,)), "sense", "author")]
    grouped = tuple(replace(one, num_clusters=9) for one in analysis.scores)
    assert not [*describe_few_groups(replace(changed, scores=grouped), "sense", "author")]


def test_labels_with_few_test_items_are_named_where_each_label_counts(analysis: Analysis) -> None:
    system = System("gpt", "gpt", "pretrained", *["none"] * 5)
    classes = tuple(ClassScore(name, count, (0.5,)) for name, count in (("a", 90.0), ("b", 7.0)))
    details = AnswerDetails("sense", "all", "items", (system,), classes, (), (), (None,))

    def describe(metric: str, details: AnswerDetails) -> list[str]:
        scores = tuple(replace(one, metric=metric) for one in analysis.scores)
        changed = replace(analysis, scores=scores, answer_details=(details,))
        return [*describe_rare_labels(changed, "sense")]

    assert describe("accuracy", details) == []
    note = "Label 'b' has 7 test items: its part of macro-F1 is hardly known."
    assert describe("macro_f1", details) == [note]
    rarer = replace(details, classes=(*classes, ClassScore("c", 1.0, (0.5,))))
    (note,) = describe("macro_f1", rarer)
    assert note.startswith("Label 'c' has 1 test item, and 1 other label has fewer than 20: their ")
    assert describe("matthews", details) == [
        "Label 'b' has 7 test items: Matthews correlation is hardly known."
    ]
    assert describe("span_f1", details) == []
    assert describe("span_f1", replace(details, classes=classes[1:])) == [
        "There are only 7 spans to find, so F1 is hardly known."
    ]
