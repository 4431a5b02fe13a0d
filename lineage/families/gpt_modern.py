"""GPT with today's recipe: a modern Transformer that predicts the next token.

See `modern_transformer` for the block and its sources.
"""

from functools import partial

from lineage.families.modern_transformer import (
    ModernConfig,
    ModernPretrainSettings,
    ModernTransformer,
    modern_defaults,
)
from lineage.networks.base import Trained
from lineage.training.objectives import auxiliary_lm_loss, causal_lm_loss
from lineage.training.samplers import CausalWindows
from lineage.training.sentence_scores import score_causal_lm

FAMILY = Trained(
    name="gpt_modern",
    successor_of="gpt",
    new_network_reads_context=False,
    tokenizer_type="byte_bpe",
    architecture_class=ModernConfig,
    pretrain_class=ModernPretrainSettings,
    build=partial(ModernTransformer, causal=True),
    batch_sampler=CausalWindows,
    objective=causal_lm_loss,
    predicts_next_token=True,
    writes_on=True,
    auxiliary_loss=auxiliary_lm_loss,
    score_texts=score_causal_lm,
    defaults=modern_defaults({}, vocab_size=8000),
)
