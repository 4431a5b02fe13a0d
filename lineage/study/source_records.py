"""Check all parameters and all data, and record what they are, so that later stages see an edit."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lineage import __version__
from lineage.analysis.literature import check_benchmark_name
from lineage.artifacts import write_json
from lineage.config.params import PARAMS_FILE, RECORDED_PARAMS_FILE, Params
from lineage.errors import InputError
from lineage.networks.public_folders import (
    MODULES_FILE,
    TRANSFORMERS_MISSING,
    inspect_checkpoint,
    is_transformers_available,
)
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.networks.registry import family_source_file
from lineage.runtime.code import code_digest, package_digest, stage_code_digests
from lineage.runtime.provenance import SOURCES_DIR, PackageVersion
from lineage.study.checks import check_data, check_study
from lineage.study.models import ModelConfig
from lineage.study.stage_records import stage_records
from lineage.training.devices import configure_torch, measure_bf16_speedup

# The verbs whose stages DVC runs again when their code has changed.
WATCHED_VERBS = (
    "corpus",
    "task",
    "contamination",
    "tokenizer",
    "recipe",
    "pretrain",
    "adapt",
    "target_only",
    "evaluate",
    "baselines",
    "ngram",
    "report",
    "refit",
)

SourceRecord = dict[str, Any]


def collect_records(params: Params, data_root: Path) -> dict[str, Any]:
    """Check all parameters and all data, and return the records by name. Raises InputError."""
    models = check_study(params)
    configure_torch(params.threads)
    warn_of_slow_bf16(params)
    for name in params.grid.tasks:
        check_benchmark_name(params.tasks[name], f"params.yaml: tasks.{name}")
    records: dict[str, Any] = dict(check_data(params, models, data_root))
    for name in params.grid.models:
        records[f"models/{name}"] = record_model(models[name], params, data_root)
    for verb in WATCHED_VERBS:
        records[f"code/{verb}"] = stage_code_digests(verb)
    for name, record in stage_records(params, models).items():
        records[f"config/{name}"] = record
    records["package"] = asdict(PackageVersion(__version__, package_digest()))
    # Stages that read the user's checkpoints cannot run on a worker.
    home_stages = []
    for name in params.grid.models:
        if models[name].checkpoint_source is not None:
            home_stages.append(f"tokenizer@{name}")
            home_stages += [f"pretrain@{name}-{seed}" for seed in params.grid.pretrain_seeds]
    records["home_stages"] = home_stages
    return records


def refresh_parameter_records(params: Params) -> None:
    """Write the records of parameters again, so that DVC sees the effect of an edit of params.yaml.

    Raises InputError.
    """
    records = stage_records(params, check_study(params))
    if not SOURCES_DIR.is_dir():
        return
    for name, record in records.items():
        write_json(SOURCES_DIR / "config" / f"{name}.json", record)
    RECORDED_PARAMS_FILE.write_bytes(PARAMS_FILE.read_bytes())


def warn_of_slow_bf16(params: Params) -> None:
    """Print a warning if bf16 is slower than fp32 on this CPU."""
    if params.precision != "bf16" or params.device != "cpu":
        return
    speedup = measure_bf16_speedup()
    if speedup < 1:
        print(
            f"params.yaml: precision: in bf16 products run at {speedup:.2f} times their speed in "
            "fp32 on this CPU; set fp32",
            file=sys.stderr,
        )


def record_model(model: ModelConfig, params: Params, data_root: Path) -> SourceRecord:
    """Return the record of a model. A public one is checked. Raises InputError."""
    record: SourceRecord = {
        "model": model.name,
        "family": model.family.name,
        "family_sha256": code_digest(family_source_file(model.family.name)),
    }
    if model.checkpoint_source is not None:
        model = check_public_model(model, params, data_root)
        assert model.checkpoint_source is not None
        record["source"] = model.checkpoint_source.fingerprint(data_root)
        record["reads_corpus"] = model.family.reads_corpus(model.pretrain)
    record["unit"] = model.tokenizer_type
    return record


def check_public_model(model: ModelConfig, params: Params, data_root: Path) -> ModelConfig:
    """Return a public model that knows its folder.

    Raises InputError if it cannot do what the grid asks for.
    """
    source = model.checkpoint_source
    assert source is not None
    folder = source.resolve_folder(data_root)
    about = inspect_checkpoint(folder)
    load_public_tokenizer(folder, language=params.corpora[params.budget.corpus].language)
    if not is_transformers_available():
        raise InputError(f"{source.where}: {TRANSFORMERS_MISSING}")
    reads_corpus = model.family.reads_corpus(model.pretrain)
    if reads_corpus and (folder / MODULES_FILE).is_file():
        print(
            f"{source.where}.pretrain.continue_on_corpus: {folder.name} is a sentence encoder, and "
            "going on as a language model can spoil its vectors of texts; keep the checkpoint as "
            "it is in the grid too, and the report compares the two",
            file=sys.stderr,
        )
    if reads_corpus:
        about = about.with_lm_head()
    if reads_corpus or model.name in params.grid.adapt_models:
        if not about.has_lm_head:
            where = f"params.yaml: grid.adapt_models: {model.name}"
            advice = "remove it"
            if reads_corpus:
                where = f"{source.where}.pretrain.continue_on_corpus"
                advice = "set it to false"
            fix = ", or save the checkpoint with its head (AutoModelForMaskedLM)"
            if about.model_type.lm_head is None:
                model_type = about.hf_config["model_type"]
                fix = f", since a {model_type} was not pretrained as a language model"
            raise InputError(
                f"{where}: {folder} has no head of a language model to go on with; {advice}{fix}"
            )
        model_type = about.model_type
        if model.pretrain.causal_share and (about.causal or not model_type.takes_causal_mask):
            raise InputError(
                f"{source.where}.pretrain.causal_share: a {about.hf_config['model_type']} cannot "
                "change from masked pieces to the next piece and back; set it to 0"
            )
        if model.pretrain.causal_share == 1:
            raise InputError(
                f"{source.where}.pretrain.causal_share: with 1 the model never returns to masks; "
                "lower it, such as 0.5"
            )
        seq_len = model.pretrain.seq_len or 0
        if seq_len > about.max_positions:
            raise InputError(
                f"{source.where}.pretrain.seq_len: {seq_len} is more than the "
                f"{about.max_positions} positions of {folder}; lower it"
            )
    return replace(model, architecture=replace(model.architecture, checkpoint_info=about))
