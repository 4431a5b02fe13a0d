"""The user's files: found by a path or a glob, known by their digests, and checked for what no reader could mend."""

import codecs
import csv
import functools
import gzip
import io
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.artifacts import file_digest, read_json, write_json
from lineage.config.records import suggest_nearest
from lineage.data.encodings import suggest_encoding_fix
from lineage.errors import InputError, shorten_value
from lineage.runtime.settings import STATE_DIR

JSON_LINES = (".jsonl", ".json")
FORMATS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
}  # all but json: as in `datasets`
DELIMITERS = {".csv": ",", ".tsv": "\t"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
KNOWN_FORMATS = f"{', '.join(FORMATS)}, each also with .gz or .zst after it"
JSON_FORMAT_HINT = "a .json or .jsonl file holds an object a line, or one list of objects"
LIST_FORMAT_HINT = (
    "and lists, such as a sentence a row with its tokens and tags, as jsonl or parquet"
)
MISSING_COLUMN_HINTS = {  # suffix -> what may mend a column that is missing
    ".txt": "; a txt does not name its columns: give 'columns', such as columns: [label, text]; a word a line with its tags is read so too; "
    "where each file is an item, document: file with text: [text], and label: folder where the folders are named so",
    **dict.fromkeys(
        DELIMITERS,
        "; where its first line is a row already, give 'columns', the names of all of them",
    ),
}
# As columns are named by whom nothing private is to be feared from: a first row may have such cells too, but numbers among them, or more of them.
COLUMN_NAME_PATTERN = re.compile(r"(?!.*\d{3})[A-Za-z_][\w.-]*", re.ASCII)
MAX_LISTED_COLUMNS, SHORT_LIST_COLUMNS = 12, 3
DIGESTS_FILE = STATE_DIR / "digests.json"
GLOB_CHARACTERS = set("*?[")
BLOCK_BYTES = 1 << 20
csv.field_size_limit(
    2**31 - 1
)  # a text is as long as it is; as shipped 131,072 letters are the most, and pandas has no such limit


@dataclass(frozen=True)
class DataFiles:
    """Files of one format that are read as one table, in the order of their names."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]  # relative: what is recorded and shown
    format: str  # parquet | json | csv | text
    suffix: str  # without the compression
    csv_quoting: bool = True  # whether marks round a cell of a csv mean that it is one

    @property
    def csv_quoting_mode(self) -> Literal[0, 3]:
        """The same for `csv` and pandas: csv.QUOTE_MINIMAL or csv.QUOTE_NONE."""
        return 0 if self.csv_quoting else 3

    def fingerprint(self) -> list[dict[str, object]]:
        """Name, size and sha256 of each file."""
        sums = file_digests(self.paths)
        return [
            {"name": n, "bytes": p.stat().st_size, "sha256": d}
            for n, p, d in zip(self.names, self.paths, sums, strict=True)
        ]


def find_data_files(
    pattern: str,
    root: Path,
    where: str,
    *,
    unknown_as_txt: bool = False,
    one_item_per_file: bool = False,
) -> DataFiles:
    """The files of a path, a glob or a folder under `root`; with `lines` what has no suffix that is known is a txt. Raises InputError, with `items`
    also where files are passed over: each of them would be an item, and their folder perhaps a label."""
    paths = match_data_files(pattern, root)
    if one_item_per_file and (others := _skipped_files(pattern, root, {*paths})):
        first = _relative_name(others[0], pattern, root, where)
        say = "rename hidden folders; where folders are links, or names end otherwise than in .txt, give a pattern, such as 'train/*/*'"
        raise InputError(
            f"{where}: {pattern!r} passes over {len(others)} files, such as {first}; {say}"
        )
    if not paths:
        passed = "; of a folder .json and endings that are not known are passed over: name them with a pattern, such as 'data/*.json'"
        what = (
            passed
            if (root / Path(pattern).expanduser()).is_dir()
            else "; correct the path, or set data_root in runtime.yaml"
        )
        raise InputError(f"{where}: no file matches {pattern!r} in {root}{what}")
    suffixes = {
        ".txt" if unknown_as_txt and data_suffix(path) not in FORMATS else data_suffix(path)
        for path in paths
    }
    if len(suffixes) > 1 or not suffixes <= set(FORMATS):
        what = (
            f"files of {len(suffixes)} formats"
            if len(suffixes) > 1
            else f"format {suffixes.pop() or 'none'!r}"
        )
        raise InputError(
            f"{where}: {pattern!r} names {what}; give files of one format: {KNOWN_FORMATS}; {LIST_FORMAT_HINT}; other lines of text as 'columns' of a task say"
        )
    suffix = suffixes.pop()
    return DataFiles(
        tuple(paths),
        tuple(_relative_name(path, pattern, root, where) for path in paths),
        FORMATS[suffix],
        suffix,
    )


def match_data_files(pattern: str, root: Path) -> list[Path]:
    """The files of a path, a glob or a folder (then those of a known format in it), sorted by name; hidden ones are left out."""
    base, found = _match_candidates(pattern, root)
    if base.is_file():
        return found
    if base == root / Path(pattern).expanduser():
        found = [
            p for p in found if data_suffix(p) in FORMATS.keys() - {".json"}
        ]  # that describes data more often than it holds them
    return sorted(
        p
        for p in found
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(base).parts)
    )


def _match_candidates(pattern: str, root: Path) -> tuple[Path, list[Path]]:
    """Where a path, a glob or a folder begins, and all that stands there for it."""
    given = Path(pattern).expanduser()
    base = root / given
    if base.is_dir():
        return base, [*base.rglob("*")]
    if base.is_file():
        return base, [base]
    fixed = [
        *itertools.takewhile(lambda part: not set(part) & GLOB_CHARACTERS, given.parts[:-1])
    ]  # these may be hidden, or lead upwards
    base = root.joinpath(*fixed)
    try:
        return base, [*base.glob(str(Path(*given.parts[len(fixed) :])))] if pattern else []
    except ValueError:  # such as ** within a name
        return base, []


def _skipped_files(pattern: str, root: Path, matched: set[Path]) -> list[Path]:
    """The files that are not taken, in hidden folders and behind links to folders too; but for those that are hidden themselves."""
    base, found = _match_candidates(pattern, root)
    if base.is_dir() and base == root / Path(pattern).expanduser():
        found = [
            Path(folder, name)
            for folder, _, names in os.walk(base, followlinks=True)
            for name in names
        ]
    return sorted(
        p for p in found if p not in matched and p.is_file() and not p.name.startswith(".")
    )


def _relative_name(path: Path, pattern: str, root: Path, where: str) -> str:
    """A file's name from the root; of one outside without the folders above, which tell nothing but where the user keeps it. Raises InputError."""
    fixed = [
        *itertools.takewhile(
            lambda part: not set(part) & GLOB_CHARACTERS, Path(pattern).parent.parts
        )
    ]
    home = (
        root if path.is_relative_to(root) else Path(*fixed).expanduser() if fixed else path.parent
    )
    name = path.relative_to(home).as_posix() if path.is_relative_to(home) else path.name
    try:
        name.encode()
    except UnicodeEncodeError:
        said = shorten_value(name.encode("ascii", "backslashreplace").decode())
        raise InputError(
            f"{where}: the name of a file or folder is not UTF-8: {said}; rename it, for example with convmv -f GBK -t UTF-8"
        ) from None
    return name


def data_suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def file_digests(paths: Sequence[Path]) -> list[str]:
    """sha256 of each file, computed once for each size, time of change and inode."""
    known = read_json(DIGESTS_FILE) if DIGESTS_FILE.is_file() else {}
    found: dict[str, list[object]] = {}
    for path in paths:
        stat, key = path.stat(), str(path.absolute())
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        found[key] = (
            known[key] if key in known and known[key][0] == stamp else [stamp, file_digest(path)]
        )
    if any(known.get(key) != value for key, value in found.items()):
        write_json(DIGESTS_FILE, known | found)
    return [str(value[1]) for value in found.values()]


def open_decompressed(path: Path) -> IO[bytes]:
    """A file's bytes, decompressed."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix))


def check_readable(files: DataFiles, where: str) -> None:
    """Raise InputError for the first file that is empty, cut short or no UTF-8, and how many more are so. Reads them, unless they are parquet."""
    errors = []
    for path, name in zip(files.paths, files.names, strict=True):
        try:
            _check_file_readable(path, name, where)
        except InputError as error:
            errors.append(error)
    if errors:
        raise InputError(
            f"{errors[0]}"
            + (f"; {len(errors) - 1} more files cannot be read" if errors[1:] else "")
        ) from errors[0]


def _check_file_readable(path: Path, name: str, where: str) -> None:
    try:
        with open_decompressed(path) as stream:
            empty = (
                stream.read(4) == b""
                if data_suffix(path) == ".parquet"
                else not _has_text(stream, name, where)
            )
        empty = empty or (path.suffix == ".parquet" and pq.read_metadata(path).num_rows == 0)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise InputError(
            f"{where}: {name} cannot be read: {_first_line(error)}; the file is damaged or of another format, make it anew"
        ) from error
    if empty:
        raise InputError(f"{where}: {name} is empty; fill it, or take it out of the source")


def _has_text(stream: IO[bytes], name: str, where: str) -> bool:
    """Whether there is anything but white space. Raises InputError at the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done, lines, found = 0, 0, False
    for block in iter(functools.partial(stream.read, BLOCK_BYTES), b""):
        held = decoder.getstate()[0]
        try:
            text = decoder.decode(block)
        except UnicodeDecodeError as error:
            whole = held + block
            line = lines + 1 + whole[: error.start].count(b"\n")
            place = f"{where}: {name} is not UTF-8 at byte {done - len(held) + error.start}, line {line}"
            raise InputError(f"{place}; {suggest_encoding_fix(whole, first=done == 0)}") from error
        found = found or bool(text.strip().strip("\ufeff"))
        done, lines = done + len(block), lines + text.count("\n")
    if rest := len(decoder.getstate()[0]):
        raise InputError(
            f"{where}: {name} is not UTF-8 at byte {done - rest}; it ends within a character, so it was cut short, or is LATIN1"
        )
    return found


def read_column_names(
    path: Path, name: str, where: str, *, quoting: Literal[0, 3] = 0
) -> list[str]:
    """The names of a file's columns; of a jsonl those that its first rows hold; a txt has the column `text`."""
    suffix = data_suffix(path)
    if suffix == ".txt":
        return ["text"]
    if suffix in JSON_LINES:
        return list(
            dict.fromkeys(
                key
                for row in itertools.islice(iter_json_rows(path, f"{where}: {name}"), 100)
                for key in row
            )
        )
    try:
        with open_decompressed(path) as stream:
            if suffix == ".parquet":
                return list(
                    pq.read_schema(
                        pa.BufferReader(stream.read()) if path.suffix in COMPRESSIONS else path
                    ).names
                )
            rows = csv.reader(
                io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""),
                delimiter=DELIMITERS[suffix],
                quoting=quoting,
            )
            filled = filter(None, rows)
            names, cells = _check_header(next(filled), name, where), next(filled, [])
            if len(cells) > len(
                names
            ):  # pandas would take the first of them for an index, and move the others
                raise InputError(
                    f"{where}: {name}: its first row has {len(cells)} cells, and the line above it {len(names)} names; put marks round "
                    "a cell that holds the sign between cells, and name all columns"
                )
            return names
    except (OSError, csv.Error, pa.ArrowException) as error:
        raise InputError(
            f"{where}: {name} cannot be read: {_first_line(error)}; the file is damaged or of another format, make it anew"
        ) from error


