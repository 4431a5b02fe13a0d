"""An outside system is scored by its file of predictions, beside what is trained here."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage import artifacts
from lineage.analysis.decision import decide
from lineage.analysis.outside import list_outside_results
from lineage.analysis.records import Analysis, OutsidePrice, System, SystemScore
from lineage.answers.base import row_number
from lineage.config.data import OutsideSystem, Task, extra_test_task
from lineage.config.params import Params, parse_params, read_params
from lineage.config.records import parse_record
from lineage.data.items import build_items
from lineage.data.outside_predictions import match_outside_predictions
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_untrained
from lineage.methods.outside import OutsideMethod
from lineage.report.decisions import describe_limits, summarize_decisions
from lineage.report.sections.outside_systems import describe_outside_systems, describe_prices
from lineage.study.checks import check_study
from lineage.study.stage_records import stage_records
from lineage.tasks.base import load_kind
from tests.helpers.study_rows import Study, analyze, build_analysis, build_comparison
from tests.helpers.tasks import write_jsonl
from tests.helpers.user_project import RunStage, make_project, write_params

LLM = System("llm", "outside", *["none"] * 6)


def answer_reviews(folder: Path, *, wrong: list[int]) -> pd.DataFrame:
    """Return the test file of the project with one more column, wrong in these rows."""
    table = pd.read_csv(folder / "mood/test.csv")
    return table.assign(answer=[1 - y if n in wrong else y for n, y in enumerate(table["stars"])])


def add_systems(folder: Path, params: dict[str, Any], **systems: Any) -> Params:
    params["tasks"]["mood"]["outside_systems"] = systems
    write_params(folder, params)
    return read_params(folder / "params.yaml")


def test_the_stages_score_the_users_csv_with_one_more_column(
    tmp_path: Path, run_stage: RunStage
) -> None:
    params = make_project(tmp_path)
    answers = answer_reviews(tmp_path, wrong=[0, 5, 7])
    others = pd.read_csv(tmp_path / "mood/train.csv").assign(answer=None)
    pd.concat([others, answers[::-1]]).to_csv(tmp_path / "llm.csv", index=False)
    rule = answers[["review"]].assign(prediction="1")
    rule.to_parquet(tmp_path / "rule.parquet")
    llm = {"predictions": "llm.csv", "column": "answer"}
    add_systems(tmp_path, params, llm=llm, rule={"predictions": "rule.parquet"})
    for command in (("sources",), ("task", "mood"), ("baselines", "mood")):
        assert run_stage(tmp_path, *command)[0] == 0, command
    rows = artifacts.read_table(tmp_path / "artifacts/results/rows/baselines-mood.parquet")
    outside = rows[(rows["family"] == "outside") & (rows["metric"] == "accuracy")]
    assert outside.groupby(["model", "label_count"])["value"].agg(list).to_dict() == {
        (model, count): [value] * 3
        for model, value in (("llm", 0.85), ("rule", 0.5))
        for count in ("20", "all")
    }
    assert {*outside["split"]} == {"test"}
    predictions = artifacts.read_table(
        tmp_path / "artifacts/results/predictions/baselines-mood.parquet"
    )
    own = predictions[(predictions["model"] == "llm") & (predictions["label_count"] == "all")]
    is_wrong = own["label"] != own["prediction"]
    assert {*own.loc[is_wrong, "id"]} == {"test-1", "test-6", "test-8"}
    assert (own["correct"] == ~is_wrong).all()
    # Other predictions change nothing that evaluations of models depend on.
    records = [tmp_path / "artifacts/sources" / name for name in (
        "tasks/mood.json", "config/task-mood.json", "config/evaluate-gpt.json", "outside_systems/mood.json",
    )]  # fmt: skip
    before = [path.read_bytes() for path in records]
    answer_reviews(tmp_path, wrong=[1]).to_csv(tmp_path / "llm.csv", index=False)
    assert run_stage(tmp_path, "sources")[0] == 0
    assert [path.read_bytes() for path in records[:3]] == before[:3]
    assert records[3].read_bytes() != before[3]


def test_only_the_report_depends_on_the_keys_of_outside_systems(tmp_path: Path) -> None:
    tree = make_project(tmp_path)
    without = read_params(tmp_path / "params.yaml")
    entry = {"predictions": "llm.csv", "price_per_1000_items": 2.4}
    params = add_systems(tmp_path, tree, llm=entry)
    before = stage_records(without, check_study(without))
    after = stage_records(params, check_study(params))
    assert [name for name in after if after[name] != before[name]] == ["report"]


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t[2:], "llm.csv: 2 of the 20 test items have no prediction; the first is row 1 of test; give"),
    (lambda t: pd.concat([t, t[3:5].assign(answer=7 - t["answer"])]), "llm.csv: row 21 (and 1 more): column 'answer': '6' is no label of the task, which has 0, 1; give each scored item one"),
    (lambda t: t.assign(answer=t["answer"].astype(str).where(t.index != 4, "I cannot tell. " * 8)), "llm.csv: row 5: column 'answer': the label has more than 80 characters"),
    (lambda t: pd.concat([t, t[3:5].assign(answer=1 - t["answer"])]), "llm.csv: 2 items have predictions that differ; the first is in rows 4, 21; keep one"),
    (lambda t: t.rename(columns={"answer": "anser"}), "llm.csv has no column 'answer'; did you mean 'anser'?"),
    (lambda t: t.assign(answer=t["answer"].where(t.index != 4)), "llm.csv: 1 of the 20 test items have no prediction; the first is row 5 of test"),
    (lambda t: t.assign(answer=None), "llm.csv: every row is blank in review, answer; fill it"),
])  # fmt: skip
def test_predictions_that_do_not_answer_each_item_once_are_refused(
    tmp_path: Path, run_stage: RunStage, change: Any, message: str
) -> None:
    params = make_project(tmp_path)
    change(answer_reviews(tmp_path, wrong=[])).to_csv(tmp_path / "llm.csv", index=False)
    add_systems(tmp_path, params, llm={"predictions": "llm.csv", "column": "answer"})
    code, output = run_stage(tmp_path, "sources")
    assert code == 2 and message in output, output


@pytest.mark.parametrize(("name", "entry", "message"), [
    ("gpt", {"predictions": "llm.csv"}, "the name 'gpt' must match"),
    ("llm", {"predictions": "llm.csv", "price_per_1000_items": -1}, "it must be 0 or more"),
    ("llm", {"predictions": "llm.csv", "price": 1}, "unknown key 'price'"),
])  # fmt: skip
def test_names_and_prices_are_checked(
    tmp_path: Path, name: str, entry: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        add_systems(tmp_path, make_project(tmp_path), **{name: entry})


def test_the_name_of_a_baseline_is_refused(tmp_path: Path, run_stage: RunStage) -> None:
    add_systems(tmp_path, make_project(tmp_path), nearest_candidate={"predictions": "llm.csv"})
    code, output = run_stage(tmp_path, "sources")
    assert code == 2
    assert "outside_systems: the name 'nearest_candidate' is that of a baseline; choose" in output


@pytest.mark.parametrize("label_map", [{0: "no", 1: "yes"}, {0: "0", 1: "yes"}, ["no", "yes"]])
@pytest.mark.parametrize("has_new_names", [False, True])
def test_predictions_are_labels_of_the_data_or_their_new_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label_map: Any, has_new_names: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = make_project(tmp_path)
    table = answer_reviews(tmp_path, wrong=[2])
    names = {0: label_map[0], 1: label_map[1]}
    expected = [names[answer] for answer in table["answer"]]
    if has_new_names:
        table["answer"] = expected
    table.to_csv(tmp_path / "llm.csv", index=False)
    tree["tasks"]["mood"]["label_map"] = label_map
    system = {"predictions": "llm.csv", "column": "answer"}
    params = add_systems(tmp_path, tree, llm=system)
    predictions = match_outside_predictions("mood", params, tmp_path)["llm"]
    assert predictions == {f"test-{row}": name for row, name in enumerate(expected, 1)}


@pytest.mark.parametrize("label_map", [
    {0: "1", 1: "2"}, {0: "1", 1: "0"}, ["1", "0"], {0: "1", 1: "yes", 2: None},
])  # fmt: skip
def test_a_label_map_by_which_a_prediction_has_two_meanings_is_refused(
    tmp_path: Path, run_stage: RunStage, label_map: Any
) -> None:
    tree = make_project(tmp_path)
    answer_reviews(tmp_path, wrong=[]).to_csv(tmp_path / "llm.csv", index=False)
    tree["tasks"]["mood"]["label_map"] = label_map
    add_systems(tmp_path, tree, llm={"predictions": "llm.csv", "column": "answer"})
    code, output = run_stage(tmp_path, "sources")
    assert code == 2
    assert "mood.label_map: '1' is the new name of '0' and also a label of the data" in output


def test_a_kind_whose_predictions_fit_no_column_is_refused(tmp_path: Path) -> None:
    task = {"kind": "minimal_pairs", "files": {"test": "t.csv"}, "good": "good", "bad": "bad"}
    task["outside_systems"] = {"llm": {"predictions": "llm.csv"}}
    tree = make_project(tmp_path)
    params = parse_params({**tree, "tasks": {"mood": task}})
    with pytest.raises(InputError, match="kind minimal_pairs do not fit one column; remove"):
        match_outside_predictions("mood", params, tmp_path)


TASKS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "text_regression": (
        {"text": ["a", "b"], "symmetric": True},
        [{"a": f"one {n}", "b": f"two {n}", "label": n / 4, "prediction": n / 2} for n in range(40)],
    ),
    "multiple_choice": (
        {"text": ["text"], "choices": ["choices"]},
        [{"text": f"text {n}", "choices": ["is", f"was {n}"], "label": n % 2, "prediction": int(n % 4 > 1)} for n in range(40)],
    ),
    "token_classification": (
        {"tokens": "tokens"},
        [{"tokens": ["the", "Bank", "of", f"X{n}"], "label": ["O", "B-ORG", "E-ORG", "S-LOC"],
          "prediction": ["O", "B-ORG", "E-ORG", "O" if n % 4 else "S-PER"]} for n in range(40)],
    ),
    "word_sense": (
        {"tokens": "tokens", "target": "target", "label_map": {"a": "money", "b": "river"}},
        [{"tokens": ["the", "bank", f"of {n}"], "target": 1, "label": "ab"[n % 2], "prediction": "ab"[int(n % 4 > 1)]} for n in range(40)],
    ),
}  # fmt: skip
# The value of each metric, by hand: half of the choices and senses are right; of the two spans of
# each sentence one is found, and in a quarter of them a third one is wrong.
VALUES = {
    "text_regression": {"pearson": 1.0, "spearman": 1.0},
    "multiple_choice": {"accuracy": 0.5},
    "token_classification": {"span_f1": 2 * 40 / (80 + 50), "token_accuracy": 0.75},
    "word_sense": {"accuracy": 0.5, "macro_f1": 0.5},
}
# The answer to the item of row n, from 0, as the results hold it.
ANSWERS: dict[str, Callable[[int], Any]] = {
    "text_regression": lambda n: pytest.approx(n / 2),
    "multiple_choice": lambda n: str(int(n % 4 > 1)),
    "token_classification": lambda n: f"O B-ORG I-ORG {'O' if n % 4 else 'B-PER'}",
    "word_sense": lambda n: "river" if n % 4 > 1 else "money",
}


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("folds", [None, 4])
def test_predictions_have_the_form_of_the_labels_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, folds: int | None
) -> None:
    """With folds, the means over folds of a correlation or of F1 are other values."""
    monkeypatch.chdir(tmp_path)
    columns, rows = TASKS[kind]
    write_jsonl(tmp_path / "data.jsonl", [{**row, "prediction": None} for row in rows])
    write_jsonl(tmp_path / "answers.jsonl", rows[::-1])
    files = {"train": "data.jsonl"} | ({} if folds else {"test": "data.jsonl"})
    block = {"kind": kind, "files": files, "label": "label", "folds": folds, **columns}
    block["outside_systems"] = {"llm": {"predictions": "answers.jsonl"}}
    params = parse_params({**make_project(tmp_path), "tasks": {"mood": block}})
    predictions = match_outside_predictions("mood", params, tmp_path)["llm"]
    task = params.tasks["mood"]
    items = build_items("mood", task, load_kind(kind), seed=7, root=tmp_path, where="")
    method = OutsideMethod(name="llm", predictions=predictions)
    output = evaluate_untrained(
        TaskData(items.info, items.splits), [method], label_counts=("all",), finetune_seeds=(0, 1)
    )
    assert {row.status for row in output.rows} == {"ok"}
    assert len(output.predictions) == 2 * len(rows), "each item once for each seed"
    for one in output.predictions.itertuples():
        n = row_number(one.id) - 1
        answer = float(one.prediction) if kind == "text_regression" else one.prediction
        assert answer == ANSWERS[kind](n), one.id
        if kind in ("multiple_choice", "word_sense"):
            assert one.correct == (n % 4 in (0, 3)), one.id
    if folds:
        assert {row.fold for row in output.rows} == {0, 1, 2, 3}
        return
    for row in output.rows:
        assert row.value == pytest.approx(VALUES[kind][row.metric]), row.metric
    # Nothing is read again.
    monkeypatch.setattr("lineage.data.sources.DataTable.iter_batches", None)
    assert match_outside_predictions("mood", params, tmp_path)["llm"] == predictions


@pytest.mark.parametrize(("kind", "nonsense", "message"), [
    ("text_regression", "no idea", "'no idea' is not a finite number; give each scored item a number, such as"),
    ("multiple_choice", 7, "'7' is not one of the 2 choices, which count from 0; give each scored item one of the labels"),
    ("token_classification", ["O"], "4 tokens in 'tokens' and 1 tags in 'prediction'; there must be a tag for each token; give each scored item a tag"),
    ("token_classification", ["O", "PER-X-", "O", "a b"], "the tag 'a b' has a space in it; write tags without spaces; give each scored item a tag"),
    ("word_sense", "I cannot tell. " * 8, "the label has more than 80 characters, .*; give each scored item one of the labels"),
    ("word_sense", "sea", "'sea' is no label of the task, which has money, river; give each scored item one of the labels"),
])  # fmt: skip
def test_only_answers_to_scored_items_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, nonsense: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    columns, rows = TASKS[kind]
    train, test = rows[:20], rows[20:]
    write_jsonl(tmp_path / "train.jsonl", train)
    write_jsonl(tmp_path / "test.jsonl", test)
    block = {"kind": kind, "files": {"train": "train.jsonl", "test": "test.jsonl"}, **columns}
    block |= {"label": "label", "outside_systems": {"llm": {"predictions": "answers.jsonl"}}}
    params = parse_params({**make_project(tmp_path), "tasks": {"mood": block}})
    write_jsonl(tmp_path / "answers.jsonl", rows)
    expected = match_outside_predictions("mood", params, tmp_path)
    answers = [*rows[:3], {**rows[3], "prediction": nonsense}, *rows[4:]]
    write_jsonl(tmp_path / "answers.jsonl", answers)
    assert match_outside_predictions("mood", params, tmp_path) == expected
    answers[30] = {**rows[30], "prediction": nonsense}
    write_jsonl(tmp_path / "answers.jsonl", answers)
    with pytest.raises(InputError, match=f"answers.jsonl: row 31: .*{message}"):
        match_outside_predictions("mood", params, tmp_path)


def test_predictions_may_be_spans_of_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bank = [{"start": 4, "end": 8, "label": "ORG"}]
    rows = [{"text": f"the Bank of {n}.", "label": bank, "prediction": bank} for n in range(40)]
    rows[33] |= {"prediction": [{"start": 0, "end": 8, "label": "ORG"}]}
    write_jsonl(tmp_path / "train.jsonl", rows[:20])
    write_jsonl(tmp_path / "test.jsonl", rows[20:])
    write_jsonl(tmp_path / "answers.jsonl", rows)
    files = {"train": "train.jsonl", "test": "test.jsonl"}
    block = {"kind": "token_classification", "files": files, "tokens": "text", "label": "label"}
    block["outside_systems"] = {"llm": {"predictions": "answers.jsonl"}}
    params = parse_params({**make_project(tmp_path), "tasks": {"mood": block}})
    predictions = match_outside_predictions("mood", params, tmp_path)["llm"]
    assert predictions.pop("test-14") == "B-ORG I-ORG O O O"
    assert set(predictions.values()) == {"O B-ORG O O O"} and len(predictions) == 19


def test_an_extra_test_set_has_no_outside_systems_of_its_own() -> None:
    block = {
        "kind": "text_classification", "files": {"train": "a.csv", "test": "b.csv"}, "text": ["text"], "label": "label",
        "outside_systems": {"llm": {"predictions": "llm.csv"}},
        "extra_test_sets": {"other": {"files": {"test": "c.csv"}, "outside_systems": {"llm": {"predictions": "llm.csv"}}}},
    }  # fmt: skip
    task = parse_record(Task, block, "tasks.mood")
    with pytest.raises(InputError, match="an extra test set holds test items"):
        extra_test_task(task, "other", "tasks.mood")


# The report.

TASK_BLOCK = Task(
    kind="text_classification",
    files={"train": "a.csv", "test": "b.csv"},
    outside_systems={
        "strong": OutsideSystem("strong.csv", price_per_1000_items=2.4),
        "weak": OutsideSystem("weak.csv"),
    },
)


def add_outside_results(folder: Path) -> None:
    """Add two systems to the baselines of sentiment: one that is nearly always right, and one never."""
    rows_path = folder / "rows/baselines-sentiment.parquet"
    predictions_path = folder / "predictions/baselines-sentiment.parquet"
    rows = artifacts.read_table(rows_path)
    predictions = artifacts.read_table(predictions_path)
    own_rows = rows[(rows["model"] == "tfidf") & (rows["split"] == "test")]
    own = predictions[(predictions["model"] == "tfidf") & (predictions["split"] == "test")]
    for name, correct in (("strong", 1.0), ("weak", 0.0)):
        names = {"model": name, "family": "outside"}
        right = np.where(np.arange(len(own)) % 100 == 0, 1 - correct, correct)
        answers = own["label"].where(right > 0, "other")
        rows = pd.concat([rows, own_rows.assign(**names, value=0.99 if correct else 0.01)])
        predictions = pd.concat(
            [predictions, own.assign(**names, correct=right, prediction=answers)]
        )
    artifacts.write_table(rows_path, rows)
    artifacts.write_table(predictions_path, predictions)


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Analysis]:
    """Return the analysis of a study without outside systems, and of the same one with two."""
    folder = Study(tmp_path_factory.mktemp("study"), pretraining=0.6).write()
    before = analyze(folder)
    add_outside_results(folder)
    return before, analyze(folder, tasks={"sentiment": TASK_BLOCK})


def test_outside_systems_change_no_other_result(analyses: tuple[Analysis, Analysis]) -> None:
    before, after = analyses
    assert after.rankings == before.rankings
    assert decide(after, {}) == decide(before, {})
    others = tuple(one for one in after.comparisons if one.comparison_type != "outside")
    assert others == before.comparisons
    assert tuple(one for one in after.scores if one.system.family != "outside") == before.scores


def test_each_candidate_is_paired_with_each_outside_system(
    analyses: tuple[Analysis, Analysis],
) -> None:
    _, analysis = analyses
    tests = [one for one in analysis.comparisons if one.comparison_type == "outside"]
    candidates = {
        (ranking.setting, standing.system)
        for ranking in analysis.rankings
        if ranking.task == "sentiment"
        for standing in ranking.standings
    }
    assert {(one.setting, one.first, one.second.model) for one in tests} == {
        (*candidate, name) for candidate in candidates for name in ("strong", "weak")
    }
    for one in tests:
        first = analysis.find_score(one.first, one.setting).mean
        second = analysis.find_score(one.second, one.setting).mean
        assert one.difference == pytest.approx(first - second)
        assert one.verdict == ("worse" if one.second.model == "strong" else "better")


def test_the_page_names_what_is_better(analyses: tuple[Analysis, Analysis]) -> None:
    before, analysis = analyses
    strong, weak = describe_outside_systems(analysis)
    assert strong.startswith("sentiment: strong (outside) scores 99.0 % (")
    assert "at 2.40 per 1,000 items. No system trained here is shown to be better" in strong
    assert "with all 600 labels, the best of them, BERT adapted, fine-tuned, is shown" in strong
    assert "per 1,000 items" not in weak
    assert "From 100 labels on, a system trained here is shown to be better: with all 600" in weak
    decisions = decide(analysis, {})
    summary = summarize_decisions(analysis, decisions)
    start = f"{summarize_decisions(before, decisions)} strong (outside) is shown to be better than "
    assert summary.startswith(start) and "weak" not in summary
    assert {one.use.standing.system.family for one in decisions}.isdisjoint({"outside"})


@pytest.mark.parametrize(
    ("verdicts", "crossover", "sentence"),
    [
        (("worse", "better", "better"), 100, "From 100 labels on, a system trained here is"),
        (("better", "worse", "better"), 216, "With all 216 labels, a system trained here is"),
        (("better", "worse", "worse"), None, "is shown to be better with 30 labels, but not with"),
        (("worse", "equivalent", "equivalent"), None, "at any number of labels, up to 216."),
    ],
)
def test_the_crossover_is_where_a_trained_system_stays_better(
    verdicts: tuple[str, ...], crossover: int | None, sentence: str
) -> None:
    counts = {"30": 30, "100": 100, "all": 216}
    comparisons = [
        build_comparison(comparison_type="outside", label_count=count, second=LLM, verdict=verdict)
        for count, verdict in zip(counts, verdicts, strict=True)
    ]
    analysis = build_analysis(comparisons=tuple(comparisons))
    scores = tuple(
        SystemScore(LLM, "sense", count, "word_sense", "accuracy", number, (), (), mean=0.8)
        for count, number in counts.items()
    )
    analysis = replace(analysis, scores=scores, outside_prices=(OutsidePrice("sense", "llm", 3.0),))
    (result,) = list_outside_results(analysis)
    assert result.crossover == crossover and result.price_per_1000_items == 3.0
    assert sentence in describe_outside_systems(analysis)[0]


@pytest.mark.parametrize(
    ("price", "printed"),
    [(0.0, "0.00"), (0.004, "0.0040"), (0.012, "0.012"), (0.5, "0.50"), (1200.5, "1,200.50")],
)
def test_small_prices_have_two_significant_digits(
    analyses: tuple[Analysis, Analysis], price: float, printed: str
) -> None:
    prices = (OutsidePrice("sentiment", "strong", price),)
    analysis = replace(analyses[1], outside_prices=prices)
    assert f", at {printed} per 1,000 items." in describe_outside_systems(analysis)[0]
    assert f"strong {printed} per 1,000 items of sentiment." in describe_prices(analysis)


@pytest.mark.parametrize("second_verdict", ["worse", "no significant difference"])
def test_an_outside_system_leads_where_all_candidates_are_worse(
    analyses: tuple[Analysis, Analysis], second_verdict: str
) -> None:
    """The verdict of the candidate with the highest score alone is not enough."""
    _, analysis = analyses
    decisions = decide(analysis, {})
    all_labels = max(analysis.rankings, key=lambda one: one.train_examples).setting
    tests = [
        one
        for one in analysis.comparisons
        if one.comparison_type == "outside"
        and one.setting == all_labels
        and one.second.model == "strong"
    ]
    lower = min(tests, key=lambda one: one.difference)
    changed = tuple(
        replace(one, verdict=second_verdict) if one is lower else one
        for one in analysis.comparisons
    )
    analysis = replace(analysis, comparisons=changed)
    is_lead = second_verdict == "worse"
    assert len(tests) > 1 and max(tests, key=lambda one: one.difference).verdict == "worse"
    (decision,) = (one for one in decisions if one.setting == all_labels)
    limits = " ".join(describe_limits(analysis, decision))
    summary = summarize_decisions(analysis, decisions)
    strong, _ = describe_outside_systems(analysis)
    assert ("strong (outside) is shown to be better than the best" in limits) == is_lead
    assert ("strong (outside) is shown to be better than the best" in summary) == is_lead
    assert ("is shown to be worse" in strong) == is_lead
    assert "No system trained here is shown to be better at any number of labels" in strong
