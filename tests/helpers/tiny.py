"""Tiny models of every family on a few generated documents. Sizes are odd on purpose."""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lineage.answers.choice import ChoiceAnswer
from lineage.answers.label import LabelAnswer
from lineage.config.records import read_yaml
from lineage.config.resolve import fill_in_defaults, merge_trees, resolve_tree
from lineage.data.task_data import TaskData
from lineage.evaluation import evaluate
from lineage.methods.bilstm_probe import BilstmProbeMethod
from lineage.methods.encoder import (
    BaselineContext,
    EncoderUnderTest,
    EvalContext,
    EvalRun,
    Init,
    LabelCount,
)
from lineage.methods.encoding import EncodedItem, encode_items
from lineage.methods.finetuning import FinetuneMethod
from lineage.methods.head_method import HeadMethod, HeadStarter
from lineage.methods.heads import StartedHead
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.registry import EvaluateSettings, list_baselines
from lineage.networks.base import Encoder, LanguageModelFamily
from lineage.networks.batch import Batch
from lineage.networks.checkpoint import Checkpoint
from lineage.results import PREDICTION_COLUMNS, ResultRow
from lineage.study.models import ModelConfig, parse_model_config
from lineage.synthetic import grammar
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings, TokenizerType
from lineage.tokenizers.train import train_tokenizer
from lineage.training.budget import match_parameter_budget

ROOT = Path(__file__).parents[2]
# Models that the training loop trains.
MODERN = ("gpt_modern", "bert_modern", "gpt_bert")
TRAINED = (
    *("elmo", "ulmfit", "gpt", "bert", "taglm", "context2vec", "sa_lstm", "seq2seq"),
    *MODERN,
)
# Models of the study `cells`, which the training loop trains too.
CELLS = tuple(
    f"{direction}_{extractor}"
    for direction in ("left", "joined", "masked")
    for extractor in ("transformer", "lstm")
)
STATIC = ("word2vec", "fasttext", "glove")
FAMILIES = (*TRAINED, *CELLS, *STATIC)
BODY_PARAMETERS = 12_000
CPU = torch.device("cpu")
BILSTM_PROBE = BilstmProbeMethod(
    hidden_size=11,
    epochs=10,
    batch_size=8,
    learning_rate=0.02,
    cut_frac=0.1,
    ratio=32.0,
    weight_decay=0.0,
    dropout=0.0,
    max_grad_norm=5.0,
    min_steps=None,
    patience=None,
)
SMALL_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "elmo": {
        "tokenizer": {"vocab_size": 301},
        "architecture": {"filters": [[1, 5], [2, 7]], "char_embedding_size": 5},
        "pretrain": {"batch_size": 3, "seq_len": 7},
    },
    "ulmfit": {
        "tokenizer": {"vocab_size": 301},
        "architecture": {"num_layers": 2, "classifier_hidden_size": 7},
        "pretrain": {"batch_size": 3, "seq_len": 7},
    },
    "gpt": {
        "tokenizer": {"vocab_size": 499},
        "architecture": {"num_layers": 2, "num_heads": 2},
        "pretrain": {"batch_size": 3, "seq_len": 13},
    },
    "bert": {
        "tokenizer": {"vocab_size": 499},
        "architecture": {"num_layers": 2, "num_heads": 2},
        "pretrain": {"batch_size": 3, "seq_len": 23},
    },
    "taglm": {"tokenizer": {"vocab_size": 301}, "pretrain": {"batch_size": 5, "seq_len": 11}},
    "context2vec": {
        "tokenizer": {"vocab_size": 301},
        "pretrain": {"batch_size": 13, "seq_len": 23},
    },
    "sa_lstm": {"tokenizer": {"vocab_size": 151}, "pretrain": {"batch_size": 5, "seq_len": 11}},
    "seq2seq": {"tokenizer": {"vocab_size": 499}, "pretrain": {"batch_size": 3, "seq_len": 7}},
    "word2vec": {"tokenizer": {"vocab_size": 401}, "architecture": {"hidden_size": 17}},
    "fasttext": {
        "tokenizer": {"vocab_size": 401},
        "architecture": {"hidden_size": 17, "num_buckets": 997},
    },
    "glove": {"tokenizer": {"vocab_size": 401}, "architecture": {"hidden_size": 17}},
}
SMALL_SETTINGS |= dict.fromkeys((*CELLS, *MODERN), SMALL_SETTINGS["bert"])


def mark_slow(names: Iterable[str]) -> list[Any]:
    """Return the names as test parameters that are marked slow."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


# One model of each sort of network and objective. A head on another one works alike.
REPRESENTATIVE = ("elmo", "ulmfit", "gpt", "bert", "sa_lstm", "word2vec")


def mark_similar_slow(names: Iterable[str]) -> list[Any]:
    """Return the names as test parameters; only the representative ones are not slow."""
    return [
        name if name in REPRESENTATIVE else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


def dropout_config(name: str, share: float) -> dict[str, Any]:
    """Return the keys of `architecture` that set every dropout."""
    places = ("embedding", "input", "weight", "hidden", "output")
    return {"dropouts": dict.fromkeys(places, share)} if name == "ulmfit" else {"dropout": share}


def study_params(name: str) -> dict[str, Any]:
    """Return the parameters of a ready-made study with the defaults of the families filled in."""
    return resolve_tree(read_yaml(ROOT / f"studies/{name}.yaml"), "params.yaml")


def demo_params() -> dict[str, Any]:
    """Return the demo's params.yaml with the defaults of the families filled in."""
    return resolve_tree(read_yaml(ROOT / "params.yaml"), "params.yaml")


