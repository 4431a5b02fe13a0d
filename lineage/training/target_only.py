"""Pretrain a model on the text of a task alone, with the budget of pretraining.

Compared with an adapted model, it shows what the general text was worth.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from lineage.config.params import Params
from lineage.data.checks import MIN_BYTES_PER_TOKEN
from lineage.language import byte_count
from lineage.networks.checkpoint import Checkpoint
from lineage.study.models import ModelConfig
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.tokenizers.train import train_tokenizer
from lineage.training.best_weights import BestWeights
from lineage.training.optimizers import AveragedSGD
from lineage.training.pretrain import Training, TrainOutput, build_training, run_training
from lineage.training.train_run import NUM_VALIDATIONS, TrainContext

MIN_VOCAB_SIZE = 1000
MAX_MIN_FREQUENCY = 2  # as for the new words of adaptation
# A small text is not read more often. There are ten validations, and with many epochs between two
# of them a model may overfit before the first.
MAX_EPOCHS = 20


def train_target_tokenizer(model: ModelConfig, texts: Sequence[str], language: str) -> Tokenizer:
    """Train the model's tokenizer on the task's texts.

    Its vocabulary is as large as in the study, or smaller where the text is too small for that. A
    word that occurs twice enters it.
    """
    assert model.tokenizer is not None, "the study was checked"
    supported = max(MIN_VOCAB_SIZE, sum(map(byte_count, texts)) // MIN_BYTES_PER_TOKEN)
    settings = replace(
        model.tokenizer,
        vocab_size=min(model.tokenizer.vocab_size, supported),
        min_frequency=min(model.tokenizer.min_frequency, MAX_MIN_FREQUENCY),
    )
    return train_tokenizer(texts, settings, tokenizer_type=model.tokenizer_type, language=language)


def pretrain_on_target(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    held_out_texts: Sequence[str],
    params: Params,
    context: TrainContext,
) -> TrainOutput:
    """Pretrain a new model on the task's texts, and keep the weights with the lowest loss."""
    tokens = encode_corpus(texts, checkpoint.tokenizer)
    held_out_tokens = encode_corpus(held_out_texts, checkpoint.tokenizer)
    budget_bytes = min(params.budget.text_bytes, MAX_EPOCHS * tokens.text_bytes)
    params = replace(params, budget=replace(params.budget, text_bytes=budget_bytes))
    training = build_training(checkpoint, tokens, held_out_tokens, params, context.device)
    return run_training(
        training,
        checkpoint,
        context,
        corpus_bytes=tokens.text_bytes,
        # Any training is better than none, whatever the losses say: random init is another system.
        best=BestWeights(training.state.model, math.inf, _patience(training, params)),
    )


def _patience(training: Training, params: Params) -> int | None:
    """Return the patience in validations. NT-ASGD is validated more often than ten times."""
    patience = params.adapt.patience
    optimizer = training.state.optimizer
    if patience is None or not isinstance(optimizer, AveragedSGD):
        return patience
    return round(patience * optimizer.trigger.checks / NUM_VALIDATIONS)
