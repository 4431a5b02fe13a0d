"""Measure the stages that train models, on a sample of the corpus: tokenizer, pretrain, adapt.

The probe runs the stages' own functions. What it measures are rates: seconds for a byte of text,
for a batch of held-out text, for a model's first steps. The counts by which they are multiplied
come from the parameters and from the sizes of the data.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lineage.artifacts import create_artifact, folder_bytes, read_table
from lineage.config.params import Params
from lineage.forecast.data import CorpusSizes
from lineage.forecast.measure import (
    LinearCost,
    Stopwatch,
    measure_growing,
    time_call,
)
from lineage.language import byte_count
from lineage.networks.base import Encoder, Family, Static
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.study.models import ModelConfig
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.adapt import build_adaptation
from lineage.training.loop import StepOutput, train, validate
from lineage.training.optimizers import AveragedSGD
from lineage.training.pretrain import (
    Training,
    build_checkpoint,
    build_training,
    fit_static,
    mean_flops_per_token,
)
from lineage.training.train_run import ALL_BATCHES, NUM_VALIDATIONS, VALIDATION_BATCHES, TrainPhase

FIRST_STATIC_BYTES = 50_000
FIRST_TEXTS_DIVISOR = 4  # a tokenizer is trained on so small a part of the sample first
MAX_STEPS = 200  # of a phase that are measured
MAX_VALIDATION_BATCHES = 3  # that are measured
ENDLESS_BYTES = 1e18


@dataclass(frozen=True)
class TokenizerCosts:
    """The cost of a model's tokenizer, by bytes of text."""

    train: LinearCost
    encode_seconds_per_byte: float
    fixed_disk_bytes: int
    disk_bytes_per_byte: float  # of token ids
    # The table of distinct words, of which a longer text has fewer new ones: its bytes for the
    # sample, and the power of the text's size with which it grows.
    word_table_bytes: int
    word_table_exponent: float
    sample_bytes: int

    def disk_bytes(self, text_bytes: int) -> int:
        """Return the bytes of the artifact for a corpus of this size."""
        growth = (text_bytes / max(1, self.sample_bytes)) ** self.word_table_exponent
        word_bytes = self.word_table_bytes * growth
        return self.fixed_disk_bytes + round(text_bytes * self.disk_bytes_per_byte + word_bytes)


@dataclass(frozen=True)
class TrainingCosts:
    """The cost of training a model, by bytes of text."""

    fixed_seconds: float  # build the model, count its operations, save it
    text: LinearCost
    steps_per_byte: float
    # Held-out text: a batch, and its bytes. None are read for static vectors.
    validation_batch_seconds: float
    validation_batch_bytes: float
    num_validations: int  # while it trains
    max_validation_batches: int  # of each
    disk_bytes: int

    def training_seconds(self, text_bytes: float, *, heldout_bytes: float) -> float:
        """Return the seconds of a training, with its validations."""
        num_batches = min(self.max_validation_batches, self.heldout_batches(heldout_bytes))
        validation_seconds = self.num_validations * num_batches * self.validation_batch_seconds
        return self.fixed_seconds + self.text.seconds(text_bytes) + validation_seconds

    def heldout_batches(self, heldout_bytes: float) -> float:
        """Return the number of batches of a held-out text."""
        if not self.validation_batch_bytes:
            return 0.0
        return max(1.0, heldout_bytes / self.validation_batch_bytes)

    def adaptation_seconds(
        self, params: Params, *, train_bytes: float, heldout_bytes: float
    ) -> float:
        """Return the seconds of an adaptation that does not end early.

        It reads all the held-out text before, after, and at each validation.
        """
        text_bytes = min(params.max_adaptation_bytes, params.adapt.max_epochs * train_bytes)
        num_batches = (NUM_VALIDATIONS + 2) * self.heldout_batches(heldout_bytes)
        validation_seconds = num_batches * self.validation_batch_seconds
        return self.fixed_seconds + self.text.seconds(text_bytes) + validation_seconds


