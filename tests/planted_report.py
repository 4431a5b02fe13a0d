"""Bugs to plant in what the report tells of tasks."""

from tests.planted import Bug

USED = "test_report_tasks.py::test_what_was_used_cut_and_left_out_is_counted_on_the_page"
BUGS = {
    "what is dropped is counted as what is of no use": Bug("lineage/controls.py", "else DROPPED + reason", 'else "left_out"', USED),
    "what is cut is not told": Bug("lineage/controls.py", '"cut": facts["cut"]', '"cut": {}', USED),
    "a validation split that was carved is not told from one that was given": Bug(
        "lineage/controls.py", '{"validation": facts["carved"]}', '{"validation": 0}', USED
    ),
    "groups of folds are not told": Bug(
        "lineage/controls.py",
        'if facts["grouped"]:',
        'if not facts["grouped"]:',
        "test_report_tasks.py::test_folds_and_their_groups_are_said_where_a_task_is_scored_by_them",
    ),
    "what spells does not know words either": Bug(
        "lineage/subject.py",
        "return 0.0 if spells or not len(ids)",
        "return 0.0 if reader.unknown is None or not len(ids)",
        "test_report_tasks.py::test_a_share_of_tokens_is_unknown_to_closed_vocabularies_and_none_to_those_that_spell",
    ),
    "the words that an adaptation took in are not seen": Bug(
        "lineage/report/tasks.py",
        "changed = any(value != ",
        "changed = any(value is ",
        "test_report_tasks.py::test_unknown_words_are_a_table_of_the_page_and_compare_nothing",
    ),
    "a Chinese word is a word": Bug(
        "lineage/report/view.py",
        "if spaceless(language) else {}",
        "if not language else {}",
        "test_report_tasks.py::test_what_reads_words_reads_characters_where_the_language_has_no_spaces",
    ),
}
