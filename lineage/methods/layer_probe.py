"""A linear probe on each layer of a model alone, and on their mix: where is knowledge kept?

As in Peters et al. 2018, section 5.3, Jawahar et al. 2019 and Tenney et al. 2019. A probe may also
learn the task by itself, so on tags there is a control (Hewitt and Liang 2019): each word has a tag
that is drawn at random, with the frequencies of the real ones. Selectivity is the share of words
with the right tag less that with the right random tag. The other control is a model with random
weights, which every study has.
Shapes: M rows of answers, L layers, D width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd

from lineage.answers.tags import TagsAnswer
from lineage.data.task_data import SplitItems
from lineage.language import to_lowercase
from lineage.methods.base import (
    MIX_WEIGHT,
    SELECTIVITY,
    FittedSystem,
    RunItems,
    parts_of_run,
)
from lineage.methods.early_stopping import ResumePoint
from lineage.methods.encoder import (
    EncoderUnderTest,
    EvalRun,
    Subject,
    TaskContext,
    Transfer,
    under_test,
)
from lineage.methods.feature_store import FeatureScaling
from lineage.methods.head_method import HeadMethod, build_problem, predict_part
from lineage.methods.heads import FittedHead, HeadOutput, HeadProblem
from lineage.methods.linear_probe import (
    LBFGS_PASSES,
    LinearProbe,
    LinearProbeMethod,
    fit_linear_probe,
    select_answers,
)
from lineage.methods.run_predictions import RunPredictions
from lineage.methods.stored_features import StoredFeatures
from lineage.methods.trials import DEFAULT_L2_TRIALS, Trial
from lineage.randomness import generator
from lineage.results import LAYER_TRIAL, MIX_LAYER, PROBABILITY_PREFIX
from lineage.tasks.base import Kind
from lineage.tasks.info import TaskInfo

TAG_METRIC = "token_accuracy"  # of plain tags, such as parts of speech


@dataclass(frozen=True, kw_only=True)
class LayerProbeMethod(HeadMethod):
    """The block `layer_probe`: a linear probe on each layer alone, for models that have it.

    Its results are no systems to use: each has the number of its layer, from 0, the embeddings.
    """

    name: ClassVar[str] = "layer_probe"
    transfer: ClassVar[Transfer] = "frozen"
    head: ClassVar[str] = "layers"
    titles: ClassVar[Mapping[str, str]] = {"layers": "layer by layer"}
    noun: ClassVar[str] = "a probe of a layer"
    keeps_network: ClassVar[bool] = False
    reads_frozen_features: ClassVar[bool] = True

    # Validation chooses for each layer and seed.
    trials: tuple[Trial, ...] = DEFAULT_L2_TRIALS
    l2: float = 0.001  # as in `linear_probe`

    def suits(self, kind: Kind, info: TaskInfo) -> bool:
        return super().suits(kind, info) and "linear" in info.probes

    def features_name(self, context: TaskContext) -> str:
        return "layers"

    def count_work(self, items: RunItems) -> float:
        """Count the fits of all trials, as each seed has them, and their predictions."""
        tried = len(self.trials) or 1
        return tried * (LBFGS_PASSES * items.train + items.validation) + items.scored

    def fit(self, subject: Subject, run: EvalRun, resume_point: ResumePoint) -> FittedSystem:
        """Fit a probe on each layer and on their mix, and answer every scored split with each."""
        encoder = under_test(subject)
        context = encoder.context
        problem = build_problem(context, run)
        seed = run.finetune_seed or 0
        features = encoder.share(
            self.name,
            lambda extractor: extractor.store("scalar_mix", folder=encoder.scratch_dir),
        )
        num_layers = features["train"].stored.shape[-2]
        mix = self._fit_best(encoder, features, problem, seed=seed)
        tables = [*_answer(context, run, problem, mix, layer=MIX_LAYER)]
        shares_L = mix.probe.mix.shares().detach().numpy()
        for layer in range(num_layers):
            alone = {name: _select_layer(one, layer) for name, one in features.items()}
            fitted = self._fit_best(encoder, alone, problem, seed=seed)
            own = _answer(context, run, problem, fitted, layer=str(layer))
            tables += [table.assign(**{MIX_WEIGHT: float(shares_L[layer])}) for table in own]
        return FittedSystem(RunPredictions(pd.concat(tables, ignore_index=True)), self)

    def _fit_best(
        self,
        encoder: EncoderUnderTest,
        features: Mapping[str, StoredFeatures],
        problem: HeadProblem,
        *,
        seed: int,
    ) -> "_FittedProbe":
        """Fit a probe for each trial, and return the one that is best on validation."""
        tried = [self.with_trial(number) for number in range(len(self.trials))] or [self]
        validation = problem.validation
        best: _FittedProbe | None = None
        best_score = -np.inf
        for method in tried:
            settings = LinearProbeMethod(trials=(), l2=method.l2)
            train = select_answers(encoder, features, "train", problem.train_rows)
            probe = fit_linear_probe(train, problem.labels_M, problem.answer, settings, seed=seed)
            fitted = _FittedProbe(encoder, features, train, settings, probe)
            outputs_MK = fitted.outputs(validation)
            score = problem.score_validation(outputs_MK, None)
            if best is None or score > best_score:
                best, best_score = fitted, score
        assert best is not None, "there is a trial"
        return best


@dataclass(frozen=True)
class _FittedProbe:
    """A probe on one layer, or on the mix of all."""

    encoder: EncoderUnderTest
    features: Mapping[str, StoredFeatures]  # of each table
    train: StoredFeatures
    settings: LinearProbeMethod
    probe: LinearProbe

    def select(self, part: SplitItems) -> StoredFeatures:
        return select_answers(self.encoder, self.features, part.table, part.rows_N)

    def outputs(self, part: SplitItems) -> np.ndarray:
        """Return (M, K), such as probabilities."""
        return self.probe(self.select(part))


@dataclass(frozen=True)
class _RandomTags:
    """The control of Hewitt and Liang 2019: each word has one tag, drawn at random."""

    context: TaskContext
    fitted: _FittedProbe
    answer: TagsAnswer
    tags: np.ndarray  # of the training words, from which those of the control are drawn
    seed: int

    def draw(self, items: pd.DataFrame) -> np.ndarray:
        """Return (M,) the tag of each word; the same word has the same one wherever it stands."""
        words = [to_lowercase(str(word)) for tokens in items["tokens"] for word in tokens]
        drawn = {
            word: self.tags[generator("random tags", self.seed, word).integers(len(self.tags))]
            for word in {*words}
        }
        return np.array([drawn[word] for word in words])

    def fit(self, train_items: pd.DataFrame) -> LinearProbe:
        """Fit a probe on the same features and with the same L2 to the random tags."""
        fitted = self.fitted
        labels_M = self.draw(train_items)
        return fit_linear_probe(
            fitted.train, labels_M, self.answer, fitted.settings, seed=self.seed
        )

    def selectivity(self, control: LinearProbe, part: SplitItems) -> np.ndarray:
        """Return (N,) the share of an item's words with the right tag, less that of the control."""
        items = self.context.task.select_items(part)
        features = self.fitted.select(part)
        right_M = self.fitted.probe(features).argmax(1) == self.answer.labels(items)
        control_M = control(features).argmax(1) == self.draw(items)
        ends = np.cumsum([len(tokens) for tokens in items["tokens"]])[:-1]
        gain_M = right_M.astype(np.float64) - control_M
        return np.array([item.mean() for item in np.split(gain_M, ends)])


