"""The report finds planted effects, is reproducible byte by byte, and needs no network."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from lineage import artifacts
from lineage.analysis import statistics
from lineage.analysis.build import (
    build_results,
    count_trials,
    read_results_csv,
    write_results_csv,
)
from lineage.analysis.champion import ChampionOutcome
from lineage.analysis.decision import decide, largest_label_counts
from lineage.analysis.records import (
    Analysis,
    Comparison,
    Setting,
    System,
    TrialCounts,
    read_analysis,
    write_analysis,
)
from lineage.artifacts import file_digest
from lineage.config.params import ReportParams
from lineage.errors import InputError
from lineage.report import formatting, markdown, page, publication, ranked_systems
from lineage.report.decisions import (
    describe_decision,
    name_labels,
    order_decisions,
    summarize_decisions,
)
from lineage.report.formatting import format_model
from lineage.report.provenance import Provenance
from lineage.report.section import Section
from lineage.report.sections.loss_curves import draw_loss_curves
from lineage.report.sections.models import format_training_cost
from lineage.report.sections.tasks import format_usage
from lineage.report.sections.what_to_use import build_decision_table, describe_trials
from lineage.results import RESULT_COLUMNS, Note, ResultRow, sort_results
from tests.sections import report_of
from tests.study_rows import GRID, Study, render_pages

DESCRIPTIONS = [
    {"model": name, "unit": "words | pieces", "objective": "next <token>"} for name in GRID.models
]
PROVENANCE = Provenance(
    pipeline="1a2b",
    package="lineage 0.2.0, code sha256 1a2b",
    study="git commit 0ed60ea",
    parameters="",
    hosts="",
    devices="",
    compute_time="",
    python="",
    versions="",
)
Results = tuple[pd.DataFrame, Analysis]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Study(tmp_path_factory.mktemp("study")).write()


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return build_results(folder, GRID, ReportParams())


@pytest.fixture(scope="module")
def analysis(results: Results) -> Analysis:
    return results[1]


def stage_metadata(folder: Path, model: str, **costs: float) -> dict[str, Any]:
    """Return what a pretraining stage recorded, for the curve in this folder."""
    curve = file_digest(folder / f"curves/pretrain-{model}-0.parquet")
    return {"stage": f"pretrain@{model}-0", "curve_sha256": curve, **costs}


@pytest.fixture(scope="module")
def pages(analysis: Analysis, folder: Path) -> dict[str, str]:
    stages = {
        f"pretrain@{name}-0": stage_metadata(folder, name, seconds=41.0, peak_memory_bytes=7e8)
        for name in GRID.models
    }
    budget = publication.add_pretraining_costs(
        analysis.budget, stages, curves_dir=folder / "curves"
    )
    analysis = dataclasses.replace(analysis, budget=budget)
    return page.render_report(
        analysis,
        decide(analysis, {}),
        provenance=PROVENANCE,
        model_descriptions=DESCRIPTIONS,
    )


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
    grid = dataclasses.replace(GRID, tasks=("sense",), adapt_tasks=(), adapt_models=())
    folder = Study(tmp_path, grid=grid, pretraining=0.0).write()
    comparisons = comparisons_of(build_results(folder, grid, ReportParams())[1], "pretraining")
    verdicts = {one.verdict for one in comparisons}
    assert len(comparisons) == 12 and verdicts <= {"no significant difference", "equivalent"}


def test_comparisons_pair_items_and_seeds(
    analysis: Analysis, folder: Path, monkeypatch: pytest.MonkeyPatch
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
        assert (one.num_examples, one.repetitions, one.num_comparisons) == (400, 3, 3)
    means = [
        analysis.find_score(s, setting).mean for s in (comparisons[0].first, comparisons[0].second)
    ]
    assert comparisons[0].difference == pytest.approx(means[0] - means[1])
    estimate_difference = statistics.estimate_difference

    def without_shared_variances(*scores: Any, **options: Any) -> statistics.Estimate:
        return estimate_difference(*scores, **options | {"seed_variances": ()})

    monkeypatch.setattr(statistics, "estimate_difference", without_shared_variances)
    own_variances_only = build_results(folder, GRID, ReportParams())[1].comparisons
    wider = [
        shared.standard_error - own.standard_error
        for shared, own in zip(analysis.comparisons, own_variances_only, strict=True)
    ]
    assert min(wider) >= 0 and sum(one > 0 for one in wider) > 0.2 * len(wider), (
        "if the seeds of one comparison agree by chance, the variance of others counts"
    )


def test_systems_are_chosen_on_validation_and_scored_on_test(results: Results) -> None:
    table, analysis = results
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


def test_the_same_rows_give_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(output_folder: Path) -> list[bytes]:
        table, analysis = build_results(folder, GRID, ReportParams())
        write_results_csv(output_folder / "results.csv", table)
        write_analysis(output_folder / "results.json", analysis)
        return [(output_folder / name).read_bytes() for name in ("results.csv", "results.json")]

    first = write(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert write(tmp_path / "b") == first
    text = b"".join(first).decode()
    assert str(folder) not in text and str(tmp_path) not in text
    assert not re.search(r"20\d\d-\d\d-\d\d", text)


def test_results_json_holds_the_whole_analysis(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_analysis(path, analysis)
    assert read_analysis(path) == analysis
    content = json.loads(path.read_text())
    assert content["schema_version"] == 7
    assert content["scores"][0]["system"]["model"] == "elmo"


def test_rows_written_to_csv_are_read_back_unchanged(results: Results, tmp_path: Path) -> None:
    table, _ = results
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
    study = Study(tmp_path, items=40)
    folder = study.write()
    run_keys = ("finetune_seed", "label_count", "transfer", "features", "head")
    first, _ = next(study.cells("bert", 0, "sense", "pretrained"))
    cell = {key: value for key, value in first.items() if key not in run_keys}
    failed = []
    for seed in GRID.finetune_seeds:
        for label_count in ("100", "all"):
            for transfer, features in (("frozen", "scalar_mix"), ("finetuned", "last")):
                failed.append(
                    ResultRow(
                        **cell,
                        kind="word_sense",
                        metric="accuracy",
                        finetune_seed=seed,
                        label_count=label_count,
                        transfer=transfer,  # type: ignore[arg-type]
                        features=features,
                        value=None,
                        num_examples=0,
                        status="failed",
                        reason=[Note("error", "loss is not finite | at step 7")],
                    )
                )
    own = [*study.cells("bert", 0, "sense", "random")]
    study.evaluate("evaluate-bert-0-sense", own, extra_rows=failed)
    analysis = build_results(folder, GRID, ReportParams())[1]
    assert {(one.model, one.finetune_seeds) for one in analysis.failures} == {("bert", (0, 1, 2))}
    pages = render_pages(analysis)
    assert "failed: loss is not finite | at step 7" in pages["html"]
    assert "loss is not finite \\| at step 7" in pages["md"]
    for ranking in analysis.rankings:
        models = [standing.system.model for standing in ranking.standings]
        assert ("bert" in models) == (ranking.task != "sense")


class PageParser(HTMLParser):
    """Collects the text of a page and what a browser would fetch for it."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in attrs}
        if tag in ("link", "iframe", "img", "object", "embed", "base"):
            self.fetched.append(tag)
        self.fetched += [
            value
            for key, value in attributes.items()
            if key in ("src", "href", "xlink:href") and not value.startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_loads_no_other_file(pages: dict[str, str]) -> None:
    parser = PageParser()
    parser.feed(pages["html"])
    assert parser.fetched == []
    assert "@import" not in pages["html"] and "url(" not in pages["html"]


def test_both_pages_open_with_the_decisions(analysis: Analysis, pages: dict[str, str]) -> None:
    parser = PageParser()
    parser.feed(pages["html"])
    text = " ".join(" ".join(parser.words).split())
    own = decide(analysis, {})
    answer = summarize_decisions(analysis, own)
    for page_text in (text, pages["md"]):
        assert page_text.index(answer) < page_text.rindex("Provenance")
    assert [(one.task, one.label_count) for one in order_decisions(own)] == [
        ("sentiment", "all"),
        ("sentiment", "100"),
        ("sense", "all"),
        ("sense", "100"),
        ("agreement", "none"),
    ]
    lines = markdown.render_page(
        [Section(blocks=(build_decision_table(report_of(analysis, own)),))]
    )
    assert len(lines.splitlines()) == 2 + len(own) and lines in pages["md"]
    for one in own:
        assert f'title="{describe_decision(one)}"' in pages["html"]
    systems = {(one.system, one.task) for one in analysis.scores if one.mean is not None}
    assert pages["html"].count('<svg class="strip"') >= len(systems), "one strip per system"


def test_all_css_variables_of_the_figures_are_defined(pages: dict[str, str]) -> None:
    used = set(re.findall(r"var\((--\w+)", pages["html"]))
    defined = set(re.findall(r"(--\w+):", pages["html"]))
    assert used and used <= defined


def test_adaptation_that_did_not_help_is_marked(analysis: Analysis, pages: dict[str, str]) -> None:
    improved = {one.model: bool(one.num_improved) for one in analysis.adaptation}
    assert improved == {"elmo": True, "gpt": True, "bert": False}
    marked = {
        (score.system.model, score.system.init)
        for score in analysis.scores
        if "†" in format_usage(analysis, score)
    }
    assert marked == {("bert", "adapted")}
    assert "† did not fall" in pages["html"] and "† did not fall" in pages["md"]


def test_losses_of_different_units_are_in_different_charts(analysis: Analysis) -> None:
    charts = draw_loss_curves(analysis)
    assert len(charts) == 5
    assert not any("masked" in chart and "per byte" in chart for chart in charts)


def test_names_from_outside_are_escaped(pages: dict[str, str]) -> None:
    assert "next &lt;token&gt;" in pages["html"] and "next <token>" not in pages["html"]
    assert "words \\| pieces" in pages["md"]


def test_each_model_has_its_cost_per_byte_of_text(pages: dict[str, str]) -> None:
    assert "| model | unit | objective | cost |" in pages["md"]
    for name in GRID.models:
        line = f"| {format_model(name)} | words \\| pieces | next &lt;token> | 775 k FLOPs a byte |"
        assert line in pages["md"]
    assert pages["html"].count('<td class="n">775 k FLOPs a byte</td>') == len(GRID.models)


def test_a_model_whose_flops_are_not_counted_has_no_cost(analysis: Analysis) -> None:
    budget = dataclasses.replace(analysis.budget[0], model="glove", train_flops=None)
    assert format_training_cost(budget) == "n/a"
    assert format_training_cost(None) == "n/a", "a model without a line in the budget"


def test_the_terminal_table_is_plain_where_there_is_no_terminal(
    analysis: Analysis, capsys: pytest.CaptureFixture[str]
) -> None:
    own = decide(analysis, {})
    page.print_table(analysis, own, Console(width=120))
    output = capsys.readouterr().out
    assert output.isascii() and "BERT adapted, fine-tuned" in output
    assert summarize_decisions(analysis, own) in output
    for one in own:
        assert f"- {one.task}, {name_labels(one)}: {describe_decision(one)}" in output
    assert output.count("*") >= 5, "one for each setting, and in the caption"


def test_an_adaptation_that_failed_for_one_seed_leaves_the_others(tmp_path: Path) -> None:
    grid = dataclasses.replace(GRID, pretrain_seeds=(0, 1))
    folder = Study(tmp_path, grid=grid).write()
    for path in (folder / "rows").glob("evaluate_adapted-gpt-1-*.parquet"):
        table = artifacts.read_table(path)
        is_lost = (table["test_set"] == "held_unlabelled") & (table["init"] == "adapted")
        artifacts.write_table(path, table[~is_lost])
    effects = build_results(folder, grid, ReportParams())[1].adaptation
    assert {one.model for one in effects} == {*GRID.adapt_models}


def test_pretraining_costs_are_those_of_the_training_that_wrote_the_curve(
    analysis: Analysis, folder: Path
) -> None:
    gpt = stage_metadata(folder, "gpt", seconds=15.0, peak_memory_bytes=5)
    stages = {
        "pretrain@gpt-0": gpt,
        "pretrain@gpt-1": gpt | {"seconds": 600.0},  # a result of an earlier grid
        "pretrain@elmo-0": stage_metadata(folder, "elmo", seconds=9.0)
        | {"curve_sha256": "of another budget"},
    }
    budget = publication.add_pretraining_costs(
        analysis.budget, stages, curves_dir=folder / "curves"
    )
    by_model = {one.model: one for one in budget}
    assert by_model["gpt"].seconds == 15 and by_model["gpt"].peak_memory_bytes == 5
    assert by_model["bert"].seconds is None and by_model["elmo"].seconds is None


def test_the_note_links_the_runs_that_made_the_cached_results(analysis: Analysis) -> None:
    stages = {
        "pretrain@gpt-0": {"mlflow_run_id": "abc", "pipeline_id": "old"},
        "report": {"mlflow_run_id": "def", "pipeline_id": "new"},
    }
    cached = publication.find_cached_runs(stages, pipeline="new")
    assert cached == {"pretrain@gpt-0": "abc"}
    own = decide(analysis, {})
    outcome = ChampionOutcome("sense", "gpt-finetuned", 3, "gpt-finetuned", 3, None)
    trained = publication.find_training_runs(stages)
    assert trained == ["abc"], "only the stages that pretrain"
    changes = ["sense: Word2vec instead of TF-IDF", "sentiment: new"]
    note = publication.format_run_note(
        analysis, own, [outcome], changes, cached, trained, experiment_id="1"
    )
    assert "Since the last run: sense: Word2vec instead of TF-IDF; sentiment: new\n" in note
    assert "- **sense**: The champion is still gpt-finetuned (version 3)" in note
    link = "[pretrain@gpt-0](#/experiments/1/runs/abc?workflowType=machine_learning)"
    assert link in note and summarize_decisions(analysis, own) in note
    assert "(#/metric?runs=%5B%22abc%22%5D&experiments=%5B%221%22%5D&metric=%22by_text_kb" in note
    many = {f"evaluate@gpt-{i}-sentiment": "f" * 32 for i in range(200)}
    note = publication.format_run_note(analysis, own, [], [], many, trained, experiment_id="1")
    assert len(note) <= 8000


def test_each_candidate_is_ranked_once_and_the_registered_one_by_its_own_model(
    analysis: Analysis, tmp_path: Path
) -> None:
    task = analysis.rankings[0].task
    with artifacts.create_artifact(tmp_path / task, "task"):
        pass
    datasets = ranked_systems.describe_tasks(analysis, tmp_path)
    assert list(datasets) == [task], "the items of other tasks are not here"
    decisions = decide(analysis, {})
    everything = ranked_systems.list_ranked_systems(
        analysis, decisions, datasets, registered_tasks=()
    )
    largest = largest_label_counts(analysis.rankings)[task]
    assert [one.score.value for one in everything] == [one.mean for one in largest.standings]
    assert {one.params["label_count"] for one in everything} == {largest.label_count}
    others = ranked_systems.list_ranked_systems(
        analysis, decisions, datasets, registered_tasks=[task]
    )
    assert len(others) == len(everything) - 1
    own = next(one for one in decisions if one.setting == largest.setting)
    assert own.use.standing.system.model not in [one.params["model"] for one in others]


def build_comparison(**changes: Any) -> Comparison:
    system = System("gpt", "gpt", "pretrained", "none", "finetuned", "last", "linear", "none")
    values: dict[str, Any] = {
        "comparison_type": "models",
        "task": "sense",
        "label_count": "all",
        "metric": "accuracy",
        "first": system,
        "second": dataclasses.replace(system, model="bert"),
        "difference": 0.024,
        "ci_low": -1.0,
        "ci_high": 1.0,
        "standard_error": 0.1,
        "degrees_of_freedom": 1.0,
        "detectable": None,
        "pretrain_runs": 1,
        "repetitions": 2,
        "num_examples": 400,
        "num_comparisons": 1,
        "verdict": "no significant difference",
    }
    return Comparison(**values | changes)


def test_an_interval_that_the_data_cannot_support_is_replaced_by_the_reason() -> None:
    """Two seeds that differ leave one degree of freedom."""
    cases = [
        ({"num_examples": 3}, "+2.4 points, too few items for an interval"),
        ({}, "+2.4 points, too few seeds for an interval"),
        (
            {"degrees_of_freedom": 2.0, "ci_low": -0.05, "ci_high": 0.1},
            "+2.4 points, −5.0 to +10.0",
        ),
    ]
    for changes, text in cases:
        assert formatting.format_comparison(build_comparison(**changes)) == text


def test_an_ablation_is_compared_with_its_original_only(tmp_path: Path) -> None:
    folder = Study(tmp_path).write()
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
    folder = Study(tmp_path / "results").write()
    _, analysis = build_results(folder, GRID, ReportParams())
    methods = ("linear_probe", "finetune", "tfidf")
    assert analysis.trials == tuple(TrialCounts(method, 1, 1) for method in methods)
    assert "nothing was tuned on validation" in describe_trials(analysis.trials)
    path = folder / "rows/evaluate-gpt-0-sense.parquet"
    table = artifacts.read_table(path)
    is_finetuned = table["transfer"] == "finetuned"
    finetuned = table[is_finetuned & (table["split"] == "validation")]
    trials = [finetuned.assign(trial=str(number)) for number in range(3)]
    artifacts.write_table(path, pd.concat([table, *trials], ignore_index=True))
    _, analysis = build_results(folder, GRID, ReportParams())
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


def test_markdown_shows_html_of_a_label_as_text() -> None:
    text = markdown.escape_cell("<img src=x onerror=alert(1)> | a\nb")
    assert text == "&lt;img src=x onerror=alert(1)> \\| a b"
