"""The vectors of single words answer items, without training.

They are centered first: those of a contextual model nearly all point in one direction, so their
cosines would all be near 1 (Mu and Viswanath 2018; Ethayarajh 2019).

Shapes: V distinct words of the task, L layers, D width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.base import AnsweredBy, PredictionColumns
from lineage.answers.words import (
    UNKNOWN_WORDS_HINT,
    WordsAnswer,
    cosine_matrix,
    list_distinct_words,
)
from lineage.errors import EvaluationError
from lineage.methods.base import Method
from lineage.methods.encoder import EncoderUnderTest, EvalRun, Subject, Transfer, under_test
from lineage.methods.encoding import EncodedItem, encode_items
from lineage.methods.stored_features import extract_features

# A vector within this distance of the mean, relative to the mean's length, counts as the mean: a
# layer that does not read the word itself gives all words the same vector.
CENTERING_TOLERANCE = 1e-5
# Tokens that tell nothing about a word: SentencePiece's space, fastai's tokens of case and
# repetition.
NON_WORD_TOKENS = ("\u2581", "xxmaj", "xxup", "xxrep", "xxwrep")


@dataclass(frozen=True, kw_only=True)
class WordVectorMethod(Method):
    """The cosines of word vectors; extra columns hold the answers of each layer."""

    name: ClassVar[str] = "word_vectors"
    transfer: ClassVar[Transfer] = "zero_shot"
    head: ClassVar[str] = "none"
    titles: ClassVar[Mapping[str, str]] = {"none": "zero-shot"}
    answered_by: ClassVar[AnsweredBy] = "word_vectors"

    def answer(self, subject: Subject, run: EvalRun, items: pd.DataFrame) -> PredictionColumns:
        """Compare the vectors. Raises EvaluationError if no word is known."""
        answer = subject.task_context.kind.answer
        assert issubclass(answer, WordsAnswer)
        vectors_VLD, known_V = embed_words(under_test(subject), list_distinct_words(items))
        return answer.columns(items, cosines_by_layer(vectors_VLD, known_V), known_V)


def embed_words(encoder: EncoderUnderTest, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return (V, L, D) layers of each word, read alone as a text, and (V,) whether it is known.

    Unknown are vectors of zeros and, unless the model reads characters, words of NON_WORD_TOKENS
    and unknown tokens. Raises EvaluationError if a vector is not finite.
    """
    context = encoder.context
    model = encoder.build_encoder()
    tokenizer = context.checkpoint.tokenizer
    items = encode_items(
        pd.DataFrame({"text": list(words)}),
        tokenizer,
        max_length=context.max_input_positions,
        language=context.language,
    )
    vectors_VLD = extract_features(model, tokenizer, items, precision=context.precision)
    if not np.isfinite(vectors_VLD).all():
        raise EvaluationError(
            "the vectors of the task's words are not finite; lower the learning_rate"
        )
    ids = [tokenizer.backend_tokenizer.token_to_id(token) for token in NON_WORD_TOKENS]
    ignored_ids = [number for number in (tokenizer.unk_token_id, *ids) if number is not None]
    has_word_V = np.array(
        [model.handles_oov or not np.isin(ids, ignored_ids).all() for ids in _text_ids(items)]
    )
    return vectors_VLD, has_word_V & (vectors_VLD != 0).any((1, 2))


def _text_ids(items: Sequence[EncodedItem]) -> Iterator[np.ndarray]:
    """Yield the ids of each item's text, without special tokens, which cover no characters."""
    for item in items:
        offsets = item.encoded.offsets
        yield item.encoded.ids[offsets[:, 1] > offsets[:, 0]]


def cosines_by_layer(
    vectors_VLD: np.ndarray, known_V: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (V, V) cosines of centered vectors: of the mean of layers as `none`, then as 0, 1, ...

    Raises EvaluationError if no word is known.
    """
    if not known_V.any():
        raise EvaluationError(f"the model knows none of the task's words; {UNKNOWN_WORDS_HINT}")
    yield "none", _centered_cosines(vectors_VLD.mean(1, dtype=np.float64), known_V)
    for layer in range(vectors_VLD.shape[1]):
        yield str(layer), _centered_cosines(vectors_VLD[:, layer].astype(np.float64), known_V)


def _centered_cosines(x_VD: np.ndarray, known_V: np.ndarray) -> np.ndarray:
    """Return the (V, V) cosines of float64 vectors, which are centered in place."""
    mean_D = x_VD[known_V].mean(0)
    x_VD -= mean_D
    x_VD[np.linalg.norm(x_VD, axis=1) <= CENTERING_TOLERANCE * np.linalg.norm(mean_D)] = 0
    return cosine_matrix(x_VD @ x_VD.T)
