"""The tree of results.json -> what both pages and the terminal show, so that they cannot disagree."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lineage.report import figures, literature, words
from lineage.report.cells import CONTROL_ROWS, ON
from lineage.report.figures import Line, Series
from lineage.report.tasks import folds_words, notes
from lineage.report.tree import over_guessing
from lineage.text.language import spaceless

Tree = dict[str, Any]
WORDS = re.compile(r"\bwords\b,?")
INITS = ("pretrained", "adapted", "untrained", "none")
MEASURE_WORDS = {"bits_per_byte": "bits per byte, left to right", "bits_per_byte_forward": "bits per byte, forward",
                 "bits_per_byte_backward": "bits per byte, backward", "masked_nats": "nats per masked token",
                 "next_nats": "nats per next-sentence choice", "next_accuracy": "share right of next-sentence choices",
                 "sampled_nats": "nats per word, against sampled ones",
                 "rebuilt_nats": "nats per token written again", "word_nats": "nats per word", "source_nats": "nats per piece of the source language",
                 "target_nats": "nats per piece of the target language"}  # fmt: skip


def tint(tree: Tree, variant: str) -> str:
    """The variant's colour, the same in every figure."""
    known = variants(tree)
    return figures.colour(known.index(variant)) if variant in known else figures.MUTED


def drawn(tree: Tree, variant: str) -> Tree:
    """The variant's colour, and the shape of its marks."""
    known = variants(tree)
    return {"tint": tint(tree, variant), "shape": figures.shape(known.index(variant)) if variant in known else "circle"}


def variants(tree: Tree) -> list[str]:
    """Variants, and what is made of two of them, in the order of the grid."""
    return [*tree["grid"]["families"], *tree["grid"]["two_budgets"]]


def tasks(tree: Tree) -> list[Tree]:
    """One table a task: a line a way, a column a number of labels."""
    best = {(q["task"], q["labels"]): q["level"] for q in words.questions(tree)}
    return [_task(tree, task, best=best) for task in dict.fromkeys(c["task"] for c in tree["cells"] if c["mean"] is not None)]


def _task(tree: Tree, task: str, *, best: dict[tuple[str, str], list[Tree]]) -> Tree:
    cells = [c for c in tree["cells"] if c["task"] == task]
    found = sorted((c for c in tree["ceilings"] if c["task"] == task), key=lambda c: float(c["value"]))
    ceilings = [Line(c["value"], "ceiling", c["reads"]) for c in found]
    references: dict[str, list[Line]] = {c["labels"]: [*ceilings] for c in cells}
    for c in cells:
        if c["family"] in CONTROL_ROWS and c["mean"] is not None:
            references[c["labels"]].append(Line(c["mean"], c["family"], c["family"]))
    shown = [v for c in cells for v in (c["mean"], c["low"], c["high"], *(s["value"] for s in c["seeds"])) if v is not None]
    scale = figures.strip_scale([*shown, *(line.value for line in ceilings)])
    columns = [_column(labels, [c for c in cells if c["labels"] == labels], scale, lines) for labels, lines in references.items()]
    lines = []
    for key in dict.fromkeys(_line_key(c) for c in cells):
        own = {c["labels"]: c for c in cells if _line_key(c) == key}
        drawn = [_cell(tree, own.get(labels), scale=scale, lines=behind, best=best.get((task, labels), [])) for labels, behind in references.items()]
        lines.append(_line(tree, next(iter(own.values()))) | {"cells": drawn})
    lines.sort(key=lambda line: _order(tree, line))
    examples, groups = max(c["examples"] for c in cells), max(c["units"] for c in cells)
    return {"name": task, "kind": cells[0]["kind"].replace("_", " "), "heading": words.heading(cells[0]["metric"]),
            "unit": words.unit(cells[0]["metric"]), "examples": examples, "groups": groups if 0 < groups < examples else 0,
            "folds": folds_words(tree, task),
            "columns": columns, "lines": lines, "notes": notes(tree, task),
            "ceilings": [{"reads": c.name, "value": words.percent(c.value)} for c in ceilings]}  # fmt: skip


