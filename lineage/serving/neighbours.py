"""The occurrences of a word that a model finds most like one, as in table 4 of ELMo's paper.

A contextual model has a vector for each occurrence, so it can tell senses apart (Peters et al.
2018, section 5.3). A static model has one for each word, so its neighbours are words. Vectors are
centered first, as in `lineage.methods.neighbours`. Shapes: N occurrences, M words of their contexts, L layers, D width, V words.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lineage.artifacts import check_intact, read_table
from lineage.config.params import Params, read_recorded_params
from lineage.config.records import suggest_nearest
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.language import join_words, normalize_text, split_words, to_lowercase
from lineage.methods.encoder import max_input_positions
from lineage.methods.encoding import encode_items
from lineage.methods.neighbours import center, cosines
from lineage.methods.stored_features import extract_features
from lineage.networks.base import Encoder, Static
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.static import vocab_words
from lineage.randomness import generator
from lineage.runtime.settings import read_runtime_settings
from lineage.serving.systems import locate_trained_model
from lineage.tasks.base import load_kind
from lineage.training.devices import configure_torch, select_device

MAX_OCCURRENCES = 1000  # that are compared; of more, a random sample
CONTEXT_WORDS = 20  # on each side of an occurrence, which a model reads
SHOWN_WORDS = 8  # on each side, which are printed


@dataclass(frozen=True)
class SearchedText:
    """A text of a corpus or a task, in words."""

    place: str  # the id of the document or item
    words: list[str]
    labels: list[str]  # of each word; empty strings where there are none
    target: int | None = None  # the one word that the item is about


@dataclass(frozen=True)
class Occurrence:
    """One word, or several in a row, in their context."""

    left: list[str]
    word: list[str]
    right: list[str]
    place: str = ""
    label: str = ""

    @property
    def words(self) -> list[str]:
        return [*self.left, *self.word, *self.right]

    def format(self, language: str) -> str:
        """Return the words around, with those of the occurrence in brackets."""
        parts = (
            join_words(self.left[-SHOWN_WORDS:], language),
            f"[{join_words(self.word, language)}]",
            join_words(self.right[:SHOWN_WORDS], language),
        )
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Neighbour:
    """An occurrence, or a word of a static model, and how much it is like the query."""

    cosine: float
    text: str
    place: str = ""
    label: str = ""


@dataclass(frozen=True)
class LayerNeighbours:
    """The places or words that one layer finds most like the query, nearest first."""

    model: str
    layer: int
    neighbours: list[Neighbour]
    note: str = ""  # why there are none


@dataclass(frozen=True)
class Search:
    """A word in its context, and the other places where it was found."""

    text: str
    word: str
    place: str
    language: str
    query: Occurrence
    occurrences: list[Occurrence]  # that are compared
    num_found: int

    @classmethod
    def run(cls, params: Params, text: str, word: str, task: str | None) -> "Search":
        """Look for a word of a text in the corpus, or in a task. Raises InputError."""
        corpus = params.budget.corpus
        if task is not None and task not in params.tasks:
            raise InputError(f"the study has no task '{task}'{suggest_nearest(task, params.tasks)}")
        language = params.tasks[task].language if task else params.corpora[corpus].language
        wanted = split_words(normalize_text(word), language)
        words = split_words(normalize_text(text), language)
        query = next(find_in(SearchedText("", words, [""] * len(words)), wanted), None)
        if query is None:
            raise InputError(f"--word: '{word}' is not in the text; name a word of it")
        texts = _read_task(task, language) if task else _read_corpus(corpus, word, language)
        by_context = {tuple(one.words): one for found in texts for one in find_in(found, wanted)}
        by_context.pop(tuple(query.words), None)
        occurrences = [*by_context.values()]
        rng = generator("neighbours", word, len(occurrences))
        kept = sorted(rng.permutation(len(occurrences))[:MAX_OCCURRENCES])
        place = f"the task {task}" if task else f"the corpus {corpus}"
        compared = [occurrences[i] for i in kept]
        return cls(text, word, place, language, query, compared, len(occurrences))

    @property
    def is_spelled_alike(self) -> list[bool]:
        """Return for the query and each occurrence whether it has one spelling: the query's.

        If nothing else is spelled as the query is, it is the most frequent spelling.
        """
        spellings = [tuple(one.word) for one in (self.query, *self.occurrences)]
        counts = Counter(spellings)
        compared = spellings[0]
        if counts[compared] == 1:
            compared = counts.most_common(1)[0][0]
        return [spelling == compared for spelling in spellings]


def find_neighbours(
    text: str,
    word: str,
    *,
    models: Sequence[str],
    task: str | None,
    layer: int | None,
    num_neighbours: int,
    as_json: bool,
) -> str:
    """Return the neighbours of a word of a text, for each model and layer, as text or JSON.

    The occurrences are those in the corpus, or in the items of a task. Without `models`, all models
    of the study are asked. Raises InputError.
    """
    params = read_recorded_params()
    names = list(models or params.grid.models)
    folders = [locate_trained_model(params, name) for name in names]
    search = Search.run(params, text, word, task)
    configure_torch(params.threads)
    device = select_device(params.device, read_runtime_settings().device_index)
    found: list[LayerNeighbours] = []
    for name, folder in zip(names, folders, strict=True):
        checkpoint = Checkpoint.load(folder)
        encoder = checkpoint.build(device)
        if isinstance(checkpoint.family, Static):
            found.append(_nearest_words(name, checkpoint, encoder, search, params.precision))
            continue
        if not search.occurrences:
            other = "leave out --task to search the corpus" if task else "search a task by --task"
            raise InputError(f"{search.place} has no other '{word}'; {other}")
        vectors_NLD = _embed(checkpoint, encoder, search, params.precision)
        found += [
            _nearest_occurrences(name, number, vectors_NLD[:, number], search)
            for number in _choose_layers(name, vectors_NLD.shape[1], layer)
        ]
    shown = [replace(one, neighbours=one.neighbours[:num_neighbours]) for one in found]
    return _to_json(search, shown) if as_json else "\n".join(_format(search, shown))


def _choose_layers(model: str, num_layers: int, layer: int | None) -> Sequence[int]:
    if layer is None:
        return range(num_layers)
    if not 0 <= layer < num_layers:
        raise InputError(
            f"--layer: {model} has the layers 0 to {num_layers - 1}, from the embeddings upwards; "
            "name one of them"
        )
    return [layer]


def find_in(text: SearchedText, wanted: Sequence[str]) -> Iterator[Occurrence]:
    """Yield each place of a text where the wanted words stand in a row, in upper or lower case."""
    pattern = [to_lowercase(one) for one in wanted]
    lowered = [to_lowercase(one) for one in text.words]
    for first in range(len(lowered) - len(pattern) + 1):
        last = first + len(pattern)
        is_target = text.target is None or first <= text.target < last
        if pattern and is_target and lowered[first:last] == pattern:
            yield Occurrence(
                text.words[max(0, first - CONTEXT_WORDS) : first],
                text.words[first:last],
                text.words[last : last + CONTEXT_WORDS],
                text.place,
                text.labels[first],
            )


def _read_corpus(name: str, word: str, language: str) -> Iterator[SearchedText]:
    """Yield the documents of a corpus that may have the word."""
    folder = Path("artifacts/corpora") / name
    files = [folder / f"{split}.parquet" for split in ("train", "valid", "test")]
    present = [file for file in files if file.is_file()]
    if not present:
        raise InputError(f"{folder}: the corpus is not built yet; `lineage run` builds it")
    check_intact(folder, *(file.name for file in present))
    phrase = to_lowercase(normalize_text(word))
    for file in present:
        table = read_table(file)
        for document, text in zip(table["document"], table["text"], strict=True):
            if phrase in to_lowercase(text):
                words = split_words(text, language)
                yield SearchedText(str(document), words, [""] * len(words))


def _read_task(task: str, language: str) -> Iterator[SearchedText]:
    """Yield the texts of a task's items, with their labels."""
    folder = Path("artifacts/tasks") / task
    if not folder.is_dir():
        raise InputError(f"{folder}: the task is not prepared yet; `lineage run` prepares it")
    data = TaskData.load(folder, split="test")
    kind = load_kind(data.info.kind)
    names = data.info.labels

    def name_label(value: object) -> str:
        return str(names[int(value)]) if names and isinstance(value, int | np.integer) else ""

    for items in data.splits.values():
        if "tokens" in items:
            for item in items.to_dict("records"):
                words = [str(one) for one in item["tokens"]]
                label = item.get("label")
                if isinstance(label, np.ndarray | list):
                    labels = [name_label(one) for one in label]
                else:
                    labels = [name_label(label)] * len(words)
                yield SearchedText(str(item["id"]), words, labels, item.get("target"))
            continue
        labels_N = items["label"] if "label" in items else [""] * len(items)
        for texts in kind.extract_texts(items, language):
            for place, text, label in zip(items["id"], texts, labels_N, strict=True):
                words = split_words(text, language)
                yield SearchedText(str(place), words, [name_label(label)] * len(words))