@functools.cache
def model_blocks() -> dict[str, Any]:
    """Return an empty block for each family, and the blocks of studies/cells.yaml."""
    return {name: {} for name in (*TRAINED, *STATIC)} | study_params("cells")["models"]


@functools.cache
def documents() -> tuple[str, ...]:
    """Return sixty documents of the synthetic language."""
    return tuple(grammar.generate_documents(60, seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED))


def model_config(name: str, **overrides: Mapping[str, Any]) -> ModelConfig:
    """Return a model's config with small sizes."""
    block = fill_in_defaults(
        name, merge_trees(merge_trees(model_blocks()[name], SMALL_SETTINGS[name]), overrides)
    )
    return parse_model_config(name, block, f"models.{name}")


def tokenizer(name: str) -> Tokenizer:
    """Return the family's tokenizer, trained on the documents."""
    config = model_config(name)
    return _cached_tokenizer(config.tokenizer, config.tokenizer_type)


def words(name: str) -> list[str]:
    """Return the words of letters in a model's vocabulary, sorted."""
    return sorted(word for word in tokenizer(name).backend_tokenizer.get_vocab() if word.isalpha())


def corpus(name: str) -> TokenizedCorpus:
    """Return the documents as the family's token ids."""
    config = model_config(name)
    return _cached_corpus(config.tokenizer, config.tokenizer_type)


@functools.cache
def _cached_tokenizer(settings: TokenizerSettings, unit: TokenizerType) -> Tokenizer:
    return train_tokenizer(documents(), settings, tokenizer_type=unit, language="en")


@functools.cache
def _cached_corpus(settings: TokenizerSettings, unit: TokenizerType) -> TokenizedCorpus:
    return encode_corpus(documents(), _cached_tokenizer(settings, unit))


def batch(name: str, index: int, **overrides: Mapping[str, Any]) -> Batch:
    """Return a batch of the first pretraining epoch over the documents."""
    result: Batch = sampler(name, **overrides).get_batch(index)
    return result


def sampler(name: str, *, seed: int = 1, **overrides: Mapping[str, Any]) -> Any:
    """Return the family's sampler over the documents, at the beginning of its first epoch."""
    config = model_config(name, **overrides)
    assert isinstance(config.family, LanguageModelFamily)
    result = config.family.batch_sampler(corpus(name), tokenizer(name), config.pretrain, seed=seed)
    result.set_epoch(0)
    return result


match_budget = functools.cache(match_parameter_budget)  # tests use the same few models


def checkpoint(name: str, **overrides: Mapping[str, Any]) -> Checkpoint:
    """Return a checkpoint without weights, with about BODY_PARAMETERS parameters."""
    config = model_config(name, **overrides)
    architecture = match_budget(
        config.family,
        config.architecture,
        vocab_size=tokenizer(name).vocab_size,
        body_parameters=BODY_PARAMETERS,
    )
    return Checkpoint(name, config.family, architecture, config.pretrain, tokenizer(name), seed=11)


def model(name: str, **overrides: Mapping[str, Any]) -> Encoder:
    """Return an untrained model.

    Matrices that start at zero are drawn too: a modern block would be the identity.
    """
    built = checkpoint(name, **overrides).build(CPU, load_weights=False)
    generator = torch.Generator().manual_seed(17)
    for parameter in built.parameters():
        if parameter.dim() > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    return built


def shift_letters(text: str) -> str:
    """Return the text in "another language": each lower-case letter moves on by seven."""
    return "".join(
        chr((ord(letter) - 97 + 7) % 26 + 97) if "a" <= letter <= "z" else letter for letter in text
    )


