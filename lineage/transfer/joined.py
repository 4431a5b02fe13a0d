"""Contextual features with the static vectors of another model beside them, [x_k; ELMo_k] (Peters et al. 2018, section 3.3).

A static vector stands at the end of every layer, where the scalar mix leaves it alone. A linear reader has one that is made of the static words in
the way in which its features are made of pieces (`lineage.transfer.frozen.frozen_vector`); a network one for every piece, its word's.
Shapes: M answers, L layers, D width, S width of a static vector, T positions.
"""

from dataclasses import replace

import numpy as np

from lineage.family import Encoder
from lineage.text.tokenization import Encoded, Reader
from lineage.transfer.networks import Remembered, remember
from lineage.transfer.reading import Item, overlaps

Known = dict[str, tuple[Encoded, np.ndarray]]  # a text -> how the static model reads it, and the vectors there, (T, S)


def beside(layers: np.ndarray, static: np.ndarray) -> np.ndarray:
    """(..., L, D) and (..., 1, S) -> (..., L, D + S)."""
    return np.concatenate([layers, np.broadcast_to(static, (*layers.shape[:-1], static.shape[-1]))], -1)


def with_static(remembered: Remembered, model: Encoder, reader: Reader, *, precision: str) -> Remembered:
    """Items with the static vectors of a model and its reader behind the layers at every position, whose texts it reads whole."""
    texts = list(dict.fromkeys(text for item in remembered.items for read in item.texts for text in read))
    items = [Item(encoded) for encoded in reader.encode_many(texts)]
    vectors = remember(model, reader, items, precision=precision).layers
    known = {text: (item.encoded, layers[:, 0]) for text, item, (layers,) in zip(texts, items, vectors, strict=True)}
    found = []
    for item, readings in zip(remembered.items, remembered.layers, strict=True):
        own = [of_pieces(encoded, read, known) for encoded, read in zip(item.readings, item.texts, strict=True)]
        found.append(tuple(beside(layers, static_TS[:, None]) for layers, static_TS in zip(readings, own, strict=True)))
    return replace(remembered, layers=found, static=model.widths()[0])


def of_pieces(encoded: Encoded, texts: tuple[str, ...], known: Known) -> np.ndarray:
    """(T, S): for every piece the vector of the first word that it overlaps; zeros where there is none, as at marks.

    A piece of a byte-level BPE may begin with the space before its word, so that it is not its first character that is looked for.
    """
    found_TS = np.zeros((len(encoded.ids), known[texts[0]][1].shape[1]), np.float32)
    for place, text in enumerate(texts):
        own, vectors_TS = known[text]
        words = own.spans[:, 1] > own.spans[:, 0]
        pairs = overlaps(encoded, *own.spans[words].T)
        if encoded.segments is not None:
            pairs = pairs[encoded.segments[pairs[:, 0]] == place]
        positions, first = np.unique(pairs[:, 0], return_index=True)
        found_TS[positions] = vectors_TS[words][pairs[first, 1]]
    return found_TS
