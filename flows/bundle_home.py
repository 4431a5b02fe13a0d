"""Pack stages of a study into a bundle, and accept their results: `lineage bundle` and `accept`."""

import json
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.bundle import (
    RESUME_DIR,
    Bundle,
    BundledStage,
    check_out,
    digest_files,
    lies_in,
    metadata_path,
    read_bundle,
    unpack,
    write_bundle,
)
from flows.execute import StageContext, run_stage, stage_file_name
from flows.handover import make_request, remove
from flows.plan import ALWAYS_RUNS, FIRST_STAGE, Reasons, StageNode, find_stale_stages, list_changes
from flows.repository import RepositoryError
from flows.run import hold_study, read_valid_graph
from flows.runner import must_run_here
from flows.study import open_study
from lineage import __version__
from lineage.config.records import suggest_nearest
from lineage.errors import InputError
from lineage.runtime import journal
from lineage.runtime.provenance import archive_stage_metadata, read_lock_entry
from lineage.runtime.scratch import scratch_folder
from lineage.runtime.settings import METADATA_DIR, STATE_DIR


def make_bundle(root: Path, names: Sequence[str], out: Path) -> str:
    """Pack these stages of a study, and return a line for the user.

    Their inputs must be up to date, or made by another one of them. Raises InputError.
    """
    open_study(root)
    check_out(out, num_bytes=0)
    with hold_study(root) as context:
        nodes = _update_sources(context)
        stale = find_stale_stages(nodes, context.repository.read_stale_reasons())
        known = [node.name for node in nodes]
        for name in names:
            if name not in known:
                raise InputError(
                    f"{name}: the study has no such stage{suggest_nearest(name, known)}"
                )
        chosen = [node for node in nodes if node.name in names]
        for node in chosen:
            _check_can_travel(node, stale, root)
        _check_upstream(chosen, nodes, stale, root)
        bundle = _collect_bundle(chosen, nodes, context)
        write_bundle(out, bundle, root)
    size_mb = out.stat().st_size / 1e6
    return (
        f"{out}: {', '.join(node.name for node in chosen)}, {size_mb:.1f} MB; on the other machine, "
        f"run `lineage run-bundle {out.name} -o RESULT`"
    )


def _update_sources(context: StageContext) -> list[StageNode]:
    """Record the parameters, data and code of the study as they are, and return its stages."""
    nodes = read_valid_graph(context.root)
    (first,) = [node for node in nodes if node.name == FIRST_STAGE]
    result = run_stage(first.name, context=context, timeout_seconds=first.timeout_seconds)
    if not result.succeeded:
        raise InputError(result.message)
    return nodes


def _check_can_travel(node: StageNode, stale: Mapping[str, Reasons], root: Path) -> None:
    """Raise InputError unless a stage can run elsewhere, and has to run."""
    if must_run_here(node, root):
        raise InputError(f"{node.name}: it reads your files, so it runs at home only; leave it out")
    if not stale[node.name]:
        raise InputError(f"{node.name}: it is up to date, so nothing is left to run; leave it out")


def _check_upstream(
    chosen: Sequence[StageNode],
    nodes: Sequence[StageNode],
    stale: Mapping[str, Reasons],
    root: Path,
) -> None:
    """Raise InputError if stages read something that is not up to date and not made by them."""
    names = {node.name for node in chosen}
    read = {name for node in chosen for name in node.upstream} - names
    missing = [
        node
        for node in nodes
        if node.name in read and stale[node.name] and stale[node.name] != (ALWAYS_RUNS,)
    ]
    if not missing:
        return
    readers = [node.name for node in chosen if {*node.upstream} & {other.name for other in missing}]
    left = [node.name for node in missing]
    movable = [node.name for node in missing if not must_run_here(node, root)]
    too = f", or bundle {', '.join(movable)} too" if movable else ""
    raise InputError(
        f"{', '.join(readers)}: some inputs are not up to date: {', '.join(left)}; run "
        f"`dvc repro {' '.join(left)}` first{too}"
    )


def _collect_bundle(
    chosen: Sequence[StageNode], nodes: Sequence[StageNode], context: StageContext
) -> Bundle:
    names = {node.name for node in chosen}
    read = {name for node in chosen for name in node.upstream} - names
    inputs = [output for node in nodes if node.name in read for output in node.outputs]
    made = [output for node in chosen for output in node.outputs]
    stages = tuple(
        BundledStage(
            **vars(make_request(node.name, node.timeout_seconds, context)),
            command=node.command,
            outputs=node.outputs,
            inputs=_read_inputs(node.name, made, context),
        )
        for node in chosen
    )
    return Bundle(
        __version__, stages, written=time.time(), inputs=digest_files(context.root, inputs)
    )


def _read_inputs(name: str, made: Collection[str], context: StageContext) -> dict[str, Any]:
    """Return what dvc.lock would say about a stage's command, inputs and parameters now.

    Inputs in `made`, which are outputs of the bundle, are left out.
    """
    entry = context.repository.read_inputs(name)
    entry["deps"] = [item for item in entry["deps"] if not lies_in(item["path"], made)]
    as_stored: dict[str, Any] = json.loads(json.dumps(entry))
    return as_stored


