"""Ways to ask a model, or the grid, for something impossible, and the message for each."""

from tests.helpers.spoiled_files import set_value


def vocabulary_too_small_for_bytes(folder, tree):
    set_value(tree, "models.gpt.tokenizer.vocab_size", 257)


def vocabulary_too_small_for_words(folder, tree):
    set_value(tree, "models.word2vec.tokenizer.vocab_size", 4)


def initial_sequences_too_short(folder, tree):
    set_value(tree, "models.bert.pretrain.initial_seq_len", 4)


def sequences_too_short(folder, tree):
    set_value(tree, "models.bert.pretrain.seq_len", 7)


def second_to_last_of_one_layer(folder, tree):
    set_value(tree, "models.taglm.evaluate.bilstm_probe.features", "second_to_last")


def second_to_last_of_static_vectors(folder, tree):
    set_value(tree, "models.fasttext.evaluate.linear_probe.features", "second_to_last")


def lstm_size_for_a_transformer(folder, tree):
    set_value(tree, "models.bert.architecture.lstm_hidden_size", 64)


def ffn_size_for_an_lstm(folder, tree):
    set_value(tree, "models.bert.architecture", {"contextualizer": "lstm", "ffn_size": 64})


def adaptation_without_tasks(folder, tree):
    set_value(tree, "grid.adapt_tasks", [])


def adaptation_without_models(folder, tree):
    set_value(tree, "grid.adapt_models", [])


def target_only_without_adaptation(folder, tree):
    set_value(tree, "grid.target_only_models", ["gpt"])
    set_value(tree, "grid.adapt_models", [])
    set_value(tree, "grid.adapt_tasks", [])


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
    tree["grid"] |= {
        "models": ["seq2seq"],
        "tasks": ["mt"],
        "adapt_models": [],
        "adapt_tasks": [],
    }


CASES = {
    vocabulary_too_small_for_bytes: (
        "models.gpt.tokenizer.vocab_size: 257 is too small for the special tokens and all bytes; set it to 258 or more",
    ),
    vocabulary_too_small_for_words: (
        "models.word2vec.tokenizer.vocab_size: 4 is too small for the special tokens and one more; set it to 5 or more",
    ),
    initial_sequences_too_short: (
        "models.bert.pretrain",
        "initial_seq_len is 4; at least 8 are needed",
    ),
    sequences_too_short: ("models.bert.pretrain", "seq_len is 7; at least 8 are needed"),
    second_to_last_of_one_layer: (
        "models.taglm.evaluate.bilstm_probe.features: taglm has one layer, so none is second to last",
        "scalar_mix or last",
    ),
    second_to_last_of_static_vectors: (
        "models.fasttext.evaluate.linear_probe.features: fasttext has one layer",
    ),
    lstm_size_for_a_transformer: (
        "models.bert.architecture: lstm_hidden_size is 64, but a Transformer does not use it; remove it",
    ),
    ffn_size_for_an_lstm: (
        "models.bert.architecture: ffn_size is 64, but an LSTM does not use it; remove it",
    ),
    adaptation_without_tasks: (
        "params.yaml: grid: 'adapt_models' is given and 'adapt_tasks' is empty; give both, or",
    ),
    adaptation_without_models: (
        "params.yaml: grid: 'adapt_tasks' is given and 'adapt_models' is empty; give both, or",
    ),
    target_only_without_adaptation: (
        "params.yaml: grid.target_only_models: 'gpt' has no entry in grid.adapt_models",
    ),
    reserved_task_name: (
        "tasks: the name 'held_unlabelled' is reserved for rows of language models; choose another",
    ),
    language_missing_in_validation: (
        "corpora.general: valid has no document in 'de', which models.seq2seq.pretrain reads separately",
        "validation_share",
    ),
}
