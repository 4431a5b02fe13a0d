"""Contaminated items are found and counted, and the scores without them are shown."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.contamination import _mean_over_seeds
from lineage.analysis.records import Analysis, ContaminationCounts
from lineage.config.params import ReportParams
from lineage.data.contamination import NgramIndex
from lineage.language import split_words
from lineage.report.sections.answer import describe_runs
from tests.helpers.notes import format_reason
from tests.helpers.study_rows import GRID, Study, build_analysis, write_overlap
from tests.helpers.user_project import (
    RunStage,
    make_project,
    without_repeat_warnings,
    write_params,
)

# 16 words without punctuation
LONG = "The river rose by a metre overnight , and nobody in the old town slept until it fell ."
SHORT = "A short item of nine words stands here , whole ."


def find_items(*items: str, text: str, language: str = "en") -> list[bool]:
    """Return for each item whether it is found in the text."""
    return NgramIndex([items], language).find_items([text]).tolist()


def test_thirteen_words_in_a_row_are_found_regardless_of_case_and_punctuation() -> None:
    words = split_words(LONG, "en")
    thirteen = [word for word in words if word.isalnum()][2:15]
    assert len(thirteen) == 13
    text = f"Before it ({' '.join(thirteen).upper()}): after it."
    assert find_items(LONG, SHORT, text=text) == [True, False]
    for changed_words in (thirteen[1:], thirteen[:-1], [*thirteen[:6], "very", *thirteen[6:]]):
        assert find_items(LONG, text=f"Before it {' '.join(changed_words)} : after it.") == [False]


def test_a_short_item_must_match_completely_and_a_very_short_one_is_not_checked() -> None:
    assert find_items(SHORT, text=f"Then: {SHORT.lower()} And so on.") == [True]
    assert find_items(SHORT, text="A short item of nine words stands here , broken .") == [False]
    index = NgramIndex([[SHORT, "seven words are too few to tell"], ["", LONG]], "en")
    assert index.long_enough_N.tolist() == [True, True], "one long text per item is enough"
    assert NgramIndex([["seven words are too few to tell"]], "en").long_enough_N.tolist() == [False]
    assert find_items(
        "seven words are too few to tell", text="seven words are too few to tell"
    ) == [False]


def test_a_match_does_not_cross_documents() -> None:
    first, second = LONG.split(" , and ")
    index = NgramIndex([[LONG.replace(" and", "")]], "en")
    assert index.find_items([first, second]).tolist() == [False]
    assert index.find_items([f"{first} {second}"]).tolist() == [True]


def test_chinese_items_match_by_20_characters_or_at_least_12_of_a_short_text() -> None:
    text = "昨天晚上河水上涨了一米老城里没有人睡觉直到水退了"
    assert find_items(text, text=f"他说{text[:20]}。", language="zh") == [True]
    assert find_items(text, text=f"他说{text[:19]}。", language="zh") == [False]
    assert find_items(text[:12], text=text, language="zh") == [True]
    assert not NgramIndex([[text[:11]]], "zh").long_enough_N.any()


def test_the_index_finds_the_same_items_as_a_comparison_of_all_ngrams() -> None:
    rng = np.random.default_rng(3)
    items = [" ".join(rng.choice(["so", "it", "goes"], rng.integers(6, 19))) for _ in range(300)]
    documents = [
        " ".join(rng.choice(["so", "it", "goes"], rng.integers(5, 400))) for _ in range(60)
    ]

    def ngrams(text: str, length: int) -> set[tuple[str, ...]]:
        words = text.split()
        return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}

    document_ngrams = {
        length: set(itertools.chain.from_iterable(ngrams(text, length) for text in documents))
        for length in range(8, 14)
    }

    def occurs(item: str) -> bool:
        length = min(len(item.split()), 13)
        return length >= 8 and not ngrams(item, length).isdisjoint(document_ngrams[length])

    expected = [occurs(item) for item in items]
    assert NgramIndex([items], "en").find_items(documents).tolist() == expected
    assert 30 < sum(expected) < 270


def test_the_stage_searches_the_corpus_and_the_unlabelled_text(
    tmp_path: Path, run_stage: RunStage
) -> None:
    params = make_project(tmp_path)
    mood_task = params["tasks"]["mood"]
    text_column, label_column = mood_task["text"][0], mood_task["label"]
    train, test = (pd.read_csv(tmp_path / f"mood/{split}.csv") for split in ("train", "test"))
    corpus_file = Path(next(iter(sorted((tmp_path / "texts").glob("*.txt")))))
    test.loc[0, text_column], test.loc[1, text_column] = LONG, f"{SHORT} {LONG}"
    test.to_csv(tmp_path / "mood/test.csv", index=False)
    corpus_file.write_text(f"{corpus_file.read_text()}\n{LONG}\n")
    pd.DataFrame({text_column: [f"{SHORT} {LONG[:8]}", "another text"]}).to_csv(
        tmp_path / "mood/more.csv", index=False
    )
    mood_task["files"] |= {"unlabelled": "mood/more.csv"}
    train.assign(
        **{text_column: [SHORT, *train[text_column][1:]], label_column: train[label_column]}
    ).to_csv(tmp_path / "mood/train.csv", index=False)
    params["tasks"] |= {"folded": mood_task | {"files": {"train": "mood/train.csv"}, "folds": 3}}
    params["tasks"]["mood"] = mood_task | {
        "extra_test_sets": {"again": {"files": {"test": "mood/train.csv"}}}
    }
    params["grid"] |= {"tasks": ["mood", "folded"], "adapt_models": [], "adapt_tasks": []}
    write_params(tmp_path, params)
    for command in (
        ("sources",),
        ("corpus", "general"),
        ("task", "mood"),
        ("task", "folded"),
        ("contamination", "mood"),
        ("contamination", "folded"),
    ):
        code, message = run_stage(tmp_path, *command)
        assert (code, without_repeat_warnings(message)) == (0, "")
    mood_overlap, folded_overlap = (
        artifacts.read_table(
            tmp_path / f"artifacts/results/contamination/contamination-{name}.parquet"
        )
        for name in ("mood", "folded")
    )
    test_set_overlap, extra_set_overlap = (
        mood_overlap[mood_overlap["test_set"] == name].set_index("id") for name in ("mood", "again")
    )
    assert (len(test_set_overlap), len(extra_set_overlap)) == (
        len(test),
        len(train),
    ) and mood_overlap["task"].unique() == ["mood"]
    items = artifacts.read_table(tmp_path / "artifacts/tasks/mood/test.parquet").set_index("id")
    contaminated_ids = test_set_overlap.index[test_set_overlap["corpus"]]
    assert {*items.loc[contaminated_ids, "text"]} == {LONG, f"{SHORT} {LONG}"}
    assert not test_set_overlap["unlabelled"].any()
    assert not extra_set_overlap["corpus"].any()
    assert extra_set_overlap["unlabelled"].sum() == 1
    expected_columns = ["test_set", "id", "long_enough", "corpus", "task"]
    assert list(folded_overlap.columns) == expected_columns
    assert len(folded_overlap) == len(train)
    assert folded_overlap["long_enough"].all()
    assert not folded_overlap["corpus"].any()

    params["report"] = {"split": "validation"}
    params["grid"] |= {"tasks": ["mood"]}
    write_params(tmp_path, params)
    assert run_stage(tmp_path, "sources")[0] == 0
    (tmp_path / "artifacts/tasks/mood/test.parquet").write_bytes(b"not to be read")
    assert run_stage(tmp_path, "contamination", "mood")[0] == 0
    mood_overlap, items = (
        artifacts.read_table(tmp_path / f"artifacts/{name}.parquet")
        for name in ("results/contamination/contamination-mood", "tasks/mood/validation")
    )
    assert mood_overlap["id"].tolist() == items["id"].tolist()


@pytest.fixture(scope="module")
def contaminated_study(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, pd.DataFrame, Analysis]:
    """Return a study with contamination: its folder, its rows and its analysis.

    A tenth of the items of one task are in the corpus, and two of another in its unlabelled text.
    """
    folder = Study(tmp_path_factory.mktemp("study")).write()
    ids = [f"test-{i}" for i in range(400)]
    write_overlap(folder, "sense", ids, corpus=ids[:40], unlabelled=ids[40:41], short=ids[300:])
    write_overlap(folder, "sentiment", ids, unlabelled=ids[7:9])
    return folder, *build_results(folder, GRID, ReportParams())


def test_contaminated_items_are_counted(
    contaminated_study: tuple[Path, pd.DataFrame, Analysis],
) -> None:
    assert contaminated_study[2].contamination == (
        ContaminationCounts("sentiment", 400, 0, 0, 2),
        ContaminationCounts("sense", 400, 100, 40, None),
        ContaminationCounts("agreement", 400, 0, 0, None),
    )


def test_clean_scores_are_means_over_uncontaminated_items(
    contaminated_study: tuple[Path, pd.DataFrame, Analysis],
) -> None:
    folder, table, analysis = contaminated_study
    clean = table[table["item_filter"] == "clean"]
    all_rows = table[
        (table["item_filter"] == "all")
        & (table["split"] == "test")
        & table["task"].isin(["sense", "sentiment"])
        & (table["family"] != "ceiling")
        & (table["metric"] == "accuracy")
    ]
    assert len(clean) == len(all_rows) and {*clean["task"]} == {"sense", "sentiment"}
    tables = [artifacts.read_table(path) for path in sorted((folder / "predictions").iterdir())]
    predictions = pd.concat(tables)
    clean_ids = {
        "sense": {f"test-{i}" for i in range(40, 400)},
        "sentiment": {f"test-{i}" for i in range(400)} - {"test-7", "test-8"},
    }
    keys = ["model", "init", "transfer", "label_count", "task", "split"]
    for _, row in clean.sample(12, random_state=1).iterrows():
        is_same = (predictions[keys] == row[keys]).all(axis=1)
        is_same &= predictions["finetune_seed"] == row["finetune_seed"]
        selected = predictions[is_same & predictions["id"].isin(clean_ids[row["task"]])]
        assert row["value"] == pytest.approx(selected["correct"].mean(), abs=1e-12)
        assert row["num_examples"] == len(selected) == len(clean_ids[row["task"]])
    settings = [
        (clean_score.task, clean_score.label_count) for clean_score in analysis.clean_scores
    ]
    assert settings == [
        (task, label_count) for task in ("sentiment", "sense") for label_count in ("100", "all")
    ]
    for clean_score in analysis.clean_scores:
        for score in clean_score.systems:
            where = dataclasses.asdict(score.system)
            where |= {"task": clean_score.task, "label_count": clean_score.label_count}
            selected = clean[(clean[list(where)] == [*where.values()]).all(axis=1)]
            assert score.clean_items == pytest.approx(selected["value"].mean(), abs=1e-12)
            assert score.clean_items != score.all_items


def test_comparisons_use_all_items(contaminated_study: tuple[Path, pd.DataFrame, Analysis]) -> None:
    folder, table, analysis = contaminated_study
    for task in ("sense", "sentiment"):
        write_overlap(folder, task, [f"test-{i}" for i in range(400)])
    table_without, analysis_without = build_results(folder, GRID, ReportParams())
    assert (
        analysis.comparisons == analysis_without.comparisons
        and analysis.scores == analysis_without.scores
    )
    assert not analysis_without.clean_scores
    assert table_without.equals(table[table["item_filter"] == "all"].reset_index(drop=True))


def test_without_clean_items_there_is_a_reason_instead_of_a_score(tmp_path: Path) -> None:
    grid = dataclasses.replace(
        GRID, models=("gpt",), tasks=("sense",), adapt_models=(), adapt_tasks=()
    )
    folder = Study(tmp_path, grid=grid, items=20).write()
    ids = [f"test-{i}" for i in range(20)]
    write_overlap(folder, "sense", ids, corpus=ids)
    table, analysis = build_results(folder, grid, ReportParams())
    clean = table[table["item_filter"] == "clean"]
    assert {*clean["status"]} == {"not_applicable"}
    assert {*clean["reason"].map(format_reason)} == {"all of its items are contaminated"}
    values = {score.clean_items for one in analysis.clean_scores for score in one.systems}
    assert values == {None} and not analysis.failures


def test_folds_are_weighted_by_their_number_of_items() -> None:
    rows = pd.DataFrame(
        {
            "value": [1.0, 0.0],
            "num_examples": [3, 1],
            "status": "ok",
            "pretrain_seed": 0,
            "finetune_seed": 0,
            "fold": [0, 1],
        }
    )
    assert _mean_over_seeds(rows, "accuracy") == 0.75


def test_the_page_begins_with_test_items_that_the_models_have_read() -> None:
    few = ContaminationCounts("sense", items=100, too_short=20, in_corpus=8, in_unlabelled=None)
    many = ContaminationCounts("mood", items=100, too_short=20, in_corpus=72, in_unlabelled=None)
    assert "The corpus has" not in describe_runs(build_analysis(contamination=(few,)))
    text = describe_runs(build_analysis(contamination=(few, many)))
    assert "The corpus has the texts of 72 of 80 test items of mood, without" in text
    assert "sense" not in text
