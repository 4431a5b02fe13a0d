"""Repositories of the Hugging Face Hub at a pinned revision, in the Hub's own cache (`HF_HOME`), which works offline once it is filled."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from lineage.errors import InputError


def snapshot(
    repository: str, revision: str, where: str, *, kind: Literal["dataset", "model"], patterns: Callable[[bool], list[str]],
    check: Callable[[Path], None], instead: str,
) -> Path:  # fmt: skip
    """The folder in the cache, with the files of the patterns, or all where there are none; the network is asked only for what is missing.

    `patterns` is told whether the cache alone may be asked; `check` raises ValueError where a folder has not all of them: a download that
    was broken off leaves one too, and the next call goes on with it. Raises InputError; `instead` is what else the user may do.
    """
    import huggingface_hub  # a second, which only who reads the Hub pays
    from httpx2 import HTTPError  # as a transfer that breaks for good is raised
    from huggingface_hub import utils

    utils.logging.set_verbosity(logging.CRITICAL)  # it would report each try; the user gets one message
    if not sys.stderr.isatty():
        utils.disable_progress_bars()  # type: ignore[attr-defined] # exported, but lazily
    error: Exception
    for local in (True, False):
        try:
            how: dict[str, Any] = {"local_files_only": local, "allow_patterns": patterns(local) or None}
            folder = Path(huggingface_hub.snapshot_download(repository, repo_type=kind, revision=revision, **how))
            check(folder)
            return folder
        except (OSError, ValueError, HTTPError) as reason:
            error = reason
    said = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(f"{where}: {repository} at {revision[:12]} is not in the Hub's cache and could not be fetched ({said}); check the name and "
                     f"the revision, run once with a network, or {instead}") from error  # fmt: skip


def card(repository: str, revision: str, *, local: bool) -> Path | None:
    """The README.md of a data set, of the cache alone or from the network; None where it has none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(repository, "README.md", repo_type="dataset", revision=revision, local_files_only=local))
    except EntryNotFoundError as error:
        if not local and isinstance(error, FileNotFoundError):  # not in the cache, and no network to ask
            raise
        return None
