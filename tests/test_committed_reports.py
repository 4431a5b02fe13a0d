"""The reports of real studies in reports/ follow from the results and predictions beside them."""

import functools
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lineage.analysis.decision import SAME_COST_FACTOR, SHORTEST_SECONDS
from lineage.analysis.records import ClaimFinding, System
from lineage.analysis.statistics import CONFIDENCE_LEVEL, EQUIVALENCE_MARGIN, POWER
from lineage.answers.metrics import RANKING_METRICS
from lineage.artifacts import read_json
from lineage.config.records import parse_record
from lineage.data.contamination import MAX_NGRAM_WORDS
from lineage.report.evidence import EVIDENCE_DIR, rebuild_report
from lineage.report.formatting import format_model, format_use, metric_unit
from tests.helpers.checkout import ROOT
from tests.helpers.documents import load_generator

MAX_PAGE_BYTES = 1_000_000
LABEL_CHART = re.compile("<title>[^<]*, scores with [^<]* labels: [^<]*</title>")
REPORTS = sorted(path.parent for path in (ROOT / "reports").glob(f"*/{EVIDENCE_DIR}"))
SYSTEM_COLUMNS = ("model", "init", "adapt_text", "transfer", "features", "head", "recipe")
Decision = Mapping[str, Any]


def read_decisions(folder: Path) -> list[tuple[Any, ...]]:
    return [
        (
            one["task"],
            one["label_count"],
            one["system"],
            pytest.approx(one["use"]["standing"]["mean"]),
        )
        for one in read_json(folder / "decisions.json")
    ]


def test_there_is_a_committed_report() -> None:
    assert REPORTS


@pytest.fixture(scope="module", params=REPORTS, ids=lambda path: path.name)
def report(request: pytest.FixtureRequest) -> Path:
    """Return the folder of a committed report."""
    folder: Path = request.param
    return folder


