"""Reading text and tables through `datasets`: the user's files, or a split of a Hub repository at a pinned revision.

`datasets` keeps no copies of its own here: files are streamed, and a Hub repository is a folder in the Hub's own cache of files
(`HF_HOME`), which works offline once it is filled, or a folder in the Hub's layout that the user keeps.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from lineage.config.data import FILE_ITEM_COLUMNS, CorpusSource, Task, apply_mirror
from lineage.data.files import (
    COMPRESSIONS,
    DELIMITERS,
    JSON_LINES,
    DataFiles,
    check_columns,
    check_readable,
    data_suffix,
    find_data_files,
    match_data_files,
    open_decompressed,
    read_column_names,
)
from lineage.data.hub import card_data_files, download_dataset
from lineage.data.quoting import check_quotes
from lineage.data.tables import (
    ROWS_PER_BATCH,
    TextTableFormat,
    read_json_table,
    read_paragraphs,
    read_text_table,
)
from lineage.errors import InputError, shorten_value
from lineage.tasks.columns import TableColumns

SAMPLE_BY = {
    "file": "document",
    "line": "line",
}  # our word for a document of a .txt -> that of `datasets`
# Of messages of libraries, those that hold numbers, and names of configurations and splits, alone.
SAFE_ERROR_PATTERN = re.compile(
    r"BuilderConfig '[^']*' not found\. Available: \[[^\]]*\]|Unknown split \"[^\"]*\"\. Should be one of \[[^\]]*\]|"
    r"Bad split: \S+\. Available splits: \[[^\]]*\]|"
    r"Expected \d+ fields in line \d+, saw \d+|Parquet magic bytes not found in footer|Parquet file size is \d+ bytes|"
    "Compressed file ended before the end-of-stream marker was reached|Not a gzipped file|unexpected end of file|CRC check failed"
)
ALL_CONFIGS = "*"  # as `config`: every configuration of a Hub repository


@dataclass(frozen=True)
class HubSplit:
    """One split of a repository in the Hub's layout."""

    repository: str
    config: str | None
    split: str
    revision: str
    folder: Path | None  # where the user keeps it; None for the Hub's cache
    csv_quoting: bool = True  # as of `Files`

    def fingerprint(self) -> dict[str, object]:
        """What tells this data from any other: the pinned revision, or the digests of a folder's files."""
        facts: dict[str, object] = {
            "hub": self.repository,
            "config": self.config,
            "split": self.split,
            "revision": self.revision,
        }
        if self.folder is not None:
            facts["files"] = list_data_files(self.folder).fingerprint()
        return facts


@dataclass(frozen=True)
class DataTable:
    """Rows to be read, wherever they lie."""

    data: DataFiles | HubSplit
    where: str  # the place in params.yaml, for messages
    document_unit: Literal["file", "blank_line", "line"] = "file"
    text_format: TextTableFormat | None = None  # of files that do not name their columns
    missing_column_hint: str = (
        ""  # what may mend a column that is missing, where its files' suffix does not say it
    )

    @property
    def name(self) -> str:
        """What to call it in a message."""
        if isinstance(self.data, HubSplit):
            return f"{self.data.repository}, split {self.data.split}"
        return (
            self.data.names[0]
            if len(self.data.names) == 1
            else f"{self.data.names[0]} and {len(self.data.names) - 1} more files"
        )

    @property
    def is_plain_text(self) -> bool:
        """Whether it is running text in lines or files, whose only column is `text`."""
        return (
            isinstance(self.data, DataFiles)
            and self.data.format == "text"
            and self.text_format is None
        )

    @property
    def location(self) -> str:
        """Where its rows are, for messages that name one."""
        through = (
            ", counted from the first row of the first"
            if isinstance(self.data, DataFiles) and len(self.data.names) > 1
            else ""
        )
        sentences = (
            ", whose rows are sentences"
            if self.text_format and self.text_format.row_unit == "sentence"
            else ""
        )
        return f"{self.where}: {self.name}{sentences}{through}"

    def fingerprint(self) -> dict[str, object]:
        """What the sources stage records."""
        return (
            self.data.fingerprint()
            if isinstance(self.data, HubSplit)
            else {"files": self.data.fingerprint()}
        )

    def check(self, wanted: Sequence[str]) -> None:
        """Raise InputError for a file that is empty, damaged, not UTF-8, without one of the wanted columns or with a quotation mark left open."""
        if isinstance(self.data, DataFiles):
            if self.text_format is not None:
                self.text_format.check(self.data, self.where)
            check_readable(self.data, self.where)
            first: list[str] = []
            for path, name in zip(self.data.paths, self.data.names, strict=True):
                columns = (
                    read_column_names(path, name, self.where, quoting=self.data.csv_quoting_mode)
                    if self.text_format is None
                    else self.text_format.column_names
                )
                marks = self.data.csv_quoting and not (
                    self.text_format and self.text_format.row_unit != "line"
                )
                if (
                    self.data.format == "csv" and marks
                ):  # first: one may be left open in the names too
                    check_quotes(
                        path,
                        name,
                        self.where,
                        num_columns=len(columns),
                        delimiter=DELIMITERS[self.data.suffix],
                        has_header=self.text_format is None,
                    )
                check_columns(wanted, columns, name, self.where, self.missing_column_hint)
                check_columns(
                    first, columns, name, self.where, describe=shorten_value
                )  # names of the user's, which may be questions, or notes
                first = first or (
                    columns if self.data.format == "csv" else []
                )  # by which pandas reads them all

    def iter_batches(self, wanted: Sequence[str]) -> Iterator[TableColumns]:
        """The wanted columns, some rows at a time. Raises InputError."""
        if self.text_format is not None:
            assert isinstance(self.data, DataFiles)
            yield from read_text_table(self.data, self.text_format, wanted, self.where)
            return
        if isinstance(self.data, DataFiles) and self.data.suffix in JSON_LINES:
            yield from read_json_table(self.data, wanted, self.where)
            return
        if self.is_plain_text and self.document_unit == "blank_line":
            assert isinstance(self.data, DataFiles)
            yield from read_paragraphs(self.data)
            return
        from datasets.exceptions import DatasetsError  # half a second: only who reads pays for it

        try:
            with tempfile.TemporaryDirectory(prefix="lineage-") as scratch:
                for stream in _open_streams(self, wanted, scratch):
                    for batch in stream.with_format("arrow").iter(batch_size=ROWS_PER_BATCH):
                        check_columns(
                            wanted,
                            batch.column_names,
                            self.name,
                            self.where,
                            self.missing_column_hint,
                        )
                        yield {
                            name: _class_label_names(
                                batch[name].to_pylist(), (stream.features or {}).get(name)
                            )
                            for name in wanted
                        }
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
            told = SAFE_ERROR_PATTERN.search(
                str(error.__cause__ or error)
            )  # others quote the cell that they could not read
            reason = told[0] if told else type(error.__cause__ or error).__name__
            raise InputError(
                f"{self.where}: {self.name} cannot be read: {reason}; correct the data or the keys that describe it"
            ) from error

    def read_columns(self, wanted: Sequence[str]) -> TableColumns:
        """The wanted columns whole. Raises InputError, also where there are no rows."""
        whole: TableColumns = {name: [] for name in wanted}
        for batch in self.iter_batches(wanted):
            for name in wanted:
                whole[name] += batch[name]
        if not next(iter(whole.values())):
            raise InputError(f"{self.where}: {self.name} holds no rows; fill it, or take it out")
        return whole


