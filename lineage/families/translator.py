"""The translation model of Ramachandran, Liu and Le 2017, sections 2.1 to 2.3.

The paper is "Unsupervised Pretraining for Sequence to Sequence Learning". Two language models of
one LSTM layer each give their embedding, LSTM and softmax to the first layers of an encoder and a
decoder. The layers above them and the attention over the encoder are not pretrained.

Shapes: B items, S source positions, T target positions, N rows, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import Checked, check_fraction, check_positive
from lineage.networks.base import empty_embedding
from lineage.networks.batch import Batch
from lineage.networks.layers.awd_lstm import WeightDropLSTM
from lineage.networks.layers.lstm import LSTMState
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.training.objectives import cross_entropy_nats, select_targets
from lineage.training.optimizers import check_stlr_settings

# Parts of the language models that each value of `pretrained` keeps; all parts by default.
PRETRAINED_SIDES = {"encoder": ("source",), "decoder": ("target",)}
PRETRAINED_PARTS = {"embeddings": ("embedding",), "no_softmax": ("embedding", "lstm")}


@dataclass(frozen=True, kw_only=True)
class TranslationSettings(Checked):
    """The translator, its training and its decoding; each ablation of the paper changes one line."""

    # Layers of the encoder, and of the decoder, including the pretrained one; 3 in the paper.
    num_layers: int = 2
    # The part of the language models that is kept; the rest is initialized at random.
    pretrained: Literal["both", "encoder", "decoder", "no_softmax", "embeddings"] = "both"
    # Keep training both language models, with the same weight as the translation.
    aux_lm_losses: bool = True
    residual: bool = True  # from the decoder's first layer to the softmax
    # The encoder layers that the decoder attends to.
    attention: Literal["first_and_top", "top"] = "first_and_top"
    epochs: int = 10
    batch_size: int = 16  # pairs
    learning_rate: float = 0.003
    cut_frac: float = 0.1  # share of the steps over which the learning rate rises
    ratio: float = 32.0  # highest learning rate over the lowest
    weight_decay: float = 0.0
    dropout: float = 0.1
    max_grad_norm: float = 1.0
    num_beams: int = 1  # 1 is greedy search
    max_new_tokens: int = 100  # with the end token; a longer translation or summary is cut

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_layers", "epochs", "batch_size", "num_beams", "max_new_tokens")
        check_stlr_settings(self)
        check_fraction(self, "dropout")

    @property
    def recipe(self) -> str:
        """The choices among the paper's ablations, joined by +."""
        parts: list[str] = [self.pretrained]
        if self.aux_lm_losses:
            parts.append("lm_losses")
        if self.residual:
            parts.append("residual")
        parts.append(self.attention)
        return "+".join(parts)


