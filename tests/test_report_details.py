"""Beside the verdicts the page says what failed, what the data holds, and which line is whose."""

import dataclasses
import re
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from study_rows import FAMILIES, GRID, Study

from lineage import artifacts, results
from lineage.analysis import build, cells
from lineage.analysis.build import build_results
from lineage.config.params import ReportParams
from lineage.evaluation.baselines import data_count_rows
from lineage.report import figures, page, publication, sentences, tasks, view
from lineage.report import tree as tree_of
from lineage.report.sentences import JsonDict
from lineage.results import PUBLIC_FAMILY


def test_two_failures_of_a_variant_are_told_apart_by_their_head_and_group(tmp_path: Path) -> None:
    study = Study(tmp_path, items=40)
    folder = study.write()
    own, given = (
        next(study.cells("bert", 0, "sense", "pretrained"))[0],
        ("finetune_seed", "label_count", "transfer", "features", "head"),
    )
    cell = {key: value for key, value in own.items() if key not in given}
    bad = [results.ResultRow(**cell, finetune_seed=0, label_count="all", transfer="frozen", head=head, group=group, features="scalar_mix", kind="word_sense", metric="accuracy",  # type: ignore[arg-type]
                    value=None, num_examples=0, status="failed", reason="why")
           for head, group in (("linear", "all"), ("bilstm", "all"), ("linear", "rare"))]  # fmt: skip
    study.evaluate("evaluate-bert-0-sense", [*study.cells("bert", 0, "sense", "random")], more=bad)
    tree = build_results(folder, GRID, ReportParams())[1]
    assert [(one["head"], one["group"]) for one in tree["failed"]] == [
        ("bilstm", "all"),
        ("linear", "all"),
        ("linear", "rare"),
    ]
    md = page.render_report(tree, budget=[], provenance={"stages": []})["md"]
    assert (
        "| sense | bert, frozen + BiLSTM |" in md and "| sense, group rare | bert, frozen |" in md
    )


def test_what_the_data_holds_and_swapped_texts_are_said_beside_their_task(tmp_path: Path) -> None:
    tree = build_results(Study(tmp_path, items=40).write(), GRID, ReportParams())[1]
    found = [*data_count_rows({"name": "sense", "kind": "token_classification", "counts": {"test": 40, "validation": 9, "train": 90},
                         "dropped": {"train": {"of_no_use": 4}}, "cut": {}, "carved": 0,
                         "repeated_in_train": {"validation": 0, "test": 3}, "repeated_in_folds": {}, "mended_tags": {"train": 2},
                         "blank_words": {"test": 5}, "numbered_tags": {"train": 9}, "group_in_train": {"test": 30},
                         "unlearned_tags": {"test": 6}, "plain_tags": {"train": 8}})]  # fmt: skip
    known = [(row.metric, row.split, row.value, row.num_examples) for row in found]
    assert known == [
        ("items", "test", 40, 40), ("items", "validation", 9, 9), ("items", "train", 90, 90), ("left_out", "train", 4, 90),
        ("repeated_in_train", "test", 3, 40), ("group_in_train", "test", 30, 40), ("mended_tags", "train", 2, 90), ("blank_words", "test", 5, 40),
        ("unlearned_tags", "test", 6, 40), ("numbered_tags", "train", 9, 90), ("plain_tags", "train", 8, 90),
    ]  # fmt: skip
    found += [results.ResultRow(model="gpt", family="gpt", task="sense", kind="text_classification", metric="swap_consistency", value=value, num_examples=40, finetune_seed=seed,
                       init=init, transfer="finetuned", head="linear", label_count="all")
              for init, *some in (("pretrained", 0.9, 0.8), ("random", 1.0, 1.0)) for seed, value in enumerate(some)]  # fmt: skip
    table = results.results_frame(found)
    assert not cells._build_cells(table, split="test", tasks={}), "no system's cell comes of them"
    more = {"data": build._data_counts(table), "swaps": build._swap_consistency(table, "test"),
            "too_many": [{"task": "sense", "label_count": "100", "train_examples": 49, "same": "all"}]}  # fmt: skip
    said = page.render_report(tree | more, budget=[], provenance={"stages": []})
    for text in said.values():
        for line in ("Of its 40 test items in train too, word for word: 3.", "2 of its 90 sentences of train break the scheme of their tags",
                     "Left out of train, for they hold nothing to read, or to tell apart: 4.",
                     "6 of its 40 sentences of test hold a tag, or a type of spans, that train has not: it is never right.",
                     "5 blank words of test were left out, with their tags.",
                     "30 of its 40 test items are of groups that have items in train too.",
                     "Its 8 tags are plain ones, one of them such as O: no spans are read, and they are scored by the share that is right: if",
                     "Its 9 tags are numbers without names, and scored by the share that is right",
                     "There are 49 labels: the question of 100 is the one of all.",
                     "Answers that stay when the two texts change places, all labels: gpt, tuned 85.0 %, all of the others 100 %."):  # fmt: skip
            assert text.count(line) == 1
    assert (
        "word for word" not in page.render_report(tree, budget=[], provenance={"stages": []})["md"]
    )


