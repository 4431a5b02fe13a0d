"""Contextual features joined with the static vectors of another model.

This is [x_k; ELMo_k] (Peters et al. 2018, section 3.3). The static vector is appended to every
layer, and the scalar mix leaves it as it is. A BiLSTM probe has the vector of each piece's word.

Shapes: M answers, L layers, D width, S width of a static vector, T positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lineage.methods.cached_features import CachedFeatures, cache_features
from lineage.methods.encoding import EncodedItem, align_pieces_to_words
from lineage.networks.base import Encoder
from lineage.tokenizers.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True)
class StaticText:
    """A text as the static model reads it, with the vector at each of its positions."""

    encoding: Encoding
    vectors_TS: np.ndarray


def concatenate_static(layers: np.ndarray, static: np.ndarray) -> np.ndarray:
    """Concatenate (..., L, D) and (..., 1, S) to (..., L, D + S)."""
    repeated = np.broadcast_to(static, (*layers.shape[:-1], static.shape[-1]))
    return np.concatenate([layers, repeated], -1)


def add_static_vectors(
    features: CachedFeatures, model: Encoder, tokenizer: Tokenizer, *, precision: str
) -> CachedFeatures:
    """Append the vectors of a static model, which reads whole texts, to every layer."""
    static_texts = _read_texts(features, model, tokenizer, precision=precision)
    joined_layers = []
    for item, layers_by_encoding in zip(features.items, features.layers, strict=True):
        joined = []
        for encoding, texts, layers_TLD in zip(
            item.encodings, item.texts, layers_by_encoding, strict=True
        ):
            static_TS = align_static_vectors(encoding, texts, static_texts)
            joined.append(concatenate_static(layers_TLD, static_TS[:, None]))
        joined_layers.append(tuple(joined))
    return replace(features, layers=joined_layers, static_size=model.hidden_sizes()[0])


def _read_texts(
    features: CachedFeatures, model: Encoder, tokenizer: Tokenizer, *, precision: str
) -> dict[str, StaticText]:
    texts: dict[str, None] = {}
    for item in features.items:
        for encoding_texts in item.texts:
            texts.update(dict.fromkeys(encoding_texts))
    encodings = tokenizer.encode_batch(list(texts))
    items = [EncodedItem(encoding) for encoding in encodings]
    cached = cache_features(model, tokenizer, items, precision=precision)
    return {
        text: StaticText(encoding, layers_TLD[:, 0])
        for text, encoding, (layers_TLD,) in zip(texts, encodings, cached.layers, strict=True)
    }


def align_static_vectors(
    encoded: Encoding, texts: tuple[str, ...], static_texts: Mapping[str, StaticText]
) -> np.ndarray:
    """Return (T, S): for every piece the vector of the first word that it overlaps."""
    static_size = static_texts[texts[0]].vectors_TS.shape[1]
    aligned_TS = np.zeros((len(encoded.ids), static_size), np.float32)
    for token_type, text in enumerate(texts):
        static = static_texts[text]
        offsets = static.encoding.offsets
        is_word = offsets[:, 1] > offsets[:, 0]
        pairs_P2 = align_pieces_to_words(encoded, *offsets[is_word].T)
        if encoded.token_type_ids is not None:
            pairs_P2 = pairs_P2[encoded.token_type_ids[pairs_P2[:, 0]] == token_type]
        positions, first_pairs = np.unique(pairs_P2[:, 0], return_index=True)
        aligned_TS[positions] = static.vectors_TS[is_word][pairs_P2[first_pairs, 1]]
    return aligned_TS
