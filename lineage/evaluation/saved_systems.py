"""Systems in folders: saved by an evaluation, loaded to answer new items.

A folder holds system.json and the weights of a head, of a whole fine-tuned network, of a head and
the encoder that SetFit has fine-tuned, or of TF-IDF.
A system with an encoder refers to the folder of its pretrained or adapted model, which has the
tokenizer, the sizes and, for a frozen head, the encoder's weights. An exported system has a copy of
it, in MODEL_FOLDER.

Shapes: N items, M answers, K outputs.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from lineage.answers.base import HeadAnswer, PredictionColumns
from lineage.artifacts import read_json, write_json
from lineage.config.records import parse_record
from lineage.errors import EvaluationError, InputError
from lineage.evaluation.baselines import ChosenTfidf
from lineage.evaluation.bilstm_probe import BilstmProbe, CachedFeatures, predict_bilstm_probe
from lineage.evaluation.encoding import EncodedItem, encode_items
from lineage.evaluation.feature_store import pop_scaling
from lineage.evaluation.finetuning import FinetunedModel, predict_finetuned
from lineage.evaluation.frozen_features import FeatureExtractor
from lineage.evaluation.heads import HeadOutput
from lineage.evaluation.linear_probe import StoredFeatures, linear_scores
from lineage.evaluation.setfit import SentenceEncoder, encode_texts
from lineage.evaluation.settings import (
    BilstmProbeSettings,
    FinetuneSettings,
    LinearProbeSettings,
    SetfitSettings,
)
from lineage.evaluation.tfidf import (
    LinearModel,
    TfidfModel,
    build_text_vectorizer,
    build_word_vectorizer,
)
from lineage.evaluation.translation import translate
from lineage.evaluation.translator import TranslationSettings, Translator
from lineage.models.base import Encoder, Trained
from lineage.models.checkpoint import Checkpoint
from lineage.models.weights import (
    WEIGHTS_FILE,
    build_on_meta,
    load_into_model,
    read_tensors,
    save_tensors,
)
from lineage.tasks.base import Kind, load_kind

RECORD_FILE = "system.json"
VOCABULARY_FILE = "vocabulary.json"  # of TF-IDF: the terms of each vectorizer, by their place
MODEL_FOLDER = "model"  # of an exported system: its pretrained or adapted model
# The record of a head's settings, by the name of its block in `evaluate`.
SETTINGS_TYPES: dict[str, type[Any]] = {
    "linear_probe": LinearProbeSettings,
    "bilstm_probe": BilstmProbeSettings,
    "finetune": FinetuneSettings,
    "setfit": SetfitSettings,
    "translation": TranslationSettings,
}
# Answers to the items of a table, without labels.
AnswerItems = Callable[[pd.DataFrame], PredictionColumns]


@dataclass(frozen=True)
class SystemRecord:
    """The contents of system.json: what the system is, and how it reads and answers items."""

    # As in the result rows.
    model: str
    family: str
    init: str
    adapt_text: str
    transfer: str
    features: str
    head: str
    recipe: str
    task: str
    kind: str
    label_count: str
    train_examples: int
    pretrain_seed: int | None
    finetune_seed: int
    fold: int | None
    metric: str
    validation_score: float | None  # None: undefined
    language: str
    symmetric: bool  # the order of two texts means nothing
    character_spans: bool  # the labels were spans of characters: texts are split into words
    labels: tuple[str, ...]
    # Those of the training labels, for numbers.
    label_mean: float | None
    label_std: float | None
    settings_block: str  # of `evaluate`, or tfidf
    settings: dict[str, Any]
    precision: str
    max_input_positions: int | None  # that the model reads of a text; None: any number
    model_folder: str | None  # relative to the study; None: the system has no encoder

    @property
    def name(self) -> str:
        """The system's name, such as elmo-adapted-finetuned, elmo-frozen-linear or tfidf."""
        return system_name(self.model, self.init, self.transfer, self.head)

    @property
    def answer(self) -> HeadAnswer:
        """How the outputs of a head answer."""
        answer = load_kind(self.kind).answer
        fitted = answer(self.labels, mean=self.label_mean or 0.0, std=self.label_std or 1.0)
        assert isinstance(fitted, HeadAnswer)
        return fitted


def system_name(model: str, init: str, transfer: str, head: str) -> str:
    """Return the name of a system from the columns of its result rows."""
    if transfer == "none":
        return model
    parts = [model]
    if init != "pretrained":
        parts.append(init)
    parts.append(transfer)
    if transfer == "frozen":
        parts.append(head)
    return "-".join(parts)


