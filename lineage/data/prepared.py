"""Pass data that the sources stage has validated on to the stages corpus and task.

User data are read once: the sources stage writes the files of each artifact to .lineage/prepared
and the measures that checks need to .lineage/checks. The later stages take the files, and read the
data again only if they are gone, as after `dvc repro --force`.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lineage.artifacts import read_json, text_digest, write_json
from lineage.errors import InputError
from lineage.runtime.code import stage_code_digests
from lineage.runtime.settings import STATE_DIR

MEASURES_FOLDER = STATE_DIR / "checks"
PREPARED_FOLDER = STATE_DIR / "prepared"
Measures = dict[str, Any]  # the fields of CorpusMeasures or TaskMeasures, as JSON keeps them


@dataclass(frozen=True)
class PreparedData:
    """One corpus or task, for one state of its data, parameters and code."""

    stage: Literal["corpus", "task"]
    name: str
    key: str
    fingerprint: Any  # identifies the user's data
    build: Callable[[Path], Measures]  # reads the data, and writes the files of the artifact

    @property
    def folder(self) -> Path:
        """The prepared files, until a stage takes them."""
        return PREPARED_FOLDER / self.stage / self.name / self.key

    @property
    def measures_path(self) -> Path:
        """The measures, which stay."""
        return MEASURES_FOLDER / f"{self.key}.json"

    def measure(self) -> Measures:
        """Return the cached measures, or build the files; a failure is raised again each time."""
        if self.measures_path.is_file():
            return dict(read_json(self.measures_path))
        shutil.rmtree(self.folder.parent, ignore_errors=True)  # of other data or parameters
        draft = self.folder.with_name(f".{self.key}.draft")
        draft.mkdir(parents=True)
        measures = self.build(draft)
        os.replace(draft, self.folder)
        write_json(self.measures_path, measures)
        return measures

    def take(self, target: Path, recorded_fingerprint: object, where: str) -> None:
        """Move the prepared files to an artifact's folder; build them there if they are gone."""
        if self.fingerprint != recorded_fingerprint:
            raise InputError(
                f"{where}: its data changed after the sources stage had read it; run again"
            )
        if self.folder.is_dir():
            # Removed at the end only: this process may be killed in between.
            shutil.copytree(self.folder, target, copy_function=_link_or_copy, dirs_exist_ok=True)
            shutil.rmtree(self.folder.parent)
        else:
            self.build(target)


def _link_or_copy(source: str, target: str) -> None:
    """Give a file a second name, or copy it to another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def locate_prepared(
    stage: Literal["corpus", "task"],
    name: str,
    build: Callable[[Path], Measures],
    *,
    fingerprint: object,
    parameters: Mapping[str, object],
    seed: int,
    kind_digest: str = "",
) -> PreparedData:
    """Return a corpus or task with this data, these parameters and this code."""
    content = [name, fingerprint, parameters, seed, kind_digest, stage_code_digests(stage)]
    key = text_digest(json.dumps(content, sort_keys=True, default=str))[:24]
    return PreparedData(stage, name, key, fingerprint, build)
