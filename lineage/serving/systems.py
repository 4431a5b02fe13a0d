"""The systems and models that a study has kept: written by stages, listed, and chosen."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineage.artifacts import MANIFEST_FILE, check_intact, create_artifact, read_json
from lineage.config.params import Params
from lineage.config.records import suggest_nearest
from lineage.errors import InputError
from lineage.methods.saved import (
    RECORD_FILE,
    REFITTED_SUFFIX,
    SystemRecord,
    locate_model,
    read_record,
    system_name,
    write_record,
)
from lineage.serving.card import write_card
from lineage.tasks.base import load_kind

SYSTEMS_DIR = Path("artifacts/systems")
REFITTED_DIR = Path("artifacts/refitted")  # of the stages refit@TASK
DECISIONS_FILE = Path("reports/decisions.json")
# Stages that keep systems.
VERBS = ("evaluate", "evaluate_adapted", "evaluate_target_only", "baselines")


@dataclass(frozen=True)
class KeptSystem:
    """A system and its folder."""

    folder: Path
    record: SystemRecord


def write_systems(stage_file_name: str, system_dirs: Sequence[Path]) -> None:
    """Copy the systems of a stage into its output, each with a model card."""
    with create_artifact(SYSTEMS_DIR / stage_file_name, "systems") as draft:
        for system_dir in system_dirs:
            record = read_record(system_dir)
            folder = draft / f"{record.label_count}-{record.name}"
            shutil.copytree(system_dir, folder)
            write_card(folder, record)


def write_refitted(folder: Path, fitted_dir: Path, record: SystemRecord) -> None:
    """Copy a system that was fitted again into the output of its stage, with a model card."""
    shutil.copytree(fitted_dir, folder)
    write_record(folder, record)
    write_card(folder, record)


def check_task(params: Params, task: str) -> None:
    """Raise InputError if the study has no such task, or keeps no system for its kind."""
    if task not in params.grid.tasks:
        raise InputError(
            f"--task: the study has no task '{task}'{suggest_nearest(task, params.grid.tasks)}"
        )
    kind = load_kind(params.tasks[task].kind)
    if not kind.labels_new_items:
        raise InputError(
            f"--task: no system is kept for {task}, since a task of kind {kind.name} only asks "
            "what models know; name another task"
        )


def list_systems(params: Params, task: str) -> list[KeptSystem]:
    """Return the systems of a task, sorted: all labels first, then by score on validation.

    Raises InputError if there are none.
    """
    check_task(params, task)
    systems = [*list_evaluated(params, task), *list_refitted(task)]
    if not systems:
        raise InputError(
            f"{SYSTEMS_DIR}: there is no system for the task '{task}'; run `lineage run` to make "
            "them, or `dvc pull` to fetch them"
        )
    return sorted(systems, key=_rank)


def list_evaluated(params: Params, task: str) -> list[KeptSystem]:
    """Return the systems of a task as they were evaluated, with the first seed of pretraining."""
    systems = []
    first_seed = params.grid.pretrain_seeds[0]
    for verb in VERBS:
        for instance in params.grid.stage_instances[verb]:
            if instance.rsplit("-", 1)[-1] != task:
                continue
            for path in sorted((SYSTEMS_DIR / f"{verb}-{instance}").glob(f"*/{RECORD_FILE}")):
                record = read_record(path.parent)
                if record.pretrain_seed in (None, first_seed):
                    systems.append(KeptSystem(path.parent, record))
    return systems


def list_refitted(task: str) -> list[KeptSystem]:
    """Return the systems of a task that were fitted again."""
    paths = sorted((REFITTED_DIR / task).glob(f"*/{RECORD_FILE}"))
    return [KeptSystem(path.parent, read_record(path.parent)) for path in paths]


def _rank(system: KeptSystem) -> tuple[float, float, bool, str]:
    score = system.record.validation_score
    return (
        -_label_count_as_number(system.record.label_count),
        float("inf") if score is None else -score,
        system.record.refit is None,
        system.record.name,
    )


def _label_count_as_number(label_count: str) -> float:
    return float("inf") if label_count == "all" else float(label_count)


def format_systems(systems: Sequence[KeptSystem]) -> str:
    """Return a table: labels, score on validation with the first seed, training items, and name.

    Those that `lineage predict` uses without a name are marked.
    """
    decisions = _read_decisions(systems[0].record.task)
    lines = [f"{'labels':>6}  {'validation':>10}  {'trained on':>10}  system"]
    for system in systems:
        record = system.record
        score = "undefined" if record.validation_score is None else f"{record.validation_score:.4f}"
        decision = decisions.get(record.label_count)
        note = ""
        if decision is not None and record.name == _prefer_refitted(
            systems, _system_of(decision), record.label_count
        ):
            note = "  (recommended)"
            if not _is_above_chance(decision):
                note = "  (highest score, but not shown to be above chance)"
        items = f"{record.train_examples:,}"
        lines.append(f"{record.label_count:>6}  {score:>10}  {items:>10}  {record.name}{note}")
    metric = systems[0].record.metric
    notes = [f"validation: {metric} of the first seed, which predicts; few items, so only a hint"]
    if any(line.endswith("(recommended)") for line in lines):
        notes.append("recommended: by the report, from the test items of all seeds")
    if any(system.record.refit is not None for system in systems):
        notes.append(
            f"{REFITTED_SUFFIX}: fitted again on train and validation; its scores are those before"
        )
    return "\n".join([*lines, *notes])


def choose_system(
    systems: Sequence[KeptSystem], name: str | None, label_count: str | None
) -> KeptSystem:
    """Return the system of this name, or without a name the recommended one.

    Without a label count it is the one with the most labels. Raises InputError.
    """
    task = systems[0].record.task
    label_counts = sorted({one.record.label_count for one in systems}, key=_label_count_as_number)
    if label_count is not None and label_count not in label_counts:
        raise InputError(
            f"--labels: no system of '{task}' was trained on {label_count} labels; known: "
            f"{', '.join(label_counts)}"
        )
    is_recommended = name is None
    if name is None:
        name, label_count = _read_recommendation(systems, label_count)
        name = _prefer_refitted(systems, name, label_count)
    found = [
        one
        for one in systems
        if one.record.name == name and label_count in (None, one.record.label_count)
    ]
    if found:
        return found[0]
    names = ", ".join(dict.fromkeys(one.record.name for one in systems))
    if is_recommended:
        raise InputError(
            f"--system: name one, since {DECISIONS_FILE} recommends '{name}', which is not kept; "
            f"there are {names}"
        )
    at_count = "" if label_count is None else f" with {label_count} labels"
    raise InputError(
        f"--system: there is no system '{name}' of '{task}'{at_count}; there are {names}; "
        "`--list` shows which labels each was trained on"
    )


def _prefer_refitted(systems: Sequence[KeptSystem], name: str, label_count: str) -> str:
    """Return the name of a system, or if it was fitted again, that of the new one."""
    refitted = f"{name}{REFITTED_SUFFIX}"
    known = {(one.record.name, one.record.label_count) for one in systems}
    return refitted if (refitted, label_count) in known else name


def check_files(kept: KeptSystem) -> None:
    """Raise InputError if the files of a system, or those of its model, are damaged."""
    patterns = {kept.folder.parent: f"{kept.folder.name}/*"}
    if kept.record.model_folder is not None:
        patterns[locate_model(kept.folder, kept.record)] = "*"
    for folder, pattern in patterns.items():
        if (folder / MANIFEST_FILE).is_file():  # only outputs of stages have one
            check_intact(folder, pattern)


def _read_decisions(task: str) -> dict[str, dict[str, Any]]:
    """Return the decisions of the last report on a task by label count; empty without a report."""
    if not DECISIONS_FILE.is_file():
        return {}
    decisions = [decision for decision in read_json(DECISIONS_FILE) if decision["task"] == task]
    return {str(decision["label_count"]): decision for decision in decisions}


def _is_above_chance(decision: dict[str, Any]) -> bool:
    return bool(decision["use"]["standing"]["above_chance"])


def _system_of(decision: dict[str, Any]) -> str:
    columns = decision["system"]
    return system_name(columns["model"], columns["init"], columns["transfer"], columns["head"])


def _read_recommendation(systems: Sequence[KeptSystem], label_count: str | None) -> tuple[str, str]:
    """Return the name and label count of the system that the report recommends."""
    task = systems[0].record.task
    if not DECISIONS_FILE.is_file():
        names = list(dict.fromkeys(one.record.name for one in systems))
        raise InputError(
            f"--system: name one, since the study recommends none ({DECISIONS_FILE} is missing); "
            f"the best on validation first: {', '.join(names)}"
        )
    by_count = _read_decisions(task)
    if label_count is None:
        label_count = max(by_count, key=_label_count_as_number, default=None)
    if label_count is None or label_count not in by_count:
        at_count = "" if label_count is None else f" with {label_count} labels"
        raise InputError(
            f"--system: name one, since {DECISIONS_FILE} recommends none for '{task}'{at_count}; "
            "`--list` shows them"
        )
    if not _is_above_chance(by_count[label_count]):
        print(
            f"no system of '{task}' is shown to be above chance: its answers may be no better than "
            "guesses; label more items",
            file=sys.stderr,
        )
    return _system_of(by_count[label_count]), label_count


def locate_trained_model(params: Params, name: str) -> Path:
    """Return the folder of MODEL, or of MODEL@TASK, which is the model adapted to a task's text.

    It is that of the first seed of pretraining. Raises InputError, also if the model is damaged.
    """
    model, _, task = name.partition("@")
    grid = params.grid
    if model not in grid.models:
        raise InputError(f"the study has no model '{model}'{suggest_nearest(model, grid.models)}")
    seed = grid.pretrain_seeds[0]
    folder = Path(f"artifacts/pretrained/{model}/{seed}")
    if not task:
        _check_trained(folder, name)
        return folder
    if model not in grid.adapt_models or task not in grid.adapt_tasks:
        pairs = [f"{one}@{other}" for one in grid.adapt_models for other in grid.adapt_tasks]
        raise InputError(
            f"the study does not adapt '{model}' to '{task}'; adapted models: "
            f"{', '.join(pairs) or 'none'}"
        )
    folder = Path(f"artifacts/adapted/{model}/{seed}/{task}")
    _check_trained(folder, name)
    return folder


def _check_trained(folder: Path, name: str) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder}: {name} is not trained yet; `lineage run` trains it")
    check_intact(folder)
