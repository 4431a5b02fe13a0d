"""Ways to spoil a user's parameters in one place, and the message that each must cause."""

from tests.helpers import spoiled_files, spoiled_models
from tests.helpers.spoiled_files import set_value


def missing_file(folder, tree):
    set_value(tree, "tasks.mood.files.test", "mood/tset.csv")


def no_text_file(folder, tree):
    set_value(tree, "corpora.general.sources", [{"files": "text/*.txt"}])


def missing_column(folder, tree):
    set_value(tree, "tasks.mood.text", ["reveiw"])


def vocabulary_larger_than_the_corpus(folder, tree):
    set_value(tree, "models.gpt.tokenizer.vocab_size", 30_000)


def one_document(folder, tree):
    set_value(tree, "corpora.general.sources", [{"files": "texts/00.txt"}])


def too_many_epochs(folder, tree):
    set_value(tree, "budget.text_bytes", 50_000_000)


def no_test_split(folder, tree):
    set_value(tree, "tasks.mood.files", {"train": "mood/train.csv"})


def three_text_columns(folder, tree):
    set_value(tree, "tasks.mood.text", ["review", "stars", "review"])


def aux_lm_weight_without_next_token(folder, tree):
    set_value(tree, "models.bert.evaluate.finetune.aux_lm_weight", 0.5)


def unknown_kind(folder, tree):
    set_value(tree, "tasks.mood.kind", "text_clasification")


def unknown_metric(folder, tree):
    set_value(tree, "tasks.mood.metric", ["acuracy"])


def no_label_key(folder, tree):
    del tree["tasks"]["mood"]["label"]


def key_of_another_kind(folder, tree):
    set_value(tree, "tasks.mood.good", "review")


def misspelt_key(folder, tree):
    set_value(tree, "budget.text_byte", 5)


def block_of_models_at_the_top(folder, tree):
    set_value(tree, "evaluate.finetune.epochs", 5)


def misspelt_task_key(folder, tree):
    set_value(tree, "tasks.mood.lable", "stars")


def missing_key(folder, tree):
    del tree["budget"]["body_parameters"]


def mistyped_key(folder, tree):
    set_value(tree, "budget.text_bytes", "many")


def boolean_for_number(folder, tree):
    set_value(tree, "threads", True)


def number_for_list(folder, tree):
    set_value(tree, "grid.finetune_seeds", 2)


def model_without_block(folder, tree):
    set_value(tree, "grid.models", ["gtp"])


def zero_budget(folder, tree):
    set_value(tree, "budget.text_bytes", 0)


def negative_budget(folder, tree):
    set_value(tree, "budget.text_bytes", -1_000)


def branch_as_revision(folder, tree):
    set_value(
        tree,
        "corpora.general.sources",
        [{"hub": "a/b", "split": "train", "text": "text", "revision": "main"}],
    )


def key_of_another_source_type(folder, tree):
    set_value(
        tree,
        "corpora.general.sources",
        [{**tree["corpora"]["general"]["sources"][0], "num_documents": 100}],
    )


def negative_seed(folder, tree):
    set_value(tree, "grid.finetune_seeds", [0, -1])


def beta_above_one(folder, tree):
    set_value(tree, "models.gpt.pretrain.betas", [0.9, 2.0])


def model_named_like_a_baseline(folder, tree):
    tree["models"]["tfidf"] = tree["models"]["gpt"] | {"family": "gpt"}


def language_without_code(folder, tree):
    set_value(tree, "corpora.general.language", "English")


def set_folds(tree, **task_keys):
    """Make the task one with folds and without a test file."""
    set_value(
        tree,
        "tasks.mood",
        tree["tasks"]["mood"] | {"files": {"train": "mood/train.csv"}, "folds": 3} | task_keys,
    )
    set_value(tree, "grid.adapt_tasks", [])
    set_value(tree, "grid.adapt_models", [])


