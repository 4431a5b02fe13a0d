"""GPT-BERT: one modern Transformer that learns from causal and from masked batches.

Charpentier and Samuel 2024, "GPT or BERT: why not both?". A masked token is predicted at the
position before it, like the next token of a causal batch, so that the softmax has one task. With
`objective: causal_then_masked` the causal batches come first (Gisserot-Boukhlef et al. 2025).
Downstream the model reads both sides. See `modern_transformer` for the block.
Shapes: B items, T positions.
"""

import dataclasses
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from lineage.config.records import check_fraction
from lineage.families.modern_transformer import (
    MaskedModernSettings,
    ModernConfig,
    ModernTransformer,
    modern_defaults,
)
from lineage.networks.base import LossOutput, Trained
from lineage.networks.batch import Batch
from lineage.randomness import generator
from lineage.training.masked_lm_batches import MaskedWindows, shift_targets
from lineage.training.objectives import cross_entropy_nats, mean_loss, select_targets
from lineage.training.sentence_scores import score_pseudo_log_likelihood

MASKED, CAUSAL = 0, 1  # `Batch.lm_index`


@dataclass(frozen=True, kw_only=True)
class GptBertPretrainSettings(MaskedModernSettings):
    """The block `pretrain` of GPT-BERT."""

    # Mix the batches, or read the causal ones first, in whole parts of the training.
    objective: Literal["both", "causal_then_masked"] = "both"
    causal_share: float = 0.5  # of the batches

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "causal_share")

    def part(self, index: int) -> "GptBertPretrainSettings":
        """Return the settings of one part's batches."""
        settings = super().part(index)
        assert isinstance(settings, GptBertPretrainSettings)
        if self.objective == "both":
            return settings
        is_causal = (index + 0.5) / self.num_parts < self.causal_share
        return replace(settings, objective="both", causal_share=float(is_causal))


class MixedWindows(MaskedWindows):
    """Windows between special tokens; a batch is causal or masked, as drawn for its place."""

    settings: GptBertPretrainSettings

    def get_batch(self, index: int) -> Batch:
        """(B, T) ids; the target of a position is the token after it, all or the masked ones."""
        uniform = generator("objective", self.seed, self.epoch, index).random()
        if uniform < self.settings.causal_share:
            return dataclasses.replace(self.get_causal_batch(index), lm_index=CAUSAL)
        batch = super().get_batch(index)
        assert batch.targets_BT is not None
        return dataclasses.replace(
            batch, targets_BT=shift_targets(batch.targets_BT), lm_index=MASKED
        )


def mixed_lm_loss(
    model: ModernTransformer, batch: Batch, recurrent_state: object = None
) -> LossOutput:
    """Predict the next token of a causal batch, or the masked tokens of another."""
    is_causal = batch.lm_index == CAUSAL
    top_BTD = model.run_blocks(batch, causal=is_causal)[-1]
    top_ND, targets_N = select_targets(top_BTD, batch)
    nats = cross_entropy_nats(model.softmax_inputs(top_ND), targets_N)
    name = "next_token" if is_causal else "masked"
    return mean_loss(name, nats, len(targets_N), recurrent_state)


FAMILY = Trained(
    name="gpt_bert",
    successor_of="bert",
    new_network_reads_context=False,
    tokenizer_type="wordpiece",
    architecture_class=ModernConfig,
    pretrain_class=GptBertPretrainSettings,
    build=partial(ModernTransformer, causal=False),
    batch_sampler=MixedWindows,
    objective=mixed_lm_loss,
    score_texts=partial(score_pseudo_log_likelihood, offset=-1),
    defaults=modern_defaults({}, vocab_size=8000),
)
