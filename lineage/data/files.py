"""Find the user's files by path or glob, identify them by digests, check that they can be read."""

import codecs
import csv
import gzip
import io
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.artifacts import file_digest, read_json, write_json
from lineage.config.records import suggest_nearest
from lineage.data.encodings import suggest_encoding_fix
from lineage.errors import InputError, shorten_value
from lineage.runtime.settings import STATE_DIR

# Suffix -> format, named as in `datasets`; json has its own reader.
FORMATS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
}
DELIMITERS = {".csv": ",", ".tsv": "\t"}  # without a header; else see `find_delimiter`
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
KNOWN_FORMATS = f"{', '.join(FORMATS)}, each also with .gz or .zst after it"
JSON_FORMAT_HINT = "a .json or .jsonl file has one object per line, or one list of objects"
TXT_COLUMN_HINT = (
    "; a txt has no header: list its columns, such as columns: [label, text], also for one word "
    "per line with its tags; if each file is one item, set document_unit: file, text: [text] and, "
    "if folders are labels, label: folder"
)
# Column names look like identifiers. The first row of a file without a header may hold private
# text, so a message lists the cells of a first line only if all of them look like this.
COLUMN_NAME_PATTERN = re.compile(r"(?!.*\d{3})[A-Za-z_][\w.-]*", re.ASCII)
MAX_LISTED_COLUMNS, SHORT_LIST_COLUMNS = 12, 3
COLUMN_SAMPLE_ROWS = 100  # rows of a jsonl whose keys are its columns
DIGESTS_FILE = STATE_DIR / "digests.json"
GLOB_CHARACTERS = set("*?[")
BLOCK_BYTES = 1 << 20
# A file that unpacks to more than both is refused, since it may fill the memory. Text unpacks to
# 3 to 20 times its size.
MAX_UNPACKED_RATIO, MAX_UNPACKED_BYTES = 200, 1 << 28
VALUE_BYTES = 8  # of a number in memory, or of the place of a text
csv.field_size_limit(2**31 - 1)  # by default 131,072 characters; pandas has no such limit