def test_the_one_budget_is_what_was_read_most_and_not_the_first_line_s(tmp_path: Path) -> None:
    """Where there are several passes, a family that counts its text has read less of it than the others."""
    tree = build_results(Study(tmp_path, items=40).write(), GRID, ReportParams())[1]
    budget = [
        line | {"text_bytes": 4e6 if number else 1e6} for number, line in enumerate(tree["budget"])
    ]
    text = page.render_report(
        tree,
        budget=publication.add_pretraining_costs(budget, {}, curves_dir=tmp_path),
        provenance={"stages": []},
    )["html"]
    assert "under one budget of 4 MB of text," in text.replace("\n", " ")


def test_a_second_test_set_has_its_own_lines() -> None:
    """Neither what stands in train too nor swapped texts of CR are told, or averaged, as those of MR."""
    about = {
        "model": "gpt",
        "family": "gpt",
        "task": "mr",
        "kind": "text_classification",
        "split": "test",
        "num_examples": 40,
    }
    swaps = [results.ResultRow(**about, metric="swap_consistency", value=value, finetune_seed=0, init="pretrained", transfer="finetuned", head="linear", label_count="all",
                      test_set=name) for name, value in (("mr", 1.0), ("cr", 0.5))]  # fmt: skip
    facts = {"name": "mr", "kind": "text_classification", "counts": {"test": 40, "test-cr": 20}, "mended_tags": {}, "blank_words": {}, "unlearned_tags": {},
             "dropped": {}, "cut": {}, "carved": 0, "numbered_tags": {}, "plain_tags": {}, "group_in_train": {}, "repeated_in_folds": {}}  # fmt: skip
    table = results.results_frame(
        [*swaps, *data_count_rows(facts | {"repeated_in_train": {"test": 3, "test-cr": 2}})]
    )
    assert {one["task"]: one["value"] for one in build._swap_consistency(table, "test")} == {
        "mr": 1.0,
        "mr on cr": 0.5,
    }
    assert {
        one["task"]: (one["count"], one["items"])
        for one in build._data_counts(table)["repeated_in_train"]
    } == {"mr": (3, 40), "mr on cr": (2, 20)}


def test_what_a_study_did_not_ask_is_said_beside_the_task() -> None:
    cell = {"init": "pretrained", "family": "gpt", "task": "mood", "kind": "text_classification"}
    asked = [("frozen", "linear", ("100", "1000", "all")), ("finetuned", "linear", ("100", "all"))]
    tree = {"cells": [cell | {"transfer": transfer, "head": head, "label_count": n} for transfer, head, counts in asked for n in counts],
            "data": {}, "too_many": [], "swaps": [], "groups": []}  # fmt: skip
    assert tasks.describe_task_data(tree, "mood") == ["Not asked here: tuned with 1000 labels."]
    other = cell | {
        "task": "names",
        "transfer": "frozen",
        "head": "bilstm_crf",
        "label_count": "all",
    }
    tree["cells"].append(other)
    assert tasks.describe_task_data(tree, "mood") == [
        "Not asked here: tuned with 1000 labels, a network over frozen features."
    ]
    assert not tasks.describe_task_data(tree, "names")


