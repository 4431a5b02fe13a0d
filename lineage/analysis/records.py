"""The records of the analysis, which reports/results.json stores.

Scores are shares of a perfect score, from 0 to 1 (correlations from -1), and so are differences.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import log2
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

import numpy as np

from lineage import artifacts
from lineage.analysis.convergence import ConvergenceControl, FinetuneCurve
from lineage.analysis.statistics import Verdict
from lineage.config.params import Grid
from lineage.config.records import parse_record
from lineage.data.dataset_stats import FoldStats, SplitStats
from lineage.evaluation.ngram_bits import NgramBits, Predicted
from lineage.results import ENSEMBLE_FAMILY, JOINED_FAMILY, PUBLIC_FAMILY, Note
from lineage.training.recipes import RecipeSearch

TEST_SET_SEPARATOR = " on "  # between a task and its extra test set
TRAINED_INITS = ("pretrained", "adapted", "target_only")
LEADER_INITS = ("pretrained", "adapted")  # a model of the target text alone is a control
# They learn nothing of how to answer: above chance is above all of them. The last three give the
# source of a translation or summary, or sentences of it.
CHANCE_BASELINES = ("majority", "chance", "copy", "lead_3", "longest_sentence")
BASELINES = ("tfidf", "kneser_ney", "word_frequency", *CHANCE_BASELINES)
TWO_BUDGET_FAMILIES = (ENSEMBLE_FAMILY, JOINED_FAMILY)
# Families without exactly one budget: shown, but never a leader.
UNMATCHED_FAMILIES = (*TWO_BUDGET_FAMILIES, PUBLIC_FAMILY)
MEAN_TOLERANCE = 1e-9  # smaller differences of means are rounding

ComparisonType = Literal[
    "pretraining",  # a pretrained model with its random-init baseline
    "adaptation",  # an adapted model with the same model before adaptation
    "general_text",  # an adapted model with the same model pretrained on the target's text alone
    "continuation",  # a public checkpoint that continued on the corpus with the same one as it is
    "models",  # two models with the same init and method
    "ablation",  # a model with the model that differs from it in one setting
    "ensemble",  # an ensemble with one of its members
    "concatenated",  # a model with static vectors added, with the model or the vectors alone
    "tfidf",  # any trained system with TF-IDF
    "kneser_ney",  # any trained system with the 5-gram model, on minimal pairs
    "outside",  # each model's best system, or TF-IDF, with a system that is not trained here
    "chance",  # a system with the chance level; it decides what is above chance
]
Outcome = Verdict | Literal["neither shown above chance", "not converged"]
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True)
class System:
    """A model and its use: the same for all tasks, label counts and seeds."""

    model: str
    family: str
    init: str
    adapt_text: str
    transfer: str
    features: str
    head: str
    recipe: str

    @property
    def method(self) -> tuple[str, str, str]:
        """Return how a model is used, equal for two systems whose models are compared."""
        return self.transfer, self.features, self.head

    @property
    def line_key(self) -> tuple[str, str, str, str, str]:
        """Return the key of a line of a table: features and recipe may differ by setting."""
        return self.model, self.family, self.init, self.transfer, self.head

    @property
    def usage(self) -> tuple[str, str, str]:
        """Return how a model is used, whatever features are read."""
        return self.init, self.transfer, self.head


@dataclass(frozen=True)
class Setting:
    """A task at a number of labels; `label_count` is a number, "all" or "none"."""

    task: str
    label_count: str


@dataclass(frozen=True)
class SeedScore:
    """The score of one repetition; a seed is None if it has no effect."""

    pretrain_seed: int | None
    finetune_seed: int | None
    value: float


@dataclass(frozen=True)
class SeedProblem:
    """A repetition without a score, and why."""

    pretrain_seed: int | None
    finetune_seed: int | None
    status: str  # failed | not_applicable
    reason: tuple[Note, ...]


@dataclass(frozen=True)
class SystemScore:
    """The score of a system in a setting: the mean over its repetitions, with its interval."""

    system: System
    task: str
    label_count: str
    kind: str
    metric: str
    train_examples: int
    seeds: tuple[SeedScore, ...]
    problems: tuple[SeedProblem, ...]
    mean: float | None = None  # None if no repetition has a score
    ci_low: float | None = None
    ci_high: float | None = None
    num_examples: int = 0
    num_clusters: int = 0  # independent units of the interval: items, or groups of them
    above_chance: bool = False

    @property
    def setting(self) -> Setting:
        return Setting(self.task, self.label_count)


@dataclass(frozen=True)
class SeedDifference:
    """The difference of two systems that share a pretraining seed."""

    seed: int
    difference: float


@dataclass(frozen=True)
class Comparison:
    """The difference first - second, over the same items and seeds, and its verdict."""

    comparison_type: ComparisonType
    task: str
    label_count: str
    metric: str
    first: System
    second: System
    difference: float
    ci_low: float
    ci_high: float
    standard_error: float
    detectable: float | None  # the smallest with a power of 80 %; None with too few seeds
    repetitions: int
    num_examples: int
    verdict: Verdict
    num_folds: int = 0  # of cross-validation, which each seed draws anew
    # Fewer than three are no statement about pretraining in general.
    pretrain_seed_differences: tuple[SeedDifference, ...] = ()

    @property
    def setting(self) -> Setting:
        return Setting(self.task, self.label_count)

    def reversed(self) -> "Comparison":
        """Return the same comparison as second - first."""
        opposites: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=-self.difference,
            ci_low=-self.ci_high,
            ci_high=-self.ci_low,
            pretrain_seed_differences=tuple(
                SeedDifference(one.seed, -one.difference) for one in self.pretrain_seed_differences
            ),
            verdict=opposites.get(self.verdict, self.verdict),
        )


@dataclass(frozen=True)
class Standing:
    """A system among the candidates of a setting. It speaks of these trained models.

    Its score is the mean over its seeds, and its interval covers other test items only.
    """

    system: System
    mean: float
    ci_low: float | None
    ci_high: float | None
    num_runs: int  # seeds
    is_public: bool
    above_chance: bool
    behind_low: float  # lower limit of its score minus the best of the others, for all at once
    may_be_best: bool
    probability_best: float | None  # None with a single item
    validation: float | None = None  # its score on the validation items that it was chosen by


@dataclass(frozen=True)
class Ranking:
    """The candidates of a setting, highest score first: the best system of each model, and TF-IDF.

    `budget` has what was trained under the study's budget, and `overall` public checkpoints too.
    """

    scope: Literal["budget", "overall"]
    task: str
    label_count: str
    kind: str
    metric: str
    train_examples: int
    num_examples: int
    standings: tuple[Standing, ...]

    @property
    def setting(self) -> Setting:
        return Setting(self.task, self.label_count)

    @property
    def best(self) -> Standing:
        return self.standings[0]


@dataclass(frozen=True)
class ClassScore:
    """How well each system finds one label, or one type of span."""

    label: str
    count: float  # of these labels, words or spans in the test set
    f1: tuple[float, ...]  # by system, over all its repetitions


@dataclass(frozen=True)
class CalibrationBin:
    """Answers of similar confidence: their mean confidence, and the share that is right."""

    confidence: float
    accuracy: float
    share: float  # of all answers


@dataclass(frozen=True)
class Calibration:
    """How often answers are right at each confidence, in bins."""

    bins: tuple[CalibrationBin, ...]
    error: float  # mean distance of confidence and accuracy


@dataclass(frozen=True)
class AnswerDetails:
    """The answers of a task's candidates at its largest label count, by label."""

    task: str
    label_count: str
    counted: Literal["items", "words", "spans"]
    systems: tuple[System, ...]
    classes: tuple[ClassScore, ...]  # the most frequent first; empty if there are too many
    confusion_labels: tuple[str, ...]  # empty if there are too many
    # By system: the share of each answer (columns) among the items of each label (rows).
    confusions: tuple[tuple[tuple[float, ...], ...], ...]
    calibrations: tuple[Calibration | None, ...]  # by system; None without probabilities


