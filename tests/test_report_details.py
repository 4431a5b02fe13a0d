"""The report page shows failures, notes on the data, ties, ablations and costs."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from lineage import artifacts, results
from lineage.analysis import build, cells
from lineage.analysis.build import build_results
from lineage.analysis.records import Analysis, DuplicateLabelCount, LossCurve, Setting, System
from lineage.config.params import ReportParams
from lineage.data.dataset_stats import SplitStats
from lineage.report import figures, publication, styles
from lineage.report.formatting import format_comparison, format_system
from lineage.report.sections.loss_curves import draw_loss_curves
from lineage.report.sections.tasks import list_task_scores
from lineage.report.sections.what_to_use import draw_main_panels
from lineage.report.task_notes import describe_task_data
from lineage.results import Note
from tests.study_rows import GRID, Study, build_analysis, render_pages

GPT = System("gpt", "gpt", "pretrained", "none", "frozen", "scalar_mix", "linear", "none")


def small_analysis(folder: Path, **changes: Any) -> Analysis:
    """Return the analysis of a study with 40 items."""
    grid = dataclasses.replace(GRID, **changes)
    return build_results(Study(folder, items=40).write(), grid, ReportParams())[1]


def test_failures_of_a_model_are_listed_by_head_and_group(tmp_path: Path) -> None:
    study = Study(tmp_path, items=40)
    folder = study.write()
    run_keys = ("finetune_seed", "label_count", "transfer", "features", "head")
    first, _ = next(study.cells("bert", 0, "sense", "pretrained"))
    cell = {key: value for key, value in first.items() if key not in run_keys}
    failed = [
        results.ResultRow(
            **cell,
            finetune_seed=0,
            label_count="all",
            transfer="frozen",
            head=head,
            group=group,
            features="scalar_mix",
            kind="word_sense",
            metric="accuracy",
            value=None,
            num_examples=0,
            status="failed",
            reason=[Note("error", "why")],
        )
        for head, group in (("linear", "all"), ("bilstm", "all"), ("linear", "rare"))
    ]
    own = [*study.cells("bert", 0, "sense", "random")]
    study.evaluate("evaluate-bert-0-sense", own, extra_rows=failed)
    analysis = build_results(folder, GRID, ReportParams())[1]
    assert [(one.head, one.group) for one in analysis.failures] == [
        ("bilstm", "all"),
        ("linear", "all"),
        ("linear", "rare"),
    ]
    md = render_pages(analysis)["md"]
    assert "| sense | BERT, frozen + BiLSTM |" in md
    assert "| sense, group rare | BERT, frozen |" in md


def swap_rows(task: str, **values: list[float]) -> list[results.ResultRow]:
    """Return rows of swap consistency by init, a value per fine-tuning seed."""
    return [
        results.ResultRow(
            model="gpt",
            family="gpt",
            task="sense",
            kind="text_classification",
            metric="swap_consistency",
            value=value,
            num_examples=40,
            finetune_seed=seed,
            init=init,  # type: ignore[arg-type]
            transfer="finetuned",
            head="linear",
            label_count="all",
            test_set=task,
        )
        for init, seed_values in values.items()
        for seed, value in enumerate(seed_values)
    ]


def test_notes_on_the_data_and_on_swapped_texts_are_next_to_their_task(tmp_path: Path) -> None:
    analysis = small_analysis(tmp_path)
    train = SplitStats(
        90, invalid_tags=2, numeric_tags=9, tags_without_scheme=8, dropped={"unusable": 4}
    )
    test = SplitStats(
        40, duplicates_of_train=3, groups_in_train=30, blank_words=5, tags_not_in_train=6
    )
    summaries = [
        replace(one, splits={"train": train, "test": test}) if one.task == "sense" else one
        for one in analysis.tasks
    ]
    table = results.results_frame(swap_rows("sense", pretrained=[0.9, 0.8], random=[1.0, 1.0]))
    changed = replace(
        analysis,
        tasks=tuple(summaries),
        swap_consistency=tuple(build.swap_consistency(table, "test")),
        duplicate_label_counts=(DuplicateLabelCount("sense", "100", 49, "all"),),
    )
    notes = [
        "3 of the 40 test items also occur in train, word for word.",
        "2 of the 90 train sentences have tags that break their scheme",
        "4 train items were dropped: empty or not distinguishable.",
        "6 of the 40 test sentences have a tag or a type of span that train lacks",
        "5 blank words of test were dropped, with their tags.",
        "30 of the 40 test items belong to groups that train has too.",
        "The 8 tags have no span scheme, so accuracy is scored.",
        "The 9 tags are numbers without names, so accuracy is scored.",
        "There are only 49 labels, so 100 labels are the same setting as all.",
    ]
    swaps = "GPT, fine-tuned 85.0 %, all others 100 %."
    notes.append(f"Same answer when the two texts are swapped, all labels: {swaps}")
    for text in render_pages(changed).values():
        for note in notes:
            assert text.count(note) == 1, note
    assert "word for word" not in render_pages(analysis)["md"]


def test_the_stated_budget_is_that_of_the_model_that_read_the_most_text(tmp_path: Path) -> None:
    """With several epochs, a family that counts co-occurrences reads less text than the others."""
    analysis = small_analysis(tmp_path)
    budget = [
        replace(one, text_bytes=4e6 if number else 1e6)
        for number, one in enumerate(analysis.budget)
    ]
    text = render_pages(replace(analysis, budget=tuple(budget)))["html"]
    assert "BERT · 4 MB of text" in text.replace("\n", " ")


def test_an_extra_test_set_has_its_own_swap_consistency() -> None:
    rows = [*swap_rows("sense", pretrained=[1.0]), *swap_rows("other", pretrained=[0.5])]
    scores = build.swap_consistency(results.results_frame(rows), "test")
    assert {one.task: one.value for one in scores} == {"sense": 1.0, "sense on other": 0.5}


def scores_of(task: str, methods: list[tuple[str, str, list[str]]]) -> list[cells.ResultCell]:
    """Return cells with these transfers, heads and label counts."""
    return [
        cells.ResultCell(
            replace(GPT, transfer=transfer, head=head),
            task,
            "text_classification",
            label_count,
            "accuracy",
        )
        for transfer, head, label_counts in methods
        for label_count in label_counts
    ]


def test_settings_that_a_study_left_out_are_named(tmp_path: Path) -> None:
    counts = ["100", "1000", "all"]
    methods = [("frozen", "linear", counts), ("finetuned", "linear", ["100", "all"])]
    own = scores_of("mood", methods)
    note = "Not run: fine-tuned with 1,000 labels"
    assert describe_task_data(build_analysis(own), "mood") == [f"{note}."]
    other = scores_of("names", [("frozen", "bilstm_crf", ["all"])])
    both = build_analysis([*own, *other])
    assert describe_task_data(both, "mood") == [f"{note}, a BiLSTM probe."]
    assert not describe_task_data(both, "names")


def test_a_table_has_the_systems_with_the_most_labels_first(tmp_path: Path) -> None:
    """A score with 100 labels is not ranked among those with all."""
    analysis = small_analysis(tmp_path)
    kept = tuple(
        one
        for one in analysis.scores
        if (one.system.transfer, one.label_count) != ("finetuned", "all")
    )
    analysis = replace(analysis, scores=kept)
    table = next(one for one in list_task_scores(analysis, []) if one.task == "sentiment")
    has_all = ["all" in line.scores for line in table.lines]
    assert True in has_all and False in has_all
    assert has_all == sorted(has_all, reverse=True)
    for group in (True, False):
        own = [line for line in table.lines if ("all" in line.scores) == group]
        means = [line.scores["all" if group else "100"].mean for line in own]
        assert means == sorted(means, reverse=True)  # type: ignore[type-var]


def test_the_main_figure_shows_the_other_systems_of_a_model(tmp_path: Path) -> None:
    analysis = small_analysis(tmp_path)
    panel = draw_main_panels(analysis, "all")[0]
    ranking = [
        one for one in analysis.rankings if (one.task, one.label_count) == ("sentiment", "all")
    ][-1]
    models = [one.system.model for one in ranking.standings]
    others = [
        one
        for one in analysis.scores_of(Setting("sentiment", "all"))
        if one.system.model in models and one.system.init != "random"
    ]
    assert panel.count('r="2.2"') == len(others) - len(models) > 0


def build_cells(task: str, available: int, label_counts: list[str]) -> list[cells.ResultCell]:
    """Return a cell per label count of a task with this number of labels."""
    found = []
    for label_count in label_counts:
        count = available if label_count == "all" else min(available, int(label_count))
        cell = cells.ResultCell(GPT, task, "word_sense", label_count, "accuracy", count)
        cell.seed_values = {(0, 0): 0.5}
        found.append(cell)
    return found


def test_label_counts_above_the_number_of_labels_are_one_setting() -> None:
    """A setting stays if it has a system that the other lacks, or that has no score there."""
    all_cells = [
        *build_cells("sense", 49, ["30", "100", "all"]),
        *build_cells("mood", 49, ["30", "100"]),
        *build_cells("tone", 100, ["100", "all"]),
        *build_cells("news", 60, ["99", "200"]),
    ]
    kept, dropped = cells.drop_duplicate_label_counts(all_cells)
    assert [cell.setting for cell in kept] == [
        Setting("sense", "30"),
        Setting("sense", "all"),
        Setting("mood", "30"),
        Setting("mood", "100"),
        Setting("tone", "all"),
        Setting("news", "99"),
    ]
    assert dropped == [
        DuplicateLabelCount("sense", "100", 49, "all"),
        DuplicateLabelCount("tone", "100", 100, "all"),
        DuplicateLabelCount("news", "200", 60, "99"),
    ]
    other = replace(all_cells[1], system=replace(GPT, transfer="finetuned"))
    kept_with_other, still_dropped = cells.drop_duplicate_label_counts([*all_cells, other])
    assert len(kept_with_other) == len(kept) + 2 and still_dropped == dropped[1:]
    failed = [replace(c, seed_values={}) if c.label_count == "all" else c for c in all_cells]
    kept, _ = cells.drop_duplicate_label_counts(failed)
    settings = {cell.setting for cell in all_cells} - {Setting("news", "200")}
    assert {cell.setting for cell in kept} == settings


def test_models_have_the_colour_of_their_family_and_the_shape_of_its_architecture() -> None:
    names = ("word2vec", "elmo", "elmo_small", "gpt", "mine", "roberta", "both")
    families = ("word2vec", "elmo", "elmo", "gpt", "taglm", "public", "joined")
    grid = replace(GRID, models=names)
    scores = [scores_of("sense", [("frozen", "linear", ["all"])])[0].summarize() for _ in names]
    scores = [
        replace(score, system=replace(score.system, model=model, family=family))
        for score, model, family in zip(scores, names, families, strict=True)
    ]
    analysis = replace(build_analysis(grid=grid), scores=tuple(scores))
    found = [styles.model_style(analysis, name) for name in names]
    assert len({style.color for style in found}) == len(names), "no two models share a colour"
    assert found[1].color == styles.model_style(analysis, "elmo").color
    assert figures.PALETTE[0] in found[1].color and figures.PALETTE[0] not in found[2].color
    assert [style.marker for style in found] == [
        "square",
        "circle",
        "circle",
        "triangle",
        "circle",
        "diamond",
        "cross",
    ]
    marks = {figures.draw_mark("red", style.marker) for style in found}
    assert len(marks) == 5
    assert styles.model_style(analysis, "tfidf").marker == "bar"


def test_ablations_have_their_own_table(tmp_path: Path) -> None:
    analysis = small_analysis(tmp_path / "ablation", ablation_of={"gpt": "elmo"})
    pages = render_pages(analysis)
    section = pages["md"].partition("## Ablations")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| GPT")]
    expected = [
        f"| {format_system(one.first)} | {format_system(one.second)} | {one.verdict} "
        f"({format_comparison(one)}) |"
        for one in analysis.comparisons
        if one.comparison_type == "ablation"
    ]
    assert expected and sorted(lines) == sorted(expected)
    assert pages["html"].count("<h2>Ablations</h2>") == 1
    for text in render_pages(small_analysis(tmp_path / "plain")).values():
        assert "Ablations" not in text


def test_a_chart_of_many_models_counts_them(tmp_path: Path) -> None:
    def title(names: str) -> str:
        losses = [LossCurve(name, 0, "bits_per_byte", (1, 2), (3.0, 2.0)) for name in names]
        return draw_loss_curves(build_analysis(curves=tuple(losses)))[0]

    assert "a, b, c, d" in title("abcd")
    assert "5 models" in title("abcde") and "a, b" not in title("abcde")


def test_the_cost_of_an_adaptation_is_next_to_its_effect(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    curve = folder / "curves/adapt-gpt-0-sentiment.parquet"
    artifacts.write_table(curve, pd.DataFrame({"text_bytes": [400, 1_001_350], "loss": [3.0, 2.0]}))
    analysis = build_results(folder, GRID, ReportParams())[1]
    text_bytes = {one.model: one.text_bytes for one in analysis.adaptation}
    assert text_bytes == {"elmo": None, "gpt": 1_001_350.0, "bert": None}
    own = {"seconds": 75.0, "curve_sha256": artifacts.file_digest(curve)}
    for seconds, metadata in ((75.0, own), (None, own | {"curve_sha256": "of another one"})):
        effects = publication.add_adaptation_seconds(
            analysis.adaptation,
            {"adapt@gpt-0-sentiment": metadata},
            GRID,
            curves_dir=folder / "curves",
        )
        assert {one.seconds for one in effects if one.model == "gpt"} == {seconds}
        md = render_pages(replace(analysis, adaptation=effects))["md"]
        assert ("| GPT | sentiment | 1 MB | 75 s |" in md) == (seconds is not None)
        assert "| BERT | sentiment | n/a | – |" in md
