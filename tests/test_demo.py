"""The shipped demo, run once a session as its user runs it: a clone, `make demo`, and again. What it must show is known, since its language is."""

import csv
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from flows.workspace import set_dvc_config
from lineage.artifacts import read_json, read_table
from lineage.config.records import read_yaml
from tests.checkout import MAKE, Demo, change, clone, command, commit, outcomes, planned
from tests.private_text import leaks
from tests.user_project import moods

ROOT = Path(__file__).resolve().parent.parent
SENSE = {
    "ulmfit": "left",
    "gpt": "left",
    "elmo": "both",
    "bert": "both",
}  # the context that each contextual family's direction can see
STATIC = "word2vec"
AS_SHIPPED = pytest.param({}, id="as shipped", marks=pytest.mark.slow)
# One static family, one LSTM, one Transformer; one seed, all labels, two thirds of the text, for which BERT has more to learn from each piece.
THREE_FAMILIES = pytest.param(
    {
        "grid__models": [STATIC, "ulmfit", "bert"],
        "grid__finetune_seeds": [0],
        "grid__label_counts": ["all"],
        "grid__adapt_models": ["ulmfit"],
        "budget__text_bytes": 2_000_000,
        "models__bert__pretrain__mlm_probability": 0.3,
        **dict.fromkeys(
            (
                f"models__{name}__evaluate__bilstm_probe__epochs"
                for name in (STATIC, "ulmfit", "bert")
            ),
            1,
        ),  # no claim is of a CRF
    },
    id="three families",
)


