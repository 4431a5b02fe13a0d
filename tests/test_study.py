"""A study is a folder that can be created, opened, checked and committed."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.addresses import running_port
from flows.package_data import package_file
from flows.plan import (
    GraphError,
    RemoteStore,
    check_remote_access,
    drop_default_remote,
    read_default_remote,
    read_graph,
    set_cache_folder,
    set_default_remote,
)
from flows.run import RunOptions, interrupt_on_signals
from flows.servers import start_prefect, stop_all
from flows.study import (
    check_can_commit,
    commit_results,
    create_study,
    hold_run_lock,
    is_running,
    open_study,
    prepare_remote,
    run_lock_path,
)
from flows.view import describe_changed_params, print_status
from lineage.config.records import read_yaml
from lineage.errors import InputError
from lineage.runtime.provenance import StudyVersion, find_study_version
from tests.helpers.checkout import IDENTITY, ROOT, run_command
from tests.helpers.user_project import write_params

DEMO_PARAMS = (ROOT / "params.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def created_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("created") / "tickets"
    create_study(folder, DEMO_PARAMS)
    return folder


@pytest.fixture
def study(created_study: Path, tmp_path: Path) -> Path:
    """A study that a test may change."""
    return Path(shutil.copytree(created_study, tmp_path / "tickets", symlinks=True))


def git(folder: Path, *words: str) -> str:
    completed = subprocess.run(
        ["git", *IDENTITY, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return completed.stdout.strip()


def test_a_created_study_has_its_graph_and_needs_no_git(study: Path) -> None:
    assert {path.name for path in study.iterdir()} == {
        ".dvc",
        ".dvcignore",
        ".gitignore",
        "dvc.yaml",
        "params.yaml",
        "reports",
    }
    assert open_study(study) == study
    assert find_study_version(study) == StudyVersion("none", ())
    assert "pretrain@gpt-0" in {node.name for node in read_graph(study)}


def test_studies_can_share_a_cache(tmp_path: Path) -> None:
    create_study(tmp_path / "a", DEMO_PARAMS, cache=tmp_path / "cache")
    assert str(tmp_path / "cache") in run_command(tmp_path / "a", "dvc", "cache", "dir")


# Neither Python nor the locale takes letters beyond ASCII. Python itself would switch to UTF-8.
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_path_may_have_any_letters_in_any_locale(tmp_path: Path) -> None:
    words = ("lineage", "init", "stüdy", "--from", "smoke", "--cache", "c_äche")
    run_command(tmp_path, *words, **ASCII_ONLY)
    study = tmp_path / "stüdy"
    settings = (study / ".dvc" / "config.local").read_text(encoding="utf-8")
    assert str(tmp_path / "c_äche") in settings
    assert str(tmp_path / "c_äche") in run_command(study, "dvc", "cache", "dir")
    planned = run_command(study, "lineage", "plan", **ASCII_ONLY)
    assert "run   sources always runs" in planned and "never run" in planned


def test_the_remote_of_workers_leaves_the_users_own_settings(tmp_path: Path) -> None:
    study = tmp_path / "stüdy"
    create_study(study, DEMO_PARAMS)
    settings = study / ".dvc" / "config.local"
    settings.write_text("['remote \"own\"']\n    url = ssh://host/x\n    password = geheim\n")
    settings.chmod(0o600)
    prepare_remote(study)
    assert "password = geheim" in settings.read_text(encoding="utf-8")
    assert str(study / ".lineage" / "remote") in settings.read_text(encoding="utf-8")
    assert settings.stat().st_mode & 0o777 == 0o600


def test_settings_of_dvc_that_cannot_be_written_stay(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = study / ".dvc" / "config.local"
    settings.write_text("[core]\n    analytics = false\n")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("configobj.ConfigObj.write", fail)
    with pytest.raises(OSError, match="No space"):
        prepare_remote(study)
    assert settings.read_text() == "[core]\n    analytics = false\n"


def test_init_removes_what_a_killed_init_has_left(tmp_path: Path) -> None:
    """A process is killed while its study is half written."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import flows.study\n"
        "flows.study.init_dvc = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "flows.study.create_study(Path('killed'), '')\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left_behind,) = tmp_path.iterdir()
    assert (left_behind / "study" / "params.yaml").is_file()
    create_study(tmp_path / "another", DEMO_PARAMS)
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


