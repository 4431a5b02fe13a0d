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

from lineage.batch import NO_TARGET, Batch
from lineage.checkpoint import Checkpoint
from lineage.errors import CellError
from lineage.family import Encoder, LossOut
from lineage.randomness import seed_of
from lineage.scoring.metrics import bleu_shares, bleu_signature
from lineage.text.tokenization import Encoded, Reader
from lineage.text.tokens import Tokens
from lineage.training.optim import adamw, decayed_groups, slanted_triangular
from lineage.training.sentences import SCORED_LOGITS
from lineage.training.train import Course, Draws, Run, autocast, train
from lineage.transfer.reading import Item, read_batches
from lineage.transfer.translator import Memory, TranslateSettings, Translator
from lineage.transfer.tuning import ItemStream

END = "<|endoftext|>"  # stands before every document in pretraining, and so after the one before it: a target begins and ends with it


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
        return dataclasses.replace(moved, sources=self.sources.to(device), windows=tuple(window.to(device) for window in self.windows))


def pair_batch(reader: Reader, sources: Sequence[Encoded], targets: Sequence[Encoded], windows: tuple[Batch, ...] = ()) -> PairBatch:
    """The decoder reads a target from its begin on, and is to write what comes next, to the end."""
    longest = max(len(target.ids) - 1 for target in targets)
    ids, wanted = np.full((len(targets), longest), reader.pad), np.full((len(targets), longest), NO_TARGET)
    for row, target in enumerate(targets):
        pieces = target.ids[1:-1]
        ids[row, : len(pieces) + 1] = [reader.marks[END], *pieces]
        wanted[row, : len(pieces) + 1] = [*pieces, reader.marks[END]]
    mask, read = torch.from_numpy(wanted != NO_TARGET), reader.collate(sources)
    return PairBatch(torch.from_numpy(ids), mask, targets_BT=torch.from_numpy(wanted), tokens=int(mask.sum()), sources=read, windows=windows)


class PairStream(ItemStream):
    """Pairs in a new order each epoch, and with each batch the next window of either language's text, which begins anew when it ends."""

    carries = True  # the language models' state; pairs have none

    def __init__(self, reader: Reader, pairs: tuple[list[Encoded], list[Encoded]], text: Any, *, batch: int, seed: int) -> None:
        super().__init__(reader, [Item(source) for source in pairs[0]], np.zeros(len(pairs[0])), batch=batch, seed=seed)
        self.pairs, self.sides, self.passed = pairs, text.sides, 0
        self.counts = [side.start(0) for side in self.sides]
        self.laid = [0, 0]
        if not all(self.counts):
            raise CellError("the corpus is too short for a single batch of each language; add text, or lower pretrain's batch and length")

    def start(self, passed: int) -> int:
        """Shuffle."""
        self.passed = passed
        return super().start(passed)

    def batch(self, index: int) -> PairBatch:
        """One batch of the epoch."""
        some, number = self.groups[index], self.passed * len(self.groups) + index
        sources, targets = ([side[i] for i in some] for side in self.pairs)
        return pair_batch(self.reader, sources, targets, tuple(self._window(side, number) for side in (0, 1)))

    def _window(self, side: int, number: int) -> Batch:
        passed, place = divmod(number, self.counts[side])
        if passed != self.laid[side]:
            self.laid[side] = passed
            self.sides[side].start(passed)
        found: Batch = self.sides[side].batch(place)
        return found


def translation_objective(model: Translator, batch: PairBatch, carry: Any = None) -> LossOut:
    """Nats a target piece, plus nats a piece of each language model on its own text: the three weigh the same (section 2.2)."""
    assert batch.sources is not None and batch.targets_BT is not None
    memory = model.remember(batch.sources.ids_BT, batch.sources.mask_BT)
    logits, _ = model.decode(batch.ids_BT, model.cold(), memory)
    nats = F.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=NO_TARGET, reduction="sum")
    loss, sums, counts = nats / batch.tokens, {"task": nats.detach()}, {"task": batch.tokens}
    if not model.settings.language_model_losses:
        return LossOut(loss, sums, counts)
    states = []
    for name, own, window, state in zip(("source", "target"), (model.source, model.target), batch.windows, carry or (None, None), strict=True):
        found, counts[name], after = own.loss(window, state, dropout=model.settings.dropout)
        sums[name] = found.detach()
        loss = loss + found / counts[name]
        states.append(after)
    return LossOut(loss, sums, counts, tuple(states))


def encoded_pairs(reader: Reader, pairs: pd.DataFrame, *, longest: int) -> tuple[list[Encoded], list[Encoded]]:
    """Sources and targets. Raises CellError where a translation as long as a target could not be written."""
    sources, targets = (reader.encode_many(pairs[column].tolist()) for column in ("source", "target"))
    sizes = [len(target.ids) - 1 for target in targets]
    if (most := max(sizes)) > longest:
        raise CellError(f"the target of {pairs['id'].iloc[sizes.index(most)]} has {most} pieces, with its end, more than evaluate.translate.longest, "
                        f"{longest}; raise it, or take the pair out")  # fmt: skip
    return sources, targets


def tune(model: Translator, reader: Reader, pairs: pd.DataFrame, text: Any, *, seed: int, precision: str) -> Translator:
    """Train the whole translator, in place, on pairs and on `text`, a stream with a side of running text for each language.

    The last epoch's network is taken: nothing is chosen on any split. Raises CellError.
    """
    settings = model.settings
    stream = PairStream(reader, encoded_pairs(reader, pairs, longest=settings.longest), text, batch=settings.batch, seed=seed)
    total = settings.epochs * stream.start(0)
    groups = decayed_groups([[*model.parameters()]], weight_decay=settings.weight_decay)
    course = Course(
        progress=lambda spent: spent.steps / total,
        rate=slanted_triangular(settings.cut_share, settings.ratio, steps=total),
        highest=settings.rate,
        clip_norm=settings.clip_norm,
        precision=precision,
        passes=settings.epochs,
    )
    for _ in train(Run(model, adamw(groups), Draws(seed_of("translate", seed))), translation_objective, stream, course):
        pass
    return model


