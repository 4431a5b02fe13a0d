"""`lineage neighbours` lists the places where a word is used most like in a text."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.artifacts import create_artifact, write_json, write_table
from lineage.errors import InputError
from lineage.language import split_words
from lineage.networks.static import NUM_SPECIAL_TOKENS, vocab_words
from lineage.serving.embed import embed_file
from lineage.serving.neighbours import (
    Occurrence,
    Search,
    SearchedText,
    _nearest_occurrences,
    find_in,
    find_neighbours,
)
from tests.helpers import tiny

MODELS = ("bert", "elmo", "word2vec")
# A word that stands in several documents, and the first text with it.
DOCUMENTS = [" ".join(split_words(text, "en")[:30]) for text in tiny.documents()]
WORD = max({*tiny.words("word2vec")[:40]}, key=lambda word: sum(
    word in text.split() for text in DOCUMENTS
))  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo study with tiny models, a corpus and a task."""
    folder = tmp_path_factory.mktemp("study")
    shutil.copy(tiny.ROOT / "params.yaml", folder)
    for name in MODELS:
        with create_artifact(folder / f"artifacts/pretrained/{name}/0", "model") as draft:
            tiny.checkpoint(name).save(draft, tiny.model(name))
    with create_artifact(folder / "artifacts/corpora/general", "corpus", name="general") as draft:
        ids = [f"0-{number}" for number in range(len(DOCUMENTS))]
        write_table(draft / "train.parquet", pd.DataFrame({"document": ids, "text": DOCUMENTS}))
    info = {"name": "sense", "kind": "word_sense", "labels": ["bank", "river"]}
    with create_artifact(folder / "artifacts/tasks/sense", "task", name="sense") as draft:
        write_json(draft / "task.json", vars(tiny.task_info("word_sense")) | info)
        for split in ("train", "validation", "test"):
            rows = [
                {"id": f"{split}-1", "tokens": ["a", WORD, "b", WORD], "target": 1, "label": 0},
                {"id": f"{split}-2", "tokens": [WORD, split], "target": 0, "label": 1},
                {"id": f"{split}-3", "tokens": ["nothing", "here"], "target": 0, "label": 1},
            ]
            write_table(draft / f"{split}.parquet", pd.DataFrame(rows))
    return folder


@pytest.fixture
def study(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def search(text: str, word: str = WORD, **options: Any) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    defaults: dict[str, Any] = {
        "models": [],
        "task": None,
        "layer": None,
        "num_neighbours": 3,
        "as_json": True,
    }
    found: dict[str, Any] = json.loads(find_neighbours(text, word, **defaults | options))
    return found


def test_cosines_are_those_of_the_vectors_that_embed_writes(study: Path) -> None:
    query = f"so {WORD} now"
    found = search(query, models=["bert"], num_neighbours=1000)
    windows = [query]
    for text in DOCUMENTS:
        words = text.split()
        places = [place for place, word in enumerate(words) if word == WORD]
        windows += [" ".join(words[max(0, place - 20) : place + 21]) for place in places]
    windows = [*dict.fromkeys(windows)]
    assert found["occurrences"] == len(windows) - 1 > 3
    Path("windows.txt").write_text("\n".join(windows))
    for layer in found["layers"]:
        out = Path("windows.parquet")
        out.unlink(missing_ok=True)
        embed_file(
            Path("windows.txt"),
            out,
            model="bert",
            layer=layer["layer"],
            words=True,
            text_column=None,
        )
        table = pd.read_parquet(out)
        vectors = []
        for words, own in zip(table["words"], table["vectors"], strict=True):
            middle = min(
                (n for n, word in enumerate(words) if word == WORD),
                key=lambda n: abs(n - 20) if len(words) > 21 else n,
            )
            vectors.append(own[middle])
        x = np.stack(vectors).astype(np.float64)
        x -= x.mean(0)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        cosines = [neighbour["cosine"] for neighbour in layer["neighbours"]]
        assert cosines == sorted(cosines, reverse=True) and len(cosines) == len(windows) - 1
        assert max(cosines) == pytest.approx((x[1:] @ x[0]).max(), abs=1e-3)


def test_embeddings_of_characters_read_no_context_and_upper_layers_do(study: Path) -> None:
    bottom, *upper = search(f"so {WORD} now", models=["elmo"])["layers"]
    assert "reads no context" in bottom["note"] and bottom["neighbours"] == []
    assert all(len(layer["neighbours"]) == 3 and not layer["note"] for layer in upper)
    assert all(f"[{WORD}]" in one["text"] for layer in upper for one in layer["neighbours"])


def test_another_spelling_makes_no_layer_read_context(study: Path) -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    query, same = Occurrence(["so"], ["play"], []), Occurrence(["to"], ["play"], ["on"])
    found = Search("so play", "play", "", "en", query, [same, Occurrence([], ["Play"], [])], 2)
    layer = _nearest_occurrences("gpt", 0, vectors, found)
    assert layer.neighbours == [] and "reads no context" in layer.note
    vectors[1, 1] = 0.5
    assert len(_nearest_occurrences("gpt", 1, vectors, found).neighbours) == 2
    only_other = Search("so play", "play", "", "en", query, [Occurrence([], ["Play"], [])], 1)
    assert len(_nearest_occurrences("gpt", 1, vectors[1:], only_other).neighbours) == 1


def test_a_spelling_that_is_nowhere_else_makes_no_layer_read_context(study: Path) -> None:
    vectors = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.5], [1.0, 0.0]])
    query = Occurrence(["so"], ["pLAY"], [])
    others = [Occurrence([name], [name], []) for name in ("play", "Play", "play")]
    found = Search("so pLAY", "pLAY", "", "en", query, others, 3)
    layer = _nearest_occurrences("gpt", 0, vectors, found)
    assert layer.neighbours == [] and "reads no context" in layer.note
    vectors[3, 1] = 0.5
    assert len(_nearest_occurrences("gpt", 1, vectors, found).neighbours) == 3


