"""Texts that are both learned and scored cause a warning, if they are many."""

from pathlib import Path

import pandas as pd
import pytest

from lineage.data.splits import describe_repeats
from lineage.tasks.info import TaskInfo
from tests.helpers.user_project import RunStage, make_project, mood_reviews, write_params

# The fourth is in validation.
REMEDY = "train has too, word for word, so they are learned and then scored; remove them from train or from here"


@pytest.mark.parametrize("num_repeated", [1, 4])
def test_a_test_file_with_many_texts_of_train_is_reported_before_a_run(
    num_repeated: int,
    tmp_path: Path,
    run_stage: RunStage,
) -> None:
    write_params(tmp_path, make_project(tmp_path))
    table = pd.concat([mood_reviews(num_repeated), mood_reviews(20 - num_repeated, 2000)])
    table.to_csv(tmp_path / "mood/test.csv", index=False)
    code, message = run_stage(tmp_path, "sources")
    assert code == 0
    warning = f"params.yaml: tasks.mood.files: test has 3 of 20 texts that {REMEDY}\n"
    assert message == (warning if num_repeated == 4 else "")


def test_copies_that_folds_may_part_are_reported() -> None:
    info = TaskInfo(
        "x", "text_classification", counts={"train": 1200}, duplicates_in_folds={"train": 1100}
    )
    (warning,) = describe_repeats(info)
    assert warning == (
        "train has 1,100 of 1,200 texts that occur several times, so copies may be in both parts "
        "of a fold; keep one of each"
    )
