"""From a pretrained encoder to a task: the settings of every way, the blocks `adapt` and `evaluate` of a model."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lineage.records import not_negative, positive, share
from lineage.training.optim import FineTuning, check_triangle
from lineage.transfer.translator import TranslateSettings

# What is read of frozen features: the scalar mix of all layers, or the layers that BERT's feature-based use tried (Devlin et al. 2019, section 5.3)
Features = Literal["mix", "top", "second_to_last", "concat4", "embeddings"]
LAYERS = {"mix": "weighted sum of all layers", "top": "the top layer", "second_to_last": "the second to last layer",
          "concat4": "the last four layers, joined", "embeddings": "the embeddings"}  # fmt: skip
WHOLE = "whole network"


@dataclass(frozen=True)
class NewWords:
    """Words of the target's text that join a closed vocabulary."""

    most: int
    minimum_count: int  # in the text that is adapted to

    def __post_init__(self) -> None:
        positive(self, "most", "minimum_count")


@dataclass(frozen=True)
class AdaptSettings(FineTuning):
    """The block `adapt`: the language model's own objective on the target's text (Howard and Ruder 2018, section 3.2)."""

    new_words: NewWords | None = field(default=None, kw_only=True)  # none: they stay unknown


@dataclass(frozen=True)
class Trial:
    """What to try in place of an arm's own."""

    rate: float | None = None
    epochs: int | None = None
    l2: float | None = None
    small_tables: bool | None = None
    word_norm: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What is in place of the arm's own, by its key."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Tried:
    """An arm of the comparison: a way of reading, which may be tried with several numbers, of which validation chooses."""

    trials: tuple[Trial, ...] = field(default=(), kw_only=True)  # none: the arm's own numbers are taken
    labels: tuple[int | Literal["all"], ...] = field(default=(), kw_only=True)  # of grid.labels those that it learns from; none: all of them

    def __post_init__(self) -> None:
        for trial in self.trials:
            if strange := [key for key in trial.given if not hasattr(self, key)]:
                raise ValueError(f"trials: '{strange[0]}' is no key of this block; take it out")
            if not trial.given:
                raise ValueError("trials: one of them is empty; give it a key, such as {rate: 0.001}")
            self._with(trial)

    def _with(self, trial: Trial) -> Any:
        return replace(self, trials=(), **trial.given)

    def tried(self, number: int) -> Any:
        """The arm with one trial's numbers."""
        return self._with(self.trials[number])

    def trial_words(self, number: int) -> str:
        """`trial 1 (of 3, from 0): rate 0.001, epochs 4`."""
        given = self.trials[number].given.items()
        return f"trial {number} (of {len(self.trials)}, from 0): " + ", ".join(key if value is True else f"{key} {value:g}" for key, value in given)