def test_a_sample_of_the_places_says_so(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = search(f"so {WORD} now", models=["elmo"])
    monkeypatch.setattr("lineage.serving.neighbours.MAX_OCCURRENCES", 2)
    found = search(f"so {WORD} now", models=["elmo"])
    assert found["occurrences"] == everything["occurrences"] == everything["compared"] > 2
    assert found["compared"] == 2
    printed = find_neighbours(
        f"so {WORD} now",
        WORD,
        models=["elmo"],
        task=None,
        layer=1,
        num_neighbours=1,
        as_json=False,
    )
    assert "; 2 of them, drawn at random, are compared" in printed.splitlines()[0]


def test_a_static_model_lists_words(study: Path) -> None:
    (layer,) = search(f"so {WORD} now", models=["word2vec"])["layers"]
    vectors = tiny.model("word2vec").state_dict()["words.weight"].double().numpy()
    words = vocab_words(tiny.tokenizer("word2vec"))
    x = vectors[NUM_SPECIAL_TOKENS:] - vectors[NUM_SPECIAL_TOKENS:].mean(0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    order = np.argsort(-(x @ x[words.index(WORD)]))
    assert [one["text"] for one in layer["neighbours"]] == [words[n] for n in order[1:4]]
    (layer,) = search("so zzyzx now", "zzyzx", models=["word2vec"])["layers"]
    assert layer["note"] == "it does not know 'zzyzx'"


def test_a_task_is_searched_for_the_words_that_its_items_are_about(study: Path) -> None:
    found = search(f"so {WORD} now", models=["elmo"], task="sense", num_neighbours=9)
    assert found["occurrences"] == 4, "equal contexts count once, and other words of items do not"
    labels = {one["place"]: one["label"] for one in found["layers"][-1]["neighbours"]}
    assert {labels[f"{split}-2"] for split in ("train", "validation", "test")} == {"river"}
    assert sorted(labels.values()) == ["bank", "river", "river", "river"]


def test_the_terminal_shows_the_places_in_their_context(study: Path) -> None:
    defaults: dict[str, Any] = {"task": "sense", "layer": 1, "num_neighbours": 1, "as_json": False}
    lines = find_neighbours(f"so {WORD} now", WORD, models=["elmo"], **defaults).splitlines()
    assert lines[0] == f"'{WORD}' stands in 4 other places of the task sense"
    assert lines[2] == "elmo, layer 1" and f"[{WORD}]" in lines[3]
    assert lines[3].endswith(("(bank)", "(river)")) and len(lines) == 4


def test_a_word_of_several_characters_is_found_in_chinese() -> None:
    text = SearchedText("0-1", split_words("他买了苹果，又吃苹果。", "zh"), [""] * 11)
    found = [*find_in(text, split_words("苹果", "zh"))]
    assert [one.format("zh") for one in found] == [
        "他买了 [苹果] ，又吃苹果。",
        "他买了苹果，又吃 [苹果] 。",
    ]


def test_what_cannot_be_searched_is_refused_in_one_line(study: Path) -> None:
    with pytest.raises(InputError, match="--word: 'bank' is not in the text"):
        search("so it is", "bank", models=["elmo"])
    with pytest.raises(InputError, match="the corpus general has no other 'zzyzx'; search a task"):
        search("so zzyzx now", "zzyzx", models=["elmo"])
    with pytest.raises(InputError, match="the task sense has no other 'zzyzx'; leave out --task"):
        search("so zzyzx now", "zzyzx", models=["elmo"], task="sense")
    with pytest.raises(InputError, match="no task 'sens'; did you mean 'sense'"):
        search(f"so {WORD} now", models=["elmo"], task="sens")
    with pytest.raises(InputError, match="elmo has the layers 0 to 2"):
        search(f"so {WORD} now", models=["elmo"], layer=3)
    with pytest.raises(InputError, match="gpt/0: gpt is not trained yet; `lineage run` trains it"):
        search(f"so {WORD} now", models=["gpt"])
    with pytest.raises(InputError, match="no model 'bertt'"):
        search(f"so {WORD} now", models=["bertt"])
