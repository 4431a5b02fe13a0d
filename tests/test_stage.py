"""A stage process's side file: what a stage took, also where several processes made it, one after the other."""

import contextlib
import shutil
import sys
import time
from pathlib import Path

import pytest

from lineage.artifacts import read_json, write_json
from lineage.errors import InputError
from lineage.runtime import stage
from lineage.runtime.code import code_digest
from lineage.runtime.stage import Stage


def test_what_was_kept_of_processes_that_were_stopped_counts_and_what_was_lost_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes make one stage: each begins where the one before kept its work last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stages/evaluate.py", "gpt", "0", "sense"])
    monkeypatch.setattr(time, "monotonic", lambda: now)
    now, kept = 1000.0, 0

    def work(own: Stage) -> None:
        nonlocal now, kept
        folder = own.prepare_resume_folder({"label_count": 100})
        own.load_elapsed_seconds(folder)
        while kept < 3:
            now += 60.0
            own.save_elapsed_seconds(folder)
            kept += 1
            now += 7.0  # of what is not kept when the process ends here
            raise KeyboardInterrupt
        now += 5.0
        own.clear_resume_folder()

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            stage.run_stage("evaluate", work)
        now += 5000.0  # nobody works
    with pytest.raises(SystemExit) as ended:
        stage.run_stage("evaluate", work)
    assert ended.value.code == 0
    assert read_json(Path(".lineage/metadata/evaluate@gpt-0-sense.json"))["seconds"] == 3 * 60 + 5


EDITS = {
    "params.yaml": ("params.yaml", "seed: 2\n"),
    "a comment": ("params.yaml", "seed: 1  # the first\n"),
    "code": ("code.py", "twice\n"),
    "a docstring": ("code.py", '"""Another explanation\nof what is done."""\nonce\n'),
    "the family": ("lineage/models/gpt.py", "twice\n"),
    "another family": ("lineage/models/bert.py", "twice\n"),
}


def looked_at(root: Path) -> None:
    """What the sources stage has looked at."""
    (root / "params.yaml").write_text("seed: 1\n")
    (root / "lineage/models").mkdir(parents=True)
    for name in ("code.py", "lineage/models/gpt.py", "lineage/models/bert.py"):
        (root / name).write_text('"""An explanation."""\nonce\n')
    digest = code_digest(root / "code.py")
    write_json(root / "artifacts/sources/code/pretrain.json", {"code.py": digest})
    write_json(
        root / "artifacts/sources/models/gpt.json", {"family": "gpt", "family_sha256": digest}
    )


@pytest.mark.parametrize("edited", [*EDITS, "nothing"])
@pytest.mark.parametrize("when", ["before", "meanwhile", "before its resume state goes"])
def test_what_was_edited_while_a_stage_ran_is_no_result_of_it(edited: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                              capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """DVC hashes parameters when a stage has ended, and the code's digest is of when the run began."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "PROJECT_ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["stages/pretrain.py", "gpt", "0"])
    looked_at(tmp_path)

    def edit() -> None:
        if edited in EDITS:
            name, text = EDITS[edited]
            Path(name).write_text(text)

    def work(own: Stage) -> None:
        folder = own.prepare_resume_folder({})
        if when != "before":
            edit()
        if when == "before its resume state goes":
            own.clear_resume_folder()
        assert folder.is_dir() == (when != "before its resume state goes")

    if when == "before":
        edit()
    with pytest.raises(SystemExit) as ended:
        stage.run_stage("pretrain", work)
    seen = edited in ("code", "the family") or (edited == "params.yaml" and when != "before")
    assert ended.value.code == (2 if seen else 0)
    assert (
        (
            f"{EDITS[edited][0]}: changed while the run was under way; run again"
            in capsys.readouterr().err
        )
        if seen
        else True
    )
    assert Path(".lineage/metadata/pretrain@gpt-0.json").is_file() == (not seen)
    assert not seen or when == "before" or any(Path(".lineage/resume").rglob("*")), (
        "what was learned until then is kept"
    )


@pytest.mark.parametrize("edited", ["code", "the family", "another family"])
def test_evaluations_that_go_by_other_names_are_held_to_the_same_code(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that of joined features to the family of its static vectors, which no argument names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "PROJECT_ROOT", tmp_path)
    looked_at(tmp_path)
    shutil.copytree(tmp_path / "artifacts/sources/code", tmp_path / "copy")
    shutil.move(tmp_path / "copy/pretrain.json", tmp_path / "artifacts/sources/code/evaluate.json")
    digest = code_digest(tmp_path / "lineage/models/bert.py")
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
