"""A summary without training: a language model goes on after the document and `TL;DR:`.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 3.6. The paper
samples; here the most probable token is taken, up to the end of the line.

Shapes: N texts, B rows of a batch, T positions, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from lineage.answers.base import AnsweredBy, PredictionColumns
from lineage.answers.text import text_columns
from lineage.config.records import check_positive
from lineage.errors import EvaluationError
from lineage.methods.base import FittedSystem, Method, RunItems, answer_scored_splits
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import EvalContext, EvalRun, Subject, TaskContext, Transfer, under_test
from lineage.methods.saved import AnswerItems, SavedSystem
from lineage.networks.base import Encoder
from lineage.networks.batch import Batch
from lineage.results import Note
from lineage.tokenizers.tokenizer import Tokenizer

MAX_POSITIONS_PER_BATCH = 8192
MIN_DOCUMENT_TOKENS = 8  # a model that reads fewer has nothing to sum up


@dataclass(frozen=True, kw_only=True)
class ContinuationMethod(Method):
    """The block `continuation`: the words after the document, and the length of the summary."""

    name: ClassVar[str] = "continuation"
    transfer: ClassVar[Transfer] = "zero_shot"
    head: ClassVar[str] = "continuation"
    titles: ClassVar[Mapping[str, str]] = {"continuation": "zero-shot"}
    meanings: ClassVar[Mapping[str, str]] = {
        "continuation": "without labels, the model writes on after the text"
    }
    descriptions: ClassVar[Mapping[str, str]] = {
        "continuation": "{model} writes on after a document and a prompt; nothing was trained."
    }
    answered_by: ClassVar[AnsweredBy] = "continuation"
    keeps_network: ClassVar[bool] = False

    prompt: str = "TL;DR:"  # on a line of its own after the document
    max_new_tokens: int = 60  # a longer summary is cut

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_new_tokens")

    def count_work(self, items: RunItems) -> float:
        return items.scored * self.max_new_tokens

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Let the model summarize every scored split. Raises EvaluationError.

        Runs with other labels or seeds give the same summaries, which are written once.
        """
        encoder = under_test(subject)
        context = encoder.context
        written: dict[str, str] = subject.kept.setdefault(self.name, {})

        def answer(items: pd.DataFrame) -> PredictionColumns:
            documents = [text for text in dict.fromkeys(items["source"]) if text not in written]
            if documents:
                texts = self.write(
                    encoder.build_encoder(),
                    context.checkpoint.tokenizer,
                    documents,
                    limit=context.max_input_positions,
                )
                written.update(zip(documents, texts, strict=True))
            summaries = [written[text] for text in items["source"]]
            return text_columns(items, summaries, context.task.info.ranking_metric)

        return FittedSystem(answer_scored_splits(subject, run, answer), self, get_tensors=dict)

    def load(self, saved: SavedSystem) -> AnswerItems:
        model = saved.build_encoder()
        limit = saved.record.max_input_positions

        def answer(items: pd.DataFrame) -> PredictionColumns:
            tokenizer = saved.checkpoint.tokenizer
            texts = self.write(model, tokenizer, items["source"].tolist(), limit=limit)
            return {"prediction": np.array(texts, object)}

        return answer

    def describe_answers(self, context: TaskContext, predictions: pd.DataFrame) -> list[Note]:
        """Tell how many documents were cut, so that prompt and summary fit behind them."""
        notes = super().describe_answers(context, predictions)
        assert isinstance(context, EvalContext)
        tokenizer = context.checkpoint.tokenizer
        room = self._find_room(tokenizer, context.max_input_positions)
        items = pd.concat(context.task.splits.values()).set_index("id")
        documents = items.loc[predictions["id"], "source"].tolist()
        lengths = [len(text.ids) for text in tokenizer.tokenize(documents)]
        share = float(np.mean([room is not None and length > room for length in lengths]))
        if share:
            notes.append(
                Note("truncated", {"share": share, "max_positions": room, "effect": "cut"})
            )
        return notes

    def write(
        self, model: Encoder, tokenizer: Tokenizer, documents: Sequence[str], *, limit: int | None
    ) -> list[str]:
        """Return (N,) summaries. Documents are cut so that all fits into `limit` positions.

        Raises EvaluationError if hardly anything of a document would fit.
        """
        room = self._find_room(tokenizer, limit)
        if room is not None and room < MIN_DOCUMENT_TOKENS:
            raise EvaluationError(
                f"the model reads {limit} positions, too few for a document, the prompt and "
                f"{self.max_new_tokens} new tokens; lower evaluate.continuation.max_new_tokens, or "
                "raise pretrain.seq_len"
            )
        prefix = tokenizer.special_token_template.prefix
        prompt_ids = self._tokenize_prompt(tokenizer)
        prompts = [
            np.concatenate([prefix, text.ids[:room], prompt_ids]).astype(np.int64)
            for text in tokenizer.tokenize(documents)
        ]
        order = np.argsort([len(ids) for ids in prompts], kind="stable")[::-1]
        texts_N = np.empty(len(prompts), object)
        first = 0
        while first < len(order):
            longest = len(prompts[order[first]]) + self.max_new_tokens
            rows = order[first : first + max(1, MAX_POSITIONS_PER_BATCH // longest)]
            first += len(rows)
            texts_N[rows] = write_on(
                model, tokenizer, [prompts[row] for row in rows], max_new_tokens=self.max_new_tokens
            )
        return list(texts_N)

    def _find_room(self, tokenizer: Tokenizer, limit: int | None) -> int | None:
        """Return the number of tokens of a document that are read; None: any number."""
        if limit is None:
            return None
        num_others = len(tokenizer.special_token_template.prefix)
        num_others += len(self._tokenize_prompt(tokenizer)) + self.max_new_tokens
        return limit - num_others

    def _tokenize_prompt(self, tokenizer: Tokenizer) -> np.ndarray:
        return tokenizer.tokenize([f"\n{self.prompt}"])[0].ids


@torch.inference_mode()
def write_on(
    model: Encoder, tokenizer: Tokenizer, prompts: Sequence[np.ndarray], *, max_new_tokens: int
) -> list[str]:
    """Return (B,) texts of the most probable tokens after each prompt, up to the end of the line.

    Special tokens end a text too. The first token is another one, so that no text is empty. The
    whole prompt is read again for each token, which is fast enough for a short text.
    """
    model.eval()
    device = next(model.parameters()).device
    lengths_B = torch.tensor([len(ids) for ids in prompts], device=device)
    ids_BT = torch.zeros((len(prompts), int(lengths_B.max()) + max_new_tokens), dtype=torch.int64)
    ids_BT[:] = tokenizer.pad_token_id
    for row, ids in enumerate(prompts):
        ids_BT[row, : len(ids)] = torch.from_numpy(ids)
    ids_BT = ids_BT.to(device)
    ends_V = find_end_tokens(tokenizer).to(device)
    rows_B = torch.arange(len(prompts), device=device)
    is_finished_B = torch.zeros_like(rows_B, dtype=torch.bool)
    new_lengths_B = torch.zeros_like(rows_B)
    for step in range(max_new_tokens):
        num_positions = int(lengths_B.max()) + step
        last_B = lengths_B + step - 1
        mask_BT = torch.arange(num_positions, device=device) <= last_B[:, None]
        top_BTD = model.encode(Batch(ids_BT[:, :num_positions], mask_BT))[-1]
        logits_BV = model.logits(top_BTD[rows_B, last_B])[:, : tokenizer.vocab_size]
        if step == 0:
            logits_BV = logits_BV.masked_fill(ends_V, float("-inf"))
        next_B = logits_BV.argmax(1)
        is_finished_B |= ends_V[next_B]
        if bool(is_finished_B.all()):
            break
        ids_BT[rows_B, last_B + 1] = next_B
        new_lengths_B += ~is_finished_B
    texts = []
    for row, start, length in zip(
        ids_BT.cpu(), lengths_B.tolist(), new_lengths_B.tolist(), strict=True
    ):
        new_ids = row[start : start + length].tolist()
        texts.append(tokenizer.backend_tokenizer.decode(new_ids).strip())
    return texts


def find_end_tokens(tokenizer: Tokenizer) -> torch.Tensor:
    """Return (V,) True for the tokens that end a text: special ones, and those with a line end."""
    template = tokenizer.special_token_template
    special = {*tokenizer.special_token_ids.values(), *template.prefix, *template.suffix}
    decode = tokenizer.backend_tokenizer.decode
    return torch.tensor(
        [
            token_id in special or "\n" in decode([token_id])
            for token_id in range(tokenizer.vocab_size)
        ]
    )