def test_more_labels_than_there_are_ask_nothing_new() -> None:
    """49 labels, asked for as 30, 100 and all: two questions; 100, as 100 and all: one, and 60, as 99 and 200. What was asked, or has a value, with
    100 alone keeps its question."""
    way = cells.System("gpt", "gpt", "pretrained", "none", "frozen", "mix", "linear", "none")
    asked = [cells.ResultCell(way, task, "sense", labels, "accuracy", min(there, int(labels) if labels != "all" else there), seed_values={(0, 0): 0.5})
             for task, there, counts in (("sense", 49, ("30", "100", "all")), ("mood", 49, ("30", "100")), ("tone", 100, ("100", "all")),
                                         ("news", 60, ("99", "200")))
             for labels in counts]  # fmt: skip
    kept, left = cells.drop_duplicate_label_counts(asked)
    said = [(cell.task, cell.label_count) for cell in kept]
    assert said == [
        ("sense", "30"),
        ("sense", "all"),
        ("mood", "30"),
        ("mood", "100"),
        ("tone", "all"),
        ("news", "99"),
    ]
    assert [tuple(one.values()) for one in left] == [
        ("sense", "100", 49, "all"),
        ("tone", "100", 100, "all"),
        ("news", "200", 60, "99"),
    ]
    other = dataclasses.replace(asked[1], system=dataclasses.replace(way, transfer="finetuned"))
    every, none = cells.drop_duplicate_label_counts([*asked, other])
    assert len(every) == len(kept) + 2 and none == left[1:]
    failed = [
        dataclasses.replace(cell, seed_values={}) if cell.label_count == "all" else cell
        for cell in asked
    ]
    assert {
        (cell.task, cell.label_count) for cell in cells.drop_duplicate_label_counts(failed)[0]
    } == {(cell.task, cell.label_count) for cell in asked} - {("news", "200")}


def test_the_summary_says_where_a_public_checkpoint_is_better(tmp_path: Path) -> None:
    tree = build_results(Study(tmp_path, items=40).write(), GRID, ReportParams())[1]
    led, *others = sorted(
        sentences.summarize_settings(tree),
        key=lambda question: not sentences.count_wins([question]),
    )
    for places, below in (
        ((led, others[0]), "what leads"),
        ((others[-1], led), "the first of one budget"),
    ):
        assert sentences.count_wins([places[0]]).total() == (below == "what leads")
        above = [one | {"question": "beside", "verdict": verdict, "first": one["second"]}
                 for question, verdict in zip(places, ("better", "not separated"), strict=True) for one in question["rivals"][:1]]  # fmt: skip
        said = sentences.summarize(tree | {"comparisons": [*tree["comparisons"], *above]})
        assert (
            said
            == f"{sentences.summarize(tree)} A public checkpoint, not budget-matched, is better than {below} on 1."
        )


def test_public_checkpoints_alone_stand_beside_the_best_control(tmp_path: Path) -> None:
    """No rival of one budget is there, and so nobody leads; what each checkpoint showed is said all the same."""
    folder = Study(tmp_path, items=100).write()
    for path in [*folder.glob("rows/*.parquet"), *folder.glob("predictions/*.parquet")]:
        table = artifacts.read_table(path)
        artifacts.write_table(
            path,
            table.assign(
                family=table["family"].astype(object).replace([*GRID.models], PUBLIC_FAMILY)
            ),
        )
    tree = build_results(folder, GRID, ReportParams())[1]
    asked = sentences.summarize_settings(tree)
    assert {one["task"] for one in asked} == {"sentiment", "sense"}, "these have controls"
    alone = [one for one in asked if one["alone"]]
    assert alone and all(one["way"]["model"] == "tfidf" and not one["clear"] for one in alone)
    said = sentences.describe_setting(alone[0], margin=0.02)
    assert (
        "It has no rival of one budget." in said
        and "Beside it stands " in said[-1]
        and "(not budget-matched)" in said[-1]
    )
    said = sentences.summarize(tree)
    assert (
        f"on {len(alone)} tfidf has no rival that it could be compared with" in said
        and "leads on" not in said.split("A public")[0]
    )


