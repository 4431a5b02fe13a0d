"""What of a pretrained start serves tuning, and what stands in its way: `python -m benchmarks.starts .runs/wiki-small ulmfit imdb`.

The model of a finished run is tuned on a task of it again as the run did, its own trials, steps and seeds, from starts that are put together of
the trained model and its untrained twin: the body of one with the tables of the other (`Encoder.tables`), tables as large as the other's, their
rows at other words. Rows go to benchmarks/results/starts.csv, where they stand in the place of earlier ones of the same question; a start is
written when it ends. Of several pretraining seeds it is the first one's model.
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

from lineage.config.params import read_params
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.systems import EvalContext, EvalRun, is_requested
from lineage.models.base import Encoder, rescale_embeddings, root_mean_square
from lineage.models.checkpoint import Checkpoint
from lineage.randomness import generator
from lineage.results import ResultRow
from lineage.training.devices import configure_torch
from stages.evaluate import load_context

RESULTS = Path(__file__).parent / "results" / "starts.csv"
QUESTION = ["profile", "model", "task", "arm", "label_count", "start"]
COLUMNS = [
    *QUESTION,
    "test_set",
    "finetune_seed",
    "fold",
    "table_size",
    "metric",
    "value",
    "reason",
]


def with_tables(own: Encoder, other: Encoder) -> Encoder:
    """A model with the tables of the other."""
    for mine, theirs in zip(own.embedding_matrices(), other.embedding_matrices(), strict=True):
        mine.data.copy_(theirs)
    return own


def shuffled(own: Encoder, _: Encoder) -> Encoder:
    """A model whose tables have their rows in another order: what was learned of a word is at another one."""
    for number, table in enumerate(own.embedding_matrices()):
        order = generator("shuffle", number).permutation(len(table))
        table.data.copy_(table[torch.from_numpy(order)])
    return own


STARTS: dict[
    str, Callable[[Encoder, Encoder], Encoder]
] = {  # (trained, its untrained twin) -> what is tuned
    "pretrained": lambda trained, twin: trained,
    "random": lambda trained, twin: twin,
    "pretrained body": with_tables,
    "pretrained tables": lambda trained, twin: with_tables(twin, trained),
    "pretrained, small tables": rescale_embeddings,
    "random, large tables": lambda trained, twin: rescale_embeddings(twin, trained),
    "pretrained, rows shuffled": shuffled,
}


@dataclass(frozen=True)
class Started(Checkpoint):
    """A trained model that is built as one of the starts."""

    start: str = "pretrained"

    def build(
        self,
        device: torch.device,
        *,
        load_weights: bool = True,
        body_dropout: float | dict[str, float] | None = None,
    ) -> Encoder:
        """The start in the place of the trained model, and the untrained twin as ever."""
        twin = super().build(device, load_weights=False, body_dropout=body_dropout)
        return (
            STARTS[self.start](super().build(device, body_dropout=body_dropout), twin)
            if load_weights
            else twin
        )


def arm_of(cell: EvalRun | ResultRow) -> str:
    """What a cell trains on the start: a linear probe (`frozen`), a BiLSTM probe (`bilstm`), or all of it (`finetuned`)."""
    return "bilstm" if (cell.head or "").startswith("bilstm") else cell.transfer


def measured(setting: EvalContext, start: str, some: Sequence[EvalRun]) -> list[dict[str, Any]]:
    """A row a cell: what the arm has on the test items from this start, or why it has nothing."""
    checkpoint = Started(**vars(setting.checkpoint), start=start)
    largest = max(
        checkpoint.build(torch.device("cpu")).embedding_matrices(), key=torch.Tensor.numel
    )
    with tempfile.TemporaryDirectory() as keep, track(start, len(some)) as report:
        rows, _ = evaluate_runs(
            dataclasses.replace(setting, checkpoint=checkpoint),
            [*some],
            cache_dir=Path(keep),
            report_progress=report,
        )
    wanted = {
        "metric": setting.task.info["metric"][0],
        "trial": "chosen",
        "split": setting.task.scored_splits[-1],
        "item_filter": "all",
        "group": "all",
    }
    found = [
        row for row in rows if all(getattr(row, key) == value for key, value in wanted.items())
    ]
    about = {"start": start, "table_size": root_mean_square(largest)}
    return [about | dataclasses.asdict(row) | {"arm": arm_of(row)} for row in found]


@contextlib.contextmanager
def track(start: str, total: int) -> Iterator[Callable[[float, str], None]]:
    """A bar on a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        job = bar.add_task(start, total=1.0)
        yield lambda done, note: bar.update(
            job, completed=done, description=f"{start}: {note} ({total} cells)"
        )


