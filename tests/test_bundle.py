"""Stages travel in a file to a machine that no server reaches, and their results travel back."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from flows.bundle import (
    INDEX_FILE,
    Bundle,
    BundledStage,
    check_out,
    check_stage,
    digest_files,
    read_bundle,
    unpack,
    write_bundle,
)
from lineage.artifacts import read_json
from lineage.config.records import read_yaml
from lineage.errors import InputError
from lineage.runtime import journal
from lineage.runtime.code import package_digest
from tests.helpers.checkout import (
    ROOT,
    command_environment,
    create_own_study,
    run_command,
    set_params,
    stage_outcomes,
)
from tests.helpers.toy_project import (
    Project,
    assert_one_message,
    make_project,
    wait_until,
    write_yaml,
)
from tests.helpers.toy_servers import set_models

LINEAGE = (sys.executable, "-m", "flows.cli")
# What the stages of a GPU machine import; docs/how-to/gpu.md lists these.
NEEDED_ELSEWHERE = {
    "torch",
    "numpy",
    "pandas",
    "pyarrow",
    "safetensors",
    "tokenizers",
    "scikit-learn",
    "scipy",
    "threadpoolctl",
    "ruamel.yaml",
    "pyyaml",
    "charset-normalizer",
    "regex",
    "pydantic",  # typer imports it
    "psutil",
    "typer",
    "rich",
}


def block_other_packages(folder: Path) -> dict[str, str]:
    """Return an environment in which no other requirement can be imported, as where it is missing.

    Python runs a sitecustomize.py when it starts, in stages too.
    """
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[^\w.-]", line)[0] for line in requirements} - NEEDED_ELSEWHERE
    assert {"dvc", "prefect", "mlflow"} <= names
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({sorted(names)}))\n"
    )
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}


def start_elsewhere(folder: Path, *words: str, **environment: str) -> "subprocess.Popen[str]":
    """Start `lineage run-bundle` in a folder without a study."""
    variables = {
        "LINEAGE_WORKER_HOME": str(folder / "scratch"),
        "LINEAGE_CHECKPOINT_SECONDS": "0.2",
    }
    return subprocess.Popen(
        [*LINEAGE, "run-bundle", *words],
        cwd=folder,
        env=command_environment(folder) | variables | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_elsewhere(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    process = start_elsewhere(folder, *words, **environment)
    printed, _ = process.communicate(timeout=300)
    return process.returncode, printed


def run_until_resume_point(folder: Path, *words: str, number: int, **environment: str) -> str:
    """Send a signal to the command once its stage has written a resume point.

    TERM goes to all its processes, as some schedulers of jobs send it.
    """
    process = start_elsewhere(folder, *words, **environment)
    points = "bundles/*/study/.lineage/resume/*/*/step-*/manifest.json"
    before = {*(folder / "scratch").glob(points)}
    wait_until(lambda: {*(folder / "scratch").glob(points)} - before, seconds=120)
    if number == signal.SIGTERM:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.send_signal(number)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == (3 if number == signal.SIGTERM else -number), printed
    return printed


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A user's own study with a tokenizer and token ids, whose pretraining takes seconds."""
    folder = create_own_study(tmp_path / "home" / "tickets")
    set_params(folder, budget__text_bytes=600_000, budget__max_epochs=100)
    run_command(folder, "dvc", "repro", "tokenizer@gpt", "recipe@gpt")
    return folder


