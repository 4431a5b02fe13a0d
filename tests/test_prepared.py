"""The sources stage reads the user's data once; the stages corpus and task use what it prepared."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lineage.artifacts import file_digest
from lineage.data import corpus, prepare_task
from lineage.data.prepared import PREPARED_FOLDER, PreparedData
from lineage.errors import InputError
from tests.helpers.user_project import RunStage, make_project

STAGES = (("sources",), ("corpus", "general"), ("task", "mood"))


def artifact_digests(folder: Path) -> dict[str, str]:
    home = folder / "artifacts"
    return {
        path.relative_to(home).as_posix(): file_digest(path)
        for path in home.rglob("*")
        if path.is_file()
    }


def build(folder: Path) -> dict[str, Any]:
    (folder / "train.parquet").write_text("all")
    return {"num_train": 1}


def test_stages_use_the_data_that_sources_prepared_and_read_it_again_if_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_stage: RunStage
) -> None:
    reads: list[str] = []
    collect_documents = corpus.collect_documents
    build_items = prepare_task.build_items

    def counting_documents(*arguments: Any, **keywords: Any) -> Any:
        reads.append("corpus")
        return collect_documents(*arguments, **keywords)

    def counting_items(*arguments: Any, **keywords: Any) -> Any:
        reads.append("task")
        return build_items(*arguments, **keywords)

    monkeypatch.setattr(corpus, "collect_documents", counting_documents)
    monkeypatch.setattr(prepare_task, "build_items", counting_items)
    make_project(tmp_path)
    for command in STAGES:
        assert run_stage(tmp_path, *command)[0] == 0
    assert reads == ["corpus", "task"]
    assert not list((tmp_path / PREPARED_FOLDER).rglob("*.parquet")), (
        "the prepared data is moved, not copied"
    )
    first = artifact_digests(tmp_path)

    for command in STAGES:
        assert run_stage(tmp_path, *command)[0] == 0
    assert reads == ["corpus", "task"] * 2, (
        "sources is up to date, so each stage reads its own data"
    )
    assert artifact_digests(tmp_path) == first


def test_a_build_that_fails_leaves_nothing_and_fails_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def failing(folder: Path) -> dict[str, Any]:
        (folder / "train.parquet").write_text("a part of it")
        raise InputError("bad data")

    prepared = PreparedData("task", "mood", "key", "state", failing)
    for _ in range(2):
        with pytest.raises(InputError, match="bad data"):
            prepared.measure()
    assert not prepared.folder.exists()
    assert replace(prepared, build=build).measure() == prepared.measure() == {"num_train": 1}
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(InputError, match="its data changed after the sources stage had read it"):
        prepared.take(target, "another state", "task")
    prepared.take(target, "state", "task")
    assert [path.name for path in target.iterdir()] == ["train.parquet"]
    assert not prepared.folder.exists()


def test_other_data_or_parameters_replace_the_prepared_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PreparedData("task", "mood", "first", "state", build).measure()
    PreparedData("task", "mood", "second", "state", build).measure()
    PreparedData("task", "other", "third", "state", build).measure()
    keys = sorted(path.parent.name for path in PREPARED_FOLDER.rglob("*.parquet"))
    assert keys == ["second", "third"]
