"""Inputs of pairs and BPE of characters against the tokenizers of `transformers`."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from lineage.errors import InputError
from lineage.formats import huggingface
from lineage.models import gpt
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.tokenizer import TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from tests import tiny

FIRSTS = [
    " ".join(d.split()[:count])
    for d, count in zip(tiny.documents()[:20], range(3, 23), strict=True)
]
SECONDS = [
    " ".join(d.split()[5 : 5 + count])
    for d, count in zip(tiny.documents()[20:40], range(22, 2, -1), strict=True)
]


@pytest.mark.parametrize("limit", [None, 13, 21])
def test_a_pair_has_the_ids_and_segments_of_bert_tokenizer(limit: int | None) -> None:
    """An even number of pieces to share: of an odd one the tokenizers library gives the first text less, BERT's own code the second."""
    reader = tiny.reader("bert")
    theirs = transformers.BertTokenizer(
        vocab=reader.backend_tokenizer.get_vocab(), do_lower_case=False
    )
    cut = {} if limit is None else {"truncation": "longest_first", "max_length": limit}
    expected = theirs(FIRSTS, SECONDS, **cut)
    found = encode_pairs(reader, FIRSTS, SECONDS, max_length=limit)
    assert [item.ids.tolist() for item in found] == expected["input_ids"]
    assert [item.token_type_ids.tolist() for item in found] == expected["token_type_ids"]  # type: ignore[union-attr]
    assert all(item.truncated == (limit is not None) for item in found)


def test_bpe_of_characters_cuts_text_as_gpt_1_s_tokenizer_does() -> None:
    settings = TokenizerSettings(vocab_size=499, lowercase=True, end_of_word_suffix=True)
    texts = [*tiny.documents(), "Héllo, wörld 中文 !", "Héllo, wörld 中文 ?"]
    reader = train_tokenizer(texts, settings, tokenizer_type="bpe", language="en")
    model = json.loads(reader.backend_tokenizer.to_str())["model"]
    theirs = transformers.OpenAIGPTTokenizer(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]]
    )
    for text in [*texts, "a Zebra-crossing , zzzz \U0001f600"]:
        encoded = reader.encode(text)
        assert encoded.ids[1:-1].tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert (
        reader.backend_tokenizer.decode(reader.encode("the bank of it").ids[1:-1].tolist())
        == "the bank of it"
    )


def test_bpe_of_characters_is_written_for_transformers_and_mended_text_is_not(
    tmp_path: Path,
) -> None:
    for normalizer in (None, "ftfy"):
        settings = TokenizerSettings(
            vocab_size=499, lowercase=True, end_of_word_suffix=True, normalizer=normalizer
        )  # type: ignore[arg-type]
        reader = train_tokenizer(tiny.documents(), settings, tokenizer_type="bpe", language="en")
        config = {**vars(tiny.checkpoint("gpt").architecture), "hidden_size": 24, "ffn_size": 96}
        model = gpt.GPTModel(
            type(tiny.checkpoint("gpt").architecture)(**config), vocab_size=reader.vocab_size
        )
        model.init_weights(torch.Generator().manual_seed(4))
        if normalizer:
            with pytest.raises(InputError, match="normalizes text with ftfy first"):
                huggingface.write_hf_folder(model, reader, tmp_path / "mended")
            assert not (tmp_path / "mended").exists(), "no model without its tokenizer"
            continue
        huggingface.write_hf_folder(model, reader, tmp_path / "plain")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
        (pair,) = encode_pairs(reader, FIRSTS[:1], SECONDS[:1])
        assert theirs(FIRSTS[0], SECONDS[0])["input_ids"] == pair.ids.tolist()
        assert theirs(FIRSTS[0])["input_ids"] == reader.encode(FIRSTS[0]).ids.tolist()
