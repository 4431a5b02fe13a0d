"""A synthetic study with planted effects, written as the stages write theirs.

Tests of the report, of publish and of tracking use it.
"""

import atexit
import dataclasses
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
from lineage.analysis.build import build_results
from lineage.analysis.cells import ResultCell
from lineage.analysis.decision import decide
from lineage.analysis.records import Analysis, Comparison, System, TrialCounts
from lineage.config.params import Grid, ReportParams
from lineage.data.dataset_stats import DatasetStats, SplitStats, write_dataset_stats
from lineage.evaluation.evaluate import sort_predictions
from lineage.evaluation.ngram_bits import write_ngram_file
from lineage.report import page
from lineage.report.section import ReportData
from lineage.results import Note, ResultRow

FAMILIES = ("elmo", "gpt", "bert")
GRID = Grid(models=FAMILIES, tasks=("sentiment", "sense", "agreement"), pretrain_seeds=(0,), adapt_models=FAMILIES, adapt_tasks=("sentiment",), target_only_models=(),
            finetune_seeds=(0, 1, 2), label_counts=(100, "all"))  # fmt: skip
# One task and no adaptation, where a test needs no more.
SENSE_GRID = replace(GRID, tasks=("sense",), adapt_models=(), adapt_tasks=())
KINDS = {"sentiment": "text_classification", "sense": "word_sense", "agreement": "minimal_pairs"}
SKILL = {"elmo": 0.3, "gpt": -0.2, "bert": 0.4, "majority": 0.0, "tfidf": 0.7}
MEASURES = {
    "elmo": ("bits_per_byte_forward", "bits_per_byte_backward"),
    "gpt": ("bits_per_byte",),
    "bert": ("masked_nats", "next_sentence_nats"),
}
GPT = System("gpt", "gpt", "pretrained", "none", "frozen", "scalar_mix", "linear", "none")
CEILINGS = {"static": 0.54, "left": 0.87, "both": 0.995}
Cell = dict[str, Any]


