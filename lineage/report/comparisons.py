"""Which cells are compared, and what each comparison shows."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from lineage.params import Grid
from lineage.report.cells import APART, CONTROL_ROWS, GUESSES, SAME_ANSWERS, TRAINED, TWO_BUDGETS, Cell, Way, by_question, matrix
from lineage.rows import PUBLIC
from lineage.scoring import statistics
from lineage.scoring.metrics import LOWEST

NOTHING = Way("chance", "chance", *["none"] * 6)  # what a correlation is compared with: a reader that follows nothing


@dataclass(frozen=True)
class Pair:
    """Two cells and the question that they answer together."""

    question: str  # pretraining | adaptation | families | ablation | ensemble | joined | controls | best | beside | guess
    first: Cell
    second: Cell
    among: float = 1.0  # how many comparisons this one was chosen from, since the one that leads is known only afterwards: they count together

    @property
    def family_of_tests(self) -> tuple[Any, ...]:
        """Comparisons that are read together: their intervals hold jointly. What is asked of those apart moves no other."""
        way = self.first.way
        own = (self.second.way.variant, way.init, way.transfer, way.head)  # the system whose switches are asked about together
        alike = {"best": (), "beside": (), "guess": (), "families": (way.init, *way.reading), "ablation": own}.get(self.question, way.reading)
        return self.question, self.first.task, self.first.labels, alike, way.family if way.family in APART else ""


@dataclass(frozen=True)
class Paired:
    """(R, N) scores of two cells on the same examples, repetition by repetition, and the seeds of each, (R, 2)."""

    first: np.ndarray
    second: np.ndarray
    seeds: np.ndarray
    same_answers: bool

    @property
    def apart(self) -> np.ndarray:
        """(R, N): by how much the first is better."""
        return self.first - self.second


def paired(first: Cell, second: Cell) -> Paired | None:
    """Two cells where they share their seeds; None where they share none.

    A cell without a seed (a control, a zero-shot reading) stands beside each of the other's.
    """

    def meets(one: int | None, other: int | None) -> bool:
        return one is None or other is None or one == other

    pairs = [(a, b) for a in first.scores for b in second.scores if meets(a[0], b[0]) and meets(a[1], b[1])]
    if not pairs:
        return None
    table = matrix([*(first.scores[a] for a, _ in pairs), *(second.scores[b] for _, b in pairs)])
    if table.shape[1] < 2:
        return None
    seeds = np.array([[(one if one is not None else other) or 0 for one, other in zip(a, b, strict=True)] for a, b in pairs])
    same = all(a in first.answers and first.answers[a] == second.answers.get(b) for a, b in pairs)
    one, other = table[: len(pairs)], table[len(pairs) :]
    return Paired(one, other, seeds, same and np.array_equal(one, other))


def compared(asked: Iterable[Pair]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every pair that shares seeds and examples, with its interval and its word; and, of those that do not, who was to be held against a leader."""
    scores = [(pair, paired(pair.first, pair.second)) for pair in asked]
    spreads = defaultdict[tuple[Any, ...], list[statistics.Spread]](list)
    for pair, both in scores:
        if both is not None and both.apart.any():  # what never differs says nothing of how far seeds part
            spreads[pair.family_of_tests].append(statistics.spread(both.apart, both.seeds))
    found, without = list[dict[str, Any]](), list[dict[str, Any]]()
    for pair, both in scores:
        about = {"question": pair.question, "task": pair.first.task, "labels": pair.first.labels, "metric": pair.first.metric,
                 "first": asdict(pair.first.way), "second": asdict(pair.second.way)}  # fmt: skip
        if both is None:
            without += [about] if pair.question == "best" else []
            continue
        together = max(round(pair.among * len(spreads[pair.family_of_tests])), 1)
        one = _difference(pair, both, together=together, spreads=spreads[pair.family_of_tests])
        found.append(about | {
            "difference": one.mean, "low": one.low, "high": one.high, "standard_error": one.standard_error, "freedom": one.freedom,
            "repetitions": one.repetitions, "examples": one.examples, "comparisons_together": together,
            "verdict": SAME_ANSWERS if both.same_answers else statistics.verdict(one, questions=together)})  # fmt: skip
    return found, without


def _difference(pair: Pair, both: Paired, *, together: int, spreads: list[statistics.Spread]) -> statistics.Estimate:
    """The first cell less the second; better than guessing is asked of the models at hand: over examples, of their mean.

    Of two seeds no interval would leave anything out.
    """
    widest, items = 1.0 - LOWEST.get(pair.first.metric, 0.0), pair.first.items
    if pair.question == "guess":
        first, second = (scores.mean(axis=0, keepdims=True) for scores in (both.first, both.second))
        return statistics.difference(first, second, questions=together, widest=widest, items=items)
    return statistics.difference(both.first, both.second, seeds=both.seeds, questions=together, spreads=spreads, widest=widest, items=items)


