"""Find out which part of a pretrained model helps fine-tuning: its body or its embeddings.

    python -m benchmarks.starts wiki-small ulmfit imdb

The model of a study that has run is evaluated again on one of its tasks, with the trials, steps and seeds
of the run, but from other starts. A start combines the pretrained model and its random-init
baseline: the body of one with the embedding tables of the other (`embedding_matrices`), tables
scaled to the size of the other's, or tables with shuffled rows. With several pretraining
seeds, the first one is used. After each start, the rows are written to
benchmarks/results/starts.csv, where they replace earlier rows of the same start.
"""

import argparse
import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn

from lineage.config.params import Params, read_params
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_runs
from lineage.methods.base import Method, find_method, is_requested
from lineage.methods.encoder import EvalContext, EvalRun
from lineage.networks.base import Encoder
from lineage.networks.checkpoint import Checkpoint
from lineage.randomness import generator
from lineage.results import ResultRow
from lineage.training.devices import configure_torch
from stages.evaluate import load_context
from tests.helpers import tiny

RESULTS = Path(__file__).parent / "results" / "starts.csv"
KEY_COLUMNS = ["study", "model", "task", "arm", "label_count", "start"]
COLUMNS = [
    *KEY_COLUMNS,
    "test_set",
    "finetune_seed",
    "fold",
    "table_size",  # root mean square of the largest embedding table
    "metric",
    "value",
    "reason",
]


def embedding_matrices(encoder: Encoder) -> list[nn.Parameter]:
    """Return the tables of words or pieces, n-grams, positions and segments.

    The list is empty if words are read only by their characters.
    """
    embedding = encoder.modules_by_role().get("embedding", nn.Module())
    return [parameter for parameter in embedding.parameters() if parameter.dim() == 2]


def root_mean_square(weight: torch.Tensor) -> float:
    """Return the root mean square of a tensor's values, computed in float64."""
    return float(weight.detach().double().square().mean().sqrt())


def rescale_embeddings(model: Encoder, reference: Encoder) -> Encoder:
    """Scale a model's tables in place to the root mean square of a reference of the same family.

    A table of zeros, such as RoBERTa's segments, stays as it is.
    """
    pairs = zip(embedding_matrices(model), embedding_matrices(reference), strict=True)
    for weight, target in pairs:
        weight.data.mul_(root_mean_square(target) / (root_mean_square(weight) or 1.0))
    return model


def copy_embeddings(target: Encoder, source: Encoder) -> Encoder:
    """Copy the embedding tables of another model into a model, and return it."""
    pairs = zip(embedding_matrices(target), embedding_matrices(source), strict=True)
    for target_table, source_table in pairs:
        target_table.data.copy_(source_table)
    return target


def shuffle_embeddings(encoder: Encoder) -> Encoder:
    """Shuffle the rows of the embedding tables, so that each word has the vector of another."""
    for number, table in enumerate(embedding_matrices(encoder)):
        order = generator("shuffle", number).permutation(len(table))
        table.data.copy_(table[torch.from_numpy(order)])
    return encoder


# (pretrained model, random-init baseline) -> the model to train. The arguments may be changed.
STARTS: dict[str, Callable[[Encoder, Encoder], Encoder]] = {
    "pretrained": lambda pretrained, random: pretrained,
    "random": lambda pretrained, random: random,
    "pretrained body": lambda pretrained, random: copy_embeddings(pretrained, random),
    "pretrained tables": lambda pretrained, random: copy_embeddings(random, pretrained),
    "pretrained, small tables": lambda pretrained, random: rescale_embeddings(pretrained, random),
    "random, large tables": lambda pretrained, random: rescale_embeddings(random, pretrained),
    "pretrained, rows shuffled": lambda pretrained, random: shuffle_embeddings(pretrained),
}


@dataclass(frozen=True)
class StartCheckpoint(Checkpoint):
    """A checkpoint that builds one of the starts in place of the pretrained model."""

    start: str = "pretrained"

    def build(
        self,
        device: torch.device,
        *,
        load_weights: bool = True,
        body_dropout: float | dict[str, float] | None = None,
    ) -> Encoder:
        """Build the start, or without `load_weights` the random-init baseline."""
        random = super().build(device, load_weights=False, body_dropout=body_dropout)
        if not load_weights:
            return random
        pretrained = super().build(device, body_dropout=body_dropout)
        return STARTS[self.start](pretrained, random)


def arm_of(one: Method | ResultRow) -> str:
    """Return what is trained: a linear probe (`frozen`), a BiLSTM probe, or all (`finetuned`)."""
    return "bilstm" if one.head.startswith("bilstm") else one.transfer


def evaluate_start(
    context: EvalContext, start: str, runs: Sequence[EvalRun]
) -> list[dict[str, Any]]:
    """Evaluate all runs from a start, and return a row per run: its test score, or a reason."""
    checkpoint = StartCheckpoint(**vars(context.checkpoint), start=start)
    tables = embedding_matrices(checkpoint.build(torch.device("cpu")))
    largest_table = max(tables, key=torch.Tensor.numel)
    with tempfile.TemporaryDirectory() as cache_dir, progress_bar(start, len(runs)) as report:
        rows, *_ = evaluate_runs(
            dataclasses.replace(context, checkpoint=checkpoint),
            [*runs],
            cache_dir=Path(cache_dir),
            report_progress=report,
        )
    extra_columns = {"start": start, "table_size": root_mean_square(largest_table)}
    return [
        extra_columns | dataclasses.asdict(row) | {"arm": arm_of(row)}
        for row in rows
        if _is_main_score(row, context)
    ]


