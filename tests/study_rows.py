"""A made-up study with planted effects, written as the stages write theirs: what report, publish and tracking are tried on."""

import atexit
import functools
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lineage import artifacts, results
from lineage.analysis.cells import ResultCell
from lineage.analysis.records import Analysis, TrialCounts
from lineage.config.params import Grid
from lineage.data.dataset_stats import DatasetStats, SplitStats, write_dataset_stats
from lineage.results import Note, ResultRow

FAMILIES = ("elmo", "gpt", "bert")
GRID = Grid(models=FAMILIES, tasks=("sentiment", "sense", "agreement"), pretrain_seeds=(0,), adapt_models=FAMILIES, adapt_tasks=("sentiment",),
            finetune_seeds=(0, 1, 2), label_counts=(100, "all"))  # fmt: skip
KINDS = {"sentiment": "text_classification", "sense": "word_sense", "agreement": "minimal_pairs"}
SKILL = {"elmo": 0.3, "gpt": -0.2, "bert": 0.4, "majority": 0.0, "tfidf": 0.7}
MEASURES = {
    "elmo": ("bits_per_byte_forward", "bits_per_byte_backward"),
    "gpt": ("bits_per_byte",),
    "bert": ("masked_nats", "next_sentence_nats"),
}
CEILINGS = {"static": 0.54, "left": 0.87, "both": 0.995}
Cell = dict[str, Any]


