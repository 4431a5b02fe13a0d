"""ULMFiT: an AWD-LSTM language model that is adapted and tuned step by step (Howard and Ruder 2018, "Universal Language Model Fine-tuning").

The three steps and their techniques are open to every family here (`layer_decay`: discriminative rates; `cut_share`, `ratio`: slanted triangular
rates; `unfreeze_share`: gradual unfreezing). This file is the model that they were made for, and its classifier with concat pooling. Only here:
`adapt.new_words` (rows of the target's words), `tokenizer.direction` (backward models), `evaluate.tuned.window`, `pooled` (BPT3C), `inner_dropout`.
AWD-LSTM's own (Merity et al. 2018): `model.dropouts`, `activation_penalty` (AR), `change_penalty` (TAR); `pretrain.vary_length` and `nt_asgd`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lineage.batch import Batch, at_last, mean_over
from lineage.family import Encoder, Family, growing
from lineage.layers.awd import AwdLSTM, Dropouts, State
from lineage.layers.softmax import ReadOut
from lineage.records import few, positive
from lineage.training.objectives import regularised_lm, texts_lm
from lineage.training.sentences import forward_scores
from lineage.training.streams import Lanes
from lineage.training.train import Training


@dataclass(frozen=True)
class Config:
    """The block `model`. `width` (of the words) and `hidden` (units between) are solved from the budget where they are not given."""

    layers: int
    hidden_ratio: float  # hidden units over width; 2.875 in the original
    dropouts: Dropouts
    activation_penalty: float  # alpha: on the dropped outputs of the last layer
    change_penalty: float  # beta: on how its outputs change from one position to the next
    head: int  # units of the classifier's hidden layer
    width: int | None = None
    hidden: int | None = None

    def __post_init__(self) -> None:
        positive(self, "layers", "hidden_ratio", "head", "width", "hidden")
        few(self, "layers")
        if self.activation_penalty < 0 or self.change_penalty < 0:
            raise ValueError("activation_penalty and change_penalty are at least 0")

    def candidates(self) -> Iterator[list["Config"]]:
        """Configurations of growing width."""
        return growing(self, "width", "hidden", ratio=self.hidden_ratio)


@dataclass(frozen=True)
class RecurrentTraining(Training):
    """The block `pretrain`."""

    vary_length: bool  # windows of about `length`, sometimes of half of it, with the rate in proportion (Merity et al. 2018, section 4.1)


class Model(Encoder):
    """The AWD-LSTM, and a softmax that is its table."""

    read_word = "last"  # of texts from their ends too: positions are in the order of reading

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        super().__init__()
        assert config.width is not None and config.hidden is not None, "widths are solved before a model is built"
        self.config = config
        self.body = AwdLSTM(
            vocabulary=vocabulary, width=config.width, hidden=config.hidden, layers=config.layers, dropouts=config.dropouts
        )  # fmt: skip
        self.softmax_bias = nn.Parameter(torch.empty(vocabulary))

    def run(self, ids_BT: torch.Tensor, state: State | None) -> tuple[list[torch.Tensor], torch.Tensor, State]:
        """Each layer's output, the last one dropped for the softmax, and the state to go on from."""
        return self.body(ids_BT, state)

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding and each layer's output, from a cold state: (B, T, E), (B, T, H) ..., (B, T, E)."""
        return tuple(self.body(batch.ids_BT, None)[0])

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """Last-layer vectors, the tied (V, E), the bias."""
        return x_ND, self.body.table, self.softmax_bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """(B, 3 E): the text's last state, and the maximum and the mean over real positions (section 3.3, concat pooling)."""
        return concat_pool(layers[-1], batch.mask_BT)

    def pool_windows(self, batch: Batch, *, window: int, pooled: int | None) -> torch.Tensor:
        """`pool` of a long text: back-propagation through time for text classification (BPT3C, section 3.3).

        The state runs over the whole text and has no history beyond its window. Pooled, and so learned from, are the windows that begin in an item's
        last `pooled` positions, as with fastai's max_len.
        """
        T, device = batch.mask_BT.shape[1], batch.mask_BT.device
        begins_T = torch.arange(T, device=device) // window * window
        lengths_B1 = batch.mask_BT.sum(1, keepdim=True)
        where_BT = batch.mask_BT & (lengths_B1 - begins_T <= (pooled or T))
        state, tops = None, []
        for begin in range(0, T, window):
            some = slice(begin, begin + window)
            with contextlib.nullcontext() if where_BT[:, some].any() else torch.no_grad():
                outputs, _, state = self.body(batch.ids_BT[:, some], state)
            tops.append(outputs[-1])
        return concat_pool(torch.cat(tops, 1), where_BT)

    def head(self, classes: int, *, dropout: float, inner_dropout: float | None = None) -> nn.Module:
        """The classifier over the pooled text."""
        assert self.config.width is not None
        inner = dropout if inner_dropout is None else inner_dropout
        return PoolingHead(3 * self.config.width, self.config.head, classes, dropouts=(dropout, inner))

    def begin_head(self, head: nn.Module, generator: torch.Generator) -> None:
        """Uniform within one over the root of the inputs, as torch begins a linear layer and fastai leaves it."""
        for part in head.modules():
            if isinstance(part, nn.Linear):
                for values in part.parameters():
                    nn.init.uniform_(values, -(part.in_features**-0.5), part.in_features**-0.5, generator=generator)

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role; the table is told apart from the layers."""
        return {
            "embedding": nn.ParameterList([self.body.table]),
            "body": self.body.layers,
            "head": nn.ParameterList([self.softmax_bias]),
        }

    def tied(self) -> list[nn.Parameter]:
        """The table is the softmax."""
        return [self.body.table]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The table, then each LSTM layer."""
        return [[self.body.table], *([*layer.parameters()] for layer in self.body.layers)]

    def initialise(self, generator: torch.Generator) -> None:
        """As in AWD-LSTM's own code."""
        self.body.initialise(generator)
        nn.init.zeros_(self.softmax_bias)

    def widths(self) -> tuple[int, ...]:
        """E for the words, H between, E at the end."""
        return self.body.sizes


