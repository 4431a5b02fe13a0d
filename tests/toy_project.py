"""A small project with the real flows and toy stages that take no time: what orchestration does is seen without training anything."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent.parent

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
    deps: ["artifacts/sources/${item.item}.json", stages/step.py]
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
    # the user's file lies outside of the repository; a worker must never look for it
    "sources": """
from stages import toy
name = toy.begin("sources")
params = toy.params()
if "grid" not in params:
    toy.bad(name, "params.yaml: the key 'grid' is missing; add it")
text = (toy.find_main_checkout() / "user" / "text.txt")
if not text.is_file():
    toy.bad(name, f"{text}: there is no such file; create it")
for family in params["grid"]["models"]:
    if family not in params["models"]:
        toy.bad(name, f"params.yaml: grid.models: '{family}' has no entry in models; add it")
    toy.write(f"artifacts/sources/{family}.json", text.read_text())
""",
    "step": """
import os, signal, subprocess, sys, time
from stages import toy
verb, item = sys.argv[1:]
name = toy.begin(f"{verb}@{item}")
asked = toy.params()["models"][item].get(verb, {})
print(f"{name} begins", flush=True)
if asked.get("child"):
    subprocess.Popen(["sleep", str(asked["child"])])
if asked.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif asked.get("checkpoint"):
    def save(*_):
        toy.write(".lineage/checkpoint", "saved")
        sys.exit(1)
    signal.signal(signal.SIGTERM, save)
if asked.get("meet"):
    toy.write(f".lineage/here-{item}", "")
    while not (toy.Path(".lineage") / f"here-{asked['meet']}").exists():
        time.sleep(0.05)
time.sleep(asked.get("seconds", 0))
if asked.get("once") and not toy.Path(".lineage/killed").exists():
    toy.write(".lineage/killed", "once")
    os.kill(os.getpid(), 9)
if asked.get("exit") == 2:
    toy.bad(name, "params.yaml: models: something is wrong; mend it")
if asked.get("exit"):
    sys.exit(asked["exit"])
home = {"make": "artifacts/made/{}", "train": "artifacts/results/{}.json", "extra": "artifacts/extra/{}"}[verb]
toy.write(home.format(item), f"{name} {asked.get('value', 0)} {asked.get('status', 'ok')}")
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
from lineage.runtime.settings import find_main_checkout
def begin(name):
    if os.environ.get("LINEAGE_STAGE", name) != name:
        sys.exit(1)
    trace = os.environ.get("TOY_TRACE")
    if trace:
        with open(trace, "a") as stream:
            stream.write(json.dumps({"stage": name, "pid": os.getpid(), "parent": os.getppid(),
                                     "cwd": os.getcwd(), "threads": os.environ["OMP_NUM_THREADS"],
                                     "pipeline": get_pipeline_id(), "dirty": os.environ.get("LINEAGE_DIRTY"),
                                     "cache": str((Path(".dvc") / "cache").is_dir()), "user": (find_main_checkout() / "user").is_dir(),
                                     "index": os.environ.get("DO_NOT_TRACK")}) + chr(10))
    return name
def end(name):
    write(f".lineage/metadata/{name}.json", json.dumps({"stage": name, "pid": os.getpid(), "cwd": os.getcwd()}))
def params():
    return read_yaml(Path("params.yaml"))
def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
def bad(name, message):
    print(f"{name}: {message}", file=sys.stderr)
    sys.exit(2)