def _embed(checkpoint: Checkpoint, encoder: Encoder, search: Search, precision: str) -> np.ndarray:
    """Return (N + 1, L, D): the vectors of the query and of all occurrences, in each layer."""
    occurrences = [search.query, *search.occurrences]
    table = pd.DataFrame({"tokens": [one.words for one in occurrences]})
    vectors_MLD = _extract(checkpoint, encoder, table, search, precision)
    vectors = []
    start = 0
    for one in occurrences:
        first = start + len(one.left)
        vectors.append(vectors_MLD[first : first + len(one.word)].mean(0, dtype=np.float64))
        start += len(one.words)
    return np.stack(vectors)


def _extract(
    checkpoint: Checkpoint, encoder: Encoder, table: pd.DataFrame, search: Search, precision: str
) -> np.ndarray:
    """Return (M, L, D) the vectors of the texts of a table, or of the words of its tokens."""
    tokenizer = checkpoint.tokenizer
    limit = max_input_positions(checkpoint)
    items = encode_items(table, tokenizer, max_length=limit, language=search.language)
    return extract_features(encoder, tokenizer, items, precision=precision)


def _nearest_occurrences(
    model: str, layer: int, vectors_ND: np.ndarray, search: Search
) -> LayerNeighbours:
    """Return the occurrences in the order of their cosines with the query, the first vector.

    There are none if all that are spelled alike have the same vector: `Movie` may have another.
    """
    centered_ND = center(vectors_ND)
    alike_ND = vectors_ND[search.is_spelled_alike]
    if centered_ND is None or (len(alike_ND) > 1 and center(alike_ND) is None):
        return LayerNeighbours(model, layer, [], "the same vector everywhere: it reads no context")
    cosines_N = cosines(centered_ND[0], centered_ND[1:])
    neighbours = [
        Neighbour(
            round(float(cosines_N[i]), 4),
            search.occurrences[i].format(search.language),
            search.occurrences[i].place,
            search.occurrences[i].label,
        )
        for i in np.argsort(-cosines_N, kind="stable")
    ]
    return LayerNeighbours(model, layer, neighbours)