DAMAGED_FILES = {
    "empty": b"",
    "binary": bytes(range(128, 256)),
    "zeros": bytes(500),
    "list": b"[1, 2]\n",
    "number": b"7\n",
    "other keys": b'{"a": 1}\n',
    "empty values": b'{"stages": null, "schema": "2.0", "outcomes": null, "pid": null}\n',
    "a process that is gone": b'{"pid": 999999999, "port": 4200}\n',
    "cut short": b'{"stages": {"report": {"cmd": "py',
    "zeros in an entry": b"schema: '2.0'\nstages:\n  report:\n    cmd: \0\0\n",
}


@pytest.mark.parametrize("content", DAMAGED_FILES)
def test_damaged_records_are_named_and_servers_end_without_theirs(
    content: str, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (study / "dvc.lock").write_bytes(DAMAGED_FILES[content])
    with pytest.raises(InputError, match=r"dvc\.lock'?\b.*: get it back from git, or remove it"):
        read_graph(study)
    record = study / ".lineage" / "run.json"
    record.parent.mkdir()
    record.write_bytes(DAMAGED_FILES[content])
    with pytest.raises(InputError, match=r"run\.json: it is damaged .*; remove it, and the next"):
        print_status(study)
    entry = study / ".lineage" / "servers" / "prefect.json"
    entry.parent.mkdir()
    entry.write_bytes(DAMAGED_FILES[content])
    assert running_port(study, "prefect") is None
    monkeypatch.chdir(study)
    stop_all(study)


def test_a_report_of_other_parameters_says_so(study: Path) -> None:
    reported = study / "reports" / "evidence" / "params.yaml"
    assert describe_changed_params(study) == "", "there is no report"
    reported.parent.mkdir(parents=True)
    shutil.copyfile(study / "params.yaml", reported)
    assert describe_changed_params(study) == ""
    reported.write_text("seed: 2\n")
    assert describe_changed_params(study).startswith("params.yaml has changed since this report;")


def test_publish_without_mlflow_says_so_in_one_sentence(study: Path, tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text("raise ImportError('it is broken')\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    printed = run_command(study, sys.executable, "-m", "stages.publish", code=2, PYTHONPATH=path)
    assert printed.startswith("publish: MLflow cannot be imported (it is broken); install it again")
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("content", ["a folder with a file", "a file"])
def test_a_folder_that_is_not_empty_is_refused_and_nothing_is_written(
    content: str, tmp_path: Path
) -> None:
    folder = tmp_path / "tickets"
    if content == "a file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already and is not empty; name a new folder"):
        create_study(folder, DEMO_PARAMS)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [
        "tickets" if content == "a file" else "mine.txt"
    ]


def test_the_current_folder_may_become_a_study_if_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create_study(Path(), DEMO_PARAMS)
    assert Path("dvc.yaml").is_file(), "the folder is the one in which the shell is"
    assert find_study_version(open_study(Path())).commit == "none"
    with pytest.raises(InputError, match="exists already and is not empty"):
        create_study(Path(), DEMO_PARAMS)


def test_a_folder_without_params_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no study is here.*`lineage init`"):
        open_study(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_what_the_package_knows_is_added_again(study: Path) -> None:
    (study / "dvc.yaml").unlink()
    shutil.rmtree(study / ".dvc")
    open_study(study)
    assert (study / "dvc.yaml").read_bytes() == package_file("dvc.yaml").read_bytes()
    assert "pretrain@gpt-0" in {node.name for node in read_graph(study)}


def test_an_edited_graph_is_refused_but_pools_and_time_limits_may_change(study: Path) -> None:
    graph = study / "dvc.yaml"
    text = graph.read_text()
    graph.write_text(text.replace("pool: gpu, timeout_s: 604800", "pool: cpu, timeout_s: 60"))
    assert graph.read_text() != text
    open_study(study)
    graph.write_text(text.replace("always_changed: true", "always_changed: false", 1))
    with pytest.raises(InputError, match=r"it was edited, or the study was made by another ver"):
        open_study(study)


@pytest.mark.parametrize("value", [None, 0, "gpt", [""]])
def test_values_that_break_dvc_raise_a_graph_error(value: object, study: Path) -> None:
    tree = read_yaml(study / "params.yaml")
    write_params(study, tree | {"grid": tree["grid"] | {"models": value}})
    with pytest.raises(GraphError):
        read_graph(study)


def test_a_missing_list_of_the_grid_is_named(study: Path) -> None:
    tree = read_yaml(study / "params.yaml")
    del tree["grid"]["target_only_models"]
    write_params(study, tree)
    message = "grid.target_only_models is missing; add it, such as target_only_models: "
    with pytest.raises(GraphError, match=message):
        read_graph(study)


def test_only_one_run_holds_a_study(study: Path) -> None:
    assert not is_running(study)
    with hold_run_lock(study):
        assert is_running(study)
        # The time of the lock tells `lineage status` when the run began.
        os.utime(run_lock_path(study), (1.0, 1.0))
        with pytest.raises(InputError, match="another run of this study is under way"):
            hold_run_lock(study).__enter__()
        assert run_lock_path(study).stat().st_mtime == 1.0
    assert not is_running(study)
    begun_at = time.time()
    with hold_run_lock(study):
        assert run_lock_path(study).stat().st_mtime > begun_at - 60


def test_the_version_of_a_study_is_its_commit_and_what_changed_since(study: Path) -> None:
    git(study, "init", "--quiet")
    git(study, "add", "--all")
    git(study, "commit", "--quiet", "--message", "a study")
    commit = git(study, "rev-parse", "HEAD")
    (study / "dvc.lock").write_text("")
    (study / "reports" / "comparison.md").write_text("")
    assert find_study_version(open_study(study)) == StudyVersion(commit, ()), (
        "a run writes these files"
    )
    with (study / "params.yaml").open("a") as stream:
        stream.write("# a change\n")
    assert find_study_version(open_study(study)) == StudyVersion(commit, ("params.yaml",))


def test_dvc_uses_git_once_the_study_lies_in_a_git_repository(study: Path) -> None:
    refusal = run_command(study, "dvc", "metrics", "diff", code=255)
    assert "Only supported for Git repositories" in refusal
    git(study, "init", "--quiet")
    open_study(study)
    git(study, "add", "--all")
    git(study, "commit", "--quiet", "--message", "a study")
    run_command(study, "dvc", "metrics", "diff")
    create_study(study / "inner", DEMO_PARAMS)
    assert "no_scm = False" in (study / "inner/.dvc/config").read_text()
    shutil.rmtree(study / ".git")
    open_study(study)
    run_command(study, "dvc", "status", "-q", code=1)  # nothing has run yet


def test_results_are_committed_without_other_changes(study: Path) -> None:
    with pytest.raises(InputError, match="is not in a git repository; run `git init`"):
        check_can_commit(study)
    git(study, "init", "--quiet")
    check_can_commit(study)
    hook = study / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 3\n")
    hook.chmod(0o755)
    (study / "reports" / "comparison.md").write_text("the report")
    (study / "reports" / "results.csv").write_text("DVC stores it")
    (study / "notes.txt").write_text("staged by the user")
    git(study, "add", "notes.txt")
    commit_results(study, "Results")
    assert git(study, "show", "--name-only", "--format=%s").split() == [
        "Results",
        ".dvc/config",
        ".dvcignore",
        ".gitignore",
        "dvc.yaml",
        "params.yaml",
        "reports/comparison.md",
    ]
    assert git(study, "diff", "--cached", "--name-only") == "notes.txt"
    before = git(study, "rev-parse", "HEAD")
    (study / "reports" / "comparison.md").write_text("the report, written again at another time")
    commit_results(study, "Results")
    assert git(study, "rev-parse", "HEAD") == before, "no result has changed"


def test_remotes_travel_with_their_settings_and_without_secrets(study: Path) -> None:
    settings = {
        "url": "s3://bucket/lineage",
        "endpointurl": "http://127.0.0.1:9000",
        "region": "eu-central-1",
        "profile": "research",
        "sse_kms_key_id": "a key's name",
        "access_key_id": "who",
        "secret_access_key": "hidden",
        "session_token": "hidden",
        "credentialpath": "/home/me/keys",
    }
    run_command(study, "dvc", "remote", "add", "-d", "store", settings["url"])
    # As `dvc remote modify` writes them, below the url.
    lines = [f"    {name} = {value}\n" for name, value in settings.items() if name != "url"]
    with (study / ".dvc" / "config").open("a") as stream:
        stream.writelines(lines)
    remote = read_default_remote(study)
    assert remote is not None and remote.name == "store"
    kept = ("url", "endpointurl", "region", "profile", "sse_kms_key_id")
    assert {key: remote.settings[key] for key in kept} == {key: settings[key] for key in kept}
    assert not {*settings} - {*kept} & {*remote.settings}
    assert "hidden" not in str(remote) and "who" not in str(remote)
    run_command(study, "dvc", "remote", "add", "-d", "other", "ssh://me:hidden@host/lineage")
    remote = read_default_remote(study)
    assert remote is not None and remote.settings["url"] == "ssh://me@host/lineage"


def test_a_password_in_local_settings_that_dvc_wrote_stays_where_it_is(study: Path) -> None:
    run_command(study, "dvc", "remote", "add", "-d", "store", "ssh://me@host/lineage")
    run_command(study, "dvc", "remote", "modify", "--local", "store", "password", "hidden")
    set_cache_folder(study, study.parent / "shared-cache")  # writes into the same file
    remote = read_default_remote(study)
    assert remote is not None and "password" not in remote.settings
    assert "hidden" in (study / ".dvc/config.local").read_text()
    assert "hidden" in run_command(study, "dvc", "config", "remote.store.password")
    run_command(study, "git", "init", "--quiet")
    run_command(study, "git", "add", ".")
    assert "config.local" not in run_command(study, "git", "ls-files")


def test_a_remote_for_workers_on_this_machine_gives_way_to_one_of_the_user(study: Path) -> None:
    prepare_remote(study)
    remote = read_default_remote(study)
    assert remote is not None and remote.settings["url"] == str(study / ".lineage" / "remote")
    run_command(study, "dvc", "remote", "add", "-d", "store", str(study.parent / "store"))
    prepare_remote(study)
    remote = read_default_remote(study)
    assert remote is not None and remote.settings["url"] == str(study.parent / "store")
    drop_default_remote(study, "workers")
    assert "store" in run_command(study, "dvc", "remote", "list")


def test_a_remote_that_cannot_be_written_to_is_refused(study: Path) -> None:
    (study / "file").write_text("")
    set_default_remote(study, RemoteStore("store", {"url": str(study / "file" / "store")}))
    with pytest.raises(InputError, match=r"cannot be written to: .*; check its set"):
        check_remote_access(study)


def test_a_default_remote_without_settings_is_refused(study: Path) -> None:
    run_command(study, "dvc", "config", "core.remote", "store")
    with pytest.raises(InputError, match="the default remote 'store' is not configured"):
        read_default_remote(study)


def test_a_number_of_jobs_below_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--jobs: 0 is not a number of stages"):
        RunOptions(jobs=0)


def test_an_ignored_hangup_signal_stays_ignored() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        for handler_before in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGHUP, handler_before)
            interrupt_on_signals()
            assert (signal.getsignal(signal.SIGHUP) is handler_before) == (
                handler_before is signal.SIG_IGN
            )
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("port", ["abc", "70000", "-1", "0"])
def test_an_invalid_port_is_refused(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_PREFECT_PORT", port)
    with pytest.raises(
        InputError,
        match=f"LINEAGE_PREFECT_PORT: '{port}' is not a port; give a number from 1 to 65535",
    ):
        start_prefect(tmp_path)
