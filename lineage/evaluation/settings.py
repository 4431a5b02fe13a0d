"""The blocks `adapt` and `evaluate` of a model: how its encoder is transferred to a task."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from lineage.config.records import check_fraction, check_non_negative, check_positive
from lineage.evaluation.translator import TranslationSettings
from lineage.training.optimizers import DiscriminativeFinetuneSettings, check_stlr_settings
from lineage.training.schedules import LrSchedule, slanted_triangular_schedule

# The frozen features of a probe: the scalar mix of all layers, or the layers that were tried with
# BERT as a feature extractor (Devlin et al. 2019, section 5.3).
Features = Literal["scalar_mix", "last", "second_to_last", "concat_last_4", "embeddings"]
FEATURE_DESCRIPTIONS = {
    "scalar_mix": "weighted sum of all layers",
    "last": "the top layer",
    "second_to_last": "the second to last layer",
    "concat_last_4": "the last four layers, joined",
    "embeddings": "the embeddings",
}
WHOLE_NETWORK = "whole network"
JOINS = ("input", "first", "second")  # the index is the number of LSTMs below
LabelCount = int | Literal["all"]


@dataclass(frozen=True)
class NewWordSettings:
    """Words of the target text that are added to a closed vocabulary."""

    max_words: int
    min_frequency: int  # in the text that is adapted to

    def __post_init__(self) -> None:
        check_positive(self, "max_words", "min_frequency")


@dataclass(frozen=True, kw_only=True)
class AdaptSettings(DiscriminativeFinetuneSettings):
    """The block `adapt`: continue pretraining on the target text (Howard and Ruder 2018, 3.2)."""

    layer_lr_decay: float = 1 / 2.6  # as in the paper
    # None: words outside the vocabulary stay unknown.
    new_words: NewWordSettings | None = None


@dataclass(frozen=True)
class Trial:
    """Hyperparameters that replace those of a block."""

    learning_rate: float | None = None
    epochs: int | None = None
    l2: float | None = None
    pooling: Literal["model_default", "mean"] | None = None
    layer_lr_decay: float | None = None
    gradual_unfreezing: float | None = None
    word_layer_norm: bool | None = None

    @property
    def overrides(self) -> dict[str, Any]:
        """The given hyperparameters by their keys."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class HyperparameterTrials:
    """The settings of a method of transfer. Of its trials, the best on validation is used."""

    # Validation with the first seed chooses one. Trials that differ in their learning rates alone
    # race: after 5 validations only the best one is trained to its end, unless patience is null.
    # Empty: the block's own hyperparameters are used. A block that sets learning_rate or l2 without
    # trials has none.
    trials: tuple[Trial, ...] = ()
    # The label counts of the grid to use this method with. Empty: all of them.
    label_counts: tuple[LabelCount, ...] = ()

    def __post_init__(self) -> None:
        for trial in self.trials:
            unknown = [key for key in trial.overrides if not hasattr(self, key)]
            if unknown:
                raise ValueError(f"trials: '{unknown[0]}' is not a key of this block; remove it")
            if not trial.overrides:
                raise ValueError(
                    "trials: one of them is empty; give it a key, such as {learning_rate: 0.001}"
                )
            self._with_overrides(trial)  # raises ValueError for values out of range

    def _with_overrides(self, trial: Trial) -> Self:
        return replace(self, trials=(), **trial.overrides)

    def with_trial(self, number: int) -> Self:
        """Return the settings with the hyperparameters of one trial."""
        return self._with_overrides(self.trials[number])


# The values of L2 from which validation chooses, unless a study names others. A hundred labels need
# more of it than a hundred thousand tagged words.
DEFAULT_L2_TRIALS = tuple(Trial(l2=value) for value in (0.0001, 0.001, 0.01, 0.1))