def question(name: str, task: str, given: argparse.Namespace) -> tuple[EvalContext, list[EvalRun]]:
    """The model on the task, and the cells that are asked for, in the run's folder. Raises InputError where it has no such thing."""
    params = read_params()
    for what, word, known in (
        ("model", name, params.grid.models),
        ("task", task, params.grid.tasks),
    ):
        if word not in known:
            raise InputError(f"the run has no {what} '{word}'; it has {', '.join(known)}")
    seed = params.grid.pretrain_seeds[0]
    folder, target = Path(f"artifacts/pretrained/{name}/{seed}"), Path(f"artifacts/tasks/{task}")
    for path in (folder, target):
        if not path.is_dir():
            raise InputError(f"{path} is not there; let the run end first")
    setting = load_context(params, name, seed, folder, target)
    if not setting.checkpoint.build(torch.device("cpu"), load_weights=False).embedding_matrices():
        raise InputError(
            f"{name} reads words by their characters, and has no table to be exchanged; choose another model"
        )
    labels = tuple(given.labels or map(str, params.grid.label_counts))
    if strange := sorted({*labels} - {*map(str, params.grid.label_counts)}):
        raise InputError(
            f"the run has no labels {strange[0]}; it has {', '.join(map(str, params.grid.label_counts))}"
        )
    every = list_runs(
        setting.task.info, ("pretrained",), params.grid.label_counts, params.grid.finetune_seeds
    )
    some = [
        cell
        for cell in every
        if is_requested(setting, cell)
        and str(cell.label_count) in labels
        and arm_of(cell) in given.arms
    ]
    if not some:
        raise InputError(
            f"{task} has no cells of {', '.join(given.arms)} with these labels; see `probes`, `label_counts` and `grid` of its profile"
        )
    return setting, some


def keep_rows(rows: pd.DataFrame, path: Path) -> None:
    """Write rows in the place of those of the same question."""
    if path.is_file():
        old = pd.read_csv(path, dtype={"label_count": str})
        same = old.set_index(QUESTION).index.isin(rows.set_index(QUESTION).index)
        rows = pd.concat([old[~same], rows]) if (~same).any() else rows
    rows.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def markdown(rows: pd.DataFrame) -> str:
    """A line a start of each question: the mean over seeds and folds, each of them, and the size of the largest table."""
    lines = [
        "| arm | labels | test set | start | size of the largest table | mean | each |",
        "|---|---|---|---|---|---|---|",
    ]
    for (arm, labels, test_set, start), some in rows.groupby(
        ["arm", "label_count", "test_set", "start"], sort=False
    ):
        values = [f"{100 * value:.1f}" for value in some["value"].dropna()]
        mean = f"{100 * some['value'].mean():.1f}" if values else some["reason"].iloc[0]
        lines.append(
            f"| {arm} | {labels} | {test_set} | {start} | {some['table_size'].iloc[0]:.3g} | {mean} | {', '.join(values)} |"
        )
    return "\n".join(lines)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="the worktree of a finished run, such as .runs/wiki-small",
    )
    parser.add_argument("model", help="one of its models")
    parser.add_argument("task", help="one of its tasks")
    parser.add_argument(
        "--arms", nargs="+", choices=("frozen", "bilstm", "finetuned"), default=["finetuned"]
    )
    parser.add_argument(
        "--labels",
        nargs="+",
        metavar="N",
        help="some of the run's numbers of labels; all of them where not said",
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
    """Tune, write and print; 2 where the run has no such model or task."""
    given = parsed(arguments)
    profile, out = given.folder.resolve().name, given.out.resolve()
    if not (given.folder / "params.yaml").is_file():
        print(
            f"starts: {given.folder}: no run is here; run `python -m flows.pipeline --local --profile NAME` and give .runs/NAME",
            file=sys.stderr,
        )
        return 2
    configure_torch(1)
    with contextlib.chdir(given.folder):
        try:
            setting, some = question(given.model, given.task, given)
        except InputError as error:
            print(f"starts: {given.folder}: {error}", file=sys.stderr)
            return 2
        found = pd.DataFrame()
        for start in given.starts:
            found = pd.concat(
                [
                    found,
                    pd.DataFrame(measured(setting, start, some)).assign(profile=profile)[COLUMNS],
                ]
            )
            keep_rows(found, out)
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