@pytest.fixture(scope="module")
def make_again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Return a function that returns a folder with the report that the evidence of one gives."""

    @functools.cache
    def make(report: Path) -> Path:
        folder = tmp_path_factory.mktemp(report.name)
        shutil.copytree(report / EVIDENCE_DIR, folder / EVIDENCE_DIR)
        rebuild_report(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def made_again(report: Path, make_again: Callable[[Path], Path]) -> Path:
    return make_again(report)


def test_a_committed_report_is_made_again_from_its_evidence(report: Path, made_again: Path) -> None:
    page = made_again / "comparison.html"
    assert page.stat().st_size <= MAX_PAGE_BYTES
    charts = LABEL_CHART.findall(page.read_text(encoding="utf-8"))
    decisions = read_json(made_again / "decisions.json")
    labelled = [one for one in decisions if one["label_count"] != "none"]
    has_charts = len({one["label_count"] for one in labelled}) > 1  # a curve needs two points
    for decision in labelled if has_charts else ():
        system = System(**decision["use"]["standing"]["system"])
        (chart,) = (one for one in charts if one.startswith(f"<title>{decision['task']} ("))
        name = f"{format_model(system.model)} {format_use(system)}".strip()
        if f", {format_use(system)})" in chart:  # all of its systems are used in this way
            name = format_model(system.model)
        assert re.search(rf"[:;] {re.escape(name)},? ", chart), f"no label chart shows {name}"
    assert read_decisions(made_again) == read_decisions(report)
    text = (made_again / "comparison.md").read_text(encoding="utf-8")
    assert not re.search(r"\bnan\b", text), "a number is missing"
    assert text == (report / "comparison.md").read_text(encoding="utf-8"), (
        "the committed page is older than the code; run `lineage report` on its folder"
    )


class Report:
    """The files of a committed report."""

    def __init__(self, folder: Path) -> None:
        self.analysis: dict[str, Any] = read_json(folder / "comparison.json")
        self.decisions: list[Decision] = read_json(folder / "decisions.json")
        self.facts: dict[str, Any] = read_json(folder / EVIDENCE_DIR / "facts.json")
        page = (folder / "comparison.md").read_text()
        self.rows = page[page.index("| Task |") :].split("\n\n")[0].splitlines()
        own, _, _ = page.partition("\n## Provenance\n")
        parts = [part.partition("\n") for part in f"\n{own}".split("\n## ")]
        self.parts = {heading: text for heading, _, text in parts}
        self.predictions = folder / EVIDENCE_DIR / "results" / "predictions"
        table = pd.read_csv(folder / "results.csv", dtype={"label_count": str})
        self.results = table.query("trial == 'chosen' and group == 'all' and item_filter == 'all'")

    def find_row(self, decision: Decision) -> str:
        """Return the row of a decision in the first table."""
        count = f"{decision['train_examples']:,}"
        names = (f"{count} labels", f"{count} of ", f"all {count} labels", "no labels")
        starts = tuple(f"| {decision['task']}, {name}" for name in names)
        (row,) = (row for row in self.rows if row.startswith(starts))
        return row

    def list_cells(self, heading: str, model: str) -> list[str]:
        """Return the cells of a model in the tables of a part, without empty ones."""
        found = []
        for table in re.findall(r"(?:^\|.*\n)+", self.parts[heading], re.MULTILINE):
            names, _, *rows = [
                [cell.strip() for cell in line.strip("|").split("|")]
                for line in table.strip().splitlines()
            ]
            places = [
                place for place, name in enumerate(names) if re.split(r" [(‡]", name)[0] == model
            ]
            found += [row[place] for row in rows for place in places if row[place] != "–"]
        return found

    def list_task_cells(self, heading: str, task: str) -> list[str]:
        """Return the cells of a task in the tables of a part, of own models without a dagger."""
        found = []
        for table in re.findall(r"(?:^\|.*\n)+", self.parts[heading], re.MULTILINE):
            names, _, *rows = [
                [cell.strip() for cell in line.strip("|").split("|")]
                for line in table.strip().splitlines()
            ]
            found += [
                cell
                for row in rows
                if row[0].startswith(f"{task}, ")
                for name, cell in zip(names[1:], row[1:], strict=True)
                if "‡" not in name and "(public" not in name and cell != "–"
            ]
        return found

    def list_ranked(self, setting: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the best system of each model in a setting, public models among them."""
        rankings = [
            one
            for one in self.analysis["rankings"]
            if {name: one[name] for name in setting} == setting
        ]
        return [standing["system"] for standing in rankings[-1]["standings"]]

    def seed_scores(
        self, decision: Decision, system: Mapping[str, str], split: str = "test"
    ) -> pd.Series:
        """Return the score of each fine-tuning seed in percent; folds count by their items."""
        names = ("task", "label_count", "metric")
        wanted = {name: decision[name] for name in names} | {"split": split}
        wanted |= {"test_set": decision["task"]} | {name: system[name] for name in SYSTEM_COLUMNS}
        own = self.results
        for name, value in wanted.items():
            own = own[own[name].fillna("none") == value]
        items = own["num_examples"]
        seeds = own["finetune_seed"].fillna(0)
        sums = (own["value"] / RANKING_METRICS[decision["metric"]] * items).groupby(seeds).sum()
        return 100 * sums / items.groupby(seeds).sum()

    def find_lead(self, decision: Decision) -> Mapping[str, Any] | None:
        """Return the comparison of the system to use, or the undecided one, with TF-IDF."""
        if decision["undecided_lead"] is not None:
            return decision["undecided_lead"]
        system = decision["use"]["standing"]["system"]
        found = [
            one
            for one in self.analysis["comparisons"]
            if (one["task"], one["label_count"]) == (decision["task"], decision["label_count"])
            and one["first"] == system
            and one["comparison_type"] in ("tfidf", "kneser_ney")
        ]
        return found[0] if found else None


def in_points(*values: float, signed: bool = False) -> str:
    """Return percentages, joined as the ends of an interval are.

    They have one digit; signed ones that are not zero have two where one would be zero.
    """
    texts = []
    for value in values:
        digits = 2 if signed and abs(value) > 1e-7 and abs(round(value, 1)) == 0 else 1
        text = f"{value:{'+' if signed else ''}.{digits}f}"
        texts.append("0.0" if text in ("+0.0", "-0.0") else text)
    return " to ".join(texts).replace("-", "−")


def test_scores_and_differences_of_the_first_table_follow_from_the_results(
    made_again: Path,
) -> None:
    """Scores are computed again from results.csv, without the code of the analysis."""
    made = Report(made_again)
    num_leads = 0
    for decision in made.decisions:
        row = made.find_row(decision)
        standing = decision["use"]["standing"]
        scores = made.seed_scores(decision, standing["system"])
        low, high = 100 * standing["ci_low"], 100 * standing["ci_high"]
        unit = metric_unit(decision["metric"])
        assert f"**{in_points(scores.mean())}** {unit} ({in_points(low, high)})" in row
        validation = made.seed_scores(decision, standing["system"], "validation")
        assert (f"validation {in_points(validation.mean())}" in row) == (len(validation) > 0)
        lead = made.find_lead(decision)
        if lead is not None:
            first, second = (made.seed_scores(decision, lead[key]) for key in ("first", "second"))
            ends = in_points(100 * lead["ci_low"], 100 * lead["ci_high"], signed=True)
            points = in_points(first.mean() - second.mean(), signed=True)
            assert f"**{points}** ({ends})" in row
            assert len(first) == len(second) or len(second) == 1
            num_leads += 1
    assert num_leads > 0


