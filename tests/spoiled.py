"""Ways to spoil a user's parameters in one place, and what the message must then say."""

from tests import spoiled_files, spoiled_models
from tests.spoiled_files import change


def missing_file(folder, tree):
    change(tree, "tasks.mood.files.test", "mood/tset.csv")


def no_text_file(folder, tree):
    change(tree, "corpora.general.sources", [{"files": "text/*.txt"}])


def missing_column(folder, tree):
    change(tree, "tasks.mood.text", ["reveiw"])


def small_corpus(folder, tree):
    change(tree, "models.gpt.tokenizer.vocab_size", 30_000)


def few_documents(folder, tree):
    change(tree, "corpora.general.sources", [{"files": "texts/00.txt"}])


def too_many_passes(folder, tree):
    change(tree, "budget.text_bytes", 50_000_000)


def too_little_to_adapt_to(folder, tree):
    change(tree, "adapt.text_bytes", 5_000_000)


def no_test(folder, tree):
    change(tree, "tasks.mood.files", {"train": "mood/train.csv"})


def three_texts(folder, tree):
    change(tree, "tasks.mood.text", ["review", "stars", "review"])


def weight_without_next_token(folder, tree):
    change(tree, "models.bert.evaluate.finetune.aux_lm_weight", 0.5)


def strange_kind(folder, tree):
    change(tree, "tasks.mood.kind", "clasify")


def strange_metric(folder, tree):
    change(tree, "tasks.mood.metric", ["acuracy"])


def no_label_key(folder, tree):
    del tree["tasks"]["mood"]["label"]


def key_of_another_kind(folder, tree):
    change(tree, "tasks.mood.good", "review")


def misspelt_key(folder, tree):
    change(tree, "budget.text_byte", 5)


def misspelt_task_key(folder, tree):
    change(tree, "tasks.mood.lable", "stars")


def missing_key(folder, tree):
    del tree["budget"]["body_parameters"]


def mistyped_key(folder, tree):
    change(tree, "budget.text_bytes", "many")


def yes_for_number(folder, tree):
    change(tree, "threads", True)


def family_without_block(folder, tree):
    change(tree, "grid.models", ["gtp"])


def zero_budget(folder, tree):
    change(tree, "budget.text_bytes", 0)


def negative_budget(folder, tree):
    change(tree, "budget.text_bytes", -1_000)


def moving_revision(folder, tree):
    change(
        tree,
        "corpora.general.sources",
        [{"hub": "a/b", "split": "train", "text": "text", "revision": "main"}],
    )


def key_of_another_origin(folder, tree):
    change(
        tree,
        "corpora.general.sources",
        [{**tree["corpora"]["general"]["sources"][0], "num_documents": 100}],
    )


def negative_seed(folder, tree):
    change(tree, "grid.finetune_seeds", [0, -1])


def beta_of_two(folder, tree):
    change(tree, "models.gpt.pretrain.betas", [0.9, 2.0])


def name_of_a_control(folder, tree):
    tree["models"]["tfidf"] = tree["models"]["gpt"] | {"family": "gpt"}


def name_of_a_language(folder, tree):
    change(tree, "corpora.general.language", "English")


def in_folds(tree, **keys):
    change(
        tree,
        "tasks.mood",
        tree["tasks"]["mood"] | {"files": {"train": "mood/train.csv"}, "folds": 3} | keys,
    )
    change(tree, "grid.adapt_tasks", [])
    change(tree, "grid.adapt_models", [])


def folds_on_validation(folder, tree):
    in_folds(tree)
    change(tree, "report.split", "validation")


def limit_beside_folds(folder, tree):
    in_folds(tree, limit={"train": 30, "test": 5})


def tag_of_two_words(folder, tree):
    names = {
        "kind": "token_classification",
        "tokens": "review",
        "label": "stars",
        "label_map": ["noun", "proper noun"],
    }
    change(tree, "tasks.mood", {"files": tree["tasks"]["mood"]["files"]} | names)


def missing_grid_key(folder, tree):
    del tree["grid"]["pretrain_seeds"]


CASES = {
    **spoiled_files.CASES,
    **spoiled_models.CASES,
    folds_on_validation: (
        "tasks.mood.folds: with folds every item of train is test once, and report.split is validation",
        "--final",
    ),
    limit_beside_folds: (
        "tasks.mood.limit.test: with folds each item of train is tested once; remove the key",
    ),
    tag_of_two_words: ("tasks.mood.label_map: the tag 'proper noun' is not one word",),
    missing_file: ("tasks.mood.files.test", "mood/tset.csv", "data_root"),
    no_text_file: ("corpora.general.sources[0].files", "text/*.txt"),
    missing_column: ("mood/train.csv has no column 'reveiw'", "did you mean 'review'?"),
    small_corpus: ("corpora.general", "vocabulary of 30,000 in models.gpt.tokenizer"),
    few_documents: ("corpora.general", "1 usable document", "document_unit: blank_line"),
    too_many_passes: ("budget.text_bytes: 50,000,000 are more than 4 passes",),
    too_little_to_adapt_to: ("adapt.text_bytes: 5,000,000 are more than 4 passes",),
    no_test: (
        "tasks.mood",
        "no test split; add 'test:' to files, or use 'folds'",
    ),
    three_texts: ("names 3 columns", "one or two"),
    weight_without_next_token: (
        "models.bert.evaluate.finetune.aux_lm_weight",
        "bert has no loss of its own on a task's texts",
    ),
    strange_kind: ("tasks.mood.kind", "did you mean 'text_classification'?"),
    strange_metric: ("tasks.mood.metric", "did you mean 'accuracy'?"),
    no_label_key: ("tasks.mood", "'label' is missing"),
    key_of_another_kind: ("tasks.mood.good", "does not use it"),
    misspelt_key: ("budget", "unknown key 'text_byte'", "did you mean 'text_bytes'?"),
    misspelt_task_key: ("tasks.mood", "unknown key 'lable'", "did you mean 'label'?"),
    missing_key: ("budget", "'body_parameters' is missing"),
    mistyped_key: ("budget.text_bytes", "expected a whole number, found 'many'"),
    yes_for_number: ("threads", "expected a whole number"),
    family_without_block: ("grid.models", "'gtp' has no entry in models", "did you mean 'gpt'?"),
    zero_budget: ("budget", "text_bytes is 0"),
    negative_budget: ("budget", "text_bytes is -1000"),
    moving_revision: ("corpora.general.sources[0]", "40 hex digits"),
    key_of_another_origin: (
        "corpora.general.sources[0]",
        "'num_documents' is a key of 'generated' and does not apply to 'files'; remove 'num_documents'",
    ),
    negative_seed: ("params.yaml: grid: ", "'finetune_seeds' holds -1"),
    beta_of_two: ("models.gpt.pretrain", "betas", "2.0"),
    name_of_a_control: ("models", "'tfidf'", "choose another"),
    name_of_a_language: ("params.yaml: corpora.general: language is 'English'", "such as en or zh"),
    missing_grid_key: ("params.yaml: grid: ", "the key 'pretrain_seeds' is missing"),
}
