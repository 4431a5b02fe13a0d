"""A made-up study with known effects, written as the stages write theirs: what report and publish are tried on."""

import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from lineage import artifacts, rows
from lineage.params import Grid
from lineage.rows import Row

GRID = Grid(families=("elmo", "gpt", "bert"), tasks=("sentiment", "sense", "agreement"), adapt_families=("elmo", "gpt", "bert"), adapt_tasks=("sentiment",),
            seeds=(0, 1, 2), labels=(100, "all"))  # fmt: skip
KINDS = {"sentiment": "classify", "sense": "sense", "agreement": "minimal_pairs"}
SKILL = {"elmo": 0.3, "gpt": -0.2, "bert": 0.4}
CEILINGS = {"static": 0.54, "left": 0.87, "both": 0.995}
ITEMS = 400


class Study:
    """Writes `artifacts/results` under a folder; effects are planted by `pretraining`, in logits."""

    def __init__(self, folder: Path, *, grid: Grid = GRID, pretraining: float = 1.6, twins: float = 0.0, items: int = ITEMS) -> None:
        self.folder, self.grid, self.pretraining, self.twins, self.items = folder, grid, pretraining, twins, items

    def write(self) -> Path:
        """All files of all stages; the results folder."""
        for task in self.grid.tasks:
            for variant in self.grid.families:
                for seed in self.grid.pretrain_seeds:
                    inits = ("pretrained", "untrained")
                    self._evaluate(f"evaluate-{variant}-{seed}-{task}", [self._cells(variant, seed, task, init) for init in inits])
                    if variant in self.grid.adapt_families and task in self.grid.adapt_tasks:
                        name = f"evaluate_adapted-{variant}-{seed}-{task}"
                        self._evaluate(name, [self._cells(variant, seed, task, "adapted")], extra=self._held(variant, seed, task))
            controls = [self._control(task, "majority", 0.0), self._control(task, "tfidf", 0.7)] if task != "agreement" else []
            self._evaluate(f"control-{task}", controls, extra=self._ceilings(task))
        for variant in self.grid.families:
            for seed in self.grid.pretrain_seeds:
                self._pretrain(variant, seed)
        return self.folder

    def _cells(self, variant, pretrain_seed, task, init):
        zero_shot = KINDS[task] == "minimal_pairs"
        readings = [("zero_shot", "none", "none", "none")] if zero_shot else [("frozen", "mix", "linear", "none"), ("tuned", "top", "linear", "none")]
        found = []
        for transfer, features, head, recipe in readings:
            for labels in ["none"] if zero_shot else self.grid.labels:
                for seed in [None] if zero_shot else self.grid.seeds:
                    skill = SKILL.get(variant, 0.0) + 0.4 * (transfer == "tuned") + 0.5 * (labels == "all")
                    skill += {"untrained": self.twins, "pretrained": self.pretraining, "adapted": self.pretraining + 0.25}[init]
                    adapted = init == "adapted" and transfer == "tuned"
                    cell = {"variant": variant, "family": variant, "init": init, "adapt_text": "task" if init == "adapted" else "none",
                            "transfer": transfer, "features": features, "head": head, "recipe": "discriminative+slanted+gradual" if adapted else recipe,
                            "pretrain_seed": pretrain_seed, "seed": seed, "labels": str(labels), "task": task}  # fmt: skip
                    found.append((cell, skill))
        return found

    def _control(self, task, name, skill):
        return [({"variant": name, "family": name, "seed": seed, "labels": str(labels), "task": task}, skill + 0.4 * (labels == "all"))
                for labels in self.grid.labels for seed in self.grid.seeds]  # fmt: skip

    def _evaluate(self, name, cells, *, extra=()):
        table, predictions = list(extra), []
        for cell, skill in [one for some in cells for one in some]:
            rng = np.random.default_rng(zlib.crc32(repr((cell, "noise")).encode()))
            skill = skill + 0.08 * rng.normal()
            examples = 100 if cell["labels"] == "100" else 0 if cell["labels"] == "none" else 600
            for split, count in (("validation", 200), ("test", self.items)):
                difficulty = np.random.default_rng(zlib.crc32(f"{cell['task']}{split}".encode())).normal(size=count)
                right = (rng.logistic(size=count) < 1.5 * skill - difficulty).astype(float)
                table.append(Row(**cell, kind=KINDS[cell["task"]], metric="accuracy", value=float(right.mean()), examples=count, split=split,
                                 train_examples=examples, text_bytes=4_000_000))  # fmt: skip
                gold = np.where(np.arange(count) % 2, "yes", "no")
                predictions.append(pd.DataFrame({
                    **{key: getattr(table[-1], key) for key in rows.CELL}, "id": [f"{split}-{i}" for i in range(count)], "group": "all", "gold": gold,
                    "prediction": np.where(right > 0, gold, "other"), "score": 0.5 + 0.3 * (right - 0.5), "correct": right}))  # fmt: skip
        artifacts.write_table(self.folder / "rows" / f"{name}.parquet", rows.table(table))
        found = pd.concat(predictions) if predictions else pd.DataFrame(columns=list(rows.PREDICTIONS))
        integers = {key: "Int64" for key in rows.INTEGERS if key in rows.PREDICTIONS}
        artifacts.write_table(self.folder / "predictions" / f"{name}.parquet", found[list(rows.PREDICTIONS)].astype(integers))

    def _ceilings(self, task):
        if task != "sense":
            return []
        return [Row(variant="ceiling", family="ceiling", task=task, kind="sense", metric="accuracy", value=value, examples=self.items, features=reads)
                for reads, value in CEILINGS.items()]  # fmt: skip

    def _held(self, variant, seed, task):
        measure = {"elmo": "bits_per_byte_forward", "gpt": "bits_per_byte", "bert": "masked_nats"}[variant]
        values = {"pretrained": 2.31, "adapted": 2.35 if variant == "bert" else 2.02}
        return [Row(variant=variant, family=variant, task=task, kind="classify", metric=measure, value=value, examples=60, init=init, pretrain_seed=seed,
                    test_set="held_unlabelled", reason="lossy words" if variant == "elmo" else "") for init, value in values.items()]  # fmt: skip

    def _pretrain(self, variant, seed):
        place = self.grid.families.index(variant)
        artifacts.write_json(self.folder / "budgets" / f"pretrain-{variant}-{seed}.json", {
            "text_bytes": 4_000_000, "passes": 1.37, "tokens": (640_000, 910_000, 905_000)[place], "steps": 1700, "body_parameters": 598_000 + 4000 * place,
            "total_parameters": 1_400_000 - 300_000 * place, "embedding_parameters": 500_000, "train_flops": 3.1e12, "real_token_share": 0.98})  # fmt: skip
        read = np.linspace(0, 4_000_000, 60)
        rng = np.random.default_rng(place)
        loss = (4.6, 5.2, 3.9)[place] * np.exp(-read / 9e5) + 1.8 + 0.2 * place + 0.02 * rng.normal(size=60)
        shown = np.where(np.arange(60) % 3 == 0, loss, np.nan)
        artifacts.write_table(self.folder / "curves" / f"pretrain-{variant}-{seed}.parquet", pd.DataFrame({
            "step": np.arange(60) * 28, "progress": read / 4e6, "text_bytes": read.astype(int), "loss": loss, "nats": loss, "targets": 512,
            "validation_loss": shown, "rate": 1e-3}))  # fmt: skip
