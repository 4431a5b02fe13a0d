"""From a pretrained encoder to a task: the settings of every way, the blocks `adapt` and `evaluate` of a model."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lineage.config.records import check_fraction, check_non_negative, check_positive
from lineage.evaluation.translator import TranslationSettings
from lineage.training.optimizers import DiscriminativeFinetuneSettings, check_stlr_settings

# What is read of frozen features: the scalar mix of all layers, or the layers that BERT's feature-based use tried (Devlin et al. 2019, section 5.3)
Features = Literal["scalar_mix", "last", "second_to_last", "concat_last_4", "embeddings"]
FEATURE_DESCRIPTIONS = {
    "scalar_mix": "weighted sum of all layers",
    "last": "the top layer",
    "second_to_last": "the second to last layer",
    "concat_last_4": "the last four layers, joined",
    "embeddings": "the embeddings",
}
WHOLE_NETWORK = "whole network"


@dataclass(frozen=True)
class NewWordSettings:
    """Words of the target's text that join a closed vocabulary."""

    max_words: int
    min_frequency: int  # in the text that is adapted to

    def __post_init__(self) -> None:
        check_positive(self, "max_words", "min_frequency")


@dataclass(frozen=True, kw_only=True)
class AdaptSettings(DiscriminativeFinetuneSettings):
    """The block `adapt`: the language model's own objective on the target's text (Howard and Ruder 2018, section 3.2)."""

    layer_lr_decay: float = 2.6  # in the paper each layer has the rate of the one above over 2.6
    new_words: NewWordSettings | None = None  # none: they stay unknown


@dataclass(frozen=True)
class Trial:
    """What to try in place of an arm's own."""

    learning_rate: float | None = None
    epochs: int | None = None
    l2: float | None = None
    rescale_embeddings: bool | None = None
    word_layer_norm: bool | None = None

    @property
    def overrides(self) -> dict[str, Any]:
        """What is in place of the arm's own, by its key."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class HyperparameterTrials:
    """An arm of the comparison: a way of reading, which may be tried with several numbers, of which validation chooses."""

    trials: tuple[Trial, ...] = field(
        default=(), kw_only=True
    )  # none: the arm's own numbers are taken
    label_counts: tuple[int | Literal["all"], ...] = field(
        default=(), kw_only=True
    )  # of grid.label_counts those that it learns from; none: all of them

    def __post_init__(self) -> None:
        for trial in self.trials:
            if strange := [key for key in trial.overrides if not hasattr(self, key)]:
                raise ValueError(f"trials: '{strange[0]}' is no key of this block; take it out")
            if not trial.overrides:
                raise ValueError(
                    "trials: one of them is empty; give it a key, such as {rate: 0.001}"
                )
            self._with_overrides(trial)

    def _with_overrides(self, trial: Trial) -> Any:
        return replace(self, trials=(), **trial.overrides)

    def with_trial(self, number: int) -> Any:
        """The arm with one trial's numbers."""
        return self._with_overrides(self.trials[number])

    def describe_trial(self, number: int) -> str:
        """`trial 1 (of 3, from 0): rate 0.001, epochs 4`."""
        given = self.trials[number].overrides.items()
        return f"trial {number} (of {len(self.trials)}, from 0): " + ", ".join(
            key if value is True else f"{key} {value:g}" for key, value in given
        )