@dataclass(frozen=True)
class LabelGain:
    """The gain of a system from the last step to more labels, with its interval."""

    task: str
    system: System
    fewer: int  # labels before the step
    most: int  # labels after it: those of the task's largest setting
    score: float  # with the most labels
    gain: float
    low: float
    high: float

    @property
    def doublings(self) -> float:
        return log2(self.most / self.fewer)


@dataclass(frozen=True)
class TextGain:
    """The gain of the text after a share of the budget; its interval is over items only."""

    share: float  # 0.5: the gain of the last doubling
    gain: float
    low: float | None  # None with a single item
    high: float | None


@dataclass(frozen=True)
class TextCurve:
    """The mean score of a frozen model after each share of its text; the last share is 1."""

    task: str
    label_count: str
    metric: str
    system: System
    shares: tuple[float, ...]  # ascending, as are the next two
    text_bytes: tuple[float, ...]
    scores: tuple[float, ...]
    validation_score: float | None  # at the end
    last_gain: TextGain


@dataclass(frozen=True)
class LayerScore:
    """The score of a linear probe on one layer, a mean over seeds."""

    layer: str  # its number from the bottom, or MIX_LAYER: the mix of all layers
    mean: float
    ci_low: float | None  # for other items and these seeds
    ci_high: float | None
    selectivity: float | None = None  # None: the task has no random tags
    mix_weight: float | None = None  # in the mix that the task learned; None of the mix itself


