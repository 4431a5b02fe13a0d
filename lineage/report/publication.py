"""What the results do not say, since it differs from run to run: costs, machines, versions, and the run in MLflow that shows it all."""

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from lineage import artifacts
from lineage.params import Grid
from lineage.records import read_yaml
from lineage.report import view, words
from lineage.running.provenance import changed_files, entry_digest
from lineage.scoring.metrics import COMPARED

Tree = dict[str, Any]
PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "tokenizers", "datasets", "dvc", "mlflow", "prefect")
COSTS = ("seconds", "peak_memory_bytes")
NOTE_CHARACTERS = 7900  # MLflow keeps 8,000


def read_lock() -> Tree:
    """The entries of dvc.lock: what each stage has read and written."""
    return dict(read_yaml(Path("dvc.lock"))["stages"]) if Path("dvc.lock").is_file() else {}


def costed(budget: Sequence[Tree], sides: Mapping[str, Tree], *, curves: Path) -> list[Tree]:
    """The budget's lines with seconds and peak memory of pretraining: means over pretraining seeds, None where unknown.

    A side file stays when DVC brings an older result back: it counts only where it belongs to the curve that is here.
    """
    lines: list[Tree] = []
    for line in budget:
        if "budgets" in line:  # of two variants, which stand before it
            lines.append(line | _together([one for one in lines if one["variant"] in line["budgets"]]))
            continue
        own = _trainings("pretrain", [f"{line['variant']}-{seed}" for seed in line["pretrain_seeds"]], sides, curves)
        own = own if line.get("matched", True) else []  # to copy a public checkpoint is not what it cost
        known = {cost: [side[cost] for side in own if side.get(cost) is not None] for cost in COSTS}
        lines.append(line | {cost: sum(values) / len(values) if values else None for cost, values in known.items()})
    return lines


def _together(members: Sequence[Tree]) -> Tree:
    """What two trainings, one after the other, cost."""
    known = {cost: [one[cost] for one in members] for cost in COSTS}
    seconds, memory = (None if None in known[cost] else known[cost] for cost in COSTS)
    return {"seconds": seconds and sum(seconds), "peak_memory_bytes": memory and max(memory)}


def timed(adaptations: Sequence[Tree], sides: Mapping[str, Tree], grid: Grid, *, curves: Path) -> list[Tree]:
    """The lines of adaptations with their seconds, as `costed`."""
    found = []
    for line in adaptations:
        own = _trainings("adapt", [f"{line['variant']}-{seed}-{line['task']}" for seed in grid.pretrain_seeds], sides, curves)
        found.append(line | {"seconds": sum(side["seconds"] for side in own) / len(own) if own else None})
    return found


def _trainings(verb: str, cells: Sequence[str], sides: Mapping[str, Tree], curves: Path) -> list[Tree]:
    here = {f"{verb}@{cell}": curves / f"{verb}-{cell}.parquet" for cell in cells}
    return [sides[stage] for stage, curve in here.items() if stage in sides and _is_of(sides[stage], curve)]


def _is_of(side: Tree, curve: Path) -> bool:
    return curve.is_file() and side.get("curve_sha256") == artifacts.file_digest(curve)


def provenance(sides: Mapping[str, Tree], known: Collection[str], lock: Tree, *, pipeline: str, commit: str) -> Tree:
    """Where the numbers come from: code, parameters, versions, and the digest, cost and machine of each of the `known` stages."""
    names = sorted({*lock, *sides}.intersection(known))
    stages = []
    for name in names:
        side = sides.get(name, {})
        digest = entry_digest(lock[name]) if name in lock else ""
        costs = {key: side.get(key) for key in ("git_commit", "mlflow_run_id", "pipeline_id", *COSTS)}
        stages.append({"stage": name, "digest": digest, "host": side.get("host", ""), "device": side.get("device", ""), **costs})
    dirty = _dirty()
    return {
        "pipeline": pipeline,
        "commit": commit,
        "working_tree": f"changed: {', '.join(dirty[:8])}{' and more' if len(dirty) > 8 else ''}" if dirty else "clean",
        "parameters": f"sha256 {artifacts.text_digest(json.dumps(read_yaml(Path('params.yaml')), sort_keys=True))[:16]}",
        "hosts": ", ".join(sorted({str(s["host"]) for s in stages if s["host"]})) or "unknown",
        "devices": ", ".join(sorted({str(s["device"]) for s in stages if s["device"]})) or "unknown",
        "computing_time": _computing_time([stage["seconds"] for stage in stages]),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "stages": stages,
    }


