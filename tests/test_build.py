"""The results of all stages -> one table and one analysis, with planted effects."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flows.scheduler import count_failed_results
from lineage import artifacts, results
from lineage.analysis import build, statistics
from lineage.analysis.build import build_results, read_results_csv, write_results_csv
from lineage.analysis.cells import ResultCell
from lineage.analysis.contamination import build_clean_scores
from lineage.analysis.records import (
    Analysis,
    Comparison,
    Setting,
    TrialCounts,
    read_analysis,
    write_analysis,
)
from lineage.analysis.trials import count_trials
from lineage.config.params import ReportParams
from lineage.errors import InputError
from lineage.report.costs import add_pretraining_costs
from lineage.report.sections.what_to_use import describe_trials
from lineage.results import RESULT_COLUMNS, ResultRow, sort_results
from tests.helpers.study_rows import GPT, GRID, SENSE_GRID, Study, analyze, build_row, render_pages

THREE_SEEDS_GRID = dataclasses.replace(
    GRID, models=("gpt", "bert"), adapt_models=("gpt", "bert"), pretrain_seeds=(0, 1, 2)
)
FAILED_VALUES = {
    "status": "failed",
    "reason": [results.Note("error", "loss is not finite | at step 7")],
    "value": None,
    "num_examples": 0,
}


def comparisons_of(analysis: Analysis, comparison_type: str) -> list[Comparison]:
    return [one for one in analysis.comparisons if one.comparison_type == comparison_type]


def test_a_planted_effect_of_pretraining_is_found_in_every_setting(analysis: Analysis) -> None:
    comparisons = comparisons_of(analysis, "pretraining")
    assert len(comparisons) == 3 * (2 * 2 * 2 + 1), (
        "3 models: 2 tasks x 2 transfers x 2 label counts, and zero-shot"
    )
    assert {one.verdict for one in comparisons} == {"better"}
    assert {(one.first.init, one.second.init) for one in comparisons} == {("pretrained", "random")}


def test_without_a_planted_effect_no_difference_is_significant(tmp_path: Path) -> None:
    folder = Study(tmp_path, SENSE_GRID, pretraining=0.0).write()
    comparisons = comparisons_of(analyze(folder, SENSE_GRID), "pretraining")
    verdicts = {one.verdict for one in comparisons}
    assert len(comparisons) == 12 and verdicts <= {"no significant difference", "equivalent"}


def test_comparisons_pair_items_and_seeds(
    analysis: Analysis, study_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting("sense", "100")
    comparisons = [
        one
        for one in comparisons_of(analysis, "models")
        if one.setting == setting and one.first.transfer == "finetuned"
    ]
    pairs = [(one.first.model, one.second.model) for one in comparisons]
    assert pairs == [("elmo", "gpt"), ("elmo", "bert"), ("gpt", "bert")]
    for one in comparisons:
        assert (one.num_examples, one.repetitions) == (400, 3)
    means = [
        analysis.find_score(s, setting).mean for s in (comparisons[0].first, comparisons[0].second)
    ]
    assert comparisons[0].difference == pytest.approx(means[0] - means[1])
    estimate_difference = statistics.estimate_difference

    def without_shared_variances(*scores: Any, **options: Any) -> statistics.Estimate:
        return estimate_difference(*scores, **options | {"seed_variances": ()})

    monkeypatch.setattr(statistics, "estimate_difference", without_shared_variances)
    own_variances_only = analyze(study_folder).comparisons
    wider = [
        shared.standard_error - own.standard_error
        for shared, own in zip(analysis.comparisons, own_variances_only, strict=True)
    ]
    assert min(wider) >= 0 and sum(one > 0 for one in wider) > 0.2 * len(wider), (
        "if the seeds of one comparison agree by chance, the variance of others counts"
    )


def test_systems_are_chosen_on_validation_and_scored_on_test(
    study_results: tuple[pd.DataFrame, Analysis],
) -> None:
    table, analysis = study_results
    assert len(analysis.rankings) == 5
    for ranking in analysis.rankings:
        for standing in ranking.standings:
            system = standing.system
            if system.family == "tfidf":
                continue
            own = table[
                (table["model"] == system.model)
                & (table["task"] == ranking.task)
                & (table["label_count"] == ranking.label_count)
                & (table["split"] == "validation")
                & table["init"].isin(["pretrained", "adapted"])
                & (table["test_set"] == table["task"])
            ]
            means = own.groupby(["init", "transfer"])["value"].mean()
            assert means.idxmax() == (system.init, system.transfer)
            score = analysis.find_score(system, ranking.setting)
            assert score.mean == pytest.approx(standing.mean)


def test_the_same_rows_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study_folder = Study(tmp_path / "study", SENSE_GRID, items=40).write()

    def write(output_folder: Path) -> list[bytes]:
        table, analysis = build_results(study_folder, SENSE_GRID, ReportParams())
        write_results_csv(output_folder / "results.csv", table)
        write_analysis(output_folder / "results.json", analysis)
        return [(output_folder / name).read_bytes() for name in ("results.csv", "results.json")]

    first = write(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert write(tmp_path / "b") == first
    text = b"".join(first).decode()
    assert str(study_folder) not in text and str(tmp_path) not in text
    assert not re.search(r"20\d\d-\d\d-\d\d", text)


def test_results_json_holds_the_whole_analysis(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_analysis(path, analysis)
    assert read_analysis(path) == analysis
    content = json.loads(path.read_text())
    assert content["scores"][0]["system"]["model"] == "elmo"


def test_rows_written_to_csv_are_read_back_unchanged(
    study_results: tuple[pd.DataFrame, Analysis], tmp_path: Path
) -> None:
    table, _ = study_results
    write_results_csv(tmp_path / "results.csv", table)
    rows = read_results_csv(tmp_path / "results.csv")
    table_again = pd.DataFrame(rows, columns=list(RESULT_COLUMNS))
    pd.testing.assert_frame_equal(sort_results(table_again), table, check_dtype=False)
    assert {type(row["label_count"]) for row in rows} == {str}
    json.dumps(rows, allow_nan=False)


def test_results_of_an_earlier_grid_are_ignored(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    grid = dataclasses.replace(GRID, models=("gpt",), adapt_models=("gpt",), tasks=("sentiment",))
    table, analysis = build_results(folder, grid, ReportParams())
    assert set(table["model"]) == {"gpt", "majority", "tfidf"}
    assert [one.model for one in analysis.budget] == ["gpt"]


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    (folder / "rows" / "evaluate-bert-0-sense.parquet").unlink()
    with pytest.raises(InputError, match=r"evaluate-bert-0-sense\.parquet.*dvc repro"):
        build_results(folder, GRID, ReportParams())


def test_failed_results_are_listed_with_their_reason(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    fail_stage(folder, "evaluate-bert-0-sense")
    analysis = analyze(folder)
    assert {(one.model, one.finetune_seeds) for one in analysis.failures} == {("bert", (0, 1, 2))}
    pages = render_pages(analysis)
    assert "failed: loss is not finite | at step 7" in pages["html"]
    assert "loss is not finite \\| at step 7" in pages["md"]
    for ranking in analysis.rankings:
        models = [standing.system.model for standing in ranking.standings]
        assert ("bert" in models) == (ranking.task != "sense")


def test_an_adaptation_that_failed_for_one_seed_leaves_the_others(tmp_path: Path) -> None:
    grid = dataclasses.replace(GRID, tasks=("sentiment",), pretrain_seeds=(0, 1))
    folder = Study(tmp_path, grid=grid, items=40).write()
    for path in (folder / "rows").glob("evaluate_adapted-gpt-1-*.parquet"):
        table = artifacts.read_table(path)
        is_lost = (table["test_set"] == "held_unlabelled") & (table["init"] == "adapted")
        artifacts.write_table(path, table[~is_lost])
    effects = analyze(folder, grid).adaptation
    assert {one.model for one in effects} == {*GRID.adapt_models}


def test_an_ablation_is_compared_with_its_original_only(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    grid = dataclasses.replace(GRID, ablation_of={"gpt": "elmo"})
    _, analysis = build_results(folder, grid, ReportParams())
    own = [one for one in analysis.comparisons if "gpt" in (one.first.model, one.second.model)]
    types = {one.comparison_type for one in own}
    assert types <= {"ablation", "pretraining", "adaptation"}
    ablations = [one for one in own if one.comparison_type == "ablation"]
    assert ablations
    for one in ablations:
        assert (one.first.model, one.second.model) == ("gpt", "elmo")
        assert one.first.init == one.second.init != "random"
        assert one.first.transfer == one.second.transfer
    assert comparisons_of(analysis, "models")


def test_the_report_says_how_many_configurations_were_tried(tmp_path: Path) -> None:
    folder = Study(tmp_path / "results", SENSE_GRID, items=40).write()
    analysis = analyze(folder, SENSE_GRID)
    methods = ("linear_probe", "finetune", "tfidf")
    assert analysis.trials == tuple(TrialCounts(method, 1, 1) for method in methods)
    assert "nothing was tuned on validation" in describe_trials(analysis.trials)
    path = folder / "rows/evaluate-gpt-0-sense.parquet"
    table = artifacts.read_table(path)
    is_finetuned = table["transfer"] == "finetuned"
    finetuned = table[is_finetuned & (table["split"] == "validation")]
    trials = [finetuned.assign(trial=str(number)) for number in range(3)]
    artifacts.write_table(path, pd.concat([table, *trials], ignore_index=True))
    analysis = analyze(folder, SENSE_GRID)
    assert analysis.trials[1] == TrialCounts("finetune", 1, 3)
    assert describe_trials(analysis.trials) == (
        "Validation chose among 1 to 3 configurations of fine-tuning, depending on the "
        "system: tuning is not matched."
    )
    tried = pd.concat([table[is_finetuned], *trials])
    failed = finetuned.assign(model="bert", trial="chosen", split="test", status="failed")
    assert count_trials(tried) == (TrialCounts("finetune", 3, 3),)
    assert count_trials(pd.concat([tried, failed])) == (TrialCounts("finetune", 3, 3),), (
        "a failed result has no score"
    )
    matched = [TrialCounts("finetune", 3, 3), TrialCounts("tfidf", 4, 4)]
    assert describe_trials(matched) == (
        "For every system, random-init baselines too, validation chose among 3 configurations of "
        "fine-tuning and 4 configurations of TF-IDF."
    )


def fail_stage(folder: Path, stage: str) -> None:
    """Mark the results of a stage as failed.

    Random-init baselines stay, because their pretraining cannot fail.
    """
    table = artifacts.read_table(folder / "rows" / f"{stage}.parquet")
    is_failed = table["init"] != "random"
    predictions = artifacts.read_table(folder / "predictions" / f"{stage}.parquet")
    rows = results.results_frame(
        [
            results.ResultRow(**(row | (FAILED_VALUES if failed else {})))
            for row, failed in zip(row_dicts(table), is_failed, strict=True)
        ]
    )
    artifacts.write_table(folder / "rows" / f"{stage}.parquet", rows)
    artifacts.write_table(
        folder / "predictions" / f"{stage}.parquet", predictions[predictions["init"] == "random"]
    )


def row_dicts(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(k): None if pd.isna(v) else v for k, v in row.items()}
        for row in table.astype(object).to_dict("records")
    ]


def test_one_failed_pretraining_of_three_is_listed_and_changes_no_mean(tmp_path: Path) -> None:
    folder = Study(tmp_path, grid=THREE_SEEDS_GRID, items=60).write()
    for stage in (
        "evaluate-bert-1-sentiment",
        "evaluate-bert-1-sense",
        "evaluate-bert-1-agreement",
        "evaluate_adapted-bert-1-sentiment",
    ):
        fail_stage(folder, stage)
    budget = folder / "budgets/pretrain-bert-1.json"
    artifacts.write_json(
        budget, artifacts.read_json(budget) | {"text_bytes": 5, "status": "failed"}
    )
    for seed, text_bytes_read in enumerate(([0, 90], [], [0, 100])):
        artifacts.write_table(
            folder / f"curves/adapt-bert-{seed}-sentiment.parquet",
            pd.DataFrame({"text_bytes": text_bytes_read}, dtype="float64"),
        )
    analysis = analyze(folder, THREE_SEEDS_GRID)
    assert {(one.model, one.pretrain_seeds) for one in analysis.failures} == {("bert", (1,))}
    text_bytes = {one.model: one.text_bytes for one in analysis.budget}
    assert text_bytes == {"gpt": 4_000_000, "bert": 4_000_000}
    adapted = {one.text_bytes for one in analysis.adaptation if one.model == "bert"}
    assert adapted == {95.0}
    section = render_pages(analysis)["md"].split("## Failed")[-1]
    assert "| 0, 1, 2 of pretraining 1 |" in section and "| all of pretraining 1 |" in section
    stages = {}
    for seed, seconds in enumerate((60.0, 1.0, 80.0)):
        digest = artifacts.file_digest(folder / f"curves/pretrain-bert-{seed}.parquet")
        stages[f"pretrain@bert-{seed}"] = {"seconds": seconds, "curve_sha256": digest}
    lines = add_pretraining_costs(analysis.budget, stages, curves_dir=folder / "curves")
    assert {one.model: one.seconds for one in lines} == {"gpt": None, "bert": 70.0}
    stages["pretrain@bert-2"]["own_seconds"] = 40.0  # the core was shared with another program
    lines = add_pretraining_costs(analysis.budget, stages, curves_dir=folder / "curves")
    assert {one.model: one.seconds for one in lines} == {"gpt": None, "bert": 50.0}
    for seed in (0, 2):
        budget = folder / f"budgets/pretrain-bert-{seed}.json"
        artifacts.write_json(budget, artifacts.read_json(budget) | {"status": "failed"})
    budgets = analyze(folder, THREE_SEEDS_GRID).budget
    assert {one.model for one in budgets} == {"gpt", "bert"}, (
        "if all seeds failed, all of them count"
    )


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_repetition_with_a_failed_fold_counts_in_neither_mean(is_complete: bool) -> None:
    cell = ResultCell(GPT, "sense", "text_classification", "all", "accuracy", 100, 10)
    cell.seed_values = {(0, 0): 0.8} | ({(0, 1): 0.2} if is_complete else {})
    own = dataclasses.asdict(GPT) | {"label_count": "all", "pretrain_seed": 0}
    rows = [
        build_row(**own, finetune_seed=seed, fold=fold, item_filter="clean", value=value)
        for seed, value in ((0, 0.8), (1, 0.2))
        for fold in (0, 1)
    ]
    clean = results.results_frame(rows[: 4 if is_complete else 3])
    (table,) = build_clean_scores(clean, [[cell]])
    (score,) = table.systems
    expected = pytest.approx(0.5 if is_complete else 0.8)
    assert score.all_items == expected and score.clean_items == expected


def test_failures_of_a_model_are_listed_by_head_and_group(tmp_path: Path) -> None:
    study = Study(tmp_path, items=40)
    folder = study.write()
    first, _ = next(study.cells("bert", 0, "sense", "pretrained"))
    failed = [
        build_row(**first | FAILED_VALUES | {"head": head, "group": group})
        for head, group in (("linear", "all"), ("bilstm", "all"), ("linear", "rare"))
    ]
    own = [*study.cells("bert", 0, "sense", "random")]
    study.evaluate("evaluate-bert-0-sense", own, extra_rows=failed)
    analysis = analyze(folder)
    assert [(one.head, one.group) for one in analysis.failures] == [
        ("bilstm", "all"),
        ("linear", "all"),
        ("linear", "rare"),
    ]
    md = render_pages(analysis)["md"]
    assert "| sense | BERT, frozen + BiLSTM |" in md
    assert "| sense, group rare | BERT, frozen |" in md


def test_an_extra_test_set_has_its_own_swap_consistency() -> None:
    rows = [
        build_row(metric="swap_consistency", value=value, test_set=test_set)
        for test_set, value in (("sense", 1.0), ("other", 0.5))
    ]
    scores = build.swap_consistency(results.results_frame(rows), "test")
    assert {one.task: one.value for one in scores} == {"sense": 1.0, "sense on other": 0.5}


def trial_rows(trials: list[str], **changes: Any) -> list[ResultRow]:
    """Return one row per trial; "chosen" is scored on test, and the others on validation."""
    values: dict[str, Any] = {
        "init": "pretrained",
        "transfer": "finetuned",
        "head": "linear",
        "label_count": "100",
        "train_examples": 100,
    }
    splits = {trial: "test" if trial == "chosen" else "validation" for trial in trials}
    return [
        build_row(**values | changes, trial=trial, split=split) for trial, split in splits.items()
    ]


def test_systems_without_trials_do_not_count_as_tuned_less() -> None:
    trials = ["0", "1", "chosen"]
    tfidf = {
        "model": "tfidf",
        "family": "tfidf",
        "init": "none",
        "transfer": "none",
        "head": "none",
    }
    matched = [*trial_rows(trials), *trial_rows(trials, **tfidf)]
    without_choice = [
        *trial_rows(["chosen"], model="duet", family=results.ENSEMBLE_FAMILY),
        *trial_rows(["chosen"], kind="translation", task="de"),
    ]
    table = results.results_frame([*matched, *without_choice])
    tfidf_counts = TrialCounts("tfidf", 2, 2)
    assert count_trials(table) == (TrialCounts("finetune", 2, 2), tfidf_counts)
    fewer = trial_rows(["chosen"], model="bert", family="bert")
    assert count_trials(results.results_frame([*matched, *fewer])) == (
        TrialCounts("finetune", 1, 2),
        tfidf_counts,
    )


def test_a_failed_trial_does_not_count_as_a_failed_result(tmp_path: Path) -> None:
    failed: dict[str, Any] = {
        "status": "failed",
        "reason": [results.Note("error", "the loss is nan")],
        "value": None,
    }
    failed_trials = trial_rows(["0"], **failed)
    chosen = trial_rows(["chosen"])
    for more, count in (([], 0), (trial_rows(["chosen"], model="bert", **failed), 1)):
        table = results.results_frame([*chosen, *failed_trials, *more])
        write_results_csv(tmp_path / "reports" / "results.csv", table)
        assert count_failed_results(tmp_path) == count
