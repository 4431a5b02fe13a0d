"""Draft a new study from the user's files and the options of `lineage init`. Nothing is written."""

import contextlib
import difflib
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from lineage.config.data import NAME_PATTERN, SPLITS
from lineage.config.records import suggest_nearest
from lineage.data.files import data_suffix, join_pattern, match_data_files
from lineage.data.inspection import TaskFindings, inspect_corpus, inspect_task
from lineage.errors import InputError, shorten_value
from lineage.runtime.scratch import scratch_folder
from lineage.study.draft import StudyDraft, draft_params
from lineage.study.public_proposal import PublicProposal, find_cached_model, propose_folder
from lineage.tasks.recognition import RequestedColumns

TASK_KEYS = ("validation", "test", "unlabelled", "kind", "text", "label")
GLOB_CHARACTERS = set("*?[")
MAX_SHOWN_NAMES = 3


@dataclass(frozen=True)
class FileOption:
    """The parts of an option such as `queue=train.csv,test=test.csv,label=queue`."""

    where: str
    name: str | None  # of a task
    pattern: str
    keys: tuple[tuple[str, str], ...]  # a key may occur twice: the two texts of a pair

    def value(self, key: str) -> str | None:
        """Return the value of a key, if it is given. Raises InputError if it is given twice."""
        values = self.values(key)
        if len(values) > 1:
            raise InputError(f"{self.where}: {key} is given {len(values)} times; give it once")
        return values[0] if values else None

    def values(self, key: str) -> tuple[str, ...]:
        """Return all values of a key."""
        return tuple(value for name, value in self.keys if name == key)


def draft_study(
    folder: Path,
    corpus: list[str],
    tasks: list[str],
    language: str | None = None,
    public_model: Path | None = None,
) -> StudyDraft:
    """Draft the params.yaml of a study in `folder`, which need not exist. Raises InputError.

    Options name files by paths, folders or globs, relative to the current folder:
    `corpus`: PATTERN[,text=COLUMN]
    `tasks`: NAME=PATTERN[,KEY=VALUE ...], such as
    queue=train.csv,test=test.csv,text=body,label=queue; the keys are TASK_KEYS.
    `public_model`: the folder of a public checkpoint; by default one in the Hub's cache is
    proposed.
    """
    if not corpus:
        raise InputError(
            "--corpus is missing: name the text to pretrain on, such as --corpus 'texts/*.txt'"
        )
    if not tasks:
        raise InputError(
            "--task is missing: models are compared on a task, so name a file with labels, such as "
            "--task queue=train.csv"
        )
    current = Path.cwd()
    root = folder.absolute().resolve()
    corpus_options = [parse_corpus_option(text) for text in corpus]
    task_options = [parse_task_option(text) for text in tasks]
    _check_names_differ(task_options)
    if public_model is None:
        proposal = find_cached_model()
    else:
        proposal = _propose_folder(public_model, root, current)
    # The checks keep what they have read in the current folder: here in one that is removed.
    with scratch_folder() as scratch, contextlib.chdir(scratch):
        corpora = [
            inspect_corpus(
                _pattern_from(root, option.pattern, current, option.where),
                root,
                option.where,
                text=option.value("text"),
            )
            for option in corpus_options
        ]
        found = [_inspect_task(option, root, current) for option in task_options]
        draft = draft_params(corpora, found, root, language, proposal)
    return replace(draft, lines=(*draft.lines, *_note_test_files(task_options, current)))


def _propose_folder(folder: Path, root: Path, current: Path) -> PublicProposal:
    """Return the public checkpoint of a folder. Raises InputError if it cannot be read."""
    path = current / folder.expanduser()
    is_absolute = folder.expanduser().is_absolute()
    source = str(folder) if is_absolute else Path(os.path.relpath(path, root)).as_posix()
    return propose_folder(path, source, where="--public-model")


def _note_test_files(options: list[FileOption], current: Path) -> list[str]:
    """Return a line for each task with a file that seems to be its test file."""
    lines = []
    for option in options:
        path = Path(option.pattern)
        test_path = path.with_name(path.name.replace("train", "test"))
        if test_path == path or option.value("test"):
            continue
        if match_data_files(str(test_path), current):
            lines.append(
                f"task {option.name}: {test_path.name} lies beside {path.name}; to test on it, add "
                f"test={test_path}"
            )
    return lines


