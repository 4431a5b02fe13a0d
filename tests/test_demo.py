"""The self-test runs as its user runs it: a clone and `make demo`; then parts are changed.

It is the demo with a fifth family and BiLSTM probes. The expected results are known, because its
language is synthetic.
"""

import contextlib
import csv
import math
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from flows.plan import set_cache_folder
from lineage.analysis.records import read_analysis
from lineage.artifacts import read_json, read_table, write_table
from lineage.config.records import read_yaml
from tests.helpers.checkout import (
    MAKE,
    ROOT,
    RUN_STUDY,
    Demo,
    clone,
    commit,
    planned_stages,
    run_command,
    set_params,
    stage_outcomes,
)
from tests.helpers.private_text import find_leaks
from tests.helpers.user_project import RunStage, mood_reviews

# The context that the direction of each contextual family can see.
CONTEXTS = {"ulmfit": "left", "gpt": "left", "elmo": "both", "bert": "both"}
STATIC = "word2vec"
FIVE_FAMILIES = pytest.param({}, id="five families", marks=pytest.mark.slow)
# One static family and one language model of half the size; three tasks, one seed, fewer labels,
# two thirds of the text, from half of the corpus.
TWO_FAMILIES = pytest.param(
    {
        "grid__models": [STATIC, "ulmfit"],
        "grid__tasks": ["sentiment", "sense", "agreement"],
        "grid__finetune_seeds": [0],
        "grid__label_counts": ["all"],
        "grid__adapt_models": ["ulmfit"],
        "corpora__general__sources": [{"generated": "synthetic", "num_documents": 1000}],
        "budget__text_bytes": 2_000_000,
        "budget__body_parameters": 200_000,
        "tasks__sentiment__limit": {"train": 120, "validation": 60},
        "tasks__sense__limit": {"train": 240, "validation": 100},
        "defaults__evaluate__finetune__epochs": 3,
        # No claim depends on the trials of a probe, nor on the CRF.
        "defaults__evaluate__linear_probe": {"l2": 0.001},
        "defaults__evaluate__bilstm_probe": {"epochs": 1, "min_steps": None},
    },
    id="two families",
)