@dataclass(frozen=True)
class LayerGain:
    """How much better one layer is than another, and the verdict on it."""

    gain: float
    ci_low: float
    ci_high: float
    verdict: Verdict


@dataclass(frozen=True)
class LayerCurve:
    """The scores of the layers of a model on a task, with the most labels."""

    task: str
    kind: str
    label_count: str
    train_examples: int
    metric: str
    model: str
    init: str  # pretrained or random
    layers: tuple[LayerScore, ...]  # from the embeddings upwards
    mix: LayerScore | None
    # The top layer minus the lowest one above the embeddings; None if there are no two of these.
    top_gain: LayerGain | None

    @property
    def center(self) -> float | None:
        """The center of gravity of the mix (Tenney et al. 2019, section 3.2); None without one."""
        weights = [one.mix_weight for one in self.layers]
        known = [weight for weight in weights if weight is not None]
        if len(known) < len(weights):
            return None
        return sum(layer * weight for layer, weight in enumerate(known)) / sum(known)


@dataclass(frozen=True)
class LayerPrecision:
    """How many of the nearest occurrences of a word have its sense, in one layer."""

    layer: int  # from 0, the embeddings
    precision: float  # at k
    ci_low: float | None  # for other words, or other occurrences of a few
    ci_high: float | None
    gain: LayerGain | None  # over random weights; None of the control itself


@dataclass(frozen=True)
class MapPoint:
    """An occurrence of a word on the first two principal components of a layer."""

    id: str
    sense: str
    x: float
    y: float


@dataclass(frozen=True)
class NeighbourExample:
    """An occurrence of a word, and the nearest ones, each with its sense."""

    id: str
    sense: str
    nearest: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SenseNeighbours:
    """The nearest occurrences of a task's words by a model, in each layer."""

    task: str
    model: str
    init: str
    num_neighbours: int  # of each occurrence; 0: a word has the same vector everywhere
    num_words: int
    num_occurrences: int
    chance: float  # the precision of neighbours that are drawn at random
    layers: tuple[LayerPrecision, ...]
    points: tuple[MapPoint, ...]  # of the most frequent word, in the best layer
    examples: tuple[NeighbourExample, ...]  # in the best layer

    @property
    def best(self) -> LayerPrecision:
        """The layer with the highest precision."""
        return max(self.layers, key=lambda one: one.precision)


@dataclass(frozen=True)
class TrialCounts:
    """The fewest and the most configurations of one method that systems were tried with."""

    method: str  # its name
    min: int
    max: int


@dataclass(frozen=True)
class ChosenTrial:
    """How often validation chose a trial of a method."""

    method: str  # its name
    number: int  # in the list of trials, from 0
    settings: str  # such as `C 10`
    is_at_end: bool  # a better one may lie beyond what was tried
    count: int


@dataclass(frozen=True)
class Ceiling:
    """The best possible score on a generated task, for the features a model reads."""

    task: str
    features: str  # static | left | both
    value: float