class LanguageModel(nn.Module):
    """A left-to-right language model: an embedding, one LSTM layer and a softmax."""

    def __init__(self, *, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = empty_embedding(vocab_size, hidden_size)
        self.lstm = WeightDropLSTM(hidden_size, hidden_size)
        self.softmax = nn.Linear(hidden_size, vocab_size)

    def run_lstm(
        self, ids_BT: torch.Tensor, state: LSTMState | None, *, dropout: float
    ) -> tuple[torch.Tensor, torch.Tensor, LSTMState]:
        """Return the embedding and the output, both (B, T, D), and the last state."""
        embedded_BTD = F.dropout(self.embedding(ids_BT), dropout, self.training)
        output_BTD, state = self.lstm(embedded_BTD, state)
        return embedded_BTD, output_BTD, state

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        return x_ND, self.softmax.weight, self.softmax.bias

    def loss(
        self, batch: Batch, state: LSTMState | None, *, dropout: float
    ) -> tuple[torch.Tensor, int, LSTMState]:
        """Return the summed loss in nats, the number of targets, and the detached state."""
        _, output_BTD, (h, c) = self.run_lstm(batch.ids_BT, state, dropout=dropout)
        top_BTD = F.dropout(output_BTD, dropout, self.training)
        top_ND, targets_N = select_targets(top_BTD, batch)
        nats = cross_entropy_nats(self.softmax_inputs(top_ND), targets_N)
        return nats, len(targets_N), (h.detach(), c.detach())

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the embedding from U(-0.1, 0.1), the rest from U(-1 / sqrt(D), 1 / sqrt(D))."""
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1, generator=generator)
        init_uniform([self.lstm, self.softmax], self.lstm.hidden_size, generator)


@dataclass(frozen=True)
class EncoderMemory:
    """The encoder states that the decoder attends to."""

    first_BSD: torch.Tensor
    top_BSD: torch.Tensor
    mask_BS: torch.Tensor

    def select_rows(self, indices_N: torch.Tensor) -> "EncoderMemory":
        return EncoderMemory(
            self.first_BSD[indices_N], self.top_BSD[indices_N], self.mask_BS[indices_N]
        )


class Translator(nn.Module):
    """An encoder and a decoder of `num_layers` LSTMs; the decoder starts from zeros."""

    def __init__(
        self, source_lm: LanguageModel, target_lm: LanguageModel, settings: TranslationSettings
    ) -> None:
        super().__init__()
        self.source_lm = source_lm
        self.target_lm = target_lm
        self.settings = settings
        D = source_lm.lstm.hidden_size
        num_attended = 2 if settings.attention == "first_and_top" else 1
        self.encoder = nn.ModuleList(WeightDropLSTM(D, D) for _ in range(settings.num_layers - 1))
        self.decoder = nn.ModuleList(WeightDropLSTM(D, D) for _ in range(settings.num_layers - 1))
        self.query = nn.Linear(D, D, bias=False)
        self.combine = nn.Linear((1 + num_attended) * D, D)

    def encode(self, ids_BS: torch.Tensor, mask_BS: torch.Tensor) -> EncoderMemory:
        """Return the encoder's first and top layer. Padding must be on the right."""
        _, first_BSD, _ = self.source_lm.run_lstm(ids_BS, None, dropout=self.settings.dropout)
        top_BSD, _ = self._run_upper_layers(self.encoder, first_BSD, [None] * len(self.encoder))
        return EncoderMemory(first_BSD, top_BSD, mask_BS)

    def decode(
        self, ids_BT: torch.Tensor, states: Sequence[LSTMState | None], memory: EncoderMemory
    ) -> tuple[torch.Tensor, list[LSTMState]]:
        """Return (B, T, V) logits of the next tokens and the last state of each layer.

        T = 1 is one decoding step. The attention weights come from the top layer alone (section
        2.3). The result is combined with the decoder's top state as in Luong et al. 2015, equation
        5. The residual is added before the softmax.
        """
        _, first_BTD, first_state = self.target_lm.run_lstm(
            ids_BT, states[0], dropout=self.settings.dropout
        )
        top_BTD, upper_states = self._run_upper_layers(self.decoder, first_BTD, states[1:])
        x_BTD = torch.tanh(self.combine(self._attend(top_BTD, memory)))
        x_BTD = F.dropout(x_BTD, self.settings.dropout, self.training)
        if self.settings.residual:
            x_BTD = x_BTD + first_BTD
        return self.target_lm.softmax(x_BTD), [first_state, *upper_states]

    def _attend(self, top_BTD: torch.Tensor, memory: EncoderMemory) -> torch.Tensor:
        scores_BTS = self.query(top_BTD) @ memory.top_BSD.transpose(1, 2)
        scores_BTS = scores_BTS.masked_fill(~memory.mask_BS[:, None], float("-inf"))
        weights_BTS = torch.softmax(scores_BTS, -1)
        layers = [memory.top_BSD]
        if self.settings.attention == "first_and_top":
            layers = [memory.first_BSD, memory.top_BSD]
        return torch.cat([top_BTD, *(weights_BTS @ layer_BSD for layer_BSD in layers)], -1)

    def initial_states(self) -> list[LSTMState | None]:
        return [None] * (1 + len(self.decoder))

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the parameters that no language model has."""
        modules = [self.encoder, self.decoder, self.query, self.combine]
        init_uniform(modules, self.source_lm.lstm.hidden_size, generator)

    def _run_upper_layers(
        self, layers: nn.ModuleList, x_BTD: torch.Tensor, states: Sequence[LSTMState | None]
    ) -> tuple[torch.Tensor, list[LSTMState]]:
        new_states = []
        for layer, state in zip(layers, states, strict=True):
            x_BTD, state = layer(F.dropout(x_BTD, self.settings.dropout, self.training), state)
            new_states.append(state)
        return x_BTD, new_states


def build_translator(
    pretrained: nn.Module,
    random_init: nn.Module,
    settings: TranslationSettings,
    *,
    generator: torch.Generator,
) -> Translator:
    """Build a translator from the language models `source` and `target` of two models.

    It takes over the parameters of `random_init`. Those that the settings name are replaced by the
    pretrained ones.
    """
    sides = PRETRAINED_SIDES.get(settings.pretrained, ("source", "target"))
    parts = PRETRAINED_PARTS.get(settings.pretrained, ("embedding", "lstm", "softmax"))
    prefixes = tuple(f"{side}.{part}." for side in sides for part in parts)
    kept = {
        name: value for name, value in pretrained.state_dict().items() if name.startswith(prefixes)
    }
    random_init.load_state_dict(kept, strict=False)
    source_lm = random_init.get_submodule("source")
    target_lm = random_init.get_submodule("target")
    assert isinstance(source_lm, LanguageModel)
    assert isinstance(target_lm, LanguageModel)
    model = Translator(source_lm, target_lm, settings)
    model.init_weights(generator)
    return model.to(source_lm.embedding.weight.device)


def init_uniform(
    modules: Sequence[nn.Module], hidden_size: int, generator: torch.Generator
) -> None:
    """Draw all parameters from U(-1 / sqrt(D), 1 / sqrt(D)), as torch's LSTM does."""
    bound = hidden_size**-0.5
    for module in modules:
        for parameter in module.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