@dataclass(frozen=True, kw_only=True)
class LinearProbeSettings(HyperparameterTrials):
    """The block `linear_probe`: a linear layer on frozen features, fitted by L-BFGS.

    The fit ends when no derivative of the mean loss is larger than `tolerance`. A fit that needs
    more than `max_iter` iterations is reported.
    """

    # Not used if the block sets l2.
    trials: tuple[Trial, ...] = DEFAULT_L2_TRIALS
    l2: float = 0.001  # times the squared weights, added to the mean loss
    max_iter: int = 1000
    tolerance: float = 1e-4  # largest derivative of the mean loss at which the fit ends
    features: Features = "scalar_mix"
    learn_gamma: bool = False  # scale of the mix; a linear layer can scale by itself
    # Scale each layer by one mean and variance, as in ELMo's mix, instead of each feature. Both
    # come from the training items.
    layer_norm: bool = False
    # L2 of the mix's raw weights, which pulls the mix to the mean of the layers. None: as `l2`.
    scalar_mix_l2: float | None = None

    def __post_init__(self) -> None:
        check_positive(self, "l2", "max_iter", "tolerance")
        check_non_negative(self, "scalar_mix_l2")
        super().__post_init__()

    @property
    def relative_mix_l2(self) -> float:
        """The L2 of the mix as a multiple of `l2`."""
        return 1.0 if self.scalar_mix_l2 is None else self.scalar_mix_l2 / self.l2


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """The keys that `bilstm_probe` and `finetune` share: how long to train.

    Training is validated at 20 equal distances, or every 1,000 steps where that is more often, and
    the best weights are kept. It ends when neither the metric nor the loss of the validation items
    has improved for `patience` validations, though not before the training loss has fallen by 5 %.
    """

    epochs: int = 20  # at most
    # With few labels, allow more epochs to reach this many steps (Mosbach et al. 2021, section 6).
    # None: never.
    min_steps: int | None = 300
    # None: training takes all its epochs, and the last weights are kept.
    patience: int | None = 6
    batch_size: int = 16

    def __post_init__(self) -> None:
        check_positive(self, "epochs", "min_steps", "patience", "batch_size")