@pytest.fixture(scope="session", params=[TWO_FAMILIES, FIVE_FAMILIES])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Clone the project, run `make demo`, and return what it printed.

    All tests that use it are in this file, which one process runs.
    """
    folder = clone(tmp_path_factory.mktemp("demo") / "lineage")
    shutil.copy(folder / "studies/self-test.yaml", folder / "params.yaml")
    set_params(folder, **request.param)
    commit(folder)
    printed = run_command(folder, *MAKE, "demo")
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    return Demo(folder, printed, status)


def demo_families(folder: Path) -> list[str]:
    """Return the families of the demo as it ran."""
    return read_yaml(folder / "params.yaml")["grid"]["models"]


def demo_tasks(folder: Path) -> list[str]:
    """Return the tasks of the demo as it ran."""
    return read_yaml(folder / "params.yaml")["grid"]["tasks"]


def contextual_families(demo: Demo) -> list[str]:
    """Return the families that read context."""
    return [name for name in demo_families(demo.folder) if name in CONTEXTS]


def test_the_demo_runs_every_stage_within_its_limits(demo: Demo) -> None:
    outcomes = stage_outcomes(demo.printed)
    assert set(outcomes.values()) == {"ran"} and 25 <= len(outcomes) <= 65
    peaks = {
        p.name: read_json(p)["peak_memory_bytes"]
        for p in (demo.folder / ".lineage/metadata").glob("*.json")
    }
    assert len(peaks) == len(outcomes) and max(peaks.values()) < 3 * 2**30
    metadata = [read_json(path) for path in (demo.folder / ".lineage/metadata").glob("*.json")]
    assert all("lock" in record for record in metadata), (
        "the run must record the lock of every stage, publish too"
    )
    assert all(
        record["lock_before"] != record["lock"]
        for record in metadata
        if record["stage"] not in ("sources", "publish")
    ), "the lock of a stage that ran once must change"


def test_git_versions_what_dvc_compares(demo: Demo) -> None:
    assert demo.status == "?? dvc.lock\n?? reports/metrics.json\n?? reports/plots/\n"


def test_every_training_uses_its_budget_and_takes_enough_steps(demo: Demo) -> None:
    """With the shipped parameters there are over 1,250 steps."""
    planned = read_yaml(demo.folder / "params.yaml")["budget"]
    text_bytes = planned["text_bytes"]
    budget = read_json(demo.folder / "reports/comparison.json")["budget"]
    assert [row["model"] for row in budget] == demo_families(demo.folder)
    for row in budget:
        assert abs(row["text_bytes"] - text_bytes) < 3_000
        assert row["seconds"] > 0
        assert row["peak_memory_bytes"] > 0
        if row["model"] != STATIC:
            spent = read_json(demo.folder / f"artifacts/pretrained/{row['model']}/0/spent.json")
            assert (
                spent["steps"] > 1250 * text_bytes / 3_000_000
                and spent["non_padding_token_share"] > 0.95
            ), "too few steps, or too much padding"
            assert abs(row["body_parameters"] / planned["body_parameters"] - 1) <= 0.05
            assert row["train_flops"] > 0


@pytest.fixture(scope="session")
def rows(demo: Demo) -> pd.DataFrame:
    """Return the scores on all test items."""
    table = pd.read_csv(demo.folder / "reports/results.csv", keep_default_na=False, na_values=[""])
    return table[(table["split"] == "test") & (table["group"] == "all")]


@pytest.fixture(scope="session")
def ceilings(demo: Demo) -> dict[str, dict[str, float]]:
    return {
        task: read_json(demo.folder / f"artifacts/tasks/{task}/task.json")["ceilings"]
        for task in ("sense", "agreement", "sentiment")
    }


def correct_by_item(demo: Demo, model: str, init: str) -> pd.Series:
    """Return whether each test item of sense is correct.

    The system is the frozen one with a linear head, all labels and the first seed.
    """
    table = read_table(
        demo.folder / f"artifacts/results/predictions/evaluate-{model}-0-sense.parquet"
    )
    is_selected = (
        (table["init"] == init)
        & (table["transfer"] == "frozen")
        & (table["label_count"] == "all")
        & (table["split"] == "test")
        & (table["finetune_seed"] == 0)
    )
    return table[is_selected].set_index("id")["correct"].sort_index()


def test_pretraining_finds_the_senses_that_its_direction_can_see(
    demo: Demo, ceilings: dict[str, dict[str, float]]
) -> None:
    for model in contextual_families(demo):
        pretrained = correct_by_item(demo, model, "pretrained")
        difference = pretrained - correct_by_item(demo, model, "random")
        assert difference.mean() >= 3 * difference.std(ddof=1) / math.sqrt(len(difference)), model
        assert pretrained.mean() >= 0.9 * ceilings["sense"][CONTEXTS[model]], model
        assert pretrained.mean() >= ceilings["sense"]["static"] + 3 * standard_error(pretrained), (
            model
        )


def standard_error(correct: pd.Series) -> float:
    return max(float(correct.std(ddof=1)), 0.5 / math.sqrt(len(correct))) / math.sqrt(len(correct))


def test_static_vectors_stay_at_the_static_ceiling(
    demo: Demo, rows: pd.DataFrame, ceilings: dict[str, dict[str, float]]
) -> None:
    correct = correct_by_item(demo, STATIC, "pretrained")
    assert correct.mean() <= ceilings["sense"]["static"] + 3 * standard_error(correct)
    for init in ("pretrained", "random"):
        limit = ceilings["sense"]["static"] + 3 * 0.5 / math.sqrt(len(correct))
        assert all(
            mean_accuracy(
                rows, task="sense", model=STATIC, init=init, transfer=transfer, label_count="all"
            )
            <= limit
            for transfer in ("frozen", "finetuned")
        )


def mean_accuracy(rows: pd.DataFrame, **columns: object) -> float:
    """Return the mean accuracy over seeds of the selected result."""
    is_selected = (rows["metric"] == "accuracy") & (rows["status"] == "ok")
    for name, value in columns.items():
        is_selected &= rows[name].astype(str) == str(value)
    assert is_selected.any(), columns
    return float(rows[is_selected]["value"].mean())


def test_the_type_of_an_entity_is_predicted_from_its_context(
    demo: Demo, rows: pd.DataFrame
) -> None:
    """A linear probe of static vectors finds both spans and guesses one of the types.

    With contextual vectors it is better than that ceiling. A CRF may be better with either.
    """
    if "entities" not in demo_tasks(demo.folder):
        pytest.skip("the short demo has no entities; the slow one has")
    is_selected = (
        (rows["task"] == "entities")
        & (rows["metric"] == "span_f1")
        & (rows["label_count"] == "all")
        & (rows["transfer"] == "frozen")
    )
    mean_f1 = rows[is_selected].groupby(["model", "init", "head"])["value"].mean()
    assert {"linear", "bilstm_crf"} == {*mean_f1.index.get_level_values("head")}
    assert mean_f1[STATIC, "pretrained", "linear"] <= 0.75 + 3 * 0.5 / math.sqrt(2 * 160)
    for model in contextual_families(demo):
        assert mean_f1[model, "pretrained", "linear"] > 0.78
        assert mean_f1[model, "pretrained", "linear"] > mean_f1[model, "random", "linear"] + 0.15


def test_word_identity_does_not_reveal_the_sense(
    demo: Demo, rows: pd.DataFrame, ceilings: dict[str, dict[str, float]]
) -> None:
    limit = ceilings["sense"]["both"] - 0.15
    assert mean_accuracy(rows, task="sense", model="tfidf", label_count="all") <= limit
    for model in demo_families(demo.folder):
        assert (
            mean_accuracy(
                rows,
                task="sense",
                model=model,
                init="random",
                transfer="finetuned",
                label_count="all",
            )
            <= limit
        )


def test_agreement_is_learned_only_by_pretraining(demo: Demo, rows: pd.DataFrame) -> None:
    for model in contextual_families(demo):
        assert mean_accuracy(rows, task="agreement", model=model, init="pretrained") >= 0.9
        assert abs(mean_accuracy(rows, task="agreement", model=model, init="random") - 0.5) < 0.1


def test_no_score_is_above_its_ceiling(
    rows: pd.DataFrame, ceilings: dict[str, dict[str, float]]
) -> None:
    accuracy_rows = rows[(rows["metric"] == "accuracy") & (rows["status"] == "ok")]
    for row in accuracy_rows[accuracy_rows["model"].isin(CONTEXTS)].itertuples():
        direction = CONTEXTS[row.model] if row.task == "sense" else "both"
        ceiling = ceilings[row.task][direction]
        error = math.sqrt(max(ceiling * (1 - ceiling), 0.25 / row.num_examples) / row.num_examples)
        assert row.value <= ceiling + 4 * error, (
            row.model,
            row.task,
            row.transfer,
            row.label_count,
            row.value,
            ceiling,
        )


def adapted_models(demo: Demo) -> list[str]:
    return read_yaml(demo.folder / "params.yaml")["grid"]["adapt_models"]


def test_adaptation_lowers_the_loss_on_held_out_target_text(demo: Demo) -> None:
    assert "ulmfit" in adapted_models(demo)
    for model in adapted_models(demo):
        losses = read_json(demo.folder / f"artifacts/adapted/{model}/0/sentiment/held.json")
        for name in losses["before"]:
            if not name.startswith("next_sentence_"):
                assert losses["after"][name] < losses["before"][name], model


def test_the_report_has_all_results_and_needs_no_network(demo: Demo) -> None:
    reports = demo.folder / "reports"
    comparison = read_json(reports / "comparison.json")
    assert {"scores", "comparisons", "budget", "provenance", "results"} <= comparison.keys()
    assert comparison["provenance"]["study"]
    with (reports / "results.csv").open() as stream:
        assert sum(1 for _ in csv.reader(stream)) == len(comparison["results"]) + 1
    analysis = read_analysis(reports / "results.json")
    models = {score.system.model for score in analysis.scores}
    assert models >= {*demo_families(demo.folder), "majority", "tfidf"}
    assert [task.task for task in analysis.tasks] == demo_tasks(demo.folder)
    for task in analysis.tasks:
        for name, split in task.splits.items():
            assert split.items == len(read_items(demo.folder, task.task, name))
    for kind in ("html", "md"):
        text = (reports / f"comparison.{kind}").read_text()
        assert "ULMFiT, fine-tuned" in text and "Provenance" in text
    page = (reports / "comparison.html").read_text()
    assert not re.search(r"""(src|href)=["']?https?:""", page)
    assert not re.search(r"<script[^>]*src", page)


