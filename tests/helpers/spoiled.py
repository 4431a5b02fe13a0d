"""Ways to spoil a user's study in one place, and the message that each must cause."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers import spoiled_files
from tests.helpers.spoiled_files import REMOVED, Tree, set_value


@dataclass(frozen=True)
class Case:
    """One way to spoil a study, and its message, in which `...` stands for some other words."""

    spoil: Callable[[Path, Tree], None]
    message: str


def change(values: Mapping[str, Any], message: str) -> Case:
    """Return the case in which parameters have other values, by their dotted paths."""

    def spoil(folder: Path, tree: Tree) -> None:
        for path, value in values.items():
            set_value(tree, path, value)

    return Case(spoil, message)


def set_folds(tree, **task_keys):
    """Make the task one with folds and without a test file."""
    set_value(
        tree,
        "tasks.mood",
        tree["tasks"]["mood"] | {"files": {"train": "mood/train.csv"}, "folds": 3} | task_keys,
    )
    set_value(tree, "grid.adapt_tasks", [])
    set_value(tree, "grid.adapt_models", [])


def reserved_task_name(folder, tree):
    tree["tasks"]["held_unlabelled"] = tree["tasks"]["mood"]


def language_missing_in_validation(folder, tree):
    _set_translation(folder, tree, source_language="en", target_language="de")


def _set_translation(folder, tree, **languages):
    """Make the study one translation task with a corpus in two languages."""
    (folder / "de.txt").write_text("Der einzige deutsche Satz .\n", encoding="utf-8")
    set_value(
        tree,
        "corpora.general.sources",
        [{"files": "texts/*.txt"}, {"files": "de.txt", "language": "de"}],
    )
    for key, language in languages.items():
        set_value(tree, f"models.seq2seq.pretrain.{key}", language)
    set_value(tree, "models.seq2seq.tokenizer.vocab_size", 400)
    tree["tasks"] = {
        "mt": {
            "kind": "translation",
            "files": tree["tasks"]["mood"]["files"],
            "source": "review",
            "target": "review",
        }
    }
    tree["grid"] |= {"models": ["seq2seq"], "tasks": ["mt"], "adapt_models": [], "adapt_tasks": []}


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


def key_of_another_source_type(folder, tree):
    set_value(
        tree,
        "corpora.general.sources",
        [{**tree["corpora"]["general"]["sources"][0], "num_documents": 100}],
    )


def model_named_like_a_baseline(folder, tree):
    tree["models"]["tfidf"] = tree["models"]["gpt"] | {"family": "gpt"}


CASES: dict[str, Case] = {
    **{spoil.__name__: Case(spoil, message) for spoil, message in spoiled_files.MESSAGES.items()},
    "vocabulary_too_small_for_bytes": change(
        {"models.gpt.tokenizer.vocab_size": 257},
        "models.gpt.tokenizer.vocab_size: 257 is too small for the special tokens and all bytes; set it to 258 or more",
    ),
    "vocabulary_too_small_for_words": change(
        {"models.word2vec.tokenizer.vocab_size": 4},
        "models.word2vec.tokenizer.vocab_size: 4 is too small for the special tokens and one more; set it to 5 or more",
    ),
    "initial_sequences_too_short": change(
        {"models.bert.pretrain.initial_seq_len": 4},
        "models.bert.pretrain ... initial_seq_len is 4; at least 8 are needed",
    ),
    "sequences_too_short": change(
        {"models.bert.pretrain.seq_len": 7},
        "models.bert.pretrain ... seq_len is 7; at least 8 are needed",
    ),
    "second_to_last_of_one_layer": change(
        {"models.taglm.evaluate.bilstm_probe.features": "second_to_last"},
        (
            "models.taglm.evaluate.bilstm_probe.features: taglm has one layer, so none is second to last ... "
            "scalar_mix or last"
        ),
    ),
    "lstm_size_for_a_transformer": change(
        {"models.bert.architecture.lstm_hidden_size": 64},
        "models.bert.architecture: lstm_hidden_size is 64, but a Transformer does not use it; remove it",
    ),
    "ffn_size_for_an_lstm": change(
        {"models.bert.architecture": {"contextualizer": "lstm", "ffn_size": 64}},
        "models.bert.architecture: ffn_size is 64, but an LSTM does not use it; remove it",
    ),
    "adaptation_without_tasks": change(
        {"grid.adapt_tasks": []},
        "params.yaml: grid: 'adapt_models' is given and 'adapt_tasks' is empty; give both, or",
    ),
    "adaptation_without_models": change(
        {"grid.adapt_models": []},
        "params.yaml: grid: 'adapt_tasks' is given and 'adapt_models' is empty; give both, or",
    ),
    "target_only_without_adaptation": change(
        {"grid.target_only_models": ["gpt"], "grid.adapt_models": [], "grid.adapt_tasks": []},
        "params.yaml: grid.target_only_models: 'gpt' has no entry in grid.adapt_models",
    ),
    "missing_file": change(
        {"tasks.mood.files.test": "mood/tset.csv"},
        "tasks.mood.files.test ... mood/tset.csv ... data_root",
    ),
    "no_text_file": change(
        {"corpora.general.sources": [{"files": "text/*.txt"}]},
        "corpora.general.sources[0].files ... text/*.txt",
    ),
    "missing_column": change(
        {"tasks.mood.text": ["reveiw"]},
        "mood/train.csv has no column 'reveiw' ... did you mean 'review'?",
    ),
    "vocabulary_larger_than_the_corpus": change(
        {"models.gpt.tokenizer.vocab_size": 30_000},
        "corpora.general ... vocabulary of 30,000 in models.gpt.tokenizer",
    ),
    "one_document": change(
        {"corpora.general.sources": [{"files": "texts/00.txt"}]},
        "corpora.general ... 1 usable document ... document_unit: blank_line",
    ),
    "too_many_epochs": change(
        {"budget.text_bytes": 50_000_000}, "budget.text_bytes: 50,000,000 are more than 4 passes"
    ),
    "no_test_split": change(
        {"tasks.mood.files": {"train": "mood/train.csv"}},
        "tasks.mood ... no test split; add 'test:' to files, or use 'folds'",
    ),
    "three_text_columns": change(
        {"tasks.mood.text": ["review", "stars", "review"]}, "names 3 columns ... one or two"
    ),
    "aux_lm_weight_without_next_token": change(
        {"models.bert.evaluate.finetune.aux_lm_weight": 0.5},
        "models.bert.evaluate.finetune.aux_lm_weight ... bert has no loss of its own on a task's texts",
    ),
    "unknown_kind": change(
        {"tasks.mood.kind": "text_clasification"},
        "tasks.mood.kind ... did you mean 'text_classification'?",
    ),
    "unknown_metric": change(
        {"tasks.mood.metric": ["acuracy"]}, "tasks.mood.metric ... did you mean 'accuracy'?"
    ),
    "key_of_another_kind": change(
        {"tasks.mood.good": "review"}, "tasks.mood.good ... does not use it"
    ),
    "misspelt_key": change(
        {"budget.text_byte": 5}, "budget ... unknown key 'text_byte' ... did you mean 'text_bytes'?"
    ),
    "block_of_models_at_the_top": change(
        {"evaluate.finetune.epochs": 5},
        "'evaluate' is a block of models ... defaults: {evaluate: ...}",
    ),
    "mistyped_key": change(
        {"budget.text_bytes": "many"}, "budget.text_bytes ... expected a whole number, found 'many'"
    ),
    "number_for_list": change(
        {"grid.finetune_seeds": 2},
        "grid.finetune_seeds: expected a list, such as [a, b]; found 2 (int)",
    ),
    "boolean_for_number": change({"threads": True}, "threads ... expected a whole number"),
    "model_without_block": change(
        {"grid.models": ["emlo"]},
        "grid.models ... 'emlo' has no entry in models ... did you mean 'elmo'?",
    ),
    "zero_budget": change({"budget.text_bytes": 0}, "budget ... text_bytes is 0"),
    "branch_as_revision": change(
        {
            "corpora.general.sources": [
                {"hub": "a/b", "split": "train", "text": "text", "revision": "main"}
            ]
        },
        "corpora.general.sources[0] ... 40 hex digits",
    ),
    "negative_seed": change(
        {"grid.finetune_seeds": [0, -1]}, "params.yaml: grid: ... 'finetune_seeds' holds -1"
    ),
    "beta_above_one": change(
        {"models.gpt.pretrain.betas": [0.9, 2.0]}, "models.gpt.pretrain ... betas ... 2.0"
    ),
    "language_without_code": change(
        {"corpora.general.language": "English"},
        "params.yaml: corpora.general: language is 'English' ... such as en or zh",
    ),
    "no_label_key": change({"tasks.mood.label": REMOVED}, "tasks.mood ... 'label' is missing"),
    "missing_key": change(
        {"budget.body_parameters": REMOVED}, "budget ... 'body_parameters' is missing"
    ),
    "missing_grid_key": change(
        {"grid.pretrain_seeds": REMOVED},
        "params.yaml: grid: ... the key 'pretrain_seeds' is missing",
    ),
    "reserved_task_name": Case(
        reserved_task_name,
        "tasks: the name 'held_unlabelled' is reserved for rows of language models; choose another",
    ),
    "language_missing_in_validation": Case(
        language_missing_in_validation,
        (
            "corpora.general: valid has no document in 'de', which models.seq2seq.pretrain reads separately ... "
            "validation_share"
        ),
    ),
    "folds_on_validation": Case(
        folds_on_validation,
        (
            "tasks.mood.folds: with folds every item of train is test once, and report.split is validation ... "
            "set it to test"
        ),
    ),
    "test_limit_with_folds": Case(
        test_limit_with_folds,
        "tasks.mood.limit.test: with folds each item of train is tested once; remove the key",
    ),
    "tag_with_a_space": Case(
        tag_with_a_space, "tasks.mood.label_map: the tag 'proper noun' is not one word"
    ),
    "key_of_another_source_type": Case(
        key_of_another_source_type,
        (
            "corpora.general.sources[0] ... "
            "'num_documents' is a key of 'generated' and does not apply to 'files'; remove 'num_documents'"
        ),
    ),
    "model_named_like_a_baseline": Case(
        model_named_like_a_baseline, "models ... 'tfidf' ... choose another"
    ),
}
