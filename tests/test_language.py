"""The words of sentences in a random order, for the control of models that read no order."""

import numpy as np
import pandas as pd
import pytest

from lineage.language import sentence_spans, shuffle_words, split_words
from stages.tokenizer import shuffle_texts

TEXTS = {
    "en": "The old bank by the river was flooded. They went to see the new play!",
    "zh": "他去银行取了很多钱。银行的门口有一棵树。",
}


@pytest.mark.parametrize("language", [*TEXTS])
def test_each_sentence_keeps_its_words_in_another_order(language: str) -> None:
    text = TEXTS[language]
    shuffled = shuffle_words(text, language, np.random.default_rng(0))
    assert shuffled != text
    assert sorted(split_words(shuffled, language)) == sorted(split_words(text, language))
    first = text[slice(*sentence_spans(text, language)[0])]
    words = split_words(first, language)
    assert sorted(split_words(shuffled, language)[: len(words)]) == sorted(words)


def test_texts_are_shuffled_the_same_way_every_time_and_each_in_its_own() -> None:
    table = pd.DataFrame({"text": [TEXTS["en"]] * 2, "language": "en"})
    first = shuffle_texts(table, "en", seed=0)
    pd.testing.assert_frame_equal(first, shuffle_texts(table, "en", seed=0))
    assert first["text"][0] != first["text"][1]
    assert list(table["text"]) == [TEXTS["en"]] * 2
    assert list(shuffle_texts(table, "en", seed=1)["text"]) != list(first["text"])