@dataclass(frozen=True)
class DataFiles:
    """Files of one format that are read as one table, in the order of their names."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]  # relative to the root: recorded and shown
    format: str  # parquet | json | csv | text
    suffix: str  # without the compression
    csv_quoting: bool = True  # quotation marks around a cell of a csv are not part of its text

    @property
    def csv_quoting_mode(self) -> Literal[0, 3]:
        """The constant of the module csv: QUOTE_MINIMAL or QUOTE_NONE."""
        return csv.QUOTE_MINIMAL if self.csv_quoting else csv.QUOTE_NONE

    def fingerprint(self) -> list[dict[str, object]]:
        """Return name, size and sha256 of each file."""
        digests = file_digests(self.paths)
        return [
            {"name": name, "bytes": path.stat().st_size, "sha256": digest}
            for name, path, digest in zip(self.names, self.paths, digests, strict=True)
        ]


def find_data_files(
    pattern: str,
    root: Path,
    where: str,
    *,
    unknown_as_txt: bool = False,
    one_item_per_file: bool = False,
) -> DataFiles:
    """Find the files of a path, a glob or a folder under `root`.

    With `unknown_as_txt` a file of unknown suffix is read as .txt. Raises InputError; with
    `one_item_per_file` also where files are skipped, since each would be an item.
    """
    paths = match_data_files(pattern, root)
    if one_item_per_file:
        _check_none_skipped(pattern, root, where, matched=set(paths))
    if not paths:
        if join_pattern(root, pattern).is_dir():
            hint = (
                "in a folder, .json and unknown suffixes are skipped: name them with a pattern, "
                "such as 'data/*.json'"
            )
        else:
            hint = "correct the path, or set data_root in runtime.yaml"
        raise InputError(f"{where}: no file matches {pattern!r} in {root}; {hint}")
    suffix = _common_suffix(paths, pattern, where, unknown_as_txt=unknown_as_txt)
    names = tuple(_relative_name(path, pattern, root, where) for path in paths)
    return DataFiles(tuple(paths), names, FORMATS[suffix], suffix)


def _common_suffix(paths: Sequence[Path], pattern: str, where: str, *, unknown_as_txt: bool) -> str:
    """Return the suffix of all files. Raises InputError if they differ or it is unknown."""
    suffixes = {data_suffix(path) for path in paths}
    if unknown_as_txt:
        suffixes = {suffix if suffix in FORMATS else ".txt" for suffix in suffixes}
    if len(suffixes) == 1 and suffixes <= set(FORMATS):
        return suffixes.pop()
    if len(suffixes) > 1:
        problem = f"files of {len(suffixes)} formats"
    else:
        problem = f"format {suffixes.pop() or 'none'!r}"
    raise InputError(
        f"{where}: {pattern!r} names {problem}; give files of one format: {KNOWN_FORMATS}; "
        "and lists, such as one sentence per row with its tokens and tags, as jsonl or parquet; a "
        "task reads other lines of text by its key 'columns'"
    )


def match_data_files(pattern: str, root: Path) -> list[Path]:
    """Return the files of a path, a glob or a folder, sorted by name, without hidden ones.

    In a folder only files of known formats count, without .json.
    """
    base, candidates = _match_candidates(pattern, root)
    if base.is_file():
        return candidates
    if base == join_pattern(root, pattern):
        known = FORMATS.keys() - {".json"}
        candidates = [path for path in candidates if data_suffix(path) in known]
    return sorted(
        path
        for path in candidates
        if path.is_file() and not any(part[0] == "." for part in path.relative_to(base).parts)
    )


def join_pattern(root: Path, pattern: str) -> Path:
    """Return a pattern as a path below the root, or outside it if it begins with `..`."""
    parts = Path(pattern).expanduser().parts
    while parts[:1] == ("..",):
        root = root.absolute().parent
        parts = parts[1:]
    return root.joinpath(*parts)


def _match_candidates(pattern: str, root: Path) -> tuple[Path, list[Path]]:
    """Return the folder where a path, a glob or a folder begins, and everything it matches."""
    path = Path(pattern).expanduser()
    base = join_pattern(root, pattern)
    if base.is_dir():
        return base, list(base.rglob("*"))
    if base.is_file():
        return base, [base]
    fixed_parts = _parts_before_glob(path.parts[:-1])  # these may be hidden, or lead upwards
    base = join_pattern(root, str(Path(*fixed_parts)))
    if not pattern:
        return base, []
    try:
        return base, list(base.glob(str(Path(*path.parts[len(fixed_parts) :]))))
    except ValueError:  # such as ** within a name
        return base, []


def _parts_before_glob(parts: Sequence[str]) -> list[str]:
    return list(itertools.takewhile(lambda part: not set(part) & GLOB_CHARACTERS, parts))


def _check_none_skipped(pattern: str, root: Path, where: str, *, matched: set[Path]) -> None:
    """Raise InputError if files in hidden folders or behind links are not matched."""
    base, candidates = _match_candidates(pattern, root)
    if base.is_dir() and base == join_pattern(root, pattern):
        candidates = [
            Path(folder, name)
            for folder, _, names in os.walk(base, followlinks=True)
            for name in names
        ]
    skipped = sorted(
        path
        for path in candidates
        if path not in matched and path.is_file() and not path.name.startswith(".")
    )
    if skipped:
        first = _relative_name(skipped[0], pattern, root, where)
        raise InputError(
            f"{where}: {pattern!r} skips {len(skipped)} files, such as {first}; rename "
            "hidden folders; if folders are links, or names do not end in .txt, give a pattern, "
            "such as 'train/*/*'"
        )


def _relative_name(path: Path, pattern: str, root: Path, where: str) -> str:
    """Return the name of a file relative to the root, without private folders above it.

    Raises InputError if the name is not UTF-8.
    """
    if path.is_relative_to(root):
        home = root
    elif fixed_parts := _parts_before_glob(Path(pattern).parent.parts):
        home = join_pattern(root, str(Path(*fixed_parts)))
    else:
        home = path.parent
    name = path.relative_to(home).as_posix() if path.is_relative_to(home) else path.name
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = shorten_value(name.encode("ascii", "backslashreplace").decode())
        raise InputError(
            f"{where}: the name of a file or folder is not UTF-8: {shown}; "
            "rename it, for example with convmv -f GBK -t UTF-8"
        ) from None
    return name


def data_suffix(path: Path) -> str:
    """Return the suffix of a file name, without that of its compression."""
    return Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def file_digests(paths: Sequence[Path]) -> list[str]:
    """Return the sha256 of each file, computed once per size, modification time and inode."""
    known = read_json(DIGESTS_FILE) if DIGESTS_FILE.is_file() else {}
    entries: dict[str, list[object]] = {}
    for path in paths:
        stat = path.stat()
        key = str(path.absolute())
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        if key in known and known[key][0] == stamp:
            entries[key] = known[key]
        else:
            entries[key] = [stamp, file_digest(path)]
    if any(known.get(key) != entry for key, entry in entries.items()):
        write_json(DIGESTS_FILE, known | entries)
    return [str(digest) for _, digest in entries.values()]


def open_decompressed(path: Path) -> IO[bytes]:
    """Open a file for reading its decompressed bytes."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix))