def test_label_counts_and_gains_of_the_first_table_follow_from_the_results(
    made_again: Path,
) -> None:
    """Scores are computed again from results.csv, without the code of the analysis."""
    made = Report(made_again)
    for decision in made.decisions:
        row = made.find_row(decision)
        task = decision["task"]
        own = made.results.query("task == @task and split == 'test' and status == 'ok'")
        own = own[own["label_count"].fillna("none") == decision["label_count"]]
        assert own["train_examples"].max() == decision["train_examples"]
        if decision["tuning_labels"] and not own["fold"].notna().any():
            validation = made.results.query("task == @task and split == 'validation'")
            assert validation["num_examples"].max() == decision["tuning_labels"]
            assert f"+ {decision['tuning_labels']:,} for tuning" in row
        if decision["unused_labels"] and "no gain is shown" not in row:
            assert f"{decision['unused_labels']:,} more labelled items are available" in row
        gain = decision["label_gain"]
        if gain is not None and " it gained " in row:
            (fewer,) = (
                one
                for one in made.decisions
                if (one["task"], one["train_examples"]) == (task, gain["fewer"])
            )
            scores = [made.seed_scores(one, gain["system"]).mean() for one in (fewer, decision)]
            ends = in_points(100 * gain["low"], 100 * gain["high"], signed=True)
            points = in_points(scores[1] - scores[0])
            assert f"to {gain['most']:,} labels it gained {points} points ({ends})" in row


def test_no_verdict_of_a_claim_differs_from_its_interval(made_again: Path) -> None:
    claims = read_json(made_again / "comparison.json")["claims"]
    found = [one for claim in claims for one in claim["comparisons"]]
    assert found
    for one in found:
        sign = (one["ci_low"] > 0) - (one["ci_high"] < 0)
        assert one["verdict"] == "equivalent" or sign == {"better": 1, "worse": -1}.get(
            one["verdict"], 0
        )


def test_the_page_of_claims_shows_the_verdicts_of_the_reports(
    make_again: Callable[[Path], Path],
) -> None:
    found = {}
    for report in REPORTS:
        claims = read_json(make_again(report) / "comparison.json")["claims"]
        found[report.name] = [parse_record(ClaimFinding, one, report.name) for one in claims]
    page = (ROOT / "docs/reference/claims.md").read_text(encoding="utf-8")
    expected = load_generator().format_claims(found)
    assert page == expected, "run `python docs/reference/generate.py`"


NUMBER = re.compile(r"[+−]?\d+(?:,\d{3})*(?:\.\d+)?")
# Names with a digit. The rest of a page's digits are numbers.
NAMES = re.compile(r"\d-grams?|F1|\d{4}-\d\d-\d\d|(?<=label )\w+|(?<=of )\w+(?= are called)")
CONFIDENCE = f"{100 * CONFIDENCE_LEVEL:g}"
MARGIN = f"{100 * EQUIVALENCE_MARGIN:g}"


class Sentence:
    """A sentence of a page with the heading of its part, which is a task or a question."""

    def __init__(self, report: Report, heading: str, text: str) -> None:
        self.report = report
        self.heading = heading
        self.text = text

    def find_numbers(self) -> list[str]:
        """Return the numbers, without those of names."""
        names = [one["system"]["model"] for one in self.report.analysis["scores"]]
        names += [one["task"] for one in self.report.analysis["tasks"]]
        text = self.text
        for name in sorted({*names, *map(format_model, names)}, key=len, reverse=True):
            text = text.replace(name, "")
        return NUMBER.findall(NAMES.sub("", text))

    @property
    def summary(self) -> dict[str, Any]:
        """Return the data of the task."""
        (summary,) = (one for one in self.report.analysis["tasks"] if one["task"] == self.heading)
        return summary

    @property
    def task(self) -> str:
        """Return the task: the first word of a line of a list, or the heading."""
        first = re.split(r"[:,]", self.text)[0]
        names = [one["task"] for one in self.report.analysis["tasks"]]
        return first if first in names else self.heading

    @property
    def decision(self) -> Decision:
        """Return the decision of the task at its most labels."""
        own = [one for one in self.report.decisions if one["task"] == self.task]
        return max(own, key=lambda one: one["train_examples"])

    @property
    def scores(self) -> dict[tuple[str, ...], dict[int, float]]:
        """Return the means of each system of the task in percent, by number of labels."""
        found: dict[tuple[str, ...], dict[int, float]] = {}
        for one in self.report.analysis["scores"]:
            if one["task"] == self.task and one["mean"] is not None:
                key = tuple(one["system"][name] for name in SYSTEM_COLUMNS)
                found.setdefault(key, {})[one["train_examples"]] = 100 * one["mean"]
        return found

    @property
    def tfidf(self) -> dict[int, float]:
        """Return the scores of TF-IDF by number of labels."""
        (scores,) = (own for key, own in self.scores.items() if key[0] == "tfidf")
        return dict(sorted(scores.items()))

    def find_scores(self, name: str) -> dict[int, float]:
        """Return the scores of a system, such as `ELMo, frozen`, by number of labels."""
        for one in self.report.analysis["scores"]:
            system = System(**one["system"])
            own_name = f"{format_model(system.model)}, {format_use(system)}"
            if (one["task"], own_name) == (self.task, name):
                return self.scores[tuple(one["system"][key] for key in SYSTEM_COLUMNS)]
        raise AssertionError(f"{self.task} has no system {name}")

    def find_answers(self) -> tuple[dict[str, Any], int]:
        """Return the answers of the task by label, and the place of the system to use."""
        details = self.report.analysis["answer_details"]
        (own,) = (one for one in details if one["task"] == self.task)
        return own, own["systems"].index(self.decision["use"]["standing"]["system"])

    @property
    def rare_labels(self) -> set[str]:
        """The labels that have fewer than five items in the test set."""
        answers, _ = self.find_answers()
        return {one["label"] for one in answers["classes"] if one["count"] < 5}


