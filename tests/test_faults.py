"""The machine runs out of something, its clock jumps, its disk is slow, or its power is cut.

After each fault the same command gives the results of an undisturbed run. A stage that had to stop
says why in one sentence.
"""

import errno
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from flows.execute import EXIT_SHORTAGE
from flows.integrity import remove_cut_records
from lineage.errors import describe_shortage
from lineage.runtime import stage
from tests.helpers import faults
from tests.helpers.checkout import ROOT, run_command, stage_outcomes
from tests.helpers.kills import create_small_study
from tests.helpers.toy_project import make_project

FREE_BYTES = 2_000_000  # that a stage whose memory runs out may still take
MEMORY_SENTENCE = (
    "the memory is full; free some, or run one stage at a time with --jobs 1, and the same "
    "command goes on where it was"
)
FILES_SENTENCE = (
    "too many files are open; raise the limit (`ulimit -n 4096`), and the same command goes on "
    "where it was"
)
THREADS_SENTENCE = (
    "no further thread can be started; free memory, or raise the limit (`ulimit -u`), and the "
    "same command goes on where it was"
)
DISK_SENTENCE = "the disk is full; free some space, and the same command goes on where it was"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The results of a run that nothing disturbs."""
    study = create_small_study(tmp_path_factory.mktemp("undisturbed") / "study")
    finish(study)
    return faults.digest_results(study)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A small study that has never run."""
    return create_small_study(tmp_path / "study")


def finish(study: Path, **environment: str) -> str:
    """Run a study, which must end well, and return what it printed."""
    run = faults.start_run(study, **environment)
    printed, _ = run.communicate()
    assert run.returncode == 0, printed
    assert "Traceback" not in printed
    return printed


def read_failure(run: "subprocess.Popen[str]", stage: str) -> str:
    """Return what a run printed about its only failed stage, without the stage's name."""
    printed, _ = run.communicate()
    assert run.returncode == 1, printed
    assert "Traceback" not in printed
    outcomes = stage_outcomes(printed)
    assert [name for name, outcome in outcomes.items() if outcome == "failed"] == [stage]
    (message,) = {
        line.partition(f"{stage}: ")[2] for line in printed.splitlines() if f"{stage}: " in line
    }
    return message


@pytest.mark.slow
def test_a_training_whose_memory_runs_out_says_so_and_is_made_by_the_next_run(
    study: Path, expected: dict[str, str]
) -> None:
    run = faults.start_run(study)
    process = faults.find_stage(study, "pretrain-gpt-0", run)
    limit = process.memory_info().vms + FREE_BYTES
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
    assert read_failure(run, "pretrain@gpt-0") == MEMORY_SENTENCE
    finish(study)
    assert faults.digest_results(study) == expected


@pytest.mark.slow
def test_a_run_and_a_stage_without_free_file_descriptors_say_so(
    study: Path, expected: dict[str, str]
) -> None:
    run = faults.start_run(study, prepare=lambda: limit_files(12))
    printed, _ = run.communicate()
    assert (run.returncode, printed.splitlines()[-1]) == (1, FILES_SENTENCE)
    assert "Traceback" not in printed
    run = faults.start_run(study)
    process = faults.find_stage(study, "pretrain-gpt-0", run)
    limit = 1 + max(int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir())
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    assert read_failure(run, "pretrain@gpt-0") == FILES_SENTENCE
    finish(study)
    assert faults.digest_results(study) == expected