@dataclass(frozen=True)
class AdaptationEffect:
    """Loss, or another metric, on held-out text of the target before and after adaptation.

    `before` and `after` are means over pretraining seeds.
    """

    model: str
    task: str
    metric: str
    num_improved: int  # pretraining seeds
    num_pretrainings: int
    before: float
    after: float
    notes: tuple[Note, ...]
    text_bytes: float | None  # read by the adaptation
    seconds: float | None = None  # known to the publish stage


@dataclass(frozen=True)
class PretrainingBudget:
    """The budget that pretraining a model used: means over the pretraining seeds that did not fail.

    A system of two models (`members`) has the sums. None: unknown, or not counted.
    """

    model: str
    pretrain_seeds: tuple[int, ...]
    members: tuple[str, ...]
    budget_matched: bool
    text_bytes: float | None
    epochs: float | None
    tokens: float | None
    body_parameters: float | None
    total_parameters: float | None
    train_flops: float | None
    seconds: float | None = None  # known to the publish stage, as is the next field
    peak_memory_bytes: float | None = None


@dataclass(frozen=True)
class LossCurve:
    """A validation metric over the text read."""

    model: str
    pretrain_seed: int
    metric: str
    text_bytes: tuple[int, ...]
    value: tuple[float, ...]


@dataclass(frozen=True)
class NgramComparison:
    """A pretrained model and 5-gram models of the same text.

    Both values are bits per byte, or bits per masked token, for the same tokens of held-out text,
    means over pretraining seeds. None: counting cannot predict what the model predicts, or its
    pretraining failed. `better_tasks` and `not_better_tasks` are the minimal-pairs tasks on which
    its pretrained system is significantly better than the 5-gram model, and those on which it is
    not.
    """

    model: str
    bits: float | None
    ngram_bits: float | None
    better_tasks: tuple[str, ...]
    not_better_tasks: tuple[str, ...]
    predicted: Predicted = "next tokens"
    num_units: int = 0  # bytes of held-out text, or masked tokens
    frequency_bits: float | None = None  # of masked tokens, by the frequency of tokens
    # The interval of the first value less the second, for these pretrainings and other text. None
    # in reports of before it was measured, where the values alone decide.
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> float | None:
        """The bits of the model less those of the 5-gram model; below zero the model is better."""
        if self.bits is None or self.ngram_bits is None:
            return None
        return self.bits - self.ngram_bits

    @property
    def verdict(self) -> Literal["better", "worse", "not shown", ""]:
        """Return whether the model is shown to predict held-out text better than the 5-gram model.

        Empty without values to compare.
        """
        if self.difference is None:
            return ""
        low = self.difference if self.low is None else self.low
        high = self.difference if self.high is None else self.high
        if high <= 0:
            return "better"
        return "worse" if low > 0 else "not shown"

    @property
    def has_interval(self) -> bool:
        """Return whether it is known how much the difference varies over text."""
        return self.low is not None and self.high is not None

    @property
    def is_never_better(self) -> bool:
        """Return whether there are minimal pairs, and it is significantly better on none."""
        return bool(self.not_better_tasks) and not self.better_tasks

    @property
    def learned_less(self) -> bool:
        """Return whether the model is not shown to have learned more than counted 5-grams.

        Held-out text decides where both predict it: it is long, and minimal pairs are few.
        """
        if self.verdict:
            return self.verdict != "better"
        return self.is_never_better


@dataclass(frozen=True)
class DuplicateLabelCount:
    """A label count that was dropped because it gives as many labels as another one."""

    task: str
    label_count: str
    train_examples: int
    same_as: str


@dataclass(frozen=True)
class TruncationNote:
    """How much of a task's texts some models could not read."""

    models: tuple[str, ...]
    note: Note


@dataclass(frozen=True)
class TaskSummary:
    """A task or an extra test set: its parameters, and the statistics of its data."""

    task: str
    kind: str
    may_truncate: bool
    max_words: int | None  # longer texts are cut; None if texts of this kind never are
    unit: Literal["words", "characters"]
    generated: bool
    averages_groups: bool  # a score is the mean over the scores of groups
    splits: dict[str, SplitStats]
    cross_validation: FoldStats | None
    truncation_notes: tuple[TruncationNote, ...]


