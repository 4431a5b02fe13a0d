"""ULMFiT: an AWD-LSTM language model that is adapted and tuned step by step (Howard and Ruder 2018, "Universal Language Model Fine-tuning").

The three steps and their techniques are open to every family here (`layer_decay`: discriminative rates; `cut_share`, `ratio`: slanted triangular
rates; `unfreeze_share`: gradual unfreezing). This file is the model that they were made for, and its classifier with concat pooling. Only here:
`adapt.new_words` (rows of the target's words), `tokenizer.direction` (backward models), `evaluate.finetune.bptt_window`, `pooled` (BPT3C), `inner_dropout`.
AWD-LSTM's own (Merity et al. 2018): `model.dropouts`, `activation_penalty` (AR), `change_penalty` (TAR); `pretrain.vary_length` and `nt_asgd`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_num_layers, check_positive
from lineage.models.base import Encoder, Family, candidate_sizes
from lineage.models.batch import Batch, gather_last, masked_mean
from lineage.models.layers.awd_lstm import AwdDropouts, AwdLSTM, LSTMStates
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.objectives import auxiliary_lm_loss, regularized_lm_loss
from lineage.training.samplers import BpttBatches
from lineage.training.sentence_scores import score_forward_lm
from lineage.training.settings import PretrainSettings


@dataclass(frozen=True)
class ULMFiTConfig:
    """The block `model`. `width` (of the words) and `hidden` (units between) are solved from the budget where they are not given."""

    num_layers: int
    hidden_to_embedding_ratio: float  # hidden units over width; 2.875 in the original
    dropouts: AwdDropouts
    activation_penalty: float  # alpha: on the dropped outputs of the last layer
    temporal_activation_penalty: (
        float  # beta: on how its outputs change from one position to the next
    )
    classifier_hidden_size: int  # units of the classifier's hidden layer
    embedding_size: int | None = None
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(
            self,
            "num_layers",
            "hidden_to_embedding_ratio",
            "classifier_hidden_size",
            "embedding_size",
            "hidden_size",
        )
        check_num_layers(self, "num_layers")
        if self.activation_penalty < 0 or self.temporal_activation_penalty < 0:
            raise ValueError("activation_penalty and change_penalty are at least 0")

    def candidates(self) -> Iterator[list["ULMFiTConfig"]]:
        """Configurations of growing width."""
        return candidate_sizes(
            self, "embedding_size", "hidden_size", ratio=self.hidden_to_embedding_ratio
        )


@dataclass(frozen=True)
class UlmfitPretrainSettings(PretrainSettings):
    """The block `pretrain`."""

    variable_bptt: bool  # windows of about `length`, sometimes of half of it, with the rate in proportion (Merity et al. 2018, section 4.1)


def build_batch_sampler(
    tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: UlmfitPretrainSettings, *, seed: int
) -> BpttBatches:
    """Build BPTT batches, with AWD-LSTM's variable lengths if requested."""
    return BpttBatches(tokens, tokenizer, settings, seed=seed, variable_bptt=settings.variable_bptt)


