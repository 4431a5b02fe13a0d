"""Training a translator from two language models, and writing translations or summaries with it.

See Ramachandran, Liu and Le 2017, section 2.2; a summary is learned alike (section 3.2).

Shapes: B items, K beams, N = B K rows, S source positions, T target positions, D width,
V vocabulary.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol, Self, cast

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lineage.answers.base import AnsweredBy, PredictionColumns
from lineage.answers.text import TextAnswer, text_columns
from lineage.artifacts import check_intact
from lineage.errors import EvaluationError
from lineage.families.translator import EncoderMemory, TranslationSettings, Translator
from lineage.methods.base import (
    FittedSystem,
    Method,
    RunItems,
    answer_scored_splits,
    select_train_rows,
)
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import (
    EncoderUnderTest,
    EvalRun,
    LabelCount,
    Subject,
    TaskContext,
    Transfer,
    under_test,
)
from lineage.methods.encoding import EncodedItem, batch_by_length
from lineage.methods.item_batches import ItemBatches
from lineage.methods.saved import AnswerItems, SavedSystem
from lineage.networks.base import Encoder, LossOutput, Trained
from lineage.networks.batch import IGNORE_INDEX, Batch, BatchSampler
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.layers.lstm import LSTMState
from lineage.randomness import derive_seed
from lineage.results import Note
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Encoding, Tokenizer
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import slanted_triangular_schedule
from lineage.training.sentence_scores import MAX_LOGITS_PER_BATCH
from lineage.training.state import RngState, TrainState
from lineage.work import TRAINING_PASSES

# In pretraining this token separates documents, so a target begins and ends with it.
END_TOKEN = "<|endoftext|>"
LANGUAGES = ("source", "target")


@dataclass(frozen=True, kw_only=True)
class TranslationMethod(TranslationSettings, Method):
    """The block `translation`: the translator, its training and its decoding.

    Each ablation of the paper changes one line.
    """

    name: ClassVar[str] = "translation"
    transfer: ClassVar[Transfer] = "finetuned"
    head: ClassVar[str] = "decoder"
    titles: ClassVar[Mapping[str, str]] = {"decoder": "fine-tuned"}
    meanings: ClassVar[Mapping[str, str]] = {
        "decoder": "all weights of the model learn from pairs of texts"
    }
    descriptions: ClassVar[Mapping[str, str]] = {
        "decoder": "The whole network of {model}, fine-tuned."
    }
    answered_by: ClassVar[AnsweredBy] = "translator"

    # The label counts of the grid to use this method with. Empty: those of `finetune`.
    label_counts: tuple[LabelCount, ...] = ()

    def complete(self, finetune: Method) -> Self:
        label_counts = self.label_counts or finetune.requested_label_counts
        return replace(self, label_counts=label_counts)

    @property
    def requested_label_counts(self) -> tuple[LabelCount, ...]:
        return self.label_counts

    def features_name(self, context: TaskContext) -> str:
        return "last"  # the decoder reads the top layer

    def recipe_name(self, context: TaskContext) -> str:
        return self.recipe

    def count_work(self, items: RunItems) -> float:
        """Count the pairs of all epochs, and the translations."""
        return TRAINING_PASSES * self.epochs * items.train + items.scored

    def shorten(self) -> Self:
        return replace(self, epochs=1, label_counts=())

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Train a translator on pairs and translate every scored split. Raises EvaluationError."""
        encoder = under_test(subject)
        context = encoder.context
        assert context.tokens_dir is not None and run.finetune_seed is not None
        check_intact(context.tokens_dir)
        train_rows = select_train_rows(context, run)
        language_models = (
            encoder.build_encoder(),
            EncoderUnderTest(context, "random").build_encoder(),
        )
        model = build_trained_translator(
            context.checkpoint,
            language_models,
            context.tokens_dir,
            context.task.splits["train"].iloc[train_rows],
            self,
            seed=run.finetune_seed,
            precision=context.precision,
        )
        tokenizer = context.checkpoint.tokenizer

        def answer(items: pd.DataFrame) -> PredictionColumns:
            sources = items["source"].tolist()
            texts, scores = translate(model, tokenizer, sources, precision=context.precision)
            return text_columns(items, texts, context.task.info.ranking_metric, scores)

        predictions = answer_scored_splits(subject, run, answer)
        return FittedSystem(predictions, self, model.state_dict)

    def load(self, saved: SavedSystem) -> AnswerItems:
        checkpoint = saved.checkpoint
        family = checkpoint.family
        assert isinstance(family, Trained) and family.build_translator is not None
        # The weights of all parts are replaced below.
        cpu = torch.device("cpu")
        trained, random_init = [checkpoint.build(cpu, load_weights=False) for _ in range(2)]
        generator = torch.Generator().manual_seed(0)
        model: Translator = saved.load_weights(
            family.build_translator(trained, random_init, self, generator=generator)
        )

        def answer(items: pd.DataFrame) -> PredictionColumns:
            sources = items["source"].tolist()
            precision = saved.record.precision
            texts, _ = translate(model, checkpoint.tokenizer, sources, precision=precision)
            return {"prediction": texts}

        return answer

    def describe_answers(self, context: TaskContext, predictions: pd.DataFrame) -> list[Note]:
        notes = super().describe_answers(context, predictions)
        unfinished_share = float(predictions["score"].isna().mean())
        if unfinished_share:
            value = {"share": unfinished_share, "max_new_tokens": self.max_new_tokens}
            answer = context.kind.answer
            assert issubclass(answer, TextAnswer)
            notes.append(Note(answer.unfinished_note, value))
        return notes


