"""The gain from one number of labels to the next larger one.

It is observed. There is no forecast, since extrapolated learning curves were wrong too often in
simulated studies (docs/decisions/0043). For their shapes see Viering and Loog (2022).
"""

from collections.abc import Sequence

from lineage.analysis.cells import ResultCell
from lineage.analysis.comparisons import estimate_gain
from lineage.analysis.records import LabelGain, Ranking

LineKey = tuple[str, str, str, str, str]


def measure_label_gains(
    cells: Sequence[ResultCell], rankings: Sequence[Ranking]
) -> list[LabelGain]:
    """Measure what the last step to more labels brought the models that are candidates.

    A gain is for one system: a jump from one method to another says nothing about labels. Systems
    with one number of labels, or without the task's largest, have none. Nor have random-init
    baselines.
    """
    candidates = {
        (ranking.task, standing.system.model)
        for ranking in rankings
        for standing in ranking.standings
    }
    largest: dict[str, int] = {}
    lines: dict[tuple[str, LineKey], dict[int, ResultCell]] = {}
    for cell in cells:
        if (cell.task, cell.system.model) not in candidates or not cell.item_scores:
            continue
        largest[cell.task] = max(largest.get(cell.task, 0), cell.train_examples)
        if cell.train_examples and cell.system.init != "random":
            line = lines.setdefault((cell.task, cell.system.line_key), {})
            line[cell.train_examples] = cell
    gains = []
    for (task, _), line in lines.items():
        if len(line) < 2 or max(line) != largest[task]:
            continue
        fewer, most = sorted(line)[-2:]
        estimate = estimate_gain(line[most], line[fewer])
        if estimate is not None:
            gains.append(
                LabelGain(
                    task=task,
                    system=line[most].system,
                    fewer=fewer,
                    most=most,
                    score=line[most].mean,
                    gain=estimate.mean,
                    low=estimate.low,
                    high=estimate.high,
                )
            )
    return gains