@functools.cache
def _written(study: str) -> Path:
    """Where a study is kept, whole, for the tests of this process that ask for the same one."""
    folder = Path(tempfile.mkdtemp(prefix="study-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@dataclass(frozen=True)
class Study:
    """Writes `artifacts/results` into a folder. Effects are in logits: what pretraining and adaptation add to the untrained twin."""

    folder: Path
    grid: Grid = GRID
    pretraining: float = 1.6
    adaptation: float = 0.25
    items: int = 400

    def write(self) -> Path:
        """All files of all stages; the results folder. A study that this process has written before is copied."""
        kept = _written(repr(replace(self, folder=Path())))
        if not any(kept.iterdir()):
            replace(self, folder=kept)._make()
        shutil.copytree(kept, self.folder, dirs_exist_ok=True)
        return self.folder

    def _make(self) -> None:
        for task in self.grid.tasks:
            for variant in self.grid.models:
                for seed in self.grid.pretrain_seeds:
                    cells = [
                        *self.cells(variant, seed, task, "pretrained"),
                        *self.cells(variant, seed, task, "random"),
                    ]
                    self.evaluate(f"evaluate-{variant}-{seed}-{task}", cells)
            self.evaluate(f"baselines-{task}", [*self.controls(task)], more=self.ceilings(task))
            overlap(self.folder, task, [f"test-{i}" for i in range(self.items)])
            self.statistics(task)
        for variant in self.grid.models:
            for seed in self.grid.pretrain_seeds:
                self.pretrain(variant, seed)
                for task in self.grid.adapt_tasks:
                    more = [*self.held(variant, seed, task)]
                    self.evaluate(
                        f"evaluate_adapted-{variant}-{seed}-{task}",
                        [*self.cells(variant, seed, task, "adapted")],
                        more=more,
                    )

    def cells(
        self, variant: str, pretrain_seed: int, task: str, init: str
    ) -> Iterator[tuple[Cell, float]]:
        """Each cell of an evaluation, and how good it is."""
        skill = (
            SKILL[variant]
            + {
                "random": 0.0,
                "pretrained": self.pretraining,
                "adapted": self.pretraining + self.adaptation,
            }[init]
        )
        common: Cell = {"model": variant, "family": variant, "init": init, "adapt_text": "task" if init == "adapted" else "none", "task": task,
                        "pretrain_seed": pretrain_seed}  # fmt: skip
        if KINDS[task] == "minimal_pairs":
            yield (
                common | {"transfer": "zero_shot", "finetune_seed": None, "label_count": "none"},
                skill,
            )
            return
        for labels in self.grid.label_counts:
            for seed in self.grid.finetune_seeds:
                own = common | {"label_count": str(labels), "finetune_seed": seed, "head": "linear"}
                more = 0.5 * (labels == "all")
                yield own | {"transfer": "frozen", "features": "scalar_mix"}, skill + more
                yield (
                    own
                    | {
                        "transfer": "finetuned",
                        "features": "last",
                        "recipe": "discriminative+slanted+gradual",
                    },
                    skill + more + 0.4,
                )

    def controls(self, task: str) -> Iterator[tuple[Cell, float]]:
        """Majority and the bag of words, where there are labels."""
        for name in ("majority", "tfidf") if KINDS[task] != "minimal_pairs" else ():
            for labels in self.grid.label_counts:
                for seed in self.grid.finetune_seeds:
                    yield (
                        {
                            "model": name,
                            "family": name,
                            "finetune_seed": seed,
                            "label_count": str(labels),
                            "task": task,
                        },
                        SKILL[name] + 0.4 * (labels == "all"),
                    )

    def evaluate(
        self, name: str, cells: Sequence[tuple[Cell, float]], *, more: Sequence[ResultRow] = ()
    ) -> None:
        """Rows and predictions of one stage: answers to shared items of differing difficulty."""
        table, predictions = list(more), {name: list[Any]() for name in results.PREDICTION_COLUMNS}
        for cell, mean_skill in cells:
            rng = np.random.default_rng(zlib.crc32(repr(cell).encode()))
            skill = mean_skill + 0.08 * rng.normal()
            for split, count in (("validation", 200), ("test", self.items)):
                difficulty = np.random.default_rng(
                    zlib.crc32(f"{cell['task']}{split}".encode())
                ).normal(size=count)
                right = (rng.logistic(size=count) < 1.5 * skill - difficulty).astype(float)
                row = ResultRow(**cell, kind=KINDS[cell["task"]], test_set=cell["task"], metric="accuracy", value=float(right.mean()),
                          num_examples=count, split=split, text_bytes=4_000_000,
                          train_examples={"100": 100, "all": 600}.get(cell["label_count"], 0))  # fmt: skip
                gold = np.where(np.arange(count) % 2, "yes", "no")
                said = np.where(right > 0, gold, "other")
                columns = {"id": [f"{split}-{i}" for i in range(count)], "group": ["all"] * count, "label": gold, "prediction": said,
                           "score": 0.5 + 0.3 * (right - 0.5), "correct": right}  # fmt: skip
                table.append(row)
                for (
                    key,
                    values,
                ) in (
                    predictions.items()
                ):  # one table in the end: pandas takes far longer for one a cell
                    values += (
                        [getattr(row, key)] * count
                        if key in results.RESULT_KEY_COLUMNS
                        else [*columns[key]]
                    )
        artifacts.write_table(
            self.folder / "rows" / f"{name}.parquet", results.results_frame(table)
        )
        integers = {
            key: "Int64" for key in results.INTEGER_COLUMNS if key in results.PREDICTION_COLUMNS
        }
        found = pd.DataFrame(predictions) if cells else pd.DataFrame(columns=[*predictions])
        artifacts.write_table(
            self.folder / "predictions" / f"{name}.parquet", found.astype(integers)
        )

    def ceilings(self, task: str) -> list[ResultRow]:
        """What no reader of each window can pass."""
        common: Cell = {
            "model": "ceiling",
            "family": "ceiling",
            "task": task,
            "kind": KINDS[task],
            "metric": "accuracy",
            "num_examples": self.items,
        }
        return (
            [ResultRow(**common, value=value, features=reads) for reads, value in CEILINGS.items()]
            if task == "sense"
            else []
        )

    def statistics(self, task: str) -> None:
        """What the task's data holds."""
        splits = {"validation": SplitStats(200), "test": SplitStats(self.items)}
        if KINDS[task] != "minimal_pairs":
            splits["train"] = SplitStats(600)
        stats = DatasetStats(task, KINDS[task], splits, {}, None)
        write_dataset_stats(self.folder / "statistics" / f"baselines-{task}.json", stats)

    def held(self, variant: str, seed: int, task: str) -> Iterator[ResultRow]:
        """Adaptation helps all but bert."""
        for measure in MEASURES[variant]:
            common: Cell = {"model": variant, "family": variant, "task": task, "kind": KINDS[task], "metric": measure, "num_examples": 1,
                            "pretrain_seed": seed, "test_set": "held_unlabelled", "split": "validation"}  # fmt: skip
            yield ResultRow(**common, init="pretrained", value=2.31)
            yield ResultRow(
                **common,
                init="adapted",
                value=2.35 if variant == "bert" else 2.02,
                reason=[Note("not_lossless")] if variant == "elmo" else (),
            )

    def pretrain(self, variant: str, seed: int) -> None:
        """Budget and curve."""
        place = FAMILIES.index(variant)
        spent = {"text_bytes": 4_000_000, "epochs": 1.37, "tokens": (640_000, 910_000, 905_000)[place], "steps": 1700, "train_flops": 3.1e12,
                 "body_parameters": 598_000 + 4000 * place, "total_parameters": 1_400_000 - 300_000 * place}  # fmt: skip
        artifacts.write_json(self.folder / "budgets" / f"pretrain-{variant}-{seed}.json", spent)
        read = np.linspace(0, 4_000_000, 60)
        loss = (
            (4.6, 5.2, 3.9)[place] * np.exp(-read / 9e5)
            + 1.8
            + 0.2 * place
            + 0.02 * np.random.default_rng(place).normal(size=60)
        )
        seen = {
            f"validation_{name}": np.where(np.arange(60) % 3 == 0, loss + 0.1 * i, np.nan)
            for i, name in enumerate(MEASURES[variant])
        }
        columns = {
            "step": np.arange(60) * 28,
            "progress": read / 4e6,
            "text_bytes": read.astype(int),
            "loss": loss,
            "learning_rate": 1e-3,
        }
        artifacts.write_table(
            self.folder / "curves" / f"pretrain-{variant}-{seed}.parquet",
            pd.DataFrame({**columns, **seen}),
        )


def overlap(folder: Path, task: str, ids: Sequence[str], *, corpus: Sequence[str] = (), unlabelled: Sequence[str] = (), short: Sequence[str] = (),
            test_set: str = "") -> None:  # fmt: skip
    """Which of a task's items stand in text that was read, and which are too short to tell; for a task that has unlabelled text."""
    found = {"id": ids} | {
        name: np.isin(ids, some) for name, some in (("corpus", corpus), ("unlabelled", unlabelled))
    }
    table = pd.DataFrame(
        {"task": task, "test_set": test_set or task, "long_enough": ~np.isin(ids, short)} | found
    )
    artifacts.write_table(folder / "contamination" / f"contamination-{task}.parquet", table)


def analysis_of(cells: Sequence[ResultCell] = (), *, grid: Grid = GRID, **fields: Any) -> Analysis:
    """Return an analysis that holds the scores of these cells, and these fields."""
    empty: dict[str, Any] = dict.fromkeys(Analysis.__dataclass_fields__, ())
    given = {
        "split": "test",
        "grid": grid,
        "scores": tuple(cell.summarize() for cell in cells),
        "trials": TrialCounts(1, 1),
        "confidence_level": 0.95,
        "equivalence_margin": 0.02,
        "schema_version": 4,
    }
    return Analysis(**empty | given | fields)