Reader = Callable[[Sentence], Iterable[object]]


def read_study(sentence: Sentence) -> list[object]:
    analysis = sentence.report.analysis
    own = [one for one in analysis["budget"] if one["budget_matched"] and one["text_bytes"]]
    most = max(own, key=lambda one: one["text_bytes"])
    epochs = max(most["epochs"], 1.0)
    passes = [f"{epochs:.1f}".removesuffix(".0")] if "read" in sentence.text else []
    seeds = (analysis["grid"][name] for name in ("pretrain_seeds", "finetune_seeds"))
    size = format_bytes(most["text_bytes"] / epochs, sentence)
    return [size, *passes, *map(len, seeds)]


def format_bytes(num_bytes: float, sentence: Sentence) -> str:
    """Return a number of bytes in the unit of the sentence."""
    unit = 1e3 if " kB " in sentence.text else 1e6
    return f"{num_bytes / unit:.3g}"


def read_trials(sentence: Sentence) -> list[object]:
    trials = {one["method"]: one for one in sentence.report.analysis["trials"]}
    unmatched = [one for one in trials.values() if one["min"] != one["max"]]
    if unmatched:
        return [number for one in unmatched for number in (one["min"], one["max"])]
    return [one["max"] for one in trials.values() if one["max"] > 1]


def count_marks(sentence: Sentence) -> list[object]:
    """Count the marked cells of each model in the part's tables, and all cells that have one."""
    expected = [*read_labels_of_methods(sentence)]
    text = re.sub(r" \([^)]*; [^)]*\)", "", sentence.text)
    for clause in re.findall(r"(?:for|;) ([^;]+? in \d+ of \d+)", text):
        name = re.split(r",| and | in |°", clause)[0]
        cells = sentence.report.list_cells(sentence.heading, name)
        mark = "▼" if "loss is shown" in sentence.text else "▲"
        expected += [sum(mark in cell for cell in cells), len(cells)]
    return expected


def read_labels_of_methods(sentence: Sentence) -> Iterator[object]:
    """Yield the fewest and the most labels in the tables of the methods that are named."""
    named = re.search(r"of each method \((.*?)\)", sentence.text)
    for part in named[1].split("; ") if named else []:
        methods, _, _ = part.partition(": ")
        counts = set()
        for method in methods.split(" and "):
            own = sentence.report.parts[sentence.heading].partition(f"\n{method}, ")[2]
            rows = own.strip().split("\n\n")[1]
            counts |= {int(one.replace(",", "")) for one in re.findall(r" ([\d,]+) labels", rows)}
        yield from (f"{count:,}" for count in dict.fromkeys((min(counts), max(counts))))


def read_untried(sentence: Sentence) -> Iterator[object]:
    """Yield the fewest and the most labels of the tasks on which a method was not run with them."""
    for clause in sentence.text.rstrip(".").split("; "):
        found = re.search(r"(fine-tuning|SetFit) with .* labels \((.*)\)", clause)
        if found is None:
            continue
        transfer = {"fine-tuning": "finetuned", "SetFit": "setfit"}[found[1]]
        counts = []
        for task in re.split(", | and ", found[2]):
            own = [one for one in sentence.report.analysis["scores"] if one["task"] == task]
            counts.append(max(one["train_examples"] for one in own))
            used = [one for one in own if one["system"]["transfer"] == transfer]
            assert 0 < max(one["train_examples"] for one in used) < counts[-1]
        yield from (f"{count:,}" for count in dict.fromkeys((min(counts), max(counts))))