def _inspect_task(option: FileOption, root: Path, current: Path) -> TaskFindings:
    files = {"train": option.pattern}
    for split in SPLITS:
        if pattern := option.value(split):
            files[split] = pattern
    files = {
        split: _pattern_from(root, pattern, current, option.where)
        for split, pattern in files.items()
    }
    requested = RequestedColumns(option.value("kind"), option.values("text"), option.value("label"))
    assert option.name is not None
    return inspect_task(option.name, files, root, option.where, requested)


def parse_corpus_option(text: str) -> FileOption:
    """Parse PATTERN[,text=COLUMN]. Raises InputError."""
    where = "--corpus"
    pattern, keys = _split_option(text, ("text",), where)
    return FileOption(where, None, pattern, keys)


def parse_task_option(text: str) -> FileOption:
    """Parse NAME=PATTERN[,KEY=VALUE ...]. Raises InputError."""
    name, sign, rest = text.partition("=")
    if not sign or not NAME_PATTERN.fullmatch(name):
        raise InputError(
            f"--task: '{shorten_value(text)}' does not begin with NAME=FILE; name the task in small "
            "letters, digits and _, such as --task queue=train.csv"
        )
    where = f"--task {name}"
    pattern, keys = _split_option(rest, TASK_KEYS, where)
    return FileOption(where, name, pattern, keys)


def _split_option(
    text: str, known: tuple[str, ...], where: str
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the pattern and the keys of an option. Raises InputError."""
    pattern, *parts = text.split(",")
    keys = []
    for part in parts:
        key, sign, value = part.partition("=")
        if not sign or not value:
            raise InputError(
                f"{where}: '{shorten_value(part)}' is not KEY=VALUE; after the file, commas separate "
                f"keys ({', '.join(known)}), so rename files and columns with commas in their names"
            )
        if key not in known:
            raise InputError(
                f"{where}: unknown key '{shorten_value(key)}'{suggest_nearest(key, known)}"
            )
        keys.append((key, value))
    if not pattern:
        raise InputError(f"{where}: no file is named; name one, such as train.csv")
    return pattern, tuple(keys)


def _check_names_differ(options: list[FileOption]) -> None:
    counts = Counter(option.where for option in options)
    for where, count in counts.items():
        if count > 1:
            raise InputError(
                f"{where}: {count} tasks have this name; choose another, or name further files of "
                "a task after the first, as train.csv,test=test.csv"
            )


def _pattern_from(root: Path, pattern: str, current: Path, where: str) -> str:
    """Return a pattern relative to the study's folder. Raises InputError if no file matches.

    An absolute path stays as it is.
    """
    paths = match_data_files(pattern, current)
    suffixes = sorted({data_suffix(path) or "no suffix" for path in paths})
    if len(suffixes) > 1:
        raise InputError(
            f"{where}: {pattern!r} matches files of {len(suffixes)} formats "
            f"({', '.join(suffixes[:MAX_SHOWN_NAMES])}); name those of one, such as 'texts/*.txt'"
        )
    if not paths:
        raise InputError(
            f"{where}: no file matches {pattern!r} in {current}{_describe_nearest(pattern, current)}"
        )
    if Path(pattern).expanduser().is_absolute():
        return pattern
    return Path(os.path.relpath(current / pattern, root)).as_posix()


def _describe_nearest(pattern: str, current: Path) -> str:
    """Return a hint for a pattern that matches no file: the nearest name, or what is there."""
    parts = Path(pattern).expanduser().parts
    folder = current
    for place, part in enumerate(parts):
        if set(part) & GLOB_CHARACTERS:
            break
        following = join_pattern(current, str(Path(*parts[: place + 1])))
        if not following.exists() and folder.is_dir():
            return _suggest_name(part, folder)
        folder = following
    return f"; {_describe_content(folder)}"


def _suggest_name(name: str, folder: Path) -> str:
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; there is no '{name}': {_describe_content(folder)}"


def _describe_content(folder: Path) -> str:
    """Return the files of a folder by their suffixes."""
    if not folder.is_dir():
        return f"{folder.name} is a file"
    files = [path for path in folder.iterdir() if path.is_file() and path.name[0] != "."]
    counts = Counter(path.suffix or "others" for path in files)
    shown = [f"{count:,} {suffix}" for suffix, count in counts.most_common(MAX_SHOWN_NAMES)]
    return f"the folder {folder.name} holds {', '.join(shown) or 'no files'}"
