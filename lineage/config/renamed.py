"""Names of version 0.1, for the message that an old params.yaml gets."""

from collections.abc import Mapping
from typing import Any

from lineage.errors import InputError

# An old key or value -> its new names; which one holds depends on the block.
RENAMED: dict[str, tuple[str, ...]] = {
    "about": ("checkpoint_info",),
    "accumulation": ("grad_accum_steps",),
    "adapt_families": ("adapt_models",),
    "against": ("ablation_of",),
    "also_test": ("extra_test_sets",),
    "analogy": ("word_analogy",),
    "architecture": ("algorithm",),
    "batch": ("batch_size",),
    "beam": ("num_beams",),
    "become": ("mask_replacement",),
    "bias_rate": ("scale_bias_gradient",),
    "both": ("bidirectional",),
    "both_sides": ("bidirectional",),
    "buckets": ("num_buckets",),
    "cell_ratio": ("cell_to_projection_ratio",),
    "cells": (
        "cell_size",
        "hidden_size",
        "lstm_hidden_size",
    ),
    "change_penalty": ("temporal_activation_penalty",),
    "character_width": ("char_embedding_size",),
    "choose": ("multiple_choice",),
    "classify": ("text_classification",),
    "clip_norm": ("max_grad_norm",),
    "cold": ("zeros",),
    "concat4": ("concat_last_4",),
    "context": ("context_encoder",),
    "count_limit": ("x_max",),
    "cut_sentences": ("split_long_sentences",),
    "cut_share": ("cut_frac",),
    "device_class": ("device",),
    "document": ("document_unit",),
    "documents": ("num_documents",),
    "duplicates": ("dupe_factor",),
    "end_of_word": ("end_of_word_suffix",),
    "extractor": ("contextualizer",),
    "families": ("models",),
    "feed_forward": ("ffn_size",),
    "first_length": ("initial_seq_len",),
    "frozen": ("linear_probe",),
    "gamma": ("learn_gamma",),
    "head": ("classifier_hidden_size",),
    "heads": (
        "probes",
        "num_heads",
    ),
    "held_share": ("heldout_share",),
    "hidden": ("hidden_size",),
    "hidden_ratio": ("hidden_to_embedding_ratio",),
    "highways": ("num_highway_layers",),
    "initial_accumulator": ("initial_accumulator_value",),
    "initial_deviation": ("init_std",),
    "inner_dropout": ("classifier_hidden_dropout",),
    "input": ("input_unit",),
    "iterations": ("max_iter",),
    "join_families": ("join_models",),
    "join_static": ("join_static_model",),
    "joined": ("concatenated",),
    "labels": ("label_counts",),
    "language_model_losses": ("aux_lm_losses",),
    "last_rate": ("min_learning_rate",),
    "last_share": ("long_seq_share",),
    "layer_decay": ("layer_lr_decay",),
    "layers": ("num_layers",),
    "least_steps": ("min_steps",),
    "length": ("seq_len",),
    "linear_gain": ("linear_label_gain",),
    "lm": ("language_model",),
    "lm_weight": ("aux_lm_weight",),
    "longest": (
        "max_n",
        "max_new_tokens",
    ),
    "loss_by_length": ("scale_loss_by_seq_len",),
    "mask_share": ("mlm_probability",),
    "max_passes": ("max_epochs",),
    "microworld": ("synthetic",),
    "minimum_characters": ("min_characters",),
    "max_tokens": ("max_words",),
    "minimum_count": ("min_frequency",),
    "mix": ("scalar_mix",),
    "mix_l2": ("scalar_mix_l2",),
    "model": ("architecture",),
    "most": ("max_words",),
    "most_masked": ("max_predictions_per_seq",),
    "names": ("label_map",),
    "negatives": ("num_negatives",),
    "network": ("bilstm_probe",),
    "next_sentence": ("next_sentence_prediction",),
    "norm": ("norm_first",),
    "norm_epsilon": ("layer_norm_eps",),
    "normalise": ("normalizer",),
    "one_matrix": ("tie_positions",),
    "own": ("model_default",),
    "parameters": ("body_parameters",),
    "per_group": ("max_per_group",),
    "pool": ("pooling",),
    "pooled": ("pooled_positions",),
    "positions": ("max_positions",),
    "power": (
        "negative_exponent",
        "alpha",
    ),
    "projection": ("projection_size",),
    "published": ("benchmark",),
    "quotes": ("csv_quoting",),
    "rate": ("learning_rate",),
    "regress": ("text_regression",),
    "samples": ("softmax_samples",),
    "seeds": ("finetune_seeds",),
    "sense": ("word_sense",),
    "short_share": ("short_seq_prob",),
    "shortest": ("min_n",),
    "similarity": ("word_similarity",),
    "slanted": ("slanted_triangular",),
    "source": ("source_language",),
    "span": ("extractive_qa",),
    "start": ("initial_state",),
    "starts": ("answer_starts",),
    "stateful": ("carry_state",),
    "tag": ("token_classification",),
    "target": ("target_language",),
    "tfidf": ("tfidf_C",),
    "tied": ("tie_word_embeddings",),
    "top": ("last",),
    "translate": ("translation",),
    "tuned": ("finetune",),
    "unfreeze_share": ("gradual_unfreezing",),
    "unit_ratio": ("hidden_to_embedding_ratio",),
    "units": ("hidden_size",),
    "vary_length": ("variable_bptt",),
    "vocabulary": ("vocab_size",),
    "warm": ("trained",),
    "warmup_share": ("warmup_ratio",),
    "whole_word": ("whole_word_masking",),
    "width": (
        "hidden_size",
        "embedding_size",
    ),
    "window": ("bptt_window",),
    "word_bytes": ("max_word_bytes",),
    "word_norm": ("word_layer_norm",),
}


def check_version(tree: Mapping[str, Any], where: str) -> None:
    """Raise InputError with the new name of every key and value if the file is of version 0.1."""
    grid = tree.get("grid")
    if not isinstance(grid, Mapping) or "families" not in grid:
        return
    found = sorted(_old_names(tree))
    renames = ", ".join(f"{old} -> {' or '.join(RENAMED[old])}" for old in found)
    raise InputError(
        f"{where}: it is written for version 0.1; rename {renames} "
        "(docs/reference/params.md lists the keys of each block)"
    )


def _old_names(node: object) -> set[str]:
    """Return the old keys and values anywhere in a tree."""
    if isinstance(node, Mapping):
        keys = {str(key) for key in node} & RENAMED.keys()
        return keys.union(*(_old_names(value) for value in node.values()))
    if isinstance(node, list | tuple):
        return set[str]().union(*(_old_names(value) for value in node))
    return {node} & RENAMED.keys() if isinstance(node, str) else set()
