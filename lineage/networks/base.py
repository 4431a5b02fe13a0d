"""The interface between a family and everything else: `Encoder`, `LossOutput` and `Family`.

A family is a file of `lineage/families` with a config, a model, and `FAMILY`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.networks.batch import Batch, BatchSampler, gather_last, masked_mean
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerType

# The records of a family's blocks `architecture` and `pretrain`; each family defines its own.
Architecture = Any
Pretrain = Any

# A sparse gradient is faster than a dense one only if the table has this many rows per lookup.
MIN_ROWS_PER_LOOKUP = 4


class Encoder(nn.Module):
    """A model that turns a batch into one tensor per layer.

    Shapes: B items, T positions, D_l units of layer l, N predicted positions, V vocabulary.
    """

    handles_oov: bool = False  # True if it reads the bytes of words outside its vocabulary
    # Which of its pieces represents a word. A model that reads in one direction uses the piece
    # that has read the whole word.
    word_pooling: Literal["mean", "last", "first"] = "mean"

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return (B, T, D_l) for each layer, bottom to top, whatever the padding."""
        raise NotImplementedError(f"{type(self).__name__}.encode")

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """Return (B, D): the vector of the whole text that fine-tuning uses.

        It is the top vector at the last position if only that has read the text, else the mean.
        """
        if self.word_pooling == "last":
            return gather_last(layers[-1], batch.mask_BT)
        return masked_mean(layers[-1], batch.mask_BT)

    def pool_windows(
        self, batch: Batch, *, window: int, pooled_positions: int | None
    ) -> torch.Tensor:
        """Pool a long text that is read window by window, starting from a zero state."""
        raise NotImplementedError(f"{type(self).__name__}.pool_windows")

    def build_head(
        self, num_classes: int, *, dropout: float, hidden_dropout: float | None = None
    ) -> nn.Module:
        """Build the fine-tuning head for the pooled text: (B, D) -> (B, classes)."""
        return build_linear_head(self.hidden_sizes()[-1], num_classes, dropout=dropout)

    def init_head(self, head: nn.Module, generator: torch.Generator) -> None:
        """Initialize a fine-tuning head with N(0, 0.02) weights, as GPT and BERT do."""
        for part in head.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02, generator=generator)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Return the softmax's inputs for (N, D) top vectors, its (V, D) weight and (V,) bias."""
        raise NotImplementedError(f"{type(self).__name__}.softmax_inputs")

    def logits(self, x_ND: torch.Tensor) -> torch.Tensor:
        return F.linear(*self.softmax_inputs(x_ND))

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Return the modules by role: embedding, characters, body, pooler, head.

        `embedding` are tables, `characters` reads the bytes of words, `body` are the layers above,
        which alone count against the parameter budget, `pooler` is BERT's layer over the pooled
        vector, and `head` is what only pretraining uses.
        """
        raise NotImplementedError(f"{type(self).__name__}.modules_by_role")

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters used downstream from bottom to top: embedding, then body.

        Discriminative learning rates and gradual unfreezing act on these groups.
        """
        modules = self.modules_by_role()
        layers = [modules["embedding"], *modules["body"].children()]
        return [[*layer.parameters()] for layer in layers]

    def tied_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the layer groups that are also a pretraining head."""
        return []

    def grad_clip_groups(self) -> list[list[nn.Parameter]]:
        """Return the groups of parameters whose gradient norms are clipped separately."""
        return [[*self.parameters()]]

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize every parameter and buffer."""
        raise NotImplementedError(f"{type(self).__name__}.init_weights")

    def hidden_sizes(self) -> tuple[int, ...]:
        """Return D_l for each layer."""
        raise NotImplementedError(f"{type(self).__name__}.hidden_sizes")

    def to_empty(self, *, device: str | torch.device | int | None, recurse: bool = True) -> Self:
        """Move to a device without copying values.

        Leaving the meta device, torch's version imports a package for half a second.
        """

        def empty_like(x: torch.Tensor) -> torch.Tensor:
            return torch.empty(x.shape, dtype=x.dtype, device=device)

        return self._apply(empty_like, recurse=recurse)


