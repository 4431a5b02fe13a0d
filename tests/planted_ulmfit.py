"""Bugs to plant in what the released code of ULMFiT and AWD-LSTM does beside the papers."""

from tests.planted import Bug

BUGS = {
    "small tables stay large": Bug(
        "lineage/evaluation/systems.py",
        "resize_tables(model, checkpoint.build(device, trained=False))",
        "resize_tables(model, model)",
        "test_starts.py::test_small_tables_are_those_of_the_trained_model_in_the_size_of_its_twin_s",
    ),
    "it thaws a step late": Bug(
        "lineage/evaluation/finetuning.py",
        'Fraction(str(share)) * group["depth"] / deepest',
        'share * group["depth"] / deepest',
        "test_ulmfit.py::test_a_layer_thaws_at_its_very_step",
    ),
    "words that join the vocabulary are read by no rules": Bug(
        "lineage/tokenizers/tokenizer.py",
        "Reader(grown, self.settings)",
        "Reader(grown, dataclasses.replace(self.settings, normalise=None))",
        "test_fastai_rules.py::test_new_words_are_those_that_the_rules_leave",
    ),
    "words are those of the raw text": Bug(
        "lineage/tokenizers/tokenizer.py",
        "self.written(pieces.text, a, b) for a, b in pieces.own",
        "self.written(text, a, b) for a, b in spans",
        "test_fastai_rules.py::test_what_tells_of_a_word_stands_before_it_is_of_its_characters_and_has_no_bytes",
    ),
    "new words have the places of the raw text": Bug(
        "lineage/training/adapt.py",
        "for span in cut.own[cut.ids == unknown]",
        "for span in cut.spans[cut.ids == unknown]",
        "test_fastai_rules.py::test_new_words_are_those_that_the_rules_leave",
    ),
    "what tells of a word is of the space before it": Bug(
        "lineage/tokenizers/normalization.py",
        '(place, place + 1, f"{told[place]} {made.text[place]}")',
        '(place, place, f"{told[place]} ")',
        "test_fastai_rules.py::test_a_word_s_vector_is_of_its_own_pieces",
    ),
    "of two capitals nothing is told": Bug(
        "lineage/tokenizers/normalization.py",
        'told |= {m.start(1): "xxup" * (len(m[1]) > 1)',
        'told |= {m.start(1): "xxup" * (len(m[1]) > 2)',
        "test_fastai_rules.py::test_case_and_repetitions_are_told_in_words",
    ),
    "a repeated word is counted without its first": Bug(
        "lineage/tokenizers/normalization.py",
        "len(found[2].split()) + 2",
        "len(found[2].split()) + 1",
        "test_fastai_rules.py::test_case_and_repetitions_are_told_in_words",
    ),
    "a word finds itself in the cache": Bug(
        "benchmarks/cache.py",
        "(back_TN > 0)",
        "(back_TN >= 0)",
        "test_cache.py::test_the_mixture_is_the_paper_s_however_the_text_is_cut",
    ),
    "the cache forgets the window before": Bug(
        "benchmarks/cache.py",
        "if past is not None:",
        "if past is not None and False:",
        "test_cache.py::test_the_mixture_is_the_paper_s_however_the_text_is_cut",
    ),
    "the cache is one longer than its window": Bug(
        "benchmarks/cache.py",
        "back_TN <= self.window",
        "back_TN <= self.window + 1",
        "test_cache.py::test_the_mixture_is_the_paper_s_however_the_text_is_cut",
    ),
    "the cache reads the words": Bug(
        "benchmarks/cache.py",
        "cache.nats(outputs[-1], own",
        "cache.nats(outputs[0], own",
        "test_cache.py::test_a_model_s_perplexity_with_a_cache_is_of_its_own_top_states_and_stands_beside_its_own",
    ),
    "the classifier has one dropout": Bug(
        "lineage/models/ulmfit.py",
        "dropouts=(dropout, inner))",
        "dropouts=(dropout, dropout))",
        "test_ulmfit.py::test_the_classifier_s_hidden_layer_has_a_dropout_of_its_own_where_one_is_given",
    ),
    "the classifier's dropouts are exchanged": Bug(
        "lineage/models/ulmfit.py",
        "dropouts=(dropout, inner))",
        "dropouts=(inner, dropout))",
        "test_ulmfit.py::test_the_classifier_s_hidden_layer_has_a_dropout_of_its_own_where_one_is_given",
    ),
    "torch's own epsilon is far above small words": Bug(
        "lineage/evaluation/finetuning.py",
        "eps=1e-12",
        "eps=1e-5",
        "test_word_norm.py::test_words_are_read_at_one_size_and_everything_else_as_it_is",
    ),
    "texts are normed as words are": Bug(
        "lineage/evaluation/finetuning.py",
        "self.word_norm = settings.word_norm and bool(like.pieces)",
        "self.word_norm = settings.word_norm",
        "test_word_norm.py::test_words_are_read_at_one_size_and_everything_else_as_it_is",
    ),
}
