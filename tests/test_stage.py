"""A stage records its run time over several processes, and fails if its inputs change."""

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lineage.artifacts import read_json, write_json
from lineage.errors import InputError
from lineage.runtime import code, stage
from lineage.runtime.code import code_digest
from lineage.runtime.stage import Stage
from tests.helpers.checkout import ROOT


def test_the_seconds_of_a_resumed_stage_include_saved_work_but_not_lost_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes are killed in turn, and each resumes from the last save of the one before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stages/evaluate.py", "gpt", "0", "sense"])
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "process_time", lambda: now / 2)  # the core is shared
    now, num_saved = 1000.0, 0

    def work(current_stage: Stage) -> None:
        nonlocal now, num_saved
        folder = current_stage.prepare_resume_folder({"label_count": 100})
        current_stage.load_elapsed_seconds(folder)
        while num_saved < 3:
            now += 60.0
            current_stage.save_elapsed_seconds(folder)
            num_saved += 1
            now += 7.0  # this work is lost when the process ends here
            raise KeyboardInterrupt
        now += 5.0
        current_stage.clear_resume_folder()

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            stage.run_stage("evaluate", work)
        now += 5000.0  # no process runs in this time
    with pytest.raises(SystemExit) as exit_info:
        stage.run_stage("evaluate", work)
    assert exit_info.value.code == 0
    metadata = read_json(Path(".lineage/metadata/evaluate@gpt-0-sense.json"))
    assert metadata["seconds"] == 3 * 60 + 5
    assert metadata["own_seconds"] == metadata["seconds"] / 2


def test_a_stage_that_is_told_to_end_says_by_which_signal(tmp_path: Path) -> None:
    script = (
        "import time\n"
        "from lineage.runtime.stage import run_stage\n"
        "def work(stage):\n"
        "    print('begins', flush=True)\n"
        "    time.sleep(60)\n"
        "run_stage('ngram', work)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"begins\n"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143


EDITS = {
    "params.yaml": ("params.yaml", "seed: 2\n"),
    "a comment": ("params.yaml", "seed: 1  # the first\n"),
    "code": ("code.py", "twice\n"),
    "a docstring": ("code.py", '"""Another explanation\nof what is done."""\nonce\n'),
    "the family": ("lineage/families/gpt.py", "twice\n"),
    "another family": ("lineage/families/bert.py", "twice\n"),
}


def write_source_records(root: Path) -> None:
    """Write the code files and what the sources stage recorded about them."""
    (root / "params.yaml").write_text("seed: 1\n")
    (root / "lineage/families").mkdir(parents=True)
    for name in ("code.py", "lineage/families/gpt.py", "lineage/families/bert.py"):
        (root / name).write_text('"""An explanation."""\nonce\n')
    digest = code_digest(root / "code.py")
    write_json(root / "artifacts/sources/code/pretrain.json", {"code.py": digest})
    write_json(
        root / "artifacts/sources/models/gpt.json", {"family": "gpt", "family_sha256": digest}
    )


@pytest.mark.parametrize("edited", [*EDITS, "nothing"])
@pytest.mark.parametrize("when", ["before", "during", "before the resume state is cleared"])
def test_a_stage_fails_if_its_code_changed_during_the_run(edited: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                              capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """Parameters may change: stages read the copy that the sources stage has made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "PROJECT_ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["stages/pretrain.py", "gpt", "0"])
    write_source_records(tmp_path)

    def edit() -> None:
        if edited in EDITS:
            name, text = EDITS[edited]
            Path(name).write_text(text)

    def work(current_stage: Stage) -> None:
        folder = current_stage.prepare_resume_folder({})
        if when != "before":
            edit()
        if when == "before the resume state is cleared":
            current_stage.clear_resume_folder()
        assert folder.is_dir() == (when != "before the resume state is cleared")

    if when == "before":
        edit()
    with pytest.raises(SystemExit) as exit_info:
        stage.run_stage("pretrain", work)
    is_refused = edited in ("code", "the family")
    assert exit_info.value.code == (2 if is_refused else 0)
    if is_refused:
        message = f"{EDITS[edited][0]}: changed while the run was under way; run again"
        assert message in capsys.readouterr().err
    assert Path(".lineage/metadata/pretrain@gpt-0.json").is_file() == (not is_refused)
    assert not is_refused or when == "before" or any(Path(".lineage/resume").rglob("*")), (
        "the resume state is kept"
    )


@pytest.mark.parametrize("edited", ["code", "the family", "another family"])
def test_joined_and_adapted_evaluations_check_the_code_of_evaluate(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A joined evaluation also checks the family of its static vectors, which is no argument."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "PROJECT_ROOT", tmp_path)
    write_source_records(tmp_path)
    shutil.copytree(tmp_path / "artifacts/sources/code", tmp_path / "copy")
    shutil.move(tmp_path / "copy/pretrain.json", tmp_path / "artifacts/sources/code/evaluate.json")
    digest = code_digest(tmp_path / "lineage/families/bert.py")
    write_json(
        tmp_path / "artifacts/sources/models/static.json",
        {"family": "bert", "family_sha256": digest},
    )
    joined = Stage("evaluate_joined", ("gpt", "0", "sense"))
    joined.watch_model("static")
    name, text = EDITS[edited]
    Path(name).write_text(text)
    with pytest.raises(InputError, match="changed while the run was under way"):
        joined.check_unchanged()
    adapted = Stage("evaluate_adapted", ("gpt", "0", "sense"))
    with (
        pytest.raises(InputError, match="changed while")
        if edited != "another family"
        else contextlib.nullcontext()
    ):
        adapted.check_unchanged()


@pytest.mark.parametrize(
    "content", ["5", "null", "[1]", "{}", "{", '{"made_by": "x", "digests": {"KEY": "00"}}']
)
def test_kept_digests_of_code_that_cannot_be_used_are_computed_again(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code.DIGESTS_FILE.parent.mkdir()
    module = tmp_path / "module.py"
    module.write_text('"""Say something."""\nx = 1\n')
    caches = (code._known_digests, code._cached_digest)
    for cache in caches:
        monkeypatch.setattr(code, cache.__name__, functools.cache(cache.__wrapped__))
    expected = code_digest(module)
    key = hashlib.sha256(module.read_bytes()).hexdigest()
    code.DIGESTS_FILE.write_text(content.replace("KEY", key))
    for cache in caches:
        monkeypatch.setattr(code, cache.__name__, functools.cache(cache.__wrapped__))
    assert code_digest(module) == expected
    code.keep_digests()
    assert expected in code.DIGESTS_FILE.read_text()
