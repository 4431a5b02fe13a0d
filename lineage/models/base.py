"""The seam between a family and everything else: what a system is made of, and what it can be asked.

A family is one file in `lineage/families`: a Config, a Model and `FAMILY = Family(...)`. The records read side by side are the
comparison: the report prints its table of mechanisms from them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F

from lineage.models.batch import Batch
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.tokenizers.tokenizer import TokenizerType

MIN_ROWS_PER_LOOKUP = 4  # a table with fewer rows for each that is looked up has a dense gradient, which is as fast there as a sparse one


class Encoder(nn.Module):
    """A model that turns a batch into one tensor a layer. Shapes: B items, T positions, D_l units of layer l."""

    handles_oov: bool = False  # whether it reads the bytes of a word that its vocabulary lacks
    word_pooling: str = "mean"  # which of its pieces gives a word's vector: mean | last | first; of one way of reading the one that has read all of it

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """(B, T, D_l) a layer, bottom to top, from a cold state; a real position never depends on padding."""
        raise NotImplementedError

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """(B, D): the vector of the whole text that fine-tuning reads."""
        raise NotImplementedError

    def pool_windows(
        self, batch: Batch, *, window: int, pooled_positions: int | None
    ) -> torch.Tensor:
        """`pool` of a text that is read from a cold state in windows, of which those in its last `pooled` positions are learned from."""
        raise NotImplementedError

    def build_head(
        self, num_classes: int, *, dropout: float, hidden_dropout: float | None = None
    ) -> nn.Module:
        """What reads the vector of the text in fine-tuning: (B, D) -> (B, classes); a hidden layer, where it has one, may have its own dropout."""
        return build_linear_head(self.hidden_sizes()[-1], num_classes, dropout=dropout)

    def init_head(self, head: nn.Module, generator: torch.Generator) -> None:
        """Give what reads the text in fine-tuning its starting values: normal ones of 0.02, as GPT and BERT have it."""
        for part in head.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02, generator=generator)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """What the softmax reads: these (N, D) top vectors, or what it makes of them; its weights, (V, D); its bias, (V,) or None."""
        raise NotImplementedError

    def logits(self, x_ND: torch.Tensor) -> torch.Tensor:
        """(N, V) of top vectors, before the softmax."""
        return F.linear(*self.softmax_inputs(x_ND))

    def modules_by_role(self) -> dict[str, nn.Module]:
        """The model's modules by role: embedding, characters, body, pooler, head. Only `body` counts against the budget."""
        raise NotImplementedError

    def embedding_matrices(self) -> list[nn.Parameter]:
        """The matrices of the embedding: of words or pieces, n-grams, positions, segments; none where words are read by their characters alone."""
        return [
            one
            for one in self.modules_by_role().get("embedding", nn.Module()).parameters()
            if one.dim() == 2
        ]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The parameters that downstream use needs, in groups from bottom to top, for discriminative rates and unfreezing."""
        raise NotImplementedError

    def tied_parameters(self) -> list[nn.Parameter]:
        """Parameters of the layer groups that are also a head of pretraining."""
        return []

    def grad_clip_groups(self) -> list[list[nn.Parameter]]:
        """The sets of parameters that are trained as if each were alone: the norms of their gradients are clipped apart."""
        return [[*self.parameters()]]

    def init_weights(self, generator: torch.Generator) -> None:
        """Give every parameter its starting value."""
        raise NotImplementedError

    def hidden_sizes(self) -> tuple[int, ...]:
        """D_l, a number a layer."""
        raise NotImplementedError

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """As torch's own, which from the meta device imports a package of algebra first, for shapes that are not known yet: half a second."""
        return self._apply(
            lambda x: torch.empty(x.shape, dtype=x.dtype, device=device), recurse=recurse
        )


def build_linear_head(in_features: int, num_classes: int, *, dropout: float) -> nn.Module:
    """Dropout and a linear layer."""
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(in_features, num_classes))


