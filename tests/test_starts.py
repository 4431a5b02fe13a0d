"""The starts benchmark combines pretrained and random parts, and fine-tunes as the run did."""

import contextlib
import dataclasses
from pathlib import Path

import pandas as pd
import pytest
import torch
from ruamel.yaml import YAML

from benchmarks import starts
from benchmarks.starts import embedding_matrices, root_mean_square
from lineage.artifacts import create_artifact, write_json, write_table
from lineage.config.params import read_params
from lineage.data.task_data import TaskData
from lineage.evaluation.evaluate import evaluate_runs
from lineage.methods.encoder import EncoderUnderTest, EvalContext, EvalRun, Init
from lineage.networks.base import Encoder
from lineage.networks.checkpoint import Checkpoint
from stages.evaluate import load_context
from tests.helpers import tiny
from tests.helpers.tasks import build_task_items

QUICK_FINETUNE = {
    "epochs": 1,
    "min_steps": 60,
    "trials": [{"learning_rate": 1e-8}, {"learning_rate": 0.02}],
}


def build_pretrained_and_random(name: str) -> tuple[Encoder, Encoder]:
    """Return a stand-in for a pretrained model, with larger weights, and its random baseline."""
    pretrained = tiny.model(name)
    random = tiny.model(name)
    with torch.no_grad():
        for parameter in pretrained.parameters():
            parameter.mul_(3.0).add_(
                0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
            )
    return pretrained, random


