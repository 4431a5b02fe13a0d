"""The resolved values that each stage depends on.

dvc.yaml tracks these records instead of keys of params.yaml, so a changed default re-runs exactly
the stages that it affects. Only DVC reads them.
"""

import dataclasses
from typing import Any

from lineage.config.params import Params
from lineage.networks.base import Static
from lineage.study.models import ModelConfig
from lineage.tasks.base import list_sentence_tasks

Record = dict[str, Any]


def stage_records(params: Params, models: dict[str, ModelConfig]) -> dict[str, Record]:
    """Return the record of each stage by its name in artifacts/sources/config."""
    corpus = params.budget.corpus
    records: dict[str, Record] = {
        f"corpus-{corpus}": {"seed": params.seed, **_as_tree(params.corpora[corpus])},
        "contamination": {"corpus": corpus, "split": params.report.split},
        "baselines": _evaluation_grid(params) | {"tfidf_C": params.grid.tfidf_C},
        "ngram": {
            "seed": params.seed,
            "split": params.report.split,
            "budget": {"corpus": corpus, "text_bytes": params.budget.text_bytes},
            "language": params.corpora[corpus].language,
            "models": params.grid.models,
            "pretrain_seeds": params.grid.pretrain_seeds,
            "threads": params.threads,
            "tasks": list_sentence_tasks(params.tasks, params.grid.tasks),
        },
        "report": {
            "grid": _as_tree(params.grid),
            "report": _as_tree(params.report),
            "tasks": {name: _as_tree(task) for name, task in params.tasks.items()},
        },
    }
    records["refit"] = params.compute_settings | {"split": params.report.split}
    for name in params.grid.tasks:
        records[f"task-{name}"] = {"seed": params.seed, **params.tasks[name].data_keys}
    for name in params.grid.models:
        records |= _model_records(params, models[name])
    return records


def _model_records(params: Params, model: ModelConfig) -> dict[str, Record]:
    corpus = params.budget.corpus
    evaluate = (
        params.compute_settings | _evaluation_grid(params) | {"evaluate": _as_tree(model.evaluate)}
    )
    if isinstance(model.family, Static):
        evaluate["tfidf_C"] = params.grid.tfidf_C  # of the unigram control
    if model.name not in params.grid.setfit_models:
        del evaluate["evaluate"]["setfit"]
    tokenizer = _as_tree(model.tokenizer) if model.tokenizer else "pretrained"
    tokenizer_record: Record = {
        "seed": params.seed,
        "corpus": corpus,
        "language": params.corpora[corpus].language,
        "tokenizer": tokenizer,
    }
    if model.tokenizer is None:
        # A public checkpoint's stage writes the corpus as token ids if it continues on it.
        tokenizer_record["reads_corpus"] = model.family.reads_corpus(model.pretrain)
    records: dict[str, Record] = {
        "tokenizer": tokenizer_record,
        "pretrain": params.compute_settings
        | {
            "budget": _as_tree(params.budget),
            "architecture": _as_tree(model.architecture),
            "pretrain": _as_tree(model.pretrain),
        },
        "recipe": {"sweep": None},  # not empty, which DVC would take for changed
        "evaluate": evaluate,
        "evaluate_joined": evaluate | {"join_static_model": params.grid.join_static_model},
    }
    if model.name in params.grid.sweep:
        records["recipe"] = records["pretrain"] | {
            "sweep": _as_tree(params.sweep),
            "pretrain_seed": params.grid.pretrain_seeds[0],
        }
    if model.adapt is not None:
        records["adapt"] = params.compute_settings | {
            "budget": _as_tree(params.adapt) | {"text_bytes": params.max_adaptation_bytes},
            "adapt": _as_tree(model.adapt),
        }
        records["target_only"] = records["pretrain"] | {
            "tokenizer": tokenizer,
            "patience": params.adapt.patience,
            "heldout_share": params.adapt.heldout_share,
        }
    if model.is_trained_by_loop and params.grid.text_shares:
        # The stage evaluate finds the checkpoints of these shares in the folder of the model.
        records["pretrain"] = records["pretrain"] | {"text_shares": params.grid.text_shares}
    return {f"{stage}-{model.name}": record for stage, record in records.items()}


def _evaluation_grid(params: Params) -> Record:
    return {
        "seed": params.seed,
        "split": params.report.split,
        "finetune_seeds": params.grid.finetune_seeds,
        "label_counts": params.grid.label_counts,
    }


def _as_tree(record: Any) -> Record:
    return dataclasses.asdict(record)