def test_a_lead_that_is_not_better_than_guessing_is_no_lead(tmp_path: Path) -> None:
    study = Study(tmp_path, items=120)
    folder = study.write()

    def guessing(skill: float) -> JsonDict:
        cells = [
            (
                cell,
                skill + 0.5 * (cell["label_count"] == "all")
                if cell["model"] == "majority"
                else -2.0,
            )
            for cell, _ in study.controls("sense")
        ]
        study.evaluate("baselines-sense", cells, more=study.ceilings("sense"))
        return build_results(folder, GRID, ReportParams())[1]

    worse, level, better = guessing(-1.0), guessing(2.3), guessing(5.0)
    assert "guessing" not in sentences.summarize(worse)
    for tree in (level, better):
        assert (
            " and on 2 what leads is not shown to be better than guessing."
            in sentences.summarize(tree)
        )
    for tree, ways, said in (
        (level, FAMILIES, r"Not shown to be better than guessing \([+−]"),
        (better, ("majority",), r"Nothing is shown to be better than guessing\. "),
    ):
        asked = {
            (one["task"], one["label_count"]): one for one in sentences.summarize_settings(tree)
        }
        assert asked["sense", "all"]["way"]["model"] in ways and not asked["sense", "all"]["clear"]
        assert re.match(
            said, " ".join(sentences.describe_setting(asked["sense", "all"], margin=0.02))
        )
        assert "guessing" not in " ".join(
            sentences.describe_setting(asked["sentiment", "all"], margin=0.02)
        )
        assert {
            one["repetitions"] for one in tree["comparisons"] if one["question"] == "guess"
        } == {1}, "over examples alone, whatever the seeds"
    won = better | {"comparisons": [one | {"verdict": "better"} for one in better["comparisons"]]}
    assert {(one["task"], one["clear"]) for one in sentences.summarize_settings(won)} == {
        ("sense", False),
        ("sentiment", True),
        ("agreement", True),
    }
    assert publication.format_run_name(better | {"comparisons": [c for c in better["comparisons"] if c["task"] == "sense"]}, pipeline="1a2b3c4d5e") == (
        "no lead beats guessing (1a2b3c4d)")  # fmt: skip


def test_variants_beyond_the_palette_have_other_marks_and_dashes() -> None:
    looks = [(figures.palette_color(place), figures.marker_shape(place)) for place in range(24)]
    assert len({*looks}) == 24 and {shape for _, shape in looks[:8]} == {"circle"}
    lines = [
        figures.LineSeries(
            str(place), *looks[place][:1], [1, 2], [0.1, 0.2], marker=looks[place][1]
        )
        for place in (0, 8, 16)
    ]
    drawn = [figures.draw_line_chart([line], title="x", x_label="x", y_label="y") for line in lines]
    assert len({re.sub(r"<title>.*?</title>", "", svg) for svg in drawn}) == 3
    assert [("<circle" in svg, "rotate(45" in svg, "stroke-dasharray" in svg) for svg in drawn] == [
        (True, False, False), (False, False, True), (False, True, True)]  # fmt: skip
    scale = figures.fit_strip_scale([0.1, 0.9])
    assert "<rect" in figures.draw_strip_plot(
        scale, dots=[0.5], mean=0.5, interval=None, references=[], color="red", marker="square"
    )


