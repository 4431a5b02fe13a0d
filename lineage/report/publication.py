"""What the results do not say, since it differs from run to run: costs, machines, versions, and the run in MLflow that shows it all."""

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from lineage import artifacts
from lineage.config.params import Grid
from lineage.config.records import read_yaml
from lineage.evaluation.metrics import RANKING_METRICS
from lineage.report import sentences, view
from lineage.runtime.provenance import list_changed_files, lock_entry_digest

JsonDict = dict[str, Any]
REPORTED_PACKAGES = (
    "torch",
    "numpy",
    "pandas",
    "scikit-learn",
    "tokenizers",
    "datasets",
    "dvc",
    "mlflow",
    "prefect",
)
COST_FIELDS = ("seconds", "peak_memory_bytes")
MAX_NOTE_CHARACTERS = 7900  # MLflow keeps 8,000


def read_dvc_lock() -> JsonDict:
    """The entries of dvc.lock: what each stage has read and written."""
    return dict(read_yaml(Path("dvc.lock"))["stages"]) if Path("dvc.lock").is_file() else {}


def add_pretraining_costs(
    budget: Sequence[JsonDict], stage_metadata: Mapping[str, JsonDict], *, curves_dir: Path
) -> list[JsonDict]:
    """The budget's lines with seconds and peak memory of pretraining: means over pretraining seeds, None where unknown.

    A side file stays when DVC brings an older result back: it counts only where it belongs to the curve that is here.
    """
    lines: list[JsonDict] = []
    for line in budget:
        if "budgets" in line:  # of two variants, which stand before it
            lines.append(
                line | _sum_costs([one for one in lines if one["model"] in line["budgets"]])
            )
            continue
        own = _find_training_metadata(
            "pretrain",
            [f"{line['model']}-{seed}" for seed in line["pretrain_seeds"]],
            stage_metadata,
            curves_dir,
        )
        own = (
            own if line.get("matched", True) else []
        )  # to copy a public checkpoint is not what it cost
        known = {
            cost: [side[cost] for side in own if side.get(cost) is not None] for cost in COST_FIELDS
        }
        lines.append(
            line
            | {
                cost: sum(values) / len(values) if values else None
                for cost, values in known.items()
            }
        )
    return lines


def _sum_costs(members: Sequence[JsonDict]) -> JsonDict:
    """What two trainings, one after the other, cost."""
    costs = {cost: [one[cost] for one in members] for cost in COST_FIELDS}
    seconds, memory = (None if None in costs[cost] else costs[cost] for cost in COST_FIELDS)
    return {"seconds": seconds and sum(seconds), "peak_memory_bytes": memory and max(memory)}


def add_adaptation_seconds(
    adaptations: Sequence[JsonDict],
    stage_metadata: Mapping[str, JsonDict],
    grid: Grid,
    *,
    curves_dir: Path,
) -> list[JsonDict]:
    """The lines of adaptations with their seconds, as `costed`."""
    found = []
    for line in adaptations:
        own = _find_training_metadata(
            "adapt",
            [f"{line['model']}-{seed}-{line['task']}" for seed in grid.pretrain_seeds],
            stage_metadata,
            curves_dir,
        )
        found.append(
            line | {"seconds": sum(side["seconds"] for side in own) / len(own) if own else None}
        )
    return found


def _find_training_metadata(
    verb: str, stage_ids: Sequence[str], stage_metadata: Mapping[str, JsonDict], curves_dir: Path
) -> list[JsonDict]:
    here = {f"{verb}@{cell}": curves_dir / f"{verb}-{cell}.parquet" for cell in stage_ids}
    return [
        stage_metadata[stage]
        for stage, curve in here.items()
        if stage in stage_metadata and _matches_curve(stage_metadata[stage], curve)
    ]


def _matches_curve(metadata_record: JsonDict, curve: Path) -> bool:
    return curve.is_file() and metadata_record.get("curve_sha256") == artifacts.file_digest(curve)


