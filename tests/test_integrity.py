"""Damaged files of the cache and the workspace are found, and made again."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.execute import StageContext, StageResult
from flows.integrity import remove_damaged_outputs
from flows.plan import StageNode, init_dvc
from flows.runner import make_runner
from lineage.artifacts import check_intact, create_artifact
from lineage.errors import DamagedError, InputError
from lineage.runtime.integrity import check_outputs, check_result_files
from tests.helpers.checkout import RUN_STUDY, run_command, set_params, stage_outcomes
from tests.helpers.rot import cache_copy, flip_bit
from tests.helpers.toy_project import Project, copy_project, make_project, read_dvc_lock

WEIGHTS = "artifacts/pretrained/gpt/0/model.safetensors"


@pytest.fixture(scope="module")
def finished_toy(
    finished_toy_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Project:
    """A project of toy stages after a run."""
    return copy_project(finished_toy_project, tmp_path_factory.mktemp("toy"))


def lock_digest(project: Project, stage: str) -> str:
    """Return the MD5 that dvc.lock has for a stage's first output."""
    return str(read_dvc_lock(project.root)["stages"][stage]["outs"][0]["md5"])


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_a_file_that_rots_in_the_cache_is_made_again_when_it_is_restored(
    finished_toy: Project,
) -> None:
    made = finished_toy.root / "artifacts/made/a"
    digest = lock_digest(finished_toy, "make@a")
    flip_bit(cache_copy(finished_toy.root, digest))
    made.unlink()
    finished_toy.stages_run()
    completed = finished_toy.run("run", "--no-prefect")
    assert completed.returncode == 0
    assert md5(made) == md5(cache_copy(finished_toy.root, digest)) == digest
    assert finished_toy.stages_run() == ["make@a", "publish", "sources"]
    (line,) = completed.stderr.strip().splitlines()
    assert line.startswith("make@a: artifacts/made/a was damaged on the disk")


def test_a_file_that_rots_in_the_study_is_restored_from_the_cache(finished_toy: Project) -> None:
    made = finished_toy.root / "artifacts/made/a"
    flip_bit(made)
    finished_toy.stages_run()
    completed = finished_toy.run("run", "--no-prefect")
    assert completed.returncode == 0
    assert md5(made) == lock_digest(finished_toy, "make@a")
    assert finished_toy.stages_run() == ["publish", "sources"]
    assert stage_outcomes(completed.stdout)["make@a"] == "cached"
    assert completed.stderr.count("\n") == 1 and "make@a: artifacts/made/a" in completed.stderr


@pytest.mark.slow
def test_an_intact_file_of_the_remote_replaces_a_damaged_one(tmp_path: Path) -> None:
    """The second time, the file of the remote is damaged too, and the stage runs again."""
    project = make_project(tmp_path)
    remote = tmp_path / "remote"
    dvc = (sys.executable, "-m", "dvc", "--cd", str(project.root))
    subprocess.run([*dvc, "remote", "add", "-q", "-d", "store", str(remote)], check=True)
    assert project.run("run", "--no-prefect").returncode == 0
    subprocess.run([*dvc, "push", "-q"], check=True)
    project.stages_run()
    made = project.root / "artifacts/made/a"
    digest = lock_digest(project, "make@a")
    for ran in ([], ["make@a"]):
        flip_bit(cache_copy(project.root, digest))
        made.unlink()
        completed = project.run("run", "--no-prefect")
        assert completed.returncode == 0 and completed.stderr.count("\n") == 1
        assert md5(made) == md5(cache_copy(project.root, digest)) == digest
        assert project.stages_run() == [*ran, "publish", "sources"]
        flip_bit(remote / "files/md5" / digest[:2] / digest[2:])


def test_a_run_without_damage_says_nothing(finished_toy: Project) -> None:
    completed = finished_toy.run("run", "--no-prefect")
    assert completed.stderr == ""