def empty_embedding(
    num_embeddings: int, embedding_dim: int, *, padding_idx: int | None = None
) -> nn.Embedding:
    """A table without starting values, which `initialise` gives: drawing them twice costs time, and on the meta device seconds of imports."""
    return nn.Embedding.from_pretrained(
        torch.empty(num_embeddings, embedding_dim), freeze=False, padding_idx=padding_idx
    )


def root_mean_square(weight: torch.Tensor) -> float:
    """The root mean square of its numbers."""
    return float(weight.detach().double().square().mean().sqrt())


def rescale_embeddings(model: Encoder, reference: Encoder) -> Encoder:
    """Scale the tables of a model to the size of those of another one of its make; one of zeros alone (RoBERTa's segments) stays as it is."""
    for own, like in zip(model.embedding_matrices(), reference.embedding_matrices(), strict=True):
        own.data.mul_(root_mean_square(like) / (root_mean_square(own) or 1.0))
    return model


def embed(weight_VD: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(..., D): the table's rows. Where they are few on a CPU, the gradient is sparse, of these rows alone: see `lineage.training.optimizers`.

    On a GPU it is always dense: to know how many rows differ would be to wait for it.
    """
    few = weight_VD.device.type == "cpu" and MIN_ROWS_PER_LOOKUP * ids.numel() <= len(weight_VD)
    return F.embedding(ids, weight_VD, sparse=few)


def candidate_sizes(
    config: Any, width_field: str, inner_field: str, *, ratio: float, step: int = 2
) -> Iterator[list[Any]]:
    """The `candidates` of a Config: of growing `width`, first with `ratio` times as many `inner` units, then with some fewer or more.

    Both are names of its fields; one that was given stays as it is.
    """
    widths, units = getattr(config, width_field), getattr(config, inner_field)
    for percent in (100, 95, 105, 90, 110, 85, 115, 80, 120, 75, 125):
        some = [widths] if widths else range(step, 2049, step)
        yield [
            replace(
                config,
                **{width_field: w, inner_field: units or max(1, round(ratio * w * percent / 100))},
            )
            for w in some
        ]


def with_dropout(architecture: Any, dropout: float | dict[str, float] | None) -> Any:
    """The record of a block `model` with other dropouts; None leaves it as it is. Raises ValueError where it has none of this kind."""
    if dropout is None:
        return architecture
    if isinstance(dropout, dict) and hasattr(architecture, "dropouts"):
        names = sorted(vars(architecture.dropouts))
        if strange := sorted(dropout.keys() - set(names)):
            raise ValueError(
                f"there is no dropout '{strange[0]}'; the model has {', '.join(names)}"
            )
        return replace(architecture, dropouts=replace(architecture.dropouts, **dropout))
    if isinstance(dropout, dict) or not hasattr(architecture, "dropout"):
        asked = (
            "several, and the model has "
            if isinstance(dropout, dict)
            else "one, and the model has "
        )
        raise ValueError(
            asked
            + (
                "several; give them by name"
                if hasattr(architecture, "dropouts")
                else "one"
                if hasattr(architecture, "dropout")
                else "none"
            )
        )
    return replace(architecture, dropout=dropout)


@dataclass(frozen=True)
class LossOutput:
    """What an objective gives back for a batch. A name of `nats` decides what held text is reported in (`lineage.training.objectives.measures`):
    bits per byte for causal, forward and backward, a share right for X_right, which counts and is no nats, and X_nats a target for any other X.
    """

    loss: torch.Tensor  # one number, with its gradient
    nats: dict[str, torch.Tensor]  # summed over the targets
    target_counts: dict[str, int]  # how many, by the same names
    recurrent_state: Any = None  # what the next batch goes on from, detached: a tuple of tensors a layer, such as (output, cell), in a tuple; or nothing


@dataclass(frozen=True)
class Family:
    """One way of pretraining. `unit` to `transfer_text` are the family's row in the table of mechanisms."""

    name: str
    input_unit: str
    contextualizer: str
    direction: str
    objective_description: str
    transfer_description: str
    tokenizer_type: TokenizerType
    architecture_class: type[
        Any
    ]  # the record of the block `model`; its `candidates()`, lists of growing bodies, are what `training.budget.sized` chooses from
    pretrain_class: type[Any]  # the record of the block `pretrain`
    build: Callable[..., Encoder]  # (config, vocab_size=) -> Encoder, parameters uninitialised
    # A family that the one loop trains has a stream and an objective; one that another way trains has `fit`.
    batch_sampler: Callable[..., Any] | None = None  # (tokens, reader, settings, seed=) -> Stream
    objective: Callable[..., LossOutput] | None = None  # (model, batch, carry) -> LossOut
    auxiliary_loss: Callable[..., torch.Tensor] | None = (
        None  # (model, top_BTD, batch) -> its own loss on a task's texts, in fine-tuning (`lm_weight`)
    )
    score_texts: Callable[..., Any] | None = (
        None  # (model, reader, texts, limit=) -> (N, 2) nats and pieces (training.sentences)
    )
    fit_static: Callable[..., None] | None = (
        None  # (model, text, reader, settings, seed=, report=), see lineage.models.static
    )
    uses_cooccurrence_counts: bool = False  # `fit` counts its text, and a text that is read again has no other counts: it is read once at most, of all passes
    vocab_parameters: tuple[
        str, ...
    ] = ()  # parameters with a row a word, the table and what is tied to it: new words of a target can join them
    unidirectional: bool = False  # reads words in one direction with a state: texts may be read from their ends, and in windows
    pools_last_state: bool = False  # `pool` gives the state after the last word; `linear_gain` (Dai and Le 2015) may learn from those before it, too
    build_translator: Callable[..., Any] | None = (
        None  # (trained, twin, settings, generator=) -> lineage.evaluation.translator.Translator
    )
    describe: Callable[..., dict[str, str]] | None = (
        None  # (model, pretrain) -> the texts that a variant's switches make other ones
    )
    load_pretrained: Callable[..., tuple[Any, Encoder]] | None = (
        None  # (folder, config) -> config and model of what others trained: it is not trained here
    )
    lacks_lm_head: Callable[..., bool] | None = (
        None  # (config) -> whether this model is without the head of its language model
    )

    def missing_keys(self, config: Any) -> list[str]:
        """The keys of a block `model` that have no value yet, and without which there is no model; `lineage.training.budget.sized` solves widths."""
        if self.fit_static is not None:
            return []
        if self.load_pretrained is not None:
            return ["about"] if config.checkpoint_info is None else []
        first = next(config.candidates())
        return (
            []
            if config in first
            else [
                name
                for name, value in vars(config).items()
                if value is None and getattr(first[0], name) is not None
            ]
        )

    def build_meta_model(self, config: Any) -> Encoder | None:
        """A model of this config without numbers, of any width where that is open; none of a public one, of which its folder alone tells."""
        if self.load_pretrained is not None:
            return None
        with torch.device("meta"):
            return self.build(
                config if self.fit_static is not None else next(config.candidates())[0],
                vocab_size=1000,
            )

    def unsupported_reason(self, kind: str, config: Any) -> str:
        """Why this family, or a model of this config, has no answer to a kind of task; nothing where it has one."""
        if kind == "minimal_pairs" and (
            self.score_texts is None
            or (self.lacks_lm_head is not None and self.lacks_lm_head(config))
        ):
            return "no language model: it gives a sentence no probability"
        return (
            "it has no decoder to write a translation with"
            if kind == "translation" and self.build_translator is None
            else ""
        )

    def mechanism_row(self, architecture: Any, pretrain: Any) -> dict[str, str]:
        """A variant's line in the report's table of what the families are made of."""
        plain = {
            "unit": self.input_unit,
            "extractor": self.contextualizer,
            "direction": self.direction,
            "objective": self.objective_description,
            "transfer": self.transfer_description,
        }
        return plain | (self.describe(architecture, pretrain) if self.describe else {})