def _is_main_score(row: ResultRow, context: EvalContext) -> bool:
    """Return whether a row is the main metric of the chosen trial on all test items."""
    return (
        row.metric == context.task.info.ranking_metric
        and row.trial == "chosen"
        and row.split == context.task.scored_splits[-1]
        and row.item_filter == "all"
        and row.group == "all"
    )


@contextlib.contextmanager
def progress_bar(start: str, num_runs: int) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar, if the output is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(start, total=1.0)

        def report_progress(progress: float, note: str) -> None:
            description = f"{start}: {note} ({num_runs} cells)"
            bar.update(task, completed=progress, description=description)

        yield report_progress


def load_evaluation(
    model_name: str, task_name: str, *, labels: Sequence[str] | None, arms: Sequence[str]
) -> tuple[EvalContext, list[EvalRun]]:
    """Load the model and the task from the current folder, and list the requested runs.

    Raises InputError if the run has no such model, task or label count.
    """
    params = read_params()
    context = _load_context(params, model_name, task_name)
    known_labels = [str(count) for count in params.grid.label_counts]
    requested_labels = labels or known_labels
    unknown_labels = sorted({*requested_labels} - {*known_labels})
    if unknown_labels:
        raise InputError(
            f"the run has no labels {unknown_labels[0]}; it has {', '.join(known_labels)}"
        )
    all_runs = tiny.list_runs(
        context.task.info, ("pretrained",), params.grid.label_counts, params.grid.finetune_seeds
    )
    runs = []
    for run in all_runs:
        has_labels = str(run.label_count) in requested_labels
        arm = arm_of(find_method(context, run))
        if is_requested(context, run) and has_labels and arm in arms:
            runs.append(run)
    if not runs:
        raise InputError(
            f"{task_name} has no cells of {', '.join(arms)} with these labels; "
            "see `probes`, `label_counts` and `grid` of its params.yaml"
        )
    return context, runs


def _load_context(params: Params, model_name: str, task_name: str) -> EvalContext:
    _check_known("model", model_name, params.grid.models)
    _check_known("task", task_name, params.grid.tasks)
    seed = params.grid.pretrain_seeds[0]
    model_folder = Path(f"artifacts/pretrained/{model_name}/{seed}")
    task_folder = Path(f"artifacts/tasks/{task_name}")
    for path in (model_folder, task_folder):
        if not path.is_dir():
            raise InputError(f"{path} is not there; let the run end first")
    context = load_context(params, model_name, str(seed), model_folder, task_folder)
    model = context.checkpoint.build(torch.device("cpu"), load_weights=False)
    if not embedding_matrices(model):
        raise InputError(
            f"{model_name} reads words by their characters, and has no table to be exchanged; "
            "choose another model"
        )
    return context


def _check_known(kind: str, name: str, known_names: Sequence[str]) -> None:
    if name not in known_names:
        raise InputError(f"the run has no {kind} '{name}'; it has {', '.join(known_names)}")


def replace_rows(rows: pd.DataFrame, path: Path) -> None:
    """Write rows to a CSV file, in place of its rows with the same `KEY_COLUMNS`."""
    if path.is_file():
        old_rows = pd.read_csv(path, dtype={"label_count": str})
        new_keys = rows.set_index(KEY_COLUMNS).index
        is_replaced = old_rows.set_index(KEY_COLUMNS).index.isin(new_keys)
        if not is_replaced.all():
            rows = pd.concat([old_rows[~is_replaced], rows])
    rows.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def format_markdown(rows: pd.DataFrame) -> str:
    """Format a table with the mean score of each start, and the scores by seed and fold."""
    lines = [
        "| arm | labels | test set | start | size of the largest table | mean | each |",
        "|---|---|---|---|---|---|---|",
    ]
    group_columns = ["arm", "label_count", "test_set", "start"]
    for (arm, labels, test_set, start), group in rows.groupby(group_columns, sort=False):
        values = [f"{100 * value:.1f}" for value in group["value"].dropna()]
        mean = f"{100 * group['value'].mean():.1f}" if values else group["reason"].iloc[0]
        table_size = group["table_size"].iloc[0]
        lines.append(
            f"| {arm} | {labels} | {test_set} | {start} | {table_size:.3g} | {mean} "
            f"| {', '.join(values)} |"
        )
    return "\n".join(lines)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="the folder of a finished study",
    )
    parser.add_argument("model", help="a model of the run")
    parser.add_argument("task", help="a task of the run")
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=("frozen", "bilstm", "finetuned"),
        default=["finetuned"],
        help="what is trained: a linear probe, a BiLSTM probe, or the whole model",
    )
    parser.add_argument(
        "--labels", nargs="+", metavar="N", help="label counts of the run; default: all"
    )
    parser.add_argument(
        "--starts",
        nargs="+",
        choices=tuple(STARTS),
        default=list(STARTS),
        metavar="START",
        help=", ".join(STARTS),
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Evaluate all starts, and write and print the results. Returns 2 after an input error."""
    options = parse_arguments(arguments)
    study = options.folder.resolve().name
    out = options.out.resolve()
    if not (options.folder / "params.yaml").is_file():
        print(
            f"starts: {options.folder}: no study is here; give the folder of one that has run",
            file=sys.stderr,
        )
        return 2
    configure_torch(1)
    tables = []
    with contextlib.chdir(options.folder):
        try:
            context, runs = load_evaluation(
                options.model, options.task, labels=options.labels, arms=options.arms
            )
        except InputError as error:
            print(f"starts: {options.folder}: {error}", file=sys.stderr)
            return 2
        for start in options.starts:
            rows = pd.DataFrame(evaluate_start(context, start, runs)).assign(study=study)
            tables.append(rows[COLUMNS])
            replace_rows(pd.concat(tables), out)
    print(format_markdown(pd.concat(tables)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