def _line(tree: Tree, cell: Tree) -> Tree:
    """What the head of a line says of a way; a dagger where adaptation did not lower the loss that it trains on."""
    own = [a for a in tree["adaptation"] if (a["variant"], a["task"]) == (cell["variant"], cell["task"].split(ON)[0])]
    init = "" if cell["init"] in ("pretrained", "none") else cell["init"] + (" †" if cell["init"] == "adapted" and any(map(_marked, own)) else "")
    transfer = "" if cell["transfer"] == "none" else cell["transfer"].replace("_", "-") + words.head_words(cell)
    apart = apart_words(tree, cell["variant"])
    return {"variant": cell["variant"], "init": cell["init"], "control": cell["init"] == "none", "budgets": apart,
            "head": ", ".join(part for part in (init, transfer) if part), **drawn(tree, cell["variant"]),
            "recipe": "" if cell["recipe"] == "none" else cell["recipe"].replace("+", " + "), "words": words.way_words(cell)}  # fmt: skip


def apart_words(tree: Tree, variant: str) -> str:
    """Why a variant is not among those of one budget: `two budgets: there and back`, `not budget-matched`; nothing where it is."""
    if variant in tree["public"]:
        return words.UNMATCHED
    if variant in tree["grid"]["ensembles"]:
        return f"two budgets: {' and '.join(tree['grid']['ensembles'][variant])}"
    return "two budgets" if variant in tree["grid"]["two_budgets"] else ""  # whose they are its name says


def named(tree: Tree, variant: str) -> str:
    """A variant, and why it is not among those of one budget: `roberta (not budget-matched)`."""
    apart = apart_words(tree, variant)
    return f"{variant} ({apart})" if apart else variant


def _line_key(cell: Tree) -> tuple[str, ...]:
    return tuple(cell[k] for k in ("variant", "init", "transfer", "features", "head", "recipe"))


def _order(tree: Tree, line: Tree) -> tuple[int, ...]:
    known, inits = [*variants(tree), *CONTROL_ROWS], INITS
    return known.index(line["variant"]) if line["variant"] in known else len(known), inits.index(line["init"])


def _column(labels: str, cells: list[Tree], scale: figures.Scale, lines: list[Line]) -> Tree:
    examples = max(c["train_examples"] for c in cells)
    return {
        "labels": labels,
        "words": words.labels_words(labels, train_examples=examples),
        "axis": figures.strip_axis(scale, lines=lines, unit=words.heading(cells[0]["metric"])),
    }


def _cell(tree: Tree, cell: Tree | None, *, scale: figures.Scale, lines: list[Line], best: list[Tree]) -> Tree | None:
    if cell is None:
        return None
    found: Tree = {name: words.percent(cell[name]) for name in ("mean", "low", "high")}
    found |= {"seeds": [words.percent(s["value"]) for s in cell["seeds"]], "problems": cell["problems"], "lost": _lost(cell),
              "value": cell["mean"], "strip": ""}  # fmt: skip
    if cell["mean"] is not None:
        interval = None if cell["low"] is None else (cell["low"], cell["high"])
        title = f"{words.way_words(cell)}: {found['mean']} {words.unit(cell['metric'])} ({found['low']} to {found['high']}); "
        title += f"seeds {', '.join(found['seeds'])}"
        dots = [s["value"] for s in cell["seeds"]]
        found["strip"] = figures.strip(scale, dots=dots, mean=cell["mean"], interval=interval, lines=lines, **drawn(tree, cell["variant"]),
                                       hollow=cell["init"] == "untrained", title=title)  # fmt: skip
    return found | {"twin": _twin(tree, cell), "best": any(way.items() <= cell.items() for way in best)}


def _lost(cell: Tree) -> str:
    """`1 seed failed`, `2 seeds not applicable`: repetitions of a cell that have no value, where others have."""
    lost = Counter(status for *_, status in dict.fromkeys((one["pretrain_seed"], one["seed"], one["status"]) for one in cell["problems"]))
    return ", ".join(f"{count} seed{'s' if count > 1 else ''} {status.replace('_', ' ')}" for status, count in sorted(lost.items()))