def save_system(folder: Path, record: SystemRecord, tensors: dict[str, torch.Tensor]) -> None:
    """Write a head or a whole network. The record is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(tensors, folder / WEIGHTS_FILE)
    write_json(folder / RECORD_FILE, asdict(record))


def save_tfidf(folder: Path, chosen: ChosenTfidf, info: Mapping[str, Any]) -> None:
    """Write a TF-IDF model: its vocabularies as JSON, and its numbers as arrays.

    `info` is the task's task.json.
    """
    model = chosen.model
    vocabularies = []
    tensors = {}
    for number, vectorizer in enumerate(model.vectorizers):
        vocabularies.append(vectorizer.get_feature_names_out().tolist())
        tensors[f"vectorizers.{number}.idf"] = torch.from_numpy(vectorizer.idf_)
    for number, linear in enumerate(model.linear_models):
        prefix = f"linear_models.{number}"
        tensors[f"{prefix}.coef"] = torch.from_numpy(np.asarray(linear.coef_))
        tensors[f"{prefix}.intercept"] = torch.from_numpy(np.atleast_1d(linear.intercept_))
        if isinstance(linear, LogisticRegression):
            classes_K = linear.classes_.astype(np.int64)
            tensors[f"{prefix}.classes"] = torch.from_numpy(classes_K)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / VOCABULARY_FILE, vocabularies)
    save_system(folder, _describe_tfidf(chosen, info), tensors)


def _describe_tfidf(chosen: ChosenTfidf, info: Mapping[str, Any]) -> SystemRecord:
    run = chosen.run
    score = chosen.validation_score
    assert run.finetune_seed is not None
    return SystemRecord(
        model=run.model,
        family=run.model,
        init="none",
        adapt_text="none",
        transfer="none",
        features="none",
        head="none",
        recipe="none",
        task=run.task,
        kind=run.kind,
        label_count=run.label_count,
        train_examples=run.train_examples,
        pretrain_seed=None,
        finetune_seed=run.finetune_seed,
        fold=run.fold,
        metric=info["metric"][0],
        validation_score=score if math.isfinite(score) else None,
        language=info["language"],
        symmetric=chosen.model.is_symmetric,
        character_spans=info.get("character_spans", False),
        labels=chosen.model.answer.label_names,
        label_mean=None,
        label_std=None,
        settings_block="tfidf",
        settings={"C": chosen.C},
        precision="fp32",
        max_input_positions=None,
        model_folder=None,
    )


def read_record(folder: Path) -> SystemRecord:
    """Read system.json. Raises InputError."""
    path = folder / RECORD_FILE
    if not path.is_file():
        raise InputError(
            f"{folder}: no system is here; run `dvc repro` to make it, or `dvc pull` to fetch it"
        )
    return parse_record(SystemRecord, read_json(path), str(path))


def locate_model(folder: Path, record: SystemRecord) -> Path:
    """Return the folder of a system's pretrained or adapted model: a copy in it, or the study's."""
    assert record.model_folder is not None
    copied = folder / MODEL_FOLDER
    return copied if copied.is_dir() else Path(record.model_folder)


def load_system(folder: Path, device: torch.device) -> AnswerItems:
    """Return the function that answers items as the system does. Raises InputError.

    It takes items of the task's kind without labels. It raises EvaluationError if an answer is not
    finite.
    """
    record = read_record(folder)
    if record.settings_block == "tfidf":
        return _load_tfidf(folder, record).answer_columns
    checkpoint = Checkpoint.load(locate_model(folder, record))
    if record.settings_block == "translation":
        return _SavedTranslator(folder, record, checkpoint, device).answer_columns
    tensors = read_tensors(folder / WEIGHTS_FILE)
    head_types: dict[str, type[_SavedHead]] = {
        "linear_probe": _SavedLinearProbe,
        "bilstm_probe": _SavedBilstmProbe,
        "finetune": _SavedNetwork,
        "setfit": _SavedSetfit,
    }
    return head_types[record.settings_block](folder, record, checkpoint, tensors, device).answer


class _SavedHead:
    """A head with its encoder. It is built when the first item shows what it reads."""

    def __init__(
        self,
        folder: Path,
        record: SystemRecord,
        checkpoint: Checkpoint,
        tensors: dict[str, torch.Tensor],
        device: torch.device,
    ) -> None:
        self.path = folder / WEIGHTS_FILE
        self.record = record
        self.checkpoint = checkpoint
        self.tensors = tensors
        self.device = device
        settings_type = SETTINGS_TYPES[record.settings_block]
        self.settings = parse_record(
            settings_type, record.settings, f"{folder / RECORD_FILE}: settings"
        )

    def answer(self, table: pd.DataFrame) -> PredictionColumns:
        """Return the answers to items."""
        record = self.record
        items = encode_items(
            table,
            self.checkpoint.tokenizer,
            max_length=record.max_input_positions,
            language=record.language,
            symmetric=record.symmetric,
        )
        outputs_MK, decoded_M = self.predict(items)
        if not np.isfinite(outputs_MK).all():
            raise EvaluationError("the predictions are not finite")
        outputs_MK = record.answer.normalize(table, outputs_MK)
        return record.answer.answer_columns(table, outputs_MK, decoded_M)

    def predict(self, items: list[EncodedItem]) -> HeadOutput:
        """Return (M, K) outputs, and (M,) the decoded tags of a CRF."""
        raise NotImplementedError(f"{type(self).__name__}.predict")

    def build_encoder(self) -> Encoder:
        """Build the frozen encoder."""
        return self.checkpoint.build(self.device, load_weights=self.record.init != "random")

    def build_empty_encoder(self) -> Encoder:
        """Build the encoder with memory for weights that are loaded afterwards."""
        checkpoint = self.checkpoint
        vocab_size = checkpoint.tokenizer.vocab_size
        encoder: Encoder = build_on_meta(
            lambda: checkpoint.family.build(checkpoint.architecture, vocab_size=vocab_size),
            where=str(self.path),
        )
        # Heads are drawn at random, which on the meta device takes seconds of imports.
        return encoder.to_empty(device="cpu")

    def extractors(self, encoder: Encoder, items: list[EncodedItem]) -> Iterator[FeatureExtractor]:
        """Yield extractors of the table `new`: parts of the items that fit into memory."""
        tokenizer = self.checkpoint.tokenizer
        extractor = FeatureExtractor(encoder, tokenizer, {}, precision=self.record.precision)
        for part in extractor.parts(items):
            yield replace(extractor, tables={"new": items[part]})


class _SavedLinearProbe(_SavedHead):
    """A linear probe on frozen features."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.encoder = self.build_encoder()
        self.scaling = pop_scaling(self.tensors)

    @torch.no_grad()
    def predict(self, items: list[EncodedItem]) -> HeadOutput:
        weight_KF = self.tensors["weight"]
        bias_K = self.tensors["bias"]
        scores: list[torch.Tensor] = []
        for extractor in self.extractors(self.encoder, items):
            features = extractor.store(self.settings, folder=None, scaling=self.scaling)["new"]
            scores += [
                linear_scores(features, rows, weight_KF, bias_K) for rows in features.chunks()
            ]
        return self.record.answer.postprocess(torch.cat(scores)), None