def leads(best: list[Cell], cells: list[Cell]) -> list[Pair]:
    """The first of the ways that stand for a question's variants against all others, and against guessing; public ones beside it.

    Which is first was seen on the very items that are scored. So all pairs of these ways count as asked, and each of them against guessing.
    `cells`: all of the question.
    """
    lead, ways = best[0], len(best)
    found = [Pair("best", lead, other, among=ways / 2) for other in best[1:]]
    found += [Pair("beside", one, lead, among=ways) for one in winners(cells, public=True)]
    return found + [Pair("guess", lead, cell, among=ways) for cell in _guesses(lead, cells)]


def _guesses(cell: Cell, cells: list[Cell]) -> list[Cell]:
    """What a cell is held against to see whether it knows anything of an item: the majority class and chance; zero, of correlations, and where these
    have no value, as of translations and analogies."""
    if cell.metric in ("pearson", "spearman"):
        return [_nothing(cell)]
    found = [other for other in cells if other.way.variant in GUESSES and other.scores and other is not cell]
    return found if found or cell.way.variant in GUESSES else [_nothing(cell)]


def _nothing(cell: Cell) -> Cell:
    return replace(cell, way=NOTHING, scores={seeds: one * 0.0 for seeds, one in cell.scores.items()})


def above_guessing(cell: Cell, cells: list[Cell]) -> bool:
    """Whether a cell is shown to be better than guessing: asked as a lead is, on the same examples, but of it alone. `cells`: all of the question."""
    if not cell.scores or cell.way.variant in GUESSES:
        return False
    asked = [Pair("guess", cell, other) for other in _guesses(cell, cells)]
    held = [(pair, both) for pair in asked if (both := paired(pair.first, pair.second)) is not None]
    return len(held) == len(asked) and all(_difference(pair, both, together=1, spreads=[]).low > 0 for pair, both in held)


def pairs(cells: list[Cell], grid: Grid) -> list[Pair]:
    """Pretrained against its untrained twin, adapted against pretrained, variants pairwise, each against the bag of words."""
    found = []
    for some in by_question(cells).values():
        for a, b in combinations([c for c in some if c.scores], 2):
            twins = a.way.variant == b.way.variant and a.way.reading == b.way.reading
            inits = {a.way.init: a, b.way.init: b}
            if twins and inits.keys() == {"pretrained", "untrained"}:
                found.append(Pair("pretraining", inits["pretrained"], inits["untrained"]))
            elif twins and inits.keys() == {"adapted", "pretrained"}:
                found.append(Pair("adaptation", inits["adapted"], inits["pretrained"]))
            elif {a.way.family, b.way.family} & {*TWO_BUDGETS}:
                found += _two_budgets(a, b, grid)
            elif {a.way.variant, b.way.variant} & {*grid.against}:
                found += _ablation(a, b, grid)
            elif b.way.variant == "tfidf":
                found += [Pair("controls", a, b)] if a.way.init in TRAINED else []
            elif PUBLIC in (a.way.family, b.way.family):
                continue
            elif a.way.init == b.way.init and a.way.init in TRAINED and a.way.reading == b.way.reading:
                found.append(Pair("families", a, b))
    return found


def _ablation(a: Cell, b: Cell, grid: Grid) -> list[Pair]:
    """A variant and the one that it is but for one switch, in the same use; which layers are read, and how, may be that switch."""
    for one, other in ((a, b), (b, a)):
        use = (one.way.init, one.way.transfer, one.way.head) == (other.way.init, other.way.transfer, other.way.head)
        if use and one.way.init in TRAINED and grid.against.get(one.way.variant) == other.way.variant:
            return [Pair("ablation", one, other)]
    return []


def _two_budgets(a: Cell, b: Cell, grid: Grid) -> list[Pair]:
    """What has two budgets and one of the two variants, in the same use, whichever layers each reads; with the rest it is not compared."""
    for mixed, other in ((a, b), (b, a)):
        use = (mixed.way.init, mixed.way.transfer, mixed.way.head) == (other.way.init, other.way.transfer, other.way.head)
        if use and mixed.way.init in TRAINED and other.way.variant in grid.two_budgets.get(mixed.way.variant, ()):
            return [Pair(mixed.way.family, mixed, other)]
    return []


def winners(cells: list[Cell], *, public: bool = False) -> list[Cell]:
    """Each variant's best way, the best control, and TF-IDF beside it, best first; two budgets are more than others have. Of the `public` ones apart.

    A variant's way is chosen on validation where all of its ways have been measured there, since choosing on the test items flatters.
    """
    ways: dict[str, list[Cell]] = {}
    for cell in cells:
        control = cell.way.variant in CONTROL_ROWS
        asked = cell.way.family == PUBLIC if public else cell.way.family not in APART
        if cell.scores and cell.values and (control or cell.way.init in TRAINED) and asked:
            ways.setdefault("" if control else cell.way.variant, []).append(cell)  # no variant has that name
    best = []
    for some in ways.values():
        if all(cell.validation for cell in some):
            best.append(max(some, key=lambda cell: float(np.mean(cell.validation))))
        else:
            best.append(max(some, key=lambda cell: cell.mean))
    best += [cell for cell in ways.get("", ()) if cell.way.variant == "tfidf" and cell not in best]
    return sorted(best, key=lambda cell: -cell.mean)