def _computing_time(seconds: Sequence[float | None]) -> str:
    known = [one for one in seconds if one is not None]
    unknown = f", that of {len(seconds) - len(known)} more is unknown" if len(known) < len(seconds) else ""
    return f"{sum(known) / 60:.1f} minutes over {len(known)} stage{'' if len(known) == 1 else 's'}{unknown}" if known else "unknown"


def _dirty() -> list[str]:
    """Changed or unknown files of the checkout: the flow's word, or git's. What a run itself writes is not a change."""
    if "LINEAGE_DIRTY" in os.environ:
        return [name for name in os.environ["LINEAGE_DIRTY"].split(",") if name]
    return [name for name in changed_files(Path(), ["."]) if name != "dvc.lock"]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def note(tree: Tree, made_by: Mapping[str, str], *, experiment: str) -> str:
    """The description of the parent run in Markdown: the verdict, and links to the runs that made what this one took from the cache."""
    lines = [words.summary(tree), ""]  # no heading: MLflow shows three lines and hides the rest
    lines += [f"- **{v['task']}, {v['labels']}: {v['way']}**, {v['mean']} {v['unit']}. {' '.join(v['sentences'])}" for v in view.verdicts(tree)]
    lines += ["", "The whole report is among the artifacts: `comparison.html`."]
    if made_by:
        # without the last part MLflow shows its pages for chat applications
        links = [f"[{stage}](#/experiments/{experiment}/runs/{run}?workflowType=machine_learning)" for stage, run in sorted(made_by.items())]
        lines += ["", f"Taken from the cache, made by earlier runs: {', '.join(links)}"]
    text = "\n".join(lines)
    return text if len(text) <= NOTE_CHARACTERS else text[:NOTE_CHARACTERS].rpartition(", ")[0] + " ..."


def made_elsewhere(sides: Mapping[str, Tree], *, pipeline: str) -> dict[str, str]:
    """Stages that an earlier pipeline ran, and their runs in MLflow."""
    earlier = {name: side for name, side in sides.items() if side.get("pipeline_id") not in (None, pipeline)}
    return {name: side["mlflow_run_id"] for name, side in earlier.items() if side.get("mlflow_run_id")}


def title(tree: Tree, *, pipeline: str) -> str:
    """The parent's name, of which a list of runs shows some twenty letters: `bert best on 3 of 5 (1a2b3c4d)`."""
    asked = words.questions(tree)
    best = words.served(asked).most_common(1)
    alone = all(question["alone"] for question in asked)
    level = "equal at the top " if any(len(q["level"]) > 1 for q in asked) else "nobody led "
    nobody = "no lead beats guessing " if all(q["guessed"] for q in asked) else "none of one budget " if alone else level
    said = f"{best[0][0]} best on {best[0][1]} of {len(asked)} " if best else nobody if asked else ""
    return f"{said}({pipeline[:8]})"


def headline(tree: Tree) -> dict[str, float]:
    """Summary metrics of the parent: of each question the best mean, and whether its lead is clear."""
    found: dict[str, float] = {}
    for question in words.questions(tree):
        key = f"{question['task']}/{question['labels']}"
        found |= {f"best/{key}": question["cell"]["mean"] * COMPARED[question["cell"]["metric"]], f"separated/{key}": float(question["clear"])}
    return found