@dataclass(frozen=True, kw_only=True)
class BilstmProbeSettings(HyperparameterTrials, EarlyStopping):
    """The block `bilstm_probe`: a BiLSTM on frozen features, with a CRF for tags."""

    hidden_size: int = 64  # of each direction
    learning_rate: float = 0.003
    cut_frac: float = 0.1  # share of the steps over which the learning rate rises
    ratio: float = 32.0  # highest learning rate over the lowest
    weight_decay: float = 0.0
    dropout: float = 0.2  # on the inputs of each LSTM and of the output layer
    max_grad_norm: float = 5.0
    num_layers: int = 1
    # Where the features enter if static vectors are added to them: at the input, or concatenated to
    # the output of the first or second LSTM. The LSTMs below then read static vectors alone (TagLM,
    # Peters et al. 2017, section 3). Without static vectors, features enter at the input.
    join: Literal["input", "first", "second"] = "input"
    features: Features = "scalar_mix"
    learn_gamma: bool = True  # this and `layer_norm` as for the linear probe
    layer_norm: bool = False
    # 0.001 lets the mix's weights vary, 1 makes it the mean of the layers (Peters et al. 2018,
    # section 5.1).
    scalar_mix_l2: float = 0.0

    def __post_init__(self) -> None:
        EarlyStopping.__post_init__(self)
        check_positive(self, "hidden_size", "num_layers")
        check_stlr_settings(self)
        check_fraction(self, "dropout")
        check_non_negative(self, "scalar_mix_l2")
        if self.layers_below_join > self.num_layers:
            raise ValueError(
                f"join is {self.join}, and num_layers is {self.num_layers}; "
                f"set num_layers: {self.layers_below_join} or more, or join: input"
            )
        HyperparameterTrials.__post_init__(self)

    @property
    def layers_below_join(self) -> int:
        """The number of layers that read static vectors alone."""
        return JOINS.index(self.join)

    def lr_schedule(self, steps: int) -> LrSchedule:
        """Return the schedule of a training of this many steps."""
        return slanted_triangular_schedule(self.cut_frac, self.ratio, steps=steps)

    def describe_recipe(self, *, has_static: bool) -> str:
        """List the differences from a single LSTM over its input, joined by +, or return none.

        `has_static`: static vectors are added to the features.
        """
        parts = []
        if self.num_layers > 1:
            parts.append(f"{self.num_layers} layers")
        if has_static and self.join != "input":
            parts.append(f"joined at {self.join}")
        return "+".join(parts) or "none"


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(HyperparameterTrials, EarlyStopping, DiscriminativeFinetuneSettings):
    """The block `finetune`: fine-tuning of the whole network.

    ULMFiT's techniques are off with layer_lr_decay 1, ratio 1 and gradual_unfreezing 0.
    """

    # Share of all steps over which the layers are unfrozen one by one from the top.
    gradual_unfreezing: float = 0.0
    dropout: float = 0.1
    # Dropout on the hidden layer of ULMFiT's classifier. None: as `dropout`.
    classifier_hidden_dropout: float | None = None
    # Positions after which the gradient of a classified text is cut (BPT3C). None: whole texts.
    bptt_window: int | None = None
    # Pool only this many last positions, and train only on their windows. None: all positions.
    pooled_positions: int | None = None
    # The vector of a text: the family's own ([CLS], the extract token, ...), or the mean of the
    # top layer over the text's pieces.
    pooling: Literal["model_default", "mean"] = "model_default"
    aux_lm_weight: float = 0.0  # of the language model's loss on the task's texts; GPT-1: 0.5
    # Layer norm without parameters before the linear head over words, because a new head hardly
    # reads small vectors (docs/decisions/0016).
    word_layer_norm: bool = False
    # Learn a text's label after every position, later ones with more weight (Dai and Le 2015,
    # section 3).
    linear_label_gain: bool = False

    def __post_init__(self) -> None:
        DiscriminativeFinetuneSettings.__post_init__(self)
        EarlyStopping.__post_init__(self)
        check_positive(self, "bptt_window", "pooled_positions")
        check_fraction(self, "gradual_unfreezing", "dropout", "classifier_hidden_dropout")
        check_non_negative(self, "aux_lm_weight")
        self._check_windows()
        if self.classifier_hidden_dropout is not None and self.pooling != "model_default":
            raise ValueError(
                "classifier_hidden_dropout belongs to the family's own classifier; "
                "remove it, or set pooling: model_default"
            )
        HyperparameterTrials.__post_init__(self)

    def _check_windows(self) -> None:
        window = self.bptt_window
        pooled = self.pooled_positions
        if pooled is not None and (window is None or pooled < window):
            raise ValueError(
                f"pooled_positions is {pooled}, but bptt_window is {window or 'not set'}; "
                f"set bptt_window to {pooled} or less"
            )
        if window is not None and (self.aux_lm_weight or self.pooling != "model_default"):
            raise ValueError(
                "bptt_window only works with the family's own vector of a text; "
                "remove it, or set pooling: model_default and aux_lm_weight: 0"
            )
        if self.linear_label_gain and (window is not None or self.pooling != "model_default"):
            raise ValueError(
                "linear_label_gain is for the last state of a text that is read whole; "
                "set it to false, or remove bptt_window and set pooling: model_default"
            )

    @property
    def recipe(self) -> str:
        """The techniques that are on, joined by +, or plain."""
        is_slanted = self.schedule == "slanted_triangular"
        techniques = {
            "discriminative": self.layer_lr_decay != 1,
            "slanted_triangular": is_slanted and self.ratio != 1,
            f"{self.schedule} rates": not is_slanted,
            "gradual": self.gradual_unfreezing > 0,
            "lm": self.aux_lm_weight > 0,
            "uncorrected": not self.bias_correction,
            "linear gain": self.linear_label_gain,
            "word norm": self.word_layer_norm,
        }
        return "+".join(name for name, is_on in techniques.items() if is_on) or "plain"