@pytest.mark.slow
def test_a_pretraining_in_pieces_elsewhere_ends_in_the_bytes_and_lock_entries_of_home(
    study: Path, tmp_path: Path
) -> None:
    """It is stopped by a scheduler of jobs, as at a limit of time, and then killed."""
    packed = tmp_path / "packed.tar"
    printed = run_command(study, *LINEAGE, "bundle", "pretrain@gpt-0", "-o", str(packed))
    assert printed.startswith(f"{packed}: pretrain@gpt-0, ")
    home = Path(shutil.copytree(tmp_path / "home", tmp_path / "compared")) / study.name
    run_command(home, "dvc", "repro", "pretrain@gpt-0")

    away = tmp_path / "away"
    away.mkdir()
    bare = block_other_packages(tmp_path / "blocked")
    printed = run_until_resume_point(
        away, str(packed), "-o", "1.tar", number=signal.SIGTERM, **bare
    )
    assert re.search(r"pretrain@gpt-0 pretrain \d+ % ", printed)
    assert "go on with `lineage run-bundle 1.tar -o NEXT`" in printed
    resume = [name for name in read_bundle(away / "1.tar").resume if "step-" in name]
    assert resume
    assert not [*(away / "scratch").rglob("*.safetensors")], "no text or weights stay there"
    run_until_resume_point(away, "1.tar", "-o", "1.tar", number=signal.SIGKILL, **bare)
    code, printed = run_elsewhere(away, "1.tar", "-o", "2.tar", **bare)
    assert code == 0, printed
    assert "1 of 1 stages finished" in printed

    set_params(study, models__gpt__pretrain__seq_len=32)
    refused = run_command(study, *LINEAGE, "accept", str(away / "2.tar"), code=2)
    assert "the study has changed since the stage was bundled: " in refused
    assert "param pretrain.seq_len 64 -> 32" in refused
    assert not (study / "artifacts" / "pretrained").exists()
    set_params(study, models__gpt__pretrain__seq_len=64)
    assert run_command(study, *LINEAGE, "accept", str(away / "2.tar")) == (
        "pretrain@gpt-0: accepted\n"
    )
    names = ("artifacts/pretrained", "artifacts/results")
    assert digest_files(study, names) == digest_files(home, names)
    assert read_yaml(study / "dvc.lock") == read_yaml(home / "dvc.lock")
    assert "fresh pretrain@gpt-0" in run_command(study, *LINEAGE, "plan")
    assert "python -m stages.pretrain" not in run_command(study, "dvc", "repro", "pretrain@gpt-0")
    metadata = read_json(study / ".lineage/metadata/pretrain@gpt-0.json")
    assert metadata["seconds"] > 0
    assert metadata["cwd"].startswith(str(away))
    assert [*(study / ".lineage" / "unsent").glob("*.jsonl")], "the next run sends them to MLflow"


def test_a_journal_from_elsewhere_waits_for_the_store_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = journal.StageRun("pretrain@gpt-0", "a run", {}, {}, {}, [], store="that of elsewhere")
    writer = journal.JournalWriter(run)
    writer.write("log_summary", {"loss": 1.0})
    writer.release()
    away = writer.path.rename(tmp_path / writer.path.name)
    assert journal.list_waiting() == []
    monkeypatch.setenv("LINEAGE_TRACKING_URI", "http://mlflow.example.org")
    journal.take_over(away)
    assert journal.list_waiting() == [writer.path]
    assert [*journal.follow(writer.path)] == [[["log_summary", {"loss": 1.0}]]]
    away.write_text("{}\n")
    with pytest.raises(journal.JournalError):
        journal.take_over(away)


