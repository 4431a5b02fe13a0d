"""A small project with the real flows and toy stages that take no time."""

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from flows.addresses import read_prefect_secret

REPOSITORY = Path(__file__).resolve().parents[2]

DVC_YAML = """
stages:
  sources:
    cmd: python -m stages.sources
    always_changed: true
    outs: [artifacts/sources]
    meta: {pool: local, timeout_s: 60}
  make:
    matrix: {item: "${grid.models}"}
    cmd: python -m stages.step make ${item.item}
    deps: ["artifacts/sources/${item.item}.json", artifacts/sources/code/step.json]
    params: [seed, "models.${item.item}.make"]
    outs: ["artifacts/made/${item.item}"]
    meta: {pool: cpu, timeout_s: 60}
  train:
    matrix: {item: "${grid.models}"}
    cmd: python -m stages.step train ${item.item}
    deps: ["artifacts/made/${item.item}"]
    params: ["models.${item.item}.train"]
    outs: ["artifacts/results/${item.item}.json"]
    meta: {pool: gpu, timeout_s: 60}
  extra:
    matrix: {item: "${grid.extra}"}
    cmd: python -m stages.step extra ${item.item}
    deps: ["artifacts/made/${item.item}"]
    outs: ["artifacts/extra/${item.item}"]
    meta: {pool: cpu, timeout_s: 60}
  report:
    cmd: python -m stages.report
    deps: [artifacts/results]
    outs: [reports/results.csv]
    meta: {pool: local, timeout_s: 60}
  publish:
    cmd: python -m stages.publish
    always_changed: true
    deps: [reports/results.csv]
    meta: {pool: local, timeout_s: 60}
"""

STAGES = {
    # The user's file is not in git; a worker must never read it.
    "sources": """
from lineage.runtime.code import package_digest
from stages import toy
name = toy.begin("sources")
params = toy.params()
if "grid" not in params:
    toy.fail(name, "params.yaml: the key 'grid' is missing; add it")
text = toy.Path("user/text.txt")
if not text.is_file():
    toy.fail(name, f"{text}: there is no such file; create it")
for family in params["grid"]["models"]:
    if family not in params["models"]:
        toy.fail(name, f"params.yaml: grid.models: '{family}' has no entry in models; add it")
    toy.write(f"artifacts/sources/{family}.json", text.read_text())
code = toy.Path(__file__).with_name("step.py").read_text()
toy.write("artifacts/sources/code/step.json", toy.json.dumps(code))
toy.write("artifacts/sources/params.yaml", toy.Path("params.yaml").read_text())
toy.write("artifacts/sources/package.json", '{"version": "0", "code_digest": "%s"}' % package_digest())
""",
    "step": """
import os, signal, subprocess, sys, time
from stages import toy
verb, item = sys.argv[1:]
name = toy.begin(f"{verb}@{item}")
options = toy.params()["models"][item].get(verb, {})
print(f"{name} begins", flush=True)
if options.get("child"):
    subprocess.Popen(["sleep", str(options["child"])])
if options.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif options.get("checkpoint"):
    def save(*_):
        time.sleep(options.get("save_seconds", 0))
        while "save_after" in options and not toy.Path(options["save_after"]).exists():
            time.sleep(0.05)
        toy.write(".lineage/checkpoint", "saved")
        sys.exit(1)
    signal.signal(signal.SIGTERM, save)
if options.get("meet"):
    toy.write(f".lineage/here-{item}", "")
    while not (toy.Path(".lineage") / f"here-{options['meet']}").exists():
        time.sleep(0.05)
time.sleep(options.get("seconds", 0))
if options.get("once") and not toy.Path(".lineage/killed").exists():
    toy.write(".lineage/killed", "once")
    os.kill(os.getpid(), 9)
if options.get("exit") == 2:
    toy.fail(name, "params.yaml: models: something is wrong; mend it")
if options.get("exit"):
    sys.exit(options["exit"])
patterns = {"make": "artifacts/made/{}", "train": "artifacts/results/{}.json", "extra": "artifacts/extra/{}"}
toy.write(patterns[verb].format(item), f"{name} {options.get('value', 0)} {options.get('status', 'ok')}")
toy.end(name)
""",
    "report": """
from stages import toy
toy.begin("report")
rows = [[*path.read_text().split(), "chosen"] for path in sorted(toy.Path("artifacts/results").glob("*.json"))]
toy.write("reports/results.csv", "".join(",".join(row) + chr(10) for row in [["variant", "value", "status", "trial"], *rows]))
""",
    "publish": """
from stages import toy
toy.begin("publish")
print("THE TABLE", flush=True)
""",
    "toy": """
import json, os, sys, time
from pathlib import Path
from lineage.config.records import read_yaml
from lineage.runtime.provenance import get_pipeline_id
def begin(name):
    if os.environ.get("LINEAGE_STAGE", name) != name:
        sys.exit(1)
    trace = os.environ.get("TOY_TRACE")
    if trace:
        with open(trace, "a") as stream:
            stream.write(json.dumps({"stage": name, "pid": os.getpid(), "parent": os.getppid(),
                                     "cwd": os.getcwd(), "threads": os.environ["OMP_NUM_THREADS"],
                                     "pipeline": get_pipeline_id(), "changes": os.environ.get("LINEAGE_STUDY_CHANGES"),
                                     "cache": str((Path(".dvc") / "cache").is_dir()), "user": Path("user").is_dir(),
                                     "index": os.environ.get("DO_NOT_TRACK")}) + chr(10))
    return name
def end(name):
    write(f".lineage/metadata/{name}.json", json.dumps({"stage": name, "pid": os.getpid(), "cwd": os.getcwd()}))
def params():
    return read_yaml(Path("params.yaml"))
def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
def fail(name, message):
    print(f"{name}: {message}", file=sys.stderr)
    sys.exit(2)
""",
}