@functools.cache
def _cache_folder(study: str) -> Path:
    """Return where this process keeps a study, for the tests that ask for the same one."""
    folder = Path(tempfile.mkdtemp(prefix="study-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@dataclass(frozen=True)
class Study:
    """Write `artifacts/results` into a folder.

    Effects are in logits: what pretraining and adaptation add to the random-init baseline.
    """

    folder: Path
    grid: Grid = GRID
    pretraining: float = 1.6
    adaptation: float = 0.25
    target_only: float = 0.5
    items: int = 400

    def write(self) -> Path:
        """Write all files of all stages, and return the folder.

        A study that this process has written before is copied.
        """
        cached = _cache_folder(repr(replace(self, folder=Path())))
        if not any(cached.iterdir()):
            replace(self, folder=cached)._write_all()
        shutil.copytree(cached, self.folder, dirs_exist_ok=True)
        return self.folder

    def _write_all(self) -> None:
        for task in self.grid.tasks:
            for model in self.grid.models:
                for seed in self.grid.pretrain_seeds:
                    cells = [
                        *self.cells(model, seed, task, "pretrained"),
                        *self.cells(model, seed, task, "random"),
                    ]
                    self.evaluate(f"evaluate-{model}-{seed}-{task}", cells)
            self.evaluate(
                f"baselines-{task}", [*self.baselines(task)], extra_rows=self.ceilings(task)
            )
            write_overlap(self.folder, task, [f"test-{i}" for i in range(self.items)])
            self.statistics(task)
        write_no_ngrams(self.folder)
        for model in self.grid.models:
            for seed in self.grid.pretrain_seeds:
                self.pretrain(model, seed)
                for task in self.grid.adapt_tasks:
                    if model in self.grid.target_only_models:
                        self.evaluate(
                            f"evaluate_target_only-{model}-{seed}-{task}",
                            [*self.cells(model, seed, task, "target_only")],
                        )
                    extra_rows = [*self.adaptation_losses(model, seed, task)]
                    self.evaluate(
                        f"evaluate_adapted-{model}-{seed}-{task}",
                        [*self.cells(model, seed, task, "adapted")],
                        extra_rows=extra_rows,
                    )

    def cells(
        self, model: str, pretrain_seed: int, task: str, init: str
    ) -> Iterator[tuple[Cell, float]]:
        """Yield each cell of an evaluation with its skill in logits."""
        gain = {
            "random": 0.0,
            "pretrained": self.pretraining,
            "adapted": self.pretraining + self.adaptation,
            "target_only": self.target_only,
        }
        skill = SKILL[model] + gain[init]
        common: Cell = {"model": model, "family": model, "init": init, "adapt_text": "task" if init == "adapted" else "none", "task": task,
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
                label_gain = 0.5 * (labels == "all")
                frozen = own | {"transfer": "frozen", "features": "scalar_mix"}
                yield frozen, skill + label_gain
                finetuned = own | {
                    "transfer": "finetuned",
                    "features": "last",
                    "recipe": "discriminative+slanted+gradual",
                }
                yield finetuned, skill + label_gain + 0.4

    def baselines(self, task: str) -> Iterator[tuple[Cell, float]]:
        """Yield the majority and TF-IDF cells of a task that has labels."""
        if KINDS[task] == "minimal_pairs":
            return
        for name in ("majority", "tfidf"):
            for labels in self.grid.label_counts:
                for seed in self.grid.finetune_seeds:
                    cell = {
                        "model": name,
                        "family": name,
                        "finetune_seed": seed,
                        "label_count": str(labels),
                        "task": task,
                    }
                    yield cell, SKILL[name] + 0.4 * (labels == "all")

    def evaluate(
        self,
        name: str,
        cells: Sequence[tuple[Cell, float]],
        *,
        extra_rows: Sequence[ResultRow] = (),
    ) -> None:
        """Write the rows and predictions of one stage.

        The answers are to shared items of differing difficulty.
        """
        table = list(extra_rows)
        predictions = {name: list[Any]() for name in results.PREDICTION_COLUMNS}
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
                label = np.where(np.arange(count) % 2, "yes", "no")
                prediction = np.where(right > 0, label, "other")
                columns = {"id": [f"{split}-{i}" for i in range(count)], "group": ["all"] * count, "label": label, "prediction": prediction,
                           "score": 0.5 + 0.3 * (right - 0.5), "correct": right}  # fmt: skip
                table.append(row)
                # One table is built at the end, because pandas takes far longer for one per cell.
                for key, values in predictions.items():
                    if key in results.RESULT_KEY_COLUMNS:
                        values += [getattr(row, key)] * count
                    else:
                        values += [*columns[key]]
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
        """Return rows of the highest scores that models with each context can reach."""
        common: Cell = {
            "model": "ceiling",
            "family": "ceiling",
            "task": task,
            "kind": KINDS[task],
            "metric": "accuracy",
            "num_examples": self.items,
        }
        if task != "sense":
            return []
        return [ResultRow(**common, value=value, features=name) for name, value in CEILINGS.items()]

    def statistics(self, task: str) -> None:
        """Write the statistics of the task's data."""
        splits = {"validation": SplitStats(200), "test": SplitStats(self.items)}
        if KINDS[task] != "minimal_pairs":
            splits["train"] = SplitStats(600)
        stats = DatasetStats(task, KINDS[task], splits, {}, None)
        write_dataset_stats(self.folder / "statistics" / f"baselines-{task}.json", stats)

    def adaptation_losses(self, model: str, seed: int, task: str) -> Iterator[ResultRow]:
        """Yield the losses before and after adaptation, which lowers all but bert's."""
        for measure in MEASURES[model]:
            common: Cell = {"model": model, "family": model, "task": task, "kind": KINDS[task], "metric": measure, "num_examples": 1,
                            "pretrain_seed": seed, "test_set": "held_unlabelled", "split": "validation"}  # fmt: skip
            yield ResultRow(**common, init="pretrained", value=2.31)
            yield ResultRow(
                **common,
                init="adapted",
                value=2.35 if model == "bert" else 2.02,
                reason=[Note("not_lossless")] if model == "elmo" else (),
            )

    def pretrain(self, model: str, seed: int) -> None:
        """Write the budget and the learning curve of a pretraining."""
        position = FAMILIES.index(model) if model in FAMILIES else FAMILIES.index("gpt")
        budget_used = {"text_bytes": 4_000_000, "epochs": 1.37, "tokens": (640_000, 910_000, 905_000)[position], "steps": 1700, "train_flops": 3.1e12,
                 "body_parameters": 598_000 + 4000 * position, "total_parameters": 1_400_000 - 300_000 * position}  # fmt: skip
        artifacts.write_json(self.folder / "budgets" / f"pretrain-{model}-{seed}.json", budget_used)
        bytes_read = np.linspace(0, 4_000_000, 60)
        loss = (
            (4.6, 5.2, 3.9)[position] * np.exp(-bytes_read / 9e5)
            + 1.8
            + 0.2 * position
            + 0.02 * np.random.default_rng(position).normal(size=60)
        )
        validation_columns = {
            f"validation_{name}": np.where(np.arange(60) % 3 == 0, loss + 0.1 * i, np.nan)
            for i, name in enumerate(MEASURES[model])
        }
        columns = {
            "step": np.arange(60) * 28,
            "progress": bytes_read / 4e6,
            "text_bytes": bytes_read.astype(int),
            "loss": loss,
            "learning_rate": 1e-3,
        }
        artifacts.write_table(
            self.folder / "curves" / f"pretrain-{model}-{seed}.parquet",
            pd.DataFrame({**columns, **validation_columns}),
        )


def write_stage_results(
    folder: Path, stage: str, rows: pd.DataFrame, predictions: pd.DataFrame
) -> None:
    """Write the rows and predictions of a stage, as it does itself."""
    artifacts.write_table(folder / f"rows/{stage}.parquet", rows)
    artifacts.write_table(folder / f"predictions/{stage}.parquet", predictions)


def write_no_ngrams(folder: Path) -> None:
    """Write what the stage ngram writes if nothing can be compared with an n-gram model."""
    artifacts.write_table(folder / "rows/ngram.parquet", results.results_frame([]))
    artifacts.write_table(folder / "predictions/ngram.parquet", sort_predictions([]))
    write_ngram_file(folder / "ngram/ngram.json", [])


def write_overlap(folder: Path, task: str, ids: Sequence[str], *, corpus: Sequence[str] = (), unlabelled: Sequence[str] = (), short: Sequence[str] = (),
            test_set: str = "") -> None:  # fmt: skip
    """Write which items of a task occur in text that was read, and which are too short to tell.

    The task has unlabelled text.
    """
    overlaps = {"id": ids} | {
        name: np.isin(ids, overlapping_ids)
        for name, overlapping_ids in (("corpus", corpus), ("unlabelled", unlabelled))
    }
    table = pd.DataFrame(
        {"task": task, "test_set": test_set or task, "long_enough": ~np.isin(ids, short)} | overlaps
    )
    artifacts.write_table(folder / "contamination" / f"contamination-{task}.parquet", table)


def build_analysis(
    cells: Sequence[ResultCell] = (), *, grid: Grid = GRID, **fields: Any
) -> Analysis:
    """Return an analysis that holds the scores of these cells, and these fields."""
    empty: dict[str, Any] = dict.fromkeys(Analysis.__dataclass_fields__, ())
    defaults = {
        "split": "test",
        "grid": grid,
        "scores": tuple(cell.summarize() for cell in cells),
        "trials": (TrialCounts("finetune", 1, 1),),
        "convergence_controls": (),
        "finetune_curves": (),
        "confidence_level": 0.95,
        "equivalence_margin": 0.02,
    }
    return Analysis(**empty | defaults | fields)


def analyze(folder: Path, grid: Grid = GRID, **options: Any) -> Analysis:
    """Return the analysis of the results in a folder."""
    return build_results(folder, grid, ReportParams(), **options)[1]


def build_row(**changes: Any) -> ResultRow:
    """Return a row of results with these fields."""
    values: dict[str, Any] = {
        "model": "gpt",
        "family": "gpt",
        "task": "sense",
        "kind": "word_sense",
        "metric": "accuracy",
        "value": 0.5,
        "num_examples": 10,
    }
    return ResultRow(**values | changes)


def build_comparison(**changes: Any) -> Comparison:
    """Return a comparison of two models without a significant difference, with these fields."""
    system = System("gpt", "gpt", "pretrained", "none", "finetuned", "last", "linear", "none")
    values: dict[str, Any] = {
        "comparison_type": "models",
        "task": "sense",
        "label_count": "all",
        "metric": "accuracy",
        "first": system,
        "second": replace(system, model="bert"),
        "difference": 0.024,
        "ci_low": -1.0,
        "ci_high": 1.0,
        "standard_error": 0.1,
        "detectable": None,
        "repetitions": 2,
        "num_examples": 400,
        "verdict": "too few seeds",
    }
    return Comparison(**values | changes)


def render_pages(analysis: Analysis) -> dict[str, str]:
    """Return both pages of an analysis whose costs are unknown."""
    return page.render_report(ReportData(analysis, decide(analysis, {})))


ENSEMBLE = dataclasses.replace(GRID, ensembles={"duet": ("elmo", "gpt")})


LABEL_NAMES = ("no", "other", "yes")


def with_probabilities(folder: Path) -> None:
    """Add label probabilities to the synthetic predictions, highest for the predicted label."""
    for path in (folder / "predictions").glob("evaluate*-s*.parquet"):
        table = artifacts.read_table(path)
        rng = np.random.default_rng(len(path.name))
        p_NK = rng.uniform(0.0, 0.3, (len(table), len(LABEL_NAMES)))
        predicted = [LABEL_NAMES.index(label) for label in table["prediction"]]
        p_NK[np.arange(len(table)), predicted] = rng.uniform(0.3, 1.0, len(table))
        p_NK /= p_NK.sum(1, keepdims=True)
        probabilities = {
            f"p {label}": p_NK[:, column].astype(np.float32)
            for column, label in enumerate(LABEL_NAMES)
        }
        artifacts.write_table(path, table.assign(**probabilities))