def resolve_num_epochs(settings: Any, steps_per_epoch: int) -> int:
    """How many epochs of so many steps are gone through: `epochs`, and more where they do not come to `least_steps`.

    A hundred labels are too few steps otherwise (Mosbach et al. 2021, section 6).
    """
    return max(settings.epochs, -(-(settings.min_steps or 0) // steps_per_epoch))


@dataclass(frozen=True, kw_only=True)
class LinearProbeSettings(HyperparameterTrials):
    """A linear reader of frozen features, fitted by L-BFGS."""

    l2: float = 0.003
    max_iter: int = 100
    features: Features = "scalar_mix"
    learn_gamma: bool = (
        False  # a scale of the mix that is learned; a linear reader scales by itself
    )
    layer_norm: bool = False  # one mean and one variance a layer, as in ELMo's mix, instead of one a feature; both of the training items
    scalar_mix_l2: float | None = (
        None  # of the mix's raw weights, which it pulls to the mean of the layers; none: the reader's own
    )

    def __post_init__(self) -> None:
        check_positive(self, "l2", "max_iter")
        check_non_negative(self, "scalar_mix_l2")
        super().__post_init__()

    @property
    def relative_mix_l2(self) -> float:
        """The L2 of the mix, in shares of the reader's own."""
        return 1.0 if self.scalar_mix_l2 is None else self.scalar_mix_l2 / self.l2


@dataclass(frozen=True, kw_only=True)
class BilstmProbeSettings(HyperparameterTrials):
    """A network of the task's own over frozen features: LSTMs of both directions, and a CRF over tags.

    `join` is for features beside static vectors: they are joined with the static vector at the `input`, or with what the `first` or `second` LSTM
    makes of the static vectors alone (TagLM, Peters et al. 2017, section 3). Other features are always the input.
    """

    hidden_size: int = 64  # of each direction
    epochs: int = 10
    batch_size: int = 16
    learning_rate: float = 0.003
    cut_frac: float = 0.1
    ratio: float = 32.0
    weight_decay: float = 0.0
    dropout: float = 0.2  # of each LSTM's inputs, and of what the last layer reads
    max_grad_norm: float = 5.0
    min_steps: int | None = (
        None  # few labels are read more often than `epochs`, until there are so many; none: they are not
    )
    num_layers: int = 1
    join: Literal["input", "first", "second"] = "input"
    features: Features = "scalar_mix"
    learn_gamma: bool = True  # as the next two, those of a linear reader
    layer_norm: bool = False
    scalar_mix_l2: float = 0.0  # 0.001 lets the weights vary, 1 makes a plain mean of the layers (Peters et al. 2018, section 5.1)

    def __post_init__(self) -> None:
        check_positive(self, "hidden_size", "epochs", "batch_size", "min_steps", "num_layers")
        check_stlr_settings(self)
        check_fraction(self, "dropout")
        check_non_negative(self, "scalar_mix_l2")
        if self.layers_below_join > self.num_layers:
            raise ValueError(
                f"join is {self.join}, and layers is {self.num_layers}; set layers: {self.layers_below_join} or more, or join: input"
            )
        super().__post_init__()

    @property
    def layers_below_join(self) -> int:
        """How many of the layers read static vectors alone."""
        return ("input", "first", "second").index(self.join)

    def describe_recipe(self, *, has_static: bool) -> str:
        """What is not the one LSTM over its input, joined by +; `static`: over features beside static vectors."""
        on = {
            f"{self.num_layers} layers": self.num_layers > 1,
            f"joined at {self.join}": has_static and self.join != "input",
        }
        return "+".join(name for name, is_on in on.items() if is_on) or "none"


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(HyperparameterTrials, DiscriminativeFinetuneSettings):
    """Fine-tuning of the whole network; each of ULMFiT's techniques is off at layer_decay 1, ratio 1, unfreeze_share 0."""

    epochs: int = 3
    batch_size: int = 16
    gradual_unfreezing: float = (
        0.0  # of all steps, over which the layers are unfrozen one by one from the top
    )
    dropout: float = 0.1
    classifier_hidden_dropout: float | None = (
        None  # of the hidden layer of ULMFiT's classifier; none: as `dropout`
    )
    min_steps: int | None = 60  # as a network's
    bptt_window: int | None = (
        None  # positions after which no gradient goes back, in texts that are classified (BPT3C); none: whole texts
    )
    pooled_positions: int | None = (
        None  # the last positions, in whole windows, that are pooled and learned from; none: all
    )
    pooling: Literal["model_default", "mean"] = (
        "model_default"  # a text's vector: the family's own ([CLS], the extract mark, ...), or the mean of the top layer's pieces
    )
    aux_lm_weight: float = 0.0  # of the language model's loss on the task's texts; 0.5 in GPT-1
    rescale_embeddings: bool = False  # pretrained tables (`Encoder.tables`) begin as small as the untrained twin's: few steps hardly move large ones
    word_layer_norm: bool = False  # a layer norm, without parameters, under the linear head over words: a new one hardly reads small ones (DECISIONS.md)
    linear_label_gain: bool = False  # a text's answer is learned after every position, the later ones with more weight (Dai and Le 2015, section 3)

    def __post_init__(self) -> None:
        DiscriminativeFinetuneSettings.__post_init__(self)
        check_positive(self, "epochs", "batch_size", "min_steps", "bptt_window", "pooled_positions")
        check_fraction(self, "gradual_unfreezing", "dropout", "classifier_hidden_dropout")
        if self.pooled_positions is not None and (
            self.bptt_window is None or self.pooled_positions < self.bptt_window
        ):
            raise ValueError(
                f"pooled is {self.pooled_positions}; it needs a window, and holds one at least"
            )
        if self.aux_lm_weight < 0:
            raise ValueError(f"lm_weight is {self.aux_lm_weight}; it must be 0 or more")
        if self.classifier_hidden_dropout is not None and self.pooling != "model_default":
            raise ValueError(
                "inner_dropout is of the family's own classifier; take it out, or set pool: own"
            )
        if self.bptt_window is not None and (self.aux_lm_weight or self.pooling != "model_default"):
            raise ValueError(
                "window is for the family's own vector of a text alone; take it out, or set pool: own and lm_weight: 0"
            )
        if self.linear_label_gain and (
            self.bptt_window is not None or self.pooling != "model_default"
        ):
            raise ValueError(
                "linear_gain is for the last state of a text that is read whole; set it to false, or take window out and set pool: own"
            )
        HyperparameterTrials.__post_init__(self)

    @property
    def recipe(self) -> str:
        """The techniques that are on, joined by +, of a text that is read whole and once."""
        slanted = self.schedule == "slanted_triangular"
        on = {
            "discriminative": self.layer_lr_decay != 1,
            "slanted_triangular": slanted and self.ratio != 1,
            f"{self.schedule} rates": not slanted,
            "gradual": self.gradual_unfreezing > 0,
            "lm": self.aux_lm_weight > 0,
            "uncorrected": not self.bias_correction,
            "linear gain": self.linear_label_gain,
            "small tables": self.rescale_embeddings,
            "word norm": self.word_layer_norm,
        }
        return "+".join(name for name, is_on in on.items() if is_on) or "plain"


@dataclass(frozen=True)
class EvaluateSettings:
    """The block `evaluate`."""

    finetune: FinetuneSettings
    linear_probe: LinearProbeSettings = field(default_factory=LinearProbeSettings)
    bilstm_probe: BilstmProbeSettings = field(default_factory=BilstmProbeSettings)
    translation: TranslationSettings | None = None  # of a family that has a translator

    @property
    def methods(self) -> dict[str, HyperparameterTrials]:
        """The ways of reading, by their blocks."""
        return {
            "linear_probe": self.linear_probe,
            "bilstm_probe": self.bilstm_probe,
            "finetune": self.finetune,
        }

    def describe_transfer(self, family_text: str, *, has_bilstm_probe: bool) -> str:
        """The family's `transfer_text` as this variant is read: its own way, which begins with LAYERS["scalar_mix"] or WHOLE, is replaced, others are added.

        `networks`: whether there are networks over frozen features.
        """
        found, frozen, mean = (
            [family_text],
            FEATURE_DESCRIPTIONS[self.linear_probe.features],
            f"{WHOLE_NETWORK}, mean of the pieces",
        )
        if family_text.startswith(FEATURE_DESCRIPTIONS["scalar_mix"]):
            found = [frozen + family_text.removeprefix(FEATURE_DESCRIPTIONS["scalar_mix"])]
        elif self.linear_probe.features != "scalar_mix":
            found.append(f"frozen, {frozen}")
        if has_bilstm_probe and self.bilstm_probe.features != self.linear_probe.features:
            found.append(f"under a network, {FEATURE_DESCRIPTIONS[self.bilstm_probe.features]}")
        if self.finetune.pooling == "mean":
            found = [mean, *found[1:]] if family_text.startswith(WHOLE_NETWORK) else [*found, mean]
        return "; ".join(found)
