"""Bugs to plant in how users' tables are read."""

from tests.planted import Bug

SENTENCE = "test_conll.py::test_a_word_a_line_is_a_sentence_up_to_a_blank_line"
UNCLOSED = "test_quoting.py::test_a_mark_that_nothing_closes_is_named_by_its_line"
BLANK = "test_odd_input.py::test_rows_with_nothing_in_any_column_are_left_out_and_counted_and_rows_keep_their_numbers"
TAGS = "test_tag_tables.py::test_"
FILES = "test_lines.py::test_a_file_is_an_item_and_its_folder_says_which"
BUGS = {
    "a word a row is a sentence": Bug(
        "lineage/tasks/token_classification.py",
        "single > MOST",
        "single > 2",
        TAGS + "a_word_a_row_is_no_sentence",
    ),
    "sentences of one word are refused": Bug(
        "lineage/tasks/token_classification.py",
        "MOST = 0.9",
        "MOST = 0.5",
        TAGS + "sentences_of_one_word_are_real_where_there_are_others",
    ),
    "spans in another form are plain tags": Bug(
        "lineage/data/labels.py",
        "and (form := other_form(labels)):",
        "and (form := ''):",
        TAGS + "spans_in_a_form_that_is_not_read_are_refused_with_what_is",
    ),
    "any tag with an underscore is a span": Bug(
        "lineage/evaluation/spans.py",
        "if len(outside) != 1 or",
        "if not outside or",
        TAGS + "tags_without_an_o_or_with_one_that_says_no_place_are_of_no_other_form",
    ),
    "a question is cut before its passage": Bug(
        "lineage/tokenizers/pairs.py",
        "kept = (_question(first, start, last=last), 0)",
        "kept = (0, 0)",
        "test_choices.py::test_where_a_model_cuts_the_question_stays_and_the_passage_goes",
    ),
    "the mark before a question is cut": Bug(
        "lineage/tokenizers/pairs.py",
        "before = max(room - asked, marks) if asked else room",
        "before = max(room - asked, 0)",
        "test_choices.py::test_a_question_that_does_not_fit_is_cut_at_its_end",
    ),
    "a reason names groups that are texts": Bug(
        "lineage/evaluation/word_vectors.py",
        "if tellable(items) else",
        "if True else",
        "test_private_text.py::test_why_a_group_of_words_has_no_correlation_tells_no_text",
    ),
    "a small o is no O": Bug(
        "lineage/data/labels.py",
        "not OUTSIDE.isdisjoint(map(str.lower, labels))",
        '"O" in labels',
        TAGS + "plain_tags_with_an_o_are_counted_unless_the_task_says_their_metric",
    ),
    "plain tags pass the check in silence": Bug(
        "lineage/data/checks.py",
        "for told, words_of in UNREAD.items():",
        "for told, words_of in ():",
        TAGS + "the_check_says_what_is_not_read_as_spans",
    ),
    "carving parts a group": Bug(
        "lineage/data/splits.py",
        "if grouped else np.zeros(0, int)",
        "if False else np.zeros(0, int)",
        "test_carving.py::test_the_items_of_a_named_group_stand_on_one_side_and_of_none_they_are_dealt_out",
    ),
    "a group takes the last items of a label": Bug(
        "lineage/data/splits.py",
        "left[label] > number",
        "left[label] >= number",
        "test_carving.py::test_no_group_takes_the_last_items_of_a_label",
    ),
    "the first group is taken, however large": Bug(
        "lineage/data/splits.py",
        "if last else after <= count",
        "if last else size < count",
        "test_carving.py::test_whole_groups_come_as_near_as_they_can",
    ),
    "groups of the generated language are taken for somebody's": Bug(
        "lineage/data/items.py",
        "if split.startswith(SECOND) else task).group}",
        "if split.startswith(SECOND) else record).group}",
        "test_carving.py::test_a_task_of_the_generated_language_has_no_groups_that_anybody_named",
    ),
    "groups of a second test set are not counted": Bug(
        "lineage/data/items.py",
        "for split in splits if (records[split]",
        "for split in found if (task",
        "test_carving.py::test_groups_of_a_second_test_set_count_where_it_names_them",
    ),
    "unlabelled text beside words ends the run": Bug(
        "lineage/data/splits.py",
        ' if split != "unlabelled"}',
        "}",
        "test_carving.py::test_unlabelled_text_of_sentences_in_words_is_no_item_that_could_be_repeated",
    ),
    "labels stand in the text that is adapted to": Bug(
        "lineage/data/sources.py",
        '(split == "unlabelled" and named)',
        '(split == "unlabelled")',
        "test_unlabelled.py::test_lines_of_a_label_and_a_text_give_the_text_alone",
    ),
    "a scored text is another where its words are joined otherwise": Bug(
        "lineage/data/unlabelled.py",
        'return "".join(text.split())',
        "return text",
        "test_unlabelled.py::test_a_text_is_found_again_where_its_words_are_joined_otherwise[True]",
    ),
    "a long text is scored and adapted to": Bug(
        "lineage/data/unlabelled.py",
        "_without_spaces(text) in scored or ",
        "",
        "test_repeated.py::test_a_long_text_that_is_scored_is_not_adapted_to_whatever_part_of_it_an_item_keeps",
    ),
    "what cannot be learned is learned from in folds": Bug(
        "lineage/data/task_data.py",
        'if self.facts["answer"] == "span":',
        "if False:",
        "test_repeated.py::test_with_folds_a_question_that_nobody_can_answer_is_scored_and_not_learned_from",
    ),
    "groups in train are not told": Bug(
        "lineage/evaluation/baselines.py",
        '"group_in_train", ',
        "",
        "test_report_details.py::test_what_the_data_holds_and_swapped_texts_are_said_beside_their_task",
    ),
    "and not in the table of tasks": Bug(
        "lineage/report/tasks.py",
        '{_some(groups)}" if groups',
        '{_some(groups)}" if not groups',
        "test_carving.py::test_the_table_of_tasks_says_what_is_in_train_by_its_group",
    ),
    "a name in another case is far away": Bug(
        "lineage/config/records.py",
        "str(word).lower(), folded",
        "str(word), folded",
        "test_literature.py::test_an_unknown_benchmark_is_refused_with_the_nearest",
    ),
    "a label that train lacks has no way out": Bug(
        "lineage/data/labels.py",
        "    if many:\n",
        "    if True:\n",
        "test_names.py::test_of_labels_three_are_shown_and_of_texts_none",
    ),
    "a window is longer than a public model reads": Bug(
        "lineage/models/public.py",
        "min(LENGTH, positions)",
        "LENGTH",
        "test_public.py::test_a_window_is_as_long_as_somebody_says_or_as_can_be_read",
    ),
    "the shorter window is not kept": Bug(
        "stages/pretrain.py",
        "settings = settings.within(config.positions)",
        "settings.within(config.positions)",
        "test_public_stages.py::test_the_window_that_nobody_named_is_one_that_the_model_reads",
    ),
    "a mark within a text closes a cell": Bug(
        "lineage/data/quoting.py", "ended = ended and (", "ended = True or (", UNCLOSED
    ),
    "rows that a mark glued are taken for a cell": Bug(
        "lineage/data/quoting.py",
        "if glued and (",
        "if False and (",
        "test_quoting.py::test_of_a_table_without_quoting_no_row_is_lost_without_a_word",
    ),
    "a cell of lines with commas is taken for rows": Bug(
        "lineage/data/quoting.py",
        "if glued and (",
        "if glued or like_rows and (",
        "test_quoting.py::test_a_letter_in_a_cell_is_no_row",
    ),
    "rows after a blank one are misnumbered in errors": Bug(
        "lineage/data/items.py",
        "raise RowError(before, rows[row], after)",
        "raise RowError(before, row, after)",
        BLANK,
    ),
    "and in ids": Bug(
        "lineage/data/items.py",
        "pd.Index([rows[row] for row in table.index])",
        "table.index",
        BLANK,
    ),
    "an item is carved out and learned from": Bug(
        "lineage/data/splits.py",
        "chosen[nested_subset(strata(train)[chosen], used, seed=seed, cover=False)]",
        "nested_subset(strata(train), used, seed=seed)",
        "test_tasks.py::test_carving_leaves_every_label_in_train",
    ),
    "validation has one item of each of many labels": Bug(
        "lineage/data/subsets.py",
        "count, seed=seed, cover=False)",
        "count, seed=seed)",
        "test_carving.py::test_of_many_labels_each_has_its_share_of_validation",
    ),
    "texts alone are cut at their first space": Bug(
        "lineage/data/unlabelled.py",
        "len({*strange}) > SIGNS",
        "len({*strange}) > known.nunique()",
        "test_unlabelled.py::test_nor_where_there_are_more_labels_than_first_words_nor_where_they_are_numbers",
    ),
    "and sentences beside tags": Bug(
        "lineage/data/tables.py",
        'if tabs or form.row == "spaced" else',
        "if tabs else",
        "test_conll.py::test_words_and_tags_of_a_line_are_parted_by_a_tab_alone",
    ),
    "a first line of other names is a class": Bug(
        "lineage/data/items.py",
        "    _check_first_lines(record, kind, found)\n",
        "",
        "test_lines.py::test_a_first_line_of_other_names_is_no_item_of_a_class_of_its_own",
    ),
    "a part of an official split is scored": Bug(
        "lineage/config/data.py",
        '"limit.test": self.limit.test, ',
        "",
        "test_literature.py::test_an_official_split_is_scored_as_a_whole",
    ),
    "a name that nothing has is taken in silence": Bug(
        "lineage/data/labels.py",
        "if strange and any(",
        "if not strange and any(",
        "test_names.py::test_names_that_do_not_reach_are_refused",
    ),
    "the rows of other labels are taken for texts": Bug(
        "lineage/data/labels.py",
        "KNOWN = 0.5",
        "KNOWN = 1.1",
        "test_names.py::test_labels_that_train_lacks_are_told_at_once_and_whole_to_be_copied",
    ),
    "names in a list count from 1": Bug(
        "lineage/config/data.py",
        "enumerate(self.names or ())",
        "enumerate(self.names or (), 1)",
        "test_names.py::test_numbers_get_their_names_by_place_or_by_themselves",
    ),
    "labels of a column of texts are shown": Bug(
        "lineage/data/labels.py",
        "min(MANY, rows - 1)",
        "MANY",
        "test_names.py::test_of_labels_three_are_shown_and_of_texts_none",
    ),
    "the last sentence of a file is lost": Bug(
        "lineage/data/tables.py", "chain(rows, [[None] * count])", "rows", SENTENCE
    ),
    "a first row of more cells than names has an index": Bug(
        "lineage/data/files.py",
        "> len(names):  # pandas",
        "> 9 * len(names):  # pandas",
        "test_quoting.py::test_a_first_row_of_more_cells_than_names_is_no_index",
    ),
    "marks that mean nothing part cells": Bug(
        "lineage/data/files.py",
        "0 if self.quotes else 3",
        "0",
        "test_quoting.py::test_where_marks_mean_nothing_they_are_a_part_of_the_texts",
    ),
    "a comment is cut like the line of a word": Bug(
        "lineage/data/tables.py",
        "line.startswith((*COMMENT, *NEW_DOCUMENT))",
        "False",
        "test_conll.py::test_comments_between_sentences_are_no_tokens",
    ),
    "a comment with as many cells as a word is one": Bug(
        "lineage/data/tables.py",
        "or FACT.match(line)",
        "",
        "test_conll.py::test_comments_between_sentences_are_no_tokens",
    ),
    "joined words are words too": Bug(
        "lineage/data/tables.py",
        "len(columns) == CONLLU and ",
        "False and ",
        "test_conll.py::test_joined_words_and_empty_ones_of_conll_u_are_no_tokens",
    ),
    "a line between documents is a sentence": Bug(
        "lineage/data/tables.py", " or (sentences and line.startswith(NEW_DOCUMENT))", "", SENTENCE
    ),
    "a line of names is a row": Bug(
        "lineage/data/tables.py",
        "        if not heading:\n",
        "        if True:\n",
        "test_lines.py::test_the_first_line_of_a_table_without_names_is_a_row",
    ),
    "cells are not counted": Bug(
        "lineage/data/tables.py",
        "if cells and len(cells) != len(names):",
        "if False:",
        "test_lines.py::test_lines_of_another_form_are_refused_with_what_to_write",
    ),
    "an end that is the last character is taken for the one after it": Bug(
        "lineage/data/annotations.py",
        "    return first + len(said)",
        "    return last",
        "test_mentions.py::test_spans_of_chinese_are_of_characters_and_blank_ones_are_left_out",
    ),
    "labels that are held back are scored": Bug(
        "lineage/data/labels.py",
        "shares.get(found.iloc[0], 0.0) ** len(found) < BY_CHANCE",
        "shares.get(found.iloc[0], 0.0) == 0",
        "test_held_back.py::test_labels_that_are_held_back_are_told_by_their_being_all_the_same",
    ),
    "a text's folder is the one above its own": Bug(
        "lineage/data/tables.py",
        "path.parent.name for path in some",
        "path.parent.parent.name for path in some",
        FILES,
    ),
    "files are read up to a batch": Bug(
        "lineage/data/tables.py",
        "for first in range(0, len(files.paths), BATCH):",
        "for first in (0,):",
        "test_lines.py::test_texts_without_labels_are_files_too_and_a_second_test_set_may_be_a_table",
    ),
    "folders of items are passed over": Bug(
        "lineage/data/files.py",
        "if items and (others",
        "if False and (others",
        "test_lines.py::test_no_folder_of_items_is_passed_over_in_silence",
    ),
}