def _twin(tree: Tree, cell: Tree) -> Tree | None:
    """A pretrained cell against its untrained twin; an adapted one against what it was before."""
    question = {"pretrained": "pretraining", "adapted": "adaptation"}.get(cell["init"])
    for one in tree["comparisons"]:
        same = (one["question"], one["task"], one["labels"]) == (question, cell["task"], cell["labels"])
        if same and one["first"].items() <= cell.items():
            against = "untrained" if question == "pretraining" else "not adapted"
            return {"difference": words.signed(one["difference"]), "verdict": one["verdict"], "against": against, "spread": words.spread(one),
                    "guesses": over_guessing(tree, one)}  # fmt: skip
    return None


def label_curves(tree: Tree) -> list[str]:
    """The compared score over the number of labels, a panel a task and way of reading, where there is more than one number."""
    found = []
    for task in dict.fromkeys(c["task"] for c in tree["cells"]):
        cells = [c for c in tree["cells"] if c["task"] == task and c["mean"] is not None and c["labels"] != "none"]
        if len({c["train_examples"] for c in cells}) < 2:
            continue
        controls = [_labels_series(tree, [c for c in cells if c["family"] == "tfidf"], name="tfidf", hollow=True)]
        for reading in sorted({(c["transfer"], c["head"]) for c in cells if c["init"] == "pretrained"}):
            own = [c for c in cells if c["init"] == "pretrained" and (c["transfer"], c["head"]) == reading]
            series = [_labels_series(tree, [c for c in own if c["variant"] == v], name=v) for v in tree["grid"]["families"]]
            shown = [s for s in [*series, *controls] if s.x]
            title = f"{task}, {reading[0]}{words.head_words(own[0])}"
            found.append(
                figures.panel(
                    shown, title=title, x_label="training labels (log)", y_label=words.heading(cells[0]["metric"]), log_x=True, percent=True
                )
            )
    return found


def _labels_series(tree: Tree, cells: list[Tree], *, name: str, hollow: bool = False) -> Series:
    cells = sorted(cells, key=lambda c: c["train_examples"])
    banded = not hollow and all(c["low"] is not None for c in cells)
    return Series(name, tint(tree, name), [c["train_examples"] for c in cells], [c["mean"] for c in cells],
                  [c["low"] for c in cells] if banded else (), [c["high"] for c in cells] if banded else (),
                  hollow=hollow, shape=drawn(tree, name)["shape"])  # fmt: skip


def loss_curves(tree: Tree) -> list[str]:
    """Validation over text read, a panel a measure: what counts other things (masked tokens, another direction) never shares an axis."""
    found = []
    for measure in sorted({curve["measure"] for curve in tree["curves"]}):
        curves = [curve for curve in tree["curves"] if curve["measure"] == measure]
        series = [Series(c["variant"], tint(tree, c["variant"]), [b / 1e6 for b in c["text_bytes"]], c["value"],
                         shape=drawn(tree, c["variant"])["shape"]) for c in curves]  # fmt: skip
        names = dict.fromkeys(c["variant"] for c in curves)
        title = ", ".join(names) if len(names) <= 4 else f"{len(names)} variants"  # a panel has no room for more, and colours tell them
        found.append(figures.panel(series, title=title, x_label="text read, MB", y_label=_measure(measure)))
    return found


def legend(tree: Tree) -> list[Tree]:
    """Variants and their colours."""
    return [{"name": named(tree, v), **drawn(tree, v), "matched": v not in tree["public"]} for v in tree["grid"]["families"]]


def verdicts(tree: Tree) -> list[Tree]:
    """One card a question: who leads, or who are level, and what stays open."""
    found = []
    for question in words.questions(tree):
        cell = question["cell"]
        interval = "" if cell["low"] is None else f"{words.percent(cell['low'])} to {words.percent(cell['high'])}"
        led = len(question["level"]) == 1
        found.append({"task": question["task"], "labels": words.labels_words(question["labels"], train_examples=question["train_examples"]),
                      "way": words.top_words(question), "ways": [words.way_words(way) for way in question["level"]],
                      "mean": words.percent(cell["mean"]), "unit": words.unit(cell["metric"]), "interval": interval, "clear": question["clear"],
                      "tint": tint(tree, question["way"]["variant"] if led else ""),
                      "sentences": words.sentences(question, margin=tree["margin"])})  # fmt: skip
    return found


def budget(tree: Tree, lines: Sequence[Tree]) -> list[Tree]:
    """What each variant was given; a line of two budgets says whose it adds up, and a public one's that it is not matched."""
    return [line | {**drawn(tree, line["variant"]), "budgets": apart_words(tree, line["variant"])} for line in lines]


