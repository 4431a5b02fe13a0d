"""Contextual features with the static vectors of another model beside them, [x_k; ELMo_k] (Peters et al. 2018, section 3.3).

A static vector stands at the end of every layer, where the scalar mix leaves it alone. A linear reader has one that is made of the static words in
the way in which its features are made of pieces (`lineage.evaluation.linear_probe.frozen_vector`); a network one for every piece, its word's.
Shapes: M answers, L layers, D width, S width of a static vector, T positions.
"""

from dataclasses import replace

import numpy as np

from lineage.evaluation.bilstm_probe import CachedFeatures, cache_features
from lineage.evaluation.encoding import EncodedItem, align_pieces_to_words
from lineage.models.base import Encoder
from lineage.tokenizers.tokenizer import Encoding, Tokenizer

StaticVectors = dict[
    str, tuple[Encoding, np.ndarray]
]  # a text -> how the static model reads it, and the vectors there, (T, S)


def concatenate_static(layers: np.ndarray, static: np.ndarray) -> np.ndarray:
    """(..., L, D) and (..., 1, S) -> (..., L, D + S)."""
    return np.concatenate(
        [layers, np.broadcast_to(static, (*layers.shape[:-1], static.shape[-1]))], -1
    )


def add_static_vectors(
    features: CachedFeatures, model: Encoder, tokenizer: Tokenizer, *, precision: str
) -> CachedFeatures:
    """Items with the static vectors of a model and its reader behind the layers at every position, whose texts it reads whole."""
    texts = list(
        dict.fromkeys(text for item in features.items for read in item.texts for text in read)
    )
    items = [EncodedItem(encoded) for encoded in tokenizer.encode_batch(texts)]
    vectors = cache_features(model, tokenizer, items, precision=precision).layers
    static_vectors = {
        text: (item.encoded, layers[:, 0])
        for text, item, (layers,) in zip(texts, items, vectors, strict=True)
    }
    found = []
    for item, readings in zip(features.items, features.layers, strict=True):
        own = [
            align_static_vectors(encoded, read, static_vectors)
            for encoded, read in zip(item.encodings, item.texts, strict=True)
        ]
        found.append(
            tuple(
                concatenate_static(layers, static_TS[:, None])
                for layers, static_TS in zip(readings, own, strict=True)
            )
        )
    return replace(features, layers=found, static_size=model.hidden_sizes()[0])


def align_static_vectors(
    encoded: Encoding, texts: tuple[str, ...], static_vectors: StaticVectors
) -> np.ndarray:
    """(T, S): for every piece the vector of the first word that it overlaps; zeros where there is none, as at marks.

    A piece of a byte-level BPE may begin with the space before its word, so that it is not its first character that is looked for.
    """
    found_TS = np.zeros((len(encoded.ids), static_vectors[texts[0]][1].shape[1]), np.float32)
    for place, text in enumerate(texts):
        own, vectors_TS = static_vectors[text]
        words = own.offsets[:, 1] > own.offsets[:, 0]
        pairs = align_pieces_to_words(encoded, *own.offsets[words].T)
        if encoded.token_type_ids is not None:
            pairs = pairs[encoded.token_type_ids[pairs[:, 0]] == place]
        positions, first = np.unique(pairs[:, 0], return_index=True)
        found_TS[positions] = vectors_TS[words][pairs[first, 1]]
    return found_TS
