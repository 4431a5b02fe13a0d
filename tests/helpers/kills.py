"""Kill processes of a small study at random moments, and compare its results: `make kills`.

The study trains a small GPT on workers. While it runs, one process after another is killed: a
stage, a worker, the Prefect server, or the run itself, which is started again. When a run has ended
well, its artifacts and results must have the same bytes as those of a run without a kill, and after
`lineage down` no process may be left. Then another study begins, until there were enough kills.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from tests.helpers.checkout import ROOT, RUN_STUDY, create_own_study, run_command, set_params
from tests.helpers.toy_project import free_port, read_dvc_lock

RUN_ON_WORKERS = (sys.executable, "-m", "flows.cli", "run", "--workers")
TARGETS = ("run", "server", "worker", "stage")
PAUSE_SECONDS = (1.0, 12.0)  # between two kills, while a run is under way
KILLS_PER_STUDY = 10
LAST_RUNS = 3  # that a study may need to end well after its last kill
RUN_SECONDS = 600.0  # without a kill, after which a run counts as hanging
ORPHAN_SECONDS = 30.0  # in which the last processes of a study must end


@dataclass
class Study:
    """A study with servers, whose processes are killed."""

    folder: Path
    port: int = field(default_factory=free_port)
    num_runs: int = 0

    def environment(self) -> dict[str, str]:
        return {
            "LINEAGE_PREFECT_PORT": str(self.port),
            "LINEAGE_CHECKPOINT_SECONDS": "0.5",  # else trainings of seconds would begin anew
        }

    def up(self) -> None:
        run_command(self.folder, "lineage", "up", **self.environment())

    def start_run(self) -> "subprocess.Popen[bytes]":
        self.num_runs += 1
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LINEAGE_", "PREFECT_"))
        }
        with (self.folder.parent / f"run-{self.num_runs}.log").open("wb") as log:
            return subprocess.Popen(
                RUN_ON_WORKERS,
                cwd=self.folder,
                env=inherited | self.environment() | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def processes(self) -> list[psutil.Process]:
        """Return the living processes whose folder is in the study."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.cwd().startswith(str(self.folder))
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def stages(self) -> list[psutil.Process]:
        """Return the processes that are stages: children of a server of processes."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if "multiprocessing.forkserver" in command and process.parent().cmdline() == (
                    process.cmdline()
                ):
                    found.append(process)
        return found

    def servers(self, *names: str) -> list[psutil.Process]:
        found = []
        for name in names:
            path = self.folder / ".lineage" / "servers" / f"{name}.json"
            with contextlib.suppress(psutil.Error, FileNotFoundError):
                found.append(psutil.Process(json.loads(path.read_text())["pid"]))
        return found


def create_small_study(folder: Path) -> Path:
    """Create a study whose stages take seconds."""
    create_own_study(folder)
    set_params(folder, grid__finetune_seeds=[0], grid__label_counts=["all"])
    return folder


def find_targets(study: Study, run: "subprocess.Popen[bytes]") -> dict[str, list[psutil.Process]]:
    """Return the processes that may be killed now, by kind."""
    targets = {
        "run": [psutil.Process(run.pid)],
        "server": study.servers("prefect"),
        "worker": study.servers("worker-cpu", "worker-gpu"),
        "stage": study.stages(),
    }
    return {kind: processes for kind, processes in targets.items() if processes}


def kill_one(
    study: Study, run: "subprocess.Popen[bytes]", rng: np.random.Generator
) -> tuple[str, str]:
    """Kill a random process of a random kind. Return the kind and the process's command."""
    targets = find_targets(study, run)
    kind = str(rng.choice([name for name in TARGETS if name in targets]))
    process = targets[kind][int(rng.integers(len(targets[kind])))]
    command = "it had just ended"
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        command = " ".join(words[words.index("-m") + 1 :][:4]) if "-m" in words else "a stage"
        process.kill()
    return kind, command


def disturb(study: Study, num_kills: int, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """Run the study to its end. Kill up to so many processes meanwhile, and yield each kill."""
    study.up()
    run = study.start_run()
    while num_kills:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(float(rng.uniform(*PAUSE_SECONDS)))
        if run.poll() == 0:
            return
        if run.poll() is not None:
            study.up()
            run = study.start_run()
            continue
        yield kill_one(study, run, rng)
        num_kills -= 1
        study.up()  # it starts what is missing
    for _ in range(LAST_RUNS):
        if run.wait(RUN_SECONDS) == 0:
            return
        study.up()
        run = study.start_run()
    raise AssertionError(f"{study.folder}: no run has ended well; see run-*.log next to it")


def digest_results(folder: Path) -> dict[str, str]:
    """Return the digest of every artifact and of the results, and the entries of dvc.lock."""
    digests = {"dvc.lock": json.dumps(read_dvc_lock(folder), sort_keys=True)}
    for path in [*folder.glob("artifacts/**/*"), *folder.glob("reports/results.*")]:
        if path.is_file():
            name = str(path.relative_to(folder))
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def find_orphans(study: Study) -> list[str]:
    """End the study's servers, and return the commands of the processes that are left."""
    run_command(study.folder, "lineage", "down")
    deadline = time.monotonic() + ORPHAN_SECONDS
    while study.processes() and time.monotonic() < deadline:
        time.sleep(0.5)
    commands = []
    for process in study.processes():
        with contextlib.suppress(psutil.Error):
            age = time.time() - process.create_time()
            commands.append(f"{' '.join(process.cmdline())} (for {age:.0f} s)")
    return commands


def main() -> int:
    """Kill processes as the command line says. The exit code is 1 if anything differs."""
    parser = argparse.ArgumentParser(description="Kill processes of a small study at random.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    start_time = time.monotonic()
    counts: Counter[str] = Counter()
    problems: list[str] = []
    num_studies = 0
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        undisturbed = create_small_study(Path(name) / "undisturbed" / "study")
        run_command(undisturbed, *RUN_STUDY)
        expected = digest_results(undisturbed)
        print(f"undisturbed: {len(expected)} files, {time.monotonic() - start_time:.0f} s")
        while counts.total() < options.kills:
            num_studies += 1
            study = Study(create_small_study(Path(name) / str(num_studies) / "study"))
            try:
                num_kills = min(KILLS_PER_STUDY, options.kills - counts.total())
                for kind, command in disturb(study, num_kills, rng):
                    counts[kind] += 1
                    seconds = time.monotonic() - start_time
                    print(
                        f"{seconds:5.0f} s  kill {counts.total()}: {kind} ({command})", flush=True
                    )
            finally:
                orphans = find_orphans(study)
            found = digest_results(study.folder)
            different = {key for key in {*expected, *found} if expected.get(key) != found.get(key)}
            own = [f"study {num_studies}: {key} differs" for key in sorted(different)]
            own += [f"study {num_studies}: left behind: {command}" for command in orphans]
            print(
                f"study {num_studies}: {study.num_runs} runs, {len(different)} files differ, "
                f"{len(orphans)} orphans",
                flush=True,
            )
            for problem in own:
                print(problem, flush=True)
            problems += own
    kinds = ", ".join(f"{kind} {counts[kind]}" for kind in TARGETS)
    print(
        f"kills: {counts.total()} ({kinds}); studies: {num_studies}; problems: {len(problems)}; "
        f"{time.monotonic() - start_time:.0f} s"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
