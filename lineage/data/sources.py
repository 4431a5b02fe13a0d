"""Read text and tables: the user's files, or a split of a Hub repository at a pinned revision.

`datasets` says which files of a Hub repository are a split, and reads them, but for plain csv.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import pyarrow as pa

from lineage.config.data import FILE_ITEM_COLUMNS, CorpusSource, Task, apply_mirror
from lineage.data.files import (
    DELIMITERS,
    DataFiles,
    check_columns,
    check_readable,
    data_suffix,
    find_data_files,
    find_delimiter,
    match_data_files,
    open_parquet,
    read_column_names,
    unreadable_error,
)
from lineage.data.hub import card_data_files, download_dataset
from lineage.data.quoting import check_quotes
from lineage.data.tables import (
    ROWS_PER_BATCH,
    TextTableFormat,
    batch_rows,
    read_csv_table,
    read_json_table,
    read_text_table,
    read_texts,
)
from lineage.errors import InputError, describe_shortage
from lineage.tasks.columns import TableColumns

# `datasets` reads these when it is imported. It would import torch, which takes a second, to share
# a stream between loaders; and reading a local file asks nothing of the network.
os.environ.setdefault("USE_TORCH", "0")
os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")

# Messages of libraries may quote a cell. Only these parts are shown: numbers, and names of
# configurations and splits.
SAFE_ERROR_PATTERN = re.compile(
    r"BuilderConfig '[^']*' not found\. Available: \[[^\]]*\]|"
    r"Unknown split \"[^\"]*\"\. Should be one of \[[^\]]*\]|"
    r"Bad split: \S+\. Available splits: \[[^\]]*\]|"
    r"Expected \d+ fields in line \d+, saw \d+|"
    r"Parquet magic bytes not found in footer|Parquet file size is \d+ bytes|"
    "Compressed file ended before the end-of-stream marker was reached|"
    "Not a gzipped file|unexpected end of file|CRC check failed"
)
# Those of `datasets` for tables and text, all of which read plain data. Others load archives or
# pickles, or ask a server.
HUB_FORMATS = ("csv", "json", "parquet", "text", "arrow")
ARCHIVE_SUFFIXES = {".zip", ".tar", ".tgz", ".7z", ".rar"}
NO_DATA_ERRORS = ("EmptyDatasetError", "DataFilesNotFoundError")  # of `datasets`
ALL_CONFIGS = "*"  # as `config`: every configuration of a Hub repository
CORPUS_COLUMN_HINT = "; say text: COLUMN, and give a csv or tsv a first line of names"
Source = TypeVar("Source", CorpusSource, Task)


@dataclass(frozen=True)
class HubSplit:
    """One split of a repository in the Hub's layout."""

    repository: str
    config: str | None
    split: str
    revision: str
    folder: Path | None  # where the user keeps it; None: the Hub's cache
    csv_quoting: bool = True  # see DataFiles

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.repository}, split {self.split}"

    def fingerprint(self) -> dict[str, object]:
        """Return the pinned revision, and the digests of the files of a folder."""
        content: dict[str, object] = {
            "hub": self.repository,
            "config": self.config,
            "split": self.split,
            "revision": self.revision,
        }
        if self.folder is not None:
            # All files: the card too decides which are read.
            paths = match_data_files("**/*", self.folder)
            names = tuple(path.relative_to(self.folder).as_posix() for path in paths)
            content["files"] = DataFiles(tuple(paths), names, "", "").fingerprint()
        return content


