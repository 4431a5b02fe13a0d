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
from lineage.data.language import split_words
from lineage.report import page
from lineage.report.notes import format_reason
from tests.study_rows import GRID, Study, overlap
from tests.user_project import make, stage, write

LONG = "The river rose by a metre overnight , and nobody in the old town slept until it fell ."  # 16 words but for the marks
SHORT = "A short item of nine words stands here , whole ."


def met(*items: str, text: str, language: str = "en") -> list[bool]:
    return NgramIndex([items], language).find_items([text]).tolist()


def test_thirteen_words_in_a_row_are_found_whatever_their_case_and_marks() -> None:
    own = split_words(LONG, "en")
    thirteen = [word for word in own if word.isalnum()][2:15]
    assert len(thirteen) == 13
    said = f"Before it ({' '.join(thirteen).upper()}): after it."
    assert met(LONG, SHORT, text=said) == [True, False]
    for left_out in (thirteen[1:], thirteen[:-1], [*thirteen[:6], "very", *thirteen[6:]]):
        assert met(LONG, text=f"Before it {' '.join(left_out)} : after it.") == [False]


def test_a_shorter_item_is_found_whole_and_of_a_very_short_one_nothing_is_told() -> None:
    assert met(SHORT, text=f"Then: {SHORT.lower()} And so on.") == [True]
    assert met(SHORT, text="A short item of nine words stands here , broken .") == [False]
    sought = NgramIndex([[SHORT, "seven words are too few to tell"], ["", LONG]], "en")
    assert sought.long_enough_N.tolist() == [True, True], "of several texts one is enough"
    assert NgramIndex([["seven words are too few to tell"]], "en").long_enough_N.tolist() == [False]
    assert met("seven words are too few to tell", text="seven words are too few to tell") == [False]


def test_no_run_goes_from_one_document_into_the_next() -> None:
    first, second = LONG.split(" , and ")
    sought = NgramIndex([[LONG.replace(" and", "")]], "en")
    assert sought.find_items([first, second]).tolist() == [False] and sought.find_items(
        [f"{first} {second}"]
    ).tolist() == [True]


def test_in_chinese_twenty_characters_count_and_twelve_of_a_short_text() -> None:
    text = "昨天晚上河水上涨了一米老城里没有人睡觉直到水退了"
    assert met(text, text=f"他说{text[:20]}。", language="zh") == [True] and met(
        text, text=f"他说{text[:19]}。", language="zh"
    ) == [False]
    assert (
        met(text[:12], text=text, language="zh") == [True]
        and not NgramIndex([[text[:11]]], "zh").long_enough_N.any()
    )


def test_as_many_are_found_as_by_comparing_every_run() -> None:
    rng = np.random.default_rng(3)
    items = [" ".join(rng.choice(["so", "it", "goes"], rng.integers(6, 19))) for _ in range(300)]
    documents = [
        " ".join(rng.choice(["so", "it", "goes"], rng.integers(5, 400))) for _ in range(60)
    ]

    def runs(text: str, length: int) -> set[tuple[str, ...]]:
        own = text.split()
        return {tuple(own[place : place + length]) for place in range(len(own) - length + 1)}

    standing = {
        length: set(itertools.chain.from_iterable(runs(text, length) for text in documents))
        for length in range(8, 14)
    }
    expected = [
        len(one.split()) >= 8
        and not runs(one, min(len(one.split()), 13)).isdisjoint(standing[min(len(one.split()), 13)])
        for one in items
    ]
    assert (
        NgramIndex([items], "en").find_items(documents).tolist() == expected
        and 30 < sum(expected) < 270
    )


