"""A bundle: stages of a study in one file, for a machine that no server reaches.

It is a plain tar. The first member, bundle.json, lists the stages and the sha256 of every other
member, each under its path in the study. Members that are not listed, are no plain files, or have
other bytes are refused. Neither DVC nor Prefect is imported here.
"""

import contextlib
import hashlib
import io
import json
import re
import shlex
import shutil
import tarfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from flows.execute import stage_file_name
from flows.handover import StageRequest
from flows.package_data import package_file
from lineage import __version__
from lineage.config.records import parse_record, read_yaml
from lineage.errors import InputError
from lineage.runtime.journal import JOURNAL_DIR
from lineage.runtime.settings import METADATA_DIR, STATE_DIR, check_writable

INDEX_FILE = "bundle.json"
FORMAT = 1
INPUTS_DIR = Path("artifacts")
RESUME_DIR = STATE_DIR / "resume"
REQUEST_FILES = {"params.yaml", "dvc.yaml"}
NEEDED_VARIABLES = {"LINEAGE_STUDY", "LINEAGE_PIPELINE_ID"}
# A variable such as PYTHONPATH would let a bundle run other code than that of the package.
REQUEST_VARIABLES = {*NEEDED_VARIABLES, "LINEAGE_STUDY_COMMIT", "LINEAGE_STUDY_CHANGES"}

# These words become names of files. Each part of a stage's name is a model, a task or a seed.
STAGE_PATTERN = re.compile(r"[a-z_]+(@[a-z0-9_]+(-[a-z0-9_]+)*)?")
WORD_PATTERN = re.compile(r"(--)?[a-z0-9_]+(-[a-z0-9_]+)*")

Digests = dict[str, str]  # the sha256 of files, by path in the study


@dataclass(frozen=True, kw_only=True)
class BundledStage(StageRequest):
    """A stage of a bundle: how it runs, and what it was made from."""

    command: str
    outputs: tuple[str, ...]  # paths in the study
    # The entry of dvc.lock, without outputs and without inputs that the bundle makes.
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Bundle:
    """The content of a bundle. Each stage comes after those whose outputs it reads."""

    version: str  # of the package at home
    stages: tuple[BundledStage, ...]
    written: float = 0.0  # seconds since 1970
    finished: tuple[str, ...] = ()  # the stages that have run
    inputs: Digests = field(default_factory=dict)
    results: Digests = field(default_factory=dict)  # with metadata, and journals for MLflow
    resume: Digests = field(default_factory=dict)
    format: int = FORMAT

    @property
    def digests(self) -> Digests:
        return {**self.inputs, **self.results, **self.resume}

    def unfinished(self) -> list[BundledStage]:
        return [stage for stage in self.stages if stage.stage not in self.finished]


def metadata_path(stage: str) -> str:
    """Return the path of a stage's metadata in the study."""
    return (METADATA_DIR / f"{stage}.json").as_posix()


def lies_in(path: str, folders: Collection[str]) -> bool:
    """Return whether a path is one of these, or below one of them."""
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def digest_files(root: Path, names: Collection[str]) -> Digests:
    """Return the sha256 of these files of a study, and of all files below these folders."""
    digests: Digests = {}
    for name in names:
        path = root / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file():
                with file.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
                digests[file.relative_to(root).as_posix()] = digest
    return digests


