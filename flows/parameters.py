"""Check params.yaml before a run, in a process of its own, and keep its records up to date."""

import contextlib
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from lineage.errors import InputError
from lineage.runtime.provenance import SOURCES_DIR


def check_parameters(root: Path) -> None:
    """Raise InputError if params.yaml is wrong, unless `sources` has checked the same file already.

    Another process reads it, since that imports torch. It ends by itself if this one is killed,
    which a pool's process would not.
    """
    if not params_have_changed(root):
        return
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_problem, args=(sender,))
    process.start()
    sender.close()
    try:
        problem = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the check of params.yaml ended with {process.exitcode}") from None
    process.join()
    if problem:
        raise InputError(problem)


def _send_problem(sender: Connection) -> None:
    """Refresh the records, and send what is wrong with params.yaml; nothing if it is right."""
    problem = ""
    try:
        refresh_records()
    except InputError as error:
        problem = str(error)
    with contextlib.suppress(BrokenPipeError):  # the run has been killed
        sender.send(problem)


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
