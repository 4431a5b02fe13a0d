"""Two language models tuned into a translator on pairs of texts (Ramachandran, Liu and Le 2017, section 2.2), and what it then writes.

Shapes: B items, K beams, N = B K rows, S and T positions of source and target, D width, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lineage.errors import EvaluationError
from lineage.evaluation.encoding import EncodedItem, batch_by_length
from lineage.evaluation.finetuning import ItemBatches
from lineage.evaluation.metrics import bleu_contributions, get_bleu_signature
from lineage.evaluation.translator import EncoderMemory, TranslationSettings, Translator
from lineage.models.base import Encoder, LossOutput, Trained
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.models.checkpoint import Checkpoint
from lineage.randomness import derive_seed
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Encoding, Tokenizer
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import slanted_triangular_schedule
from lineage.training.sentence_scores import MAX_LOGITS_PER_BATCH
from lineage.training.state import RngState, TrainState

END_TOKEN = "<|endoftext|>"  # stands before every document in pretraining, and so after the one before it: a target begins and ends with it


@dataclass(frozen=True)
class PairBatch(Batch):
    """What the decoder reads and is to write, the sources, and a window of running text for each of the two language models."""

    sources: Batch | None = None
    windows: tuple[Batch, ...] = ()

    def to(self, device: torch.device) -> "PairBatch":
        """The batch on another device, with what it holds."""
        assert self.sources is not None
        moved = super().to(device)
        assert isinstance(moved, PairBatch)
        return dataclasses.replace(
            moved,
            sources=self.sources.to(device),
            windows=tuple(window.to(device) for window in self.windows),
        )


def collate_pairs(
    tokenizer: Tokenizer,
    sources: Sequence[Encoding],
    targets: Sequence[Encoding],
    windows: tuple[Batch, ...] = (),
) -> PairBatch:
    """The decoder reads a target from its begin on, and is to write what comes next, to the end."""
    longest = max(len(target.ids) - 1 for target in targets)
    ids, target_ids = (
        np.full((len(targets), longest), tokenizer.pad_token_id),
        np.full((len(targets), longest), IGNORE_INDEX),
    )
    for row, target in enumerate(targets):
        pieces = target.ids[1:-1]
        ids[row, : len(pieces) + 1] = [tokenizer.special_token_ids[END_TOKEN], *pieces]
        target_ids[row, : len(pieces) + 1] = [*pieces, tokenizer.special_token_ids[END_TOKEN]]
    mask, source_batch = torch.from_numpy(target_ids != IGNORE_INDEX), tokenizer.collate(sources)
    return PairBatch(
        torch.from_numpy(ids),
        mask,
        targets_BT=torch.from_numpy(target_ids),
        num_tokens=int(mask.sum()),
        sources=source_batch,
        windows=windows,
    )


class PairSampler(ItemBatches):
    """Pairs in a new order each epoch, and with each batch the next window of either language's text, which begins anew when it ends."""

    carries_state = True  # the language models' state; pairs have none

    def __init__(
        self,
        tokenizer: Tokenizer,
        pairs: tuple[list[Encoding], list[Encoding]],
        text_sampler: Any,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        super().__init__(
            tokenizer,
            [EncodedItem(source) for source in pairs[0]],
            np.zeros(len(pairs[0])),
            batch_size=batch_size,
            seed=seed,
        )
        self.pairs, self.language_samplers, self.epoch = pairs, text_sampler.samplers, 0
        self.batches_per_epoch = [side.set_epoch(0) for side in self.language_samplers]
        self.current_epochs = [0, 0]
        if not all(self.batches_per_epoch):
            raise EvaluationError(
                "the corpus is too short for a single batch of each language; add text, or lower pretrain's batch and length"
            )

    def set_epoch(self, epoch: int) -> int:
        """Shuffle."""
        self.epoch = epoch
        return super().set_epoch(epoch)

    def get_batch(self, index: int) -> PairBatch:
        """One batch of the epoch."""
        some, number = self.batch_indices[index], self.epoch * len(self.batch_indices) + index
        sources, targets = ([side[i] for i in some] for side in self.pairs)
        return collate_pairs(
            self.tokenizer,
            sources,
            targets,
            tuple(self._next_window(side, number) for side in (0, 1)),
        )

    def _next_window(self, language: int, number: int) -> Batch:
        epoch, place = divmod(number, self.batches_per_epoch[language])
        if epoch != self.current_epochs[language]:
            self.current_epochs[language] = epoch
            self.language_samplers[language].set_epoch(epoch)
        found: Batch = self.language_samplers[language].get_batch(place)
        return found


def translation_loss(model: Translator, batch: PairBatch, carry: Any = None) -> LossOutput:
    """Nats a target piece, plus nats a piece of each language model on its own text: the three weigh the same (section 2.2)."""
    assert batch.sources is not None and batch.targets_BT is not None
    memory = model.encode(batch.sources.ids_BT, batch.sources.mask_BT)
    logits, _ = model.decode(batch.ids_BT, model.initial_states(), memory)
    nats = F.cross_entropy(
        logits.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    loss, sums, counts = (
        nats / batch.num_tokens,
        {"task": nats.detach()},
        {"task": batch.num_tokens},
    )
    if not model.settings.aux_lm_losses:
        return LossOutput(loss, sums, counts)
    states = []
    for name, own, window, state in zip(
        ("source", "target"),
        (model.source_lm, model.target_lm),
        batch.windows,
        carry or (None, None),
        strict=True,
    ):
        found, counts[name], after = own.loss(window, state, dropout=model.settings.dropout)
        sums[name] = found.detach()
        loss = loss + found / counts[name]
        states.append(after)
    return LossOutput(loss, sums, counts, tuple(states))


def encode_pairs(
    tokenizer: Tokenizer, pairs: pd.DataFrame, *, max_target_length: int
) -> tuple[list[Encoding], list[Encoding]]:
    """Sources and targets. Raises CellError where a translation as long as a target could not be written."""
    sources, targets = (
        tokenizer.encode_batch(pairs[column].tolist()) for column in ("source", "target")
    )
    sizes = [len(target.ids) - 1 for target in targets]
    if (longest_target := max(sizes)) > max_target_length:
        raise EvaluationError(
            f"the target of {pairs['id'].iloc[sizes.index(longest_target)]} has {longest_target} pieces, with its end, more than evaluate.translation.longest, "
            f"{max_target_length}; raise it, or take the pair out"
        )
    return sources, targets


def train_translator(
    model: Translator,
    tokenizer: Tokenizer,
    pairs: pd.DataFrame,
    text_sampler: Any,
    *,
    seed: int,
    precision: str,
) -> Translator:
    """Train the whole translator, in place, on pairs and on `text`, a stream with a side of running text for each language.

    The last epoch's network is taken: nothing is chosen on any split. Raises CellError.
    """
    settings = model.settings
    sampler = PairSampler(
        tokenizer,
        encode_pairs(tokenizer, pairs, max_target_length=settings.max_new_tokens),
        text_sampler,
        batch_size=settings.batch_size,
        seed=seed,
    )
    total = settings.epochs * sampler.set_epoch(0)
    groups = build_param_groups([[*model.parameters()]], weight_decay=settings.weight_decay)
    plan = TrainPlan(
        progress=lambda spent: spent.steps / total,
        lr_schedule=slanted_triangular_schedule(settings.cut_frac, settings.ratio, steps=total),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        precision=precision,
        max_epochs=settings.epochs,
    )
    for _ in train(
        TrainState(model, build_adamw(groups), RngState(derive_seed("translate", seed))),
        translation_loss,
        sampler,
        plan,
    ):
        pass
    return model


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
    """The family's translator made of a trained model and its untrained twin, tuned; `text` is the folder of the corpus as ids. Raises CellError."""
    family, init_generator = (
        checkpoint.family,
        torch.Generator().manual_seed(derive_seed("translator", seed)),
    )
    assert isinstance(family, Trained) and family.build_translator is not None
    text_sampler = family.batch_sampler(
        TokenizedCorpus.load(tokens_dir, "train"),
        checkpoint.tokenizer,
        checkpoint.pretrain,
        seed=derive_seed("running text", seed),
    )
    model = family.build_translator(*models, settings, generator=init_generator)
    return train_translator(
        model, checkpoint.tokenizer, pairs, text_sampler, seed=seed, precision=precision
    )


@torch.inference_mode()
def translate(
    model: Translator, tokenizer: Tokenizer, sources: Sequence[str], *, precision: str
) -> tuple[np.ndarray, np.ndarray]:
    """(N,) texts, and (N,) log-probabilities a piece in nats, not a number where no end was written within `longest` pieces."""
    model.eval()
    device = next(model.parameters()).device
    items = [EncodedItem(encoded) for encoded in tokenizer.encode_batch(list(sources))]
    texts, scores = np.empty(len(items), object), np.empty(len(items))
    batch_size = max(1, MAX_LOGITS_PER_BATCH // (tokenizer.vocab_size * model.settings.num_beams))
    for some in (
        group[at : at + batch_size]
        for group in batch_by_length(items)
        for at in range(0, len(group), batch_size)
    ):
        batch = tokenizer.collate([items[i].encoded for i in some]).to(device)
        with autocast(device, precision):
            written, scores[some] = beam_search(
                model,
                model.encode(batch.ids_BT, batch.mask_BT),
                end_id=tokenizer.special_token_ids[END_TOKEN],
            )
        texts[some] = [tokenizer.backend_tokenizer.decode(ids.tolist()).strip() for ids in written]
    return texts, scores


@torch.inference_mode()
def beam_search(
    model: Translator, memory: EncoderMemory, *, end_id: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """The pieces of each item's translation, without its end, and its log-probability a piece: beam search, which is greedy where the beam is 1.

    Of the beams that ended the likeliest a piece is taken; where none did, the likeliest, and its probability is not a number.
    """
    B, K, device = len(memory.mask_BS), model.settings.num_beams, memory.mask_BS.device
    memory = memory.select_rows(torch.arange(B, device=device).repeat_interleave(K))
    pieces_BKT = torch.full((B, K, 1), end_id, device=device)
    total_BK = torch.full((B, K), float("-inf"), device=device)
    total_BK[:, 0] = 0.0
    done_BK, length_BK, states = (
        torch.zeros_like(total_BK, dtype=torch.bool),
        torch.zeros_like(total_BK),
        model.initial_states(),
    )
    for _ in range(model.settings.max_new_tokens):
        logits, after = model.decode(pieces_BKT[..., -1:].view(B * K, 1), states, memory)
        log_p_BKV = torch.log_softmax(logits[:, -1].float(), -1).view(B, K, -1)
        log_p_BKV = log_p_BKV.masked_fill(done_BK[..., None], float("-inf"))
        log_p_BKV[..., end_id] = torch.where(
            done_BK, 0.0, log_p_BKV[..., end_id]
        )  # what has ended stays as it is
        V = log_p_BKV.shape[-1]
        total_BK, chosen_BK = (total_BK[..., None] + log_p_BKV).flatten(1).topk(K)
        from_BK, piece_BK = chosen_BK // V, chosen_BK % V
        done_BK, length_BK = done_BK.gather(1, from_BK), length_BK.gather(1, from_BK)
        length_BK = length_BK + ~done_BK
        pieces_BKT = torch.cat(
            [pieces_BKT.gather(1, from_BK[..., None].expand_as(pieces_BKT)), piece_BK[..., None]],
            -1,
        )
        done_BK = done_BK | (piece_BK == end_id)
        rows_N = (torch.arange(B, device=device)[:, None] * K + from_BK).flatten()
        states = [(h[:, rows_N].contiguous(), c[:, rows_N].contiguous()) for h, c in after]
        if bool(done_BK.all()):
            break
    each_BK = total_BK / length_BK
    best_B = torch.where(done_BK | ~done_BK.any(1, keepdim=True), each_BK, float("-inf")).argmax(1)
    found = pieces_BKT[torch.arange(B, device=device), best_B, 1:].cpu().numpy()
    scores = (
        torch.where(done_BK, each_BK, float("nan"))[torch.arange(B, device=device), best_B]
        .double()
        .cpu()
        .numpy()
    )
    return [row[: np.argmax(row == end_id)] if end_id in row else row for row in found], scores


def translate_split(
    model: Translator, tokenizer: Tokenizer, table: pd.DataFrame, *, precision: str
) -> dict[str, np.ndarray]:
    """The columns of a split's predictions: reference, translation, its log-probability a piece, and its share in corpus BLEU."""
    texts, scores = translate(model, tokenizer, table["source"].tolist(), precision=precision)
    references = table["target"].to_numpy(object)
    return {
        "label": references,
        "prediction": texts,
        "score": scores,
        "correct": bleu_contributions(references, texts),
    }


def translation_note(predictions: pd.DataFrame, settings: TranslationSettings) -> str:
    """What a row of a translation says beside its value: how BLEU was taken, and what was cut."""
    notes, unfinished_share = (
        [get_bleu_signature(predictions["label"].to_numpy(), predictions["prediction"].to_numpy())],
        float(predictions["score"].isna().mean()),
    )
    if unfinished_share:
        notes.append(
            f"{unfinished_share:.1%} of the translations had not ended after {settings.max_new_tokens} pieces, and were cut"
        )
    return "; ".join(notes)