def concat_pool(x_BTE: torch.Tensor, where_BT: torch.Tensor) -> torch.Tensor:
    """(B, 3 E): the last of the positions that are True, the maximum and the mean over them."""
    highest = x_BTE.masked_fill(~where_BT[..., None], float("-inf")).amax(1)
    return torch.cat([at_last(x_BTE, where_BT), highest, mean_over(x_BTE, where_BT)], -1)


class PoolingHead(nn.Module):
    """Batch norm, dropout, linear, ReLU, and the same again (section 3.3; fastai's PoolingLinearClassifier, whose linear layers have no bias).

    `dropouts` are of the pooled text, and of the hidden layer's `inner` units (fastai's ps).
    The statistics that the norms have after tuning are taken anew over the training items (`lineage.transfer.tuning.settle`).
    """

    def __init__(self, inputs: int, inner: int, classes: int, *, dropouts: tuple[float, float]) -> None:
        super().__init__()
        self.dropouts = dropouts
        self.first_norm, self.first = nn.BatchNorm1d(inputs), nn.Linear(inputs, inner, bias=False)
        self.second_norm, self.second = nn.BatchNorm1d(inner), nn.Linear(inner, classes, bias=False)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """(B, inputs) -> (B, classes)."""
        x_BD = F.relu(self.first(F.dropout(_normed(self.first_norm, x_BD), self.dropouts[0], self.training)))
        return self.second(F.dropout(_normed(self.second_norm, x_BD), self.dropouts[1], self.training))


def _normed(norm: nn.BatchNorm1d, x_BD: torch.Tensor) -> torch.Tensor:
    """Batch norm; a batch of a single item, which has no variance, by the running one."""
    if len(x_BD) > 1:
        return norm(x_BD)
    return F.batch_norm(x_BD, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps)


FAMILY = Family(
    name="ulmfit",
    unit="words",
    extractor="AWD-LSTM",
    direction="left to right",
    objective_text="next word",
    transfer_text="whole network, concat pooling",
    tokenizer="word",
    model=Config,
    pretrain=RecurrentTraining,
    build=Model,
    stream=Lanes,
    objective=regularised_lm,
    auxiliary=texts_lm,
    score=forward_scores,
    word_rows=("body.table", "softmax_bias"),
    one_way=True,
)
