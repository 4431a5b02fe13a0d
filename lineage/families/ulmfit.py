"""ULMFiT: an AWD-LSTM language model that is adapted and then fine-tuned.

Howard and Ruder 2018, "Universal Language Model Fine-tuning for Text Classification". This file
holds the model and its classifier with concat pooling; `layer_lr_decay`, `stlr` and
`gradual_unfreezing` are available to every family. From AWD-LSTM (Merity et al. 2018) come
`dropouts`, `activation_penalty` (AR) and `temporal_activation_penalty` (TAR), and
`pretrain.variable_bptt` and `nt_asgd`.

Shapes: B items, T positions, V vocabulary, E embedding, H units, N predicted positions, D inputs of
the classifier.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_num_layers, check_positive
from lineage.networks.base import Encoder, Trained, candidate_sizes
from lineage.networks.batch import Batch, gather_last, masked_mean
from lineage.networks.layers.awd_lstm import AwdDropouts, AwdLSTM
from lineage.networks.layers.lstm import LSTMStates
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.objectives import auxiliary_lm_loss, regularized_lm_loss
from lineage.training.samplers import BpttBatches
from lineage.training.sentence_scores import score_forward_lm
from lineage.training.settings import PretrainSettings


@dataclass(frozen=True)
class ULMFiTConfig:
    """The block `architecture`."""

    num_layers: int
    hidden_to_embedding_ratio: float  # hidden_size / embedding_size; 2.875 in the original
    dropouts: AwdDropouts
    activation_penalty: float  # alpha: on the last layer's outputs after dropout
    temporal_activation_penalty: float  # beta: on the change of outputs between positions
    classifier_hidden_size: int
    embedding_size: int | None = None
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "num_layers", "hidden_to_embedding_ratio", "classifier_hidden_size")
        check_positive(self, "embedding_size", "hidden_size")
        check_num_layers(self, "num_layers")
        if self.activation_penalty < 0 or self.temporal_activation_penalty < 0:
            raise ValueError(
                "activation_penalty and temporal_activation_penalty must be at least 0"
            )

    def candidates(self) -> Iterator[list["ULMFiTConfig"]]:
        return candidate_sizes(
            self, "embedding_size", "hidden_size", ratio=self.hidden_to_embedding_ratio
        )


@dataclass(frozen=True)
class UlmfitPretrainSettings(PretrainSettings):
    """The block `pretrain`."""

    # Windows of about `seq_len`, sometimes of half of it, with the learning rate in proportion
    # (Merity et al. 2018, section 4.1).
    variable_bptt: bool


class ULMFiTModel(Encoder):
    """The AWD-LSTM, and a softmax tied to its table."""

    word_pooling = "last"  # positions are in reading order, also of texts read backward

    def __init__(self, config: ULMFiTConfig, *, vocab_size: int) -> None:
        super().__init__()
        assert config.embedding_size is not None and config.hidden_size is not None, (
            "widths are solved before a model is built"
        )
        self.config = config
        self.body = AwdLSTM(
            vocab_size=vocab_size,
            embedding_size=config.embedding_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            dropouts=config.dropouts,
        )
        self.softmax_bias = nn.Parameter(torch.empty(vocab_size))

    def run_layers(
        self, ids_BT: torch.Tensor, state: LSTMStates | None
    ) -> tuple[list[torch.Tensor], torch.Tensor, LSTMStates]:
        """Return each layer's output, the softmax's input after dropout, and the next state."""
        return self.body(ids_BT, state)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the embedding and each layer's output: (B, T, E), (B, T, H) ..., (B, T, E)."""
        outputs, _, _ = self.body(batch.ids_BT, None)
        return tuple(outputs)

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        return x_ND, self.body.embedding_weight, self.softmax_bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """Return (B, 3 E): last state, maximum and mean over real positions (section 3.3)."""
        return concat_pool(layers[-1], batch.mask_BT)

    def pool_windows(
        self, batch: Batch, *, window: int, pooled_positions: int | None
    ) -> torch.Tensor:
        """Pool a long text with backpropagation through time (BPT3C, section 3.3).

        Gradients stay within a window. Only windows that begin in an item's last `pooled_positions`
        positions are pooled, and so trained, as with fastai's max_len.
        """
        T = batch.mask_BT.shape[1]
        window_starts_T = torch.arange(T, device=batch.mask_BT.device) // window * window
        lengths_B1 = batch.mask_BT.sum(1, keepdim=True)
        pooled_BT = batch.mask_BT & (lengths_B1 - window_starts_T <= (pooled_positions or T))
        state = None
        top_outputs = []
        for start in range(0, T, window):
            positions = slice(start, start + window)
            trained = bool(pooled_BT[:, positions].any())
            with contextlib.nullcontext() if trained else torch.no_grad():
                outputs, _, state = self.body(batch.ids_BT[:, positions], state)
            top_outputs.append(outputs[-1])
        return concat_pool(torch.cat(top_outputs, 1), pooled_BT)

    def build_head(
        self, num_classes: int, *, dropout: float, hidden_dropout: float | None = None
    ) -> nn.Module:
        assert self.config.embedding_size is not None
        return PoolingClassifier(
            3 * self.config.embedding_size,
            self.config.classifier_hidden_size,
            num_classes,
            dropouts=(dropout, dropout if hidden_dropout is None else hidden_dropout),
        )

    def init_head(self, head: nn.Module, generator: torch.Generator) -> None:
        """Initialize uniformly within 1 / sqrt(inputs), torch's default, which fastai keeps."""
        for part in head.modules():
            if isinstance(part, nn.Linear):
                bound = part.in_features**-0.5
                for parameter in part.parameters():
                    nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def modules_by_role(self) -> dict[str, nn.Module]:
        return {
            "embedding": nn.ParameterList([self.body.embedding_weight]),
            "body": self.body.layers,
            "head": nn.ParameterList([self.softmax_bias]),
        }

    def tied_parameters(self) -> list[nn.Parameter]:
        return [self.body.embedding_weight]

    def init_weights(self, generator: torch.Generator) -> None:
        self.body.init_weights(generator)
        nn.init.zeros_(self.softmax_bias)

    def hidden_sizes(self) -> tuple[int, ...]:
        return self.body.layer_sizes


