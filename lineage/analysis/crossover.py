"""How many labels until a way overtakes TF-IDF: what the comparisons with that control say over growing numbers of labels."""

from typing import Any

from lineage.report import sentences

JsonDict = dict[str, Any]


def build_crossover_tables(tree: JsonDict) -> list[JsonDict]:
    """A table a task that was learned with two or more numbers of labels: a line a way, its difference from TF-IDF at each, and from where it leads.

    A way leads from the smallest number at which it is better than TF-IDF and from which on it is so at every larger one that was tried.
    """
    found = []
    for task in dict.fromkeys(c["task"] for c in tree["cells"]):
        examples = {
            c["label_count"]: c["train_examples"]
            for c in tree["cells"]
            if c["task"] == task and c["family"] == "tfidf"
        }
        counts = sorted(examples, key=lambda labels: examples[labels])
        comparisons = [
            one
            for one in tree["comparisons"]
            if one["question"] == "controls" and one["task"] == task
        ]
        if len(set(examples.values())) < 2 or not comparisons:
            continue
        lines = []
        for system in dict.fromkeys(sentences.format_system(one["first"]) for one in comparisons):
            own = {
                one["label_count"]: one
                for one in comparisons
                if sentences.format_system(one["first"]) == system
            }
            cells = [
                {"spread": sentences.format_comparison(own[n]), "verdict": own[n]["verdict"]}
                if n in own
                else None
                for n in counts
            ]
            lines.append(
                {
                    "way": system,
                    "cells": cells,
                    "from": _format_crossover(
                        [own.get(n) for n in counts], [examples[n] for n in counts]
                    ),
                }
            )
        found.append(
            {
                "task": task,
                "columns": [
                    sentences.format_label_count(n, train_examples=examples[n]) for n in counts
                ],
                "lines": lines,
            }
        )
    return found


def _format_crossover(comparisons: list[JsonDict | None], examples: list[int]) -> str:
    """`from 100 labels on`; `at 30 labels, not shown at more`; `at no number that was tried`. What was not asked at a number says nothing of it."""
    outcomes = [
        (count, one["verdict"] == "better")
        for count, one in zip(examples, comparisons, strict=True)
        if one is not None
    ]
    crossover = next(
        (place for place in range(len(outcomes)) if all(good for _, good in outcomes[place:])), None
    )
    if crossover is not None:
        first, last = outcomes[crossover][0], outcomes[-1][0]
        most = f", the most {'it' if last < examples[-1] else 'that'} was tried{' with' if last < examples[-1] else ''}"
        return (
            f"at {first} labels{most}"
            if first == last
            else f"from {first} labels on{f', up to {last}{most}' if last < examples[-1] else ''}"
        )
    some = [str(count) for count, good in outcomes if good]
    return (
        f"at {' and '.join(some)} labels, not shown at more"
        if some
        else "at no number that was tried"
    )