@pytest.fixture
def toy(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def bundle_toy(project: Project, *stages: str, out: Path) -> subprocess.CompletedProcess[str]:
    return project.run("bundle", *stages, "-o", str(out))


def test_stages_that_read_each_other_travel_in_one_file(toy: Project, tmp_path: Path) -> None:
    set_models(toy, value=1)
    packed = tmp_path / "packed.tar"
    assert bundle_toy(toy, "train@a", "make@a", out=packed).returncode == 0
    toy.stages_run()
    variables = {"LINEAGE_WORKER_HOME": str(tmp_path / "scratch")}
    stopped = toy.run("run-bundle", str(packed), "-o", str(packed), "--minutes", "0", **variables)
    assert stopped.returncode == 3
    assert "make@a was stopped before its first resume point" in stopped.stdout
    refused = toy.run("accept", str(packed))
    assert refused.returncode == 2
    assert "none of its stages has finished" in refused.stderr
    completed = toy.run("run-bundle", str(packed), "-o", str(packed), **variables)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert toy.stages_run() == ["make@a", "train@a"]
    assert "2 of 2 stages finished" in completed.stdout
    again = toy.run("run-bundle", str(packed), "-o", str(packed), **variables)
    assert again.returncode == 2
    assert "all its stages have run" in again.stderr
    state = toy.root / ".lineage" / "resume" / "make-a" / "key" / "of an earlier try"
    state.parent.mkdir(parents=True)
    state.touch()
    accepted = toy.run("accept", str(packed))
    assert accepted.stdout == "make@a: accepted\ntrain@a: accepted\n", accepted.stderr
    assert not state.exists()
    printed = toy.run("run", "--no-prefect").stdout
    outcomes = stage_outcomes(printed)
    assert outcomes["make@a"] == outcomes["train@a"] == "fresh"
    assert outcomes["report"] == "ran"


def test_what_finished_before_a_failure_is_accepted(toy: Project, tmp_path: Path) -> None:
    set_models(toy, value=1)
    params = read_yaml(toy.root / "params.yaml")
    params["models"]["a"]["train"]["exit"] = 7
    (toy.root / "params.yaml").write_text(json.dumps(params))
    packed = tmp_path / "packed.tar"
    assert bundle_toy(toy, "make@a", "train@a", out=packed).returncode == 0
    completed = toy.run(
        "run-bundle", str(packed), "-o", str(packed), LINEAGE_WORKER_HOME=str(tmp_path / "scratch")
    )
    assert completed.returncode == 1
    assert "train@a: failed with exit code 7" in completed.stderr
    assert "1 of 2 stages finished" in completed.stdout
    accepted = toy.run("accept", str(packed)).stdout.splitlines()
    assert accepted[0] == "make@a: accepted"
    assert accepted[1].startswith("train@a: not finished; go on with ")


def test_signals_to_all_processes_of_a_job_stop_a_stage_and_are_no_failure(
    toy: Project, tmp_path: Path
) -> None:
    """The stage may get its signal before the command does."""
    params = toy.params()
    params["models"]["a"]["make"]["seconds"] = 60
    write_yaml(toy.root / "params.yaml", params)
    packed = tmp_path / "packed.tar"
    assert bundle_toy(toy, "make@a", out=packed).returncode == 0
    variables = {"LINEAGE_WORKER_HOME": str(tmp_path / "scratch")}
    process = toy.start("run-bundle", str(packed), "-o", str(packed), **variables)
    log = "scratch/bundles/*/study/.lineage/logs/make-a.log"
    wait_until(lambda: any("begins" in path.read_text() for path in tmp_path.glob(log)))
    for child in psutil.Process(process.pid).children(recursive=True):
        child.terminate()
    time.sleep(0.5)
    process.terminate()
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 3, printed
    assert "make@a was stopped before its first resume point" in printed


def test_a_killed_bundle_keeps_its_state_and_gives_it_to_no_other(
    toy: Project, tmp_path: Path
) -> None:
    variables = {"LINEAGE_WORKER_HOME": str(tmp_path / "scratch")}
    first = tmp_path / "first.tar"
    set_models(toy, value=1, exit=7)
    bundle_toy(toy, "make@a", out=first)
    assert toy.run("run-bundle", str(first), "-o", str(first), **variables).returncode == 1
    (scratch,) = (tmp_path / "scratch" / "bundles").glob("*/study")
    state = scratch / ".lineage" / "resume" / "make-a" / "key" / "state"
    state.parent.mkdir(parents=True)
    state.touch()
    second = tmp_path / "second.tar"
    set_models(toy, value=2)
    bundle_toy(toy, "make@a", out=second)
    command = ("run-bundle", str(second), "-o", str(second))
    assert toy.run(*command, "--minutes", "0", **variables).returncode == 3
    assert read_bundle(second).resume == {}
    assert toy.run(*command, **variables).returncode == 0
    assert state.exists()
    assert toy.run("run-bundle", str(first), "-o", str(first), **variables).returncode == 1
    assert [*read_bundle(first).resume] == [".lineage/resume/make-a/key/state"]


def test_what_finished_before_the_file_could_not_be_written_does_not_run_again(
    toy: Project, tmp_path: Path
) -> None:
    set_models(toy, value=1)
    packed = tmp_path / "packed.tar"
    bundle_toy(toy, "make@a", "train@a", out=packed)
    toy.stages_run()
    folder = tmp_path / "results"
    command = ("run-bundle", str(packed), "-o", str(folder / "packed.tar"))
    variables = {"LINEAGE_WORKER_HOME": str(tmp_path / "scratch")}
    refused = toy.run(*command, **variables)
    assert refused.returncode == 2
    assert_one_message(refused, "there is no folder")
    assert toy.stages_run() == []
    (folder / ".packed.tar.draft").mkdir(parents=True)  # in the way of the file
    assert toy.run(*command, **variables).returncode == 1
    assert toy.stages_run() == ["make@a"]
    (folder / ".packed.tar.draft").rmdir()
    completed = toy.run(*command, **variables)
    assert completed.returncode == 0, completed.stderr
    assert "make@a: has finished here before" in completed.stdout
    assert toy.stages_run() == ["train@a"]
    accepted = toy.run("accept", str(folder / "packed.tar"))
    assert accepted.stdout == "make@a: accepted\ntrain@a: accepted\n", accepted.stderr


def test_a_full_disk_is_noticed_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_out(tmp_path / "out.tar", num_bytes=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=400_000))
    with pytest.raises(InputError, match="takes 1 MB, and 0 MB are free"):
        check_out(tmp_path / "out.tar", num_bytes=1_000_000)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("train@a", "inputs are not up to date: make@a; run `dvc repro make@a` first, or bundle"),
        ("report", "report: it reads your files, so it runs at home only"),
        ("train@aa", "train@aa: the study has no such stage; did you mean 'train@a'?"),
        ("make@b", "make@b: it is up to date, so nothing is left to run"),
    ],
)
def test_a_stage_that_cannot_travel_is_refused(
    stage: str, message: str, finished_toy_project: Project, tmp_path: Path
) -> None:
    shutil.copytree(finished_toy_project.root, tmp_path / "project", symlinks=True)
    project = Project(tmp_path / "project")
    params = read_yaml(project.root / "params.yaml")
    params["models"]["a"]["make"]["value"] = 5
    (project.root / "params.yaml").write_text(json.dumps(params))
    completed = bundle_toy(project, stage, out=tmp_path / "packed.tar")
    assert completed.returncode == 2, completed.stdout
    assert message in completed.stderr
    assert not (tmp_path / "packed.tar").exists()


