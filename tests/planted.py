"""Bugs to plant, one at a time: in which file what stands right, what a slip would make of it, and the test that must fail then."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """`right` stands exactly once in `file`; with `wrong` in its place `test` fails."""

    file: str
    right: str
    wrong: str
    test: str


BUGS = {
    # no peeking, either way
    "gpt reads on": Bug(
        "lineage/models/layers/transformer.py",
        "is_causal=self.causal",
        "is_causal=False",
        "test_families.py::test_gpt_does_not_see_what_comes_later",
    ),
    "elmo's backward text is not turned": Bug(
        "lineage/models/elmo.py",
        "torch.stack([tokens_BTP, turned(tokens_BTP, turn_BT)])",
        "torch.stack([tokens_BTP, tokens_BTP])",
        "test_families.py::test_neither_direction_of_elmo_sees_the_other_side",
    ),
    "taglm's too": Bug(
        "lineage/models/taglm.py",
        "turned(",
        "(lambda x, _: x)(",
        "test_taglm.py::test_neither_model_sees_the_other_side",
    ),
    "the extractors read on": Bug(
        "lineage/models/layers/contextualizers.py",
        'both = config.direction == "both_sides"',
        "both = True",
        "test_extractors.py::test_no_direction_sees_the_other_side_and_masked_sees_both",
    ),
    # padding, and what stands beside an item
    "padding is attended to": Bug(
        "lineage/models/layers/transformer.py",
        "attn_mask=None if self.causal else attend_B11T",
        "attn_mask=None",
        "test_families.py::test_padding_and_neighbours_change_nothing[bert]",
    ),
    "padding is in the mean": Bug(
        "lineage/models/batch.py",
        "weight = where_BT.unsqueeze(-1)",
        "weight = torch.ones_like(where_BT).unsqueeze(-1)",
        "test_families.py::test_padding_and_neighbours_change_nothing",
    ),
    "padding is turned round too": Bug(
        "lineage/models/batch.py",
        "lengths_B1 = mask_BT.sum(1, keepdim=True)",
        "lengths_B1 = torch.full_like(mask_BT.sum(1, keepdim=True), mask_BT.shape[1])",
        "test_families.py::test_padding_and_neighbours_change_nothing[elmo]",
    ),
    "the last position is the padding's": Bug(
        "lineage/models/batch.py",
        "mask_BT.shape[1] - 1 - mask_BT.flip(1).int().argmax(1)",
        "torch.full_like(mask_BT[:, 0].long(), mask_BT.shape[1] - 1)",
        "test_families.py::test_padding_and_neighbours_change_nothing",
    ),
    "windows that start cold go on from those before": Bug(
        "lineage/training/loop.py",
        "if index == 0 or not stream.carries:",
        "if index == 0:",
        "test_elmo_recipe.py::test_windows_go_on_from_the_state_before_or_start_cold",
    ),
    "features of one item stand at another's place": Bug(
        "lineage/evaluation/linear_probe.py",
        "found[np.concatenate([rows[i] for i in some])] = stacked",
        "found[np.concatenate([rows[i] for i in np.sort(some)])] = stacked",
        "test_recipes.py::test_what_is_read_of_an_item_does_not_depend_on_batches_or_their_order",
    ),
    "predictions are made as in training": Bug(
        "lineage/evaluation/finetuning.py",
        'such as probabilities."""\n    model.eval()',
        'such as probabilities."""\n    model.train()',
        "test_recipes.py::test_what_is_read_of_an_item_does_not_depend_on_batches_or_their_order",
    ),
    # tags, networks, trials
    "a piece of two words stands with the first alone": Bug(
        "lineage/evaluation/encoding.py",
        'counts = (np.searchsorted(starts, encoded.spans[:, 1], side="left") - firsts).clip(0)',
        'counts = (np.searchsorted(starts, encoded.spans[:, 1], side="left") - firsts).clip(0, 1)',
        "test_tags_and_numbers.py::test_a_piece_of_two_words_stands_with_both",
    ),
    "the words of a sentence's second window are numbered anew": Bug(
        "lineage/evaluation/encoding.py",
        "pieces + np.array((0, a))",
        "pieces + np.array((0, 0))",
        "test_tags_and_numbers.py::test_no_word_is_lost_however_long_the_sentence",
    ),
    "the chain forgets the last tag": Bug(
        "lineage/models/layers/crf.py",
        "return torch.logsumexp(reached_NK + self.last_K, 1)",
        "return torch.logsumexp(reached_NK, 1)",
        "test_networks.py::test_the_chain_is_the_sum_over_all_taggings",
    ),
    "a network pools over padding": Bug(
        "lineage/evaluation/bilstm_probe.py",
        'y_BTH.masked_fill(~where_BT[..., None], float("-inf")).amax(1)',
        "y_BTH.amax(1)",
        "test_networks.py::test_every_kind_of_item_is_learned_and_read_alike_in_any_company",
    ),
    "the worst trial is taken": Bug(
        "lineage/evaluation/trials.py",
        "key=lambda number: (-values[str(number)], number)",
        "key=lambda number: (values[str(number)], number)",
        "test_trials.py::test_validation_chooses_and_test_is_read_once",
    ),
    # dropout
    "weight drop on another matrix": Bug(
        "lineage/models/layers/awd_lstm.py",
        "weights = [self.input_weight, dropped,",
        "weights = [self.input_weight, self.state_weight,",
        "test_awd.py::test_weight_drop_is_seen_in_the_output_from_the_second_position_on",
    ),
    "hidden dropout is not locked": Bug(
        "lineage/models/layers/awd_lstm.py",
        "locked(x, (B, 1, x.shape[-1]), some.hidden)",
        "locked(x, x.shape, some.hidden)",
        "test_awd.py::test_each_kind_drops_where_its_name_says",
    ),
    "the state keeps its history": Bug(
        "lineage/models/layers/awd_lstm.py",
        "after.append((h.detach(), c.detach()))",
        "after.append((h, c))",
        "test_awd.py::test_state_goes_from_window_to_window_and_holds_no_history",
    ),
    "AR on what was not dropped": Bug(
        "lineage/training/objectives.py",
        "dropped_BTE.float().square()",
        "top.float().square()",
        "test_awd.py::test_the_one_penalty_is_on_what_was_dropped_and_the_other_on_what_was_not",
    ),
    "the same dropout in each step": Bug(
        "lineage/training/loop.py",
        "            self.state = torch.get_rng_state()\n",
        "",
        "test_training.py::test_dropout_draws_anew_each_step_and_the_world_is_left_alone",
    ),
    # masks and next sentences
    "85 percent become the mask": Bug(
        "lineage/training/masked_lm_batches.py",
        "fate < become[0]",
        "fate < become[0] + 0.05",
        "test_streams.py::test_masks_are_15_percent_exactly_and_80_10_10",
    ),
    "one mask too many": Bug(
        "lineage/training/masked_lm_batches.py",
        "np.rint(share * lengths_B)",
        "np.rint(share * lengths_B) + 1",
        "test_streams.py::test_masks_are_15_percent_exactly_and_80_10_10",
    ),
    "pieces are chosen without their word": Bug(
        "lineage/training/masked_lm_batches.py",
        "begins = np.flatnonzero(~goes_on[places] |",
        "begins = np.flatnonzero(goes_on[places] |",
        "test_streams.py::test_whole_words_are_chosen_or_none_of_their_pieces",
    ),
    "random segments in a third of the pairs": Bug(
        "lineage/training/masked_lm_batches.py",
        "rng.random() < 0.5):",
        "rng.random() < 0.3):",
        "test_streams.py::test_second_segments_are_random_in_about_half_the_pairs_and_never_from_the_same_document",
    ),
    "random segments from the same document": Bug(
        "lineage/training/masked_lm_batches.py",
        "other += int(count > 1 and other >= document)",
        "other += 0",
        "test_streams.py::test_second_segments_are_random_in_about_half_the_pairs_and_never_from_the_same_document",
    ),
    # rates, freezing, averages
    "the slanted triangle of the paper's formula": Bug(
        "lineage/training/optimizers.py",
        "(progress - cut) / (1.0 - cut)",
        "(progress - cut) / (0.9 - cut)",
        "test_training.py::test_the_slanted_triangle_has_its_ends_and_its_peak",
    ),
    "nothing is frozen": Bug(
        "lineage/evaluation/finetuning.py",
        'parameter.requires_grad_(progress >= Fraction(str(share)) * group["depth"] / deepest)',
        "parameter.requires_grad_(True)",
        "test_transfer.py::test_frozen_groups_are_bit_identical_and_thaw_from_the_top",
    ),
    "it thaws from the bottom": Bug(
        "lineage/evaluation/finetuning.py",
        'Fraction(str(share)) * group["depth"] / deepest',
        'Fraction(str(share)) * (deepest - group["depth"]) / deepest',
        "test_transfer.py::test_frozen_groups_are_bit_identical_and_thaw_from_the_top",
    ),
    "biases decay": Bug(
        "lineage/training/optimizers.py",
        "decay = weight_decay if matrices else 0.0",
        "decay = weight_decay",
        "test_training.py::test_layers_have_rates_that_fall_by_the_factor_and_only_matrices_decay",
    ),
    "NT-ASGD looks at all checks": Bug(
        "lineage/training/optimizers.py",
        "last > min(earlier[: -self.patience])",
        "last > min(earlier)",
        "test_nt_asgd.py::test_the_rule_is_the_one_of_the_released_code",
    ),
    "the last weights are validated, not their mean": Bug(
        "lineage/training/pretrain.py",
        '            point["averaged"] = 1.0\n        exchange_averages(run.optimizer)\n',
        '            point["averaged"] = 1.0\n',
        "test_nt_asgd.py::test_what_is_validated_and_what_is_kept_is_the_mean_of_the_weights",
    ),
    "accumulated losses are summed": Bug(
        "lineage/training/loop.py",
        "course.loss_factor / course.accumulation",
        "course.loss_factor",
        "test_training.py::test_accumulated_batches_are_one_larger_batch",
    ),
    # objectives
    "the auxiliary loss has no gradient": Bug(
        "lineage/evaluation/finetuning.py",
        "auxiliary(model.encoder, top_BTD, batch)",
        "auxiliary(model.encoder, top_BTD, batch).detach()",
        "test_recipes.py::test_the_auxiliary_loss_adds_its_weight_times_its_gradient",
    ),
    "sampled candidates are not corrected": Bug(
        "lineage/training/objectives.py",
        "bias_V[ids] - correction",
        "bias_V[ids]",
        "test_families.py::test_sampled_softmax_takes_off_the_log_of_how_often_a_candidate_is_expected",
    ),
    "the end mark is scored": Bug(
        "lineage/training/sentence_scores.py",
        "_from_the_left(model, batch, batch.text_BT)",
        "_from_the_left(model, batch, batch.mask_BT)",
        "test_families.py::test_gpt_scores_are_the_log_probability_of_the_text",
    ),
    "targets are counted as read bytes": Bug(
        "lineage/training/samplers.py",
        "self.tokens.bytes[where[:, :-1]]",
        "self.tokens.bytes[where]",
        "test_training.py::test_one_pass_of_windows_reads_the_corpus_once",
    ),
    # answers in a context
    "an answer stands where it stands first": Bug(
        "lineage/tasks/extractive_qa.py",
        "abs(place - near)",
        "place",
        "test_span.py::test_an_answer_is_found_where_its_start_says_whatever_cleaning_does",
    ),
    "a softmax over all contexts": Bug(
        "lineage/evaluation/answers.py",
        ".cumsum(0) - 1",
        ".cumsum(0) * 0",
        "test_span_readers.py::test_the_loss_is_that_of_two_softmaxes_over_each_context_and_counts_items",
    ),
    "who reads backwards is asked last": Bug(
        "lineage/evaluation/encoding.py",
        '    if reader.direction == "forward":\n        return encode_pairs',
        "    if True:\n        return encode_pairs",
        "test_span.py::test_every_word_of_a_context_is_read_once_beside_the_question_from_its_own_characters",
    ),
    # Chinese, and Latin words in it
    "New York in Chinese is one word": Bug(
        "lineage/data/language.py",
        "*map(int, apart)]",
        "*[0 for _ in apart]]",
        "test_chinese.py::test_joined_words_of_both_scripts_stay_apart",
    ),
    "characters are spread": Bug(
        "lineage/data/language.py",
        "len(a) + len(b) > 2 and ",
        "",
        "test_chinese.py::test_joined_words_of_both_scripts_stay_apart",
    ),
    "a word's place is counted without the spaces": Bug(
        "lineage/evaluation/encoding.py",
        "lengths + gaps(tokens, language)",
        "lengths",
        "test_chinese.py::test_every_familys_pieces_of_mixed_words_stand_with_their_words",
    ),
    "a stop ends no Latin sentence in Chinese": Bug(
        "lineage/data/language.py",
        r"""|\.+(?:["'”’)\]»])*(?=\s)""",
        "",
        "test_corpus.py::test_sentences",
    ),
    "an example's target is the word before it": Bug(
        "lineage/synthetic/examples.py",
        '"target": len(first)',
        '"target": max(0, len(first) - 1)',
        "test_chinese.py::test_the_examples_are_balanced_so_that_a_word_alone_says_nothing",
    ),
}
