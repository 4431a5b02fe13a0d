"""Starts put together of a trained model and its twin: which parts are whose, and that the whole trained one is tuned as the run tuned it."""

import contextlib
import dataclasses
from pathlib import Path

import pandas as pd
import pytest
import torch
from ruamel.yaml import YAML

from benchmarks import starts
from lineage.artifacts import create_artifact, write_json, write_table
from lineage.config.params import read_params
from lineage.data.items import build_items
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.systems import EncoderUnderTest, EvalRun
from lineage.evaluation.trials import trial_note
from lineage.models.base import Encoder, root_mean_square
from lineage.report.notes import format_note
from lineage.tasks.base import load_kind
from stages.evaluate import load_context
from tests import tiny

PROFILES = Path(__file__).parent.parent / "profiles"
QUICK = {"epochs": 1, "trials": [{"learning_rate": 1e-8}, {"learning_rate": 0.02}]}


def two(name: str) -> tuple[Encoder, Encoder]:
    """A model that stands for a trained one, of larger numbers, and its twin."""
    trained, twin = tiny.model(name), tiny.model(name)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(3.0).add_(
                0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
            )
    return trained, twin


@pytest.mark.parametrize("name", ["ulmfit", "gpt", "bert", "fasttext"])
@pytest.mark.parametrize("start", starts.STARTS)
def test_a_start_is_put_together_of_what_its_name_says(name: str, start: str) -> None:
    (trained, twin), built = two(name), starts.STARTS[start](*two(name))
    own = {id(table) for table in built.embedding_matrices()}
    rest = {key for key, value in built.named_parameters() if id(value) not in own}
    source = twin if start.startswith("random") or start == "pretrained tables" else trained
    assert all(torch.equal(built.get_parameter(key), source.get_parameter(key)) for key in rest)
    for mine, learned, fresh in zip(
        built.embedding_matrices(),
        trained.embedding_matrices(),
        twin.embedding_matrices(),
        strict=True,
    ):
        expected = {"pretrained": learned, "pretrained tables": learned, "random": fresh, "pretrained body": fresh,
                    "pretrained, small tables": learned * root_mean_square(fresh) / root_mean_square(learned),
                    "random, large tables": fresh * root_mean_square(learned) / root_mean_square(fresh)}  # fmt: skip
        if start in expected:
            torch.testing.assert_close(mine, expected[start])
        else:
            assert sorted(mine.tolist()) == sorted(learned.tolist())
            assert len(mine) < 5 or not torch.equal(mine, learned), "of segments there are two"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worktree of a run of ULMFiT, as far as the script reads it: its trained model has a larger table than its twin."""
    folder = tmp_path_factory.mktemp("runs") / "toy"
    folder.mkdir()
    tree = tiny.composed("smoke")
    tree["grid"] |= {
        "models": ["ulmfit"],
        "adapt_models": [],
        "adapt_tasks": [],
        "label_counts": [30, 60],
    }
    tree["models"] = {"ulmfit": {"evaluate": {"finetune": QUICK}}}
    with (folder / "params.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump(tree, stream)
    with contextlib.chdir(folder):
        params, checkpoint = read_params(), tiny.checkpoint("ulmfit")
        with create_artifact(
            Path("artifacts/pretrained/ulmfit/0"), "model", status="ok", reason=""
        ) as draft:
            checkpoint.save(draft, two("ulmfit")[0])
            write_json(draft / "spent.json", {"text_bytes": 20_000})
        items = build_items(
            "sentiment",
            params.tasks["sentiment"],
            load_kind("text_classification"),
            seed=params.seed,
            root=folder,
            where="task",
        )
        with create_artifact(Path("artifacts/tasks/sentiment"), "task", name="sentiment") as draft:
            for split, table in items.splits.items():
                write_table(draft / f"{split}.parquet", table)
            write_json(draft / "task.json", items.info)
    return folder


def test_a_model_is_tuned_as_its_run_did(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, some = tmp_path / "starts.csv", ["pretrained", "random", "pretrained, small tables"]
    asked = [str(finished), "ulmfit", "sentiment", "--labels", "60", "--out", str(out), "--starts"]
    assert starts.main([*asked, *some]) == 0
    printed, rows = capsys.readouterr().out, pd.read_csv(out)
    assert (
        [*rows.columns] == starts.COLUMNS
        and [*rows["start"].unique()] == some
        and set(rows["label_count"]) == {60}
    )
    assert rows.groupby("start").size().to_dict() == dict.fromkeys(some, 2), "a row a seed"
    large, small, cut = (rows[rows["start"] == start]["table_size"].iloc[0] for start in some)
    assert large > 2 * small and cut == pytest.approx(small, rel=1e-5)
    for init in ("pretrained", "random"):
        (tmp_path / init).mkdir()
        with contextlib.chdir(finished):
            setting = load_context(
                read_params(),
                "ulmfit",
                0,
                Path("artifacts/pretrained/ulmfit/0"),
                Path("artifacts/tasks/sentiment"),
            )
            own = [
                cell
                for cell in list_runs(setting.task.info, (init,), (60,), (0, 1))
                if cell.transfer == "finetuned"
            ]
            plain, _ = evaluate_runs(
                setting, own, cache_dir=tmp_path / init, report_progress=lambda *_: None
            )
        value = [
            row.value
            for row in plain
            if (row.split, row.metric, row.trial, row.group)
            == ("test", "accuracy", "chosen", "all")
        ]
        assert (
            value == pytest.approx(rows[rows["start"] == init]["value"].tolist(), abs=1e-5)
            and len(value) == 2
        )
        assert (
            f"| {init} | {small if init == 'random' else large:.3g} | {50 * sum(value):.1f} |"
            in printed
        )
    before = out.read_text()
    assert starts.main([*asked, "random"]) == 0
    assert sorted(out.read_text().splitlines()) == sorted(before.splitlines()), (
        "in the place of the same"
    )


def test_small_tables_are_those_of_the_trained_model_in_the_size_of_its_twin_s(
    finished: Path,
) -> None:
    with contextlib.chdir(finished):
        setting = load_context(
            read_params(),
            "ulmfit",
            0,
            Path("artifacts/pretrained/ulmfit/0"),
            Path("artifacts/tasks/sentiment"),
        )
        tuned = dataclasses.replace(setting.settings.finetune, trials=(), rescale_embeddings=True)
        trained, small, twin = (
            EncoderUnderTest(setting, "pretrained").build_encoder(),
            EncoderUnderTest(setting, "pretrained").build_encoder(tuned),
            EncoderUnderTest(setting, "random"),
        )
        for (key, value), own in zip(small.named_parameters(), trained.parameters(), strict=True):
            scale = (
                root_mean_square(twin.build_encoder().body.embedding_weight) / root_mean_square(own)
                if key == "body.embedding_weight"
                else 1.0
            )
            torch.testing.assert_close(value, own * scale)
        assert all(
            map(
                torch.equal,
                twin.build_encoder(tuned).parameters(),
                twin.build_encoder().parameters(),
            )
        )
        cell = EvalRun("pretrained", "finetuned", 30, 0)
        found = []
        for start, small_tables in (
            ("pretrained", True),
            ("pretrained, small tables", False),
            ("pretrained", False),
        ):
            settings = dataclasses.replace(
                setting.settings,
                finetune=dataclasses.replace(tuned, rescale_embeddings=small_tables),
            )
            (row,) = starts.measured(dataclasses.replace(setting, settings=settings), start, [cell])
            found.append(row["value"])
    assert (
        found[0] == found[1] != found[2]
        and tuned.recipe == "slanted_triangular+small tables+word norm"
    )


def test_small_tables_can_be_a_trial_and_are_refused_where_there_are_none() -> None:
    two_ways = {
        "trials": [{"learning_rate": 0.02}, {"learning_rate": 0.02, "rescale_embeddings": True}]
    }
    settings = tiny.variant("ulmfit", evaluate={"finetune": two_ways}).evaluate.finetune
    assert (
        settings.with_trial(1).rescale_embeddings and not settings.with_trial(0).rescale_embeddings
    )
    assert format_note(trial_note(settings, 1)) == (
        "trial 1 (of 2, from 0): learning_rate 0.02, rescale_embeddings"
    )
    tiny.variant("elmo", architecture={"input_unit": "words"}, evaluate={"finetune": two_ways})
    for tuned in ({"rescale_embeddings": True}, two_ways):
        with pytest.raises(
            InputError,
            match=r"models.elmo.evaluate.finetune.rescale_embeddings: elmo has no word embeddings, it reads words by their characters",
        ):
            tiny.variant("elmo", evaluate={"finetune": tuned})


@pytest.mark.parametrize(
    ("words", "said"),
    [(["gpt", "sentiment"], "no model 'gpt'; it has ulmfit"), (["ulmfit", "x"], "no task 'x'; it has sentiment"),
     (["ulmfit", "sentiment", "--labels", "7"], "no labels 7; it has 30, 60"), (["ulmfit", "sentiment", "--arms", "bilstm"], "no cells of bilstm")],
)  # fmt: skip
def test_what_the_run_does_not_have_ends_in_one_message(
    finished: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert starts.main([str(finished), *words]) == 2
    assert said in (found := capsys.readouterr().err) and found.count("\n") == 1


def test_a_folder_without_a_run_ends_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert starts.main([str(tmp_path), "ulmfit", "sentiment"]) == 2
    assert "no run is here" in capsys.readouterr().err
