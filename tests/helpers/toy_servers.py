"""The servers and workers of a toy project."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flows.addresses import sign_in_url
from tests.helpers.toy_project import Project, ask_prefect, free_port


@dataclass(frozen=True)
class Site:
    """A project whose servers are running."""

    project: Project
    port: int

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer of Prefect's API."""
        return ask_prefect(self.project.root, f"http://127.0.0.1:{self.port}/api", path, body)

    def flow_runs(self) -> list[dict[str, Any]]:
        return self.ask("flow_runs/filter")

    def worker(self, pool: str) -> int:
        """Return the process id of a pool's worker."""
        return self.server(f"worker-{pool}")

    def server(self, name: str) -> int:
        """Return the process id of a server or worker."""
        path = self.project.root / ".lineage" / "servers" / f"{name}.json"
        return int(json.loads(path.read_text())["pid"])

    def kill(self, name: str) -> None:
        """Kill a server or worker and all its children."""
        process = psutil.Process(self.server(name))
        for one in [process, *process.children(recursive=True)]:
            one.kill()

    def start_again(self) -> None:
        """Start what has ended, at the same address."""
        completed = self.project.run("up", LINEAGE_PREFECT_PORT=str(self.port))
        assert completed.returncode == 0, completed.stdout + completed.stderr


def start_servers(project: Project, **environment: str) -> Site:
    """Start the servers and workers of a project."""
    port = free_port()
    completed = project.run("up", LINEAGE_PREFECT_PORT=str(port), **environment)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert sign_in_url(project.root, f"http://127.0.0.1:{port}") in completed.stdout
    return Site(project, port)


def set_models(project: Project, **make: object) -> None:
    """Leave one model in the study, with these options of its stage make."""
    project.set_params(grid__models=["a"], models__a__make=make)
    project.read_trace()


@contextlib.contextmanager
def run_worker(
    python: Path, pool: str, home: Path, variables: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a Prefect worker with this Python, home and environment while the block lasts."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {"HOME": str(home), "PATH": f"{python.parent}:/usr/bin:/bin", **variables}
    command = [str(python), "-m", "prefect", "worker", "start", "--pool", pool]
    with (home / f"worker-{pool}.log").open("w") as log:
        worker = subprocess.Popen(
            [*command, "--type", "process", "--limit", "1"],
            cwd=home,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()