class TwoLanguageSampler(Protocol):
    """Batches of running text of the source language and of the target language."""

    @property
    def samplers(self) -> Sequence[BatchSampler]: ...


@dataclass(frozen=True)
class PairBatch(Batch):
    """Decoder inputs and targets, sources, and a window of running text for each language model."""

    sources: Batch | None = None
    windows: tuple[Batch, ...] = ()

    def to(self, device: torch.device) -> "PairBatch":
        assert self.sources is not None
        moved = super().to(device)
        assert isinstance(moved, PairBatch)
        windows = tuple(window.to(device) for window in self.windows)
        return dataclasses.replace(moved, sources=self.sources.to(device), windows=windows)


def collate_pairs(
    tokenizer: Tokenizer,
    sources: Sequence[Encoding],
    targets: Sequence[Encoding],
    windows: tuple[Batch, ...] = (),
) -> PairBatch:
    """Build a batch in which the decoder reads END_TOKEN and the target, shifted by one."""
    end_id = tokenizer.special_token_ids[END_TOKEN]
    shape = (len(targets), max(len(target.ids) - 1 for target in targets))
    ids_BT = np.full(shape, tokenizer.pad_token_id)
    targets_BT = np.full(shape, IGNORE_INDEX)
    for row, target in enumerate(targets):
        token_ids = target.ids[1:-1]
        ids_BT[row, : len(token_ids) + 1] = [end_id, *token_ids]
        targets_BT[row, : len(token_ids) + 1] = [*token_ids, end_id]
    mask_BT = torch.from_numpy(targets_BT != IGNORE_INDEX)
    return PairBatch(
        torch.from_numpy(ids_BT),
        mask_BT,
        targets_BT=torch.from_numpy(targets_BT),
        num_tokens=int(mask_BT.sum()),
        sources=tokenizer.collate(sources),
        windows=windows,
    )


