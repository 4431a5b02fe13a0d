"""Write the vectors of texts, or of their words, that a model of the study computes.

Shapes: N texts, M words of all texts, L layers, D width.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lineage.config.params import read_recorded_params
from lineage.errors import InputError
from lineage.language import is_blank, normalize_text, split_words
from lineage.methods.encoder import max_input_positions
from lineage.methods.encoding import EncodedItem, encode_items
from lineage.methods.stored_features import extract_features
from lineage.networks.base import Encoder
from lineage.networks.checkpoint import Checkpoint
from lineage.runtime.settings import read_runtime_settings
from lineage.serving.files import ROWS_PER_CHUNK, answer_file, check_output, format_rows, open_input
from lineage.serving.systems import locate_trained_model
from lineage.tasks.columns import TableColumns, is_empty_cell
from lineage.training.devices import configure_torch, select_device

TEXT_COLUMN = "text"
VECTOR = "vector"
WORDS = "words"
VECTORS = "vectors"
WORD_ROWS_PER_CHUNK = 256  # a text has a vector for each of its words


@dataclass(frozen=True)
class Embedder:
    """A model that computes vectors of texts or of their words."""

    checkpoint: Checkpoint
    model: Encoder
    language: str
    precision: str
    layer: int | None  # None: the mean of all layers

    def embed(self, texts: list[str]) -> np.ndarray:
        """Return (N, D): the mean over the pieces of each text, which a linear probe reads."""
        return self._embed(pd.DataFrame({"text": texts}))

    def embed_words(self, words: list[list[str]]) -> list[np.ndarray]:
        """Return (W, D) the vectors of the words of each text; zeros for a word without piece."""
        vectors_MD = self._embed(pd.DataFrame({"tokens": words}))
        return np.split(vectors_MD, np.cumsum([len(one) for one in words])[:-1])

    def _embed(self, table: pd.DataFrame) -> np.ndarray:
        tokenizer = self.checkpoint.tokenizer
        items: list[EncodedItem] = encode_items(
            table,
            tokenizer,
            max_length=max_input_positions(self.checkpoint),
            language=self.language,
        )
        layers = extract_features(self.model, tokenizer, items, precision=self.precision)
        if self.layer is None:
            return layers.mean(1)
        return layers[:, self.layer, : self.model.hidden_sizes()[self.layer]]


def embed_file(
    file: Path, out: Path, *, model: str, layer: int | None, words: bool, text_column: str | None
) -> str:
    """Write the columns of a file with vectors as parquet, and return a sentence about it.

    `model` is MODEL or MODEL@TASK. Without `layer` the layers are averaged. Raises InputError.
    """
    params = read_recorded_params()
    folder = locate_trained_model(params, model)
    if out.suffix != ".parquet":
        raise InputError(f"{out}: vectors are written as parquet; end its name in .parquet")
    column = text_column or TEXT_COLUMN
    source = open_input(file, text_column=column)
    check_output(out, source)
    source.check([column])
    checkpoint = Checkpoint.load(folder)
    configure_torch(params.threads)
    device = select_device(params.device, read_runtime_settings().device_index)
    encoder = checkpoint.build(device)
    num_layers = len(encoder.hidden_sizes())
    if layer is not None and not 0 <= layer < num_layers:
        raise InputError(
            f"--layer: {model} has the layers 0 to {num_layers - 1}, from the embeddings upwards; "
            "name one of them"
        )
    task = model.partition("@")[2]
    corpus = params.corpora[params.budget.corpus]
    language = params.tasks[task].language if task else corpus.language
    embedder = Embedder(checkpoint, encoder, language, params.precision, layer)

    def embed(columns: TableColumns, num_before: int) -> TableColumns:
        return _embed_chunk(embedder, columns[column], source.path.name, words=words)

    vector_type = pa.list_(pa.float32())
    new_fields = {VECTOR: vector_type}
    if words:
        new_fields = {WORDS: pa.list_(pa.string()), VECTORS: pa.list_(vector_type)}
    rows_per_chunk = WORD_ROWS_PER_CHUNK if words else ROWS_PER_CHUNK
    num_rows, num_blank = answer_file(source, out, new_fields, embed, rows_per_chunk=rows_per_chunk)
    unit = "words" if words else "texts"
    blank = f"; {format_rows(num_blank)} without text, and without vector" if num_blank else ""
    return f"{out}: {format_rows(num_rows)} with the vectors of {unit}{blank}"


def _embed_chunk(embedder: Embedder, cells: list[Any], place: str, *, words: bool) -> TableColumns:
    """Return the new columns of a chunk; None in rows without text. Raises InputError."""
    texts: dict[int, str] = {}  # by row
    for row, cell in enumerate(cells):
        if is_empty_cell(cell):
            continue
        if not isinstance(cell, str):
            raise InputError(f"{place}: a cell of the text column does not hold a text; correct it")
        text = normalize_text(cell)
        if not is_blank(text):
            texts[row] = text
    columns: TableColumns = {
        name: [None] * len(cells) for name in ((WORDS, VECTORS) if words else (VECTOR,))
    }
    if texts and words:
        word_lists = [split_words(text, embedder.language) for text in texts.values()]
        vectors = embedder.embed_words(word_lists)
        for row, word_list, vectors_WD in zip(texts, word_lists, vectors, strict=True):
            columns[WORDS][row] = word_list
            columns[VECTORS][row] = list(vectors_WD)
    elif texts:
        for row, vector_D in zip(texts, embedder.embed(list(texts.values())), strict=True):
            columns[VECTOR][row] = vector_D
    return columns