@dataclass(frozen=True, kw_only=True)
class SetfitSettings(HyperparameterTrials):
    """The block `setfit`: fine-tuning on pairs of labelled texts, then a linear probe.

    It is for the models of grid.setfit_models. `lineage.evaluation.setfit` says more.
    """

    # Not used if the block sets l2. Trials that differ in l2 alone share one fine-tuning.
    trials: tuple[Trial, ...] = DEFAULT_L2_TRIALS
    l2: float = 0.001  # of the probe, as in `linear_probe`
    # The highest; it rises over the first tenth of the steps, then falls to 0. None: that of
    # `finetune`.
    learning_rate: float | None = None
    # Pairs of each labelled text with one of the same label, and as many with one of another label
    # (R in Tunstall et al. 2022, section 3.1).
    num_iterations: int = 20
    batch_size: int = 16  # pairs
    # At most: from 400 labels on, there are fewer pairs of each text.
    max_steps: int = 1000

    def __post_init__(self) -> None:
        check_positive(self, "l2", "learning_rate", "num_iterations", "max_steps")
        if self.batch_size < 2:
            raise ValueError(
                f"batch_size is {self.batch_size}; a batch has pairs of one label and of two, so "
                "set it to 2 or more"
            )
        super().__post_init__()

    def count_pairs(self, num_texts: int) -> int:
        """Return the number of pairs for so many labelled texts; half of them are positive."""
        max_pairs = self.max_steps * self.batch_size
        return 2 * min(self.num_iterations * num_texts, max_pairs // 2)

    def count_steps(self, num_texts: int) -> int:
        """Return the number of gradient steps for so many labelled texts."""
        return -(-self.count_pairs(num_texts) // self.batch_size)  # rounded up

    def count_distinct_texts(self, num_texts: int) -> float:
        """Return the expected number of distinct texts in a batch, each of which is read once."""
        if num_texts == 0:
            return 0.0
        return num_texts * (1 - (1 - 1 / num_texts) ** (2 * self.batch_size))

    @property
    def probe(self) -> LinearProbeSettings:
        """The settings of the probe."""
        return LinearProbeSettings(trials=(), l2=self.l2)

    @property
    def without_probe(self) -> Self:
        """The settings of the fine-tuning alone: equal ones give the same encoder."""
        return replace(self, trials=(), label_counts=(), l2=1.0)


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """The block `evaluate`."""

    linear_probe: LinearProbeSettings = field(default_factory=LinearProbeSettings)
    bilstm_probe: BilstmProbeSettings = field(default_factory=BilstmProbeSettings)
    finetune: FinetuneSettings
    setfit: SetfitSettings = field(default_factory=SetfitSettings)
    translation: TranslationSettings | None = None  # for families that have a translator

    @property
    def methods(self) -> dict[str, HyperparameterTrials]:
        """The methods of transfer by the names of their blocks."""
        learning_rate = self.setfit.learning_rate or self.finetune.learning_rate
        return {
            "linear_probe": self.linear_probe,
            "bilstm_probe": self.bilstm_probe,
            "finetune": self.finetune,
            "setfit": replace(self.setfit, learning_rate=learning_rate),
        }

    def describe_transfer(self, family_text: str, *, has_bilstm_probe: bool) -> str:
        """Adapt the family's `transfer_description` to these settings.

        It begins with the family's own method: the scalar mix of FEATURE_DESCRIPTIONS, or
        WHOLE_NETWORK. Settings of that method that differ replace it; those of the other method
        are added.
        `has_bilstm_probe`: some task has a BiLSTM probe.
        """
        mix = FEATURE_DESCRIPTIONS["scalar_mix"]
        features = FEATURE_DESCRIPTIONS[self.linear_probe.features]
        parts = [family_text]
        if family_text.startswith(mix):
            parts = [features + family_text.removeprefix(mix)]
        elif self.linear_probe.features != "scalar_mix":
            parts.append(f"frozen, {features}")
        if has_bilstm_probe and self.bilstm_probe.features != self.linear_probe.features:
            parts.append(f"under a network, {FEATURE_DESCRIPTIONS[self.bilstm_probe.features]}")
        if self.finetune.pooling == "mean":
            mean = f"{WHOLE_NETWORK}, mean of the pieces"
            if family_text.startswith(WHOLE_NETWORK):
                parts[0] = mean
            else:
                parts.append(mean)
        return "; ".join(parts)