def count_marks_by_task(sentence: Sentence) -> list[object]:
    """Count the marked cells of each task, without those of models that are not counted."""
    expected: list[object] = []
    for task in re.findall(r"(\w+) in \d+ of \d+", sentence.text):
        cells = sentence.report.list_task_cells(sentence.heading, task)
        expected += [sum("▲" in cell for cell in cells), len(cells)]
    return expected


def read_fewest_labels(sentence: Sentence) -> list[object]:
    """Return the first and the last number of labels of a model that is above TF-IDF at once."""
    name = sentence.text.removeprefix(f"{sentence.task}: ").partition(", with ")[0]
    scores = sentence.find_scores(name)
    fewest, most = min(scores), max(sentence.tfidf)
    assert scores[fewest] > max(sentence.tfidf.values())
    return [f"{fewest:,}", f"{most:,}"]


def read_equal_labels(sentence: Sentence) -> list[object]:
    """Return the fewest labels of a model, and those with which TF-IDF is as good, to two digits.

    Between two numbers of labels a score is a straight line over their logarithm.
    """
    name = sentence.text.removeprefix(f"{sentence.task}: ").partition(", with ")[0]
    scores = sentence.find_scores(name)
    fewest = min(scores)
    counts, tfidf = np.log([*sentence.tfidf]), [*sentence.tfidf.values()]
    equal = float(np.exp(np.interp(scores[fewest], tfidf, counts)))
    return [f"{fewest:,}", f"{float(f'{equal:.2g}'):,.0f}"]


def read_tfidf_leads(sentence: Sentence) -> list[object]:
    """Return the numbers of labels at which nothing is above TF-IDF, and then the others."""
    pretrained = [
        own
        for key, own in sentence.scores.items()
        if key[1] in ("pretrained", "adapted") and len(own) == len(sentence.tfidf)
    ]
    leads = {
        count: all(own[count] <= score for own in pretrained)
        for count, score in sentence.tfidf.items()
    }
    return [f"{count:,}" for is_lead in (True, False) for count in leads if leads[count] is is_lead]


def format_seconds(seconds: float) -> str:
    """Return the seconds, or from two minutes on the minutes."""
    return f"{seconds:.0f}" if seconds < 120 else f"{seconds / 60:.0f}"


def read_costs(sentence: Sentence) -> list[object]:
    """Return the labels, the time of each system that is named, and its points above the last."""
    setting = {name: sentence.decision[name] for name in ("task", "label_count")}
    costs = {
        format_model(one["system"]["model"]): one["cost"]["seconds"]
        for one in sentence.report.facts["costs"]
        if one["setting"] == setting and one["system"] in sentence.report.list_ranked(setting)
    }
    means = {
        format_model(one["system"]["model"]): 100 * one["mean"]
        for one in sentence.report.analysis["scores"]
        if one["system"] in sentence.report.list_ranked(setting)
        and {name: one[name] for name in setting} == setting
    }
    most = sentence.decision["train_examples"]
    labels = f"With {most:,} labels, " if most else ""
    start, _, _ = sentence.text.partition(" is the cheapest")
    assert start.startswith(f"{sentence.task}: {labels}")
    last = start.removeprefix(f"{sentence.task}: {labels}").removeprefix(
        "Of the pretrained models, "
    )
    expected: list[object] = [f"{most:,}"] if most else []
    for name in re.findall(r"(?:; |, | and )([\w -]+?) takes ", sentence.text):
        expected.append(format_seconds(costs[name]))
        expected.append(in_points(means[name] - means[last], signed=True))
        last = name
    return (
        [*expected, MARGIN]
        if f"no other scores {MARGIN} points more" in sentence.text
        else expected
    )


def count_items(sentence: Sentence) -> list[object]:
    """Return the test items, their groups, the level of chance, and the folds with their seeds."""
    splits, folds = sentence.summary["splits"], sentence.summary["cross_validation"]
    own = [one for one in sentence.report.analysis["scores"] if one["task"] == sentence.task]
    most = sentence.decision["train_examples"]
    chance = max(
        one["mean"] or 0.0
        for one in own
        if one["system"]["model"] in ("majority", "chance") and one["train_examples"] == most
    )
    if folds:
        seeds = len(sentence.report.analysis["grid"]["finetune_seeds"])
        items = splits["train"]["items"]
        return [f"{items:,}", in_points(100 * chance), folds["folds"], seeds]
    items = splits["test"]["items"]
    num_groups = max(one["num_clusters"] for one in own)
    groups = [num_groups] if 0 < num_groups < items else []
    return [f"{items:,}", *groups, *([in_points(100 * chance)] if chance else [])]


