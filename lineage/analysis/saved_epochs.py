"""Does pretraining speed up learning from labels?

How many epochs a pretrained model and the same one with random weights need until their validation
score is as high as both ever get. Peters et al. (2018, section 5.4) count until the best score of
random weights; that would be against pretraining where both are equally good, since a best score
is high by luck too.
Shapes: R repetitions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lineage import artifacts
from lineage.analysis import statistics
from lineage.analysis.cells import SYSTEM_COLUMNS
from lineage.analysis.records import Comparison, Setting, System, group_by
from lineage.config.params import Grid
from lineage.results import SEED_COLUMNS


@dataclass(frozen=True)
class SavedEpochs:
    """The epochs that pretraining saves in each repetition, as a share of the slower training.

    1 would be all of them, and negative shares are more epochs than without pretraining.
    """

    setting: Setting
    metric: str
    pretrained: System
    random: System
    seeds_R2: statistics.Seeds  # the pretraining and the fine-tuning seed
    shares_R: statistics.Scores
    interval: float  # between two validations, as a share of the slower training

    @property
    def has_too_few_seeds(self) -> bool:
        return len(np.unique(self.seeds_R2[:, 1])) < statistics.MIN_SEEDS

    @property
    def seed_variances(self) -> statistics.SeedVariances:
        return statistics.estimate_seed_variances(self.shares_R[:, None], self.seeds_R2)

    def estimate(self, seed_variances: Sequence[statistics.SeedVariances]) -> statistics.Estimate:
        """Estimate the mean share for other seeds."""
        return statistics.estimate_over_seeds(
            self.shares_R,
            seeds=self.seeds_R2,
            seed_variances=seed_variances,
            rounding_interval=self.interval,
            bounds=(-1.0, 1.0),
        )


def measure_saved_epochs(results_dir: Path, grid: Grid) -> list[SavedEpochs]:
    """Return what each use of each pretrained model saves, where its learning curves are known."""
    found: list[SavedEpochs] = []
    for task in grid.tasks:
        for model in grid.models:
            names = [f"evaluate-{model}-{seed}-{task}" for seed in grid.pretrain_seeds]
            paths = [results_dir / "curves" / f"{name}.parquet" for name in names]
            tables = [artifacts.read_table(path) for path in paths if path.is_file()]
            if tables:
                found += _measure_model(pd.concat(tables))
    return found


def _measure_model(table: pd.DataFrame) -> Iterator[SavedEpochs]:
    chosen = table[(table["trial"] == "chosen") & (table["adapt_text"] == "none")]
    for (task, label_count, *_), curves in chosen.groupby(
        ["task", "label_count", "transfer", "features", "head"], sort=False
    ):
        by_init = {str(init): own for init, own in curves.groupby("init")}
        if by_init.keys() >= {"pretrained", "random"}:
            setting = Setting(str(task), str(label_count))
            yield from _measure_pair(setting, by_init["pretrained"], by_init["random"])


def _measure_pair(
    setting: Setting, pretrained: pd.DataFrame, random: pd.DataFrame
) -> Iterator[SavedEpochs]:
    """Yield the epochs saved in the repetitions that both have."""
    shares: dict[tuple[int, int], list[float]] = {}
    intervals = []
    random_curves = dict(iter(random.groupby([*SEED_COLUMNS], dropna=False)))
    for seeds, curve in pretrained.groupby([*SEED_COLUMNS], dropna=False):
        other = random_curves.get(seeds)
        if other is None or not (_has_scores(curve) and _has_scores(other)):
            continue
        share, interval = _compare_curves(curve, other)
        pretrain_seed, finetune_seed, _ = map(str, seeds)
        shares.setdefault((int(pretrain_seed), int(finetune_seed)), []).append(share)
        intervals.append(interval)
    if shares:
        yield SavedEpochs(
            setting,
            str(pretrained["metric"].iloc[0]),
            _system_of(pretrained),
            _system_of(random),
            np.array([*shares]),
            np.array([float(np.mean(folds)) for folds in shares.values()]),
            float(np.mean(intervals)),
        )


def _has_scores(curve: pd.DataFrame) -> bool:
    """Return whether there is a score: a correlation of constant predictions is none."""
    return bool(curve["validation_score"].notna().any())


def _system_of(curves: pd.DataFrame) -> System:
    return System(*curves[[*SYSTEM_COLUMNS]].iloc[0].astype(str))


def _compare_curves(pretrained: pd.DataFrame, random: pd.DataFrame) -> tuple[float, float]:
    """Return the share of the epochs that are saved, and the share between two validations."""
    aim = min(float(curve["validation_score"].max()) for curve in (pretrained, random))
    own_epochs, random_epochs = (_find_epoch(curve, aim) for curve in (pretrained, random))
    slower = max(own_epochs, random_epochs)
    first_epoch = max(float(curve["epoch"].min()) for curve in (pretrained, random))
    return (random_epochs - own_epochs) / slower, min(first_epoch / slower, 1.0)


def _find_epoch(curve: pd.DataFrame, aim: float) -> float:
    """Return the epochs until the validation score is as high as the aim."""
    return float(curve.loc[curve["validation_score"] >= aim, "epoch"].min())


def compare_saved_epochs(all_saved: Sequence[SavedEpochs]) -> list[Comparison]:
    """Judge whether epochs are saved or lost, with one correction for all (Holm 1979)."""
    tested = [one for one in all_saved if not one.has_too_few_seeds]
    by_setting = group_by(tested, lambda one: (one.setting, one.pretrained.transfer))
    variances = {key: [one.seed_variances for one in group] for key, group in by_setting.items()}
    estimates = [one.estimate(variances[one.setting, one.pretrained.transfer]) for one in tested]
    judgements = statistics.judge_differences(estimates)
    return [
        Comparison(
            comparison_type="pretraining",
            task=one.setting.task,
            label_count=one.setting.label_count,
            metric=one.metric,
            first=one.pretrained,
            second=one.random,
            difference=estimate.mean,
            ci_low=judgement.low,
            ci_high=judgement.high,
            standard_error=estimate.standard_error,
            detectable=statistics.detectable_difference(estimate, len(tested)),
            repetitions=len(one.shares_R),
            num_examples=estimate.num_items,
            verdict=judgement.verdict,
        )
        for one, estimate, judgement in zip(tested, estimates, judgements, strict=True)
    ]
