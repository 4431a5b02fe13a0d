"""The cosines of single words, from the vectors of a model.

The vectors of a model are centered first. Those of a contextual model nearly all point in one
direction, so their cosines would all be near 1 (Mu and Viswanath 2018; Ethayarajh 2019).
Shapes: V distinct words of the task, L layers, D width.
"""

from collections.abc import Iterator

import numpy as np

from lineage.answers.words import UNKNOWN_WORDS_HINT
from lineage.errors import EvaluationError

# A vector within this distance of the mean, relative to the mean's length, counts as the mean: a
# layer that does not read the word itself gives all words the same vector.
CENTERING_TOLERANCE = 1e-5


def cosines_by_layer(
    vectors_VLD: np.ndarray, known_V: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (V, V) cosines: of the mean over layers as `none`, then of each layer as 0, 1, ...

    Vectors are centered by the mean of the known words. The mean of centered layers is the centered
    mean of layers. Raises EvaluationError if no word is known.
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


def cosine_matrix(products_VV: np.ndarray) -> np.ndarray:
    """Return (V, V) cosines from the products of vectors; 0 where a vector has no length."""
    length_V = np.sqrt(np.diag(products_VV).clip(0))
    scale_V = np.divide(1.0, length_V, out=np.zeros_like(length_V), where=length_V > 0)
    return products_VV * (scale_V[:, None] * scale_V)