def test_the_stage_looks_in_the_corpus_and_in_the_unlabelled_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make(tmp_path)
    mood = tree["tasks"]["mood"]
    text, label = mood["text"][0], mood["label"]
    train, test = (pd.read_csv(tmp_path / f"mood/{split}.csv") for split in ("train", "test"))
    corpus = Path(next(iter(sorted((tmp_path / "texts").glob("*.txt")))))
    test.loc[0, text], test.loc[1, text] = LONG, f"{SHORT} {LONG}"
    test.to_csv(tmp_path / "mood/test.csv", index=False)
    corpus.write_text(f"{corpus.read_text()}\n{LONG}\n")
    pd.DataFrame({text: [f"{SHORT} {LONG[:8]}", "another text"]}).to_csv(
        tmp_path / "mood/more.csv", index=False
    )
    mood["files"] |= {"unlabelled": "mood/more.csv"}
    train.assign(**{text: [SHORT, *train[text][1:]], label: train[label]}).to_csv(
        tmp_path / "mood/train.csv", index=False
    )
    tree["tasks"] |= {"folded": mood | {"files": {"train": "mood/train.csv"}, "folds": 3}}
    tree["tasks"]["mood"] = mood | {
        "extra_test_sets": {"again": {"files": {"test": "mood/train.csv"}}}
    }
    tree["grid"] |= {"tasks": ["mood", "folded"], "adapt_models": [], "adapt_tasks": []}
    write(tmp_path, tree)
    for command in (
        ("sources",),
        ("corpus", "general"),
        ("task", "mood"),
        ("task", "folded"),
        ("contamination", "mood"),
        ("contamination", "folded"),
    ):
        assert stage(tmp_path, *command, monkeypatch=monkeypatch, capsys=capsys) == (0, "")
    mine, folded = (
        artifacts.read_table(
            tmp_path / f"artifacts/results/contamination/contamination-{name}.parquet"
        )
        for name in ("mood", "folded")
    )
    own, again = (mine[mine["test_set"] == name].set_index("id") for name in ("mood", "again"))
    assert (len(own), len(again)) == (len(test), len(train)) and mine["task"].unique() == ["mood"]
    items = artifacts.read_table(tmp_path / "artifacts/tasks/mood/test.parquet").set_index("id")
    assert (
        {*items.loc[own.index[own["corpus"]], "text"]} == {LONG, f"{SHORT} {LONG}"}
        and not own["unlabelled"].any()
        and not again["corpus"].any()
    )
    assert again["unlabelled"].sum() == 1 and list(folded.columns) == [
        "test_set",
        "id",
        "long_enough",
        "corpus",
        "task",
    ]
    assert len(folded) == len(train) and folded["long_enough"].all() and not folded["corpus"].any()

    tree["report"] = {"split": "validation"}
    write(tmp_path, tree)
    (tmp_path / "artifacts/tasks/mood/test.parquet").write_bytes(b"not to be read")
    assert stage(tmp_path, "contamination", "mood", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    mine, items = (
        artifacts.read_table(tmp_path / f"artifacts/{name}.parquet")
        for name in ("results/contamination/contamination-mood", "tasks/mood/validation")
    )
    assert mine["id"].tolist() == items["id"].tolist()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame, Analysis]:
    """A study with a tenth of one task's items in the corpus, and two of another's in its text."""
    folder = Study(tmp_path_factory.mktemp("study")).write()
    ids = [f"test-{i}" for i in range(400)]
    overlap(folder, "sense", ids, corpus=ids[:40], unlabelled=ids[40:41], short=ids[300:])
    overlap(folder, "sentiment", ids, unlabelled=ids[7:9])
    return folder, *build_results(folder, GRID, ReportParams())


def test_contaminated_items_are_counted(found: tuple[Path, pd.DataFrame, Analysis]) -> None:
    assert found[2].contamination == (
        ContaminationCounts("sentiment", 400, 0, 0, 2),
        ContaminationCounts("sense", 400, 100, 40, None),
        ContaminationCounts("agreement", 400, 0, 0, None),
    )


