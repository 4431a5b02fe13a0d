"""Fetch repositories of the Hugging Face Hub at a pinned revision into the Hub's own cache."""

import logging
import re
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import yaml

from lineage.errors import InputError, shorten_value

if TYPE_CHECKING:  # the import takes a second
    from huggingface_hub import CachedRevisionInfo

SHARD_PATTERN = re.compile(r"-\d{5}-of-(\d{5})")  # in the names of files that are one split
INCOMPLETE = "a part of it is there"


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
    """Return the folder in the Hub's cache that holds the files of a repository.

    The network is used only for what is missing. `patterns` returns the files to fetch, or nothing
    for all; its argument says whether it may use the cache alone. `check` raises ValueError for an
    incomplete folder. Raises InputError, which suggests the `alternative`.
    """
    # These imports take a second, which only users of the Hub pay.
    import huggingface_hub
    from huggingface_hub import utils

    # A transfer that breaks for good raises an error of the HTTP library that the Hub's uses.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    utils.logging.set_verbosity(logging.CRITICAL)  # the user gets one message, not one per attempt
    if not sys.stderr.isatty():
        utils.disable_progress_bars()  # type: ignore[attr-defined] # exported, but lazily
    last_error: Exception
    for local_files_only in (True, False):
        try:
            folder = Path(
                huggingface_hub.snapshot_download(
                    repository,
                    repo_type=repo_type,
                    revision=revision,
                    local_files_only=local_files_only,
                    allow_patterns=patterns(local_files_only) or None,
                )
            )
            check(folder)
            return folder
        except (OSError, ValueError, HTTPError) as error:
            last_error = error
    lines = str(last_error).splitlines() or [type(last_error).__name__]
    raise InputError(
        f"{where}: {repository} at {revision[:12]} is not in the Hub's cache and could not be "
        f"fetched ({lines[0]}); check the name and the revision, run once with a network, "
        f"or {alternative}"
    ) from last_error


def list_cached_models() -> "dict[str, CachedRevisionInfo]":
    """Return the models of the Hub's cache, without a network: repositories, sorted -> revision."""
    from huggingface_hub import constants, scan_cache_dir

    if not Path(constants.HF_HUB_CACHE).is_dir():
        return {}
    models = {}
    for repository in scan_cache_dir(constants.HF_HUB_CACHE).repos:
        if repository.repo_type != "model" or not repository.revisions:
            continue
        models[repository.repo_id] = max(
            repository.revisions,
            key=lambda one: ("main" in one.refs, one.last_modified, one.commit_hash),
        )
    return dict(sorted(models.items()))


def download_dataset(repository: str, config: str | None, revision: str, where: str) -> Path:
    """Return the folder of one configuration of a data set, or of all. Raises InputError."""

    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    def patterns(local_files_only: bool) -> list[str]:
        card = None
        try:
            card = hf_hub_download(
                repository,
                "README.md",
                repo_type="dataset",
                revision=revision,
                local_files_only=local_files_only,
            )
        except EntryNotFoundError as error:
            # FileNotFoundError: it is not in the cache, and there is no network to ask.
            if not local_files_only and isinstance(error, FileNotFoundError):
                raise
        return _download_patterns(Path(card) if card else None, config)

    def check(folder: Path) -> None:
        _check_download_complete(folder, _download_patterns(folder / "README.md", config))

    return download_snapshot(
        repository,
        revision,
        where,
        repo_type="dataset",
        patterns=patterns,
        check=check,
        alternative="keep a copy and name it under 'mirror'",
    )


def _check_download_complete(folder: Path, patterns: list[str]) -> None:
    """Raise ValueError unless every pattern matches and every shard of a split is there."""
    if not patterns:
        blobs = folder.parent.parent / "blobs"
        if not any(folder.iterdir()) or any(blobs.glob("*.incomplete")):
            raise ValueError(INCOMPLETE)
    files: set[str] = set()
    for pattern in patterns:
        matches = [str(path.relative_to(folder)) for path in folder.glob(pattern)]
        if not matches:
            raise ValueError(INCOMPLETE)
        files.update(matches)
    for file in files:
        shard = SHARD_PATTERN.search(file)
        if shard is None:
            continue
        for number in range(int(shard[1])):
            name = f"-{number:05d}-of-{shard[1]}"
            if f"{file[: shard.start()]}{name}{file[shard.end() :]}" not in files:
                raise ValueError(INCOMPLETE)


def _download_patterns(readme: Path | None, config: str | None) -> list[str]:
    """Return the card and the data files it names; nothing, for all files, if it names none."""
    files: list[str] = []
    for entry in card_data_files(readme, config):
        files.extend(_flatten_patterns(entry))
    return ["README.md", *files] if files else []


def card_data_files(readme: Path | None, config: str | None) -> list[Any]:
    """Return the `data_files` of a card, one entry for each matching configuration.

    Raises InputError if its head cannot be read, or names files outside its folder.
    """
    from huggingface_hub import DatasetCard

    if readme is None or not readme.is_file():
        return []
    try:
        head = DatasetCard.load(readme).data.to_dict()
        configs = [
            entry
            for entry in head.get("configs", [])
            if fnmatch(entry.get("config_name", "default"), config or "*")
        ]
    except (yaml.YAMLError, AttributeError, TypeError):
        # Not chained: the message of a YAMLError quotes the line.
        raise InputError(
            f"{readme}: its head, between the lines of ---, is not YAML, or its 'configs' are not "
            "a list of mappings; correct it"
        ) from None
    for entry in configs:
        patterns = [entry.get("data_dir"), *_flatten_patterns(entry.get("data_files"))]
        for pattern in filter(None, patterns):
            # A file outside may change, since nobody records its digest.
            leads_up = pattern.startswith("/") or ".." in PurePosixPath(pattern).parts
            if leads_up or "::" in pattern or "://" in pattern:
                raise InputError(
                    f"{readme}: '{shorten_value(pattern)}' names files outside the folder of the "
                    "data set; copy them into it, and name them without '/' at the beginning, '..' "
                    "or '://'"
                )
    if any("data_dir" in entry for entry in configs):
        return []
    return [entry.get("data_files") for entry in configs]


def _flatten_patterns(data_files: Any) -> list[str]:
    """Return the patterns in a card's `data_files`: one, several, or those of each split."""
    if isinstance(data_files, dict):
        data_files = data_files.get("path")
    if isinstance(data_files, str):
        return [data_files]
    patterns: list[str] = []
    for entry in data_files or []:
        patterns.extend(_flatten_patterns(entry))
    return patterns
