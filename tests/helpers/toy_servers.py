"""The servers and workers of a toy project."""

import json
from dataclasses import dataclass
from typing import Any

import psutil

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


def start_servers(project: Project) -> Site:
    """Start the servers and workers of a project."""
    port = free_port()
    completed = project.run("up", LINEAGE_PREFECT_PORT=str(port))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return Site(project, port)


def set_models(project: Project, **make: object) -> None:
    """Leave one model in the study, with these options of its stage make."""
    project.set_params(grid__models=["a"], models__a__make=make)
    project.read_trace()