def test_clean_scores_are_those_of_the_other_items(
    found: tuple[Path, pd.DataFrame, Analysis],
) -> None:
    folder, table, analysis = found
    clean = table[table["item_filter"] == "clean"]
    whole = table[
        (table["item_filter"] == "all")
        & (table["split"] == "test")
        & table["task"].isin(["sense", "sentiment"])
        & (table["family"] != "ceiling")
        & (table["metric"] == "accuracy")
    ]
    assert len(clean) == len(whole) and {*clean["task"]} == {"sense", "sentiment"}
    tables = [artifacts.read_table(path) for path in sorted((folder / "predictions").iterdir())]
    predictions = pd.concat(tables)
    clean_ids = {
        "sense": {f"test-{i}" for i in range(40, 400)},
        "sentiment": {f"test-{i}" for i in range(400)} - {"test-7", "test-8"},
    }
    keys = ["model", "init", "transfer", "label_count", "task", "split"]
    for _, row in clean.sample(12, random_state=1).iterrows():
        same = (predictions[keys] == row[keys]).all(axis=1)
        same &= predictions["finetune_seed"] == row["finetune_seed"]
        own = predictions[same & predictions["id"].isin(clean_ids[row["task"]])]
        assert row["value"] == pytest.approx(own["correct"].mean(), abs=1e-12)
        assert row["num_examples"] == len(own) == len(clean_ids[row["task"]])
    settings = [(one.task, one.label_count) for one in analysis.clean_scores]
    assert settings == [(t, n) for t in ("sentiment", "sense") for n in ("100", "all")]
    for one in analysis.clean_scores:
        for score in one.systems:
            where = dataclasses.asdict(score.system)
            where |= {"task": one.task, "label_count": one.label_count}
            own = clean[(clean[list(where)] == [*where.values()]).all(axis=1)]
            assert score.clean_items == pytest.approx(own["value"].mean(), abs=1e-12)
            assert score.clean_items != score.all_items


def test_the_pages_show_them_and_comparisons_are_over_all_items(
    found: tuple[Path, pd.DataFrame, Analysis],
) -> None:
    folder, table, analysis = found
    for text in page.render_report(analysis).values():
        assert "40 of 300 in the corpus; 100 are too short to tell" in text
        assert "0 of 400 in the corpus, 2 in its unlabelled text" in text
        assert "13 words in a row" in text and "clean items" in text
    for task in ("sense", "sentiment"):
        overlap(folder, task, [f"test-{i}" for i in range(400)])
    other, without = build_results(folder, GRID, ReportParams())
    assert analysis.comparisons == without.comparisons and analysis.scores == without.scores
    assert not without.clean_scores
    assert other.equals(table[table["item_filter"] == "all"].reset_index(drop=True))
    assert "clean items" not in page.render_report(without)["md"]


def test_without_any_clean_item_there_is_no_score_but_a_reason(tmp_path: Path) -> None:
    grid = dataclasses.replace(
        GRID, models=("gpt",), tasks=("sense",), adapt_models=(), adapt_tasks=()
    )
    folder = Study(tmp_path, grid=grid, items=20).write()
    ids = [f"test-{i}" for i in range(20)]
    overlap(folder, "sense", ids, corpus=ids)
    table, analysis = build_results(folder, grid, ReportParams())
    clean = table[table["item_filter"] == "clean"]
    assert {*clean["status"]} == {"not_applicable"}
    assert {*clean["reason"].map(format_reason)} == {"all of its items are contaminated"}
    values = {score.clean_items for one in analysis.clean_scores for score in one.systems}
    assert values == {None} and not analysis.failures


def test_folds_weigh_as_many_items_as_they_have() -> None:
    some = pd.DataFrame(
        {
            "value": [1.0, 0.0],
            "num_examples": [3, 1],
            "status": "ok",
            "pretrain_seed": 0,
            "finetune_seed": 0,
            "fold": [0, 1],
        }
    )
    assert _mean_over_seeds(some, "accuracy") == 0.75