class _SavedBilstmProbe(_SavedHead):
    """A BiLSTM probe on frozen features."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.encoder = self.build_encoder()
        self.scaling = pop_scaling(self.tensors)
        self.probe: BilstmProbe | None = None

    def predict(self, items: list[EncodedItem]) -> HeadOutput:
        is_per_word = self.record.answer.are_words
        outputs = []
        decoded = []
        for extractor in self.extractors(self.encoder, items):
            features = extractor.store_cached(
                self.settings, is_per_word=is_per_word, folder=None, scaling=self.scaling
            )["new"]
            if self.probe is None:
                self.probe = self._build_probe(features)
            output = predict_bilstm_probe(self.probe, features)
            outputs.append(output.outputs_MK)
            if output.decoded_M is not None:
                decoded.append(output.decoded_M)
        return np.concatenate(outputs), np.concatenate(decoded) if decoded else None

    def _build_probe(self, features: CachedFeatures) -> BilstmProbe:
        """Build the probe for features of this form, and load its weights and statistics."""
        probe = BilstmProbe(self.record.answer, self.settings, features, seed=0)
        load_into_model(probe, nn.Module.state_dict, self.tensors, self.path)
        return probe.to(self.device)


class _SavedNetwork(_SavedHead):
    """A fine-tuned network."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.network: FinetunedModel | None = None

    def predict(self, items: list[EncodedItem]) -> HeadOutput:
        if self.network is None:
            self.network = self._build_network(items[0])
        tokenizer = self.checkpoint.tokenizer
        precision = self.record.precision
        return predict_finetuned(self.network, tokenizer, items, precision=precision), None

    def _build_network(self, example_item: EncodedItem) -> FinetunedModel:
        """Build the network for items of this form, and load its weights."""
        encoder = self.build_empty_encoder()
        answer = self.record.answer
        network = FinetunedModel(encoder, answer, self.settings, seed=0, example_item=example_item)
        load_into_model(network, nn.Module.state_dict, self.tensors, self.path)
        return network.to(self.device)


