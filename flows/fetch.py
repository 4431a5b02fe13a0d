"""Bring a stage's result from the DVC remote into the cache: `python -m flows.fetch NAME`.

It is a process of its own, which can be ended while the remote does not answer.
"""

import sys
import threading
from pathlib import Path

from flows.repository import StudyRepository


def main() -> None:
    """Fetch what the remote knows of this stage; nothing if it does not know it."""
    StudyRepository(Path(), threading.Event()).take_known_result(sys.argv[1], pull=True)


if __name__ == "__main__":
    main()