def epochs_of(settings: Any, steps: int) -> int:
    """How many epochs of so many steps are gone through: `epochs`, and more where they do not come to `least_steps`.

    A hundred labels are too few steps otherwise (Mosbach et al. 2021, section 6).
    """
    return max(settings.epochs, -(-(settings.least_steps or 0) // steps))


@dataclass(frozen=True)
class FrozenSettings(Tried):
    """A linear reader of frozen features, fitted by L-BFGS."""

    l2: float
    iterations: int
    features: Features = "mix"
    gamma: bool = False  # a scale of the mix that is learned; a linear reader scales by itself
    layer_norm: bool = False  # one mean and one variance a layer, as in ELMo's mix, instead of one a feature; both of the training items
    mix_l2: float | None = None  # of the mix's raw weights, which it pulls to the mean of the layers; none: the reader's own

    def __post_init__(self) -> None:
        positive(self, "l2", "iterations")
        not_negative(self, "mix_l2")
        super().__post_init__()

    @property
    def mix_share(self) -> float:
        """The L2 of the mix, in shares of the reader's own."""
        return 1.0 if self.mix_l2 is None else self.mix_l2 / self.l2


@dataclass(frozen=True)
class NetworkSettings(Tried):
    """A network of the task's own over frozen features: LSTMs of both directions, and a CRF over tags.

    `join` is for features beside static vectors: they are joined with the static vector at the `input`, or with what the `first` or `second` LSTM
    makes of the static vectors alone (TagLM, Peters et al. 2017, section 3). Other features are always the input.
    """

    cells: int  # of each direction
    epochs: int
    batch: int
    rate: float
    cut_share: float
    ratio: float
    weight_decay: float
    dropout: float  # of each LSTM's inputs, and of what the last layer reads
    clip_norm: float
    least_steps: int | None = None  # few labels are read more often than `epochs`, until there are so many; none: they are not
    layers: int = 1
    join: Literal["input", "first", "second"] = "input"
    features: Features = "mix"
    gamma: bool = True  # as the next two, those of a linear reader
    layer_norm: bool = False
    mix_l2: float = 0.0  # 0.001 lets the weights vary, 1 makes a plain mean of the layers (Peters et al. 2018, section 5.1)

    def __post_init__(self) -> None:
        positive(self, "cells", "epochs", "batch", "least_steps", "layers")
        check_triangle(self)
        share(self, "dropout")
        not_negative(self, "mix_l2")
        if self.below_join > self.layers:
            raise ValueError(f"join is {self.join}, and layers is {self.layers}; set layers: {self.below_join} or more, or join: input")
        super().__post_init__()

    @property
    def below_join(self) -> int:
        """How many of the layers read static vectors alone."""
        return ("input", "first", "second").index(self.join)

    def recipe(self, *, static: bool) -> str:
        """What is not the one LSTM over its input, joined by +; `static`: over features beside static vectors."""
        on = {f"{self.layers} layers": self.layers > 1, f"joined at {self.join}": static and self.join != "input"}
        return "+".join(name for name, is_on in on.items() if is_on) or "none"


@dataclass(frozen=True)
class TunedSettings(Tried, FineTuning):
    """Fine-tuning of the whole network; each of ULMFiT's techniques is off at layer_decay 1, ratio 1, unfreeze_share 0."""

    epochs: int
    batch: int
    unfreeze_share: float  # of all steps, over which the layers are unfrozen one by one from the top
    dropout: float
    inner_dropout: float | None = None  # of the hidden layer of ULMFiT's classifier; none: as `dropout`
    least_steps: int | None = None  # as a network's
    window: int | None = None  # positions after which no gradient goes back, in texts that are classified (BPT3C); none: whole texts
    pooled: int | None = None  # the last positions, in whole windows, that are pooled and learned from; none: all
    pool: Literal["own", "mean"] = "own"  # a text's vector: the family's own ([CLS], the extract mark, ...), or the mean of the top layer's pieces
    lm_weight: float = 0.0  # of the language model's loss on the task's texts; 0.5 in GPT-1
    small_tables: bool = False  # pretrained tables (`Encoder.tables`) begin as small as the untrained twin's: few steps hardly move large ones
    word_norm: bool = False  # a layer norm, without parameters, under the linear head over words: a new one hardly reads small ones (DECISIONS.md)
    linear_gain: bool = False  # a text's answer is learned after every position, the later ones with more weight (Dai and Le 2015, section 3)

    def __post_init__(self) -> None:
        FineTuning.__post_init__(self)
        positive(self, "epochs", "batch", "least_steps", "window", "pooled")
        share(self, "unfreeze_share", "dropout", "inner_dropout")
        if self.pooled is not None and (self.window is None or self.pooled < self.window):
            raise ValueError(f"pooled is {self.pooled}; it needs a window, and holds one at least")
        if self.lm_weight < 0:
            raise ValueError(f"lm_weight is {self.lm_weight}; it must be 0 or more")
        if self.inner_dropout is not None and self.pool != "own":
            raise ValueError("inner_dropout is of the family's own classifier; take it out, or set pool: own")
        if self.window is not None and (self.lm_weight or self.pool != "own"):
            raise ValueError("window is for the family's own vector of a text alone; take it out, or set pool: own and lm_weight: 0")
        if self.linear_gain and (self.window is not None or self.pool != "own"):
            raise ValueError("linear_gain is for the last state of a text that is read whole; set it to false, or take window out and set pool: own")
        Tried.__post_init__(self)

    @property
    def recipe(self) -> str:
        """The techniques that are on, joined by +, of a text that is read whole and once."""
        slanted = self.schedule == "slanted"
        on = {"discriminative": self.layer_decay != 1, "slanted": slanted and self.ratio != 1, f"{self.schedule} rates": not slanted,
              "gradual": self.unfreeze_share > 0, "lm": self.lm_weight > 0, "uncorrected": not self.bias_correction,
              "linear gain": self.linear_gain, "small tables": self.small_tables, "word norm": self.word_norm}  # fmt: skip
        return "+".join(name for name, is_on in on.items() if is_on) or "plain"


@dataclass(frozen=True)
class EvaluateSettings:
    """The block `evaluate`."""

    frozen: FrozenSettings
    network: NetworkSettings
    tuned: TunedSettings
    translate: TranslateSettings | None = None  # of a family that has a translator

    @property
    def arms(self) -> dict[str, Tried]:
        """The ways of reading, by their blocks."""
        return {"frozen": self.frozen, "network": self.network, "tuned": self.tuned}

    def transfer_text(self, family: str, *, networks: bool) -> str:
        """The family's `transfer_text` as this variant is read: its own way, which begins with LAYERS["mix"] or WHOLE, is replaced, others are added.

        `networks`: whether there are networks over frozen features.
        """
        found, frozen, mean = [family], LAYERS[self.frozen.features], f"{WHOLE}, mean of the pieces"
        if family.startswith(LAYERS["mix"]):
            found = [frozen + family.removeprefix(LAYERS["mix"])]
        elif self.frozen.features != "mix":
            found.append(f"frozen, {frozen}")
        if networks and self.network.features != self.frozen.features:
            found.append(f"under a network, {LAYERS[self.network.features]}")
        if self.tuned.pool == "mean":
            found = [mean, *found[1:]] if family.startswith(WHOLE) else [*found, mean]
        return "; ".join(found)
