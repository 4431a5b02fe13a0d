"""All methods: the block `evaluate` of a model has a block for each that is trained.

To add a method, write its file and give it a field here; to add a baseline, an entry in
`list_baselines`.
"""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Self

import torch

from lineage.config.params import Grid
from lineage.config.records import parse_record
from lineage.methods.base import Method
from lineage.methods.bilstm_probe import BilstmProbeMethod
from lineage.methods.chance import ChanceMethod
from lineage.methods.continuation import ContinuationMethod
from lineage.methods.copying import CopyMethod
from lineage.methods.extracts import LeadMethod, LongestSentenceMethod
from lineage.methods.finetuning import FinetuneMethod
from lineage.methods.layer_probe import LayerProbeMethod
from lineage.methods.linear_probe import LinearProbeMethod
from lineage.methods.majority import MajorityMethod
from lineage.methods.nearest_candidate import NearestCandidateMethod
from lineage.methods.neighbours import NeighboursMethod
from lineage.methods.outside import OutsideMethod
from lineage.methods.saved import RECORD_FILE, AnswerItems, SavedSystem, read_record
from lineage.methods.sentence_probability import SentenceProbabilityMethod
from lineage.methods.setfit import SetfitMethod
from lineage.methods.tfidf import TfidfMethod
from lineage.methods.translation import TranslationMethod
from lineage.methods.word_vectors import WordVectorMethod

# They have no keys, so they have no block.
UNTRAINED_METHODS = (SentenceProbabilityMethod(), WordVectorMethod())


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """The block `evaluate`."""

    linear_probe: LinearProbeMethod = field(default_factory=LinearProbeMethod)
    bilstm_probe: BilstmProbeMethod = field(default_factory=BilstmProbeMethod)
    finetune: FinetuneMethod
    setfit: SetfitMethod = field(default_factory=SetfitMethod)
    translation: TranslationMethod | None = None  # for families that have a translator
    # For families that can write on from a text.
    continuation: ContinuationMethod = field(default_factory=ContinuationMethod)
    layer_probe: LayerProbeMethod | None = None  # only for models that have the block
    neighbours: NeighboursMethod | None = None  # likewise

    @property
    def methods(self) -> dict[str, Method]:
        """All methods by name, in the order in which they are run."""
        # A family without a translator has rows that say so.
        filled = replace(self, translation=self.translation or TranslationMethod())
        blocks = [getattr(filled, block.name) for block in fields(filled)]
        present = [block for block in blocks if block is not None]
        methods: list[Method] = [block.complete(self.finetune) for block in present]
        return {method.name: method for method in (*methods, *UNTRAINED_METHODS)}

    def shorten(self) -> Self:
        """Return the blocks with less training, for a rehearsal."""
        blocks = {block.name: getattr(self, block.name) for block in fields(self)}
        shortened = {name: block.shorten() for name, block in blocks.items() if block is not None}
        return replace(self, **shortened)


@cache
def list_method_types() -> tuple[type[Method], ...]:
    """Return the methods of using a model, in the order in which they are run and shown."""
    hints = typing.get_type_hints(EvaluateSettings).values()
    types: list[type[Method]] = [
        (typing.get_args(hint) or (hint,))[0]  # a block may be missing
        for hint in hints
    ]
    return (*types, *(type(method) for method in UNTRAINED_METHODS))


def find_method_type(transfer: str, head: str) -> type[Method] | None:
    """Return the method whose results have these columns; None for baselines."""
    for method in list_method_types():
        if method.transfer == transfer and head in method.titles:
            return method
    return None


def name_use(transfer: str, head: str) -> str:
    """Return how a model is used, whatever the kind of task: `frozen + BiLSTM(-CRF)`."""
    method = find_method_type(transfer, head)
    if method is None:
        return ""
    return method.group_title or method.titles[head]


def list_uses() -> list[str]:
    """Return the names of all uses of a model, in their order."""
    uses = [
        name_use(method.transfer, head) for method in list_method_types() for head in method.titles
    ]
    return [*dict.fromkeys(uses)]


@dataclass(frozen=True)
class Baselines:
    """Methods without a model, by name."""

    methods: dict[str, Method]


def list_baselines(
    tfidf_C: Sequence[float] = Grid.tfidf_C,
    outside_predictions: Mapping[str, Mapping[str, str]] | None = None,
) -> Baselines:
    """Return the baselines; `outside_predictions` are those of systems by name, then by item id."""
    outside = (outside_predictions or {}).items()
    methods: list[Method] = [
        MajorityMethod(),
        TfidfMethod.with_values(tfidf_C),
        ChanceMethod(),
        CopyMethod(),
        LeadMethod(),
        LongestSentenceMethod(),
        NearestCandidateMethod(),
        *(OutsideMethod(name=name, predictions=answers) for name, answers in outside),
    ]
    return Baselines({method.name: method for method in methods})


def load_system(folder: Path, device: torch.device) -> AnswerItems:
    """Return the function that answers a table of items without labels as a kept system does.

    Raises InputError; the function raises EvaluationError if an answer is not finite.
    """
    record = read_record(folder)
    types: dict[str, type[Method]] = {TfidfMethod.name: TfidfMethod}
    types |= {method.name: method for method in list_method_types()}
    method = parse_record(
        types[record.settings_block], record.settings, f"{folder / RECORD_FILE}: settings"
    )
    return method.load(SavedSystem(folder, record, device))