def count_those_with(sentence: Sentence, fact: str) -> list[object]:
    """Return the items of a split of which a fact holds, and all of them."""
    split = "validation" if re.search(r"validation (items|sentences)", sentence.text) else "test"
    sizes = sentence.summary["splits"][split]
    return [f"{sizes[name]:,}" for name in (fact, "items")]


def read_refits(sentence: Sentence) -> list[object]:
    """Return the items that each refitted system has learned from, and those of the scored one."""
    named = [one for one in sentence.report.facts["refits"] if f"{one['task']} (" in sentence.text]
    largest = {one["task"]: one for one in named}  # the most labels come last
    return [
        f"{one[name]:,}"
        for one in largest.values()
        for name in ("train_examples", "scored_examples")
    ]


def read_truncation(sentence: Sentence) -> list[object]:
    test = sentence.summary["splits"]["test"]
    return [f"{100 * test['truncated'] / test['items']:.0f}", sentence.summary["max_words"]]


def read_cut_texts(sentence: Sentence) -> list[object]:
    """Return the share of texts that a model cuts and its longest text; it is in the results."""
    table = sentence.report.results
    is_scored = table["split"] == sentence.report.analysis["split"]
    rows = table[is_scored & (table["task"] == sentence.task)]
    notes = [note for reason in rows["reason"].dropna() for note in json.loads(reason)]
    values = [one["value"] for one in notes if one["kind"] == "truncated"]
    shown = dict.fromkeys((f"{100 * one['share']:.0f}", one["max_positions"]) for one in values)
    assert ("under 1%" in sentence.text) == any(share == "0" for share, _ in shown)
    return [number for share, longest in shown for number in (max(share, "1"), longest)]


def read_confusion(sentence: Sentence) -> list[object]:
    answers, place = sentence.find_answers()
    labels = answers["confusion_labels"]
    shares = {
        (label, answer): share
        for label, own in zip(labels, answers["confusions"][place], strict=True)
        for answer, share in zip(labels, own, strict=True)
        if label != answer and label not in sentence.rare_labels
    }
    label, answer = max(shares, key=lambda pair: shares[pair])
    assert f"of {label} are called {answer}," in sentence.text
    # The answer stands behind the number, and may be one.
    return [f"{100 * shares[label, answer]:.0f}", *NUMBER.findall(answer)]


def read_weakest_label(sentence: Sentence) -> list[object]:
    answers, place = sentence.find_answers()
    common = [one for one in answers["classes"] if one["label"] not in sentence.rare_labels]
    weakest = min(common, key=lambda one: one["f1"][place])
    assert f"on label {weakest['label']}:" in sentence.text
    return [in_points(100 * weakest["f1"][place]), f"{weakest['count']:,.0f}"]


def read_calibration(sentence: Sentence) -> list[object]:
    answers, place = sentence.find_answers()
    bins = answers["calibrations"][place]["bins"]
    gaps = [one["share"] * (one["confidence"] - one["accuracy"]) for one in bins]
    assert ("too high" in sentence.text) == (sum(gaps) > 0) or "can be read" in sentence.text
    return [f"{100 * sum(map(abs, gaps)):.1f}"]


def read_answers(sentence: Sentence) -> list[object]:
    """Return the number of labels of the first sentence on answers, and what it says."""
    _, _, text = sentence.text.partition(": ")
    own = Sentence(sentence.report, sentence.heading, text)
    read = next(
        (read for start, read in ANSWER_READERS.items() if re.match(start, text)), lambda _: []
    )
    assert own.find_numbers() or "equally well" in text
    return [f"{sentence.decision['train_examples']:,}", *read(own)]


ANSWER_READERS: dict[str, Reader] = {
    r"\d+ % of the (?:items|words) of": read_confusion,
    r".* is weakest on label": read_weakest_label,
    r"The confidence of": read_calibration,
}


def read_layers(sentence: Sentence) -> list[object]:
    """Return layer 1 and what the top layer gains over it on each task that is named."""
    found = []
    for curve in sentence.report.analysis["layer_curves"]:
        gain = curve["top_gain"]
        start = f"In {format_model(curve['model'])} "
        if gain is None or curve["init"] != "pretrained" or not sentence.text.startswith(start):
            continue
        if re.search(rf"\b{curve['task']} [+−]", sentence.text):
            values = (gain["gain"], gain["ci_low"], gain["ci_high"])
            found += [in_points(100 * value, signed=True) for value in values]
    return ["1", *found]


