"""TagLM: a separate forward and backward language model.

Peters et al. 2017, "Semi-supervised sequence tagging with bidirectional language models". The two
share no words, LSTM or softmax and are trained as if each were alone. Downstream they stay frozen,
and probes read the top layer of each. The paper's tagger joins the two vectors to the output of its
first recurrent layer: so does a BiLSTM of joined features (`grid.join_models`) with
`evaluate.bilstm_probe: {num_layers: 2, join: first}`, whose static vectors stay frozen.

Shapes: B items, T positions, N predicted positions, P projection, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.networks.base import (
    Encoder,
    LossOutput,
    Trained,
    embed,
    empty_embedding,
    finetune_defaults,
)
from lineage.networks.batch import Batch, gather_positions, masked_mean, reversed_positions
from lineage.networks.layers.lstm import LSTMState, LSTMStates, ProjectedLSTMConfig
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.training.objectives import (
    full_or_sampled_softmax_nats,
    select_targets,
    split_directions,
)
from lineage.training.samplers import BidirectionalBpttBatches
from lineage.training.sentence_scores import score_bidirectional_lm
from lineage.training.settings import BilmPretrainSettings

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, kw_only=True)
class TagLMConfig(ProjectedLSTMConfig):
    """The block `architecture`."""

    directions: Literal["bidirectional", "forward", "backward"]


class DirectionalLM(nn.Module):
    """One direction: a table of words, LSTMs with projection, a softmax."""

    def __init__(self, config: TagLMConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.projection_size is not None
        self.config = config
        self.vocab_size = vocab_size
        self.word_embeddings = empty_embedding(vocab_size, config.projection_size)
        self.body = config.build_lstm(residual=False, num_directions=1)
        self.softmax = nn.Linear(config.projection_size, vocab_size)

    def top_layer(
        self, ids_BT: torch.Tensor, state: LSTMStates | None
    ) -> tuple[torch.Tensor, LSTMStates]:
        """Return the last layer, (B, T, P), for ids in reading order, and the next state."""
        outputs, state = self.body(embed(self.word_embeddings.weight, ids_BT)[None], state)
        return outputs[-1][0], state

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        return x_ND, self.softmax.weight, self.softmax.bias


class TagLMModel(Encoder):
    """One language model, or both."""

    def __init__(self, config: TagLMConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.direction_names: list[str] = [config.directions]
        if config.directions == "bidirectional":
            self.direction_names = [*DIRECTIONS]
        elif config.directions == "forward":
            self.word_pooling = "last"
        else:
            self.word_pooling = "first"  # positions are in the text's order, not in reading order
        self.language_models = nn.ModuleList(
            DirectionalLM(config, vocab_size=vocab_size) for _ in self.direction_names
        )

    def models_by_direction(self) -> dict[str, DirectionalLM]:
        models = {}
        for direction, model in zip(self.direction_names, self.language_models, strict=True):
            assert isinstance(model, DirectionalLM)
            models[direction] = model
        return models

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return one layer: each model's top layer, concatenated, (B, T, P) or (B, T, 2 P)."""
        reversed_BT = reversed_positions(batch.mask_BT)
        tops = []
        for direction, model in self.models_by_direction().items():
            if direction == "forward":
                top_BTP, _ = model.top_layer(batch.ids_BT, None)
            else:
                top_BTP, _ = model.top_layer(batch.ids_BT.gather(1, reversed_BT), None)
                top_BTP = gather_positions(top_BTP, reversed_BT)
            tops.append(top_BTP)
        return (torch.cat(tops, -1),)

    def softmax_inputs_by_direction(
        self, top_BTD: torch.Tensor
    ) -> Iterator[tuple[str, SoftmaxInputs]]:
        """Yield each direction's name and the softmax inputs for its part of `encode`."""
        parts = top_BTD.chunk(len(self.direction_names), -1)
        models = self.models_by_direction()
        for (direction, model), part_BTP in zip(models.items(), parts, strict=True):
            yield direction, model.softmax_inputs(part_BTP)

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        return masked_mean(layers[-1], batch.mask_BT)

    def modules_by_role(self) -> dict[str, nn.Module]:
        models = self.models_by_direction().values()
        return {
            "embedding": nn.ModuleList(model.word_embeddings for model in models),
            "body": nn.ModuleList(model.body for model in models),
            "head": nn.ModuleList(model.softmax for model in models),
        }

    def layer_groups(self) -> list[list[nn.Parameter]]:
        groups: list[list[nn.Parameter]] = [[] for _ in range(self.config.num_layers)]
        for model in self.models_by_direction().values():
            for layer, group in zip(model.body.layers, groups, strict=True):
                group += layer.parameters()
        return [[*self.modules_by_role()["embedding"].parameters()], *groups]

    def grad_clip_groups(self) -> list[list[nn.Parameter]]:
        return [[*model.parameters()] for model in self.language_models]

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize with weights scaled by their inputs and open forget gates."""
        for model in self.models_by_direction().values():
            for weight in (model.word_embeddings.weight, model.softmax.weight):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
            nn.init.zeros_(model.softmax.bias)
            model.body.init_weights(generator)

    def hidden_sizes(self) -> tuple[int, ...]:
        assert self.config.projection_size is not None
        return (len(self.language_models) * self.config.projection_size,)


def independent_lm_losses(
    model: TagLMModel, batch: Batch, recurrent_state: LSTMStates | None = None
) -> LossOutput:
    """Predict the next and the previous word, from the left and from the right, with two losses.

    The first half of the batch's rows are forward windows, the second half backward ones. The
    recurrent state holds the layers of all models, one model after the other.
    """
    num_layers = model.config.num_layers
    halves = dict(zip(DIRECTIONS, split_directions(batch), strict=True))
    losses: list[torch.Tensor] = []
    nats_by_direction: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}
    next_state: list[LSTMState] = []
    for number, (direction, language_model) in enumerate(model.models_by_direction().items()):
        half = halves[direction]
        state = None
        if recurrent_state is not None:
            state = recurrent_state[number * num_layers : (number + 1) * num_layers]
        top_BTP, state = language_model.top_layer(half.ids_BT, state)
        top_BTP = F.dropout(top_BTP, model.config.dropout, model.training)
        top_NP, targets_N = select_targets(top_BTP, half)
        nats = full_or_sampled_softmax_nats(language_model, top_NP, targets_N)
        count = len(targets_N)
        losses.append(nats / max(count, 1))
        nats_by_direction[direction] = nats.detach()
        counts[direction] = count
        next_state += state
    return LossOutput(torch.stack(losses).sum(), nats_by_direction, counts, tuple(next_state))


FAMILY = Trained(
    name="taglm",
    tokenizer_type="word",
    architecture_class=TagLMConfig,
    pretrain_class=BilmPretrainSettings,
    build=TagLMModel,
    batch_sampler=BidirectionalBpttBatches,
    objective=independent_lm_losses,
    predicts_next_token=True,
    score_texts=score_bidirectional_lm,
    vocab_parameters=(
        "language_models.*.word_embeddings.weight",
        "language_models.*.softmax.weight",
        "language_models.*.softmax.bias",
    ),
    defaults={
        "architecture": {
            "directions": "bidirectional",
            "num_layers": 1,
            "cell_to_projection_ratio": 4,
            "dropout": 0.0,
            "cell_clip": 3.0,
            "projection_clip": 3.0,
            "softmax_samples": 1000,
        },
        "pretrain": {"batch_size": 32, "seq_len": 16, "learning_rate": 0.003, "warmup_ratio": 0.02},
        "adapt": {
            "learning_rate": 0.001,
            "weight_decay": 0.0,
            "new_words": {"max_words": 10_000, "min_frequency": 2},
        },
        "evaluate": {"finetune": finetune_defaults(0.0003, 0.001, 0.004, 0.016, batch_size=32)},
    },
)
