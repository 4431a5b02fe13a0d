"""Stage sources: all parameters and all data checked before anything runs, and a small record of each, so that edits are seen wherever they lie."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from lineage import artifacts
from lineage.config.checks import check_study, text_length_limits
from lineage.config.params import Params, read_params
from lineage.config.stage_records import stage_records
from lineage.config.study import ModelConfig, family_source_file
from lineage.data.checks import check_corpus, check_task_data
from lineage.errors import InputError
from lineage.models.public_folders import (
    TRANSFORMERS_MISSING,
    inspect_checkpoint,
    is_transformers_available,
)
from lineage.models.public_tokenizer import load_public_tokenizer
from lineage.report.literature import check_benchmark_name
from lineage.runtime.code import code_digest, stage_code_digests
from lineage.runtime.settings import check_writable, resolve_data_root
from lineage.runtime.stage import Stage, run_stage
from lineage.training.devices import configure_torch, measure_bf16_speedup

RESULTS_DIR = Path("artifacts/results")
# what DVC runs again where its code has changed
WATCHED_VERBS = (
    "corpus",
    "task",
    "contamination",
    "tokenizer",
    "pretrain",
    "adapt",
    "evaluate",
    "baselines",
    "report",
)


def work(stage: Stage) -> None:
    """Check everything, then write the records, then remove what a narrower grid left behind."""
    params, root = read_params(), resolve_data_root()
    models = check_study(params)
    for folder in ("artifacts", "reports"):
        check_writable(folder)
    trained = {name: models[name].tokenizer for name in params.grid.models}
    vocabularies = {
        name: settings.vocab_size for name, settings in trained.items() if settings is not None
    }
    translators = {
        name: models[name].pretrain
        for name in params.grid.models
        if models[name].family.can_translate
    }
    languages = {
        name: (own.source_language, own.target_language) for name, own in translators.items()
    }
    configure_torch(params.threads)
    if (params.precision, params.device) == ("bf16", "cpu") and (
        gain := measure_bf16_speedup()
    ) < 1:  # other machines' workers may gain
        print(
            f"params.yaml: precision: in bf16 products run at {gain:.2f} times their speed in fp32 on this CPU; set fp32",
            file=sys.stderr,
        )
    records = {
        f"corpora/{params.budget.corpus}": check_corpus(
            params.budget.corpus, params, vocabularies, languages, root
        )
    }
    for name in params.grid.tasks:
        check_benchmark_name(params.tasks[name], f"params.yaml: tasks.{name}")
    records |= {
        f"tasks/{name}": check_task_data(
            name, params, root, text_length_limits(params, models, name)
        )
        for name in params.grid.tasks
    }
    for name in params.grid.models:
        found, more = models[name], dict[str, Any]()
        if found.checkpoint_source is not None:
            found, more = check_public_model(found, params, root)
        code = code_digest(family_source_file(found.family.name))
        records[f"models/{name}"] = {
            "model": name,
            "family": found.family.name,
            "family_sha256": code,
            "unit": found.tokenizer_type,
            "mechanism": found.mechanism,
        } | more
    records |= {f"code/{verb}": stage_code_digests(verb) for verb in WATCHED_VERBS}
    resolved = stage_records(params, models)
    records |= {f"config/{name}": record for name, record in resolved.items()}
    with artifacts.create_artifact(Path("artifacts/sources"), "sources") as home:
        for name, record in records.items():
            artifacts.write_json(home / f"{name}.json", record)
    remove_stale_results(params)


def check_public_model(
    model: ModelConfig, params: Params, root: Path
) -> tuple[ModelConfig, dict[str, Any]]:
    """A public variant that knows its folder, and what its record says more. Raises InputError, also where it cannot do what the grid asks of it."""
    assert model.checkpoint_source is not None
    where, folder = model.checkpoint_source.where, model.checkpoint_source.resolve_folder(root)
    about = inspect_checkpoint(folder)
    load_public_tokenizer(folder, language=params.corpora[params.budget.corpus].language)
    if not is_transformers_available():
        raise InputError(f"{where}: {TRANSFORMERS_MISSING}")
    if model.name in params.grid.adapt_models:
        if not about.has_lm_head:
            raise InputError(
                f"params.yaml: grid.adapt_models: {model.name}: {folder} has no head of a language model to go on with; take it out, "
                "or save the checkpoint with its head (AutoModelForMaskedLM)"
            )
        if (model.pretrain.seq_len or 0) > about.max_positions:
            raise InputError(
                f"{where}.pretrain.seq_len: {model.pretrain.seq_len} is more than the {about.max_positions} positions of {folder}; lower it"
            )
    return replace(model, architecture=replace(model.architecture, about=about)), {
        "source": model.checkpoint_source.fingerprint(root)
    }


def remove_stale_results(params: Params) -> None:
    """Remove the results of cells that the grid no longer has, so that the report never shows them."""
    wanted = {
        f"{verb}-{cell}" for verb, cells in params.grid.stage_instances.items() for cell in cells
    }
    for path in RESULTS_DIR.glob("*/*"):
        if path.is_file() and path.stem not in wanted:
            path.unlink()


def main() -> None:
    run_stage("sources", work)


if __name__ == "__main__":
    main()