def test_what_single_changes_are_worth_is_a_table_of_its_own(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    _, tree = build_results(
        folder, dataclasses.replace(GRID, ablation_of={"gpt": "elmo"}), ReportParams()
    )
    asked = [one for one in tree["comparisons"] if one["question"] == "ablation"]
    found = page.render_report(tree, budget=[], provenance={"stages": []})
    md = found["md"].partition("## What single changes are worth")[2].partition("\n## ")[0]
    lines = [line for line in md.splitlines() if line.startswith("| gpt")]
    ways = [
        (
            sentences.format_system(one["first"]),
            sentences.format_system(one["second"]),
            sentences.format_comparison(one),
            one["verdict"],
        )
        for one in asked
    ]
    assert ways and sorted(lines) == sorted("| " + " | ".join(way) + " |" for way in ways)
    assert found["html"].count("What single changes are worth") == 1 and all(
        html in found["html"] for _, html, *_ in ways
    )
    _, plain = build_results(folder, GRID, ReportParams())
    assert not any(
        "single changes" in text
        for text in page.render_report(plain, budget=[], provenance={"stages": []}).values()
    )


def test_a_panel_of_many_variants_says_how_many(tmp_path: Path) -> None:
    tree = build_results(Study(tmp_path, items=40).write(), GRID, ReportParams())[1]
    curve = {"measure": "bits_per_byte", "text_bytes": [1e6, 2e6], "value": [3.0, 2.0]}
    few, many = (
        view.draw_loss_curves(tree | {"curves": [curve | {"model": name} for name in names]})[0]
        for names in ("abcd", "abcde")
    )
    assert "a, b, c, d" in few and "5 variants" in many and "a, b" not in many


def test_one_question_is_no_questions(tmp_path: Path) -> None:
    tree = build_results(Study(tmp_path, items=40).write(), GRID, ReportParams())[1]
    place = tree["cells"][0]["task"], tree["cells"][0]["label_count"]
    one = {
        name: [found for found in tree[name] if (found["task"], found["label_count"]) == place]
        for name in ("cells", "comparisons")
    }
    assert sentences.summarize(tree | one).startswith(
        "Of 1 question (a task"
    ) and " questions (a task" in sentences.summarize(tree)


def test_a_tie_at_the_top_is_nobodys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gpt's files of sense are bert's under another name: both are named and marked, and neither leads there."""
    folder = Study(tmp_path).write()
    for kind in ("rows", "predictions"):
        table = artifacts.read_table(folder / kind / "evaluate-bert-0-sense.parquet")
        artifacts.write_table(
            folder / kind / "evaluate-gpt-0-sense.parquet",
            table.assign(variant="gpt", family="gpt"),
        )
    tree = build_results(folder, GRID, ReportParams())[1]
    asked = sentences.summarize_settings(tree)
    tied = [one for one in asked if one["task"] == "sense"]
    assert (
        len(tied) == 2
        and [[way["model"] for way in one["level"]] for one in tied] == [["gpt", "bert"]] * 2
    )
    assert all(one["level"] == [one["way"]] for one in asked if one["task"] != "sense") and not any(
        one["clear"] for one in tied
    )
    assert sum(
        sentences.count_wins(asked).values()
    ) == 3 and " and on 2 several are equal at the top." in sentences.summarize(tree)
    cards = [card for card in view.build_verdict_cards(tree) if card["task"] == "sense"]
    assert {card["way"] for card in cards} == {"equal at the top: gpt, tuned; bert, tuned"} and {
        card["tint"] for card in cards
    } == {figures.MUTED_COLOR}
    assert all(card["sentences"][0].startswith("The first: ") for card in cards)
    page.print_table(tree, Console(width=200))
    marks = {
        line[1:].split("|")[0].strip(): line.count("*")
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("|")
    }
    assert marks["gpt, tuned"] == 2 and marks["bert, tuned"] >= 2
    alone = tree | {"comparisons": [one for one in tree["comparisons"] if one["task"] == "sense"]}
    assert (
        sentences.count_wins(sentences.summarize_settings(alone)) == {}
        and publication.format_run_name(alone, pipeline="1a2b") == "equal at the top (1a2b)"
    )


def test_a_control_at_the_top_takes_its_part_of_a_tie(tmp_path: Path) -> None:
    tree = build_results(Study(tmp_path).write(), GRID, ReportParams())[1]
    first = next(one for one in sentences.summarize_settings(tree) if one["task"] == "sentiment")
    control = next(one["second"] for one in first["rivals"] if one["second"]["init"] == "none")
    tree_of.find_result(tree, control, task="sentiment", label_count=first["label_count"])[
        "mean"
    ] = first["cell"]["mean"] - 1e-12
    again = next(
        one
        for one in sentences.summarize_settings(tree)
        if (one["task"], one["label_count"]) == ("sentiment", first["label_count"])
    )
    assert (
        sentences.format_leaders(again)
        == f"equal at the top: {sentences.format_system(first['way'])}; tfidf"
    )
    assert " and on 1 several are equal at the top." in sentences.summarize(tree)


def test_what_an_adaptation_read_and_took_stands_beside_what_it_brought(tmp_path: Path) -> None:
    folder = Study(tmp_path, items=40).write()
    curve = folder / "curves/adapt-gpt-0-sentiment.parquet"
    artifacts.write_table(curve, pd.DataFrame({"text_bytes": [400, 1_001_350], "loss": [3.0, 2.0]}))
    tree = build_results(folder, GRID, ReportParams())[1]
    assert {line["model"]: line["text_bytes"] for line in tree["adaptation"]} == {
        "elmo": None,
        "gpt": 1_001_350.0,
        "bert": None,
    }
    side = {"seconds": 75.0, "curve_sha256": artifacts.file_digest(curve)}
    for seconds, sides in (
        (75.0, {"adapt@gpt-0-sentiment": side}),
        (None, {"adapt@gpt-0-sentiment": side | {"curve_sha256": "of another one"}}),
    ):
        timed = publication.add_adaptation_seconds(
            tree["adaptation"], sides, GRID, curves_dir=folder / "curves"
        )
        assert {line["seconds"] for line in timed if line["model"] == "gpt"} == {seconds}
    md = page.render_report(tree | {"adaptation": publication.add_adaptation_seconds(tree["adaptation"], {"adapt@gpt-0-sentiment": side}, GRID, curves_dir=folder / "curves")},
                     budget=[], provenance={"stages": []})["md"]  # fmt: skip
    assert "| gpt | sentiment | 1 MB | 75 s |" in md and "| bert | sentiment | n/a | – |" in md