@dataclass(frozen=True)
class DataTable:
    """Rows to be read from files or the Hub."""

    data: DataFiles | HubSplit
    where: str  # the place in params.yaml, for messages
    document_unit: Literal["file", "blank_line", "line"] = "file"
    text_format: TextTableFormat | None = None  # of files that do not name their columns
    missing_column_hint: str = ""  # how to fix a missing column; by default the suffix decides
    # True for a study. Cells that a row of a csv lacks at its end are blank, lines of spaces are
    # skipped, and class labels that `datasets` has written as numbers get their names.
    is_lenient: bool = True

    @property
    def name(self) -> str:
        """The name for messages."""
        if isinstance(self.data, HubSplit):
            return self.data.name
        names = self.data.names
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more files"

    @property
    def is_plain_text(self) -> bool:
        """True for running text in lines or files, whose only column is `text`."""
        is_text = isinstance(self.data, DataFiles) and self.data.format == "text"
        return is_text and self.text_format is None

    @property
    def location(self) -> str:
        """The place of the rows, for messages that name a row."""
        parts = [f"{self.where}: {self.name}"]
        if self.text_format is not None and self.text_format.is_sentence:
            parts.append("whose rows are sentences")
        if isinstance(self.data, DataFiles) and len(self.data.names) > 1:
            parts.append("counted from the first row of the first")
        return ", ".join(parts)

    def fingerprint(self) -> dict[str, object]:
        """Return what identifies the data, for the record of the sources stage."""
        if isinstance(self.data, HubSplit):
            return self.data.fingerprint()
        return {"files": self.data.fingerprint()}

    def check(self, wanted: Sequence[str]) -> None:
        """Check files before they are read; a Hub split is checked while it is read.

        Raises InputError for a file that is empty, damaged, not UTF-8, lacks a wanted column or
        leaves a quote open.
        """
        if isinstance(self.data, HubSplit):
            return
        if self.text_format is not None:
            self.text_format.check(self.data, self.where)
        check_readable(self.data, self.where)
        files = self.data
        text_format = self.text_format
        for path, name in zip(files.paths, files.names, strict=True):
            if text_format is None:
                columns = read_column_names(path, name, self.where, quoting=files.csv_quoting_mode)
            else:
                columns = text_format.column_names
            # Before the columns: a quote may be left open in the header too.
            is_csv = files.format == "csv" if text_format is None else text_format.is_csv(files)
            if is_csv and files.csv_quoting:
                check_quotes(
                    path,
                    name,
                    self.where,
                    num_columns=len(columns),
                    delimiter=DELIMITERS[files.suffix] if text_format else find_delimiter(path),
                    has_header=text_format is None,
                )
            check_columns(wanted, columns, name, self.where, self.missing_column_hint)

    def iter_batches(
        self, wanted: Sequence[str], rows_per_batch: int = ROWS_PER_BATCH
    ) -> Iterator[TableColumns]:
        """Yield the wanted columns, so many rows at a time. Raises InputError."""
        if isinstance(self.data, HubSplit):
            return self._iter_hub_batches(self.data, wanted)
        if self.data.format == "parquet":
            return self._iter_parquet_batches(self.data, wanted, rows_per_batch)
        return batch_rows(self._iter_rows(self.data, wanted), wanted, rows_per_batch)

    def _iter_rows(self, files: DataFiles, wanted: Sequence[str]) -> Iterator[Sequence[Any]]:
        if self.text_format is not None:
            return read_text_table(files, self.text_format, wanted, self.where)
        if files.format == "json":
            return read_json_table(files, wanted, self.where)
        if files.format == "csv":
            return read_csv_table(files, wanted, self.where, is_lenient=self.is_lenient)
        return read_texts(files, self.document_unit)

    def _iter_parquet_batches(
        self, files: DataFiles, wanted: Sequence[str], rows_per_batch: int
    ) -> Iterator[TableColumns]:
        for path, name in zip(files.paths, files.names, strict=True):
            try:
                file = open_parquet(path)
                check_columns(wanted, file.schema_arrow.names, name, self.where)
                features: Mapping[str, Any] = {}
                if self.is_lenient and b"huggingface" in (file.schema_arrow.metadata or {}):
                    from datasets import Features  # half a second: only files that it wrote pay

                    features = Features.from_arrow_schema(file.schema_arrow)
                for batch in file.iter_batches(rows_per_batch, columns=list(wanted)):
                    yield _named_columns(batch, wanted, features)
            except (OSError, pa.ArrowException) as error:
                if describe_shortage(error) is not None:  # of memory or files
                    raise
                raise unreadable_error(name, self.where, error) from error

    def _iter_hub_batches(self, hub: HubSplit, wanted: Sequence[str]) -> Iterator[TableColumns]:
        """Yield the wanted columns as `datasets` reads them."""
        from datasets.exceptions import DatasetsError  # half a second: only the Hub pays for it

        try:
            with tempfile.TemporaryDirectory(prefix="lineage-") as scratch:
                for part in _open_hub(hub, self, scratch):
                    if isinstance(part, DataFiles):
                        table = replace(self, data=part)
                        table.check(wanted)
                        yield from table.iter_batches(wanted)
                        continue
                    for batch in part.with_format("arrow").iter(batch_size=ROWS_PER_BATCH):
                        check_columns(wanted, batch.column_names, self.name, self.where)
                        yield _named_columns(batch, wanted, part.features or {})
        except InputError:
            raise
        except (
            ValueError,
            KeyError,
            TypeError,
            OSError,
            DatasetsError,
            pa.ArrowException,
        ) as error:
            cause = error.__cause__ or error
            safe_message = SAFE_ERROR_PATTERN.search(str(cause))
            reason = safe_message[0] if safe_message else type(cause).__name__
            if type(error).__name__ in NO_DATA_ERRORS:
                reason = "`datasets` finds no data files there, and scripts are not run"
            raise InputError(
                f"{self.where}: {self.name} cannot be read: {reason}; correct the data or the "
                "keys that describe it"
            ) from error

    def read_columns(self, wanted: Sequence[str]) -> TableColumns:
        """Return the whole wanted columns. Raises InputError, also if there are no rows."""
        columns: TableColumns = {name: [] for name in wanted}
        for batch in self.iter_batches(wanted):
            for name in wanted:
                columns[name] += batch[name]
        if not columns[wanted[0]]:
            raise InputError(f"{self.where}: {self.name} holds no rows; fill it, or remove it")
        return columns


