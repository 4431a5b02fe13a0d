"""TagLM: a forward and a backward language model, each of its own (Peters et al. 2017, "Semi-supervised sequence tagging with bidirectional
language models").

The two share nothing, neither words nor LSTM nor softmax, and are trained as if each were alone: two losses over parameters of their own,
gradients clipped apart. Downstream they stay frozen, and only the top layer of each is read, by the readers that all families share. The paper's
tagger joins the two vectors to the output of its first recurrent layer, which reads static ones: so does a network of joined features
(`grid.join_families`) with `evaluate.network: {layers: 2, join: first}`. There static vectors are tuned with the tagger, and it reads characters
too; here they stay frozen, and it does not.
Shapes: B items, T positions, P projection, V vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_num_layers, check_positive
from lineage.models.base import Encoder, Family, LossOutput, candidate_sizes, embed, empty_embedding
from lineage.models.batch import Batch, gather_positions, masked_mean, reversed_positions
from lineage.models.layers.lstm import LSTMStates, ProjectedLSTM
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.training.objectives import (
    full_or_sampled_softmax_nats,
    select_targets,
    split_directions,
)
from lineage.training.samplers import BidirectionalBpttBatches
from lineage.training.sentence_scores import score_bidirectional_lm
from lineage.training.settings import BilmPretrainSettings

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class TagLMConfig:
    """The block `model`. `projection` and `cells` are solved from the budget where they are not given."""

    directions: Literal["bidirectional", "forward", "backward"]
    num_layers: int
    cell_to_projection_ratio: int  # cell units over projection; 4 in the paper (2048 over 512)
    dropout: float
    cell_clip: float | None
    projection_clip: float | None
    softmax_samples: (
        int | None
    )  # candidates of the sampled softmax in training; none: the full softmax
    projection_size: int | None = None
    cell_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(
            self,
            "num_layers",
            "cell_to_projection_ratio",
            "cell_clip",
            "projection_clip",
            "softmax_samples",
            "projection_size",
            "cell_size",
        )
        check_num_layers(self, "num_layers")
        check_fraction(self, "dropout")

    def candidates(self) -> Iterator[list["TagLMConfig"]]:
        """Configurations of growing projection."""
        return candidate_sizes(
            self, "projection_size", "cell_size", ratio=self.cell_to_projection_ratio
        )


class DirectionalLM(nn.Module):
    """One direction: a table of words, LSTMs with projection, a softmax."""

    def __init__(self, config: TagLMConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.projection_size is not None and config.cell_size is not None, (
            "widths are solved before a model is built"
        )
        self.config, self.vocab_size = config, vocab_size
        self.word_embeddings = empty_embedding(vocab_size, config.projection_size)
        self.body = ProjectedLSTM(
            num_layers=config.num_layers,
            projection_size=config.projection_size,
            cell_size=config.cell_size,
            cell_clip=config.cell_clip or math.inf,
            projection_clip=config.projection_clip or math.inf,
            dropout=config.dropout,
            residual=False,
            num_directions=1,
        )
        self.softmax = nn.Linear(config.projection_size, vocab_size)

    def top_layer(
        self, ids_BT: torch.Tensor, state: LSTMStates | None
    ) -> tuple[torch.Tensor, LSTMStates]:
        """(B, T, P) of the last layer for ids in reading order, and the state after them."""
        outputs, state = self.body(embed(self.word_embeddings.weight, ids_BT)[None], state)
        return outputs[-1][0], state

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """(N, P) of top vectors, (V, P) and (V,)."""
        return x_ND, self.softmax.weight, self.softmax.bias


class TagLMModel(Encoder):
    """One language model, or both."""

    def __init__(self, config: TagLMConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.word_pooling = {"forward": "last", "backward": "first", "bidirectional": "mean"}[
            config.directions
        ]  # positions are in the text's order
        self.direction_names = [
            way for way in DIRECTIONS if config.directions in ("bidirectional", way)
        ]
        self.language_models = nn.ModuleList(
            DirectionalLM(config, vocab_size=vocab_size) for _ in self.direction_names
        )

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """One layer: the top of each model, from a cold state, joined: (B, T, P) or (B, T, 2 P)."""
        turn_BT, found = reversed_positions(batch.mask_BT), []
        for way, model in zip(self.direction_names, self.language_models, strict=True):
            assert isinstance(model, DirectionalLM)
            ids_BT = batch.ids_BT if way == "forward" else batch.ids_BT.gather(1, turn_BT)
            top_BTP, _ = model.top_layer(ids_BT, None)
            found.append(top_BTP if way == "forward" else gather_positions(top_BTP, turn_BT))
        return (torch.cat(found, -1),)

    def softmax_inputs_by_direction(
        self, top_BTD: torch.Tensor
    ) -> Iterator[tuple[str, SoftmaxInputs]]:
        """For each direction its name, and what its softmax reads of its part of `encode`."""
        for way, model, part_BTP in zip(
            self.direction_names,
            self.language_models,
            top_BTD.chunk(len(self.direction_names), -1),
            strict=True,
        ):
            assert isinstance(model, DirectionalLM)
            yield way, model.softmax_inputs(part_BTP)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """The mean over the real positions."""
        return masked_mean(layers[-1], batch.mask_BT)

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role."""
        roles = {"embedding": "words", "body": "body", "head": "softmax"}
        return {
            role: nn.ModuleList([getattr(model, name) for model in self.language_models])
            for role, name in roles.items()
        }

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The tables, then the LSTM layers of one height."""
        layers: list[list[nn.Parameter]] = [[] for _ in range(self.config.num_layers)]
        for model in self.language_models:
            assert isinstance(model, DirectionalLM)
            for layer, found in zip(model.body.layers, layers, strict=True):
                found += layer.parameters()
        return [[*self.modules_by_role()["embedding"].parameters()], *layers]

    def grad_clip_groups(self) -> list[list[nn.Parameter]]:
        """Each language model."""
        return [[*model.parameters()] for model in self.language_models]

    def init_weights(self, generator: torch.Generator) -> None:
        """Weights scaled by their inputs; the forget gates open."""
        for model in self.language_models:
            assert isinstance(model, DirectionalLM)
            for weight in (model.word_embeddings.weight, model.softmax.weight):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
            nn.init.zeros_(model.softmax.bias)
            model.body.init_weights(generator)

    def hidden_sizes(self) -> tuple[int, ...]:
        """P a direction, of the one layer."""
        assert self.config.projection_size is not None
        return (len(self.language_models) * self.config.projection_size,)


def independent_lm_losses(
    model: TagLMModel, batch: Batch, recurrent_state: LSTMStates | None = None
) -> LossOutput:
    """The next word from the left, and the previous word from the right: the sum of two losses that have no parameter in common.

    The first half of the batch's rows are forward windows, the second half backward ones; `carry` is the state of both models, in a row.
    """
    layers, after = model.config.num_layers, list[tuple[torch.Tensor, torch.Tensor]]()
    losses: list[torch.Tensor] = []
    sums: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}
    sides = dict(zip(DIRECTIONS, split_directions(batch), strict=True))
    for number, (way, one) in enumerate(
        zip(model.direction_names, model.language_models, strict=True)
    ):
        assert isinstance(one, DirectionalLM)
        half = sides[way]
        top_BTP, state = one.top_layer(
            half.ids_BT,
            None
            if recurrent_state is None
            else recurrent_state[number * layers : (number + 1) * layers],
        )
        top_NP, targets_N = select_targets(
            F.dropout(top_BTP, model.config.dropout, model.training), half
        )
        nats = full_or_sampled_softmax_nats(one, top_NP, targets_N)
        sums[way], counts[way] = nats.detach(), len(targets_N)
        losses.append(nats / max(counts[way], 1))
        after += state
    return LossOutput(torch.stack(losses).sum(), sums, counts, tuple(after))


def describe_mechanism(architecture: TagLMConfig, pretrain: BilmPretrainSettings) -> dict[str, str]:
    """What one direction alone makes of the family's mechanism."""
    if architecture.directions == "bidirectional":
        return {}
    direction, predicted = (
        ("left to right", "next word")
        if architecture.directions == "forward"
        else ("right to left", "previous word")
    )
    return {
        "extractor": "LSTM",
        "direction": direction,
        "objective": predicted,
        "transfer": "frozen, the top",
    }


FAMILY = Family(
    name="taglm",
    input_unit="words",
    contextualizer="two LSTMs of their own",
    direction="left to right and right to left, apart",
    objective_description="next word; previous word",
    transfer_description="frozen, the top of each joined",
    tokenizer_type="word",
    architecture_class=TagLMConfig,
    pretrain_class=BilmPretrainSettings,
    build=TagLMModel,
    batch_sampler=BidirectionalBpttBatches,
    objective=independent_lm_losses,
    score_texts=score_bidirectional_lm,
    describe=describe_mechanism,
)
