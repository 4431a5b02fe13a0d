"""Keep the results of stages as `dvc repro` does, in one process that holds DVC's repository open.

`dvc repro -s NAME` starts Python and reads dvc.yaml and dvc.lock for each stage.
"""

import contextlib
import fcntl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from dvc.lock import LockError
from dvc.rwlock import rwlock
from dvc.stage import PipelineStage
from dvc.stage.cache import RunCacheNotFoundError, RunCacheNotSupported
from dvc.stage.serialize import to_single_stage_lockfile

from flows.integrity import remove_cut_records
from flows.lock_file import LOCK_FILE, write_lock_entry
from flows.plan import Reasons, full_message, list_stale_reasons, open_repo

CACHE_LOCK = "lineage.lock"  # in the folder of the cache, which studies may share
POLL_SECONDS = 0.1


class RepositoryError(RuntimeError):
    """DVC cannot keep or restore a result."""


class StoppedError(RuntimeError):
    """The run was stopped while it waited for a lock."""


class StudyRepository:
    """The DVC repository of a study. Threads may share it, and use it in turns.

    Opening it removes what a power cut or a kill has left in the cache. Raises RepositoryError and
    StoppedError.
    """

    def __init__(self, root: Path, stop_event: threading.Event) -> None:
        self._root = root.absolute()
        self._stop_event = stop_event
        self._repo = open_repo(root, waits_for_lock=False)
        self._stages: dict[str, PipelineStage] = {
            stage.name: stage for stage in self._repo.index.stages if stage.cmd
        }
        self._begun: set[str] = set()  # stages whose objects hold new inputs, and old outputs
        self._turn = threading.Lock()
        self._cache_lock = Path(self._repo.cache.legacy.path) / CACHE_LOCK
        with self._use_dvc():
            remove_cut_records(Path(self._repo.cache.local.path))

    def command_of(self, name: str) -> str:
        """Return the command of a stage."""
        return str(self._stages[name].cmd)

    def read_stale_reasons(self) -> dict[str, Reasons]:
        """Return why each stage would run by itself."""
        with self._use_dvc(alone=False):
            return {name: tuple(list_stale_reasons(one)) for name, one in self._stages.items()}

    def read_inputs(self, name: str) -> dict[str, Any]:
        """Return what dvc.lock would say about a stage's command, inputs and parameters now.

        Raises RepositoryError and StoppedError.
        """
        with self._use_dvc():
            stage = self._stages[name].reload()  # an object of its own: the inputs are noted in it
            stage.save_deps(allow_missing=True)
            entry = to_single_stage_lockfile(stage)
        return {key: value for key, value in entry.items() if key != "outs"}

    def take_known_result(self, name: str, *, pull: bool = False) -> Literal["fresh", "cached", ""]:
        """Return "fresh" if a stage need not run, or "cached" if its result came from the cache.

        Otherwise its outputs are removed. With `pull`, results may come from the DVC remote. Raises
        RepositoryError and StoppedError.
        """
        with self._use_dvc(alone=not pull):
            stage = self._load_stage(name)
            if pull:
                with contextlib.suppress(RunCacheNotSupported):  # by a remote with HTTP
                    self._repo.stage_cache.pull(None)
            if not stage.changed():
                return "fresh"
            self._begun.add(name)
            stage.remove_outs(ignore_remove=False, force=False)
            try:
                self._repo.stage_cache.restore(stage, pull=pull)
            except RunCacheNotFoundError:
                stage.save_deps()
                return ""
            self._keep(stage)
            return "cached"

    def keep_result(self, name: str) -> None:
        """Store the outputs of a stage that has run. Raises RepositoryError and StoppedError."""
        with self._use_dvc():
            self._keep(self._stages[name])

    @contextlib.contextmanager
    def reserve(self, name: str) -> Iterator[None]:
        """Keep DVC commands of the user's away from a stage's files. Raises RepositoryError."""
        stage = self._stages[name]
        lock = rwlock(
            self._repo.tmp_dir,
            self._repo.fs,
            f"lineage run: {name}",
            [item.fs_path for item in stage.deps],
            [item.fs_path for item in stage.outs],
            self._repo.config["core"].get("hardlink_lock", False),
        )
        with contextlib.ExitStack() as exit_stack:
            with self._turn, _as_repository_errors():
                exit_stack.enter_context(lock)
            yield
            with self._turn, _as_repository_errors():
                exit_stack.close()

    def _load_stage(self, name: str) -> PipelineStage:
        """Return a stage with the inputs and outputs that dvc.lock has.

        DVC would take a stage that was begun before, and not kept, for one whose outputs are known.
        """
        if name in self._begun:
            self._stages[name] = self._stages[name].reload()
            self._begun.remove(name)
        return self._stages[name]

    def _keep(self, stage: PipelineStage) -> None:
        stage.save()
        stage.commit()
        if not write_lock_entry(self._root, stage.name, to_single_stage_lockfile(stage)):
            stage.dump(update_pipeline=False)
        self._repo.scm_context.track_file(LOCK_FILE)
        self._begun.discard(stage.name)

    @contextlib.contextmanager
    def _use_dvc(self, *, alone: bool = True) -> Iterator[None]:
        """Hold DVC's lock of the study and, to be alone in the cache, ours of the cache.

        DVC shows other studies that share its cache files that are not complete.
        """
        with self._turn, _as_repository_errors(), contextlib.ExitStack() as exit_stack:
            self._wait_for(self._repo.lock.lock)
            exit_stack.callback(self._repo.lock.unlock)
            self._cache_lock.parent.mkdir(parents=True, exist_ok=True)
            stream = exit_stack.enter_context(self._cache_lock.open("a"))
            if alone:
                self._wait_for(lambda: fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB))
            # In a run it is the current folder already.
            exit_stack.enter_context(contextlib.chdir(self._root))
            exit_stack.enter_context(self._repo.scm_context(quiet=True))
            yield

    def _wait_for(self, lock: Callable[[], object]) -> None:
        """Try to lock something until that succeeds. Raises StoppedError if the run is stopped."""
        while True:
            try:
                lock()
                return
            except (LockError, BlockingIOError):
                if self._stop_event.wait(POLL_SECONDS):
                    raise StoppedError from None


@contextlib.contextmanager
def _as_repository_errors() -> Iterator[None]:
    try:
        yield
    except StoppedError:
        raise
    except Exception as error:  # DVC and its packages raise errors of many kinds
        raise RepositoryError(full_message(error)) from error


if __name__ == "__main__":
    # `python -m flows.repository NAME` brings the result of a stage from the DVC remote into the
    # cache, if it is there. This process can be ended while the remote does not answer.
    StudyRepository(Path(), threading.Event()).take_known_result(sys.argv[1], pull=True)