def check_columns(
    wanted: Sequence[str],
    found: Sequence[str],
    name: str,
    where: str,
    hint: str = "",
    *,
    describe: Callable[[str], str] = str,
) -> None:
    """Raise InputError that names the nearest column where one is missing, with a `hint`, or that of its suffix; `told`: how the missing one is."""
    for column in wanted:
        if column not in found:
            near = _suggest_column(column, [shorten_value(one) for one in found])
            unnamed = hint or next(
                (
                    said
                    for suffix, said in MISSING_COLUMN_HINTS.items()
                    if suffix in Path(name).suffixes
                ),
                "",
            )
            raise InputError(f"{where}: {name} has no column '{describe(column)}'{near}{unnamed}")


def _suggest_column(column: str, found: Sequence[str]) -> str:
    """The nearest of a table's columns, or all of them, if these are names: of a file without a header the first row stands where they should."""
    near = suggest_nearest(column, found)
    if near.startswith("; did") or (
        len(found) <= MAX_LISTED_COLUMNS and all(map(COLUMN_NAME_PATTERN.fullmatch, found))
    ):
        return near
    return f"; known: {', '.join(found[:SHORT_LIST_COLUMNS])}{f' and {len(found) - SHORT_LIST_COLUMNS} more' if len(found) > SHORT_LIST_COLUMNS else ''}"