def check_readable(files: DataFiles, where: str) -> None:
    """Read all files but parquet, and check that none is empty, cut short or not UTF-8."""
    errors = []
    for path, name in zip(files.paths, files.names, strict=True):
        try:
            if _is_empty_file(path, name, where):
                raise InputError(f"{where}: {name} is empty; fill it, or remove it from the source")
        except InputError as error:
            errors.append(error)
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            errors.append(unreadable_error(name, where, error))
    if errors:
        num_others = len(errors) - 1
        more = f"; {num_others} more files cannot be read" if num_others else ""
        raise InputError(f"{errors[0]}{more}") from errors[0]


def _is_empty_file(path: Path, name: str, where: str) -> bool:
    """Return whether a file has no rows or text. Raises InputError if text is not UTF-8."""
    with open_decompressed(path) as stream:
        blocks = _read_blocks(stream, path, name, where)
        if data_suffix(path) != ".parquet":
            return not _has_text(blocks, name, where)
        if path.suffix != ".parquet" and sum(map(len, blocks)) == 0:
            return True
    if path.stat().st_size == 0:
        return True
    metadata = open_parquet(path).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    _check_unpacked_size(sum(group.total_byte_size for group in groups), path, name, where)
    for num_bytes in itertools.accumulate(_iter_parquet_sizes(path)):
        _check_unpacked_size(num_bytes, path, name, where)
    return metadata.num_rows == 0