def accept_bundle(root: Path, path: Path) -> str:
    """Put the results of a bundle into the study, as if its stages had run here.

    Return lines for the user. Raises InputError, and changes nothing, if the study has changed.
    """
    open_study(root)
    bundle = read_bundle(path)
    if not bundle.finished:
        raise InputError(
            f"{path}: none of its stages has finished; go on with "
            f"`lineage run-bundle {path} -o NEXT`"
        )
    with hold_study(root) as context, scratch_folder(root / STATE_DIR) as scratch:
        nodes = _update_sources(context)
        done = _find_finished(path, bundle, nodes)
        made = [output for node in done for output in node.outputs]
        for node in done:
            _check_unchanged(path, bundle, node.name, made, context)
        _check_declared(path, bundle, done)
        stale = find_stale_stages(nodes, context.repository.read_stale_reasons())
        new = [node for node in done if stale[node.name]]
        for node in done:
            if node not in new:
                _check_same_result(path, bundle, node, root)
        unpack(path, bundle, scratch, bundle.results)
        for node in new:
            _put_in_place(node, scratch, context)
    lines = [
        f"{node.name}: {'accepted' if node in new else 'the study has this result already'}"
        for node in done
    ]
    lines += [
        f"{stage.stage}: not finished; go on with `lineage run-bundle {path} -o NEXT`"
        for stage in bundle.unfinished()
    ]
    return "\n".join(lines)


def _find_finished(path: Path, bundle: Bundle, nodes: Sequence[StageNode]) -> list[StageNode]:
    """Return the finished stages as the study has them, in its order."""
    known = [node.name for node in nodes]
    for name in bundle.finished:
        if name not in known:
            raise InputError(f"{path}: {name}: this study has no such stage; change into the other")
    return [node for node in nodes if node.name in bundle.finished]


def _check_unchanged(
    path: Path, bundle: Bundle, name: str, made: Collection[str], context: StageContext
) -> None:
    """Raise InputError if a stage would read something else now than it has read."""
    (stage,) = [stage for stage in bundle.stages if stage.stage == name]
    now = _read_inputs(name, made, context)
    changes = list(list_changes(stage.inputs, now))
    if changes:
        raise InputError(
            f"{path}: {name}: the study has changed since the stage was bundled: "
            f"{'; '.join(changes)}; undo that, or bundle the stage again"
        )


def _check_declared(path: Path, bundle: Bundle, done: Sequence[StageNode]) -> None:
    """Raise InputError unless the results are the outputs of these stages in dvc.yaml."""
    outputs = [output for node in done for output in node.outputs]
    metadata = [metadata_path(node.name) for node in done]
    places = [*outputs, *metadata, journal.JOURNAL_DIR.as_posix()]
    for name in bundle.results:
        if not lies_in(name, places):
            raise InputError(f"{path}: {name}: no finished stage has it in dvc.yaml; refused")
    for output in [*outputs, *metadata]:
        if not any(lies_in(name, [output]) for name in bundle.results):
            raise InputError(f"{path}: {output} is missing in it; run the bundle again")


def _check_same_result(path: Path, bundle: Bundle, node: StageNode, root: Path) -> None:
    """Raise InputError if the study has another result of a stage: what follows may rest on it."""
    there = {name: digest for name, digest in bundle.results.items() if lies_in(name, node.outputs)}
    if digest_files(root, node.outputs) != there:
        raise InputError(
            f"{path}: {node.name}: the study has a result of other bytes already; to take the "
            f"bundle's, remove {node.outputs[0]}"
        )


def _put_in_place(node: StageNode, scratch: Path, context: StageContext) -> None:
    """Move a stage's outputs into the study, and record them as DVC does after a run."""
    root = context.root
    try:
        with context.repository.reserve(node.name):
            for output in node.outputs:
                remove(root / output)
                (root / output).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(scratch / output, root / output)
        metadata = metadata_path(node.name)
        (root / METADATA_DIR).mkdir(parents=True, exist_ok=True)
        (scratch / metadata).replace(root / metadata)
        _take_over_journals(scratch, node.name)
        context.repository.keep_result(node.name)
    except RepositoryError as error:
        raise InputError(f"{node.name}: DVC could not keep its result: {error}") from error
    remove(root / RESUME_DIR / stage_file_name(node.name))
    archive_stage_metadata(root / METADATA_DIR, node.name, read_lock_entry(root, node.name))


def _take_over_journals(scratch: Path, stage: str) -> None:
    """Let what a stage has logged wait for the next run, which sends it to MLflow."""
    for path in sorted((scratch / journal.JOURNAL_DIR).glob(f"*{journal.SUFFIX}")):
        try:
            if journal.read_stage_run(path).stage == stage:
                journal.take_over(path)
        except journal.JournalError as error:
            print(f"{path.name}: MLflow does not get it: {error}", file=sys.stderr)