class ULMFiTModel(Encoder):
    """The AWD-LSTM, and a softmax that is its table."""

    word_pooling = "last"  # of texts from their ends too: positions are in the order of reading

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
        """Each layer's output, the last one dropped for the softmax, and the state to go on from."""
        return self.body(ids_BT, state)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding and each layer's output, from a cold state: (B, T, E), (B, T, H) ..., (B, T, E)."""
        return tuple(self.body(batch.ids_BT, None)[0])

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Last-layer vectors, the tied (V, E), the bias."""
        return x_ND, self.body.embedding_weight, self.softmax_bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """(B, 3 E): the text's last state, and the maximum and the mean over real positions (section 3.3, concat pooling)."""
        return concat_pool(layers[-1], batch.mask_BT)

    def pool_windows(
        self, batch: Batch, *, window: int, pooled_positions: int | None
    ) -> torch.Tensor:
        """`pool` of a long text: back-propagation through time for text classification (BPT3C, section 3.3).

        The state runs over the whole text and has no history beyond its window. Pooled, and so learned from, are the windows that begin in an item's
        last `pooled` positions, as with fastai's max_len.
        """
        T, device = batch.mask_BT.shape[1], batch.mask_BT.device
        begins_T = torch.arange(T, device=device) // window * window
        lengths_B1 = batch.mask_BT.sum(1, keepdim=True)
        where_BT = batch.mask_BT & (lengths_B1 - begins_T <= (pooled_positions or T))
        state, tops = None, []
        for begin in range(0, T, window):
            some = slice(begin, begin + window)
            with contextlib.nullcontext() if where_BT[:, some].any() else torch.no_grad():
                outputs, _, state = self.body(batch.ids_BT[:, some], state)
            tops.append(outputs[-1])
        return concat_pool(torch.cat(tops, 1), where_BT)

    def build_head(
        self, num_classes: int, *, dropout: float, hidden_dropout: float | None = None
    ) -> nn.Module:
        """The classifier over the pooled text."""
        assert self.config.embedding_size is not None
        inner = dropout if hidden_dropout is None else hidden_dropout
        return PoolingClassifier(
            3 * self.config.embedding_size,
            self.config.classifier_hidden_size,
            num_classes,
            dropouts=(dropout, inner),
        )

    def init_head(self, head: nn.Module, generator: torch.Generator) -> None:
        """Uniform within one over the root of the inputs, as torch begins a linear layer and fastai leaves it."""
        for part in head.modules():
            if isinstance(part, nn.Linear):
                for values in part.parameters():
                    nn.init.uniform_(
                        values,
                        -(part.in_features**-0.5),
                        part.in_features**-0.5,
                        generator=generator,
                    )

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role; the table is told apart from the layers."""
        return {
            "embedding": nn.ParameterList([self.body.embedding_weight]),
            "body": self.body.layers,
            "head": nn.ParameterList([self.softmax_bias]),
        }

    def tied_parameters(self) -> list[nn.Parameter]:
        """The table is the softmax."""
        return [self.body.embedding_weight]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The table, then each LSTM layer."""
        return [
            [self.body.embedding_weight],
            *([*layer.parameters()] for layer in self.body.layers),
        ]

    def init_weights(self, generator: torch.Generator) -> None:
        """As in AWD-LSTM's own code."""
        self.body.init_weights(generator)
        nn.init.zeros_(self.softmax_bias)

    def hidden_sizes(self) -> tuple[int, ...]:
        """E for the words, H between, E at the end."""
        return self.body.layer_sizes


def concat_pool(x_BTE: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """(B, 3 E): the last of the positions that are True, the maximum and the mean over them."""
    highest = x_BTE.masked_fill(~mask_BT[..., None], float("-inf")).amax(1)
    return torch.cat([gather_last(x_BTE, mask_BT), highest, masked_mean(x_BTE, mask_BT)], -1)


class PoolingClassifier(nn.Module):
    """Batch norm, dropout, linear, ReLU, and the same again (section 3.3; fastai's PoolingLinearClassifier, whose linear layers have no bias).

    `dropouts` are of the pooled text, and of the hidden layer's `inner` units (fastai's ps).
    The statistics that the norms have after tuning are taken anew over the training items (`lineage.evaluation.finetuning.settle`).
    """

    def __init__(
        self, in_features: int, hidden_size: int, num_classes: int, *, dropouts: tuple[float, float]
    ) -> None:
        super().__init__()
        self.dropouts = dropouts
        self.input_norm, self.hidden_layer = (
            nn.BatchNorm1d(in_features),
            nn.Linear(in_features, hidden_size, bias=False),
        )
        self.hidden_norm, self.output_layer = (
            nn.BatchNorm1d(hidden_size),
            nn.Linear(hidden_size, num_classes, bias=False),
        )

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """(B, inputs) -> (B, classes)."""
        x_BD = F.relu(
            self.hidden_layer(
                F.dropout(_batch_norm(self.input_norm, x_BD), self.dropouts[0], self.training)
            )
        )
        return self.output_layer(
            F.dropout(_batch_norm(self.hidden_norm, x_BD), self.dropouts[1], self.training)
        )


def _batch_norm(norm: nn.BatchNorm1d, x_BD: torch.Tensor) -> torch.Tensor:
    """Batch norm; a batch of a single item, which has no variance, by the running one."""
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


FAMILY = Family(
    name="ulmfit",
    input_unit="words",
    contextualizer="AWD-LSTM",
    direction="left to right",
    objective_description="next word",
    transfer_description="whole network, concat pooling",
    tokenizer_type="word",
    architecture_class=ULMFiTConfig,
    pretrain_class=UlmfitPretrainSettings,
    build=ULMFiTModel,
    batch_sampler=build_batch_sampler,
    objective=regularized_lm_loss,
    auxiliary_loss=auxiliary_lm_loss,
    score_texts=score_forward_lm,
    vocab_parameters=("body.table", "softmax_bias"),
    unidirectional=True,
)