def probe_tokenizer(
    model: ModelConfig,
    params: Params,
    scratch: Path,
    data_root: Path,
    *,
    share: float,
    max_seconds: float,
) -> TokenizerCosts:
    """Train the model's tokenizer on a share of the sample, and write that as token ids."""
    corpus = params.budget.corpus
    language = params.corpora[corpus].language
    tables = {}
    for split in ("train", "valid"):
        table = read_table(scratch / "corpora" / corpus / f"{split}.parquet")
        tables[split] = table.head(max(1, round(share * len(table))))
    if model.tokenizer is None:
        assert model.checkpoint_source is not None, "the study was checked"
        source = model.checkpoint_source.resolve_folder(data_root)
        stopwatch = Stopwatch()
        tokenizer = load_public_tokenizer(source, language=language)
        train_cost = LinearCost(stopwatch.seconds)
    else:
        texts = tables["train"]["text"].tolist()
        tokenizer, train_cost = _train_tokenizer(
            model, model.tokenizer, texts, language, max_seconds=max_seconds
        )
    return _write_tokens(tokenizer, tables, scratch / "tokens" / model.name, train_cost)


def _train_tokenizer(
    model: ModelConfig,
    settings: TokenizerSettings,
    texts: list[str],
    language: str,
    *,
    max_seconds: float,
) -> tuple[Tokenizer, LinearCost]:
    """Train on growing shares of the texts, and return the cost by bytes."""
    bytes_per_text = max(1.0, sum(map(byte_count, texts)) / len(texts))
    tokenizers: list[Tokenizer] = []

    def train_on(num_texts: int) -> None:
        tokenizer = train_tokenizer(
            texts[:num_texts], settings, tokenizer_type=model.tokenizer_type, language=language
        )
        tokenizers.append(tokenizer)

    first_size = max(1, len(texts) // FIRST_TEXTS_DIVISOR)
    cost = measure_growing(
        train_on, first_size=first_size, full_size=len(texts), max_seconds=max_seconds
    ).cost
    return tokenizers[-1], LinearCost(cost.fixed_seconds, cost.seconds_per_unit / bytes_per_text)


def _write_tokens(
    tokenizer: Tokenizer, tables: dict[str, pd.DataFrame], folder: Path, train_cost: LinearCost
) -> TokenizerCosts:
    """Write tokenizer and token ids as the stage does, and measure both."""
    encode_seconds = 0.0
    num_bytes = 0
    word_table_bytes = 0
    word_table_exponent = 0.0
    with create_artifact(folder, "tokens", vocab_size=tokenizer.vocab_size) as draft:
        tokenizer.save(draft)
        fixed_bytes = folder_bytes(draft)
        for split, table in tables.items():
            languages = table["language"].tolist() if table["language"].nunique() > 1 else ()
            stopwatch = Stopwatch()
            tokens = encode_corpus(table["text"].tolist(), tokenizer, languages=languages)
            tokens.save(draft, split)
            encode_seconds += stopwatch.seconds
            num_bytes += tokens.text_bytes
            if tokens.word_byte_ids_UC is not None:
                word_table_bytes += tokens.word_byte_ids_UC.nbytes
            if split == "train":
                word_table_exponent = _growth_of_distinct_ids(tokens.ids)
        token_bytes = folder_bytes(draft) - fixed_bytes - word_table_bytes
    return TokenizerCosts(
        train=train_cost,
        encode_seconds_per_byte=encode_seconds / max(1, num_bytes),
        fixed_disk_bytes=fixed_bytes,
        disk_bytes_per_byte=token_bytes / max(1, num_bytes),
        word_table_bytes=word_table_bytes,
        word_table_exponent=word_table_exponent,
        sample_bytes=num_bytes,
    )


def _growth_of_distinct_ids(ids: np.ndarray) -> float:
    """Return the power of a text's length with which its distinct ids grow (Heaps' law).

    It is that between half of the text and all of it.
    """
    in_half = len(np.unique(ids[: len(ids) // 2]))
    return math.log2(len(np.unique(ids)) / max(1, in_half)) if in_half else 1.0


def probe_training(
    model: ModelConfig,
    params: Params,
    scratch: Path,
    data_root: Path,
    device: torch.device,
    *,
    max_seconds: float,
) -> TrainingCosts:
    """Train a model for a few steps on the sample, and save it as the stage does."""
    stopwatch = Stopwatch()
    tokens_dir = scratch / "tokens" / model.name
    checkpoint, public_model = build_checkpoint(
        model,
        params,
        Tokenizer.load(tokens_dir),
        seed=params.grid.pretrain_seeds[0],
        public_folder=_find_public_folder(model, data_root),
    )
    folder = scratch / "pretrained" / model.name
    if isinstance(model.family, Static):
        tokens = TokenizedCorpus.load(tokens_dir, "train")
        return _probe_static(
            checkpoint, model.family, tokens, params, folder, max_seconds=max_seconds
        )
    is_pretrained = model.family.reads_corpus(model.pretrain)
    has_lm_head = model.family.can_score_text(checkpoint.architecture)
    is_adapted = has_lm_head and model.name in params.grid.adapt_models
    if public_model is not None and not is_pretrained and not is_adapted:
        disk_bytes = _save_model(folder, checkpoint, public_model)
        return _costs_without_training(stopwatch.seconds, disk_bytes)
    tokens = TokenizedCorpus.load(tokens_dir, "train")
    validation_tokens = TokenizedCorpus.load(tokens_dir, "valid")
    if is_pretrained:
        training = build_training(
            checkpoint, tokens, validation_tokens, params, device, public_model=public_model
        )
        network = training.state.model
        assert isinstance(network, Encoder)
        disk_bytes = _save_model(folder, checkpoint, network)
    else:
        assert public_model is not None, "every other family is pretrained"
        disk_bytes = _save_model(folder, checkpoint, public_model)
        checkpoint = Checkpoint.load(folder)
        assert model.adapt is not None, "only static vectors have none"
        training = build_adaptation(
            checkpoint, model.adapt, tokens, validation_tokens, params, device
        )
        network = training.state.model
        assert isinstance(network, Encoder)
    mean_flops_per_token(checkpoint, training.phases, network)
    fixed_seconds = stopwatch.seconds
    costs = _measure_training(training, model.family, params, max_seconds=max_seconds)
    fixed_seconds += costs.fixed_seconds
    return dataclasses.replace(costs, fixed_seconds=fixed_seconds, disk_bytes=disk_bytes)


def _find_public_folder(model: ModelConfig, data_root: Path) -> Path | None:
    if model.checkpoint_source is None:
        return None
    return model.checkpoint_source.resolve_folder(data_root)


def _save_model(folder: Path, checkpoint: Checkpoint, network: Encoder) -> int:
    """Save a model as an artifact and return its bytes."""
    with create_artifact(folder, "model", status="ok", reason="") as draft:
        checkpoint.save(draft, network)
    return folder_bytes(folder)


def _costs_without_training(fixed_seconds: float, disk_bytes: int) -> TrainingCosts:
    return TrainingCosts(
        fixed_seconds=fixed_seconds,
        text=LinearCost(),
        steps_per_byte=0.0,
        validation_batch_seconds=0.0,
        validation_batch_bytes=0.0,
        num_validations=0,
        max_validation_batches=0,
        disk_bytes=disk_bytes,
    )


def _probe_static(
    checkpoint: Checkpoint,
    family: Static,
    tokens: TokenizedCorpus,
    params: Params,
    folder: Path,
    *,
    max_seconds: float,
) -> TrainingCosts:
    """Fit static vectors to growing shares of the text."""
    outputs: list[Encoder] = []
    num_epochs = getattr(checkpoint.pretrain, "epochs", 1)

    def fit(text_bytes: int, epochs: int) -> None:
        short = checkpoint
        if num_epochs > 1:
            pretrain = dataclasses.replace(checkpoint.pretrain, epochs=epochs)
            short = dataclasses.replace(checkpoint, pretrain=pretrain)
        output = fit_static(short, family, tokens, text_bytes, lambda done, note: None)
        outputs.append(output.model)

    full_bytes = params.budget.text_bytes
    if family.uses_cooccurrence_counts:
        full_bytes = min(full_bytes, tokens.text_bytes)
    measure = measure_growing(
        lambda text_bytes: fit(text_bytes, 1),
        first_size=FIRST_STATIC_BYTES,
        full_size=full_bytes,
        max_seconds=max_seconds,
    )
    text = measure.cost
    if num_epochs > 1:
        largest_size = measure.largest_size
        one_epoch = text.seconds(largest_size)
        two_epochs = time_call(lambda: fit(largest_size, 2))
        further_epoch = max(0.0, two_epochs - one_epoch) / one_epoch
        text = text.times(1 + (num_epochs - 1) * further_epoch)
    stopwatch = Stopwatch()
    disk_bytes = _save_model(folder, checkpoint, outputs[-1])
    fixed_seconds = measure.first_call_seconds + stopwatch.seconds
    return dataclasses.replace(_costs_without_training(fixed_seconds, disk_bytes), text=text)


@dataclass(frozen=True)
class _PhaseCosts:
    """The cost of one phase of a training."""

    first_seconds: float  # extra time of the first step
    seconds_per_byte: float
    steps_per_byte: float
    validation_batch_seconds: float
    validation_batch_bytes: float


def _measure_training(
    training: Training, family: Family, params: Params, *, max_seconds: float
) -> TrainingCosts:
    """Measure a few steps of each phase; a phase counts by its share of the text."""
    share_seconds = max_seconds / len(training.phases)
    seconds_per_byte = 0.0
    steps_per_byte = 0.0
    first_seconds = 0.0
    start_progress = 0.0
    for phase in training.phases:
        costs = _measure_phase(training, phase, family, params, max_seconds=share_seconds)
        share = phase.end_progress - start_progress
        seconds_per_byte += share * costs.seconds_per_byte
        steps_per_byte += share * costs.steps_per_byte
        first_seconds += costs.first_seconds
        start_progress = phase.end_progress
    num_validations = NUM_VALIDATIONS
    max_batches = VALIDATION_BATCHES
    if isinstance(training.state.optimizer, AveragedSGD):
        num_validations = training.state.optimizer.trigger.checks
        max_batches = ALL_BATCHES
    return TrainingCosts(
        fixed_seconds=first_seconds,
        text=LinearCost(seconds_per_unit=seconds_per_byte),
        steps_per_byte=steps_per_byte,
        validation_batch_seconds=costs.validation_batch_seconds,
        validation_batch_bytes=costs.validation_batch_bytes,
        num_validations=num_validations,
        max_validation_batches=max_batches,
        disk_bytes=0,
    )


def _measure_phase(
    training: Training, phase: TrainPhase, family: Family, params: Params, *, max_seconds: float
) -> _PhaseCosts:
    state = training.state
    state.epoch = 0
    state.batch_index = 0
    plan = dataclasses.replace(
        training.plan, progress=lambda counters: counters.text_bytes / ENDLESS_BYTES
    )
    steps = train(state, family.objective, phase.train_sampler, plan)  # type: ignore[attr-defined]
    first_seconds = time_call(lambda: _take_step(steps))
    first = _take_step(steps)
    stopwatch = Stopwatch()
    last = first
    while last.step - first.step < MAX_STEPS:
        last = _take_step(steps)
        is_enough = last.step - first.step > 1
        if is_enough and stopwatch.elapsed_seconds > max_seconds:
            break
    seconds = stopwatch.seconds
    text_bytes = max(1, last.counters.text_bytes - first.counters.text_bytes)

    def validate_batches(count: int) -> int:
        sums = validate(
            state.model,
            family.objective,  # type: ignore[attr-defined]
            phase.validation_sampler,
            max_batches=count,
            precision=params.precision,
        )
        return sums.text_bytes

    num_batches = min(MAX_VALIDATION_BATCHES, phase.validation_sampler.set_epoch(0))
    validation_bytes = validate_batches(num_batches)
    validation_seconds = time_call(lambda: validate_batches(num_batches))
    num_steps = last.step - first.step
    return _PhaseCosts(
        first_seconds=max(0.0, first_seconds - seconds / num_steps),
        seconds_per_byte=seconds / text_bytes,
        steps_per_byte=num_steps / text_bytes,
        validation_batch_seconds=validation_seconds / num_batches,
        validation_batch_bytes=validation_bytes / num_batches,
    )


def _take_step(steps: Iterator[StepOutput]) -> StepOutput:
    """Return the next step once it is done: a GPU works on after its step was started."""
    step = next(steps)
    step.loss.item()
    return step


def forecast_pretraining(
    costs: TrainingCosts, model: ModelConfig, params: Params, corpus: CorpusSizes
) -> float:
    """Return the seconds of the stage pretrain."""
    text_bytes = params.budget.text_bytes
    if isinstance(model.family, Static) and model.family.uses_cooccurrence_counts:
        text_bytes = min(text_bytes, corpus.train_bytes)
    if not model.family.reads_corpus(model.pretrain):
        return costs.fixed_seconds
    return costs.training_seconds(text_bytes, heldout_bytes=corpus.valid_bytes)