def test_all_stages_that_have_to_run_first_are_named_at_once(toy: Project, tmp_path: Path) -> None:
    graph = read_yaml(toy.root / "dvc.yaml")
    graph["stages"]["make"]["meta"]["pool"] = "local"
    graph["stages"]["train"]["deps"].append("artifacts/extra/${item.item}")
    write_yaml(toy.root / "dvc.yaml", graph)
    toy.set_params(grid__models=["a"], grid__extra=["a"])
    refused = bundle_toy(toy, "train@a", out=tmp_path / "packed.tar")
    assert_one_message(
        refused,
        "train@a: some inputs are not up to date: make@a, extra@a; run `dvc repro make@a extra@a` "
        "first, or bundle extra@a too",
    )


def make_file(folder: Path, change: Callable[[Bundle], Bundle] = lambda bundle: bundle) -> Path:
    """Write a bundle with a finished stage, and return its path."""
    root = folder / "study"
    files = ["artifacts/tokens/gpt/ids.npy", "artifacts/pretrained/gpt/0/weights"]
    for name in files:
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(name.encode())
    stage = BundledStage(
        stage="pretrain@gpt-0",
        code_digest="that of home",
        files={"params.yaml": "{}\n", "dvc.yaml": "stages: {}\n"},
        threads=1,
        timeout_seconds=60.0,
        environment={"LINEAGE_STUDY": "tickets", "LINEAGE_PIPELINE_ID": "1" * 16},
        command="python -m stages.pretrain gpt 0",
        outputs=("artifacts/pretrained/gpt/0",),
        inputs={},
    )
    bundle = Bundle(
        "0.0",
        (stage,),
        finished=(stage.stage,),
        inputs=digest_files(root, files[:1]),
        results=digest_files(root, files[1:]),
    )
    index = json.dumps(asdict(change(bundle))).encode()
    write_bundle(folder / "good.tar", bundle, root)
    with tarfile.open(folder / "good.tar") as good, tarfile.open(folder / "b.tar", "w") as archive:
        add_member(archive, INDEX_FILE, index)
        for name in files:
            archive.addfile(good.getmember(name), good.extractfile(name))
    return folder / "b.tar"