@dataclass(frozen=True)
class ContaminationCounts:
    """How many scored items of a task occur in text that models have read."""

    task: str
    items: int
    too_short: int  # too short to tell
    in_corpus: int
    in_unlabelled: int | None  # in the task's unlabelled text; None if nothing is adapted to it


@dataclass(frozen=True)
class CleanScore:
    """A system's score on all items, and on those that are not contaminated."""

    system: System
    all_items: float
    clean_items: float | None
    num_clean_items: int


@dataclass(frozen=True)
class CleanScores:
    """Clean scores of the best system of each model in a setting."""

    task: str
    label_count: str
    train_examples: int
    metric: str
    systems: tuple[CleanScore, ...]


@dataclass(frozen=True)
class GroupScore:
    """The scores of a group of items, one for each system of the table; None without a score."""

    group: str
    num_examples: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class GroupScores:
    """Scores by group of items, at the largest label count of a task."""

    task: str
    label_count: str
    train_examples: int
    metric: str
    systems: tuple[System, ...]
    groups: tuple[GroupScore, ...]


@dataclass(frozen=True)
class OurBenchmarkScore:
    """Our best system on a task that is a published benchmark, by every metric of the task."""

    system: System
    label_count: str
    train_examples: int
    num_examples: int
    metric: str  # the ranking metric
    values: dict[str, float]


@dataclass(frozen=True)
class BenchmarkScore:
    """A task that names a published benchmark; `ours` is None if nothing has a score."""

    task: str
    benchmark: str
    official_split: str | Literal[False]  # False: scored on another split than the papers'
    ours: OurBenchmarkScore | None


@dataclass(frozen=True)
class UnknownTokenShare:
    """The share of a task's tokens that a model's vocabulary lacks: the mean over seeds."""

    task: str
    model: str
    init: str
    value: float


@dataclass(frozen=True)
class SwapConsistency:
    """The share of answers that stay the same when the two texts of an item are swapped."""

    task: str
    label_count: str
    model: str
    family: str
    init: str
    transfer: str
    head: str
    value: float


@dataclass(frozen=True)
class Failure:
    """A result without a value, and why: one record for all seeds with the same reason."""

    model: str
    family: str
    init: str
    transfer: str
    head: str
    task: str
    label_count: str
    group: str
    metric: str
    status: str
    reason: tuple[Note, ...]
    finetune_seeds: tuple[int, ...]
    pretrain_seeds: tuple[int, ...]


@dataclass(frozen=True)
class OutsidePrice:
    """The price of an outside system for 1,000 items, in the user's currency."""

    task: str
    model: str  # its name
    price_per_1000_items: float


ClaimVerdict = Literal["supported", "supported in part", "contradicted", "mixed", "not shown"]


@dataclass(frozen=True)
class ClaimFinding:
    """A claim of a paper, and the comparisons that could show it, with one correction for all."""

    question: str  # that it helps to answer
    text: str
    source: str
    published: str  # what the paper printed
    comparisons: tuple[Comparison, ...]  # by the claim, the first system is better
    num_excused: int = 0  # of those that are worse: by their plan, this is no contradiction
    unit: str = "points"  # of the differences, in hundredths

    @property
    def num_for(self) -> int:
        """Return the number of comparisons that show what the claim says."""
        return sum(one.verdict == "better" for one in self.comparisons)

    @property
    def num_against(self) -> int:
        """Return the number of comparisons that show the opposite."""
        return sum(one.verdict == "worse" for one in self.comparisons) - self.num_excused

    @property
    def detectable(self) -> float:
        """Return the smallest difference that half of the comparisons would have found."""
        return median(one.detectable or 0.0 for one in self.comparisons)

    @property
    def verdict(self) -> ClaimVerdict:
        """Return the verdict. Less than half of the comparisons support a claim in part."""
        if self.num_for and self.num_against:
            return "mixed"
        if self.num_against:
            return "contradicted"
        if not self.num_for:
            return "not shown"
        is_half = 2 * self.num_for >= len(self.comparisons)
        return "supported" if is_half else "supported in part"


