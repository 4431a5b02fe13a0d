"""What single changes are worth: the comparisons of variants with the one that each differs from in a switch (`grid.against`)."""

from typing import Any

from lineage.report import words

Tree = dict[str, Any]


def changes(tree: Tree) -> list[Tree]:
    """A table a task and number of labels: a line a changed variant and way of reading it, with its difference from what it was changed from."""
    asked = [one for one in tree["comparisons"] if one["question"] == "ablation"]
    examples = {(c["task"], c["labels"]): c["train_examples"] for c in tree["cells"]}
    found = []
    for task, labels in dict.fromkeys((one["task"], one["labels"]) for one in asked):
        own = [one for one in asked if (one["task"], one["labels"]) == (task, labels)]
        lines = [{"way": words.way_words(one["first"]), "other": words.way_words(one["second"]),
                  "spread": words.spread(one), "verdict": one["verdict"]} for one in own]  # fmt: skip
        found.append({"task": task, "labels": words.labels_words(labels, train_examples=examples[task, labels]), "lines": lines})
    return found