def two_languages() -> TokenizedCorpus:
    """Return the documents, every other one in another language."""
    texts = [shift_letters(text) if index % 2 else text for index, text in enumerate(documents())]
    return encode_corpus(texts, tokenizer("seq2seq"), languages=["en", "xx"] * (len(texts) // 2))


def bilingual_settings(**overrides: Any) -> Any:
    """Return pretraining settings for two languages."""
    return model_config(
        "seq2seq", pretrain={"source_language": "en", "target_language": "xx", **overrides}
    ).pretrain


def task_info(kind: str, *probes: str) -> TaskInfo:
    """Return the part of a task's info that decides which evaluations a stage runs."""
    return TaskInfo("x", kind, probes=probes or ("linear",))


def label_answer(count: int, *, choices: bool = False) -> LabelAnswer:
    """Return the answer format of a task with this many labels."""
    answer = ChoiceAnswer if choices else LabelAnswer
    return answer(tuple(map(str, range(count))))


class OneBatchSampler:
    """A sampler with a single batch."""

    carries_state = False

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def set_epoch(self, epoch: int) -> int:
        return 1

    def get_batch(self, index: int) -> Batch:
        return self.batch


def record_starts(
    monkeypatch: pytest.MonkeyPatch, on_start: Callable[[HeadStarter, HeadMethod], None]
) -> None:
    """Call a function before every start of a head."""
    original = HeadStarter.__call__

    def start(starter: HeadStarter, method: HeadMethod) -> StartedHead:
        on_start(starter, method)
        return original(starter, method)

    monkeypatch.setattr(HeadStarter, "__call__", start)


def list_runs(
    info: TaskInfo,
    inits: tuple[Init, ...],
    label_counts: tuple[LabelCount, ...],
    finetune_seeds: tuple[int, ...],
    *,
    finetuned: bool = True,
    setfit: bool = False,
    method: str = "",
) -> Iterator[EvalRun]:
    """Yield the runs on a task of all methods, or of those whose names end with `method`."""
    methods = model_config("seq2seq").evaluate.methods.values()
    used = [
        one
        for one in methods
        if (finetuned or one.reads_frozen_features) and (setfit or one.name != "setfit")
    ]
    used = [one for one in used if one.name.endswith(method)]
    return evaluate.list_runs(info, used, inits, label_counts, finetune_seeds)


def eval_context(
    model: str | Checkpoint, task: TaskData, settings: EvaluateSettings, **options: Any
) -> EvalContext:
    """Return the context of an untrained model, or of a checkpoint."""
    if isinstance(model, str):
        model = checkpoint(model)
    return EvalContext(model, task, settings, 0, 1000, "fp32", CPU, **options)


def eval_settings(linear_probe: LinearProbeMethod, finetune: FinetuneMethod) -> EvaluateSettings:
    """Return settings with the tiny BiLSTM probe."""
    return EvaluateSettings(linear_probe=linear_probe, bilstm_probe=BILSTM_PROBE, finetune=finetune)


def evaluate_runs(
    context: EvalContext, runs: Iterable[EvalRun], cache_dir: Path
) -> evaluate.EvaluationOutput:
    """Evaluate without a report of the progress, and create the folder."""
    cache_dir.mkdir(exist_ok=True)
    return evaluate.evaluate_runs(
        context, [*runs], cache_dir=cache_dir, report_progress=lambda *_: None
    )


def encode(
    name: str, table: pd.DataFrame, *, max_length: int | None = None, symmetric: bool = False
) -> list[EncodedItem]:
    """Return the items of a table as a model reads them."""
    return encode_items(
        table, tokenizer(name), max_length=max_length, language="en", symmetric=symmetric
    )


def stored_features(encoder: EncoderUnderTest) -> Any:
    """Return the features of each table that the encoder's linear probes read."""
    return encoder.context.settings.methods["linear_probe"].stored_features(encoder)


def cached_features(encoder: EncoderUnderTest) -> Any:
    """Return the features of each table that the encoder's BiLSTM probes read."""
    return encoder.context.settings.methods["bilstm_probe"].cached_features(encoder)


BaselineResult = tuple[list[ResultRow], pd.DataFrame]


def evaluate_baselines(
    kind: Kind,
    task: TaskData,
    *,
    split: str = "test",
    finetune_seeds: Sequence[int] = (0,),
    label_counts: Sequence[LabelCount] = ("all",),
    tfidf_C: Sequence[float] = (10.0,),
    cache_dir: Path | None = None,
) -> list[BaselineResult]:
    """Return the rows and predictions of each baseline, run, trial and test set.

    Those of tasks without a head come together. TF-IDF has one trial unless a test needs more.
    """
    if split == "validation":
        splits = {name: table for name, table in task.splits.items() if "test" not in name}
        task = dataclasses.replace(task, splits=splits, include_test=False)
    context = BaselineContext(task, list_baselines(tfidf_C))
    methods = [*context.settings.methods.values()]
    runs = [
        *evaluate.list_runs(
            task.info, methods, ("none",), tuple(label_counts), tuple(finetune_seeds)
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        output = evaluate.evaluate_runs(
            context, runs, cache_dir=cache_dir or Path(folder), report_progress=lambda *_: None
        )
    predictions = output.predictions[list(PREDICTION_COLUMNS)]
    if not kind.trains_head:
        return [(output.rows, predictions)]
    results: dict[tuple[Any, ...], list[ResultRow]] = {}
    names = ("model", "label_count", "finetune_seed", "fold", "trial", "test_set")
    for row in output.rows:
        test_set = row.test_set or row.task
        key = (row.model, row.label_count, row.finetune_seed, row.fold, row.trial, test_set)
        results.setdefault(key, []).append(row)
    return [(rows, _select_rows(predictions, names, key)) for key, rows in results.items()]


def _select_rows(table: pd.DataFrame, names: Sequence[str], key: tuple[Any, ...]) -> pd.DataFrame:
    is_selected = np.ones(len(table), bool)
    for name, value in zip(names, key, strict=True):
        column = table[name]
        same = column.isna() if value is None else (column == value).fillna(value=False)
        is_selected &= same.to_numpy(bool)
    return table[is_selected]