def read_neighbours(sentence: Sentence) -> list[object]:
    """Return how many places were looked up, and the scored places and words, of a layer."""
    for path in sorted(sentence.report.predictions.glob(f"evaluate-*-{sentence.task}.parquet")):
        table = pd.read_parquet(path).query("head == 'neighbours' and trial == 'layer 1'")
        own = table.query("init == 'pretrained' and split == 'test'")
        if len(own):
            (count,) = {len(json.loads(nearest)) for nearest in own["neighbours_nearest"]}
            return [count, f"{len(own):,}", own["group"].nunique()]
    return []


def read_use_costs(sentence: Sentence) -> list[object]:
    """Return the seconds and the points of the one to use of some task, against another one."""
    found = []
    for decision in sentence.report.decisions:
        use = decision["use"]
        for other in decision["as_good"]:
            points = 100 * (use["standing"]["mean"] - other["standing"]["mean"])
            found.append([format_seconds(use["cost"]["seconds"]), in_points(points, signed=True)])
    assert sentence.find_numbers() in found
    return list(sentence.find_numbers())


def read_text_gain(sentence: Sentence) -> list[object]:
    """Return what the last half of its text has brought the model that is named."""
    for one in sentence.report.analysis["text_curves"]:
        if one["task"] == sentence.task and format_model(one["system"]["model"]) in sentence.text:
            gain, scores = one["last_gain"], dict(zip(one["shares"], one["scores"], strict=True))
            points = 100 * (scores[1.0] - scores[gain["share"]])
            ends = in_points(100 * gain["low"], 100 * gain["high"], signed=True)
            return [in_points(points, signed=True), *ends.split(" to ")]
    raise AssertionError("no curve has this model")


def find_own_bits(sentence: Sentence) -> dict[str, Any]:
    (own,) = (one for one in sentence.report.analysis["ngram_bits"] if one["model"] == "kneser_ney")
    return own


def read_clean_labels(sentence: Sentence) -> list[object]:
    """Return the number of labels of a table without contaminated items, of those that have one."""
    task, _, text = sentence.text.partition(" without contaminated items, ")
    counts = {
        f"{'all ' if one['label_count'] == 'all' else ''}{one['train_examples']:,} labels"
        for one in sentence.report.analysis["scores"]
        if one["task"] == task and one["train_examples"]
    }
    (count,) = (one for one in counts if text.startswith(f"{one}, "))
    return [count.removeprefix("all ").removesuffix(" labels")]