def store_folder(root: Path, files: dict[str, str]) -> str:
    """Write an output, its copies in the cache and its entry in dvc.lock; return its digest."""
    listing = []
    for name, text in files.items():
        path = root / "artifacts/out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        copy = cache_copy(root, md5(path))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
        listing.append({"md5": md5(path), "relpath": name})
    content = json.dumps(listing, sort_keys=True).encode()
    digest = hashlib.md5(content).hexdigest()
    cache_copy(root, digest).parent.mkdir(parents=True, exist_ok=True)
    cache_copy(root, f"{digest}.dir").write_bytes(content)
    (root / "dvc.lock").write_text(
        "stages:\n  make:\n    outs:\n    - path: artifacts/out\n      hash: md5\n"
        f"      md5: {digest}.dir\n"
    )
    return digest


def test_a_result_that_always_comes_damaged_from_the_remote_is_refused(tmp_path: Path) -> None:
    init_dvc(tmp_path)
    (tmp_path / "params.yaml").write_text("threads: 1\n")
    made = tmp_path / "artifacts/out/a"
    node = StageNode("make", "", (), "cpu", 60, False, 1)
    pulls = []

    def pull_damaged(node: StageNode, context: StageContext) -> StageResult:
        store_folder(tmp_path, {"a": "one"})
        flip_bit(made)
        flip_bit(cache_copy(tmp_path, hashlib.md5(b"one").hexdigest()))
        pulls.append(node.name)
        return StageResult(node.name, "cached")

    result = make_runner(
        StageContext(tmp_path), 1, tmp_path / ".dvc/cache/files/md5", pull_damaged
    )(node)
    assert (result.outcome, result.exit_status, len(pulls)) == ("failed", 2, 3)
    assert "make: artifacts/out came damaged from the DVC remote" in result.message
    assert not made.exists()


def remove_damaged(root: Path, *, check_cache: bool = False) -> dict[str, list[str]]:
    """Remove the damaged outputs of the stage make, and return their names."""
    cache = root / ".dvc/cache/files/md5"
    return remove_damaged_outputs(root, cache, {"make": ()}, check_cache=check_cache)


@pytest.mark.parametrize("check_cache", [True, False])
def test_a_copy_in_the_cache_is_replaced_by_the_intact_file_if_it_is_read(
    check_cache: bool, tmp_path: Path
) -> None:
    store_folder(tmp_path, {"a": "one", "b/c": "two"})
    copy = cache_copy(tmp_path, md5(tmp_path / "artifacts/out/b/c"))
    flip_bit(copy)
    damaged = remove_damaged(tmp_path, check_cache=check_cache)
    assert damaged == {}, "the study has the right file"
    assert (copy.read_text() == "two") == check_cache


def test_only_the_damaged_file_of_a_folder_is_removed(tmp_path: Path) -> None:
    store_folder(tmp_path, {"a": "one", "b/c": "two"})
    flip_bit(tmp_path / "artifacts/out/b/c")
    damaged = remove_damaged(tmp_path)
    assert damaged == {"make": ["artifacts/out"]}
    assert (tmp_path / "artifacts/out/a").read_text() == "one"
    assert not (tmp_path / "artifacts/out/b/c").exists()


def test_a_damaged_listing_is_written_again_from_an_intact_folder(tmp_path: Path) -> None:
    digest = store_folder(tmp_path, {"a": "one", "b/c": "two"})
    listing = cache_copy(tmp_path, f"{digest}.dir")
    before = listing.read_bytes()
    flip_bit(listing)
    assert remove_damaged(tmp_path) == {}
    assert listing.read_bytes() == before
    flip_bit(listing)
    flip_bit(tmp_path / "artifacts/out/a")
    damaged = remove_damaged(tmp_path)
    assert damaged == {"make": ["artifacts/out"]}
    assert not (tmp_path / "artifacts/out").exists(), "nothing tells which of its files are right"