def resolve_origin(record: Source, root: Path, where: str) -> tuple[Source, str]:
    """Return the record to read by, and its origin: generated, files, hub or mirror."""
    if record.mirror is not None:
        given = record.mirror["files"]
        patterns = list(given.values()) if isinstance(given, dict) else [given]
        if all(isinstance(p, str) and match_data_files(p, root) for p in patterns):
            return cast(Source, apply_mirror(record, where)), "mirror"
    return record, next(name for name in ("generated", "files", "hub") if getattr(record, name))


def open_source_table(source: CorpusSource, root: Path, where: str) -> DataTable:
    """Return the table of a source of running text, after `resolve_origin`."""
    if source.files:
        files = find_data_files(source.files, root, f"{where}.files")
        return DataTable(
            replace(files, csv_quoting=source.csv_quoting),
            f"{where}.files",
            source.document_unit,
            missing_column_hint=CORPUS_COLUMN_HINT,
        )
    assert source.split is not None
    return DataTable(_hub_split(source, source.split, root), f"{where}.hub")


def open_task_tables(task: Task, root: Path, where: str) -> dict[str, DataTable]:
    """Return the table of each split that a task names, after `resolve_origin`."""
    if task.files:
        return {
            split: _open_files_table(task, split, pattern, root, f"{where}.files.{split}")
            for split, pattern in task.files.items()
        }
    assert task.splits is not None
    return {
        split: DataTable(_hub_split(task, hub_split, root), f"{where}.splits.{split}")
        for split, hub_split in task.splits.items()
    }


def _open_files_table(task: Task, split: str, pattern: str, root: Path, where: str) -> DataTable:
    is_file_unit = task.document_unit == "file"
    files = find_data_files(
        pattern,
        root,
        where,
        unknown_as_txt=is_file_unit or task.columns is not None,
        one_item_per_file=is_file_unit,
    )
    files = replace(files, csv_quoting=task.csv_quoting)
    is_unlabelled = split == "unlabelled"
    if files.suffix == ".txt" and is_file_unit and not (is_unlabelled and len(files.paths) == 1):
        return DataTable(files, where, text_format=TextTableFormat(FILE_ITEM_COLUMNS, "file"))
    # Unlabelled texts may lie in a file that names its columns, and items in one that does not.
    names_columns = files.format not in ("text", "csv")
    if task.columns is None or (is_unlabelled and names_columns):
        return DataTable(files, where, "line")
    row_unit: Literal["line", "spaced", "sentence"] = "line"
    if task.tokens is not None and files.suffix != ".csv":
        row_unit = "spaced" if task.document_unit == "line" else "sentence"
    return DataTable(files, where, text_format=TextTableFormat(task.columns, row_unit))


def _hub_split(record: CorpusSource | Task, split: str, root: Path) -> HubSplit:
    assert record.hub and record.revision
    folder = root / Path(record.hub).expanduser()
    return HubSplit(
        record.hub,
        record.config,
        split,
        record.revision,
        folder if folder.is_dir() else None,
        record.csv_quoting,
    )