def read_items(folder: Path, task: str, split: str) -> pd.DataFrame:
    return read_table(folder / f"artifacts/tasks/{task}/{split}.parquet")


def test_no_sentence_of_the_data_occurs_in_the_outputs_of_a_run(demo: Demo) -> None:
    """Pages, databases and logs are searched for all task texts and some corpus documents."""
    items = [
        read_table(path) for path in sorted((demo.folder / "artifacts/tasks").glob("*/*.parquet"))
    ]
    texts = []
    for table in items:
        for column in ("text", "good", "bad"):
            if column in table:
                texts += table[column].tolist()
        if "tokens" in table:
            texts += [" ".join(tokens) for tokens in table["tokens"]]
    corpus = read_table(demo.folder / "artifacts/corpora/general/train.parquet")
    texts += corpus["text"].tolist()[:300]
    assert len(texts) > 3000 and not find_leaks(demo.folder, texts)


def table_cells(text: str) -> list[list[str]]:
    """Return the cells of a printed table, line by line."""
    return [line.split("|")[1:] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.slow
def test_the_docs_show_what_the_demo_prints(tmp_path: Path) -> None:
    """The numbers may differ by 15 points, because another machine may round differently."""
    folder = clone(tmp_path / "lineage")
    printed = table_cells(run_command(folder, *MAKE, "demo"))
    shown = re.search(
        r"<!-- demo -->\n```\n(.*?)```", (ROOT / "docs/demo.md").read_text(), re.DOTALL
    )
    documented = table_cells(shown[1])
    assert [line[0].strip() for line in documented] == [line[0].strip() for line in printed]
    assert len(documented) > 25
    for line, other in zip(documented, printed, strict=True):
        for a, b in zip(line[1:], other[1:], strict=True):
            matches = [re.fullmatch(r"\s*(\d+\.\d)\*?\s*", cell) for cell in (a, b)]
            assert (matches[0] is None) == (matches[1] is None), (line, other)
            if matches[0] and matches[1]:
                assert abs(float(matches[0][1]) - float(matches[1][1])) <= 15, (line, other)


# These tests check which stages a change would run again.


@pytest.fixture
def finished(demo: Demo, tmp_path: Path) -> Path:
    """A copy of the finished demo, for tests that change it; it shares the demo's cache."""
    ignored = shutil.ignore_patterns("cache", ".lineage", "mlflow.db", "mlruns", "__pycache__")
    folder = Path(shutil.copytree(demo.folder, tmp_path / "lineage", symlinks=True, ignore=ignored))
    # The measurements of the sources stage are kept.
    shutil.copytree(demo.folder / ".lineage/checks", folder / ".lineage/checks")
    set_cache_folder(folder, demo.folder / ".dvc/cache")
    return folder


def stages_after_sources(folder: Path) -> set[str]:
    """Return the stages that would run after the sources stage has checked everything."""
    run_command(folder, "python", "-m", "stages.sources")
    return planned_stages(folder) - {"sources"}


def final_stages(folder: Path) -> set[str]:
    """Return the stages that read the results of all others, or come after these."""
    return {"report", "publish", *(f"refit@{task}" for task in demo_tasks(folder))}


def test_a_changed_value_reruns_the_stages_that_read_it_and_later_ones(finished: Path) -> None:
    assert planned_stages(finished) == {"sources", "publish"}, "only these two always run"
    evaluations = {
        *(f"evaluate@ulmfit-0-{task}" for task in demo_tasks(finished)),
        "evaluate_adapted@ulmfit-0-sentiment",
    }
    set_params(finished, models__ulmfit__evaluate__finetune__learning_rate=0.0021)
    plan = run_command(finished, "lineage", "plan")
    (line,) = [line for line in plan.splitlines() if "evaluate@ulmfit-0-sense" in line]
    assert line.startswith("run") and "learning_rate" in line and "-> 0.0021" in line, line
    assert stages_after_sources(finished) == evaluations | final_stages(finished)
    set_params(finished, models__ulmfit__pretrain__learning_rate=0.0021)
    assert stages_after_sources(finished) == evaluations | final_stages(finished) | {
        "adapt@ulmfit-0-sentiment",
        "pretrain@ulmfit-0",
        "ngram",
    }


def test_a_new_task_and_a_new_one_file_family_run_only_their_stages(finished: Path) -> None:
    for split, count in (("train", 60), ("test", 20)):
        mood_reviews(count).to_csv(finished / f"{split}.csv", index=False)
    files = {"train": "train.csv", "test": "test.csv"}
    new_task_keys = {
        "kind": "text_classification",
        "files": files,
        "text": ["review"],
        "label": "stars",
        "max_words": 24,
    }
    source = (finished / "lineage/families/gpt.py").read_text()
    new_file = finished / "lineage/families/mine.py"
    new_file.write_text(source)
    old_models = demo_families(finished)
    tasks = [*demo_tasks(finished), "tone"]
    set_params(finished, tasks__tone=new_task_keys, grid__tasks=tasks)
    set_params(
        finished,
        models__mine=read_yaml(finished / "params.yaml")["models"]["gpt"],
        grid__models=[*old_models, "mine"],
    )
    assert "mine.py: its FAMILY is named 'gpt'" in run_command(
        finished, "python", "-m", "stages.sources", code=2
    )
    new_file.write_text(source.replace('name="gpt"', 'name="mine"'))
    task_stages = {
        "task@tone",
        "contamination@tone",
        "baselines@tone",
        *(f"evaluate@{v}-0-tone" for v in old_models),
    }
    family_stages = {
        "tokenizer@mine",
        "recipe@mine",
        "pretrain@mine-0",
        *(f"evaluate@mine-0-{t}" for t in tasks),
        "ngram",  # predicts the tokens of every model
    }
    assert stages_after_sources(finished) == task_stages | family_stages | final_stages(finished)


def test_a_changed_family_file_reruns_only_its_stages(finished: Path) -> None:
    path = finished / "lineage/families/ulmfit.py"
    path.write_text(path.read_text() + "\n")
    family_stages = {
        "tokenizer@ulmfit",
        "recipe@ulmfit",
        "pretrain@ulmfit-0",
        *(f"evaluate@ulmfit-0-{task}" for task in demo_tasks(finished)),
        "ngram",
    }
    family_stages |= {f"{verb}@ulmfit-0-sentiment" for verb in ("adapt", "evaluate_adapted")}
    assert stages_after_sources(finished) == family_stages | final_stages(finished)


def test_both_pages_show_the_run(demo: Demo) -> None:
    """Prefect's database holds the flow with a task for each stage that ran."""
    database = demo.folder / ".lineage/prefect/prefect.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        flows = connection.execute("select name, state_type from flow_run").fetchall()
        tasks = {row[0] for row in connection.execute("select name from task_run")}
    ((name, state),) = flows
    assert name.startswith("lineage, 20") and state == "COMPLETED"
    assert tasks >= set(stage_outcomes(demo.printed))


def find_end_of_pipeline(folder: Path) -> int:
    """Return when the study's run in MLflow has ended, in ms."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiments = [one.experiment_id for one in client.search_experiments()]
    (run,) = client.search_runs(experiments, "tags.stage = 'pipeline'")
    assert run.info.end_time > run.info.start_time
    return int(run.info.end_time)


def read_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_recommended_systems_are_fitted_again_and_only_once(
    demo: Demo, tmp_path: Path, run_stage: RunStage
) -> None:
    ignored = shutil.ignore_patterns("cache", "__pycache__")
    folder = tmp_path / "lineage"
    shutil.copytree(demo.folder, folder, symlinks=True, ignore=ignored)
    set_cache_folder(folder, demo.folder / ".dvc/cache")
    decisions = read_json(folder / "reports/decisions.json")
    records = [*(folder / "artifacts/refitted").glob("*/*/system.json")]
    assert len(records) == sum(one["label_count"] != "none" for one in decisions) > 1
    page = (folder / "reports/comparison.md").read_text()
    sentences = {}
    for path in records:
        task = path.parents[1].name
        record = read_json(path)
        before = record["refit"]["train_examples"]
        count = before + len(read_items(folder, task, "validation"))
        assert record["train_examples"] == count
        if record["label_count"] == "all":
            assert f"{task} ({count:,}, not {before:,})" in page
            learned = f"trained on {count:,} items with seed 0; when it was trained on {before:,}"
            sentences[task] = f"-refitted (all labels; {learned}"
    (folder / "new.csv").write_text("text\ngood\n")
    options = ("new.csv", "-o", "out.csv", "--task", "sentiment")
    printed = run_command(folder, "lineage", "predict", *options)
    assert sentences["sentiment"] in printed

    end_time = find_end_of_pipeline(folder)
    outcomes = stage_outcomes(run_command(folder, *RUN_STUDY))
    assert find_end_of_pipeline(folder) == end_time, "it lasts as long as its work"
    assert {name for name, one in outcomes.items() if one == "ran"} == {"sources", "publish"}

    # Nothing depends on the test items, even where another stage has not noticed their change.
    refitted = folder / "artifacts/refitted/sense"
    expected = read_files(refitted)
    items = read_items(folder, "sense", "test")
    path = folder / "artifacts/tasks/sense/test.parquet"
    write_table(path, items.assign(label=1 - items["label"]))
    shutil.rmtree(refitted)
    assert run_stage(folder, "refit", "sense") == (0, "")
    assert read_files(refitted) == expected
