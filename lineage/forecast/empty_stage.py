"""A stage without work: what DVC, MLflow and the start of a process add to every stage.

It imports what the stage evaluate imports, and opens a run in MLflow.
"""

from pathlib import Path

import lineage.evaluation.evaluate  # noqa: F401
from lineage.runtime.stage import Stage, run_stage


def work(stage: Stage) -> None:
    """Write one small file."""
    (number,) = stage.arguments
    with stage.track(parameters={}, inputs=[]):
        Path(f"empty-{number}.txt").write_text(number)


def main() -> None:
    """Run the stage."""
    run_stage("empty", work)


if __name__ == "__main__":
    main()