def _named_columns(batch: Any, wanted: Sequence[str], features: Mapping[str, Any]) -> TableColumns:
    """Return columns of an arrow table, with names for numbers in lists of class labels."""
    columns: TableColumns = {}
    for name in wanted:
        columns[name] = batch[name].to_pylist()
        names = getattr(getattr(features.get(name), "feature", None), "names", None)
        if names is not None:  # one that is out of range stays
            names_by_label = dict(enumerate(names))
            columns[name] = [
                labels and [names_by_label.get(label, label) for label in labels]
                for labels in columns[name]
            ]
    return columns


def _open_hub(hub: HubSplit, table: DataTable, scratch: str) -> Iterator[Any]:
    """Yield what makes up a split: files of usual csv, or a streaming data set."""
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    folder = hub.folder or download_dataset(hub.repository, hub.config, hub.revision, table.where)
    _check_hub_folder(folder, table.where)  # before `datasets`, whose errors would quote it
    configs: list[str | None] = [hub.config]
    if hub.config == ALL_CONFIGS:
        configs = sorted(datasets.get_dataset_config_names(str(folder)))
    for config in configs:
        # Otherwise `datasets` looks for the files of the first configuration, which may not be there.
        entries = card_data_files(folder / "README.md", config) if config else []
        data_files = entries[0] if len(entries) == 1 else None
        builder = datasets.load_dataset_builder(
            str(folder), config, data_files=data_files, cache_dir=scratch
        )
        _check_hub_files(builder, folder, table)
        # By itself `datasets` would read numbers and NA as such, and glue rows together.
        yield _plain_csv_files(builder, hub, folder) or builder.as_streaming_dataset(hub.split)


def _check_hub_folder(folder: Path, where: str) -> None:
    """Raise InputError if the card cannot be read, or names files or scripts that are not read."""
    card_data_files(folder / "README.md", None)
    if (folder / ".huggingface.yaml").is_file():
        raise InputError(
            f"{where}: {folder / '.huggingface.yaml'} is not read; move its lines to the head of "
            "README.md"
        )
    script = folder / f"{folder.name}.py"
    if script.is_file():
        raise InputError(
            f"{where}: {script} is a script, which is not run; make files of the formats "
            f"{', '.join(HUB_FORMATS)} with it, and remove it"
        )


def _check_hub_files(builder: Any, folder: Path, table: DataTable) -> None:
    """Raise InputError unless `datasets` reads files of the folder, in formats of plain data."""
    format_name = builder.__module__.rpartition(".")[2]
    if format_name not in HUB_FORMATS:
        raise InputError(
            f"{table.where}: {table.name} holds files of the format {format_name}; "
            f"convert them to one of {', '.join(HUB_FORMATS)}"
        )
    for paths in (builder.config.data_files or {}).values():
        for path in paths:
            if ARCHIVE_SUFFIXES & set(Path(path).suffixes):
                raise InputError(
                    f"{table.where}: {Path(path).name} is an archive, which is not read; unpack it"
                )
            # `datasets` resolves the folder but not its files, which are links in the Hub's cache.
            if not Path(os.path.normpath(path)).is_relative_to(folder.resolve()):
                raise InputError(
                    f"{table.where}: {table.name} names files outside its folder; copy them into it"
                )


def _plain_csv_files(builder: Any, hub: HubSplit, folder: Path) -> DataFiles | None:
    """Return the files of a split if they are csv or tsv, written as usual."""
    from datasets.packaged_modules.csv.csv import Csv, CsvConfig

    if not isinstance(builder, Csv):
        return None
    paths = [Path(path) for path in (builder.config.data_files or {}).get(hub.split, [])]
    suffixes = {data_suffix(path) for path in paths}
    if len(suffixes) != 1 or not all(path.is_file() for path in paths):
        return None
    (suffix,) = suffixes
    if suffix not in DELIMITERS:
        return None
    usual_options = CsvConfig(sep=DELIMITERS[suffix]).pd_read_csv_kwargs
    if builder.config.pd_read_csv_kwargs != usual_options:  # the card says how they are written
        return None
    names = tuple(
        path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
        for path in paths
    )
    return DataFiles(tuple(paths), names, "csv", suffix, hub.csv_quoting)
