"""Stage sources: all parameters and all data checked before anything runs, and a small record of each, so that edits are seen wherever they lie."""

from pathlib import Path

from lineage import artifacts
from lineage.checking import check_corpus, check_task_data
from lineage.code import code_of
from lineage.params import Params, read_params
from lineage.runtime import check_folder, data_root
from lineage.stage import Stage, run
from lineage.study import check_study, family_file

RESULTS = Path("artifacts/results")
VERBS = ("corpus", "task", "tokenizer", "pretrain", "adapt", "evaluate", "control", "report")  # what DVC runs again where its code has changed


def work(stage: Stage) -> None:
    """Check everything, then write the records, then remove what a narrower grid left behind."""
    params, root = read_params(), data_root()
    variants = check_study(params)
    for folder in ("artifacts", "reports"):
        check_folder(folder)
    vocabularies = {name: variants[name].tokenizer.vocabulary for name in params.grid.families}
    records = {f"corpora/{params.budget.corpus}": check_corpus(params.budget.corpus, params, vocabularies, root)}
    records |= {f"tasks/{name}": check_task_data(name, params, root) for name in params.grid.tasks}
    for name in params.grid.families:
        found, family = variants[name], variants[name].family
        code = artifacts.file_digest(family_file(family.name))
        records[f"variants/{name}"] = {
            "variant": name,
            "family": family.name,
            "family_sha256": code,
            "unit": found.unit,
            "mechanism": found.mechanism,
        }
    records |= {f"code/{verb}": code_of(verb) for verb in VERBS}
    with artifacts.create(Path("artifacts/sources"), "sources") as home:
        for name, record in records.items():
            artifacts.write_json(home / f"{name}.json", record)
    remove_stale(params)


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