class _SavedSetfit(_SavedHead):
    """An encoder that was fine-tuned on pairs of texts, and a linear probe on its vectors."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.weight_KD = self.tensors.pop("weight")
        self.bias_K = self.tensors.pop("bias")
        self.model = SentenceEncoder(
            self.build_empty_encoder(), uses_mean_pooling=self.record.features == "mean"
        )
        load_into_model(self.model, nn.Module.state_dict, self.tensors, self.path)
        self.model.to(self.device)

    @torch.no_grad()
    def predict(self, items: list[EncodedItem]) -> HeadOutput:
        vectors = encode_texts(
            self.model, self.checkpoint.tokenizer, items, precision=self.record.precision
        )
        features = StoredFeatures.wrap(vectors)
        scores = [
            linear_scores(features, rows, self.weight_KD, self.bias_K) for rows in features.chunks()
        ]
        return self.record.answer.postprocess(torch.cat(scores)), None


class _SavedTranslator:
    """A translator."""

    def __init__(
        self, folder: Path, record: SystemRecord, checkpoint: Checkpoint, device: torch.device
    ) -> None:
        self.record = record
        self.tokenizer = checkpoint.tokenizer
        family = checkpoint.family
        assert isinstance(family, Trained) and family.build_translator is not None
        settings = parse_record(
            TranslationSettings, record.settings, f"{folder / RECORD_FILE}: settings"
        )
        # The weights of all parts are replaced below.
        models = [checkpoint.build(torch.device("cpu"), load_weights=False) for _ in range(2)]
        self.model: Translator = family.build_translator(
            *models, settings, generator=torch.Generator().manual_seed(0)
        )
        path = folder / WEIGHTS_FILE
        load_into_model(self.model, nn.Module.state_dict, read_tensors(path), path)
        self.model.to(device)

    def answer_columns(self, table: pd.DataFrame) -> PredictionColumns:
        """Return the translations of the sources."""
        sources = table["source"].tolist()
        texts, _ = translate(self.model, self.tokenizer, sources, precision=self.record.precision)
        return {"prediction": texts}


def _load_tfidf(folder: Path, record: SystemRecord) -> TfidfModel:
    tensors = read_tensors(folder / WEIGHTS_FILE)
    kind = load_kind(record.kind)
    vectorizers = []
    vocabularies = read_json(folder / VOCABULARY_FILE)
    for number, vocabulary in enumerate(vocabularies):
        if len(vocabularies) > 1:  # of a word and its neighbors
            vectorizer = build_word_vectorizer(vocabulary=vocabulary)
        else:
            vectorizer = build_text_vectorizer(record.language, vocabulary=vocabulary)
        vectorizer.idf_ = tensors[f"vectorizers.{number}.idf"].numpy()
        vectorizers.append(vectorizer)
    num_models = sum(name.endswith(".coef") for name in tensors)
    linear_models = [
        _load_linear_model(kind, tensors, f"linear_models.{number}") for number in range(num_models)
    ]
    return TfidfModel(
        record.answer,
        kind,
        record.language,
        record.symmetric,
        tuple(vectorizers),
        tuple(linear_models),
    )


def _load_linear_model(kind: Kind, tensors: dict[str, torch.Tensor], prefix: str) -> LinearModel:
    """Return scikit-learn's model with the attributes that its fit has set."""
    coef = tensors[f"{prefix}.coef"].numpy()
    intercept = tensors[f"{prefix}.intercept"].numpy()
    if kind.answer.are_numbers:
        ridge = Ridge()
        ridge.coef_ = coef
        ridge.intercept_ = float(intercept[0])
        return ridge
    model = LogisticRegression()
    model.coef_ = coef
    model.intercept_ = intercept
    model.classes_ = tensors[f"{prefix}.classes"].numpy()
    return model