def test_an_output_that_dvc_itself_finds_changed_is_left_alone(tmp_path: Path) -> None:
    """Its stage may be running."""
    store_folder(tmp_path, {"a": "one"})
    flip_bit(tmp_path / "artifacts/out/a")
    reasons = {"make": ("output artifacts/out modified",)}
    assert remove_damaged_outputs(tmp_path, tmp_path / "none", reasons, check_cache=False) == {}
    assert (tmp_path / "artifacts/out/a").exists()


def test_a_damaged_artifact_is_refused_with_the_command_that_repairs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("artifacts/tokens/gpt")
    with create_artifact(folder, "tokens") as draft:
        (draft / "ids").write_text("1 2 3")
        (draft / "other").mkdir()
        (draft / "other/ids").write_text("4 5 6")
    lock = {"tokenizer@gpt": {"outs": [{"path": str(folder), "hash": "md5", "md5": "x.dir"}]}}
    check_intact(folder)
    check_outputs(lock, ["tokenizer@gpt", "another"])
    flip_bit(folder / "other/ids")
    check_intact(folder, "ids")
    for check in (lambda: check_intact(folder), lambda: check_outputs(lock, ["tokenizer@gpt"])):
        with pytest.raises(DamagedError, match="run `lineage run`, which removes it"):
            check()
    check_outputs(lock, ["another"])
    with pytest.raises(InputError, match="no artifact is here"):
        check_intact(Path("artifacts/tokens/bert"))


def test_a_damaged_table_of_results_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = Path("artifacts/results/rows/ngram.parquet")
    table.parent.mkdir(parents=True)
    table.write_text("a table")
    check_result_files(Path("artifacts/results"))
    entry = {"outs": [{"path": str(table), "hash": "md5", "md5": md5(table)}]}
    Path("dvc.lock").write_text(json.dumps({"stages": {"ngram": entry}}))
    check_result_files(Path("artifacts/results"))
    flip_bit(table)
    with pytest.raises(DamagedError, match=r"ngram\.parquet"):
        check_result_files(Path("artifacts/results"))
    with pytest.raises(DamagedError, match=r"ngram\.parquet"):
        check_outputs({"ngram": entry}, ["ngram"])


@pytest.mark.slow
def test_rotten_weights_are_used_by_no_stage_and_no_command(project: Path) -> None:
    """`dvc repro` and the commands refuse them, and `lineage run` makes them again."""
    run_command(project, "dvc", "status", "-q", code=1)  # DVC knows the copy of the study
    digest = md5(project / WEIGHTS)
    copy = cache_copy(project, digest)
    flip_bit(copy)
    shutil.rmtree(project / "artifacts")
    printed = run_command(project, "dvc", "repro", code=255)
    assert md5(project / WEIGHTS) != digest, "DVC has served them"
    assert "publish: artifacts/pretrained/gpt/0: it is damaged" in printed
    set_params(project, grid__finetune_seeds=[0])
    printed = run_command(project, "dvc", "repro", code=255)
    assert "mood: artifacts/pretrained/gpt/0: it is damaged" in printed, "a stage that reads them"
    (project / "new.txt").write_text("a text\n")
    embed = ("lineage", "embed", "--model", "gpt", "new.txt", "-o", "new.parquet")
    assert "it is damaged" in run_command(project, *embed, code=2)
    printed = run_command(project, *RUN_STUDY)
    assert "pretrain@gpt-0: artifacts/pretrained/gpt/0 was damaged on the disk" in printed
    assert md5(project / WEIGHTS) == md5(copy) == digest
    run_command(project, *embed)
    (system_file,) = (project / "artifacts/systems/baselines-mood").glob("all-*/*.safetensors")
    flip_bit(system_file)
    predict = ("lineage", "predict", "--task", "mood", "--system", "tfidf", "new.csv")
    (project / "new.csv").write_text("review\na good film\n")
    printed = run_command(project, *predict, "-o", "labelled.csv", code=2)
    assert "artifacts/systems/baselines-mood: it is damaged" in printed