# The beginning of each sentence that has numbers, as a pattern, and where its numbers come from.
READERS: dict[str, Reader] = {
    r"\w+ without contaminated items, ": read_clean_labels,
    r"[\d.]+ [kM]B of .*pretraining runs? of each model": read_study,
    r"Not tried: ": read_untried,
    r"\*Use\*: the system|\*May be as good or better\*|\*Sure\?\*|\*Equivalent\*|Points with": lambda _: [
        MARGIN
    ],
    r"Times below": lambda _: [f"{SHORTEST_SECONDS:g}", SAME_COST_FACTOR],
    r"Both hold together|Below, comparisons of methods": lambda _: [CONFIDENCE],
    r".*[Vv]alidation chose among": read_trials,
    r"By task: ": count_marks_by_task,
    r".*(?:could not show that|(?:gain|loss) is shown for)": count_marks,
    r".* labels is above TF-IDF with": read_fewest_labels,
    r".* labels equals TF-IDF with": read_equal_labels,
    r".*, the \d+ nearest of": read_neighbours,
    r".*TF-IDF leads with": read_tfidf_leads,
    r".* is the cheapest": read_costs,
    r".* changed by .* with the last half of its text": read_text_gain,
    r".*, the one to use, takes": read_use_costs,
    r"[a-z ]+, [\d,]+ test items": count_items,
    r"Each fold trains on about": lambda one: [
        f"{max(one.tfidf):,}",
        f"{one.summary['splits']['train']['items']:,}",
    ],
    r"\d+% of the test texts are longer": read_truncation,
    r"\w+, within its maximum length": read_cut_texts,
    r"\d+ test items were dropped": lambda one: [
        one.summary["splits"]["test"]["dropped"]["unusable"]
    ],
    r"With (?:all )?[\d,]+ labels: ": read_answers,
    **ANSWER_READERS,
    r"A 5-gram model .* is counted on": lambda one: [
        format_bytes(find_own_bits(one)["train_bytes"], one)
    ],
    r"With tokens of its own": lambda one: [f"{find_own_bits(one)['bits_per_byte']:.3f}"],
    r"Contaminated: ": lambda _: [MAX_NGRAM_WORDS],
    r"For use, they are fitted again": read_refits,
    r"The scores are those before": lambda one: [
        max(refit["num_seeds"] for refit in one.report.facts["refits"]),
        one.report.facts["refits"][0]["finetune_seed"],
    ],
    r"In .* is read (better )?from": read_layers,
    r"A linear probe on each layer alone|Layer 0 is": lambda _: ["0"],
    r"Top minus 1": lambda _: ["1"],
    r"Selectivity: .*Hewitt and Liang": lambda _: ["2019"],
    r"2019\)\.": lambda _: ["2019"],  # of Tenney et al.
    r"A family of 2018": lambda _: ["2018"],
    r"Its .* interval is over blocks": lambda _: [CONFIDENCE],
    r"[\d,]+ of the [\d,]+ \w+ items also occur in train": lambda one: count_those_with(
        one, "duplicates_of_train"
    ),
    r"[\d,]+ of the [\d,]+ \w+ items belong to groups": lambda one: count_those_with(
        one, "groups_in_train"
    ),
    r"[\d,]+ of the [\d,]+ \w+ sentences have a tag or a type": lambda one: count_those_with(
        one, "tags_not_in_train"
    ),
    r"Each has read": lambda one: {
        number: None
        for budget in one.report.analysis["budget"]
        for number in (format_bytes(budget["text_bytes"], one), f"{budget['epochs']:.2f}")
    },
    r"Each has \d+ items": lambda one: [
        sizes.pop()
        for scores in one.report.analysis["group_scores"]
        if len(sizes := {group["num_examples"] for group in scores["groups"]}) == 1
    ],
    r".*in each group of items, .* labels": lambda one: [
        f"{scores['train_examples']:,}"
        for scores in one.report.analysis["group_scores"]
        if scores["task"] == one.task
    ],
    r"The score is the mean over \d+ groups": lambda one: [
        len(scores["groups"])
        for scores in one.report.analysis["group_scores"]
        if scores["task"] == one.task
    ],
    r"\w+, no labels, Spearman's rho x 100": lambda _: ["100"],
    r"\w+, (?:all |[^:]*, )[\d,]+ labels.*:$": lambda one: [f"{one.decision['train_examples']:,}"],
    r"\d+ groups: intervals are for these": lambda one: [
        len(scores["groups"])
        for scores in one.report.analysis["group_scores"]
        if scores["task"] == one.task
    ],
    r"The best possible here: ": lambda one: sorted(
        (
            in_points(100 * each["value"])
            for each in one.report.analysis["ceilings"]
            if each["task"] == one.task
        ),
        key=float,
    ),
    r"Could have found: ": lambda _: [f"{100 * POWER:g}", 100],
    r"All [\d,]+ labels:|\d+ labels:": lambda one: [
        f"{count:,}" for count in one.tfidf if f"{count:,} labels:" in one.text.lower()
    ],
}


def list_sentences(part: str) -> Iterator[str]:
    """Yield the sentences of a part, without its tables."""
    for line in part.splitlines():
        if not line.startswith(("|", "#")):
            yield from re.split(r"(?<=[.?])\s+(?=[A-Z*\d])", re.sub(r"^- |\*\*", "", line))


def test_every_number_of_a_sentence_follows_from_the_analysis(made_again: Path) -> None:
    report = Report(made_again)
    num_read = 0
    for heading, part in report.parts.items():
        for text in list_sentences(part):
            sentence = Sentence(report, heading, text)
            numbers = sentence.find_numbers()
            if not numbers:
                continue
            readers = [read for start, read in READERS.items() if re.match(start, text)]
            assert readers, f"no test reads the numbers of: {text}"
            expected = [str(number) for number in readers[0](sentence)]
            assert numbers == expected, text
            num_read += 1
    assert num_read > 15


def test_the_numbers_of_the_seven_questions_stand_in_the_reports() -> None:
    sources = [*(report / "comparison.md" for report in REPORTS)]
    sources += [
        ROOT / "docs/reference/claims.md",
        *(ROOT / "docs/decisions").glob("0047-*.md"),
        *(ROOT / "docs/decisions").glob("0049-*.md"),
    ]
    known = set(NUMBER.findall("\n".join(path.read_text(encoding="utf-8") for path in sources)))
    known = {number.lstrip("+") for number in known}
    text = (ROOT / "docs/explanation/questions.md").read_text(encoding="utf-8")
    numbers = [number.lstrip("+") for number in NUMBER.findall(text) if "." in number]
    assert len(numbers) > 30
    assert [number for number in numbers if number not in known] == []