@pytest.mark.parametrize("name", ["ulmfit", "gpt", "bert", "fasttext"])
@pytest.mark.parametrize("start", starts.STARTS)
def test_a_start_combines_the_parts_that_its_name_says(name: str, start: str) -> None:
    (pretrained, random) = build_pretrained_and_random(name)
    built = starts.STARTS[start](*build_pretrained_and_random(name))
    embedding_ids = {id(table) for table in embedding_matrices(built)}
    other_names = {key for key, value in built.named_parameters() if id(value) not in embedding_ids}
    source = random if start.startswith("random") or start == "pretrained tables" else pretrained
    assert all(
        torch.equal(built.get_parameter(key), source.get_parameter(key)) for key in other_names
    )
    for actual, pretrained_embedding, random_embedding in zip(
        embedding_matrices(built),
        embedding_matrices(pretrained),
        embedding_matrices(random),
        strict=True,
    ):
        expected = {"pretrained": pretrained_embedding, "pretrained tables": pretrained_embedding, "random": random_embedding, "pretrained body": random_embedding,
                    "pretrained, small tables": pretrained_embedding * root_mean_square(random_embedding) / root_mean_square(pretrained_embedding),
                    "random, large tables": random_embedding * root_mean_square(pretrained_embedding) / root_mean_square(random_embedding)}  # fmt: skip
        if start in expected:
            torch.testing.assert_close(actual, expected[start])
        else:
            assert sorted(actual.tolist()) == sorted(pretrained_embedding.tolist())
            assert len(actual) < 5 or not torch.equal(actual, pretrained_embedding), (
                "a small matrix, such as of segments, may keep its order"
            )


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of a run of ULMFiT that the script reads.

    The embeddings of its pretrained model are larger than those of its random baseline.
    """
    folder = tmp_path_factory.mktemp("runs") / "toy"
    folder.mkdir()
    tree = tiny.study_params("smoke")
    tree["grid"] |= {
        "models": ["ulmfit"],
        "adapt_models": [],
        "adapt_tasks": [],
        "target_only_models": [],
        "label_counts": [30, 60],
    }
    tree["models"] = {"ulmfit": {"evaluate": {"finetune": QUICK_FINETUNE}}}
    with (folder / "params.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump(tree, stream)
    with contextlib.chdir(folder):
        params = read_params()
        checkpoint = tiny.checkpoint("ulmfit")
        with create_artifact(
            Path("artifacts/pretrained/ulmfit/0"), "model", status="ok", reason=""
        ) as draft:
            checkpoint.save(draft, build_pretrained_and_random("ulmfit")[0])
            write_json(draft / "spent.json", {"text_bytes": 20_000})
        items = build_task_items(
            folder, params.tasks["sentiment"], name="sentiment", seed=params.seed
        )
        with create_artifact(Path("artifacts/tasks/sentiment"), "task", name="sentiment") as draft:
            for split, table in items.splits.items():
                write_table(draft / f"{split}.parquet", table)
            items.info.write(draft)
    return folder


def load_run_context() -> EvalContext:
    """Return the context of an evaluation in the run of the current folder."""
    model = Path("artifacts/pretrained/ulmfit/0")
    return load_context(read_params(), "ulmfit", 0, model, Path("artifacts/tasks/sentiment"))


@pytest.mark.slow
def test_the_script_fine_tunes_as_the_run_did(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "starts.csv"
    start_names = ["pretrained", "random", "pretrained, small tables"]
    options = ["--labels", "60", "--out", str(out), "--starts"]
    arguments = [str(finished_run), "ulmfit", "sentiment", *options]
    assert starts.main([*arguments, *start_names]) == 0
    output = capsys.readouterr().out
    rows = pd.read_csv(out)
    assert [*rows.columns] == starts.COLUMNS
    assert [*rows["start"].unique()] == start_names
    assert set(rows["label_count"]) == {60}
    assert rows.groupby("start").size().to_dict() == dict.fromkeys(start_names, 2), (
        "one row per seed"
    )
    pretrained_scale, random_scale, rescaled = (
        rows[rows["start"] == start]["table_size"].iloc[0] for start in start_names
    )
    assert pretrained_scale > 2 * random_scale and rescaled == pytest.approx(random_scale, rel=1e-5)
    for init in ("pretrained", "random"):
        (tmp_path / init).mkdir()
        with contextlib.chdir(finished_run):
            context = load_run_context()
            runs = [
                run
                for run in tiny.list_runs(context.task.info, (init,), (60,), (0, 1))
                if run.method == "finetune"
            ]
            expected_rows, *_ = evaluate_runs(
                context, runs, cache_dir=tmp_path / init, report_progress=lambda *_: None
            )
        values = [
            row.value
            for row in expected_rows
            if (row.split, row.metric, row.trial, row.group)
            == ("test", "accuracy", "chosen", "all")
        ]
        assert values == pytest.approx(rows[rows["start"] == init]["value"].tolist(), abs=1e-5)
        assert len(values) == 2
        scale = random_scale if init == "random" else pretrained_scale
        assert f"| {init} | {scale:.3g} | {50 * sum(values):.1f} |" in output
    rows_before = out.read_text()
    assert starts.main([*arguments, "random"]) == 0
    assert sorted(out.read_text().splitlines()) == sorted(rows_before.splitlines()), (
        "the new rows replace the same ones"
    )


def test_the_start_with_small_tables_is_fine_tuned_otherwise_than_the_pretrained_one(
    finished_run: Path,
) -> None:
    """Fine-tuning itself scales no table."""
    with contextlib.chdir(finished_run):
        context = load_run_context()
        quick = dataclasses.replace(context.settings.finetune, trials=())
        settings = dataclasses.replace(context.settings, finetune=quick)
        context = dataclasses.replace(context, settings=settings)
        values = []
        for start in ("pretrained", "pretrained, small tables", "pretrained"):
            (row,) = starts.evaluate_start(
                context, start, [EvalRun("pretrained", "finetune", 30, 0)]
            )
            values.append(row["value"])
    assert values[0] == values[2] != values[1]
    assert quick.recipe == "slanted_triangular+word norm"


@pytest.mark.parametrize("name", [*tiny.STATIC, "ulmfit", "gpt"])
def test_probes_and_fine_tuning_start_from_the_same_weights(name: str, tmp_path: Path) -> None:
    """Large pretrained tables of words are not scaled down either."""
    tiny.checkpoint(name).save(tmp_path, build_pretrained_and_random(name)[0])
    settings = tiny.model_config(name).evaluate
    context = EvalContext(
        Checkpoint.load(tmp_path), TaskData({}, {}), settings, 0, 1000, "fp32", tiny.CPU
    )
    pretrained, random = build_pretrained_and_random(name)
    expected_starts: dict[Init, Encoder] = {"pretrained": pretrained, "random": random}
    for init, expected in expected_starts.items():
        encoder = EncoderUnderTest(context, init)
        for actual in (
            encoder.build_encoder(),
            encoder.build_encoder(body_dropout=settings.finetune.body_dropout),
        ):
            assert all(map(torch.equal, actual.parameters(), expected.parameters())), init


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["gpt", "sentiment"], "no model 'gpt'; it has ulmfit"), (["ulmfit", "x"], "no task 'x'; it has sentiment"),
     (["ulmfit", "sentiment", "--labels", "7"], "no labels 7; it has 30, 60"), (["ulmfit", "sentiment", "--arms", "bilstm"], "no cells of bilstm")],
)  # fmt: skip
def test_unknown_arguments_end_in_one_message(
    finished_run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert starts.main([str(finished_run), *arguments]) == 2
    output = capsys.readouterr().err
    assert message in output and output.count("\n") == 1


def test_a_folder_without_a_run_ends_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert starts.main([str(tmp_path), "ulmfit", "sentiment"]) == 2
    assert "no study is here" in capsys.readouterr().err