@dataclass(frozen=True)
class Analysis:
    """Everything that follows from the results and predictions of a grid."""

    split: str
    grid: Grid
    scores: tuple[SystemScore, ...]
    rankings: tuple[Ranking, ...]
    label_gains: tuple[LabelGain, ...]
    answer_details: tuple[AnswerDetails, ...]
    comparisons: tuple[Comparison, ...]
    public_models: tuple[str, ...]
    group_scores: tuple[GroupScores, ...]
    published_benchmarks: tuple[BenchmarkScore, ...]
    trials: tuple[TrialCounts, ...]
    ceilings: tuple[Ceiling, ...]
    adaptation: tuple[AdaptationEffect, ...]
    budget: tuple[PretrainingBudget, ...]
    curves: tuple[LossCurve, ...]
    ngram_bits: tuple[NgramBits, ...]
    ngram_comparisons: tuple[NgramComparison, ...]
    duplicate_label_counts: tuple[DuplicateLabelCount, ...]
    tasks: tuple[TaskSummary, ...]
    contamination: tuple[ContaminationCounts, ...]
    clean_scores: tuple[CleanScores, ...]
    unknown_token_shares: tuple[UnknownTokenShare, ...]
    swap_consistency: tuple[SwapConsistency, ...]
    failures: tuple[Failure, ...]
    convergence_controls: tuple[ConvergenceControl, ...]
    finetune_curves: tuple[FinetuneCurve, ...]
    confidence_level: float
    equivalence_margin: float
    text_curves: tuple[TextCurve, ...] = ()  # empty without grid.text_shares
    layer_curves: tuple[LayerCurve, ...] = ()  # empty without evaluate.layer_probe
    sense_neighbours: tuple[SenseNeighbours, ...] = ()  # empty without evaluate.neighbours
    recipe_searches: tuple[RecipeSearch, ...] = ()  # of the models of grid.sweep
    outside_prices: tuple[OutsidePrice, ...] = ()
    chosen_trials: tuple[ChosenTrial, ...] = ()
    claims: tuple[ClaimFinding, ...] = ()  # those that the study has comparisons for

    @cached_property
    def _scores_by_key(self) -> dict[tuple[System, Setting], SystemScore]:
        return {(score.system, score.setting): score for score in self.scores}

    @cached_property
    def model_families(self) -> dict[str, str]:
        """The family of each model that has a score."""
        return {score.system.model: score.system.family for score in self.scores}

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the models, and the systems made of two of them, in the order of the grid."""
        return (*self.grid.models, *self.grid.two_budget_systems)

    def place_of_model(self, model: str) -> int:
        """Return the place of a model or a baseline in tables; others come last."""
        names = [*self.model_names, *BASELINES]
        return names.index(model) if model in names else len(names)

    def find_task(self, task: str) -> TaskSummary | None:
        """Return the summary of a task; None without one."""
        return next((summary for summary in self.tasks if summary.task == task), None)

    def find_score(self, system: System, setting: Setting) -> SystemScore:
        """Return the score of a system in a setting."""
        return self._scores_by_key[system, setting]

    def scores_of(self, setting: Setting) -> list[SystemScore]:
        """Return all scores of a setting."""
        return [score for score in self.scores if score.setting == setting]

    def scores_of_task(self, task: str) -> list[SystemScore]:
        """Return all scores of a task."""
        return [score for score in self.scores if score.task == task]


def group_by(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Group values by a key. Groups and values keep their order."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def record_to_json(record: Any) -> Any:
    """Return a record, or records in lists and dicts, as JSON values; None replaces NaN."""
    if isinstance(record, dict):
        return {key: record_to_json(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [record_to_json(value) for value in record]
    if isinstance(record, float | np.floating):
        return float(record) if np.isfinite(record) else None
    if hasattr(record, "__dataclass_fields__"):
        return record_to_json(asdict(record))
    return record


def write_analysis(path: Path, analysis: Analysis) -> None:
    """Write reports/results.json."""
    artifacts.write_json(path, record_to_json(analysis))


def read_analysis(path: Path) -> Analysis:
    """Read reports/results.json. Raises InputError."""
    return parse_record(Analysis, artifacts.read_json(path), str(path))