def resolve_origin(
    record: CorpusSource | Task, root: Path, where: str
) -> tuple[CorpusSource | Task, str]:
    """The record with which to read, and how it reads: generated, files, hub, or mirror where the copy's files are all there."""
    if record.mirror is not None:
        given = record.mirror["files"]
        patterns = list(given.values()) if isinstance(given, dict) else [given]
        if all(isinstance(p, str) and match_data_files(p, root) for p in patterns):
            return apply_mirror(record, where), "mirror"
    return record, next(name for name in ("generated", "files", "hub") if getattr(record, name))


def open_source_table(source: CorpusSource, root: Path, where: str) -> DataTable:
    """The table of a source of running text, after `resolve`."""
    if source.files:
        files = replace(
            find_data_files(source.files, root, f"{where}.files"), csv_quoting=source.csv_quoting
        )
        return DataTable(
            files,
            f"{where}.files",
            source.document_unit,
            missing_column_hint="; say text: COLUMN, and give a csv or tsv a first line of names",
        )
    assert source.split is not None
    return DataTable(_hub_split(source, source.split, root), f"{where}.hub")


def open_task_tables(task: Task, root: Path, where: str) -> dict[str, DataTable]:
    """The table of each split that a task names, after `resolve`."""
    if task.files:
        return {
            split: _open_files_table(task, split, pattern, root, f"{where}.files.{split}")
            for split, pattern in task.files.items()
        }
    assert task.splits is not None
    return {
        split: DataTable(_hub_split(task, theirs, root), f"{where}.splits.{split}")
        for split, theirs in task.splits.items()
    }


def _open_files_table(task: Task, split: str, pattern: str, root: Path, where: str) -> DataTable:
    whole = task.document_unit == "file"
    files = find_data_files(
        pattern,
        root,
        where,
        unknown_as_txt=whole or task.columns is not None,
        one_item_per_file=whole,
    )
    files = replace(files, csv_quoting=task.csv_quoting)
    if (
        files.suffix == ".txt" and whole and (split != "unlabelled" or len(files.paths) > 1)
    ):  # one file of texts has one a line
        return DataTable(files, where, text_format=TextTableFormat(FILE_ITEM_COLUMNS, "file"))
    named = (
        files.format not in ("text", "csv")
    )  # texts without labels may lie in a file that names its columns, beside items in one that does not
    if task.columns is None or (split == "unlabelled" and named):
        return DataTable(files, where, "line")
    row: Literal["line", "spaced", "sentence"] = (
        "line"
        if task.tokens is None or files.suffix == ".csv"
        else "spaced"
        if task.document_unit == "line"
        else "sentence"
    )
    return DataTable(files, where, text_format=TextTableFormat(task.columns, row))