class PairSampler(ItemBatches):
    """Pairs, shuffled in each epoch, with the next window of running text in each language.

    Raises EvaluationError if the text, which starts again at its end, is too short.
    """

    carries_state = True  # of the language models; pairs have no state

    def __init__(
        self,
        tokenizer: Tokenizer,
        sources: Sequence[Encoding],
        targets: Sequence[Encoding],
        text_sampler: TwoLanguageSampler,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        items = [EncodedItem(source) for source in sources]
        no_labels_N = np.zeros(len(items))
        super().__init__(tokenizer, items, no_labels_N, batch_size=batch_size, seed=seed)
        self.targets = targets
        self.epoch = 0
        self.text_samplers = text_sampler.samplers
        self.text_epochs = [0] * len(self.text_samplers)
        self.batches_per_text_epoch = [sampler.set_epoch(0) for sampler in self.text_samplers]
        if not all(self.batches_per_text_epoch):
            raise EvaluationError(
                "the corpus is too short for a single batch of each language; add text, or lower "
                "pretrain.batch_size and pretrain.seq_len"
            )

    def set_epoch(self, epoch: int) -> int:
        self.epoch = epoch
        return super().set_epoch(epoch)

    def get_batch(self, index: int) -> PairBatch:
        indices = self.batch_indices[index]
        step = self.epoch * len(self.batch_indices) + index
        windows = [self._get_window(language, step) for language in range(len(LANGUAGES))]
        return collate_pairs(
            self.tokenizer,
            [self.items[i].encoded for i in indices],
            [self.targets[i] for i in indices],
            tuple(windows),
        )

    def _get_window(self, language: int, step: int) -> Batch:
        epoch, index = divmod(step, self.batches_per_text_epoch[language])
        if epoch != self.text_epochs[language]:
            self.text_epochs[language] = epoch
            self.text_samplers[language].set_epoch(epoch)
        return self.text_samplers[language].get_batch(index)


def translation_loss(
    model: Translator, batch: PairBatch, recurrent_state: tuple[LSTMState, ...] | None = None
) -> LossOutput:
    """Return the loss of the target tokens plus those of both language models (section 2.2)."""
    assert batch.sources is not None
    assert batch.targets_BT is not None
    memory = model.encode(batch.sources.ids_BT, batch.sources.mask_BT)
    logits_BTV, _ = model.decode(batch.ids_BT, model.initial_states(), memory)
    total = F.cross_entropy(
        logits_BTV.flatten(0, 1),
        batch.targets_BT.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
    )
    loss = total / batch.num_tokens
    nats = {"task": total.detach()}
    counts = {"task": batch.num_tokens}
    if not model.settings.aux_lm_losses:
        return LossOutput(loss, nats, counts)
    language_models = (model.source_lm, model.target_lm)
    states = recurrent_state or (None, None)
    new_states = []
    for name, language_model, window, state in zip(
        LANGUAGES, language_models, batch.windows, states, strict=True
    ):
        lm_nats, num_targets, new_state = language_model.loss(
            window, state, dropout=model.settings.dropout
        )
        nats[name] = lm_nats.detach()
        counts[name] = num_targets
        loss = loss + lm_nats / num_targets
        new_states.append(new_state)
    return LossOutput(loss, nats, counts, tuple(new_states))


def _encode_pairs(
    tokenizer: Tokenizer, pairs: pd.DataFrame, *, max_target_length: int
) -> tuple[list[Encoding], list[Encoding]]:
    """Encode both columns. Raises EvaluationError for targets longer than a translation may be."""
    sources = tokenizer.encode_batch(pairs["source"].tolist())
    targets = tokenizer.encode_batch(pairs["target"].tolist())
    lengths = [len(target.ids) - 1 for target in targets]
    longest = max(lengths)
    if longest > max_target_length:
        pair_id = pairs["id"].iloc[lengths.index(longest)]
        raise EvaluationError(
            f"the target of {pair_id} has {longest} tokens, with its end token, more than "
            f"evaluate.translation.max_new_tokens, {max_target_length}; raise it, or remove the "
            "pair"
        )
    return sources, targets


def build_trained_translator(
    checkpoint: Checkpoint,
    models: tuple[Encoder, Encoder],
    tokens_dir: Path,
    pairs: pd.DataFrame,
    settings: TranslationSettings,
    *,
    seed: int,
    precision: str,
) -> Translator:
    """Build the family's translator from a pretrained and a random-init model, and train it.

    `tokens_dir` is the tokenized corpus. Raises EvaluationError if a target is too long, the corpus
    too short, or the loss not finite.
    """
    family = checkpoint.family
    tokenizer = checkpoint.tokenizer
    assert isinstance(family, Trained)
    assert family.build_translator is not None
    text_sampler = family.batch_sampler(
        TokenizedCorpus.load(tokens_dir, "train"),
        tokenizer,
        checkpoint.pretrain,
        seed=derive_seed("running text", seed),
    )
    init_generator = torch.Generator().manual_seed(derive_seed("translator", seed))
    model: Translator = family.build_translator(*models, settings, generator=init_generator)
    sources, targets = _encode_pairs(tokenizer, pairs, max_target_length=settings.max_new_tokens)
    sampler = PairSampler(
        tokenizer,
        sources,
        targets,
        cast(TwoLanguageSampler, text_sampler),
        batch_size=settings.batch_size,
        seed=seed,
    )
    num_steps = settings.epochs * sampler.set_epoch(0)
    groups = build_param_groups([[*model.parameters()]], weight_decay=settings.weight_decay)
    state = TrainState(model, build_adamw(groups), RngState(derive_seed("translate", seed)))
    plan = TrainPlan(
        progress=lambda counters: counters.steps / num_steps,
        lr_schedule=slanted_triangular_schedule(settings.cut_frac, settings.ratio, steps=num_steps),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        precision=precision,
        max_epochs=settings.epochs,
    )
    for _ in train(state, translation_loss, sampler, plan):
        pass
    return model


@torch.inference_mode()
def translate(
    model: Translator, tokenizer: Tokenizer, sources: Sequence[str], *, precision: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return (N,) translations and (N,) mean log-probabilities of their tokens, in nats.

    The latter is NaN if no end token was written within `max_new_tokens`.
    """
    model.eval()
    device = next(model.parameters()).device
    end_id = tokenizer.special_token_ids[END_TOKEN]
    items = [EncodedItem(encoded) for encoded in tokenizer.encode_batch(list(sources))]
    texts_N = np.empty(len(items), object)
    scores_N = np.empty(len(items))
    logits_per_item = tokenizer.vocab_size * model.settings.num_beams
    batch_size = max(1, MAX_LOGITS_PER_BATCH // logits_per_item)
    for group in batch_by_length(items):
        for start in range(0, len(group), batch_size):
            indices = group[start : start + batch_size]
            batch = tokenizer.collate([items[i].encoded for i in indices]).to(device)
            with autocast(device, precision):
                memory = model.encode(batch.ids_BT, batch.mask_BT)
                outputs, scores_N[indices] = beam_search(model, memory, end_id=end_id)
            texts_N[indices] = [
                tokenizer.backend_tokenizer.decode(ids.tolist()).strip() for ids in outputs
            ]
    return texts_N, scores_N


class _Beams:
    """The K most probable hypotheses of each item."""

    def __init__(
        self, batch_size: int, num_beams: int, *, end_id: int, device: torch.device
    ) -> None:
        shape = (batch_size, num_beams)
        self.end_id = end_id
        self.tokens_BKT = torch.full((*shape, 1), end_id, device=device)
        # All beams are equal before the first step, so only one of them may be extended.
        self.log_probs_BK = torch.full(shape, float("-inf"), device=device)
        self.log_probs_BK[:, 0] = 0.0
        self.is_finished_BK = torch.zeros(shape, dtype=torch.bool, device=device)
        self.lengths_BK = torch.zeros(shape, device=device)

    def extend(self, log_probs_BKV: torch.Tensor) -> torch.Tensor:
        """Add a token to each beam; return (N,) the row of the old beam that each extends."""
        B, K, V = log_probs_BKV.shape
        # A finished beam can only continue with another end token, which costs nothing.
        log_probs_BKV = log_probs_BKV.masked_fill(self.is_finished_BK[..., None], float("-inf"))
        log_probs_BKV[..., self.end_id] = torch.where(
            self.is_finished_BK, 0.0, log_probs_BKV[..., self.end_id]
        )
        totals_BF = (self.log_probs_BK[..., None] + log_probs_BKV).flatten(1)
        self.log_probs_BK, chosen_BK = totals_BF.topk(K)
        beam_BK = chosen_BK // V
        token_BK = chosen_BK % V
        was_finished_BK = self.is_finished_BK.gather(1, beam_BK)
        self.lengths_BK = self.lengths_BK.gather(1, beam_BK) + ~was_finished_BK
        prefix_BKT = self.tokens_BKT.gather(1, beam_BK[..., None].expand_as(self.tokens_BKT))
        self.tokens_BKT = torch.cat([prefix_BKT, token_BK[..., None]], -1)
        self.is_finished_BK = was_finished_BK | (token_BK == self.end_id)
        item_B1 = torch.arange(B, device=beam_BK.device)[:, None]
        return (item_B1 * K + beam_BK).flatten()

    def best(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Return each item's best finished beam and its mean log-probability, else any with NaN."""
        means_BK = self.log_probs_BK / self.lengths_BK
        none_finished_B1 = ~self.is_finished_BK.any(1, keepdim=True)
        is_candidate_BK = self.is_finished_BK | none_finished_B1
        best_B = torch.where(is_candidate_BK, means_BK, float("-inf")).argmax(1)
        item_B = torch.arange(len(best_B), device=best_B.device)
        scores_B = torch.where(self.is_finished_BK, means_BK, float("nan"))[item_B, best_B]
        outputs = []
        for tokens_T in self.tokens_BKT[item_B, best_B, 1:].cpu().numpy():
            ends = np.flatnonzero(tokens_T == self.end_id)
            outputs.append(tokens_T[: ends[0]] if len(ends) else tokens_T)
        return outputs, scores_B.double().cpu().numpy()


@torch.inference_mode()
def beam_search(
    model: Translator, memory: EncoderMemory, *, end_id: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the token ids of each item's translation, without end token, and (B,) scores."""
    B = len(memory.mask_BS)
    K = model.settings.num_beams
    device = memory.mask_BS.device
    memory = memory.select_rows(torch.arange(B, device=device).repeat_interleave(K))
    beams = _Beams(B, K, end_id=end_id, device=device)
    states = model.initial_states()
    for _ in range(model.settings.max_new_tokens):
        last_N1 = beams.tokens_BKT[..., -1:].view(B * K, 1)
        logits_N1V, new_states = model.decode(last_N1, states, memory)
        log_probs_NV = torch.log_softmax(logits_N1V[:, -1].float(), -1)
        rows_N = beams.extend(log_probs_NV.view(B, K, -1))
        states = [(h[:, rows_N].contiguous(), c[:, rows_N].contiguous()) for h, c in new_states]
        if bool(beams.is_finished_BK.all()):
            break
    return beams.best()
