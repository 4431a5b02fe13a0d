"""Bugs to plant in what the report tells of tasks, of controls, and of who leads."""

from tests.planted import Bug

USED = "test_report_tasks.py::test_what_was_used_cut_and_left_out_is_counted_on_the_page"
BUGS = {
    "what is dropped is counted as what is of no use": Bug(
        "lineage/evaluation/baselines.py", "else DROPPED + reason", 'else "left_out"', USED
    ),
    "what is cut is not told": Bug(
        "lineage/evaluation/baselines.py", '"cut": facts["cut"]', '"cut": {}', USED
    ),
    "a validation split that was carved is not told from one that was given": Bug(
        "lineage/evaluation/baselines.py",
        '{"validation": facts["carved"]}',
        '{"validation": 0}',
        USED,
    ),
    "groups of folds are not told": Bug(
        "lineage/evaluation/baselines.py",
        'if facts["grouped"]:',
        'if not facts["grouped"]:',
        "test_report_tasks.py::test_folds_and_their_groups_are_said_where_a_task_is_scored_by_them",
    ),
    "what spells does not know words either": Bug(
        "lineage/evaluation/systems.py",
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
    "controls know no groups": Bug(
        "lineage/evaluation/baselines.py",
        'groups_of(said, fold=cell.get("fold"))',
        '[("all", said)]',
        "test_bygroup.py::test_no_control_column_is_empty",
    ),
    "nor do those of pairs without labels": Bug(
        "lineage/evaluation/baselines.py",
        "for group, items in groups_of(scored, fold=None)",
        "for group, items in groups_of(scored, fold=0)",
        "test_bygroup.py::test_controls_have_a_row_a_group_wherever_they_have_a_value",
    ),
    "nor do those of words": Bug(
        "lineage/evaluation/baselines.py",
        "for group, items in groups_of(found, fold=None)",
        "for group, items in groups_of(found, fold=0)",
        "test_bygroup.py::test_controls_have_a_row_a_group_wherever_they_have_a_value",
    ),
    "what has no value at all says so for each group": Bug(
        "lineage/evaluation/baselines.py",
        'if group == "all" or np.isfinite(whole[metric]):',
        "if True:",
        "test_bygroup.py::test_controls_have_a_row_a_group_wherever_they_have_a_value",
    ),
    "papers' numbers on other splits stand beside ours": Bug(
        "lineage/report/literature.py",
        '(one.task, one.split) == (record["name"], record["official_split"])',
        'one.task == record["name"]',
        "test_literature.py::test_numbers_on_another_split_of_the_benchmark_are_not_shown",
    ),
    "groups of folds are told apart": Bug(
        "lineage/evaluation/predictions.py",
        'if fold is not None or items["group"].nunique() < 2',
        'if items["group"].nunique() < 2',
        "test_bygroup.py::test_groups_that_folds_keep_together_have_no_rows",
    ),
    "numbered groups stand as words do": Bug(
        "lineage/analysis/groups.py",
        "key=keys.__getitem__ if all(numbered) else None",
        "key=None",
        "test_bygroup.py::test_groups_that_end_in_numbers_stand_in_their_order",
    ),
    "a public checkpoint is not held against TF-IDF": Bug(
        "lineage/analysis/comparisons.py",
        'found += [Pair("controls", a, b)] if a.way.init in TRAINED else []',
        'found += [Pair("controls", a, b)] if a.way.init in TRAINED and a.way.family != PUBLIC else []',
        "test_overtaking.py::test_a_public_checkpoint_is_there_and_said_not_to_be_matched",
    ),
    "every twin that is beaten guesses": Bug(
        "lineage/report/tree.py",
        "return may_guess(tree, one",
        "return True or may_guess(tree, one",
        "test_gains.py::test_a_twin_that_keeps_a_tenth_of_the_lead_has_none",
    ),
    "what is above guessing has to be so by three points": Bug(
        "lineage/analysis/comparisons.py",
        "together=1, spreads=[]).low > 0",
        "together=1, spreads=[]).low > 0.03",
        "test_comparisons.py::test_what_may_guess_is_asked_on_the_same_items_as_a_lead_is",
    ),
    "gains are of the fewest labels": Bug(
        "lineage/analysis/gains.py",
        "labels = max((one",
        "labels = min((one",
        "test_gains.py::test_a_table_has_the_differences_with_the_most_labels",
    ),
    "wide tables of the terminal are folded": Bug(
        "lineage/report/page.py",
        "while count > 1 and",
        "while count > 99 and",
        "test_gains.py::test_the_terminal_has_tasks_below_each_other_where_there_is_no_room",
    ),
    "a tie is the first one's": Bug(
        "lineage/report/sentences.py",
        "<= SAME)]",
        "< 0)]",
        "test_report_details.py::test_a_tie_at_the_top_is_nobodys",
    ),
    "a tie counts for the first one": Bug(
        "lineage/report/sentences.py",
        'and not q["alone"] and not q["behind"] and len(q["level"]) == 1)',
        'and not q["alone"] and not q["behind"])',
        "test_report_details.py::test_a_tie_at_the_top_is_nobodys",
    ),
    "what is worse than another leads": Bug(
        "lineage/report/sentences.py",
        'and not q["behind"] and len(q["level"]) == 1)',
        'and len(q["level"]) == 1)',
        "test_report_failures.py::test_what_leads_by_the_seeds_that_did_not_fail_alone_leads_nowhere",
    ),
    "a failed pretraining is in the mean": Bug(
        "lineage/analysis/results.py",
        'if one.get("status", "ok") == "ok"}',
        "if True}",
        "test_report_failures.py::test_one_pretraining_of_three_that_failed_is_named_and_shares_no_mean",
    ),
    "a fold that failed is in the scores without what was read": Bug(
        "lineage/analysis/contamination.py",
        "some = some[kept]",
        "some = some",
        "test_report_failures.py::test_a_repetition_of_which_a_fold_failed_counts_in_neither_column",
    ),
    "an ensemble of a change of its member is compared with one alone": Bug(
        "lineage/analysis/comparisons.py",
        "elif {a.way.family, b.way.family} & {*TWO_BUDGETS}:",
        "elif {a.way.family, b.way.family} & {*TWO_BUDGETS} and not {a.way.variant, b.way.variant} & {*grid.against}:",
        "test_comparisons.py::test_two_budgets_are_held_against_their_members_whatever_else_these_are",
    ),
    "the order of a sum breaks a tie": Bug(
        "lineage/analysis/cells.py",
        "SAME = 1e-9",
        "SAME = 0.0",
        "test_report_details.py::test_a_control_at_the_top_takes_its_part_of_a_tie",
    ),
    "one star a column": Bug(
        "lineage/report/page.py",
        "name in best.get(key, ())",
        "name in best.get(key, ())[:1]",
        "test_report_details.py::test_a_tie_at_the_top_is_nobodys",
    ),
    "labels have no chance level": Bug(
        "lineage/evaluation/baselines.py",
        'kind.answer in ("label", "choice")',
        'kind.answer == "choice"',
        "test_chance.py::test_a_lead_over_the_commonest_label_alone_is_none",
    ),
    "chance is shown wherever it gets": Bug(
        "lineage/analysis/cells.py",
        "cell.mean > mean + SAME",
        "cell.mean > 0",
        "test_chance.py::test_a_lead_over_the_commonest_label_alone_is_none",
    ),
    "what chance adds is always its share": Bug(
        "lineage/evaluation/baselines.py",
        'SHARES[facts["metric"][0]](gold, said).reshape',
        'SHARES["accuracy"](gold, said).reshape',
        "test_chance.py::test_chance_among_labels_answers_once_with_each",
    ),
    "each comparison stands on its own seeds": Bug(
        "lineage/analysis/statistics.py",
        "max(between, lent) / levels",
        "between / levels",
        "test_statistics.py::test_intervals_of_many_comparisons_hold_together",
    ),
    "seeds of others are not counted": Bug(
        "lineage/analysis/statistics.py",
        "(levels - 1) * lending",
        "(levels - 1)",
        "test_statistics.py::test_a_planted_effect_is_found_among_twelve_comparisons",
    ),
    "comparisons do not say to each other how their seeds differ": Bug(
        "lineage/analysis/comparisons.py",
        "spreads=spreads, widest",
        "widest",
        "test_report.py::test_comparisons_hold_the_example_and_the_seed",
    ),
    "a leader counts as planned": Bug(
        "lineage/analysis/comparisons.py",
        "round(pair.among * len(spreads[pair.family_of_tests]))",
        "len(spreads[pair.family_of_tests])",
        "test_comparisons.py::test_a_leader_of_equals_is_seldom_called_better_though_it_was_picked_on_the_same_items",
    ),
    "what a seed draws is shared out among pretrainings": Bug(
        "lineage/analysis/statistics.py",
        "for number, own in enumerate(seeds.T)]",
        "for number, own in enumerate(seeds.T[:1])]",
        "test_statistics.py::test_intervals_hold_their_level_where_pretrainings_share_the_labels_that_a_seed_draws",
    ),
    "a group counts as an item": Bug(
        "lineage/analysis/statistics.py",
        "examples / (items or examples)",
        "1.0",
        "test_statistics.py::test_two_items_more_are_two_items_where_examples_are_groups",
    ),
    "the same items right are the same answers": Bug(
        "lineage/analysis/comparisons.py",
        "same and np.array_equal(one, other)",
        "np.array_equal(one, other)",
        "test_comparisons.py::test_the_same_items_right_are_no_same_answers_where_others_are_wrong_in_another_way",
    ),
    "a model beside itself is knowledge of seeds": Bug(
        "lineage/analysis/comparisons.py",
        "if both is not None and both.apart.any():",
        "if both is not None:",
        "test_comparisons.py::test_a_switch_that_changes_no_answer_is_told_and_lends_nothing_to_others",
    ),
    "a run of words goes from one document into the next": Bug(
        "lineage/data/contamination.py",
        'for word in (*some, ""))',
        "for word in some)",
        "test_overlap.py::test_no_run_goes_from_one_document_into_the_next",
    ),
    "what stands in unlabelled text counts where nothing is adapted to it": Bug(
        "lineage/analysis/contamination.py",
        "table if name in grid.adapt_tasks else",
        "table if name else",
        "test_overlap.py::test_scores_without_them_stand_beside_the_others",
    ),
    "items that were read are left in": Bug(
        "lineage/analysis/contamination.py",
        'left = some[~some["id"].isin(known[str(question)])]',
        "left = some",
        "test_overlap.py::test_scores_without_them_stand_beside_the_others",
    ),
    "all folds have the first one's chance level": Bug(
        "lineage/evaluation/baselines.py",
        'None if cell["fold"] is None else (cell["seed"], cell["fold"])',
        "None",
        "test_chance.py::test_chance_is_computed_once_for_all_numbers_of_labels",
    ),
}