def _select_layer(features: StoredFeatures, layer: int) -> StoredFeatures:
    """Return the features of one layer, as (M, 1, D)."""
    scaling = features.scaling
    own = slice(layer, layer + 1)
    return replace(
        features,
        stored=features.stored[..., own, :],
        scaling=FeatureScaling(scaling.mean_LD[own], scaling.scale_LD[own]),
    )


def _answer(
    context: TaskContext, run: EvalRun, problem: HeadProblem, fitted: _FittedProbe, *, layer: str
) -> Iterator[pd.DataFrame]:
    """Yield the predictions of a probe for each scored split and test set.

    Those of plain tags on a single layer have a column with the selectivity. Spans have none: most
    words are outside of them, so words that have one tag each are easier than the task.
    """

    def predict(part: SplitItems) -> HeadOutput:
        return fitted.outputs(part), None

    head = FittedHead(predict, None)
    control: LinearProbe | None = None
    has_plain_tags = context.task.info.ranking_metric == TAG_METRIC
    if isinstance(problem.answer, TagsAnswer) and has_plain_tags and layer != MIX_LAYER:
        seed = run.finetune_seed or 0
        random_tags = _RandomTags(context, fitted, problem.answer, np.sort(problem.labels_M), seed)
        control = random_tags.fit(context.task.splits["train"].iloc[problem.train_rows])
    for part in parts_of_run(context, run)[1:]:
        table = predict_part(context, run, head, problem, part, trial=f"{LAYER_TRIAL}{layer}")
        # Probes of layers are no systems: nothing reads their probabilities.
        probabilities = [one for one in table if str(one).startswith(PROBABILITY_PREFIX)]
        table = table.drop(columns=probabilities)
        if control is not None:
            table[SELECTIVITY] = random_tags.selectivity(control, part)
        yield table