def concat_pool(x_BTE: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return (B, 3 E): last, maximum and mean over the positions where the mask is True."""
    maximum_BE = x_BTE.masked_fill(~mask_BT[..., None], float("-inf")).amax(1)
    return torch.cat([gather_last(x_BTE, mask_BT), maximum_BE, masked_mean(x_BTE, mask_BT)], -1)


class PoolingClassifier(nn.Module):
    """Batch norm, dropout, linear, ReLU, then batch norm, dropout, linear.

    Section 3.3; fastai's PoolingLinearClassifier, whose linear layers have no bias. `dropouts` are
    for the pooled text and for the hidden layer (fastai's ps).
    """

    def __init__(
        self, in_features: int, hidden_size: int, num_classes: int, *, dropouts: tuple[float, float]
    ) -> None:
        super().__init__()
        self.dropouts = dropouts
        self.input_norm = nn.BatchNorm1d(in_features)
        self.hidden_layer = nn.Linear(in_features, hidden_size, bias=False)
        self.hidden_norm = nn.BatchNorm1d(hidden_size)
        self.output_layer = nn.Linear(hidden_size, num_classes, bias=False)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        input_dropout, hidden_dropout = self.dropouts
        x_BD = F.dropout(_batch_norm(self.input_norm, x_BD), input_dropout, self.training)
        x_BD = F.relu(self.hidden_layer(x_BD))
        x_BD = F.dropout(_batch_norm(self.hidden_norm, x_BD), hidden_dropout, self.training)
        return self.output_layer(x_BD)


def _batch_norm(norm: nn.BatchNorm1d, x_BD: torch.Tensor) -> torch.Tensor:
    """Apply batch norm; a single item has no variance, so it uses the running statistics."""
    if len(x_BD) > 1:
        return norm(x_BD)
    return F.batch_norm(
        x_BD,
        norm.running_mean,
        norm.running_var,
        norm.weight,
        norm.bias,
        training=False,
        eps=norm.eps,
    )


def build_batch_sampler(
    tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: UlmfitPretrainSettings, *, seed: int
) -> BpttBatches:
    return BpttBatches(tokens, tokenizer, settings, seed=seed, variable_bptt=settings.variable_bptt)


FAMILY = Trained(
    name="ulmfit",
    tokenizer_type="word",
    architecture_class=ULMFiTConfig,
    pretrain_class=UlmfitPretrainSettings,
    build=ULMFiTModel,
    batch_sampler=build_batch_sampler,
    objective=regularized_lm_loss,
    predicts_next_token=True,
    auxiliary_loss=auxiliary_lm_loss,
    score_texts=score_forward_lm,
    vocab_parameters=("body.embedding_weight", "softmax_bias"),
    supports_windows=True,
    defaults={
        "architecture": {
            "num_layers": 3,
            "hidden_to_embedding_ratio": 2.875,
            "dropouts": {
                "embedding": 0.0,
                "input": 0.0,
                "weight": 0.0,
                "hidden": 0.0,
                "output": 0.0,
            },
            "activation_penalty": 2.0,
            "temporal_activation_penalty": 1.0,
            "classifier_hidden_size": 50,
        },
        "pretrain": {
            "batch_size": 32,
            "seq_len": 16,
            "learning_rate": 0.004,
            "weight_decay": 0.01,
            "betas": [0.8, 0.99],
            "variable_bptt": True,
        },
        "adapt": {"learning_rate": 0.001, "new_words": {"max_words": 10_000, "min_frequency": 2}},
        "evaluate": {
            "finetune": {
                "learning_rate": 0.001,
                "trials": [
                    {"learning_rate": 0.001},
                    {"learning_rate": 0.004},
                    {"learning_rate": 0.016},
                    # Half of the paper's dropouts, with which fastai fine-tunes. Four trials in
                    # all, like the other families.
                    {"learning_rate": 0.004, "body_dropout": 0.25},
                ],
                "word_layer_norm": True,
            }
        },
    },
)