def collect_provenance(
    stage_metadata: Mapping[str, JsonDict],
    stage_names: Collection[str],
    lock: JsonDict,
    *,
    pipeline: str,
    commit: str,
) -> JsonDict:
    """Where the numbers come from: code, parameters, versions, and the digest, cost and machine of each of the `known` stages."""
    names = sorted({*lock, *stage_metadata}.intersection(stage_names))
    stages = []
    for name in names:
        side = stage_metadata.get(name, {})
        digest = lock_entry_digest(lock[name]) if name in lock else ""
        costs = {
            key: side.get(key)
            for key in ("git_commit", "mlflow_run_id", "pipeline_id", *COST_FIELDS)
        }
        stages.append(
            {
                "stage": name,
                "digest": digest,
                "host": side.get("host", ""),
                "device": side.get("device", ""),
                **costs,
            }
        )
    dirty = _uncommitted_files()
    return {
        "pipeline": pipeline,
        "commit": commit,
        "working_tree": f"changed: {', '.join(dirty[:8])}{' and more' if len(dirty) > 8 else ''}"
        if dirty
        else "clean",
        "parameters": f"sha256 {artifacts.text_digest(json.dumps(read_yaml(Path('params.yaml')), sort_keys=True))[:16]}",
        "hosts": ", ".join(sorted({str(s["host"]) for s in stages if s["host"]})) or "unknown",
        "devices": ", ".join(sorted({str(s["device"]) for s in stages if s["device"]}))
        or "unknown",
        "computing_time": _format_compute_time([stage["seconds"] for stage in stages]),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {_package_version(name)}" for name in REPORTED_PACKAGES),
        "stages": stages,
    }


def _format_compute_time(seconds: Sequence[float | None]) -> str:
    known = [one for one in seconds if one is not None]
    unknown = (
        f", that of {len(seconds) - len(known)} more is unknown"
        if len(known) < len(seconds)
        else ""
    )
    return (
        f"{sum(known) / 60:.1f} minutes over {len(known)} stage{'' if len(known) == 1 else 's'}{unknown}"
        if known
        else "unknown"
    )


def _uncommitted_files() -> list[str]:
    """Changed or unknown files of the checkout: the flow's word, or git's. What a run itself writes is not a change."""
    if "LINEAGE_DIRTY" in os.environ:
        return [name for name in os.environ["LINEAGE_DIRTY"].split(",") if name]
    return [name for name in list_changed_files(Path(), ["."]) if name != "dvc.lock"]


def _package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def format_run_note(tree: JsonDict, cached_runs: Mapping[str, str], *, experiment_id: str) -> str:
    """The description of the parent run in Markdown: the verdict, and links to the runs that made what this one took from the cache."""
    lines = [
        sentences.summarize(tree),
        "",
    ]  # no heading: MLflow shows three lines and hides the rest
    lines += [
        f"- **{v['task']}, {v['label_count']}: {v['way']}**, {v['mean']} {v['unit']}. {' '.join(v['sentences'])}"
        for v in view.build_verdict_cards(tree)
    ]
    lines += ["", "The whole report is among the artifacts: `comparison.html`."]
    if cached_runs:
        # without the last part MLflow shows its pages for chat applications
        links = [
            f"[{stage}](#/experiments/{experiment_id}/runs/{run}?workflowType=machine_learning)"
            for stage, run in sorted(cached_runs.items())
        ]
        lines += ["", f"Taken from the cache, made by earlier runs: {', '.join(links)}"]
    text = "\n".join(lines)
    return (
        text
        if len(text) <= MAX_NOTE_CHARACTERS
        else text[:MAX_NOTE_CHARACTERS].rpartition(", ")[0] + " ..."
    )


def find_cached_runs(stage_metadata: Mapping[str, JsonDict], *, pipeline: str) -> dict[str, str]:
    """Stages that an earlier pipeline ran, and their runs in MLflow."""
    earlier = {
        name: side
        for name, side in stage_metadata.items()
        if side.get("pipeline_id") not in (None, pipeline)
    }
    return {
        name: side["mlflow_run_id"] for name, side in earlier.items() if side.get("mlflow_run_id")
    }


def format_run_name(tree: JsonDict, *, pipeline: str) -> str:
    """The parent's name, of which a list of runs shows some twenty letters: `bert best on 3 of 5 (1a2b3c4d)`."""
    asked = sentences.summarize_settings(tree)
    best = sentences.count_wins(asked).most_common(1)
    alone = all(question["alone"] for question in asked)
    level = "equal at the top " if any(len(q["level"]) > 1 for q in asked) else "nobody led "
    nobody = (
        "no lead beats guessing "
        if all(q["guessed"] for q in asked)
        else "none of one budget "
        if alone
        else level
    )
    said = (
        f"{best[0][0]} best on {best[0][1]} of {len(asked)} " if best else nobody if asked else ""
    )
    return f"{said}({pipeline[:8]})"


def summary_metrics(tree: JsonDict) -> dict[str, float]:
    """Summary metrics of the parent: of each question the best mean, and whether its lead is clear."""
    found: dict[str, float] = {}
    for setting in sentences.summarize_settings(tree):
        key = f"{setting['task']}/{setting['label_count']}"
        found |= {
            f"best/{key}": setting["cell"]["mean"] * RANKING_METRICS[setting["cell"]["metric"]],
            f"separated/{key}": float(setting["clear"]),
        }
    return found
