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

from lineage.batch import Batch
from lineage.layers.softmax import ReadOut
from lineage.text.tokenization import Unit

ROWS_A_READ = 4  # a table with fewer rows for each that is looked up has a dense gradient, which is as fast there as a sparse one


class Encoder(nn.Module):
    """A model that turns a batch into one tensor a layer. Shapes: B items, T positions, D_l units of layer l."""

    spells: bool = False  # whether it reads the bytes of a word that its vocabulary lacks
    read_word: str = "mean"  # which of its pieces gives a word's vector: mean | last | first; of one way of reading the one that has read all of it

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """(B, T, D_l) a layer, bottom to top, from a cold state; a real position never depends on padding."""
        raise NotImplementedError

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """(B, D): the vector of the whole text that fine-tuning reads."""
        raise NotImplementedError

    def pool_windows(self, batch: Batch, *, window: int, pooled: int | None) -> torch.Tensor:
        """`pool` of a text that is read from a cold state in windows, of which those in its last `pooled` positions are learned from."""
        raise NotImplementedError

    def head(self, classes: int, *, dropout: float, inner_dropout: float | None = None) -> nn.Module:
        """What reads the vector of the text in fine-tuning: (B, D) -> (B, classes); a hidden layer, where it has one, may have its own dropout."""
        return linear_head(self.widths()[-1], classes, dropout=dropout)

    def begin_head(self, head: nn.Module, generator: torch.Generator) -> None:
        """Give what reads the text in fine-tuning its starting values: normal ones of 0.02, as GPT and BERT have it."""
        for part in head.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02, generator=generator)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """What the softmax reads: these (N, D) top vectors, or what it makes of them; its weights, (V, D); its bias, (V,) or None."""
        raise NotImplementedError

    def logits(self, x_ND: torch.Tensor) -> torch.Tensor:
        """(N, V) of top vectors, before the softmax."""
        return F.linear(*self.read_out(x_ND))

    def parts(self) -> dict[str, nn.Module]:
        """The model's modules by role: embedding, characters, body, pooler, head. Only `body` counts against the budget."""
        raise NotImplementedError

    def tables(self) -> list[nn.Parameter]:
        """The matrices of the embedding: of words or pieces, n-grams, positions, segments; none where words are read by their characters alone."""
        return [one for one in self.parts().get("embedding", nn.Module()).parameters() if one.dim() == 2]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The parameters that downstream use needs, in groups from bottom to top, for discriminative rates and unfreezing."""
        raise NotImplementedError

    def tied(self) -> list[nn.Parameter]:
        """Parameters of the layer groups that are also a head of pretraining."""
        return []

    def independent(self) -> list[list[nn.Parameter]]:
        """The sets of parameters that are trained as if each were alone: the norms of their gradients are clipped apart."""
        return [[*self.parameters()]]

    def initialise(self, generator: torch.Generator) -> None:
        """Give every parameter its starting value."""
        raise NotImplementedError

    def widths(self) -> tuple[int, ...]:
        """D_l, a number a layer."""
        raise NotImplementedError

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """As torch's own, which from the meta device imports a package of algebra first, for shapes that are not known yet: half a second."""
        return self._apply(lambda x: torch.empty(x.shape, dtype=x.dtype, device=device), recurse=recurse)


def linear_head(width: int, classes: int, *, dropout: float) -> nn.Module:
    """Dropout and a linear layer."""
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes))


