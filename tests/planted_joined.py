"""More bugs to plant, as in tests/planted.py: static vectors beside contextual features, and windows of what is too long for a model."""

from tests.planted import Bug

BUGS = {
    "spans of the second text count in the first": Bug(
        "lineage/evaluation/joined.py",
        "pairs = pairs[encoded.segments[pairs[:, 0]] == place]",
        "pass",
        "test_joined.py::test_a_piece_has_the_vector_of_the_first_word_that_it_overlaps_and_zeros_where_there_is_none",
    ),
    "marks of the static model's reading are words": Bug(
        "lineage/evaluation/joined.py",
        "vectors_TS[words][pairs[first, 1]]",
        "vectors_TS[pairs[first, 1]]",
        "test_joined.py::test_a_piece_has_the_vector_of_the_first_word_that_it_overlaps_and_zeros_where_there_is_none",
    ),
    "the untrained twin has untrained static vectors": Bug(
        "lineage/evaluation/systems.py",
        'Subject(self.setting.static, "pretrained").layers()',
        "Subject(self.setting.static, self.init).layers()",
        "test_joined.py::test_the_untrained_twin_has_the_trained_vectors_and_differs_in_the_contextual_part_alone",
    ),
    "and in a network": Bug(
        "lineage/evaluation/systems.py",
        'other = Subject(setting.static, "pretrained").encoder()',
        "other = Subject(setting.static, self.init).encoder()",
        "test_joined.py::test_the_untrained_twin_has_the_trained_vectors_and_differs_in_the_contextual_part_alone",
    ),
    "one scale for two models": Bug(
        "lineage/evaluation/linear_probe.py",
        "own = features_NLD.shape[-1] - static",
        "own = features_NLD.shape[-1]",
        "test_joined.py::test_neither_models_scale_weighs_in_what_is_read_of_the_other",
    ),
    "gamma scales the static vector": Bug(
        "lineage/models/layers/scalar_mix.py",
        "torch.cat([mixed, beside], -1)",
        "torch.cat([mixed, self.gamma * beside], -1)",
        "test_joined.py::test_the_mix_leaves_the_static_vector_alone",
    ),
    "a window of a sentence is read from its beginning": Bug(
        "lineage/evaluation/encoding.py",
        "text[starts_W[a] : ends_W[b - 1]]) for a, b",
        "text[: ends_W[b - 1]]) for a, b",
        "test_joined.py::test_every_piece_of_a_network_stands_beside_its_words_vector_in_any_company[tags-bert]",
    ),
    "a window round a word is read from the sentence's beginning": Bug(
        "lineage/evaluation/encoding.py",
        "(pieces,), texts=((text,),))",
        "(pieces,), texts=((join(tokens, language),),))",
        "test_joined.py::test_every_piece_of_a_network_stands_beside_its_words_vector_in_any_company[sense-bert]",
    ),
    # a language model's features that join a tagger's layers
    "what a layer reads from the right stays turned round": Bug(
        "lineage/evaluation/bilstm_probe.py",
        "turned(back(turned(y_BTH, turn_BT))[0], turn_BT)",
        "back(turned(y_BTH, turn_BT))[0]",
        "test_tagger.py::test_two_layers_and_the_join_are_those_written_by_hand",
    ),
    "what joins later is dropped twice": Bug(
        "lineage/evaluation/bilstm_probe.py",
        "torch.cat([x_BTD[..., : self.late], F.dropout(x_BTD[..., self.late :], self.dropout, self.training)], -1)",
        "F.dropout(x_BTD, self.dropout, self.training)",
        "test_tagger.py::test_dropout_falls_once_on_what_each_layer_reads",
    ),
    "nothing is dropped between layers": Bug(
        "lineage/evaluation/bilstm_probe.py",
        "if number < len(self.ahead):",
        "if False:",
        "test_tagger.py::test_dropout_falls_once_on_what_each_layer_reads",
    ),
    "features without static vectors join too": Bug(
        "lineage/evaluation/settings.py",
        'static and self.join != "input"',
        'self.join != "input"',
        "test_tagger.py::test_rows_say_how_many_layers_there_are_and_where_features_join",
    ),
    "a join without static vectors is taken": Bug(
        "lineage/config/checks.py",
        'if join != "input" and name not in grid.join_families:',
        "if False:",
        "test_tagger.py::test_a_join_that_cannot_be_is_refused_before_anything_runs",
    ),
    "a word is read in the first window that holds it": Bug(
        "lineage/evaluation/encoding.py",
        "100 * fewer_VW + ends_V1",
        "0 * fewer_VW + ends_V1",
        "test_windows.py::test_where_a_word_is_a_piece_windows_and_words_are_those_of_the_released_code",
    ),
    "what stands before a word is its context": Bug(
        "lineage/evaluation/encoding.py",
        "np.minimum(np.arange(words) - firsts_V1, ends_V1 - 1 - np.arange(words))",
        "np.where(ends_V1 > np.arange(words), np.arange(words) - firsts_V1, -1)",
        "test_windows.py::test_where_a_word_is_a_piece_windows_and_words_are_those_of_the_released_code",
    ),
    "windows stand side by side": Bug(
        "lineage/evaluation/encoding.py",
        "a += max(1, ",
        "a += max(b - a, ",
        "test_windows.py::test_where_a_word_is_a_piece_windows_and_words_are_those_of_the_released_code",
    ),
    "a word is read in every window that holds it": Bug(
        "lineage/evaluation/encoding.py",
        "pieces[best_W[pieces[:, 1]] == number])",
        "pieces)",
        "test_windows.py::test_however_long_a_context_is_each_word_is_read_where_it_has_the_most_context",
    ),
    "a question's marks are not counted": Bug(
        "lineage/evaluation/encoding.py",
        "limit=marks + (limit - marks",
        "limit=9 + (limit - marks",
        "test_windows.py::test_the_marks_round_a_questions_sentences_take_nothing_from_the_context",
    ),
}