def add_member(archive: tarfile.TarFile, name: str, content: bytes, **facts: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in facts.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../outside",
        "artifacts/../../outside",
        "artifacts//x",
        "params.yaml",
        "torch.py",
        "artifacts/results/of-another-stage.json",
        ".lineage/metadata/evaluate@gpt-0-mood.json",
    ],
)
def test_a_result_at_another_place_than_its_stage_declares_is_refused(
    name: str, tmp_path: Path
) -> None:
    path = make_file(tmp_path, lambda bundle: replace(bundle, results={name: "0" * 64}))
    with pytest.raises(InputError, match="such a file is no part of a bundle"):
        read_bundle(path)


@pytest.mark.parametrize("output", ["artifacts/../../secret", "/etc/passwd", "reports/x"])
def test_outputs_of_all_stages_lie_below_artifacts(output: str, tmp_path: Path) -> None:
    def change(bundle: Bundle) -> Bundle:
        stages = (replace(bundle.stages[0], outputs=("artifacts/x", output)),)
        return replace(bundle, stages=stages, finished=(), results={})

    with pytest.raises(InputError, match=f"{output}: such a file is no part of a bundle"):
        read_bundle(make_file(tmp_path, change))


@pytest.mark.parametrize("name", ["pretrain@../../../evil", "pretrain@gpt/0", "..", "pretrain@"])
def test_a_stage_whose_name_is_a_path_is_refused(name: str, tmp_path: Path) -> None:
    def change(bundle: Bundle) -> Bundle:
        stages = (replace(bundle.stages[0], stage=name),)
        return replace(bundle, stages=stages, finished=(), results={})

    with pytest.raises(InputError, match="no stage of lineage has such a name; refused"):
        read_bundle(make_file(tmp_path, change))