def build_linear_head(in_features: int, num_classes: int, *, dropout: float) -> nn.Module:
    """Build dropout and a linear layer: (B, D) -> (B, classes)."""
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(in_features, num_classes))


def empty_embedding(
    num_embeddings: int, embedding_dim: int, *, padding_idx: int | None = None
) -> nn.Embedding:
    """Build an uninitialized table, which `init_weights` fills; torch would fill it first."""
    weight = torch.empty(num_embeddings, embedding_dim)
    return nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=padding_idx)


def embed(weight_VD: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Look up rows of a table: (...) ids -> (..., D).

    On a CPU the gradient is sparse if few rows are looked up (see `lineage.training.optimizers`).
    """
    on_cpu = weight_VD.device.type == "cpu"
    sparse = on_cpu and MIN_ROWS_PER_LOOKUP * ids.numel() <= len(weight_VD)
    return F.embedding(ids, weight_VD, sparse=sparse)


def candidate_sizes(
    config: Architecture, width_field: str, inner_field: str, *, ratio: float, step: int = 2
) -> Iterator[list[Architecture]]:
    """Yield the `candidates` of a config: lists of configs of growing width.

    The first list has `ratio` times as many inner units as the width, the following ones somewhat
    fewer or more. One of the two fields that already has a value keeps it.
    """
    given_width = getattr(config, width_field)
    given_inner = getattr(config, inner_field)
    widths = [given_width] if given_width else range(step, 2049, step)
    for percent in (100, 95, 105, 90, 110, 85, 115, 80, 120, 75, 125):
        candidates = []
        for width in widths:
            inner = given_inner or max(1, round(ratio * width * percent / 100))
            candidates.append(replace(config, **{width_field: width, inner_field: inner}))
        yield candidates


def finetune_defaults(*learning_rates: float, **others: object) -> dict[str, Any]:
    """Return defaults of `evaluate.finetune`: the learning rates of trials, else the second."""
    trials = [{"learning_rate": rate} for rate in learning_rates]
    return {"learning_rate": learning_rates[1], "trials": trials, **others}


def with_dropout(
    architecture: Architecture, dropout: float | dict[str, float] | None
) -> Architecture:
    """Copy a model's config with other dropouts; None leaves it as it is.

    Of several dropouts a number is the greatest, and the others keep their proportions; a mapping
    replaces some of them. Raises ValueError if there are none of that form.
    """
    if dropout is None:
        return architecture
    if isinstance(dropout, dict) and hasattr(architecture, "dropouts"):
        known = sorted(vars(architecture.dropouts))
        unknown = sorted(dropout.keys() - set(known))
        if unknown:
            raise ValueError(
                f"there is no dropout '{unknown[0]}'; the model has {', '.join(known)}"
            )
        return replace(architecture, dropouts=replace(architecture.dropouts, **dropout))
    if not isinstance(dropout, dict) and hasattr(architecture, "dropouts"):
        return replace(architecture, dropouts=architecture.dropouts.scale(dropout))
    if not isinstance(dropout, dict) and hasattr(architecture, "dropout"):
        return replace(architecture, dropout=dropout)
    given = "several" if isinstance(dropout, dict) else "one"
    available = "one" if hasattr(architecture, "dropout") else "none"
    raise ValueError(f"{given}, and the model has {available}")


@dataclass(frozen=True)
class LossOutput:
    """The result of an objective for one batch.

    By the names in `nats` held-out text has metrics: causal, forward and backward give bits per
    byte, X_correct gives X_accuracy, and any other X gives X_nats per target.
    """

    loss: torch.Tensor  # scalar, with its gradient
    nats: dict[str, torch.Tensor]  # summed over the targets
    target_counts: dict[str, int]  # number of targets, by the same names
    recurrent_state: Any = None  # `training.state.RecurrentState`, if the objective has one


# The parts of a family. `Any` stands for what is the family's own: its model, its blocks, and the
# recurrent state of its objective.


class ModelBuilder(Protocol):
    """Builds a model of one architecture with empty parameters."""

    def __call__(self, config: Any, /, *, vocab_size: int) -> Encoder:
        """Return the model."""


class SamplerBuilder(Protocol):
    """Builds the batches of a tokenized text."""

    def __call__(
        self, tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: Any, /, *, seed: int
    ) -> BatchSampler:
        """Return the sampler. `settings` is the block `pretrain`."""


class Objective(Protocol):
    """Computes the loss of one batch. Each objective takes the batches of its own samplers."""

    def __call__(self, model: Any, batch: Any, recurrent_state: Any, /) -> LossOutput:
        """Return the loss; the state is the one of the batch before, or None."""


class TextScorer(Protocol):
    """Scores texts as `lineage.training.sentence_scores` does."""

    def __call__(
        self, model: Any, tokenizer: Tokenizer, texts: Sequence[str], /, *, limit: int | None
    ) -> np.ndarray:
        """Return (N, 2): log-probability and tokens of texts of at most `limit` positions."""


class AuxiliaryLoss(Protocol):
    """The language model's loss on the task's texts (`aux_lm_weight`)."""

    def __call__(self, model: Any, top_BTD: torch.Tensor, batch: Batch, /) -> torch.Tensor:
        """Return the loss, a scalar."""


class TranslatorBuilder(Protocol):
    """Builds a `lineage.families.translator.Translator` from two models."""

    def __call__(
        self, trained: Any, random_init: Any, settings: Any, /, *, generator: torch.Generator
    ) -> Any:
        """Return the translator."""


class StaticFit(Protocol):
    """Trains one vector a word; `text` is a `lineage.networks.static.StaticTrainingText`."""

    def __call__(
        self,
        model: Encoder,
        text: Any,
        tokenizer: Tokenizer,
        settings: Any,
        /,
        *,
        seed: int,
        report: Callable[[float, str], None],
    ) -> None:
        """Train the model's table, and report the share that is done and a message."""


class PublicLoader(Protocol):
    """Loads a model that was pretrained elsewhere."""

    def __call__(
        self, folder: Path, config: Any, /, *, head_generator: torch.Generator | None
    ) -> tuple[Architecture, Encoder]:
        """Return its architecture and the model. A new head is drawn from the generator."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """The base of the three kinds of family: `Trained`, `Static` and `Public`.

    Families are singletons, compared by identity.
    """

    name: str
    tokenizer_type: TokenizerType
    architecture_class: type[Architecture]
    pretrain_class: type[Pretrain]
    build: ModelBuilder
    # The values of a model of this family unless params.yaml says otherwise: keys of its blocks whose
    # values differ from the defaults of the records.
    defaults: Mapping[str, Any] = field(hash=False)
    # Parameters that have one row per word, as patterns of their names (`fnmatch`). New words of a
    # target domain can be added to them (`adapt.new_words`).
    vocab_parameters: tuple[str, ...] = ()
    # True if the model has `pool_windows`: long texts may then be read in windows (`bptt_window`),
    # and texts backward.
    supports_windows: bool = False
    # True if pretraining reads running text and predicts every next token, so that an n-gram model
    # can predict the same tokens.
    predicts_next_token: bool = False
    # True if a model can write on from a text: its top vector at a position, of a text without its
    # end, predicts the next token.
    writes_on: bool = False
    # True if `pool` returns the state at the last position, special tokens included:
    # `linear_label_gain` (Dai and Le 2015) can then also learn from the states before it.
    pools_last_state: bool = False
    # The family of the same objective that is trained as in its paper, if this one has the recipe of
    # today: the report says what that is worth.
    successor_of: str = ""
    # False if output matrices start at zero: each position of a new network knows its token alone.
    new_network_reads_context: bool = True

    def missing_keys(self, architecture: Architecture) -> list[str]:
        """Return the keys of an architecture that need a value before the model can be built."""
        return []

    def build_meta_model(self, architecture: Architecture) -> Encoder | None:
        """Build a model without values, with any width if none is given; None if it cannot be."""
        with torch.device("meta"):
            return self.build(architecture, vocab_size=1000)

    def reads_corpus(self, pretrain: Pretrain) -> bool:
        """Return True if a model with this block `pretrain` is trained on the study's corpus."""
        return True

    def can_score_text(self, architecture: Architecture) -> bool:
        """Return True if a model of this architecture gives a text a probability."""
        return False

    def can_write_on(self, architecture: Architecture) -> bool:
        """Return True if a model of this architecture can write on from a text."""
        return self.writes_on

    @property
    def can_translate(self) -> bool:
        """True if a translator can be built from the family's models."""
        return False

    def can_answer(self, answered_by: str, architecture: Architecture) -> bool:
        """Return whether a model can answer tasks with this `Answer.answered_by`."""
        if answered_by == "sentence_probability":
            return self.can_score_text(architecture)
        if answered_by == "translator":
            return self.can_translate
        if answered_by == "continuation":
            return self.can_write_on(architecture)
        return True


@dataclass(frozen=True, kw_only=True, eq=False)
class LanguageModelFamily(Family):
    """A family with a language model: the shared loop can train or adapt it, and it scores text."""

    batch_sampler: SamplerBuilder
    objective: Objective
    score_texts: TextScorer

    def can_score_text(self, architecture: Architecture) -> bool:
        return True


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained(LanguageModelFamily):
    """A family that the shared loop pretrains, with a body as large as the budget allows.

    Its architecture has `candidates()`, from which `match_parameter_budget` chooses.
    """

    auxiliary_loss: AuxiliaryLoss | None = None
    build_translator: TranslatorBuilder | None = None

    def missing_keys(self, architecture: Architecture) -> list[str]:
        """Return the widths that are not given; a parameter budget would determine them."""
        first = next(architecture.candidates())
        if architecture in first:
            return []
        keys = vars(architecture)
        return [key for key in keys if keys[key] is None and getattr(first[0], key) is not None]

    def build_meta_model(self, architecture: Architecture) -> Encoder:
        """Build the first candidate."""
        model = super().build_meta_model(next(architecture.candidates())[0])
        assert model is not None
        return model

    @property
    def can_translate(self) -> bool:
        return self.build_translator is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class Static(Family):
    """A family that gives each word one vector and is trained outside the shared loop."""

    fit_static: StaticFit
    # True if training counts co-occurrences: a second pass over the text would change nothing, so
    # the text is read at most once.
    uses_cooccurrence_counts: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Public(LanguageModelFamily):
    """A family whose models are loaded from a folder, which alone tells their size."""

    load_pretrained: PublicLoader
    lacks_lm_head: Callable[[Architecture], bool]  # (config) -> True if the folder has no LM head

    def missing_keys(self, architecture: Architecture) -> list[str]:
        """Return the key that describes the folder until the folder is read."""
        return ["checkpoint_info"] if architecture.checkpoint_info is None else []

    def build_meta_model(self, architecture: Architecture) -> None:
        """Return None: only the folder tells the sizes."""

    def reads_corpus(self, pretrain: Pretrain) -> bool:
        return bool(pretrain.continue_on_corpus)

    def can_score_text(self, architecture: Architecture) -> bool:
        return not self.lacks_lm_head(architecture)

    def can_write_on(self, architecture: Architecture) -> bool:
        info = architecture.checkpoint_info
        return info is None or (info.causal and self.can_score_text(architecture))
