"""Ways to ask of a model, or of the whole grid, what it cannot do, and what the message must then say."""

from tests.spoiled_files import change


def vocabulary_of_marks(folder, tree):
    change(tree, "models.gpt.tokenizer.vocab_size", 257)


def words_of_marks(folder, tree):
    change(tree, "models.word2vec.tokenizer.vocab_size", 4)


def sequences_of_marks(folder, tree):
    change(tree, "models.bert.pretrain.initial_seq_len", 4)


def short_sequences(folder, tree):
    change(tree, "models.bert.pretrain.seq_len", 7)


def second_of_one_layer(folder, tree):
    change(tree, "models.taglm.evaluate.bilstm_probe.features", "second_to_last")


def second_of_a_table(folder, tree):
    change(tree, "models.fasttext.evaluate.linear_probe.features", "second_to_last")


def cells_of_a_transformer(folder, tree):
    change(tree, "models.bert.architecture.lstm_hidden_size", 64)


def feed_forward_of_an_lstm(folder, tree):
    change(tree, "models.bert.architecture", {"contextualizer": "lstm", "ffn_size": 64})


def adaptation_without_tasks(folder, tree):
    change(tree, "grid.adapt_tasks", [])


def adaptation_of_nobody(folder, tree):
    change(tree, "grid.adapt_models", [])


def task_of_held_text(folder, tree):
    tree["tasks"]["held_unlabelled"] = tree["tasks"]["mood"]


def trials_of_a_translation(folder, tree):
    _translate(folder, tree, source_language="en", target_language="de")
    change(
        tree,
        "models.seq2seq.evaluate.finetune.trials",
        [{"learning_rate": 0.001}, {"learning_rate": 0.01}],
    )


def language_that_valid_lacks(folder, tree):
    _translate(folder, tree, source_language="en", target_language="de")


def _translate(folder, tree, **languages):
    (folder / "de.txt").write_text("Der einzige deutsche Satz .\n", encoding="utf-8")
    change(
        tree,
        "corpora.general.sources",
        [{"files": "texts/*.txt"}, {"files": "de.txt", "language": "de"}],
    )
    for key, language in languages.items():
        change(tree, f"models.seq2seq.pretrain.{key}", language)
    change(tree, "models.seq2seq.tokenizer.vocab_size", 400)
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
    vocabulary_of_marks: (
        "models.gpt.tokenizer.vocab_size: 257 is too small for the special tokens and all bytes; set it to 258 or more",
    ),
    words_of_marks: (
        "models.word2vec.tokenizer.vocab_size: 4 is too small for the special tokens and one more; set it to 5 or more",
    ),
    sequences_of_marks: ("models.bert.pretrain", "initial_seq_len is 4; at least 8 are needed"),
    short_sequences: ("models.bert.pretrain", "seq_len is 7; at least 8 are needed"),
    second_of_one_layer: (
        "models.taglm.evaluate.bilstm_probe.features: taglm has one layer, so none is second to last",
        "scalar_mix or last",
    ),
    second_of_a_table: ("models.fasttext.evaluate.linear_probe.features: fasttext has one layer",),
    cells_of_a_transformer: (
        "models.bert.architecture: lstm_hidden_size is 64, but a Transformer does not use it; remove it",
    ),
    feed_forward_of_an_lstm: (
        "models.bert.architecture: ffn_size is 64, but an LSTM does not use it; remove it",
    ),
    adaptation_without_tasks: (
        "params.yaml: grid: 'adapt_models' is given and 'adapt_tasks' is empty; give both, or neither",
    ),
    adaptation_of_nobody: (
        "params.yaml: grid: 'adapt_tasks' is given and 'adapt_models' is empty; give both, or neither",
    ),
    task_of_held_text: (
        "tasks: the name 'held_unlabelled' is reserved for rows of language models; choose another",
    ),
    trials_of_a_translation: (
        "models.seq2seq.evaluate.finetune.trials: all tasks are of kind translation",
        "remove it",
    ),
    language_that_valid_lacks: (
        "corpora.general: valid has no document in 'de', which models.seq2seq.pretrain reads separately",
        "validation_share",
    ),
}
