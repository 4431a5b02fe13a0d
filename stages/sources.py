"""Stage sources: all parameters and all data checked before anything runs, and a small record of each, so that edits are seen wherever they lie."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from lineage import artifacts
from lineage.consistency import check_study, longest_texts
from lineage.errors import InputError
from lineage.loading.checking import check_corpus, check_task_data
from lineage.loading.public import NEEDS_LIBRARY, describe, library_is_there
from lineage.loading.public_reader import read_reader
from lineage.params import Params, read_params
from lineage.report.literature import check_published
from lineage.running.code import code_of
from lineage.running.runtime import check_folder, data_root
from lineage.running.stage import Stage, run
from lineage.study import Variant, family_file
from lineage.training.train import bf16_gain, prepare_torch

RESULTS = Path("artifacts/results")
# what DVC runs again where its code has changed
VERBS = ("corpus", "task", "overlap", "tokenizer", "pretrain", "adapt", "evaluate", "control", "report")


def work(stage: Stage) -> None:
    """Check everything, then write the records, then remove what a narrower grid left behind."""
    params, root = read_params(), data_root()
    variants = check_study(params)
    for folder in ("artifacts", "reports"):
        check_folder(folder)
    trained = {name: variants[name].tokenizer for name in params.grid.families}
    vocabularies = {name: settings.vocabulary for name, settings in trained.items() if settings is not None}
    named = {name: variants[name].pretrain for name in params.grid.families if variants[name].family.translator is not None}
    languages = {name: (own.source, own.target) for name, own in named.items()}
    prepare_torch(params.threads)
    if (params.precision, params.device_class) == ("bf16", "cpu") and (gain := bf16_gain()) < 1:  # other machines' workers may gain
        print(f"params.yaml: precision: in bf16 products run at {gain:.2f} times their speed in fp32 on this CPU; set fp32", file=sys.stderr)
    records = {f"corpora/{params.budget.corpus}": check_corpus(params.budget.corpus, params, vocabularies, languages, root)}
    for name in params.grid.tasks:
        check_published(params.tasks[name], f"params.yaml: tasks.{name}")
    records |= {f"tasks/{name}": check_task_data(name, params, root, longest_texts(params, variants, name)) for name in params.grid.tasks}
    for name in params.grid.families:
        found, more = variants[name], dict[str, Any]()
        if found.origin is not None:
            found, more = check_public(found, params, root)
        code = artifacts.file_digest(family_file(found.family.name))
        records[f"variants/{name}"] = {
            "variant": name,
            "family": found.family.name,
            "family_sha256": code,
            "unit": found.unit,
            "mechanism": found.mechanism,
        } | more
    records |= {f"code/{verb}": code_of(verb) for verb in VERBS}
    with artifacts.create(Path("artifacts/sources"), "sources") as home:
        for name, record in records.items():
            artifacts.write_json(home / f"{name}.json", record)
    remove_stale(params)


def check_public(found: Variant, params: Params, root: Path) -> tuple[Variant, dict[str, Any]]:
    """A public variant that knows its folder, and what its record says more. Raises InputError, also where it cannot do what the grid asks of it."""
    assert found.origin is not None
    where, folder = found.origin.where, found.origin.folder(root)
    about = describe(folder)
    read_reader(folder, language=params.corpora[params.budget.corpus].language)
    if not library_is_there():
        raise InputError(f"{where}: {NEEDS_LIBRARY}")
    if found.name in params.grid.adapt_families:
        if not about.head:
            raise InputError(f"params.yaml: grid.adapt_families: {found.name}: {folder} has no head of a language model to go on with; take it out, "
                             "or save the checkpoint with its head (AutoModelForMaskedLM)")  # fmt: skip
        if (found.pretrain.length or 0) > about.positions:
            raise InputError(f"{where}.pretrain.length: {found.pretrain.length} is more than the {about.positions} positions of {folder}; lower it")
    return replace(found, model=replace(found.model, about=about)), {"source": found.origin.facts(root)}


def remove_stale(params: Params) -> None:
    """Remove the results of cells that the grid no longer has, so that the report never shows them."""
    wanted = {f"{verb}-{cell}" for verb, cells in params.grid.cells.items() for cell in cells}
    for path in RESULTS.glob("*/*"):
        if path.is_file() and path.stem not in wanted:
            path.unlink()


def main() -> None:
    run("sources", work)


if __name__ == "__main__":
    main()