def failed(tree: Tree) -> list[Tree]:
    """What has no value; of several pretrainings of which one."""
    families = {cell["variant"]: cell["family"] for cell in tree["cells"]}
    several = len(tree["grid"]["pretrain_seeds"]) > 1
    return [line | {"words": words.way_words(line | {"family": families.get(line["variant"], "")}),
                    "repetitions": _repetitions(line, several=several),
                    "task": line["task"] + ("" if line["group"] == "all" else f", group {line['group']}")} for line in tree["failed"]]  # fmt: skip


def _repetitions(line: Tree, *, several: bool) -> str:
    """`0, 1, 2`, or `0, 1, 2 of pretraining 1`."""
    own, of = (", ".join(map(str, line[name])) for name in ("seeds", "pretrain_seeds"))
    return f"{own or 'all'} of pretraining {of}" if several and of else own


def mechanisms(lines: Sequence[Tree], budget: Sequence[Tree]) -> list[Tree]:
    """What each variant is made of, and last what a byte of text cost it."""
    spent = {line["variant"]: line for line in budget}
    return [line | {"cost": words.cost(spent.get(line["variant"], {}))} for line in lines]


def in_language(mechanism: Tree, language: str) -> Tree:
    """A family's line in the table of mechanisms, as it is of a corpus in this language: without spaces each word is a character."""
    return mechanism | ({"unit": WORDS.sub("characters, each a word,", mechanism["unit"]).removesuffix(",")} if spaceless(language) else {})


def published(tree: Tree) -> list[Tree]:
    """A table a task that names a benchmark; without lines where it is scored on another split than the papers' numbers are of."""
    return [one | {"lines": literature.beside(one, split=tree["split"]) if one["official_split"] else []} for one in tree["published"]]


def comparisons(tree: Tree) -> list[Tree]:
    """Every comparison, for the long table."""
    return [{"question": one["question"], "task": one["task"], "labels": one["labels"], "first": words.way_words(one["first"]),
             "second": words.way_words(one["second"]), "spread": words.spread(one), "verdict": one["verdict"], "examples": one["examples"],
             "repetitions": one["repetitions"]} for one in tree["comparisons"]]  # fmt: skip


def changes(tree: Tree) -> list[Tree]:
    """A table a task and number of labels: each variant of `grid.against` beside the one that it differs from in a switch."""
    examples = {(c["task"], c["labels"]): c["train_examples"] for c in tree["cells"]}
    found: dict[tuple[str, str], Tree] = {}
    for one in comparisons(tree):
        if one["question"] == "ablation":
            labels = words.labels_words(one["labels"], train_examples=examples[one["task"], one["labels"]])
            found.setdefault((one["task"], one["labels"]), {"task": one["task"], "labels": labels, "lines": []})["lines"].append(one)
    return [*found.values()]


def adaptation(tree: Tree) -> list[Tree]:
    """Held text of the target before and after adaptation, in the order of the grid."""
    families = list(tree["grid"]["families"])
    lines = sorted(tree["adaptation"], key=lambda line: (line["task"], families.index(line["variant"]), line["metric"]))
    return [{"seconds": None} | line | {"words": _measure(line["metric"]), **drawn(tree, line["variant"]), "variant": named(tree, line["variant"]),
                                        "outcome": _outcome(line), "marked": _marked(line)} for line in lines]  # fmt: skip


def _marked(line: Tree) -> bool:
    """Whether an adaptation's measure casts doubt on it: the loss of its language model did not fall. What follows a sentence is another matter."""
    return line["better"] < line["pretrainings"] and not line["metric"].startswith("next_")


def _outcome(line: Tree) -> str:
    rises = line["metric"].endswith("_accuracy")
    if line["better"] == line["pretrainings"]:
        return "rose" if rises else "fell"
    some = f"{'rose' if rises else 'fell'} in {line['better']} of {line['pretrainings']} pretrainings"
    return f"{'† ' if _marked(line) else ''}{some if line['better'] else 'did not rise' if rises else 'did not fall'}"


def _measure(name: str) -> str:
    return MEASURE_WORDS.get(name, name.replace("_", " "))
