"""Starts put together of a trained model and its twin: which parts are whose, and that the whole trained one is tuned as the run tuned it."""

import contextlib
from pathlib import Path

import pandas as pd
import pytest
import torch
from ruamel.yaml import YAML

from benchmarks import starts
from flows.profiles import compose
from lineage.artifacts import create, write_json, write_table
from lineage.errors import InputError
from lineage.evaluation import cells, evaluate
from lineage.family import Encoder
from lineage.items import build
from lineage.kind import load_kind
from lineage.params import read_params
from stages.evaluate import setting_of
from tests import tiny

PROFILES = Path(__file__).parent.parent / "profiles"
QUICK = {"epochs": 1, "trials": [{"rate": 1e-8}, {"rate": 0.02}]}


def two(name: str) -> tuple[Encoder, Encoder]:
    """A model that stands for a trained one, of larger numbers, and its twin."""
    trained, twin = tiny.model(name), tiny.model(name)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(3.0).add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    return trained, twin


@pytest.mark.parametrize("name", ["ulmfit", "gpt", "bert", "fasttext"])
@pytest.mark.parametrize("start", starts.STARTS)
def test_a_start_is_put_together_of_what_its_name_says(name: str, start: str) -> None:
    (trained, twin), built = two(name), starts.STARTS[start](*two(name))
    own = {id(table) for table in starts.tables(built)}
    rest = {key for key, value in built.named_parameters() if id(value) not in own}
    source = twin if start.startswith("untrained") or start == "pretrained tables" else trained
    assert all(torch.equal(built.get_parameter(key), source.get_parameter(key)) for key in rest)
    for mine, learned, fresh in zip(starts.tables(built), starts.tables(trained), starts.tables(twin), strict=True):
        expected = {"pretrained": learned, "pretrained tables": learned, "untrained": fresh, "pretrained body": fresh,
                    "pretrained, small tables": learned * starts.size(fresh) / starts.size(learned),
                    "untrained, large tables": fresh * starts.size(learned) / starts.size(fresh)}  # fmt: skip
        if start in expected:
            torch.testing.assert_close(mine, expected[start])
        else:
            assert sorted(mine.tolist()) == sorted(learned.tolist())
            assert len(mine) < 5 or not torch.equal(mine, learned), "of segments there are two"


def test_characters_alone_have_no_table() -> None:
    with pytest.raises(InputError, match="no table"):
        starts.tables(tiny.model("elmo"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worktree of a run of ULMFiT, as far as the script reads it: its trained model has a larger table than its twin."""
    folder = tmp_path_factory.mktemp("runs") / "toy"
    folder.mkdir()
    tree = compose(PROFILES, "smoke")
    tree["grid"] |= {"families": ["ulmfit"], "adapt_families": [], "adapt_tasks": [], "labels": [30, 60]}
    tree["models"]["ulmfit"]["evaluate"]["tuned"] |= QUICK
    with (folder / "params.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump(tree, stream)
    with contextlib.chdir(folder):
        params, checkpoint = read_params(), tiny.checkpoint("ulmfit")
        with create(Path("artifacts/pretrained/ulmfit/0"), "model", status="ok", reason="") as draft:
            checkpoint.save(draft, two("ulmfit")[0])
            write_json(draft / "spent.json", {"text_bytes": 20_000})
        items = build("sentiment", params.tasks["sentiment"], load_kind("classify"), seed=params.seed, root=folder, where="task")
        with create(Path("artifacts/tasks/sentiment"), "task", name="sentiment") as draft:
            for split, table in items.splits.items():
                write_table(draft / f"{split}.parquet", table)
            write_json(draft / "task.json", items.facts)
    return folder


def test_a_model_is_tuned_as_its_run_did(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, some = tmp_path / "starts.csv", ["pretrained", "untrained", "pretrained, small tables"]
    asked = [str(finished), "ulmfit", "sentiment", "--labels", "60", "--out", str(out), "--starts"]
    assert starts.main([*asked, *some]) == 0
    printed, rows = capsys.readouterr().out, pd.read_csv(out)
    assert [*rows.columns] == starts.COLUMNS and [*rows["start"].unique()] == some and set(rows["labels"]) == {60}
    assert rows.groupby("start").size().to_dict() == dict.fromkeys(some, 2), "a row a seed"
    large, small, cut = (rows[rows["start"] == start]["table_size"].iloc[0] for start in some)
    assert large > 2 * small and cut == pytest.approx(small, rel=1e-5)
    for init in ("pretrained", "untrained"):
        (tmp_path / init).mkdir()
        with contextlib.chdir(finished):
            setting = setting_of(read_params(), "ulmfit", 0, Path("artifacts/pretrained/ulmfit/0"), Path("artifacts/tasks/sentiment"))
            own = [cell for cell in cells(setting.task.facts, (init,), (60,), (0, 1)) if cell.transfer == "tuned"]
            plain, _ = evaluate(setting, own, keep=tmp_path / init, report=lambda *_: None)
        value = [row.value for row in plain if (row.split, row.metric, row.trial, row.group) == ("test", "accuracy", "chosen", "all")]
        assert value == pytest.approx(rows[rows["start"] == init]["value"].tolist(), abs=1e-5) and len(value) == 2
        assert f"| {init} | {small if init == 'untrained' else large:.3g} | {50 * sum(value):.1f} |" in printed
    before = out.read_text()
    assert starts.main([*asked, "untrained"]) == 0
    assert sorted(out.read_text().splitlines()) == sorted(before.splitlines()), "in the place of the same"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["gpt", "sentiment"], "no model 'gpt'; it has ulmfit"), (["ulmfit", "x"], "no task 'x'; it has sentiment"),
     (["ulmfit", "sentiment", "--labels", "7"], "no labels 7; it has 30, 60"), (["ulmfit", "sentiment", "--arms", "network"], "no cells of network")],
)  # fmt: skip
def test_what_the_run_does_not_have_ends_in_one_message(finished: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert starts.main([str(finished), *words]) == 2
    assert said in (found := capsys.readouterr().err) and found.count("\n") == 1


def test_a_folder_without_a_run_ends_in_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert starts.main([str(tmp_path), "ulmfit", "sentiment"]) == 2
    assert "no run is here" in capsys.readouterr().err
