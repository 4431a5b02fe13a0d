"""The vector of what a task asks about, pooled from the outputs of one layer of an encoder.

Shapes: B rows of a batch, T positions, M words that a task asks about, D width.
"""

import torch
from torch.nn import functional as F

from lineage.answers.predicate import NUM_PLACES, place_features
from lineage.methods.encoding import EncodedItem, HasWordPooling, pool_words
from lineage.networks.batch import Batch, masked_mean


def pool_features(model: HasWordPooling, x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Pool one layer into the features of the rows that the task asks about.

    - A text: (B, D), the mean over its pieces.
    - A pair of texts: (B, 4 D + 1), see `pool_pair`.
    - Words: (M, D), see `pool_words`; with a predicate (M, 4 D + NUM_PLACES), see
      `relate_to_predicate`.
    - Words of a context with a question: (M, 2 D), v and u * v for each word v, where u is the
      mean over the question. Without u * v a linear probe on static vectors could not match both.
    """
    assert batch.text_mask_BT is not None
    if batch.answer_pieces_P2 is not None:
        v_MD = pool_words(model, x_BTD, batch)
        if batch.predicates_M is not None:
            return relate_to_predicate(v_MD, batch.predicates_M)
        if batch.segment_ids_BT is None:
            return v_MD
        return torch.cat([v_MD, v_MD * _pool_question(x_BTD, batch)], -1)
    if batch.segment_ids_BT is None:
        return masked_mean(x_BTD, batch.text_mask_BT)
    return pool_pair(x_BTD, batch)


def pool_pair(x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return (B, 4 D + 1): the means u and v of two texts, |u - v|, u * v, and their cosine."""
    text_mask_BT = batch.text_mask_BT
    segment_ids_BT = batch.segment_ids_BT
    assert text_mask_BT is not None
    assert segment_ids_BT is not None
    u_BD = masked_mean(x_BTD, text_mask_BT & (segment_ids_BT == 0))
    v_BD = masked_mean(x_BTD, text_mask_BT & (segment_ids_BT == 1))
    return combine_pair(u_BD, v_BD)


def combine_pair(u_BD: torch.Tensor, v_BD: torch.Tensor) -> torch.Tensor:
    """Return (B, 4 D + 1): u, v, |u - v|, u * v, and the cosine."""
    cosine_B1 = F.cosine_similarity(u_BD, v_BD, dim=-1).unsqueeze(-1)
    return torch.cat([u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD, cosine_B1], -1)


def relate_to_predicate(v_MD: torch.Tensor, predicates_M: torch.Tensor) -> torch.Tensor:
    """Return (M, 4 D + NUM_PLACES): v, u, u * v, u if the word comes after u, and its place.

    u is the predicate of the word v. Without u * v a linear layer could not match both (Liu et al.
    2019, section 3.2). What a place means depends on the predicate, such as a passive one (Gildea
    and Jurafsky 2002, section 4.1), so u counts for itself on either side.
    """
    offsets_M = torch.arange(len(v_MD), device=v_MD.device) - predicates_M
    u_MD = v_MD[predicates_M]
    after_MD = u_MD * (offsets_M > 0)[:, None]
    places = place_features(offsets_M).to(v_MD.dtype)
    return torch.cat([v_MD, u_MD, u_MD * v_MD, after_MD, places], -1)


def related_width(hidden_size: int) -> int:
    return 4 * hidden_size + NUM_PLACES


def pair_width(hidden_size: int) -> int:
    return 4 * hidden_size + 1


def _pool_question(x_BTD: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return (M, D): for each word the mean over the question in the encoding that has the word.

    Words without pieces get the question of the batch's first encoding.
    """
    assert batch.answer_pieces_P2 is not None
    assert batch.segment_ids_BT is not None
    assert batch.text_mask_BT is not None
    position_P, word_P = batch.answer_pieces_P2.unbind(1)
    first_row_M = position_P.new_zeros(batch.num_answers)
    row_M = first_row_M.scatter_reduce(0, word_P, position_P // x_BTD.shape[1], "amax")
    question_BD = masked_mean(x_BTD, batch.text_mask_BT & (batch.segment_ids_BT == 0))
    return question_BD[row_M]


def pooled_width(item: EncodedItem, hidden_size: int) -> int:
    if item.predicate is not None:
        return related_width(hidden_size)
    if item.encoded.token_type_ids is None:
        return hidden_size
    return 2 * hidden_size if item.word_pieces else pair_width(hidden_size)