def write_bundle(path: Path, bundle: Bundle, root: Path) -> None:
    """Write a bundle of the files of a study, completely or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    index = json.dumps(asdict(bundle), indent=1).encode()
    try:
        with tarfile.open(draft, "w") as archive:
            _add(archive, INDEX_FILE, io.BytesIO(index), len(index))
            for name in bundle.digests:
                with (root / name).open("rb") as stream:
                    _add(archive, name, stream, (root / name).stat().st_size)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, name: str, stream: IO[bytes], num_bytes: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = num_bytes
    archive.addfile(member, stream)


def read_bundle(path: Path) -> Bundle:
    """Read what a bundle holds. Raises InputError if it is none, or if it names a path outside."""
    with _open(path) as archive:
        member = archive.next()
        if member is None or member.name != INDEX_FILE or not member.isreg():
            raise InputError(f"{path}: not a bundle; make one with `lineage bundle`")
        stream = archive.extractfile(member)
        assert stream is not None, "it is a plain file"
        try:
            tree = json.load(stream)
        except ValueError as error:
            raise InputError(f"{path}: {INDEX_FILE} is damaged: {error}; copy it again") from error
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise InputError(
            f"{path}: another version of lineage has written it; this is {__version__}; install the "
            "same version on both machines"
        )
    bundle = parse_record(Bundle, tree, f"{path}: {INDEX_FILE}")
    _check_paths(path, bundle)
    return bundle


def _check_paths(path: Path, bundle: Bundle) -> None:
    """Raise InputError if a file would not lie where it belongs in a study."""
    names = [stage.stage for stage in bundle.stages]
    for stage_name in names:
        if not STAGE_PATTERN.fullmatch(stage_name):
            raise InputError(f"{path}: {stage_name}: no stage of lineage has such a name; refused")
    if not names or len(set(names)) < len(names) or not set(bundle.finished) <= set(names):
        raise InputError(f"{path}: {INDEX_FILE}: its stages do not fit together; copy it again")
    done = [stage for stage in bundle.stages if stage.stage in bundle.finished]
    made = [output for stage in bundle.stages for output in stage.outputs]
    outputs = [output for stage in done for output in stage.outputs]
    metadata = [metadata_path(stage.stage) for stage in done]
    states = [(RESUME_DIR / stage_file_name(stage.stage)).as_posix() for stage in bundle.stages]
    places = (
        (bundle.inputs, [INPUTS_DIR.as_posix()]),
        (made, [INPUTS_DIR.as_posix()]),
        (bundle.results, [*outputs, *metadata, JOURNAL_DIR.as_posix()]),
        (bundle.resume, states),
    )
    for paths, folders in places:
        for name in paths:
            is_plain = PurePosixPath(name).as_posix() == name and ".." not in name.split("/")
            if not is_plain or not lies_in(name, folders):
                raise InputError(f"{path}: {name}: such a file is no part of a bundle; refused")


def check_out(out: Path, *, num_bytes: int) -> None:
    """Raise InputError unless a file of about so many bytes can be written here."""
    folder = out.absolute().parent
    if not folder.is_dir():
        raise InputError(f"-o {out}: there is no folder {folder}; create it, or correct the path")
    if out.is_dir():
        raise InputError(f"-o {out}: it is a folder; name a file in it")
    check_writable(str(folder), purpose="the folder of the file to write")
    num_free = shutil.disk_usage(folder).free
    if num_free < num_bytes:
        raise InputError(
            f"{folder}: the file to write takes {num_bytes / 1e6:.0f} MB, and "
            f"{num_free / 1e6:.0f} MB are free; free some space there"
        )


def check_stage(path: Path, stage: BundledStage) -> None:
    """Raise InputError if a stage would run anything but a stage of this package."""
    verb = stage.stage.partition("@")[0]
    graph = read_yaml(package_file("dvc.yaml"))["stages"]
    definition = graph.get(verb)
    words = shlex.split(stage.command)
    is_known = (
        definition is not None
        and definition["meta"]["pool"] != "local"
        and words[:3] == definition["cmd"].split()[:3]
        and all(WORD_PATTERN.fullmatch(word) for word in words[3:])
    )
    extra = [*(set(stage.files) - REQUEST_FILES), *(set(stage.environment) - REQUEST_VARIABLES)]
    if not is_known or extra:
        what = extra[0] if extra else stage.command
        raise InputError(f"{path}: {stage.stage}: {what}: no stage of lineage has it; refused")
    missing = [*(REQUEST_FILES - set(stage.files)), *(NEEDED_VARIABLES - set(stage.environment))]
    if missing:
        raise InputError(
            f"{path}: {stage.stage}: {INDEX_FILE} lacks its {missing[0]}; copy the file again"
        )


def unpack(path: Path, bundle: Bundle, target: Path, wanted: Mapping[str, str]) -> None:
    """Write these files of a bundle below `target`. Raises InputError for bytes that differ."""
    left = dict(wanted)
    with _open(path) as archive:
        for member in archive:
            if member.name == INDEX_FILE:
                continue
            if not member.isreg() or member.name not in bundle.digests:
                raise InputError(
                    f"{path}: {member.name}: such a file is no part of a bundle; refused"
                )
            digest = left.pop(member.name, None)
            if digest is not None:
                stream = archive.extractfile(member)
                assert stream is not None, "it is a plain file"
                _write_checked(stream, target / member.name, digest, where=f"{path}: {member.name}")
    if left:
        raise InputError(f"{path}: {next(iter(left))} is missing in it; copy the file again")


def _write_checked(stream: IO[bytes], target: Path, digest: str, *, where: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    found = hashlib.sha256()
    with target.open("wb") as output:
        while block := stream.read(1 << 20):
            found.update(block)
            output.write(block)
    if found.hexdigest() != digest:
        raise InputError(f"{where}: its bytes are not those that were packed; copy the file again")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tarfile.TarFile]:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; correct the path")
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise InputError(
            f"{path}: not a bundle, or cut short ({error}); copy the file again"
        ) from error