def embedding(rows: int, width: int, *, padding: int | None = None) -> nn.Embedding:
    """A table without starting values, which `initialise` gives: drawing them twice costs time, and on the meta device seconds of imports."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False, padding_idx=padding)


def table_size(table: torch.Tensor) -> float:
    """The root mean square of its numbers."""
    return float(table.detach().double().square().mean().sqrt())


def resize_tables(model: Encoder, other: Encoder) -> Encoder:
    """Scale the tables of a model to the size of those of another one of its make; one of zeros alone (RoBERTa's segments) stays as it is."""
    for own, like in zip(model.tables(), other.tables(), strict=True):
        own.data.mul_(table_size(like) / (table_size(own) or 1.0))
    return model


def looked_up(table_VD: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(..., D): the table's rows. Where they are few on a CPU, the gradient is sparse, of these rows alone: see `lineage.training.optim`.

    On a GPU it is always dense: to know how many rows differ would be to wait for it.
    """
    few = table_VD.device.type == "cpu" and ROWS_A_READ * ids.numel() <= len(table_VD)
    return F.embedding(ids, table_VD, sparse=few)


def growing(config: Any, width: str, inner: str, *, ratio: float, step: int = 2) -> Iterator[list[Any]]:
    """The `candidates` of a Config: of growing `width`, first with `ratio` times as many `inner` units, then with some fewer or more.

    Both are names of its fields; one that was given stays as it is.
    """
    widths, units = getattr(config, width), getattr(config, inner)
    for percent in (100, 95, 105, 90, 110, 85, 115, 80, 120, 75, 125):
        some = [widths] if widths else range(step, 2049, step)
        yield [replace(config, **{width: w, inner: units or max(1, round(ratio * w * percent / 100))}) for w in some]


def dropping(model: Any, shares: float | dict[str, float] | None) -> Any:
    """The record of a block `model` with other dropouts; None leaves it as it is. Raises ValueError where it has none of this kind."""
    if shares is None:
        return model
    if isinstance(shares, dict) and hasattr(model, "dropouts"):
        names = sorted(vars(model.dropouts))
        if strange := sorted(shares.keys() - set(names)):
            raise ValueError(f"there is no dropout '{strange[0]}'; the model has {', '.join(names)}")
        return replace(model, dropouts=replace(model.dropouts, **shares))
    if isinstance(shares, dict) or not hasattr(model, "dropout"):
        asked = "several, and the model has " if isinstance(shares, dict) else "one, and the model has "
        raise ValueError(asked + ("several; give them by name" if hasattr(model, "dropouts") else "one" if hasattr(model, "dropout") else "none"))
    return replace(model, dropout=shares)


@dataclass(frozen=True)
class LossOut:
    """What an objective gives back for a batch. A name of `nats` decides what held text is reported in (`lineage.training.objectives.measures`):
    bits per byte for causal, forward and backward, a share right for X_right, which counts and is no nats, and X_nats a target for any other X.
    """

    loss: torch.Tensor  # one number, with its gradient
    nats: dict[str, torch.Tensor]  # summed over the targets
    targets: dict[str, int]  # how many, by the same names
    carry: Any = None  # what the next batch goes on from, detached: a tuple of tensors a layer, such as (output, cell), in a tuple; or nothing


@dataclass(frozen=True)
class Family:
    """One way of pretraining. `unit` to `transfer_text` are the family's row in the table of mechanisms."""

    name: str
    unit: str
    extractor: str
    direction: str
    objective_text: str
    transfer_text: str
    tokenizer: Unit
    model: type[Any]  # the record of the block `model`; its `candidates()`, lists of growing bodies, are what `training.budget.sized` chooses from
    pretrain: type[Any]  # the record of the block `pretrain`
    build: Callable[..., Encoder]  # (config, vocabulary=) -> Encoder, parameters uninitialised
    # A family that the one loop trains has a stream and an objective; one that another way trains has `fit`.
    stream: Callable[..., Any] | None = None  # (tokens, reader, settings, seed=) -> Stream
    objective: Callable[..., LossOut] | None = None  # (model, batch, carry) -> LossOut
    auxiliary: Callable[..., torch.Tensor] | None = None  # (model, top_BTD, batch) -> its own loss on a task's texts, in fine-tuning (`lm_weight`)
    score: Callable[..., Any] | None = None  # (model, reader, texts, limit=) -> (N, 2) nats and pieces (training.sentences)
    fit: Callable[..., None] | None = None  # (model, text, reader, settings, seed=, report=), see lineage.training.static
    counts: bool = False  # `fit` counts its text, and a text that is read again has no other counts: it is read once at most, of all passes
    word_rows: tuple[str, ...] = ()  # parameters with a row a word, the table and what is tied to it: new words of a target can join them
    one_way: bool = False  # reads words in one direction with a state: texts may be read from their ends, and in windows
    last_state: bool = False  # `pool` gives the state after the last word; `linear_gain` (Dai and Le 2015) may learn from those before it, too
    translator: Callable[..., Any] | None = None  # (trained, twin, settings, generator=) -> lineage.transfer.translator.Translator
    switched: Callable[..., dict[str, str]] | None = None  # (model, pretrain) -> the texts that a variant's switches make other ones
    adopt: Callable[..., tuple[Any, Encoder]] | None = None  # (folder, config) -> config and model of what others trained: it is not trained here
    headless: Callable[..., bool] | None = None  # (config) -> whether this model is without the head of its language model

    def left_open(self, config: Any) -> list[str]:
        """The keys of a block `model` that have no value yet, and without which there is no model; `lineage.training.budget.sized` solves widths."""
        if self.fit is not None:
            return []
        if self.adopt is not None:
            return ["about"] if config.about is None else []
        first = next(config.candidates())
        return [] if config in first else [name for name, value in vars(config).items() if value is None and getattr(first[0], name) is not None]

    def drafted(self, config: Any) -> Encoder | None:
        """A model of this config without numbers, of any width where that is open; none of a public one, of which its folder alone tells."""
        if self.adopt is not None:
            return None
        with torch.device("meta"):
            return self.build(config if self.fit is not None else next(config.candidates())[0], vocabulary=1000)

    def unable(self, kind: str, config: Any) -> str:
        """Why this family, or a model of this config, has no answer to a kind of task; nothing where it has one."""
        if kind == "minimal_pairs" and (self.score is None or (self.headless is not None and self.headless(config))):
            return "no language model: it gives a sentence no probability"
        return "it has no decoder to write a translation with" if kind == "translate" and self.translator is None else ""

    def mechanism(self, model: Any, pretrain: Any) -> dict[str, str]:
        """A variant's line in the report's table of what the families are made of."""
        plain = {"unit": self.unit, "extractor": self.extractor, "direction": self.direction, "objective": self.objective_text,
                 "transfer": self.transfer_text}  # fmt: skip
        return plain | (self.switched(model, pretrain) if self.switched else {})
