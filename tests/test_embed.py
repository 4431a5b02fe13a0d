"""`lineage embed` writes the vectors that evaluation reads, and `lineage export` refuses plainly."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage.artifacts import create_artifact
from lineage.errors import InputError
from lineage.language import split_words
from lineage.methods.encoder import max_input_positions
from lineage.methods.encoding import encode_items
from lineage.methods.stored_features import extract_features
from lineage.networks.base import Encoder
from lineage.serving import embed
from lineage.serving.embed import embed_file
from lineage.serving.export import export
from tests.helpers import tiny

TEXTS = [*tiny.documents()[:3], "", "one", tiny.documents()[4] * 3]
FILLED = [text for text in TEXTS if text]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the demo study with tiny models, and with a file of texts."""
    shutil.copy(tiny.ROOT / "params.yaml", tmp_path)
    for name, folder in (("bert", "pretrained/bert/0"), ("elmo", "adapted/elmo/0/sentiment")):
        with create_artifact(tmp_path / "artifacts" / folder, "model") as draft:
            tiny.checkpoint(name).save(draft, tiny.model(name))
    pd.DataFrame({"text": TEXTS, "number": range(len(TEXTS))}).to_csv(tmp_path / "new.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(embed, "ROWS_PER_CHUNK", 2)
    monkeypatch.setattr(embed, "WORD_ROWS_PER_CHUNK", 2)
    return tmp_path


def write_vectors(model: str, *, layer: int | None = None, words: bool = False) -> pd.DataFrame:
    out = Path("vectors.parquet")
    embed_file(Path("new.csv"), out, model=model, layer=layer, words=words, text_column=None)
    return pd.read_parquet(out)


def expected_layers(name: str, table: pd.DataFrame) -> tuple[Encoder, np.ndarray]:
    """Return a model, and (rows, layers, width) the features that a linear probe reads."""
    model = tiny.model(name)
    tokenizer = tiny.tokenizer(name)
    limit = max_input_positions(tiny.checkpoint(name))
    items = encode_items(table, tokenizer, max_length=limit, language="en")
    return model, extract_features(model, tokenizer, items, precision="fp32")


@pytest.mark.parametrize(("model", "name"), [("bert", "bert"), ("elmo@sentiment", "elmo")])
def test_vectors_of_texts_are_the_features_of_a_linear_probe(
    study: Path, model: str, name: str
) -> None:
    encoder, layers = expected_layers(name, pd.DataFrame({"text": FILLED}))
    found = write_vectors(model)
    assert found["number"].astype(int).tolist() == list(range(len(TEXTS)))
    assert found["vector"].isna().tolist() == [not text for text in TEXTS]
    vectors = np.stack(found["vector"].dropna().tolist())
    np.testing.assert_allclose(vectors, layers.mean(1), atol=1e-5)
    for layer, width in enumerate(encoder.hidden_sizes()):
        vectors = np.stack(write_vectors(model, layer=layer)["vector"].dropna().tolist())
        np.testing.assert_allclose(vectors, layers[:, layer, :width], atol=1e-5)


def test_each_word_has_a_vector_even_in_a_text_that_is_read_in_windows(study: Path) -> None:
    words = [split_words(text, "en") for text in FILLED]
    _, layers = expected_layers("bert", pd.DataFrame({"tokens": words}))
    found = write_vectors("bert", layer=1, words=True).dropna(subset="words")
    assert [list(own) for own in found["words"]] == words
    limit = max_input_positions(tiny.checkpoint("bert"))
    assert limit is not None and len(words[-1]) > limit
    vectors = np.concatenate([np.stack(own.tolist()) for own in found["vectors"]])
    np.testing.assert_allclose(vectors, layers[:, 1], atol=1e-5)


def test_what_cannot_be_embedded_is_refused_in_one_line(study: Path) -> None:
    with pytest.raises(InputError, match="no model 'bertt'; did you mean 'bert'"):
        write_vectors("bertt")
    with pytest.raises(InputError, match=r"does not adapt 'bert' to 'sentiment'.* elmo@sentiment"):
        write_vectors("bert@sentiment")
    with pytest.raises(InputError, match="bert has the layers 0 to 2"):
        write_vectors("bert", layer=3)
    with pytest.raises(InputError, match=r"end its name in \.parquet"):
        embed_file(
            Path("new.csv"), Path("o.csv"), model="bert", layer=None, words=False, text_column=None
        )
    Path("new.csv").write_text("body\nx\n")
    with pytest.raises(InputError, match=r"no column 'text'.*--text-column"):
        write_vectors("bert")
    Path("new.jsonl").write_text(json.dumps({"text": ["a", "b"]}))
    with pytest.raises(InputError, match="does not hold a text"):
        embed_file(
            Path("new.jsonl"),
            Path("o.parquet"),
            model="bert",
            layer=None,
            words=False,
            text_column=None,
        )
    assert not list(study.glob("*o.parquet*"))


def test_what_cannot_be_exported_is_refused_in_one_line(study: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        export("bert", Path("new.csv"))
    with pytest.raises(InputError, match="'onnx' is not one of transformers, elmo, word2vec"):
        export("bert", Path("out"), file_format="onnx")
    with pytest.raises(InputError, match="one vector a word"):
        export("bert", Path("out"), file_format="word2vec")
    with pytest.raises(InputError, match="models of the family elmo"):
        export("bert", Path("out"), file_format="elmo")
    with pytest.raises(
        InputError, match="only models of the families bert, gpt and gpt_modern can"
    ):
        export("elmo@sentiment", Path("out"), file_format="transformers")
    with pytest.raises(InputError, match="there is no system for the task 'sentiment'"):
        export("sentiment/tfidf", Path("out"))
    with pytest.raises(InputError, match="no task 'sentimint'; did you mean 'sentiment'"):
        export("sentimint/tfidf", Path("out"))
    with pytest.raises(InputError, match="not trained on labels"):
        export("bert", Path("out"), label_count="all")
    assert not Path("out").exists() and not Path(".out.draft").exists()
