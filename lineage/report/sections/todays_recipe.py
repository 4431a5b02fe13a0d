"""Models of today's recipe, next to their predecessors of 2018."""

from collections.abc import Sequence

import numpy as np

from lineage.analysis.records import Analysis, Comparison
from lineage.networks.registry import load_family
from lineage.report.cells import verdict_cell
from lineage.report.formatting import (
    NO_VALUE,
    format_label_count,
    format_loss_name,
    format_these_labels,
    format_use,
    join_with_and,
)
from lineage.report.section import (
    Block,
    Cells,
    Columns,
    Paragraph,
    ReportData,
    Rows,
    Section,
    Table,
    numbers,
)
from lineage.report.styles import format_model_name

NOTE = (
    "A family of 2018 and its successor, which has the block, the optimizer and the schedules that "
    "are usual today, under the budget of this study and each with its own settings in it. GPT-BERT "
    "also predicts next tokens, which BERT does not. They are used in the same way, with the most "
    "labels of each task; differences are in points."
)
COLUMNS: Columns = ("task", "labels", "use", "today's recipe")
SAME_TOKENS = 0.01  # losses of a token are compared if texts have as many, within this share


def build(report: ReportData) -> Section | None:
    """Return the losses and the tasks of each pair of models."""
    analysis = report.analysis
    pairs = find_pairs(analysis)
    if not pairs:
        return None
    findings: list[Block] = []
    tables: list[Block] = [Paragraph(NOTE, "note"), _loss_table(analysis, pairs)]
    for modern, historical in pairs:
        comparisons = compare(analysis, modern, historical)
        if comparisons:
            title = _name_pair(analysis, modern, historical)
            findings.append(Paragraph(describe(analysis, modern, historical, comparisons)))
            tables.append(Table(COLUMNS, _task_rows(analysis, comparisons), title=title))
    folded = Section("By task", tables, is_folded=True, css="note")
    return Section("What today's recipe is worth", [*findings, folded])


def find_pairs(analysis: Analysis) -> list[tuple[str, str]]:
    """Return each model with one of the family that its own family succeeds."""
    families = analysis.model_families
    trained = [name for name in analysis.grid.models if name in families]
    pairs = []
    for modern in trained:
        older = load_family(families[modern]).successor_of
        pairs += [(modern, name) for name in trained if older and families[name] == older]
    return pairs


def compare(analysis: Analysis, modern: str, historical: str) -> list[Comparison]:
    """Return the comparisons of two pretrained models with the most labels of each task."""
    found = []
    for one in analysis.comparisons:
        names = {one.first.model, one.second.model}
        is_pretrained = one.first.init == one.second.init == "pretrained"
        if one.comparison_type == "models" and is_pretrained and names == {modern, historical}:
            found.append(one if one.first.model == modern else one.reversed())
    train_examples = {one.setting: one.train_examples for one in analysis.scores}
    most: dict[str, int] = {}
    for one in found:
        most[one.task] = max(most.get(one.task, 0), train_examples[one.setting])
    return [one for one in found if train_examples[one.setting] == most[one.task]]


def describe(
    analysis: Analysis, modern: str, historical: str, comparisons: Sequence[Comparison]
) -> str:
    """Say on which tasks the newer recipe is shown to be better, and on which worse."""
    name, older = (format_model_name(analysis, model) for model in (modern, historical))
    name = name[:1].upper() + name[1:]  # it begins a sentence
    parts = []
    for verdict in ("better", "worse"):
        tasks = dict.fromkeys(one.task for one in comparisons if one.verdict == verdict)
        if tasks:
            parts.append(f"{verdict} than {older} on {join_with_and([*tasks])}")
    these = format_these_labels(comparisons)
    if not parts:
        return f"{name} is not shown to differ from {older} on any task{these}."
    return f"{name} is shown to be {' and '.join(parts)}, in at least one use{these}."


def _name_pair(analysis: Analysis, modern: str, historical: str) -> str:
    return " beside ".join(format_model_name(analysis, one) for one in (modern, historical))


def _task_rows(analysis: Analysis, comparisons: Sequence[Comparison]) -> Rows:
    train_examples = {one.setting: one.train_examples for one in analysis.scores}
    return [
        [
            one.task,
            format_label_count(one.label_count, train_examples=train_examples[one.setting]),
            format_use(one.first),
            verdict_cell(one),
        ]
        for one in comparisons
    ]


def _loss_table(analysis: Analysis, pairs: Sequence[tuple[str, str]]) -> Table:
    rows: list[Cells] = []
    for modern, historical in pairs:
        name = _name_pair(analysis, modern, historical)
        losses = _last_losses(analysis, modern), _last_losses(analysis, historical)
        shared = [metric for metric in losses[0] if metric in losses[1]]
        for metric in shared:
            is_comparable = "per_byte" in metric or _have_same_tokens(analysis, modern, historical)
            if is_comparable:
                newer, older = losses[0][metric], losses[1][metric]
                change = f"{newer - older:+.3f}".replace("-", "−")
                rows.append(
                    [name, format_loss_name(metric), f"{newer:.3f}", f"{older:.3f}", change]
                )
        if not shared:
            rows.append([name, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE])
    columns = numbers("today", "2018", "difference")
    note = (
        "At the last validation, each on its own first batches; lower is better. A loss of a token "
        "is shown if both models split the text into equally many."
    )
    return Table(["models", "loss on held-out text", *columns], rows, note=note)


def _last_losses(analysis: Analysis, model: str) -> dict[str, float]:
    """Return the last value of each loss of a model, the mean over its pretrainings."""
    values: dict[str, list[float]] = {}
    for curve in analysis.curves:
        if curve.model == model and not curve.metric.endswith("_accuracy"):
            values.setdefault(curve.metric, []).append(curve.value[-1])
    return {metric: float(np.mean(own)) for metric, own in values.items()}


def _have_same_tokens(analysis: Analysis, first: str, second: str) -> bool:
    """Return whether both models split text into equally many tokens."""
    density = {one.model: (one.tokens or 0) / (one.text_bytes or 1) for one in analysis.budget}
    return abs(density[first] / max(density[second], 1e-9) - 1) <= SAME_TOKENS