@pytest.fixture(scope="session", params=[THREE_FAMILIES, AS_SHIPPED])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Run as its user runs it: a clone, `make demo`, and again. All that reads it is in this file, which one process runs."""
    folder = clone(tmp_path_factory.mktemp("demo") / "lineage")
    if request.param:
        change(folder, **request.param)
        commit(folder)
    first = command(folder, *MAKE, "demo")
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    return Demo(folder, first, command(folder, *MAKE, "demo"), status)


def families(folder: Path) -> list[str]:
    """Of the demo as it ran."""
    return read_yaml(folder / "params.yaml")["grid"]["models"]


def contextual(demo: Demo) -> list[str]:
    """Those of them that read context."""
    return [name for name in families(demo.folder) if name in SENSE]


def test_the_demo_runs_every_stage_within_its_limits(demo: Demo) -> None:
    ran = outcomes(demo.first)
    assert set(ran.values()) == {"ran"} and 25 <= len(ran) <= 65
    peaks = {
        p.name: read_json(p)["peak_memory_bytes"]
        for p in (demo.folder / ".lineage/metadata").glob("*.json")
    }
    assert len(peaks) == len(ran) and max(peaks.values()) < 3 * 2**30
    sides = [read_json(path) for path in (demo.folder / ".lineage/metadata").glob("*.json")]
    assert all("lock" in side for side in sides), "that of publish is noted by the run alone"
    assert all(
        side["lock_before"] != side["lock"]
        for side in sides
        if side["stage"] not in ("sources", "publish")
    ), "which ran twice"


def test_a_second_run_does_what_is_never_fresh_and_leaves_the_lock_file_only(demo: Demo) -> None:
    assert {name for name, what in outcomes(demo.second).items() if what == "ran"} == {
        "sources",
        "publish",
    }
    assert demo.status == "?? dvc.lock\n"


def test_every_training_took_its_steps_within_the_budget(demo: Demo) -> None:
    """As shipped over 1,250 of them."""
    given = read_yaml(demo.folder / "params.yaml")["budget"]["text_bytes"]
    budget = read_json(demo.folder / "reports/comparison.json")["budget"]
    assert [row["model"] for row in budget] == families(demo.folder)
    for row in budget:
        assert (
            abs(row["text_bytes"] - given) < 3_000
            and row["seconds"] > 0
            and row["peak_memory_bytes"] > 0
        )
        if row["model"] != STATIC:
            spent = read_json(demo.folder / f"artifacts/pretrained/{row['model']}/0/spent.json")
            assert (
                spent["steps"] > 1250 * given / 3_000_000
                and spent["non_padding_token_share"] > 0.95
            ), "hardly any padding"
            assert abs(row["body_parameters"] / 400_000 - 1) <= 0.05 and row["train_flops"] > 0


@pytest.fixture(scope="session")
def rows(demo: Demo) -> pd.DataFrame:
    return pd.read_csv(demo.folder / "reports/results.csv", keep_default_na=False, na_values=[""])


@pytest.fixture(scope="session")
def ceilings(demo: Demo) -> dict[str, dict[str, float]]:
    return {
        task: read_json(demo.folder / f"artifacts/tasks/{task}/task.json")["ceilings"]
        for task in ("sense", "agreement", "sentiment")
    }


def correct(demo: Demo, variant: str, init: str) -> pd.Series:
    """Right or wrong for each test item of sense: frozen, linear, all labels, the first seed."""
    table = read_table(
        demo.folder / f"artifacts/results/predictions/evaluate-{variant}-0-sense.parquet"
    )
    own = (
        (table["init"] == init)
        & (table["transfer"] == "frozen")
        & (table["label_count"] == "all")
        & (table["split"] == "test")
        & (table["finetune_seed"] == 0)
    )
    return table[own].set_index("id")["correct"].sort_index()


def test_pretraining_finds_the_sense_that_its_direction_can_see(
    demo: Demo, ceilings: dict[str, dict[str, float]]
) -> None:
    for variant in contextual(demo):
        pretrained, untrained = (
            correct(demo, variant, "pretrained"),
            correct(demo, variant, "random"),
        )
        difference = pretrained - untrained
        assert difference.mean() >= 3 * difference.std(ddof=1) / math.sqrt(len(difference)), variant
        assert pretrained.mean() >= 0.9 * ceilings["sense"][SENSE[variant]], variant
        assert pretrained.mean() >= ceilings["sense"]["static"] + 3 * standard_error(pretrained), (
            variant
        )


def standard_error(correct: pd.Series) -> float:
    return max(float(correct.std(ddof=1)), 0.5 / math.sqrt(len(correct))) / math.sqrt(len(correct))


def test_static_vectors_stay_at_the_static_ceiling(
    demo: Demo, rows: pd.DataFrame, ceilings: dict[str, dict[str, float]]
) -> None:
    right = correct(demo, STATIC, "pretrained")
    assert right.mean() <= ceilings["sense"]["static"] + 3 * standard_error(right)
    for init in ("pretrained", "random"):
        limit = ceilings["sense"]["static"] + 3 * 0.5 / math.sqrt(len(right))
        assert all(
            value(rows, task="sense", model=STATIC, init=init, transfer=transfer, label_count="all")
            <= limit
            for transfer in ("frozen", "finetuned")
        )


def value(rows: pd.DataFrame, **cell: object) -> float:
    """The mean over seeds of the test accuracy over all items of one cell."""
    own = (
        (rows["split"] == "test")
        & (rows["group"] == "all")
        & (rows["metric"] == "accuracy")
        & (rows["status"] == "ok")
    )
    for name, wanted in cell.items():
        own &= rows[name].astype(str) == str(wanted)
    assert own.any(), cell
    return float(rows[own]["value"].mean())


def test_the_type_of_an_entity_is_read_from_its_context(demo: Demo, rows: pd.DataFrame) -> None:
    """A linear reader of static vectors finds both spans and guesses one type; of contextual ones it passes that ceiling; a CRF over either may."""
    own = rows[
        (rows["task"] == "entities")
        & (rows["metric"] == "span_f1")
        & (rows["split"] == "test")
        & (rows["group"] == "all")
    ]
    found = (
        own[(own["label_count"] == "all") & (own["transfer"] == "frozen")]
        .groupby(["model", "init", "head"])["value"]
        .mean()
    )
    assert {"linear", "bilstm_crf"} == {*found.index.get_level_values("head")}
    assert found[STATIC, "pretrained", "linear"] <= 0.75 + 3 * 0.5 / math.sqrt(2 * 160)
    for variant in contextual(demo):
        assert (
            found[variant, "pretrained", "linear"] > 0.78
            and found[variant, "pretrained", "linear"] > found[variant, "random", "linear"] + 0.15
        )


def test_word_identity_does_not_give_the_sense_away(
    demo: Demo, rows: pd.DataFrame, ceilings: dict[str, dict[str, float]]
) -> None:
    limit = ceilings["sense"]["both"] - 0.15
    assert value(rows, task="sense", model="tfidf", label_count="all") <= limit
    for variant in families(demo.folder):
        assert (
            value(
                rows,
                task="sense",
                model=variant,
                init="random",
                transfer="finetuned",
                label_count="all",
            )
            <= limit
        )


def test_agreement_is_learned_by_pretraining_alone(demo: Demo, rows: pd.DataFrame) -> None:
    for variant in contextual(demo):
        assert value(rows, task="agreement", model=variant, init="pretrained") >= 0.9
        assert abs(value(rows, task="agreement", model=variant, init="random") - 0.5) < 0.1


def test_no_score_passes_its_ceiling(
    rows: pd.DataFrame, ceilings: dict[str, dict[str, float]]
) -> None:
    own = rows[
        (rows["split"] == "test")
        & (rows["group"] == "all")
        & (rows["metric"] == "accuracy")
        & (rows["status"] == "ok")
    ]
    for row in own[own["model"].isin(SENSE)].itertuples():
        direction = SENSE[row.model] if row.task == "sense" else "both"
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


def adapted(demo: Demo) -> list[str]:
    return read_yaml(demo.folder / "params.yaml")["grid"]["adapt_models"]


def test_adaptation_lowers_the_loss_on_held_target_text(demo: Demo) -> None:
    assert "ulmfit" in adapted(demo)
    for variant in adapted(demo):
        held = read_json(demo.folder / f"artifacts/adapted/{variant}/0/sentiment/held.json")
        for name in held["before"]:
            if not name.startswith("next_sentence_"):
                assert held["after"][name] < held["before"][name], variant


def test_the_report_says_what_the_results_say(demo: Demo, rows: pd.DataFrame) -> None:
    comparison = json.loads((demo.folder / "reports/comparison.json").read_text())
    assert len(comparison["results"]) == len(rows)
    with (demo.folder / "reports/comparison.csv").open() as stream:
        assert sum(1 for _ in csv.reader(stream)) == len(rows) + 1
    page = (demo.folder / "reports/comparison.html").read_text()
    assert not re.search(r"""(src|href)=["']?https?:""", page) and "<script" not in page