def open_parquet(path: Path, *, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a parquet file; a compressed one is unpacked in memory."""
    source: Path | pa.BufferReader = path
    if path.suffix in COMPRESSIONS:
        with open_decompressed(path) as stream:
            source = pa.BufferReader(stream.read())
    return pq.ParquetFile(source, read_dictionary=list(read_dictionary))


def _iter_parquet_sizes(path: Path) -> Iterator[int]:
    """Yield how many bytes the columns of a parquet file have in memory, without filling it."""
    metadata = open_parquet(path).metadata
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    for number in range(metadata.num_row_groups):
        for place, column in enumerate(columns):
            num_values = metadata.row_group(number).column(place).num_values
            yield num_values * max(VALUE_BYTES, column.length)
    names = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    file = open_parquet(path, read_dictionary=names)
    for number in range(metadata.num_row_groups):
        for name in names:
            (column,) = file.read_row_group(number, columns=[name]).columns
            yield sum(map(_count_text_bytes, column.chunks))


def _count_text_bytes(array: pa.Array) -> int:
    """Return the bytes of all texts of a column, which lists and structures may hold."""
    while pa.types.is_nested(array.type):
        array = array.field(0) if pa.types.is_struct(array.type) else array.flatten()
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    lengths = pc.binary_length(array.dictionary)
    return pc.sum(pc.take(lengths, array.indices)).as_py() or 0


def _read_blocks(stream: IO[bytes], path: Path, name: str, where: str) -> Iterator[bytes]:
    """Yield the decompressed blocks of a file. Raises InputError if they are too many."""
    num_bytes = 0
    while block := stream.read(BLOCK_BYTES):
        num_bytes += len(block)
        _check_unpacked_size(num_bytes, path, name, where)
        yield block


def _check_unpacked_size(num_bytes: int, path: Path, name: str, where: str) -> None:
    if num_bytes > max(MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO * path.stat().st_size):
        raise InputError(
            f"{where}: {name} unpacks to more than {MAX_UNPACKED_RATIO} times its size and would "
            "fill the memory; remove it, or write it again in several files without compression"
        )


def _has_text(blocks: Iterator[bytes], name: str, where: str) -> bool:
    """Return whether blocks of bytes hold more than white space."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    num_bytes = 0
    num_lines = 0
    has_text = False
    for block in blocks:
        pending = decoder.getstate()[0]  # the beginning of a character, from the block before
        try:
            text = decoder.decode(block)
        except UnicodeDecodeError as error:
            whole = pending + block
            byte = num_bytes - len(pending) + error.start
            line = num_lines + 1 + whole[: error.start].count(b"\n")
            fix = suggest_encoding_fix(whole, is_first_block=num_bytes == 0)
            raise InputError(
                f"{where}: {name} is not UTF-8 at byte {byte}, line {line}; {fix}"
            ) from error
        has_text = has_text or bool(text.strip().strip("\ufeff"))
        num_bytes += len(block)
        num_lines += text.count("\n")
    if num_pending := len(decoder.getstate()[0]):
        raise InputError(
            f"{where}: {name} is not UTF-8 at byte {num_bytes - num_pending}; it ends within a "
            "character, so it was cut short, or is LATIN1"
        )
    return has_text


def read_column_names(
    path: Path, name: str, where: str, *, quoting: Literal[0, 3] = 0
) -> list[str]:
    """Return the names of a file's columns: of a txt `text`. Raises InputError."""
    suffix = data_suffix(path)
    if suffix == ".txt":
        return ["text"]
    if FORMATS[suffix] == "json":
        rows = itertools.islice(iter_json_rows(path, f"{where}: {name}"), COLUMN_SAMPLE_ROWS)
        return list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    try:
        if suffix == ".parquet":
            return list(open_parquet(path).schema_arrow.names)
        with open_decompressed(path) as stream:
            return _read_csv_header(stream, name, where, find_delimiter(path), quoting)
    except (OSError, csv.Error, pa.ArrowException) as error:
        raise unreadable_error(name, where, error) from error


def find_delimiter(path: Path) -> str:
    """Return what separates the cells of a csv or tsv: a csv may have semicolons, as Excel's.

    Raises OSError and csv.Error.
    """
    usual = DELIMITERS[data_suffix(path)]
    if usual != ",":
        return usual
    for delimiter in (",", ";"):
        with open_decompressed(path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
            header = next(filter(None, csv.reader(text, delimiter=delimiter)), [])
        if len(header) > 1:
            return delimiter
    return usual


def _read_csv_header(
    stream: IO[bytes], name: str, where: str, delimiter: str, quoting: Literal[0, 3]
) -> list[str]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    filled_rows = filter(None, csv.reader(text, delimiter=delimiter, quoting=quoting))
    names = next(filled_rows)
    _check_header(names, name, where)
    cells = next(filled_rows, [])
    if len(cells) > len(names):  # pandas would take the first cell for an index, and shift others
        raise InputError(
            f"{where}: {name}: its first row has {len(cells)} cells, but its header has "
            f"{len(names)} names; put quotation marks around cells that contain the delimiter, and "
            "name all columns"
        )
    return names


def _check_header(names: list[str], name: str, where: str) -> None:
    """Raise InputError for a first line with a repeated name or another delimiter."""
    if names[0].startswith("sep="):
        raise InputError(
            f"{where}: {name}: its first line, sep=, is for Excel alone; remove it, so that the "
            "names of the columns come first"
        )
    delimiters = [sign for sign in (";", "\t", "|", ",") if sign in names[0]]
    if len(names) == 1 and delimiters:
        file = Path(name).name
        raise InputError(
            f"{where}: {name}: its first line has one column, with {delimiters[0]!r} in its name; "
            "separate the columns of a csv with commas or semicolons, those of a tsv with tabs. "
            "This converts it: "
            f"python -c \"import pandas; pandas.read_csv('{file}', sep={delimiters[0]!r})"
            f".to_csv('{Path(file).stem}-commas.csv', index=False)\""
        )
    repeated = [column for column in names if column and names.count(column) > 1]
    if repeated:
        raise InputError(
            f"{where}: {name}: its first line names the column '{shorten_value(repeated[0])}' "
            "twice; rename one of them"
        )


def check_columns(
    wanted: Sequence[str], columns: Sequence[str], name: str, where: str, hint: str = ""
) -> None:
    """Raise InputError for the first wanted column that is missing, with the nearest one."""
    for column in wanted:
        if column not in columns:
            nearest = _suggest_column(column, [shorten_value(known) for known in columns])
            advice = hint
            if not hint and ".txt" in Path(name).suffixes:
                advice = TXT_COLUMN_HINT
            elif not hint and not DELIMITERS.keys().isdisjoint(Path(name).suffixes):
                advice = "; if the file has no header, list all its columns under 'columns'"
            if nearest.endswith("?"):
                # A column of nearly that name shows that the file has a header.
                sentence = hint.removeprefix("; ")
                advice = f" {sentence[0].upper()}{sentence[1:]}" if sentence else ""
            raise InputError(f"{where}: {name} has no column '{column}'{nearest}{advice}")


def _suggest_column(column: str, columns: Sequence[str]) -> str:
    """Return the nearest column, or all; a few if the first line may be a row of texts."""
    nearest = suggest_nearest(column, columns)
    look_like_names = all(map(COLUMN_NAME_PATTERN.fullmatch, columns))
    if nearest.startswith("; did") or (len(columns) <= MAX_LISTED_COLUMNS and look_like_names):
        return nearest
    num_others = len(columns) - SHORT_LIST_COLUMNS
    more = f" and {num_others} more" if num_others > 0 else ""
    return f"; known: {', '.join(columns[:SHORT_LIST_COLUMNS])}{more}"


def iter_json_rows(path: Path, place: str) -> Iterator[dict[str, object]]:
    """Yield the rows of JSON: one object per line, or one list of objects. Raises InputError."""
    with open_decompressed(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig")
        lines = ((number, line) for number, line in enumerate(text, 1) if line.strip())
        first = next(lines, None)
        if first is None:
            return
        if first[1].lstrip().startswith("["):
            rows = _parse_json(first[1] + text.read(), place)
            for number, row in enumerate(rows, 1):
                yield _check_json_object(row, f"{place}, entry {number}")
            return
        for number, line in itertools.chain([first], lines):
            line_place = f"{place}, line {number}"
            yield _check_json_object(_parse_json(line, line_place), line_place)


def _parse_json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{place}: JSON that is nested too deeply; {JSON_FORMAT_HINT}") from None
    except ValueError as error:  # not JSON, or a number of thousands of digits
        raise InputError(f"{place}: not JSON ({error}); {JSON_FORMAT_HINT}") from error


def _check_json_object(row: object, place: str) -> dict[str, object]:
    if not isinstance(row, dict):
        raise InputError(f"{place}: {type(row).__name__}; {JSON_FORMAT_HINT}")
    return row


def unreadable_error(name: str, where: str, error: Exception) -> InputError:
    """Return the error of a file that is damaged or of another format."""
    lines = str(error).splitlines() or [type(error).__name__]
    return InputError(
        f"{where}: {name} cannot be read: {lines[0]}; the file is damaged or of another format; "
        "make it again"
    )
