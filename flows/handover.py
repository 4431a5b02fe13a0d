"""Hand a stage over to another machine: what it gets, how it checks that, and where it runs it.

A Prefect worker gets a stage through its server and the DVC remote (`flows.workers`); a machine
that no server reaches gets it as a file (`flows.bundle`). Neither DVC nor Prefect is imported here.
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.execute import StageContext, wait_for_stages
from lineage import __version__
from lineage.errors import InputError
from lineage.runtime.code import package_digest
from lineage.runtime.locks import try_lock
from lineage.runtime.provenance import SOURCES_DIR, compute_pipeline_id, read_package_version
from lineage.runtime.settings import STATE_DIR

HOME_VARIABLE = "LINEAGE_WORKER_HOME"
KEPT_ON_WORKERS = (".dvc", str(STATE_DIR))  # between two stages: the cache, and resume state


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """The request for a stage: all that another machine needs besides package and inputs."""

    stage: str
    code_digest: str  # of the package: the other machine's must be the same
    files: dict[str, str]  # texts of files of the study: params.yaml and dvc.yaml
    threads: int
    timeout_seconds: float
    environment: dict[str, str]


def make_request(stage: str, timeout_seconds: float, context: StageContext) -> StageRequest:
    """Collect what another machine needs from the study."""
    root = context.root
    # The copy of params.yaml that this run goes by.
    params = (root / SOURCES_DIR / "params.yaml").read_text(encoding="utf-8")
    graph = (root / "dvc.yaml").read_text(encoding="utf-8")
    return StageRequest(
        stage=stage,
        code_digest=read_package_version(root).code_digest,
        files={"params.yaml": params, "dvc.yaml": graph},
        threads=context.threads,
        timeout_seconds=timeout_seconds,
        environment={
            **context.environment,
            # The other machine's folder has another name, and lacks some records.
            "LINEAGE_STUDY": study_name(context),
            "LINEAGE_PIPELINE_ID": compute_pipeline_id(root),
        },
    )


def study_name(context: StageContext) -> str:
    """Return the name of a study, which is that of its folder."""
    return context.root.resolve().name


def check_package(request: StageRequest, *, whose: str, remedy: str) -> None:
    """Raise InputError unless this machine runs the code that the study was started with."""
    if package_digest() != request.code_digest:
        raise InputError(
            f"{whose} lineage {__version__} has other code than the one that runs the study; "
            f"{remedy}"
        )


def worker_home() -> Path:
    """Return the folder of this machine's scratch studies."""
    return Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".cache" / "lineage")


@contextlib.contextmanager
def open_scratch_study(home: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """Yield a free folder below `home` for a study, with the files of a request.

    It holds only DVC's cache and the state of lineage from earlier stages.
    """
    with _claim_slot(home) as folder:
        root = folder / "study"
        prepare_scratch_study(root, files, kept=KEPT_ON_WORKERS)
        yield root


def prepare_scratch_study(root: Path, files: Mapping[str, str], *, kept: Collection[str]) -> None:
    """Make a folder a study with the files of a request, and of what it held only `kept`."""
    wait_for_stages(root)
    root.mkdir(exist_ok=True)
    for path in root.iterdir():
        if path.name not in kept:
            remove(path)
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _claim_slot(home: Path) -> Iterator[Path]:
    """Yield the first folder that no other stage uses on this machine."""
    number = 0
    while True:
        folder = home / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as stream:
            if try_lock(stream):
                yield folder
                return
        number += 1