def folds_on_validation(folder, tree):
    set_folds(tree)
    set_value(tree, "report.split", "validation")


def test_limit_with_folds(folder, tree):
    set_folds(tree, limit={"train": 30, "test": 5})


def tag_with_a_space(folder, tree):
    task_keys = {
        "kind": "token_classification",
        "tokens": "review",
        "label": "stars",
        "label_map": ["noun", "proper noun"],
    }
    set_value(tree, "tasks.mood", {"files": tree["tasks"]["mood"]["files"]} | task_keys)


def missing_grid_key(folder, tree):
    del tree["grid"]["pretrain_seeds"]


CASES = {
    **spoiled_files.CASES,
    **spoiled_models.CASES,
    folds_on_validation: (
        "tasks.mood.folds: with folds every item of train is test once, and report.split is validation",
        "set it to test",
    ),
    test_limit_with_folds: (
        "tasks.mood.limit.test: with folds each item of train is tested once; remove the key",
    ),
    tag_with_a_space: ("tasks.mood.label_map: the tag 'proper noun' is not one word",),
    missing_file: ("tasks.mood.files.test", "mood/tset.csv", "data_root"),
    no_text_file: ("corpora.general.sources[0].files", "text/*.txt"),
    missing_column: ("mood/train.csv has no column 'reveiw'", "did you mean 'review'?"),
    vocabulary_larger_than_the_corpus: (
        "corpora.general",
        "vocabulary of 30,000 in models.gpt.tokenizer",
    ),
    one_document: ("corpora.general", "1 usable document", "document_unit: blank_line"),
    too_many_epochs: ("budget.text_bytes: 50,000,000 are more than 4 passes",),
    no_test_split: (
        "tasks.mood",
        "no test split; add 'test:' to files, or use 'folds'",
    ),
    three_text_columns: ("names 3 columns", "one or two"),
    aux_lm_weight_without_next_token: (
        "models.bert.evaluate.finetune.aux_lm_weight",
        "bert has no loss of its own on a task's texts",
    ),
    unknown_kind: ("tasks.mood.kind", "did you mean 'text_classification'?"),
    unknown_metric: ("tasks.mood.metric", "did you mean 'accuracy'?"),
    no_label_key: ("tasks.mood", "'label' is missing"),
    key_of_another_kind: ("tasks.mood.good", "does not use it"),
    misspelt_key: ("budget", "unknown key 'text_byte'", "did you mean 'text_bytes'?"),
    block_of_models_at_the_top: ("'evaluate' is a block of models", "defaults: {evaluate: ...}"),
    misspelt_task_key: ("tasks.mood", "unknown key 'lable'", "did you mean 'label'?"),
    missing_key: ("budget", "'body_parameters' is missing"),
    mistyped_key: ("budget.text_bytes", "expected a whole number, found 'many'"),
    number_for_list: ("grid.finetune_seeds: expected a list, such as [a, b]; found 2 (int)",),
    boolean_for_number: ("threads", "expected a whole number"),
    model_without_block: ("grid.models", "'gtp' has no entry in models", "did you mean 'gpt'?"),
    zero_budget: ("budget", "text_bytes is 0"),
    negative_budget: ("budget", "text_bytes is -1000"),
    branch_as_revision: ("corpora.general.sources[0]", "40 hex digits"),
    key_of_another_source_type: (
        "corpora.general.sources[0]",
        "'num_documents' is a key of 'generated' and does not apply to 'files'; remove 'num_documents'",
    ),
    negative_seed: ("params.yaml: grid: ", "'finetune_seeds' holds -1"),
    beta_above_one: ("models.gpt.pretrain", "betas", "2.0"),
    model_named_like_a_baseline: ("models", "'tfidf'", "choose another"),
    language_without_code: (
        "params.yaml: corpora.general: language is 'English'",
        "such as en or zh",
    ),
    missing_grid_key: ("params.yaml: grid: ", "the key 'pretrain_seeds' is missing"),
}
