"""Bugs to plant in what is read, begun with and learned: one clause of the papers' released code each."""

from tests.planted import Bug

DROPS = "test_transformer.py::test_training_drops_the_embeddings_what_attention_weighs_and_both_branches_and_reading_nothing"
BUGS = {
    "the schedule of two lengths goes by the text": Bug(
        "lineage/pretraining.py",
        "schedule(settings.share_of_steps(progress))",
        "schedule(progress)",
        "test_recipes.py::test_long_sequences_come_last_and_train_the_positions_that_short_ones_never_reach",
    ),
    "ELMo's LSTM begins four times as large": Bug(
        "lineage/layers/lstm.py",
        "joined = (6 / (2 * self.projection + 4 * self.cells)) ** 0.5",
        "joined = (6 / (2 * self.projection)) ** 0.5",
        "test_elmo_recipe.py::test_it_begins_as_bilm_tf_does",
    ),
    "candidates are drawn as if all were as frequent": Bug(
        "lineage/training/objectives.py",
        ".log_().neg_() / rates_V",
        ".log_().neg_()",
        "test_families.py::test_candidates_are_drawn_as_one_by_one_until_so_many_differ",
    ),
    "what a random segment displaces is lost": Bug(
        "lineage/training/pairs.py",
        "random, at = 1, cut",
        "random, at = 1, end",
        "test_segments.py::test_what_a_random_second_segment_displaces_comes_again",
    ),
    "random words are never marks": Bug(
        "lineage/training/pairs.py",
        "rng.integers(0, vocabulary, ids_BT.shape)",
        "rng.integers(5, vocabulary, ids_BT.shape)",
        "test_segments.py::test_a_random_word_is_any_of_the_vocabulary",
    ),
    "segments lose their ends alone": Bug(
        "lineage/training/pairs.py",
        "front = rng.random() < 0.5",
        "front = rng.random() < 0",
        "test_segments.py::test_the_longer_segment_loses_pieces_at_both_ends_alike",
    ),
    "lone sentences stand beside random ones": Bug(
        "lineage/training/pairs.py",
        "if self.labelled and (end",
        "if self.settings.next_sentence and (end",
        "test_segments.py::test_where_documents_are_of_one_sentence_nothing_is_read_beside_a_random_one",
    ),
    "no segment is short": Bug(
        "lineage/training/pairs.py",
        "rng.random() >= self.settings.short_share",
        "rng.random() >= 0",
        "test_segments.py::test_short_targets_come_as_often_as_is_asked",
    ),
    "held text is masked as it is learned from": Bug(
        "lineage/pretraining.py",
        "if hasattr(settings, name)",
        "if False",
        "test_segments.py::test_held_text_is_masked_as_in_the_paper_whatever_is_learned_from",
    ),
    "bert's norms have torch's epsilon": Bug(
        "profiles/base.yaml", "norm_epsilon: 1.0e-12", "norm_epsilon: 1.0e-5", "test_paper.py::test_bert_s_norms_have_the_released_epsilon"
    ),
    "the masked head's gelu is always the exact one": Bug(
        "lineage/families/bert.py",
        'approximate="tanh" if self.config.activation == "gelu_tanh" else "none"',
        'approximate="none"',
        "parity/test_live_transformers.py::test_random_small_models_have_the_library_s_layers_losses_and_gradients[bert]",
    ),
    "keys ask and queries answer": Bug(
        "lineage/layers/transformer.py",
        "F.scaled_dot_product_attention(q, k, v,",
        "F.scaled_dot_product_attention(k, q, v,",
        "parity/test_attention.py::test_bert_attends_as_the_reference_does",
    ),
    "a shard of a checkpoint may lie anywhere": Bug(
        "lineage/weights.py",
        "if not isinstance(shard, str) or not SHARD.fullmatch(shard):",
        "if not isinstance(shard, str):",
        "test_public_folders.py::test_an_index_that_does_not_fit_its_shards_is_refused_by_name",
    ),
    "elmo's way round a layer is not dropped": Bug(
        "lineage/layers/lstm.py",
        "x_2BTP = y_2BTP + x_2BTP if",
        "x_2BTP = y_2BTP + outputs[-1] if",
        "test_elmo_recipe.py::test_dropout_falls_on_the_way_round_a_layer_and_on_the_last_output",
    ),
    "elmo's last output is not dropped": Bug(
        "lineage/training/objectives.py",
        'zip(("forward", "backward"), F.dropout(outputs[-1], model.config.dropout, model.training), halves',
        'zip(("forward", "backward"), outputs[-1], halves',
        "test_elmo_recipe.py::test_dropout_falls_on_the_way_round_a_layer_and_on_the_last_output",
    ),
    "highways carry nothing at first": Bug(
        "lineage/families/elmo.py", "CARRY_BIAS = -2.0", "CARRY_BIAS = 2.0", "test_elmo_recipe.py::test_it_begins_as_bilm_tf_does"
    ),
    "convolutions begin large": Bug("lineage/families/elmo.py", "-0.05, 0.05", "-0.5, 0.5", "test_elmo_recipe.py::test_it_begins_as_bilm_tf_does"),
    "the cut of the slanted triangle is not whole": Bug(
        "lineage/training/optim.py",
        "cut = cut_share if steps is None else math.floor(steps * cut_share + 1e-9) / steps",
        "cut = cut_share",
        "parity/test_optimizers.py::test_the_slanted_triangle_and_discriminative_rates_are_those_of_the_paper",
    ),
    "a clipped cell passes its gradient on": Bug(
        "lineage/layers/lstm.py",
        "unclipped(d_cell, after",
        "unclipped(d_cell, 0 * after",
        "test_lstm.py::test_outputs_state_and_every_gradient_are_those_of_the_plain_steps",
    ),
    "linear gain gives the first word a weight": Bug(
        "lineage/transfer/tuning.py",
        "(where_BT.cumsum(1) - 1).double()",
        "where_BT.cumsum(1).double()",
        "test_linear_gain.py::test_the_loss_and_its_gradients_are_those_written_by_hand",
    ),
    "linear gain grows over the padding": Bug(
        "lineage/transfer/tuning.py",
        "lengths_B1 = batch.mask_BT, batch.mask_BT.sum(1, keepdim=True)",
        "lengths_B1 = batch.mask_BT, torch.full_like(batch.mask_BT[:, :1], batch.mask_BT.shape[1], dtype=torch.long)",
        "test_linear_gain.py::test_the_loss_and_its_gradients_are_those_written_by_hand",
    ),
    "linear gain learns from padding": Bug(
        "lineage/transfer/tuning.py",
        "where_BT, lengths_B1 = batch.mask_BT,",
        "where_BT, lengths_B1 = torch.ones_like(batch.mask_BT),",
        "test_linear_gain.py::test_padding_changes_nothing",
    ),
    "linear gain is not in tuning": Bug(
        "lineage/transfer/tuning.py",
        "settings.linear_gain and self.readings == 1",
        "False and self.readings == 1",
        "test_linear_gain.py::test_a_tuned_classifier_has_learned_from_every_word",
    ),
    "linear gain where texts are read twice": Bug(
        "lineage/transfer/tuning.py",
        "settings.linear_gain and self.readings == 1 and not like.pieces",
        "settings.linear_gain and not like.pieces and not like.choices",
        "test_linear_gain.py::test_what_is_read_twice_or_asks_about_words_learns_as_without_it[pairs]",
    ),
    "linear gain stands in rows of texts that are read twice": Bug(
        "lineage/evaluation/celltable.py",
        "linear_gain=settings.tuned.linear_gain and once, ",
        "",
        "test_linear_gain.py::test_rows_say_where_it_and_the_norm_of_words_were_used",
    ),
    "a set of parameters without gradients is clipped": Bug(
        "lineage/training/train.py",
        "if any(parameter.grad is not None for parameter in some):",
        "if some:",
        "test_training.py::test_no_step_asks_the_device_for_a_value",
    ),
    "a curve begins where its training was resumed": Bug(
        "lineage/pretraining.py",
        "        for point in curve.points:",
        "        for point in ():",
        "test_begun.py::test_a_resumed_training_tells_its_whole_curve_again",
    ),
    "a Chinese character of BPE takes one entry": Bug(
        "lineage/text/vocabulary.py",
        " // 4, own_entries=2)",
        " // 4)",
        "test_normalisation.py::test_strange_characters_do_not_fill_the_vocabulary_of_characters",
    ),
    "linear gain for any family": Bug(
        "lineage/study.py",
        "found.evaluate.tuned.linear_gain and not found.family.last_state",
        "False",
        "test_linear_gain.py::test_it_is_refused_where_no_last_state_is_read",
    ),
    "attention weighs all of it": Bug("lineage/layers/transformer.py", "dropout_p=drop", "dropout_p=0.0", f"{DROPS}[bert]"),
    "what attention read is not dropped": Bug(
        "lineage/layers/transformer.py",
        "F.dropout(self.read(self.attention_norm(x_BTD) if self.first else x_BTD, attend_B11T, drop), drop)",
        "self.read(self.attention_norm(x_BTD) if self.first else x_BTD, attend_B11T, drop)",
        f"{DROPS}[gpt-1]",
    ),
    "the feed-forward branch is not dropped": Bug(
        "lineage/layers/transformer.py", "F.dropout(self.contract(inner), drop)", "self.contract(inner)", f"{DROPS}[gpt-2]"
    ),
    "blocks drop in reading too": Bug("lineage/layers/transformer.py", "self.dropout if self.training else 0.0", "self.dropout", f"{DROPS}[bert]"),
    "bert's embeddings are not dropped": Bug(
        "lineage/families/bert.py",
        "F.dropout(self.embedding_norm(x_BTD), self.config.dropout, self.training)",
        "self.embedding_norm(x_BTD)",
        f"{DROPS}[bert]",
    ),
    "gpt's embeddings are not dropped": Bug(
        "lineage/families/gpt.py",
        "F.dropout(self.positions(self.tokens(batch.ids_BT)), self.config.dropout, self.training)",
        "self.positions(self.tokens(batch.ids_BT))",
        f"{DROPS}[gpt-2]",
    ),
    "bert starts from a whole normal": Bug(
        "lineage/families/bert.py",
        "truncated=True",
        "truncated=False",
        "test_transformer.py::test_bert_starts_from_a_normal_cut_at_two_deviations_and_gpt_from_a_whole_one",
    ),
    "context2vec reads the word in question": Bug(
        "lineage/families/context2vec.py",
        "F.pad(left_SLH[:, :-1], (0, 0, 1, 0))",
        "left_SLH",
        "test_leaks.py::test_words_that_were_drawn_by_lot_cannot_be_foretold[context2vec]",
    ),
    "gpt reads on in training": Bug(
        "lineage/layers/transformer.py",
        "is_causal=self.causal",
        "is_causal=False",
        "test_leaks.py::test_nothing_of_what_comes_later_changes_what_a_language_model_says[gpt]",
    ),
    "a masked piece stands where it stood": Bug(
        "lineage/training/pairs.py",
        "np.where(chosen_BT & (fate < become[0]), mark, ",
        "np.where(chosen_BT & (fate < 0), mark, ",
        "test_leaks.py::test_words_that_were_drawn_by_lot_cannot_be_foretold[bert]",
    ),
    "what is to be said next is what stands there": Bug(
        "lineage/training/streams.py",
        "inputs, targets = ids[:, :-1], ids[:, 1:]",
        "inputs, targets = ids[:, :-1], ids[:, :-1]",
        "test_leaks.py::test_words_that_were_drawn_by_lot_cannot_be_foretold[taglm]",
    ),
    "ulmfit's layers thaw within an epoch": Bug(
        "profiles/paper.yaml",
        "unfreeze_share: 0.08",
        "unfreeze_share: 0.3",
        "test_paper.py::test_ulmfit_s_layers_thaw_one_at_the_end_of_each_of_the_first_epochs[ulmfit]",
    ),
    "elmo's three towers are three windows": Bug(
        "profiles/paper.yaml",
        "accumulation: 1\n      length: 20",
        "accumulation: 3\n      length: 20",
        "test_paper.py::test_an_update_of_elmo_is_of_the_lanes_of_three_gpus[elmo]",
    ),
    "context2vec's rate falls as the demo's": Bug(
        "profiles/paper.yaml",
        "      schedule: constant # train_context2vec.py, as the next\n",
        "",
        "test_paper.py::test_no_setting_of_the_demo_stands_in_for_a_paper_s[context2vec]",
    ),
    "fastText's rate ends where gensim's does": Bug(
        "profiles/paper.yaml", "      last_rate: 5.0e-8", "      #", "test_paper.py::test_no_setting_of_the_demo_stands_in_for_a_paper_s[fasttext]"
    ),
    "ulmfit is tuned for the demo's epochs": Bug(
        "profiles/paper.yaml", "epochs: 50, ", "", "test_paper.py::test_no_setting_of_the_demo_stands_in_for_a_paper_s[ulmfit]"
    ),
}
