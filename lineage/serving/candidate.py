"""The recommended system of a task, exported, with what a comparison with others needs."""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lineage import artifacts
from lineage.analysis.cells import read_cell, read_table, stack_scores, task_stage_names
from lineage.analysis.champion import Contender
from lineage.analysis.decision import Decision
from lineage.config.params import Params
from lineage.runtime.datasets import describe_dataset
from lineage.runtime.tracking import ModelScore
from lineage.serving.card import CARD_FILE
from lineage.serving.export import export_system
from lineage.serving.systems import KeptSystem, choose_system, list_systems
from lineage.tasks.base import load_kind


@dataclass(frozen=True)
class Candidate:
    """The recommended system of a task, and the decision for it."""

    folder: Path  # as `lineage export` writes it
    kept: KeptSystem
    decision: Decision
    contender: Contender
    score: ModelScore


def export_recommended(
    params: Params,
    decisions: Sequence[Decision],
    task: str,
    folder: Path,
    *,
    results_dir: Path,
    tasks_dir: Path,
) -> Candidate:
    """Export the system that `lineage predict` uses for a task, and read its scores.

    Raises InputError if it is not kept.
    """
    kept = choose_system(list_systems(params, task), None, None)
    label_count = kept.record.label_count
    decision = next(one for one in decisions if (one.task, one.label_count) == (task, label_count))
    export_system(kept, params.tasks[task], folder)
    cell = read_cell(
        results_dir,
        params.grid,
        decision.use.standing.system,
        decision.setting,
        split=params.report.split,
        tasks=params.tasks,
    )
    scores_N = stack_scores(list(cell.item_scores.values())).mean(axis=0)
    has_text_answers = load_kind(kept.record.kind).answer.are_texts
    keeps_scores = params.report.show_text or not has_text_answers
    contender = Contender(
        system_digest=digest_folder(folder),
        test_items_digest=digest_test_items(
            tasks_dir / task, _read_scored_ids(params, task, results_dir), cell.metric
        ),
        scores_N=scores_N if keeps_scores else None,
        num_grouped_items=cell.num_grouped_items,
        cost_seconds=decision.use.cost.seconds,
    )
    score = ModelScore(
        split=params.report.split,
        metric=decision.metric,
        value=decision.expected_score,
        dataset=describe_dataset(tasks_dir / task),
    )
    return Candidate(folder, kept, decision, contender, score)


def digest_folder(folder: Path) -> str:
    """Return a digest of the files of a system, but for its card, which says the same in words."""
    digests = {
        path.relative_to(folder).as_posix(): artifacts.file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != CARD_FILE
    }
    return artifacts.text_digest(json.dumps(digests, sort_keys=True))


def _read_scored_ids(params: Params, task: str, results_dir: Path) -> set[str]:
    ids: set[str] = set()
    for name in task_stage_names(params.grid, task):
        table = read_table(results_dir / "predictions" / f"{name}.parquet")
        is_scored = (table["split"] == params.report.split) & (table["test_set"] == task)
        ids.update(table.loc[is_scored, "id"])
    return ids


def digest_test_items(task_dir: Path, ids: Collection[str], metric: str) -> str:
    """Return a digest of items of a task with their labels, and of the metric."""
    digest = hashlib.sha256(metric.encode())
    for name in artifacts.read_json(task_dir / "task.json")["has"]:
        if name == "unlabelled":
            continue
        items = artifacts.read_table(task_dir / f"{name}.parquet")
        scored = items[items["id"].isin(ids)].sort_values("id")
        lines = scored.to_json(orient="records", lines=True, force_ascii=False)
        digest.update(str(lines).encode())
    return digest.hexdigest()