def limit_files(number: int) -> None:
    """Let this process, and those that it starts, open so many files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


@pytest.mark.slow
def test_a_clock_that_jumps_back_an_hour_changes_no_result(
    study: Path, expected: dict[str, str]
) -> None:
    """It jumps during pretraining: all files that the run has written are from the future then."""
    mark = study.parent / "jump"
    shim = faults.write_shim(study.parent / "shim", faults.CLOCK_SHIM)
    environment = {**shim, "CLOCK_JUMP": str(mark), **faults.MANY_CHECKPOINTS}
    run = faults.start_run(study, **environment)
    faults.wait_until((study / ".lineage/resume/pretrain-gpt-0").exists, run)
    mark.touch()
    faults.move_to_future(study, seconds=3600)
    printed, _ = run.communicate()
    assert run.returncode == 0, printed
    assert faults.digest_results(study) == expected
    again = stage_outcomes(finish(study, **environment))
    assert [name for name, outcome in again.items() if outcome == "ran"] == ["sources", "publish"]
    assert faults.digest_results(study) == expected


@pytest.mark.slow
def test_a_slow_disk_costs_only_time(study: Path, expected: dict[str, str]) -> None:
    printed = finish(study, **faults.write_shim(study.parent / "shim", faults.SLOW_DISK_SHIM))
    assert set(stage_outcomes(printed).values()) == {"ran"}
    assert faults.digest_results(study) == expected


def pretraining_is_saved(study: Path) -> bool:
    return (study / ".lineage/resume/pretrain-gpt-0").exists()


def pretraining_has_ended(study: Path) -> bool:
    lock = study / "dvc.lock"
    return lock.exists() and "pretrain@gpt-0:" in lock.read_text()


def evaluation_is_saved(study: Path) -> bool:
    return (study / ".lineage/resume/evaluate-gpt-0-mood").exists()


def report_is_written(study: Path) -> bool:
    return (study / "reports/comparison.html").exists()


MOMENTS = (pretraining_is_saved, pretraining_has_ended, evaluation_is_saved, report_is_written)


@pytest.mark.slow
def test_a_power_cut_costs_only_time(study: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    """Files that were not flushed are empty afterwards, or cut.

    The run goes on after each moment: what a power cut would have left then is a copy.
    """
    log = tmp_path / "flushed"
    faults.note_all_flushed(study, log)
    shim = faults.write_shim(tmp_path / "shim", faults.FLUSH_SHIM)
    run = faults.start_run(study, **shim, **faults.MANY_CHECKPOINTS, FLUSH_LOG=str(log))
    copies: list[Path] = []
    for moment in MOMENTS:
        faults.wait_until(partial(moment, study), run)
        count_kept = faults.empty if len(copies) % 2 else faults.cut_last_page
        with faults.stop_all_processes(study, run):
            copy, lost = faults.copy_after_power_cut(
                study, tmp_path / moment.__name__, log, count_kept
            )
        assert any(name.startswith(".dvc/cache/runs/") for name in lost), lost
        assert "dvc.lock" not in lost
        copies.append(copy)
    printed, _ = run.communicate()
    assert run.returncode == 0, printed
    copies.append(faults.copy_after_power_cut(study, tmp_path / "end", log, faults.halve)[0])
    for copy in copies:
        finish(copy)
        assert faults.digest_results(copy) == expected


LIMITED = """
import resource
{imports}
from lineage.errors import describe_shortage
resource.setrlimit(resource.{limit})
try:
    {statement}
except Exception as error:
    print(describe_shortage(error))