@pytest.mark.parametrize("name", ["torch.py", ".lineage/resume/adapt-gpt-0-mood/step-1/x"])
def test_inputs_and_resume_state_have_their_places(name: str, tmp_path: Path) -> None:
    for key in ("inputs", "resume"):
        folder = tmp_path / key
        folder.mkdir()
        path = make_file(folder, lambda bundle, key=key: replace(bundle, **{key: {name: ""}}))  # type: ignore[misc]
        with pytest.raises(InputError, match="such a file is no part of a bundle"):
            read_bundle(path)


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("not-listed", {}),
        ("../not-listed", {}),
        ("artifacts/tokens/gpt/ids.npy", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("artifacts/tokens/gpt/ids.npy", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}),
        ("artifacts/tokens/gpt/ids.npy", {"type": tarfile.FIFOTYPE}),
    ],
)
def test_members_that_are_not_listed_or_no_plain_files_are_refused(
    name: str, facts: dict[str, object], tmp_path: Path
) -> None:
    path = make_file(tmp_path)
    with tarfile.open(path, "a") as archive:
        add_member(archive, name, b"", **facts)
    bundle = read_bundle(path)
    with pytest.raises(InputError, match="such a file is no part of a bundle"):
        unpack(path, bundle, tmp_path / "target", bundle.digests)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    bundle = read_bundle(path)
    unpack(path, bundle, tmp_path / "good", bundle.digests)
    assert digest_files(tmp_path / "good", ["artifacts"]) == bundle.digests
    content = path.read_bytes()
    damaged = content.replace(
        b"artifacts/pretrained/gpt/0/weights" + bytes(478),
        b"artifacts/pretrained/gpt/0/weighty" + bytes(478),
    )
    assert damaged != content
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="its bytes are not those that were packed"):
        unpack(path, bundle, tmp_path / "target", bundle.digests)
    path.write_bytes(content[: content.rindex(b"artifacts/pretrained")])
    with pytest.raises(InputError, match="not a bundle, or cut short"):
        unpack(path, bundle, tmp_path / "target", bundle.digests)
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="not a bundle"):
        read_bundle(path)
    with pytest.raises(InputError, match="there is no such file"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"command": "sh -c 'echo $HOME'"},
        {"command": "python -m stages.sources"},
        {"command": "python -m stages.pretrain ../../gpt 0"},
        {"command": "python -m stages.pretrain .. 0"},
        {"stage": "sources", "command": "python -m stages.sources"},
        {"environment": {"PYTHONPATH": "/somewhere"}},
        {"files": {"torch.py": "print()"}},
    ],
)
def test_a_bundle_runs_nothing_but_stages_of_the_package(
    changes: dict[str, object], tmp_path: Path
) -> None:
    path = make_file(tmp_path)
    (stage,) = read_bundle(path).stages
    check_stage(path, stage)
    with pytest.raises(InputError, match="no stage of lineage has it; refused"):
        check_stage(path, replace(stage, **changes))  # type: ignore[arg-type]


def test_the_files_of_a_finished_stage_are_checked_before_anything_is_written(
    tmp_path: Path,
) -> None:
    def change(bundle: Bundle) -> Bundle:
        (first,) = bundle.stages
        evil = {"../../../../evil.txt": "evil", "torch.py": "print()"}
        right = {"code_digest": package_digest()}
        first = replace(first, **right, files={**first.files, **evil})
        second = replace(
            bundle.stages[0],
            **right,
            stage="pretrain@gpt-1",
            command="python -m stages.pretrain gpt 1",
            outputs=("artifacts/pretrained/gpt/1",),
        )
        return replace(bundle, stages=(first, second))

    path = make_file(tmp_path, change)
    code, printed = run_elsewhere(tmp_path, str(path), "-o", "out.tar")
    assert code == 2, printed
    assert re.search(r"pretrain@gpt-0: \S+: no stage of lineage has it; refused\n$", printed)
    assert not (tmp_path / "out.tar").exists()
    assert not [*tmp_path.rglob("evil.txt"), *tmp_path.rglob("torch.py")]


@pytest.mark.parametrize("key", ["files", "environment"])
def test_a_stage_without_what_it_needs_is_refused(key: str, tmp_path: Path) -> None:
    path = make_file(tmp_path)
    (stage,) = read_bundle(path).stages
    with pytest.raises(InputError, match=f"{INDEX_FILE} lacks its .+; copy the file again"):
        check_stage(path, replace(stage, **{key: {}}))  # type: ignore[arg-type]


def test_other_code_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = make_file(tmp_path, lambda bundle: replace(bundle, finished=(), results={}))
    code, printed = run_elsewhere(tmp_path, str(path), "-o", "out.tar")
    assert code == 2
    assert re.fullmatch(
        r"this machine's lineage \S+ has other code than the one that runs the study; install here "
        r"the lineage of the study, 0\.0\n",
        printed,
    )
    assert not (tmp_path / "out.tar").exists()
    assert not (tmp_path / "scratch").exists()
