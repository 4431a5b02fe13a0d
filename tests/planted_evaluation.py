"""Bugs of evaluation: who learns from what, what is read as in training, and what ways are chosen by. See planted.py."""

from tests.planted import Bug

EVALUATE, BEGUN = "test_evaluate.py::test_", "test_begun.py::test_"
BUGS = {
    "twins learn from other labels": Bug(
        "lineage/evaluation/evaluate.py",
        "cell.labels, seed=cell.seed)]",
        'cell.labels, seed=cell.seed + (cell.init == "untrained"))]',
        EVALUATE + "models_twins_and_controls_of_a_seed_learn_from_the_same_labels",
    ),
    "an answer's scale is of all labels": Bug(
        "lineage/evaluation/evaluate.py",
        "answer_of(task.facts, own), arm",
        "answer_of(task.facts, task.items(train)), arm",
        EVALUATE + "an_answer_is_made_of_the_labels_that_are_learned_from_and_rows_count_them",
    ),
    "pairs are scored as in training": Bug(
        "lineage/evaluation/evaluate.py",
        "subject.encoder().eval(), setting",
        "subject.encoder().train(), setting",
        EVALUATE + "pairs_are_scored_without_dropout",
    ),
    "frozen features are read as in training": Bug(
        "lineage/evaluation/linear_probe.py",
        "    model.eval()\n",
        "",
        EVALUATE + "features_are_read_without_dropout",
    ),
    "tf-idf reads what is scored": Bug(
        "lineage/evaluation/tfidf.py",
        "for column in train for text in column])",
        "for column in [*train, *scored] for text in column])",
        EVALUATE + "tfidf_knows_the_words_of_train_alone_and_a_small_inverse_penalty_says_the_mean",
    ),
    "ways are chosen on what is scored": Bug(
        "lineage/analysis/cells.py",
        'row["split"] == "validation" and row["status"]',
        'row["split"] == split and row["status"]',
        "test_cells.py::test_ways_are_chosen_on_validation_and_judged_on_test",
    ),
    "equal is said at any number of questions": Bug(
        "lineage/analysis/statistics.py",
        "1 - (1 - LEVEL) / questions)) * found",
        "LEVEL)) * found",
        "test_statistics.py::test_an_equivalence_is_tested_from_one_side_and_at_the_level_of_all_questions",
    ),
    "held text is what is read": Bug(
        "lineage/training/pretrain.py",
        'family.stream(tokens["valid"], checkpoint.reader, as_measured(how)',
        'family.stream(tokens["train"], checkpoint.reader, as_measured(how)',
        BEGUN + "pretraining_holds_other_text_than_it_reads_and_each_seed_draws_for_itself",
    ),
    "adaptation begins with random weights": Bug(
        "lineage/training/adapt.py",
        "body_dropout=settings.body_dropout)",
        "body_dropout=settings.body_dropout, trained=False)",
        BEGUN
        + "adaptation_begins_with_trained_weights_reads_so_many_passes_and_clips_as_pretraining_does",
    ),
    "the recipe's betas are adam's own": Bug(
        "lineage/training/optimizers.py",
        "betas=settings.betas, epsilon",
        "betas=(0.9, 0.999), epsilon",
        BEGUN + "the_recipe_s_adam_is_the_one_that_pretrains",
    ),
}