"""
MEMORY_LIMIT = "RLIMIT_AS, (4 * 10**9, 4 * 10**9)"
SHORTAGES = {
    "bytearray": ("", MEMORY_LIMIT, "bytearray(10**10)", MEMORY_SENTENCE),
    "numpy": ("import numpy", MEMORY_LIMIT, "numpy.ones(10**10)", MEMORY_SENTENCE),
    "torch": ("import torch", MEMORY_LIMIT, "torch.ones(10**10)", MEMORY_SENTENCE),
    "pyarrow": ("import pyarrow", MEMORY_LIMIT, "pyarrow.allocate_buffer(10**10)", MEMORY_SENTENCE),
    "a thread": (
        "import threading",
        "RLIMIT_AS, (10**6, 10**6)",
        "threading.Thread(target=print).start()",
        THREADS_SENTENCE,
    ),
    "a process": (
        "import subprocess, sys",
        "RLIMIT_NOFILE, (3, 3)",
        "subprocess.run([sys.executable, '-V'], stdout=subprocess.PIPE)",
        FILES_SENTENCE,
    ),
    "a file": ("", "RLIMIT_NOFILE, (3, 3)", "open('/dev/null')", FILES_SENTENCE),
}


@pytest.mark.parametrize("name", SHORTAGES)
def test_a_process_that_runs_out_of_something_says_of_what(name: str) -> None:
    imports, limit, statement, sentence = SHORTAGES[name]
    script = LIMITED.format(imports=imports, limit=limit, statement=statement)
    assert run_command(ROOT, sys.executable, "-c", script).strip() == sentence


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DISK_SENTENCE),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DISK_SENTENCE),
        (OSError(errno.ENFILE, "Too many open files in system"), FILES_SENTENCE),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), MEMORY_SENTENCE),
        # torch.OutOfMemoryError, of a GPU, is a RuntimeError with this text.
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."), MEMORY_SENTENCE),
        (OSError(errno.EACCES, "Permission denied"), None),
        (ValueError("the moon was full"), None),
    ],
)
def test_only_a_shortage_is_called_one(error: Exception, sentence: str | None) -> None:
    assert describe_shortage(error) == sentence


def test_a_stage_that_runs_out_of_something_ends_with_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traceback is in its log, and the last line is the sentence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stages/ngram.py"])

    def work(current_stage: stage.Stage) -> None:
        raise MemoryError

    with pytest.raises(SystemExit) as raised:
        stage.run_stage("ngram", work)
    assert raised.value.code == EXIT_SHORTAGE == stage.EXIT_SHORTAGE == 4
    *traceback, sentence = capsys.readouterr().err.strip().splitlines()
    assert sentence == f"ngram: {MEMORY_SENTENCE}"
    assert traceback[-1] == "MemoryError"


RECORD = """cmd: python -m stages.step make a
deps:
- path: artifacts/sources/a.json
  hash: md5
  md5: 8d1cfa2b1ba8fb0f4e6a4c3bb2c1e8e5
  size: 6
outs:
- path: artifacts/made/a
  hash: md5
  md5: 0f0a8c8ee7cbb1f1a2d36bba44ef1b11
  size: 6
"""


@pytest.mark.parametrize(
    ("content", "is_kept"),
    [
        (RECORD, True),
        ("", False),
        (RECORD[: RECORD.index("outs:")], False),
        (RECORD[: RECORD.index("outs:") + 3], False),
        (RECORD[: RECORD.index("0f0a8c8ee7cbb1f1a2d36bba44ef1b11") + 10], False),
        (RECORD[:-1], False),
    ],
    ids=["intact", "empty", "after the inputs", "in a name", "in a digest", "one byte"],
)
def test_a_record_of_the_run_cache_that_is_cut_is_removed(
    content: str, is_kept: bool, tmp_path: Path
) -> None:
    record = tmp_path / "runs/ab/abcd/0123"
    record.parent.mkdir(parents=True)
    record.write_text(content)
    cache = tmp_path / "files/md5"
    remove_cut_records(cache)
    assert record.exists() == is_kept


def test_a_stage_with_a_cut_record_runs_again(tmp_path: Path) -> None:
    """Without its output and its entry in dvc.lock, DVC would take it from the record."""
    project = make_project(tmp_path)
    assert project.run("run", "--no-prefect").returncode == 0
    project.stages_run()
    (project.root / "dvc.lock").unlink()
    for record in (project.root / ".dvc/cache/runs").glob("*/*/*"):
        text = record.read_text()
        record.write_text(text[: text.index("outs:")])
    completed = project.run("run", "--no-prefect")
    assert completed.returncode == 0, completed.stderr
    assert {"make@a", "make@b"} < {*project.stages_run()}


def test_the_sentence_of_a_stage_is_what_its_run_says(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    step = project.root / "stages/step.py"
    ending = f'print(f"{{name}}: {DISK_SENTENCE}", file=sys.stderr)\nsys.exit({EXIT_SHORTAGE})\n'
    step.write_text(step.read_text() + ending)
    completed = project.run("run", "--no-prefect")
    assert completed.returncode == 1
    assert f"make@a: {DISK_SENTENCE}" in completed.stderr.splitlines()
