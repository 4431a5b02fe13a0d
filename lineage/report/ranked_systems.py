"""The systems that a report ranks, as MLflow shows them on its page Models."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis, Ranking, Standing, group_by
from lineage.answers.metrics import RANKING_METRICS
from lineage.methods.saved import system_name
from lineage.report.champions import describe_score
from lineage.report.decisions import name_system
from lineage.report.formatting import format_label_count
from lineage.runtime.datasets import describe_dataset
from lineage.runtime.provenance import Dataset
from lineage.runtime.tracking import ModelScore, RankedSystem


def describe_tasks(analysis: Analysis, tasks_dir: Path) -> dict[str, Dataset]:
    """Return the data set of each task that has results, unless its items are not here."""
    names = dict.fromkeys(one.task for one in analysis.rankings)
    return {
        name: describe_dataset(tasks_dir / name) for name in names if (tasks_dir / name).is_dir()
    }


def list_ranked_systems(
    analysis: Analysis,
    decisions: Sequence[Decision],
    datasets: dict[str, Dataset],
    *,
    registered_tasks: Collection[str],
) -> list[RankedSystem]:
    """Return the candidates of each task at its most labels: each model's best system, and TF-IDF.

    Tasks without a data set and registered systems are left out.
    """
    recommended = {
        (one.setting, one.use.standing.system) for one in decisions if one.task in registered_tasks
    }
    return [
        _describe_system(analysis, ranking, standing, datasets[ranking.task])
        for ranking, standing in _list_standings(analysis, datasets)
        if (ranking.setting, standing.system) not in recommended
    ]


def _list_standings(
    analysis: Analysis, tasks: Collection[str]
) -> Iterator[tuple[Ranking, Standing]]:
    """Yield the candidates of these tasks at their most labels, each of them once."""
    for task, rankings in group_by(analysis.rankings, lambda ranking: ranking.task).items():
        most_labels = max(ranking.train_examples for ranking in rankings)
        seen = set()
        for ranking in rankings:
            if task in tasks and ranking.train_examples == most_labels:
                own = [one for one in ranking.standings if one.system not in seen]
                seen |= {one.system for one in own}
                yield from ((ranking, standing) for standing in own)


def _describe_system(
    analysis: Analysis, ranking: Ranking, standing: Standing, dataset: Dataset
) -> RankedSystem:
    system = standing.system
    labels = format_label_count(ranking.label_count, train_examples=ranking.train_examples)
    score = describe_score(standing, ranking.metric)
    description = (
        f"{name_system(system)} for {ranking.task}, trained on {labels}. On "
        f"{analysis.split} items it scores {score}. It is not registered: "
        "another system is recommended, or no system is trained for the task."
    )
    params = {
        "model": system.model,
        "family": system.family,
        "init": system.init,
        "transfer": system.transfer,
        "head": system.head,
        "task": ranking.task,
        "label_count": ranking.label_count,
        "seeds": str(standing.num_runs),
    }
    return RankedSystem(
        name=system_name(system.model, system.init, system.transfer, system.head),
        description=description,
        params=params,
        score=ModelScore(
            split=analysis.split,
            metric=ranking.metric,
            value=standing.mean * RANKING_METRICS[ranking.metric],
            dataset=dataset,
        ),
    )