def test_no_sentence_of_the_data_is_in_what_a_run_tells(demo: Demo) -> None:
    """In no page, database or log; of the corpus, some documents."""
    items = [
        read_table(path) for path in sorted((demo.folder / "artifacts/tasks").glob("*/*.parquet"))
    ]
    texts = [
        text
        for table in items
        for column in ("text", "good", "bad")
        if column in table
        for text in table[column]
    ]
    texts += [
        " ".join(tokens) for table in items if "tokens" in table for tokens in table["tokens"]
    ]
    texts += read_table(demo.folder / "artifacts/corpora/general/train.parquet")["text"].tolist()[
        :300
    ]
    assert len(texts) > 3000 and not leaks(demo.folder, texts)


def tables(demo: Demo) -> list[list[list[str]]]:
    """The cells of the documented table, and of what the demo printed, line by line."""
    shown = re.search(
        r"<!-- demo -->\n```\n(.*?)```", (ROOT / "docs/demo.md").read_text(), re.DOTALL
    )
    assert shown is not None
    return [
        [line.split("|")[1:] for line in text.splitlines() if line.startswith("|")]
        for text in (shown[1], demo.first)
    ]


def test_the_docs_have_the_rows_that_the_demo_prints(demo: Demo) -> None:
    readme, printed = ([cells[0].strip() for cells in table] for table in tables(demo))
    assert len(readme) > 40
    left = {*SENSE} - {*families(demo.folder)}
    wanted = [name for name in readme if not left & {*name.replace(",", " ").split()}]
    assert [
        name for name in wanted if " adapted, " not in name or name.split()[0] in adapted(demo)
    ] == printed


@pytest.mark.parametrize("demo", [AS_SHIPPED], indirect=True)
def test_the_docs_have_the_numbers_that_the_demo_prints(demo: Demo) -> None:
    """No number is far from what is printed here; another machine may round otherwise."""
    for line, other in zip(*tables(demo), strict=True):
        for a, b in zip(line[1:], other[1:], strict=True):
            found = [re.fullmatch(r"\s*(\d+\.\d)\*?\s*", cell) for cell in (a, b)]
            assert (found[0] is None) == (found[1] is None), (line, other)
            if found[0] and found[1]:
                assert abs(float(found[0][1]) - float(found[1][1])) <= 15, (line, other)


