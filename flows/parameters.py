"""Check params.yaml before a run, in a process of its own, and keep its records up to date."""

import subprocess
import sys
from pathlib import Path

from flows.execute import EXIT_BAD_INPUT
from lineage.errors import InputError
from lineage.runtime.provenance import SOURCES_DIR


def check_parameters(root: Path) -> None:
    """Raise InputError if params.yaml is wrong, unless `sources` has checked the same file already."""
    if not params_have_changed(root):
        return
    answer = subprocess.run(
        [sys.executable, "-m", "flows.parameters"],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if answer.returncode == EXIT_BAD_INPUT:
        raise InputError(answer.stdout.strip())
    answer.check_returncode()


def refresh_records() -> None:
    """Check params.yaml, and write its records again. Raises InputError."""
    # Imported here: it imports torch, and is seldom needed.
    from lineage.config.params import read_params
    from lineage.study.source_records import refresh_parameter_records

    refresh_parameter_records(read_params())


def params_have_changed(root: Path) -> bool:
    """Return whether params.yaml differs from the copy of the sources stage, if there is one."""
    recorded = root / SOURCES_DIR / "params.yaml"
    if not recorded.is_file():
        return True
    return recorded.read_bytes() != (root / "params.yaml").read_bytes()


if __name__ == "__main__":
    try:
        refresh_records()
    except InputError as error:
        print(error)
        sys.exit(EXIT_BAD_INPUT)
