"""BERT with today's recipe: a modern Transformer that predicts masked tokens.

There is no next-sentence prediction and no segment embedding, and masks become rarer in the course
of the training. See `modern_transformer` for the block and its sources.
"""

from functools import partial

from lineage.families.modern_transformer import (
    MaskedModernSettings,
    ModernConfig,
    ModernTransformer,
    modern_defaults,
)
from lineage.networks.base import Trained
from lineage.training.masked_lm_batches import MaskedWindows
from lineage.training.objectives import masked_lm_loss
from lineage.training.sentence_scores import score_pseudo_log_likelihood

FAMILY = Trained(
    name="bert_modern",
    successor_of="bert",
    new_network_reads_context=False,
    tokenizer_type="wordpiece",
    architecture_class=ModernConfig,
    pretrain_class=MaskedModernSettings,
    build=partial(ModernTransformer, causal=False),
    batch_sampler=MaskedWindows,
    objective=masked_lm_loss,
    score_texts=score_pseudo_log_likelihood,
    defaults=modern_defaults({}, vocab_size=8000),
)