# What a change would run again, and what it would not

ENDS = {"report", "publish"}
TASKS = ("sentiment", "sense", "entities", "agreement")


@pytest.fixture
def finished(demo: Demo, tmp_path: Path) -> Path:
    """The finished demo, to be changed; its cache is the demo's own."""
    left = shutil.ignore_patterns("cache", ".lineage", "mlflow.db", "mlruns", "__pycache__")
    folder = Path(shutil.copytree(demo.folder, tmp_path / "lineage", symlinks=True, ignore=left))
    shutil.copytree(
        demo.folder / ".lineage/checks", folder / ".lineage/checks"
    )  # what sources has measured
    set_dvc_config(folder, "cache.dir", str(demo.folder / ".dvc/cache"))
    return folder


def after_sources(folder: Path) -> set[str]:
    """What would run once sources has looked at everything."""
    command(folder, "python", "-m", "stages.sources")
    return planned(folder) - {"sources"}


def test_a_number_runs_the_stages_that_read_its_block_and_what_follows(finished: Path) -> None:
    assert planned(finished) == {"sources", "publish"}, "always"
    evaluations = {
        *(f"evaluate@ulmfit-0-{task}" for task in TASKS),
        "evaluate_adapted@ulmfit-0-sentiment",
    }
    change(finished, models__ulmfit__evaluate__finetune__learning_rate=0.0021)
    assert after_sources(finished) == evaluations | ENDS
    change(finished, models__ulmfit__adapt__learning_rate=0.0021)
    assert after_sources(finished) == evaluations | ENDS | {"adapt@ulmfit-0-sentiment"}
    change(finished, models__ulmfit__pretrain__learning_rate=0.0021)
    assert after_sources(finished) == evaluations | ENDS | {
        "adapt@ulmfit-0-sentiment",
        "pretrain@ulmfit-0",
    }


def test_a_new_task_and_a_new_family_of_one_file_run_their_own_stages_only(finished: Path) -> None:
    for split, count in (("train", 60), ("test", 20)):
        moods(count).to_csv(finished / f"{split}.csv", index=False)
    files = {"train": "train.csv", "test": "test.csv"}
    tone = {
        "kind": "text_classification",
        "files": files,
        "text": ["review"],
        "label": "stars",
        "max_tokens": 24,
    }
    source, mine = (
        (finished / "lineage/models/gpt.py").read_text(),
        finished / "lineage/models/mine.py",
    )
    mine.write_text(source)
    old = families(finished)
    change(finished, tasks__tone=tone, grid__tasks=[*TASKS, "tone"])
    change(
        finished,
        models__mine=read_yaml(finished / "params.yaml")["models"]["gpt"],
        grid__models=[*old, "mine"],
    )
    assert "mine.py: its FAMILY is named 'gpt'" in command(
        finished, "python", "-m", "stages.sources", code=2
    )
    mine.write_text(source.replace('name="gpt"', 'name="mine"'))
    new_task = {
        "task@tone",
        "contamination@tone",
        "baselines@tone",
        *(f"evaluate@{v}-0-tone" for v in old),
    }
    assert (
        after_sources(finished)
        == new_task
        | {"tokenizer@mine", "pretrain@mine-0", *(f"evaluate@mine-0-{t}" for t in (*TASKS, "tone"))}
        | ENDS
    )


def test_a_changed_family_file_runs_its_own_stages_only(demo: Demo, finished: Path) -> None:
    path = finished / "lineage/models/bert.py"
    path.write_text(path.read_text() + "\n")
    own = {"tokenizer@bert", "pretrain@bert-0", *(f"evaluate@bert-0-{task}" for task in TASKS)}
    own |= {
        f"{verb}@bert-0-sentiment"
        for verb in ("adapt", "evaluate_adapted")
        if "bert" in adapted(demo)
    }
    assert after_sources(finished) == own | ENDS


def test_plan_and_dry_run_say_that_a_finished_demo_is_fresh(demo: Demo) -> None:
    for words in (("flows.plan", "--json"), ("flows.pipeline", "--dry-run")):
        assert " ".join(("python -m", *words)) in (ROOT / "README.md").read_text()
        said = command(demo.folder, "python", "-m", *words)
        assert "pretrain@bert-0" in said and "never run" not in said
