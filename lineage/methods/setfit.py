"""SetFit: an encoder is fine-tuned on pairs of labelled texts; a linear probe reads its vectors.

Tunstall et al. 2022, "Efficient Few-Shot Learning Without Prompts", section 3.1. The vectors of two
texts with the same label are drawn together, those of two labels apart. Pairs, loss and optimizer
are those of the code released with the paper (setfit 0.1).

Shapes: N labelled texts, C classes among them, P pairs, H pairs of one label or as many of two, B
pairs or texts of a batch, M texts, D width, K labels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.params import Grid
from lineage.config.records import check_positive
from lineage.data.task_data import SplitItems
from lineage.errors import EvaluationError
from lineage.methods.base import Method, RunItems
from lineage.methods.early_stopping import CurvePoint, steps_between_validations
from lineage.methods.encoder import EncoderUnderTest, Subject, TaskContext, Transfer, under_test
from lineage.methods.encoding import EncodedItem, batch_by_length, collate_items
from lineage.methods.feature_store import FeatureScaling
from lineage.methods.finetuning import FinetuneMethod
from lineage.methods.head_method import HeadMethod, PredictItems
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem, StartedHead
from lineage.methods.linear_probe import LinearProbeMethod, fit_linear_probe, score_linearly
from lineage.methods.saved import SavedSystem
from lineage.methods.stored_features import StoredFeatures
from lineage.methods.trials import DEFAULT_L2_TRIALS, Trial
from lineage.networks.base import Encoder, LossOutput
from lineage.networks.batch import Batch, masked_mean
from lineage.randomness import derive_seed, generator
from lineage.results import Note
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import schedule_with_warmup
from lineage.training.state import RngState, TrainState
from lineage.work import TRAINING_PASSES

# The released code has the first, and the defaults of sentence-transformers.
WARMUP_RATIO = 0.1
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class SetfitMethod(HeadMethod):
    """The block `setfit`: fine-tuning on pairs of labelled texts, then a linear probe.

    It is for the models of grid.setfit_models. See the top of this file.
    """

    name: ClassVar[str] = "setfit"
    transfer: ClassVar[Transfer] = "setfit"
    titles: ClassVar[Mapping[str, str]] = {"linear": "SetFit"}
    meanings: ClassVar[Mapping[str, str]] = {
        "linear": "the model learns to tell pairs of texts with the same label from other pairs, "
        "and a linear classifier learns from its vectors"
    }
    descriptions: ClassVar[Mapping[str, str]] = {
        "linear": "A linear probe on vectors of {model}, fine-tuned on pairs of texts (SetFit)."
    }
    noun: ClassVar[str] = "SetFit"

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
    # The vector of a text: the family's own, or the mean of the top layer over the text's pieces.
    # None: that of `finetune`.
    pooling: Literal["model_default", "mean"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "l2", "learning_rate", "num_iterations", "max_steps")
        if self.batch_size < 2:
            raise ValueError(
                f"batch_size is {self.batch_size}; a batch has pairs of one label and of two, so "
                "set it to 2 or more"
            )

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
    def probe(self) -> LinearProbeMethod:
        return LinearProbeMethod(trials=(), l2=self.l2)

    @property
    def without_probe(self) -> Self:
        """The settings of the fine-tuning alone: equal ones give the same encoder."""
        return replace(self, trials=(), label_counts=(), l2=1.0)

    def complete(self, finetune: Method) -> Self:
        """Take the learning rate and the pooling of fine-tuning if the block lacks them."""
        assert isinstance(finetune, FinetuneMethod)
        return replace(
            self,
            learning_rate=self.learning_rate or finetune.learning_rate,
            pooling=self.pooling or finetune.pooling,
        )

    def is_in_grid(self, model: str, grid: Grid) -> bool:
        return model in grid.setfit_models

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        is_label_of_text = kind.unit == "text" and kind.answer.has_one_label
        return super().suits(kind, info) and is_label_of_text and not info.is_pair

    def features_name(self, context: TaskContext) -> str:
        return "mean" if self.pooling == "mean" else "last"

    def count_fits(self, tried: Sequence[Self], items: RunItems) -> float:
        """Count the texts of all steps, and those encoded; trials of different L2 share both."""
        settings = [one.without_probe for one in tried]
        tuned = [one for number, one in enumerate(settings) if one not in settings[:number][-1:]]
        texts = sum(
            one.count_steps(items.train) * one.count_distinct_texts(items.train) for one in tuned
        )
        return TRAINING_PASSES * texts + len(tuned) * (items.train + items.validation)

    def shorten(self) -> Self:
        return replace(self, num_iterations=1, label_counts=())

    def start(self, subject: Subject, problem: HeadProblem, *, seed: int) -> StartedHead:
        """Fine-tune the encoder and fit the probe at once. Raises EvaluationError if that fails."""
        encoder = under_test(subject)
        context = encoder.context
        tuned = self._tune(encoder, problem, seed=seed)

        def embed(table: str, rows: np.ndarray) -> np.ndarray:
            """Return the tuned encoder's vectors of some items, which it keeps."""
            key = (table, rows.tobytes())
            if key not in tuned.vectors:
                items = [context.items[table][i] for i in rows]
                tokenizer = context.checkpoint.tokenizer
                tuned.vectors[key] = encode_texts(
                    tuned.model, tokenizer, items, precision=context.precision
                )
            return tuned.vectors[key]

        probe = fit_linear_probe(
            embed("train", problem.train_rows),
            problem.labels_M,
            problem.answer,
            self.probe,
            seed=seed,
        )

        def predict(part: SplitItems) -> HeadOutput:
            return probe(embed(part.table, part.rows_N)), None

        def get_tensors() -> dict[str, torch.Tensor]:
            scaling = FeatureScaling.none((1, len(probe.weight_DK)))
            weight_KD, bias_K = probe.fold(scaling)
            return {"weight": weight_KD, "bias": bias_K} | tuned.model.state_dict()

        notes = [] if probe.has_converged else [Note("not_converged", self.probe.max_iter)]
        return StartedHead(FittedHead(predict, get_tensors, tuned.learning_curve, notes))

    def _tune(
        self, encoder: EncoderUnderTest, problem: HeadProblem, *, seed: int
    ) -> "TunedEncoder":
        """Return the encoder fine-tuned on pairs of labelled texts of the table train."""
        key = (self.without_probe, seed, problem.train_rows.tobytes())
        last_key, tuned = encoder.kept.get(self.name, (None, None))
        if last_key == key and isinstance(tuned, TunedEncoder):
            return tuned
        tuned = None
        encoder.kept.pop(self.name, None)  # frees its memory
        context = encoder.context
        items = context.items["train"]
        tuned = tune_encoder(
            encoder.build_encoder(),
            context.checkpoint.tokenizer,
            [items[i] for i in problem.train_rows],
            problem.labels_M,
            self,
            seed=seed,
            precision=context.precision,
        )
        encoder.kept[self.name] = (key, tuned)
        return tuned

    def load_head(self, saved: SavedSystem) -> PredictItems:
        head = {name: saved.tensors.pop(name) for name in ("weight", "bias")}
        encoder = saved.build_empty_encoder()
        uses_mean_pooling = saved.record.features == "mean"
        model = saved.load_weights(SentenceEncoder(encoder, uses_mean_pooling=uses_mean_pooling))
        tokenizer = saved.checkpoint.tokenizer
        answer = saved.record.answer

        @torch.no_grad()
        def predict(items: list[EncodedItem]) -> HeadOutput:
            vectors = encode_texts(model, tokenizer, items, precision=saved.record.precision)
            scores = score_linearly(StoredFeatures.wrap(vectors), head)
            return answer.postprocess(torch.cat(scores)), None

        return predict


