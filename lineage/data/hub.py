"""Repositories of the Hugging Face Hub at a pinned revision, in the Hub's own cache (`HF_HOME`), which works offline once it is filled."""

import logging
import re
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import yaml

from lineage.errors import InputError

SHARD_PATTERN = re.compile(r"-\d{5}-of-(\d{5})")  # as files are named that are one split


def download_snapshot(
    repository: str,
    revision: str,
    where: str,
    *,
    repo_type: Literal["dataset", "model"],
    patterns: Callable[[bool], list[str]],
    check: Callable[[Path], None],
    alternative: str,
) -> Path:
    """The folder in the cache, with the files of the patterns, or all where there are none; the network is asked only for what is missing.

    `patterns` is told whether the cache alone may be asked; `check` raises ValueError where a folder has not all of them: a download that
    was broken off leaves one too, and the next call goes on with it. Raises InputError; `instead` is what else the user may do.
    """
    import huggingface_hub  # a second, which only who reads the Hub pays
    from httpx2 import HTTPError  # as a transfer that breaks for good is raised
    from huggingface_hub import utils

    utils.logging.set_verbosity(
        logging.CRITICAL
    )  # it would report each try; the user gets one message
    if not sys.stderr.isatty():
        utils.disable_progress_bars()  # type: ignore[attr-defined] # exported, but lazily
    error: Exception
    for local in (True, False):
        try:
            how: dict[str, Any] = {
                "local_files_only": local,
                "allow_patterns": patterns(local) or None,
            }
            folder = Path(
                huggingface_hub.snapshot_download(
                    repository, repo_type=repo_type, revision=revision, **how
                )
            )
            check(folder)
            return folder
        except (OSError, ValueError, HTTPError) as reason:
            error = reason
    said = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(
        f"{where}: {repository} at {revision[:12]} is not in the Hub's cache and could not be fetched ({said}); check the name and "
        f"the revision, run once with a network, or {alternative}"
    ) from error


def find_dataset_card(repository: str, revision: str, *, local_files_only: bool) -> Path | None:
    """The README.md of a data set, of the cache alone or from the network; None where it has none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(
            hf_hub_download(
                repository,
                "README.md",
                repo_type="dataset",
                revision=revision,
                local_files_only=local_files_only,
            )
        )
    except EntryNotFoundError as error:
        if not local_files_only and isinstance(
            error, FileNotFoundError
        ):  # not in the cache, and no network to ask
            raise
        return None


def download_dataset(repository: str, config: str | None, revision: str, where: str) -> Path:
    """The folder in the Hub's cache that holds the files of one configuration of a data set; none: of all. Raises InputError."""
    return download_snapshot(
        repository,
        revision,
        where,
        repo_type="dataset",
        patterns=lambda local: _download_patterns(
            find_dataset_card(repository, revision, local_files_only=local), config
        ),
        check=lambda folder: _check_download_complete(
            folder, _download_patterns(folder / "README.md", config)
        ),
        alternative="keep a copy and name it under 'mirror'",
    )


def _check_download_complete(folder: Path, patterns: list[str]) -> None:
    """Raise ValueError where a folder of the Hub's cache lacks what the patterns name, a shard of it, or, without a pattern, where a download was
    broken off: a part of a data set would be read as if it were all."""
    if not patterns and (
        not any(folder.iterdir()) or any((folder.parent.parent / "blobs").glob("*.incomplete"))
    ):
        raise ValueError("a part of it is there")
    found = [
        {str(path.relative_to(folder)) for path in folder.glob(pattern)} for pattern in patterns
    ]
    files = set[str]().union(*found)
    shards = [(path, part) for path in files if (part := SHARD_PATTERN.search(path))]
    wanted = {
        f"{path[: part.start()]}-{number:05d}-of-{part[1]}{path[part.end() :]}"
        for path, part in shards
        for number in range(int(part[1]))
    }
    if not all(found) or not wanted <= files:
        raise ValueError("a part of it is there")


def _download_patterns(readme: Path | None, config: str | None) -> list[str]:
    """The card and the data files that it names for the configuration; nothing where it names none, and all files may be meant."""
    files = [
        pattern for entry in card_data_files(readme, config) for pattern in _flatten_patterns(entry)
    ]
    return ["README.md", *files] if files else []


def card_data_files(readme: Path | None, config: str | None) -> list[Any]:
    """What a card has under `data_files` for each configuration that is meant. Raises InputError where its head cannot be read."""
    from huggingface_hub import DatasetCard

    if readme is None or not readme.is_file():
        return []
    try:
        head = DatasetCard.load(readme).data.to_dict()
        configs = [
            c
            for c in head.get("configs", [])
            if fnmatch(c.get("config_name", "default"), config or "*")
        ]
    except (yaml.YAMLError, AttributeError, TypeError):  # the first's message quotes the line
        raise InputError(
            f"{readme}: its head, between the lines of ---, is no YAML, or its 'configs' are no list of mappings; correct it"
        ) from None
    return [] if any("data_dir" in c for c in configs) else [c.get("data_files") for c in configs]


def _flatten_patterns(data_files: Any) -> list[str]:
    """The patterns in a card's `data_files`: one, several, or those of each split."""
    if isinstance(data_files, dict):
        data_files = data_files.get("path")
    if isinstance(data_files, str):
        return [data_files]
    return [pattern for entry in data_files or [] for pattern in _flatten_patterns(entry)]