def _check_header(names: list[str], name: str, where: str) -> list[str]:
    """The names in a table's first line. Raises InputError where two are the same, where another sign stands between them, or where it holds none."""
    if names[0].startswith("sep="):
        raise InputError(
            f"{where}: {name}: its first line, sep=, is for Excel alone; take it out, so that the names of the columns come first"
        )
    if len(names) == 1 and (signs := [sign for sign in (";", "\t", "|", ",") if sign in names[0]]):
        raise InputError(
            f"{where}: {name}: its first line has one column, with {signs[0]!r} in its name; write a csv with commas between, a tsv "
            "with tabs"
        )
    if twice := [one for one in names if one and names.count(one) > 1]:
        raise InputError(
            f"{where}: {name}: its first line names the column '{shorten_value(twice[0])}' twice; rename one of them"
        )
    return names


def iter_json_rows(path: Path, place: str) -> Iterator[dict[str, object]]:
    """The rows of a .jsonl or .json file: an object a line, or one list of objects. Raises InputError."""
    with open_decompressed(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig")
        lines = ((number, line) for number, line in enumerate(text, 1) if line.strip())
        first = next(lines, (0, ""))
        if first[1].lstrip().startswith("["):
            rows = _parse_json(first[1] + text.read(), place)
            yield from (
                _check_json_object(row, f"{place}, entry {number}")
                for number, row in enumerate(rows, 1)
            )
            return
        for number, line in itertools.chain([first] if first[1] else [], lines):
            yield _check_json_object(
                _parse_json(line, f"{place}, line {number}"), f"{place}, line {number}"
            )


def _parse_json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not JSON ({error}); {JSON_FORMAT_HINT}") from error


def _check_json_object(row: Any, place: str) -> dict[str, object]:
    if not isinstance(row, dict):
        raise InputError(f"{place}: {type(row).__name__}; {JSON_FORMAT_HINT}")
    return row


def _first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]
