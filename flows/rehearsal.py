"""Run the stages of a rehearsal, as a run does, but without DVC and without MLflow."""

import contextlib
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.execute import StageContext, StageResult, log_path, run_without_dvc
from flows.machine import start_stage_server
from flows.plan import FIRST_STAGE, StageNode, read_graph
from flows.scheduler import ProgressCallback, run_stages
from lineage.config.params import Params
from lineage.errors import InputError
from lineage.forecast.records import StageForecast, StudyForecast
from lineage.forecast.rehearsal import prepare_rehearsal
from lineage.forecast.scaling import RehearsedStage, scale_rehearsal
from lineage.runtime.code import PROJECT_ROOT
from lineage.runtime.scratch import scratch_folder
from lineage.runtime.settings import METADATA_DIR, STATE_DIR, read_runtime_settings
from lineage.study.models import ModelConfig

DVC_CONFIG = "[core]\n    no_scm = True\n    analytics = false\n"
# Data are sampled, publish does little compared with the report, and which systems are fitted again
# is not known before the results.
NOT_REHEARSED = ("sources", "corpus", "task", "refit", "publish")
# They take as long as the last time. A report could only be rehearsed after all evaluations.
KNOWN_IF_RUN_BEFORE = (FIRST_STAGE, "report", "refit", "publish")
SHARED_FOLDERS = ("prepared", "checks")  # of the study: the data that it has read


def forecast_study(
    study: Path,
    nodes: list[StageNode],
    params: Params,
    models: dict[str, ModelConfig],
    data_root: Path,
    *,
    jobs: int,
    on_progress: Callable[[float, str], None] = lambda done, note: None,
) -> StudyForecast:
    """Return the forecast of each of the nodes, from a rehearsal on this machine of what they need.

    `jobs` stages run at a time, in the study and in the rehearsal. The data were checked. The
    forecast is for the stages' own work, without DVC and the scheduler. Raises InputError.
    """
    known = {}
    for node in nodes:
        if node.name.partition("@")[0] in KNOWN_IF_RUN_BEFORE:
            # A stage that has not run, or whose metadata are damaged, is rehearsed.
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
                known[node.name] = _read_own_cost(study, node)
    names = [node.name for node in nodes if node.name not in known]
    if not names:
        return StudyForecast(known)
    with scratch_folder() as root:
        _write_scratch_study(root, study)
        runner = _Runner.start(root, data_root, params.threads)
        runner.run(StageNode(FIRST_STAGE, "python -m stages.sources", (), "local", 1e6, False, 1))
        rehearsal = prepare_rehearsal(params, data_root, root)
        needed = {rehearsal.find_stage(name) for name in names}
        small_nodes = _with_upstream(needed, read_graph(root))
        runner.run_all(small_nodes, jobs, params, on_progress)
        stages = {
            node.name: RehearsedStage.read(
                json.loads(_metadata_path(root, node).read_text()), _measure_outputs(root, node)
            )
            for node in small_nodes
            if _metadata_path(root, node).is_file()
        }
        forecasts = known | scale_rehearsal(rehearsal, stages, models, names)
    return StudyForecast(forecasts, lacks_gpu=params.device != rehearsal.small.device)


def _with_upstream(names: set[str], nodes: list[StageNode]) -> list[StageNode]:
    """Return these stages, and those whose outputs they read. Nodes come after their upstream."""
    needed = set(names)
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.upstream)
    return [node for node in nodes if node.name in needed]


def _write_scratch_study(root: Path, study: Path) -> None:
    """Copy the inputs of the stage sources. It reads no data again."""
    (root / ".dvc").mkdir()
    (root / ".dvc" / "config").write_text(DVC_CONFIG)
    shutil.copy(study / "params.yaml", root / "params.yaml")
    shutil.copy(study / "dvc.yaml", root / "dvc.yaml")
    (root / STATE_DIR).mkdir(exist_ok=True)
    for name in SHARED_FOLDERS:
        folder = (study / STATE_DIR / name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        (root / STATE_DIR / name).symlink_to(folder)


@dataclass(frozen=True)
class _Runner:
    """Runs the stages of the scratch study."""

    context: StageContext

    @classmethod
    def start(cls, root: Path, data_root: Path, threads: int) -> "_Runner":
        device_index = read_runtime_settings().device_index
        environment = {
            "LINEAGE_DATA_ROOT": str(data_root),
            "LINEAGE_DEVICE_INDEX": str(device_index),
            "PYTHONPATH": os.pathsep.join(
                part for part in (str(PROJECT_ROOT), os.environ.get("PYTHONPATH")) if part
            ),
        }
        start_stage_server(root)
        return cls(StageContext(root, environment, threads, threading.Event()))

    def run(self, node: StageNode) -> StageResult:
        """Run one stage. Raises InputError if it fails: the forecast cannot be made then."""
        result = run_without_dvc(
            node.name, node.command, context=self.context, timeout_seconds=node.timeout_seconds
        )
        if not result.succeeded:
            log = log_path(self.context.root, node.name).read_text(errors="replace")
            message = next(
                (line for line in reversed(log.split("\n")) if line.strip()), result.message
            )
            raise InputError(f"forecast of {node.name}: {message.removeprefix(node.name + ': ')}")
        return result

    def run_all(
        self,
        nodes: list[StageNode],
        jobs: int,
        params: Params,
        on_progress: Callable[[float, str], None],
    ) -> None:
        """Run all stages but NOT_REHEARSED, several at a time. Raises InputError."""
        skipped = {
            node.name: StageResult(node.name, "ran")
            for node in nodes
            if node.name.partition("@")[0] in NOT_REHEARSED
        }
        waiting = [node for node in nodes if node.name not in skipped]
        run_stages(
            waiting,
            reasons={node.name: ("rehearsed",) for node in waiting},
            run=self.run,
            jobs=jobs,
            stop_event=self.context.stop_event,
            callback=_Progress(len(waiting), on_progress),
            exclusive_gpu=params.device == "cuda",
            completed=skipped,
        )


class _Progress(ProgressCallback):
    """Tells how many of the stages have ended."""

    def __init__(self, total: int, on_progress: Callable[[float, str], None]) -> None:
        self._total = total
        self._num_ended = 0
        self._on_progress = on_progress

    def on_stage_end(self, result: StageResult) -> None:
        """Count a stage."""
        self._num_ended += 1
        self._on_progress(self._num_ended / self._total, result.name)


def _read_own_cost(study: Path, node: StageNode) -> StageForecast:
    """Return what a stage of the study cost when it ran the last time."""
    metadata = json.loads(_metadata_path(study, node).read_text())
    disk_bytes = sum(_measure_outputs(study, node).values())
    return StageForecast(metadata["seconds"], metadata["peak_memory_bytes"], disk_bytes)


def _metadata_path(root: Path, node: StageNode) -> Path:
    return root / METADATA_DIR / f"{node.name}.json"


def _measure_outputs(root: Path, node: StageNode) -> dict[str, int]:
    """Return the bytes of a stage's outputs by the suffix of the files."""
    disk: Counter[str] = Counter()
    for output in node.outputs:
        path = root / output
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                disk[file.suffix] += file.stat().st_size
    return dict(disk)