READ_PARAMS = """
from pathlib import Path
from lineage.config.records import read_yaml
from lineage.errors import InputError
def read_params():
    if "grid" not in read_yaml(Path("params.yaml")):
        raise InputError("params.yaml: the key 'grid' is missing; add it")
"""

PARAMS = {
    "seed": 1,
    "threads": 1,
    "report": {"split": "validation"},
    "grid": {"models": ["a", "b"], "extra": []},
    "models": {
        "a": {"make": {"value": 1}, "train": {"value": 1}},
        "b": {"make": {"value": 1}, "train": {"value": 1}},
    },
}


@dataclass(frozen=True)
class Project:
    """A checkout, and the file in which its stages record that they ran."""

    root: Path

    @property
    def trace(self) -> Path:
        return self.root.parent / "trace.jsonl"

    def environment(self, **more: str) -> dict[str, str]:
        dropped = ("LINEAGE_", "PREFECT_", "GIT_")
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(dropped)},
            "TOY_TRACE": str(self.trace),
            # Workers start in other folders, and the toy project is not installed.
            "PYTHONPATH": str(self.root),
            **more,
        }

    def run(
        self, *arguments: str, module: str = "flows.cli", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of the project."""
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def start(
        self, *arguments: str, own_session: bool = False, **more: str
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *arguments],
            cwd=self.root,
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=own_session,
        )

    def read_trace(self) -> list[dict[str, object]]:
        """Return and delete the records of the stages that ran since the last call."""
        records = (
            [json.loads(line) for line in self.trace.read_text().splitlines()]
            if self.trace.is_file()
            else []
        )
        self.trace.unlink(missing_ok=True)
        return records

    def stages_run(self) -> list[str]:
        """Return the names of the stages that ran since the last call, sorted."""
        return sorted(str(entry["stage"]) for entry in self.read_trace())

    def params(self) -> dict:
        return YAML(typ="safe", pure=True).load((self.root / "params.yaml").read_text())

    def set_params(self, *, file: str = "params.yaml", **values: object) -> None:
        """Set parameters by dotted name, written with __ for the dots."""
        path = self.root / file
        tree = YAML(typ="safe", pure=True).load(path.read_text()) if path.is_file() else {}
        for key, value in values.items():
            *parents, last = key.split("__")
            node = tree
            for name in parents:
                node = node.setdefault(name, {})
            node[last] = value
        write_yaml(path, tree)

    def git(self, *arguments: str) -> str:
        completed = subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return completed.stdout.strip()

    def commit(self) -> None:
        self.git("add", "--all")
        self.git(
            "-c",
            "user.name=toy",
            "-c",
            "user.email=toy@localhost",
            "commit",
            "--quiet",
            "--message",
            "a change",
        )


def write_yaml(path: Path, tree: object) -> None:
    with path.open("w") as stream:
        YAML(typ="safe", pure=True).dump(tree, stream)


def read_dvc_lock(root: Path) -> dict:
    """Return the parsed dvc.lock; its stages are in the order in which they finished."""
    return YAML(typ="safe", pure=True).load((root / "dvc.lock").read_text())


def make_project(folder: Path) -> Project:
    """Create a committed project in `folder`/project."""
    root = folder / "project"
    for name in ("stages", "user", "lineage/runtime", "lineage/config", "lineage/study"):
        (root / name).mkdir(parents=True)
    shutil.copytree(
        REPOSITORY / "flows", root / "flows", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in (
        "__init__",
        "errors",
        "config/__init__",
        "config/records",
        "study/__init__",
        "runtime/__init__",
        "runtime/code",
        "runtime/database",
        "runtime/journal",
        "runtime/locks",
        "runtime/provenance",
        "runtime/scratch",
        "runtime/settings",
    ):
        shutil.copy(REPOSITORY / "lineage" / f"{name}.py", root / "lineage" / f"{name}.py")
    # DVC itself sees edits of the toy's params.yaml.
    (root / "lineage/config/params.py").write_text(READ_PARAMS)
    (root / "lineage/study/source_records.py").write_text(
        "def refresh_parameter_records(params):\n    pass\n"
    )
    # Toy stages do not need torch.
    path = root / "flows" / "stage_process.py"
    pattern = r"(PRELOADED_MODULES = )\(.*?\n\)"
    text, num_found = re.subn(pattern, r'\1("psutil",)', path.read_text(), flags=re.DOTALL)
    assert num_found == 1
    path.write_text(text)
    shutil.copy(REPOSITORY / "stages" / "__init__.py", root / "stages")
    for name in (".dvc/config", ".dvc/.gitignore", ".gitignore", ".dvcignore"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    for name, text in STAGES.items():
        (root / "stages" / f"{name}.py").write_text(text)
    (root / ".gitignore").write_text((root / ".gitignore").read_text() + "/user/\n")
    (root / "user" / "text.txt").write_text("some text")
    (root / "dvc.yaml").write_text(DVC_YAML)
    write_yaml(root / "params.yaml", PARAMS)
    project = Project(root)
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(root)], check=True)
    project.commit()
    return project


def assert_one_message(completed: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that stderr has one line with these words, and that there is no traceback."""
    assert "Traceback" not in completed.stdout + completed.stderr
    lines = [line for line in completed.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, completed.stderr
    assert all(word in lines[0] for word in words), lines


def project_processes(project: Project) -> list[psutil.Process]:
    """Return the live processes whose working directory is in the project."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(
                str(project.root)
            ):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def has_sleeping_child(project: Project) -> bool:
    """Return whether a child of one of the project's stages sleeps."""
    for process in project_processes(project):
        with contextlib.suppress(psutil.Error):  # the process may just have ended
            if "sleep" in " ".join(process.cmdline()):
                return True
    return False


def ask_prefect(
    study: Path, api: str, path: str, body: object = None, *, method: str = "POST"
) -> Any:
    """Return the answer of a study's Prefect API to a request with the study's secret.

    As Prefect's own client does, ask again while its database is busy.
    """
    request = urllib.request.Request(
        f"{api}/{path}",
        data=json.dumps(body or {}).encode(),
        headers={
            "Authorization": basic_authentication(read_prefect_secret(study)),
            "Content-Type": "application/json",
        },
        method=method,
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                text = answer.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def prefect_access(study: Path, port: int) -> dict[str, str]:
    """Return what a process needs in its environment to use a study's Prefect server."""
    return {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_AUTH_STRING": read_prefect_secret(study),
    }


def basic_authentication(secret: str) -> str:
    return f"Basic {base64.b64encode(secret.encode()).decode()}"


def free_port() -> int:
    """Return a free port on the loopback interface."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(check: Callable[[], bool], *, seconds: float = 30) -> None:
    """Wait until the check is true, and fail after the time limit."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def wait_for_stage(project: Project, name: str) -> int:
    """Wait until a stage has started, and return its process id."""
    wait_until(lambda: project.trace.is_file() and name in project.trace.read_text(), seconds=60)
    record = next(record for record in project.read_trace() if record["stage"] == name)
    return int(record["pid"])  # type: ignore[call-overload]


def is_up(address: str) -> bool:
    """Return whether a page answers."""
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2) as answer:
        return bool(answer.status == 200)
    return False


@contextlib.contextmanager
def serve_in_thread(server: socketserver.BaseServer) -> Iterator[None]:
    """Let a server answer while the block lasts."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def copy_project(project: Project, folder: Path) -> Project:
    """Copy a project with its cache and results into a folder."""
    shutil.copytree(project.root, folder / "project", symlinks=True)
    return Project(folder / "project")