def tuned_translator(
    checkpoint: Checkpoint,
    models: tuple[Encoder, Encoder],
    text: Path,
    pairs: pd.DataFrame,
    settings: TranslateSettings,
    *,
    seed: int,
    precision: str,
) -> Translator:
    """The family's translator made of a trained model and its untrained twin, tuned; `text` is the folder of the corpus as ids. Raises CellError."""
    family, start = checkpoint.family, torch.Generator().manual_seed(seed_of("translator", seed))
    assert family.translator is not None and family.stream is not None
    running = family.stream(Tokens.load(text, "train"), checkpoint.reader, checkpoint.pretrain, seed=seed_of("running text", seed))
    model = family.translator(*models, settings, generator=start)
    return tune(model, checkpoint.reader, pairs, running, seed=seed, precision=precision)


@torch.inference_mode()
def translate(model: Translator, reader: Reader, sources: Sequence[str], *, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """(N,) texts, and (N,) log-probabilities a piece in nats, not a number where no end was written within `longest` pieces."""
    model.eval()
    device = next(model.parameters()).device
    items = [Item(encoded) for encoded in reader.encode_many(list(sources))]
    texts, scores = np.empty(len(items), object), np.empty(len(items))
    most = max(1, SCORED_LOGITS // (reader.vocabulary * model.settings.beam))
    for some in (group[at : at + most] for group in read_batches(items) for at in range(0, len(group), most)):
        batch = reader.collate([items[i].encoded for i in some]).to(device)
        with autocast(device, precision):
            written, scores[some] = search(model, model.remember(batch.ids_BT, batch.mask_BT), end=reader.marks[END])
        texts[some] = [reader.tokenizer.decode(ids.tolist()).strip() for ids in written]
    return texts, scores


@torch.inference_mode()
def search(model: Translator, memory: Memory, *, end: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The pieces of each item's translation, without its end, and its log-probability a piece: beam search, which is greedy where the beam is 1.

    Of the beams that ended the likeliest a piece is taken; where none did, the likeliest, and its probability is not a number.
    """
    B, K, device = len(memory.mask_BS), model.settings.beam, memory.mask_BS.device
    memory = memory.rows(torch.arange(B, device=device).repeat_interleave(K))
    pieces_BKT = torch.full((B, K, 1), end, device=device)
    total_BK = torch.full((B, K), float("-inf"), device=device)
    total_BK[:, 0] = 0.0
    done_BK, length_BK, states = torch.zeros_like(total_BK, dtype=torch.bool), torch.zeros_like(total_BK), model.cold()
    for _ in range(model.settings.longest):
        logits, after = model.decode(pieces_BKT[..., -1:].view(B * K, 1), states, memory)
        log_p_BKV = torch.log_softmax(logits[:, -1].float(), -1).view(B, K, -1)
        log_p_BKV = log_p_BKV.masked_fill(done_BK[..., None], float("-inf"))
        log_p_BKV[..., end] = torch.where(done_BK, 0.0, log_p_BKV[..., end])  # what has ended stays as it is
        V = log_p_BKV.shape[-1]
        total_BK, chosen_BK = (total_BK[..., None] + log_p_BKV).flatten(1).topk(K)
        from_BK, piece_BK = chosen_BK // V, chosen_BK % V
        done_BK, length_BK = done_BK.gather(1, from_BK), length_BK.gather(1, from_BK)
        length_BK = length_BK + ~done_BK
        pieces_BKT = torch.cat([pieces_BKT.gather(1, from_BK[..., None].expand_as(pieces_BKT)), piece_BK[..., None]], -1)
        done_BK = done_BK | (piece_BK == end)
        rows_N = (torch.arange(B, device=device)[:, None] * K + from_BK).flatten()
        states = [(h[:, rows_N].contiguous(), c[:, rows_N].contiguous()) for h, c in after]
        if bool(done_BK.all()):
            break
    each_BK = total_BK / length_BK
    best_B = torch.where(done_BK | ~done_BK.any(1, keepdim=True), each_BK, float("-inf")).argmax(1)
    found = pieces_BKT[torch.arange(B, device=device), best_B, 1:].cpu().numpy()
    scores = torch.where(done_BK, each_BK, float("nan"))[torch.arange(B, device=device), best_B].double().cpu().numpy()
    return [row[: np.argmax(row == end)] if end in row else row for row in found], scores


def answers(model: Translator, reader: Reader, table: pd.DataFrame, *, precision: str) -> dict[str, np.ndarray]:
    """The columns of a split's predictions: reference, translation, its log-probability a piece, and its share in corpus BLEU."""
    texts, scores = translate(model, reader, table["source"].tolist(), precision=precision)
    gold = table["target"].to_numpy(object)
    return {"gold": gold, "prediction": texts, "score": scores, "correct": bleu_shares(gold, texts)}


def note(found: pd.DataFrame, settings: TranslateSettings) -> str:
    """What a row of a translation says beside its value: how BLEU was taken, and what was cut."""
    said, unended = [bleu_signature(found["gold"].to_numpy(), found["prediction"].to_numpy())], float(found["score"].isna().mean())
    if unended:
        said.append(f"{unended:.1%} of the translations had not ended after {settings.longest} pieces, and were cut")
    return "; ".join(said)
