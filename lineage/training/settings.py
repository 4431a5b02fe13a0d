"""The settings of pretraining: the block `pretrain` of a model in params.yaml."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from lineage.config.records import check_fraction, check_non_negative, check_positive
from lineage.training.schedules import LrScheduleName

MIN_MASKED_SEQ_LEN = 8  # tokens of a masked sequence, special tokens included


@dataclass(frozen=True)
class NonMonotonicTrigger:
    """When SGD begins to average its weights (NT-ASGD; Merity et al. 2018, algorithm 1).

    Averaging begins at the first check whose loss is above the best one of all checks but the
    last `patience`.
    """

    checks: int  # validations on the whole validation text, at equal distances over the budget
    patience: int  # n in the paper, where it is 5

    def __post_init__(self) -> None:
        check_positive(self, "checks", "patience")
        if self.checks <= self.patience + 1:
            raise ValueError(
                f"{self.checks} checks are too few for a patience of {self.patience}: "
                "averaging would never begin; ask for more"
            )

    def is_triggered(self, losses: Sequence[float]) -> bool:
        """Compare the last validation loss with the best before the last `patience` ones."""
        *earlier, last = losses
        return len(earlier) > self.patience and last > min(earlier[: -self.patience])


class SettingsPhase(NamedTuple):
    """A part of a training run: the progress at which it ends, and the settings of its batches."""

    end_progress: float
    settings: "PretrainSettings"


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """The block `pretrain` with the keys that all families share."""

    batch_size: int  # sequences
    seq_len: int  # tokens
    learning_rate: float  # the highest
    warmup_ratio: float = 0.05
    weight_decay: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.999)
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    grad_accum_steps: int = 1  # batches per optimizer step
    schedule: LrScheduleName = "linear"
    bias_correction: bool = True  # of Adam; the released BERT has none
    nt_asgd: NonMonotonicTrigger | None = None  # replaces Adam
    optimizer: Literal["adam", "muon"] = "adam"  # muon: for the body's matrices, adam for the rest

    def __post_init__(self) -> None:
        if self.optimizer == "muon" and (self.nt_asgd or not self.bias_correction):
            raise ValueError(
                "optimizer is muon, which does not go with nt_asgd and has Adam's bias corrected; "
                "set nt_asgd to null and bias_correction to true"
            )
        if self.nt_asgd and self.schedule != "constant":
            raise ValueError(
                "nt_asgd averages weights instead of lowering the learning rate, and schedule is "
                f"{self.schedule}; set it to constant"
            )
        if self.nt_asgd and not self.bias_correction:
            raise ValueError("bias_correction does not apply to nt_asgd; remove one of them")
        check_positive(
            self,
            "batch_size",
            "seq_len",
            "learning_rate",
            "epsilon",
            "max_grad_norm",
            "grad_accum_steps",
        )
        check_fraction(self, "warmup_ratio")
        check_non_negative(self, "weight_decay")
        check_betas(self.betas)

    @property
    def phases(self) -> list[SettingsPhase]:
        return [SettingsPhase(1.0, self)]

    def schedule_progress(self, progress: float) -> float:
        """Return the share of the steps that are done at this share of the text."""
        return progress


@dataclass(frozen=True, kw_only=True)
class BilmPretrainSettings(PretrainSettings):
    """The block `pretrain` of models that read BPTT batches in both directions.

    The keys turn on the peculiarities of ELMo's released trainer.
    """

    optimizer: Literal["adam", "muon", "adagrad"] = "adam"  # type: ignore[assignment]
    initial_accumulator_value: float = 1.0  # of AdaGrad's sums of squares
    # Multiply the loss by `seq_len` before clipping: AdaGrad's steps depend on the scale of the
    # loss while its sums are small.
    scale_loss_by_seq_len: bool = False
    carry_state: bool = True  # keep the recurrent state from window to window; else start at zero

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "initial_accumulator_value")
        if self.optimizer == "adagrad" and (self.nt_asgd or not self.bias_correction):
            raise ValueError(
                "optimizer is adagrad, which neither corrects a bias nor averages weights; "
                "set bias_correction to true and nt_asgd to null"
            )


@dataclass(frozen=True)
class MaskReplacement:
    """Shares of the predicted positions that get the mask or a random word; the rest stays."""

    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        check_fraction(self, "mask", "random")
        if self.mask + self.random > 1:
            raise ValueError(
                f"mask and random are shares of one whole; {self.mask} and {self.random} are more"
            )


@dataclass(frozen=True, kw_only=True)
class MaskedLmPretrainSettings(PretrainSettings):
    """The block `pretrain` of BERT (Devlin et al. 2019, section 3.1 and appendix A.2)."""

    mlm_probability: float = 0.15  # share of the positions that are predicted
    # Share of the documents, drawn again each epoch, that are read in sequences of a random
    # shorter length, as in the released code.
    short_seq_prob: float = 0.1
    # Shares of the predicted positions that get the mask or a random word.
    mask_replacement: MaskReplacement = field(default_factory=MaskReplacement)
    whole_word_masking: bool = False  # mask all pieces of a word or none
    dupe_factor: int | None = None  # versions of pairs and masks that repeat; null: always new ones
    max_predictions_per_seq: int | None = None  # null: no limit
    next_sentence_prediction: bool = True
    # Read a sentence that alone would overfill a pair in parts; else its ends are cut off, as in
    # the released code.
    split_long_sentences: bool = True
    # Tokens of a sequence until the last part of the training, which reads `seq_len`;
    # null: always `seq_len`.
    initial_seq_len: int | None = None
    # Share of the text that the last part reads. Appendix A.2 trains a tenth of the steps at 512
    # tokens after 128, which is 0.31 of the text.
    long_seq_share: float = 0.31

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "mlm_probability", "short_seq_prob", "long_seq_share")
        check_positive(
            self, "dupe_factor", "max_predictions_per_seq", "initial_seq_len", "long_seq_share"
        )
        if self.initial_seq_len is not None and (
            self.initial_seq_len >= self.seq_len or self.long_seq_share == 1
        ):
            raise ValueError(
                f"initial_seq_len is {self.initial_seq_len}; it must be less than seq_len, "
                f"{self.seq_len}, and long_seq_share must be less than 1"
            )
        check_min_seq_len("seq_len", self.seq_len)
        check_min_seq_len("initial_seq_len", self.initial_seq_len)

    @property
    def phases(self) -> list[SettingsPhase]:
        """Short sequences first, if requested, since attention over long ones is expensive."""
        if self.initial_seq_len is None:
            return [SettingsPhase(1.0, self)]
        short = replace(self, seq_len=self.initial_seq_len, initial_seq_len=None)
        return [SettingsPhase(1.0 - self.long_seq_share, short), SettingsPhase(1.0, self)]

    def schedule_progress(self, progress: float) -> float:
        """Return the share of the steps that are done at this share of the text.

        A step over long sequences reads more text than one over short ones: nine tenths of the
        paper's steps are done at 0.69 of the text.
        """
        if self.initial_seq_len is None:
            return progress
        switch_progress = 1.0 - self.long_seq_share
        total_steps = switch_progress / self.initial_seq_len + self.long_seq_share / self.seq_len
        steps = (
            min(progress, switch_progress) / self.initial_seq_len
            + max(0.0, progress - switch_progress) / self.seq_len
        )
        return steps / total_steps


def check_betas(betas: tuple[float, ...]) -> None:
    """Raise ValueError unless these are Adam's two decay rates."""
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas are two numbers, at least 0 and below 1, found {list(betas)}")


def check_min_seq_len(name: str, seq_len: int | None) -> None:
    """Raise ValueError if a masked sequence is too short; None passes."""
    if seq_len is not None and seq_len < MIN_MASKED_SEQ_LEN:
        raise ValueError(
            f"{name} is {seq_len}; at least {MIN_MASKED_SEQ_LEN} are needed, for the special "
            "tokens and some text"
        )