""",
}

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
    """A checkout, and the file in which its stages say that they ran."""

    root: Path

    @property
    def trace(self) -> Path:
        return self.root.parent / "trace.jsonl"

    def environment(self, **more: str) -> dict[str, str]:
        dropped = ("LINEAGE_", "PREFECT_", "GIT_")
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(dropped)},
            "TOY_TRACE": str(self.trace),
            **more,
        }

    def run(
        self, *arguments: str, module: str = "flows.pipeline", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """One command of the project."""
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

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "flows.pipeline", *arguments], cwd=self.root, env=self.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def traced(self) -> list[dict[str, object]]:
        """What ran since the last look."""
        found = (
            [json.loads(line) for line in self.trace.read_text().splitlines()]
            if self.trace.is_file()
            else []
        )
        self.trace.unlink(missing_ok=True)
        return found

    def ran(self) -> list[str]:
        return sorted(str(entry["stage"]) for entry in self.traced())

    def params(self) -> dict:
        return YAML(typ="safe", pure=True).load((self.root / "params.yaml").read_text())

    def set(self, *, file: str = "params.yaml", **values: object) -> None:
        """Set parameters by dotted name, with __ for the dots."""
        path = self.root / file
        tree = YAML(typ="safe", pure=True).load(path.read_text()) if path.is_file() else {}
        for key, value in values.items():
            *above, last = key.split("__")
            place = tree
            for name in above:
                place = place.setdefault(name, {})
            place[last] = value
        dump(path, tree)

    def git(self, *arguments: str) -> str:
        answer = subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return answer.stdout.strip()

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


def dump(path: Path, tree: object) -> None:
    with path.open("w") as stream:
        YAML(typ="safe", pure=True).dump(tree, stream)


def lock(root: Path) -> dict:
    """dvc.lock as parsed: its order is the order of finishing."""
    return YAML(typ="safe", pure=True).load((root / "dvc.lock").read_text())


def make_project(folder: Path) -> Project:
    """A committed project in `folder`/project."""
    root = folder / "project"
    for name in ("stages", "profiles", "user", "lineage/runtime", "lineage/config"):
        (root / name).mkdir(parents=True)
    shutil.copytree(HERE / "flows", root / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "__init__",
        "errors",
        "config/__init__",
        "config/records",
        "config/renamed",
        "runtime/__init__",
        "runtime/provenance",
        "runtime/settings",
    ):
        shutil.copy(HERE / "lineage" / f"{name}.py", root / "lineage" / f"{name}.py")
    # Toy stages do without torch.
    forkserver = (HERE / "lineage" / "runtime" / "forkserver.py").read_text()
    (root / "lineage" / "runtime" / "forkserver.py").write_text(
        re.sub(r'"stages": \(.*?\),', '"stages": ("json",),', forkserver, flags=re.DOTALL)
    )
    shutil.copy(HERE / "stages" / "__init__.py", root / "stages")
    for name in (".dvc/config", ".dvc/.gitignore", ".gitignore", ".dvcignore", "prefect.yaml"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(HERE / name, root / name)
    for name, text in STAGES.items():
        (root / "stages" / f"{name}.py").write_text(text)
    (root / ".gitignore").write_text((root / ".gitignore").read_text() + "/user/\n")
    (root / "user" / "text.txt").write_text("some text")
    (root / "dvc.yaml").write_text(DVC_YAML)
    dump(root / "params.yaml", PARAMS)
    dump(root / "profiles" / "base.yaml", {**PARAMS, "seed": 2})
    dump(root / "profiles" / "demo.yaml", {"seed": 1})
    dump(
        root / "profiles" / "small.yaml",
        {"grid": {"models": ["a"]}, "models": {"a": {"train": {"value": 7}}}},
    )
    project = Project(root)
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(root)], check=True)
    project.commit()
    return project


def assert_one_message(answer: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr with these words, and no traceback."""
    assert "Traceback" not in answer.stdout + answer.stderr
    lines = [line for line in answer.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, answer.stderr
    assert all(word in lines[0] for word in words), lines


def below(project: Project) -> list[psutil.Process]:
    """The living processes whose folder is the project's."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(
                str(project.root)
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def sleeps(project: Project) -> bool:
    """Whether a child of one of the project's stages sleeps. Any process may end while it is looked at."""
    for process in below(project):
        with contextlib.suppress(psutil.Error):
            if "sleep" in " ".join(process.cmdline()):
                return True
    return False


def free_port() -> int:
    """A port of loopback on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(check: Callable[[], bool], *, seconds: float = 30) -> None:
    """Wait for what must come true."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
