"""The facts about a prepared task: the file task.json next to its items."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lineage.artifacts import read_json, write_json

INFO_FILE = "task.json"
SplitCounts = dict[str, int]  # numbers of items, or of words, by split


@dataclass(frozen=True)
class TaskInfo:
    """The content of task.json. Where a kind counts nothing, the counts are empty."""

    name: str
    kind: str
    language: str = "en"
    labels: Sequence[str] = ()
    metric: Sequence[str] = ()  # the first one ranks the systems
    symmetric: bool = False
    is_pair: bool = False  # an item has two texts
    probes: Sequence[str] = ("linear",)
    counts: SplitCounts = field(default_factory=dict)
    dropped: dict[str, SplitCounts] = field(default_factory=dict)  # of each split, by the reason
    held_out_from_train: int = 0
    truncated: SplitCounts = field(default_factory=dict)
    invalid_tags: SplitCounts = field(default_factory=dict)
    blank_words: SplitCounts = field(default_factory=dict)
    tags_not_in_train: SplitCounts = field(default_factory=dict)
    numeric_tags: SplitCounts = field(default_factory=dict)
    tags_without_scheme: SplitCounts = field(default_factory=dict)
    truncated_answers: SplitCounts = field(default_factory=dict)
    duplicates_of_train: SplitCounts = field(default_factory=dict)
    duplicates_in_folds: SplitCounts = field(default_factory=dict)
    groups_in_train: SplitCounts = field(default_factory=dict)
    has: Sequence[str] = ()  # the splits with a table
    extra_test_sets: Sequence[str] = ()
    folds: int | None = None
    grouped: bool = False
    validation_share: float = 0.1
    # The best possible scores of a generated task, by what a model may read; also by group.
    ceilings: dict[str, float] | None = None
    ceiling_groups: dict[str, dict[str, float]] = field(default_factory=dict)
    character_spans: bool = False  # the labels were spans of characters

    @property
    def ranking_metric(self) -> str:
        """The metric by which systems are compared."""
        return self.metric[0]

    @property
    def fold_numbers(self) -> list[int | None]:
        """The folds of each repetition; [None] if the task has splits of its own."""
        return [*range(self.folds)] if self.folds else [None]

    @classmethod
    def read(cls, folder: Path) -> "TaskInfo":
        """Read the file of a prepared task."""
        return cls(**read_json(folder / INFO_FILE))

    def write(self, folder: Path) -> None:
        """Write the file; `character_spans` is in it only if it is true."""
        record = asdict(self)
        if not self.character_spans:
            del record["character_spans"]
        write_json(folder / INFO_FILE, record)
