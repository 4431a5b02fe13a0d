"""Inputs of text pairs and character-level BPE agree with the tokenizers of `transformers`."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from lineage.errors import InputError
from lineage.families import gpt
from lineage.formats import huggingface
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.tokenizer import TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from tests.helpers import tiny

FIRSTS = [
    " ".join(d.split()[:count])
    for d, count in zip(tiny.documents()[:20], range(3, 23), strict=True)
]
SECONDS = [
    " ".join(d.split()[5 : 5 + count])
    for d, count in zip(tiny.documents()[20:40], range(22, 2, -1), strict=True)
]


@pytest.mark.parametrize("max_length", [None, 13, 21])
def test_ids_and_segments_of_a_pair_match_bert_tokenizer(max_length: int | None) -> None:
    """The limits leave an even number of pieces for both texts.

    With an odd number, the tokenizers library shortens the first text, BERT's code the second.
    """
    tokenizer = tiny.tokenizer("bert")
    hf_tokenizer = transformers.BertTokenizer(
        vocab=tokenizer.backend_tokenizer.get_vocab(), do_lower_case=False
    )
    truncation = (
        {} if max_length is None else {"truncation": "longest_first", "max_length": max_length}
    )
    expected = hf_tokenizer(FIRSTS, SECONDS, **truncation)
    actual = encode_pairs(tokenizer, FIRSTS, SECONDS, max_length=max_length)
    assert [item.ids.tolist() for item in actual] == expected["input_ids"]
    assert [item.token_type_ids.tolist() for item in actual] == expected["token_type_ids"]  # type: ignore[union-attr]
    assert all(item.truncated == (max_length is not None) for item in actual)


def test_character_bpe_tokenizes_like_gpt_1_s_tokenizer() -> None:
    settings = TokenizerSettings(vocab_size=499, lowercase=True, end_of_word_suffix=True)
    texts = [*tiny.documents(), "Héllo, wörld 中文 !", "Héllo, wörld 中文 ?"]
    tokenizer = train_tokenizer(texts, settings, tokenizer_type="bpe", language="en")
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    hf_tokenizer = transformers.OpenAIGPTTokenizer(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]]
    )
    for text in [*texts, "a Zebra-crossing , zzzz \U0001f600"]:
        encoded = tokenizer.encode(text)
        assert (
            encoded.ids[1:-1].tolist() == hf_tokenizer(text, add_special_tokens=False)["input_ids"]
        )
    assert (
        tokenizer.backend_tokenizer.decode(tokenizer.encode("the bank of it").ids[1:-1].tolist())
        == "the bank of it"
    )


def test_character_bpe_is_exported_to_transformers_unless_ftfy_normalizes(tmp_path: Path) -> None:
    for normalizer in (None, "ftfy"):
        settings = TokenizerSettings(
            vocab_size=499, lowercase=True, end_of_word_suffix=True, normalizer=normalizer
        )  # type: ignore[arg-type]
        tokenizer = train_tokenizer(tiny.documents(), settings, tokenizer_type="bpe", language="en")
        config = {**vars(tiny.checkpoint("gpt").architecture), "hidden_size": 24, "ffn_size": 96}
        model = gpt.GPTModel(
            type(tiny.checkpoint("gpt").architecture)(**config), vocab_size=tokenizer.vocab_size
        )
        model.init_weights(torch.Generator().manual_seed(4))
        if normalizer:
            with pytest.raises(InputError, match="normalizes text with ftfy first"):
                huggingface.write_hf_folder(model, tokenizer, tmp_path / "mended")
            assert not (tmp_path / "mended").exists(), "a model was written without its tokenizer"
            continue
        huggingface.write_hf_folder(model, tokenizer, tmp_path / "plain")
        hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
        (pair,) = encode_pairs(tokenizer, FIRSTS[:1], SECONDS[:1])
        assert hf_tokenizer(FIRSTS[0], SECONDS[0])["input_ids"] == pair.ids.tolist()
        assert hf_tokenizer(FIRSTS[0])["input_ids"] == tokenizer.encode(FIRSTS[0]).ids.tolist()