def _nearest_words(
    model: str, checkpoint: Checkpoint, encoder: Encoder, search: Search, precision: str
) -> LayerNeighbours:
    """Return the words of the vocabulary that are most like the word, which has one vector."""
    vocabulary = vocab_words(checkpoint.tokenizer)
    texts = [join_words(search.query.word, search.language), *vocabulary]
    vectors_VLD = _extract(checkpoint, encoder, pd.DataFrame({"text": texts}), search, precision)
    vectors_VD = vectors_VLD[:, 0].astype(np.float64)
    if not encoder.handles_oov and to_lowercase(texts[0]) not in map(to_lowercase, vocabulary):
        return LayerNeighbours(model, 0, [], f"it does not know '{search.word}'")
    centered_VD = vectors_VD - vectors_VD[1:].mean(0)
    cosines_V = cosines(centered_VD[0], centered_VD[1:])
    order = [
        i
        for i in np.argsort(-cosines_V, kind="stable")
        if to_lowercase(vocabulary[i]) != to_lowercase(texts[0])
    ]
    neighbours = [Neighbour(round(float(cosines_V[i]), 4), vocabulary[i]) for i in order]
    return LayerNeighbours(model, 0, neighbours)


def _to_json(search: Search, found: Iterable[LayerNeighbours]) -> str:
    record = {
        "text": search.text,
        "word": search.word,
        "place": search.place,
        "occurrences": search.num_found,
        "compared": len(search.occurrences),
        "layers": [asdict(one) for one in found],
    }
    return json.dumps(record, ensure_ascii=False, indent=2)


def _format(search: Search, found: Iterable[LayerNeighbours]) -> Iterator[str]:
    """Yield the lines of a terminal."""
    compared = len(search.occurrences)
    sample = f"; {compared:,} of them, drawn at random, are compared"
    yield (
        f"'{search.word}' stands in {search.num_found:,} other places of {search.place}"
        f"{sample if compared < search.num_found else ''}"
    )
    for one in found:
        yield ""
        yield f"{one.model}, layer {one.layer}" + (f": {one.note}" if one.note else "")
        for neighbour in one.neighbours:
            label = f"  ({neighbour.label})" if neighbour.label else ""
            yield f"  {neighbour.cosine:5.2f}  {neighbour.text}{label}"