def list_data_files(folder: Path) -> DataFiles:
    """All data files of a folder in the Hub's layout."""
    paths = match_data_files(str(folder), folder)
    return DataFiles(tuple(paths), tuple(p.relative_to(folder).as_posix() for p in paths), "", "")


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


def _class_label_names(values: list[Any], feature: Any) -> list[Any]:
    """Lists of class labels, which the Hub keeps as numbers, by their names: no span can be told from numbers. A single label stays a number."""
    names = getattr(getattr(feature, "feature", None), "names", None)
    if names is None:
        return values
    return [
        None
        if some is None
        else [names[i] if i is not None and 0 <= i < len(names) else i for i in some]
        for some in values
    ]


def _open_streams(table: DataTable, wanted: Sequence[str], scratch: str) -> Iterator[Any]:
    """The streaming data sets that make up a table."""
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    datasets.config.TORCH_AVAILABLE = False  # it would import torch, a second, to share a stream between loaders that we do not have
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = (
        False  # reading a local file asks nothing of the network
    )
    if isinstance(table.data, DataFiles):
        files, options = (
            _link_files(table.data, Path(scratch) / "data"),
            _loader_options(table, wanted),
        )
        yield datasets.load_dataset(
            table.data.format,
            data_files=files,
            split="train",
            streaming=True,
            cache_dir=scratch,
            **options,
        )
        return
    folder = table.data.folder or download_dataset(
        table.data.repository, table.data.config, table.data.revision, table.where
    )
    card_data_files(folder / "README.md", None)  # before `datasets`, whose error would quote it
    configs = (
        sorted(datasets.get_dataset_config_names(str(folder)))
        if table.data.config == ALL_CONFIGS
        else [table.data.config]
    )
    for config in configs:
        named = card_data_files(folder / "README.md", config) if config else []
        entry = (
            named[0] if len(named) == 1 else None
        )  # else it would look for those of the first configuration, which may not have been fetched
        builder = datasets.load_dataset_builder(
            str(folder), config, data_files=entry, cache_dir=scratch
        )
        if csv := _plain_csv_files(
            builder, table.data, folder
        ):  # pandas would take numbers and NA for other things, and glue rows together
            own = replace(table, data=csv)
            own.check(wanted)
            yield from _open_streams(own, wanted, tempfile.mkdtemp(dir=scratch))
        else:
            yield builder.as_streaming_dataset(split=table.data.split)


def _plain_csv_files(builder: Any, hub: HubSplit, folder: Path) -> DataFiles | None:
    """The files of a split, where they are csv or tsv, and the card says nothing else of how they are written."""
    from datasets.packaged_modules.csv.csv import Csv, CsvConfig

    paths = [Path(path) for path in (builder.config.data_files or {}).get(hub.split, [])]
    suffixes = {data_suffix(path) for path in paths}
    if (
        not isinstance(builder, Csv)
        or len(suffixes) != 1
        or not suffixes <= DELIMITERS.keys()
        or not all(path.is_file() for path in paths)
    ):
        return None
    (suffix,) = suffixes
    if builder.config.pd_read_csv_kwargs != CsvConfig(sep=DELIMITERS[suffix]).pd_read_csv_kwargs:
        return None
    names = tuple(
        path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
        for path in paths
    )
    return DataFiles(tuple(paths), names, "csv", suffix, hub.csv_quoting)


def _loader_options(table: DataTable, wanted: Sequence[str]) -> dict[str, Any]:
    """What a format's reader has to be told: the columns to read, since the others may be anything; that nothing in a csv is a number or missing;
    and what a document of a txt is."""
    import datasets

    assert isinstance(table.data, DataFiles)
    if table.data.format == "text":
        return {"sample_by": SAMPLE_BY[table.document_unit]}
    names = read_column_names(
        table.data.paths[0], table.data.names[0], table.where, quoting=table.data.csv_quoting_mode
    )
    check_columns(wanted, names, table.data.names[0], table.where, table.missing_column_hint)
    if table.data.format == "parquet":
        return {"columns": list(wanted)}
    # pandas, which reads it, names what has no name so, as the index that it writes itself; to read fewer columns would hide rows with too many cells
    features = datasets.Features(
        {name or f"Unnamed: {place}": datasets.Value("string") for place, name in enumerate(names)}
    )
    return {
        "features": features,
        "keep_default_na": False,
        "sep": DELIMITERS[table.data.suffix],
        "quoting": table.data.csv_quoting_mode,
    }


def _link_files(files: DataFiles, folder: Path) -> str:
    """One glob for all files, under plain names: `datasets` takes every name for a pattern, and would look each up for itself.

    Compressed parquet is unpacked, since it is read from its end.
    """
    folder.mkdir()
    for number, path in enumerate(files.paths):
        compression = path.suffix if path.suffix in COMPRESSIONS else ""
        if compression and files.format == "parquet":
            with (
                open_decompressed(path) as stream,
                (folder / f"{number:08d}.parquet").open("wb") as target,
            ):
                shutil.copyfileobj(stream, target)
        else:
            (folder / f"{number:08d}{files.suffix}{compression}").symlink_to(path.absolute())
    return str(folder / "*")
