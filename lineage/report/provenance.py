"""Where the numbers come from: code, parameters, machines, versions and stages."""

import json
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lineage import artifacts
from lineage.config.params import Params, recorded_params_file
from lineage.config.records import read_yaml
from lineage.report.formatting import plural
from lineage.results import NGRAM_STAGE
from lineage.runtime.provenance import (
    StudyVersion,
    get_study_version,
    lock_entry_digest,
    read_package_version,
)

StageMetadata = Mapping[str, Any]  # the record that a stage leaves of its run
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
MAX_CHANGED_FILES = 8  # that are named
# Stages may have run on other machines.
FACT_NAMES = {"python": "report made with Python", "versions": "and packages"}


@dataclass(frozen=True)
class StageProvenance:
    """How the output of one stage was made; None if unknown."""

    stage: str
    digest: str  # of its entry in dvc.lock
    host: str
    device: str
    study_commit: str | None
    code_digest: str | None
    mlflow_run_id: str | None
    pipeline_id: str | None
    seconds: float | None
    peak_memory_bytes: float | None


@dataclass(frozen=True)
class Provenance:
    """How all the results were made."""

    pipeline: str
    package: str
    study: str
    parameters: str
    hosts: str
    devices: str
    compute_time: str
    python: str
    versions: str
    made_on: str = ""  # the day, empty in reports of before
    stages: tuple[StageProvenance, ...] = ()

    @property
    def facts(self) -> dict[str, str]:
        """Return the lines that head the section, by name."""
        return {
            FACT_NAMES.get(name, name.replace("_", " ")): value
            for name, value in vars(self).items()
            if isinstance(value, str) and value
        }


def read_dvc_lock() -> dict[str, Any]:
    """Return the entries of dvc.lock by stage; empty if there is no such file."""
    path = Path("dvc.lock")
    return dict(read_yaml(path)["stages"]) if path.is_file() else {}


def list_stage_names(params: Params) -> set[str]:
    """Return the names of all stages whose output the report shows."""
    names = {"sources", f"corpus@{params.budget.corpus}", NGRAM_STAGE, "report"}
    for verb, instances in params.grid.stage_instances.items():
        names |= {f"{verb}@{instance}" for instance in instances}
    return names


def collect_provenance(
    stage_metadata: Mapping[str, StageMetadata],
    stage_names: Collection[str],
    lock: Mapping[str, Any],
    *,
    pipeline: str,
) -> Provenance:
    """Collect the provenance of those of `stage_names` that have run."""
    names = sorted({*lock, *stage_metadata}.intersection(stage_names))
    stages = [_stage_provenance(name, stage_metadata.get(name, {}), lock) for name in names]
    parameters = json.dumps(read_yaml(recorded_params_file()), sort_keys=True)
    hosts = sorted({stage.host for stage in stages if stage.host})
    devices = sorted({stage.device for stage in stages if stage.device})
    versions = [f"{name} {metadata.version(name)}" for name in REPORTED_PACKAGES]
    package = read_package_version()
    return Provenance(
        pipeline=pipeline,
        package=f"lineage {package.version}, code sha256 {package.code_digest[:16]}",
        study=_format_study(get_study_version()),
        parameters=f"sha256 {artifacts.text_digest(parameters)[:16]}",
        hosts=", ".join(hosts) or "unknown",
        devices=", ".join(devices) or "unknown",
        compute_time=format_compute_time([stage.seconds for stage in stages]),
        python=platform.python_version(),
        versions=", ".join(versions),
        made_on=datetime.now(UTC).date().isoformat(),
        stages=tuple(stages),
    )


def _stage_provenance(name: str, own: StageMetadata, lock: Mapping[str, Any]) -> StageProvenance:
    return StageProvenance(
        stage=name,
        digest=lock_entry_digest(lock[name]) if name in lock else "",
        host=str(own.get("host", "")),
        device=str(own.get("device", "")),
        study_commit=own.get("study_commit"),
        code_digest=own.get("code_digest"),
        mlflow_run_id=own.get("mlflow_run_id"),
        pipeline_id=own.get("pipeline_id"),
        seconds=own.get("seconds"),
        peak_memory_bytes=own.get("peak_memory_bytes"),
    )


def format_compute_time(seconds: Sequence[float | None]) -> str:
    """Sum up times: `1.0 minutes over 2 stages; 1 more is unknown`."""
    known = [one for one in seconds if one is not None]
    if not known:
        return "unknown"
    text = f"{sum(known) / 60:.1f} minutes over {plural(len(known), 'stage')}"
    num_unknown = len(seconds) - len(known)
    if num_unknown:
        text += f"; {num_unknown} more {'is' if num_unknown == 1 else 'are'} unknown"
    return text


def _format_study(study: StudyVersion) -> str:
    """Return the commit of the study, and what has changed since."""
    if study.commit == "none":
        return "not in a git repository"
    if not study.changed_files:
        return f"git commit {study.commit}"
    shown = ", ".join(study.changed_files[:MAX_CHANGED_FILES])
    more = " and more" if len(study.changed_files) > MAX_CHANGED_FILES else ""
    return f"git commit {study.commit}, changed since: {shown}{more}"