class Pairs(NamedTuple):
    """Pairs of labelled texts, in random order."""

    indices_P2: np.ndarray
    same_label_P: np.ndarray  # float32: 1 or 0


def sample_pairs(labels_N: np.ndarray, num_pairs: int, rng: np.random.Generator) -> Pairs:
    """Draw pairs of texts: each text comes first equally often, or once more than others.

    Half of the pairs have the same label, and may be a text twice; the others have two labels.
    Raises EvaluationError if all texts have one label.
    """
    names, classes_N, counts_C = np.unique(labels_N, return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise EvaluationError(
            "all labelled texts have the same label, and SetFit learns from pairs with two; raise "
            "label_counts"
        )
    N = len(labels_N)
    rounds = [rng.permutation(N) for _ in range(-(-num_pairs // (2 * N)))]
    first_H = np.concatenate(rounds)[: num_pairs // 2]
    # The texts of a class follow each other in `sorted_N`, from `starts_C` on.
    sorted_N = np.argsort(classes_N, kind="stable")
    starts_C = np.cumsum(counts_C) - counts_C
    start_H = starts_C[classes_N[first_H]]
    count_H = counts_C[classes_N[first_H]]
    positive_H = sorted_N[start_H + rng.integers(count_H)]
    place_H = rng.integers(N - count_H)  # among the texts of all other classes
    negative_H = sorted_N[np.where(place_H < start_H, place_H, place_H + count_H)]
    second_P = np.concatenate([positive_H, negative_H])
    indices_P2 = np.column_stack([np.tile(first_H, 2), second_P])
    same_label_P = np.repeat(np.array([1, 0], np.float32), len(first_H))
    order = rng.permutation(len(indices_P2))
    return Pairs(indices_P2[order], same_label_P[order])


@dataclass(frozen=True)
class PairBatch(Batch):
    """The distinct texts of a batch of pairs."""

    rows_2B: torch.Tensor = field(kw_only=True)  # the rows of the first and of the second texts
    same_label_B: torch.Tensor = field(kw_only=True)  # 1 or 0


class PairBatches:
    """Pairs in their order; a text of several pairs of a batch is read once.

    The released code reads it once for each pair, with other units dropped out.
    """

    carries_state = False

    def __init__(
        self, tokenizer: Tokenizer, items: Sequence[EncodedItem], pairs: Pairs, *, batch_size: int
    ) -> None:
        self.tokenizer = tokenizer
        self.items = items
        self.pairs = pairs
        self.batch_size = batch_size

    def set_epoch(self, epoch: int) -> int:
        """Return the number of batches; there is one epoch."""
        return -(-len(self.pairs.indices_P2) // self.batch_size)  # rounded up

    def get_batch(self, index: int) -> PairBatch:
        part = slice(index * self.batch_size, (index + 1) * self.batch_size)
        texts, rows_2B = np.unique(self.pairs.indices_P2[part].T, return_inverse=True)
        batch = collate_items(self.tokenizer, [self.items[i] for i in texts])
        return PairBatch(
            **vars(batch),
            rows_2B=torch.from_numpy(rows_2B.reshape(2, -1)),
            same_label_B=torch.from_numpy(self.pairs.same_label_P[part]),
        )


class SentenceEncoder(nn.Module):
    """An encoder that gives the vector of a text that fine-tuning also reads.

    With `uses_mean_pooling` it is the mean of the top layer over the text's pieces.
    """

    def __init__(self, encoder: Encoder, *, uses_mean_pooling: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.uses_mean_pooling = uses_mean_pooling

    def forward(self, batch: Batch) -> torch.Tensor:
        layers = self.encoder.encode(batch)
        if self.uses_mean_pooling:
            assert batch.text_mask_BT is not None
            return masked_mean(layers[-1], batch.text_mask_BT)
        return self.encoder.pool(layers, batch)


def cosine_similarity_loss(
    model: SentenceEncoder, batch: PairBatch, recurrent_state: None = None
) -> LossOutput:
    """Return the mean squared difference of the cosine of two texts from 1 or 0."""
    first_BD, second_BD = model(batch).float()[batch.rows_2B]
    cosines_B = F.cosine_similarity(first_BD, second_BD, dim=-1)
    loss = F.mse_loss(cosines_B, batch.same_label_B)
    count = len(cosines_B)
    return LossOutput(loss, {"pairs": loss.detach() * count}, {"pairs": count})


@dataclass(frozen=True)
class TunedEncoder:
    """An encoder that was fine-tuned on pairs, and its learning curve."""

    model: SentenceEncoder
    learning_curve: Sequence[CurvePoint]
    # By the table and rows that a head has read: other heads of the same encoder read them too.
    vectors: dict[tuple[str, bytes], np.ndarray] = field(default_factory=dict)


def tune_encoder(
    encoder: Encoder,
    tokenizer: Tokenizer,
    items: Sequence[EncodedItem],
    labels_N: np.ndarray,
    settings: SetfitMethod,
    *,
    seed: int,
    precision: str,
) -> TunedEncoder:
    """Fine-tune the encoder, in place, on pairs of labelled texts; the last weights are kept.

    Raises EvaluationError if a loss is not finite, or if all texts have one label.
    """
    assert settings.learning_rate is not None, "`complete` fills it in"
    num_pairs = settings.count_pairs(len(items))
    pairs = sample_pairs(labels_N, num_pairs, generator("setfit pairs", seed))
    model = SentenceEncoder(encoder, uses_mean_pooling=settings.pooling == "mean")
    # Parameters outside the layer groups, such as a pretraining head, stay as they are.
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    groups = encoder.layer_groups()
    for group in groups:
        for parameter in group:
            parameter.requires_grad_(True)
    optimizer = build_adamw(build_param_groups(groups, weight_decay=WEIGHT_DECAY))
    num_steps = settings.count_steps(len(items))
    plan = TrainPlan(
        progress=lambda counters: counters.steps / num_steps,
        lr_schedule=schedule_with_warmup("linear", WARMUP_RATIO),
        learning_rate=settings.learning_rate,
        max_grad_norm=MAX_GRAD_NORM,
        precision=precision,
        max_epochs=1,
    )
    state = TrainState(model, optimizer, RngState(derive_seed("setfit", seed)))
    batches = PairBatches(tokenizer, items, pairs, batch_size=settings.batch_size)
    steps = train(state, cosine_similarity_loss, batches, plan)
    return TunedEncoder(model.eval(), _learning_curve([step.loss for step in steps]))


def _learning_curve(losses: Sequence[torch.Tensor]) -> list[CurvePoint]:
    """Return the mean loss between points at equal distances; nothing is validated."""
    num_steps = len(losses)
    interval = steps_between_validations(num_steps)
    values = torch.stack([*losses]).tolist()
    curve = []
    for start in range(0, num_steps, interval):
        part = values[start : start + interval]
        end = start + len(part)
        curve.append(
            CurvePoint(
                step=end,
                epoch=end / num_steps,
                train_loss=sum(part) / len(part),
                validation_loss=math.nan,
                validation_score=math.nan,
                is_kept=end == num_steps,
            )
        )
    return curve


@torch.inference_mode()
def encode_texts(
    model: SentenceEncoder, tokenizer: Tokenizer, items: Sequence[EncodedItem], *, precision: str
) -> np.ndarray:
    """Return (M, 1, D) float32 vectors of length 1 of texts, as one layer of features."""
    model.eval()
    device = next(model.parameters()).device
    batch_rows: list[np.ndarray] = []
    vectors: list[torch.Tensor] = []
    for indices in batch_by_length(items):
        batch = collate_items(tokenizer, [items[i] for i in indices]).to(device)
        with autocast(device, precision):
            vectors.append(model(batch))
        batch_rows.append(indices)
    order = np.argsort(np.concatenate(batch_rows))
    unit_vectors = F.normalize(torch.cat(vectors).float(), dim=-1)
    return unit_vectors.cpu().numpy()[order, None]
