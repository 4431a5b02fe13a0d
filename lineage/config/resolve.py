"""Resolve params.yaml: fill in what it leaves to the defaults.

A model's block is, from the weakest to the strongest: the defaults of its family, the block
`defaults` of params.yaml, the entry that it is `like`, and its own keys. Maps merge key by key;
lists and single values replace. A study that sets a key of DEFAULT_TRIAL_KEYS has no default trials
of it.
"""

import copy
from collections.abc import Mapping
from typing import Any

from lineage.config.records import suggest_nearest
from lineage.errors import InputError
from lineage.networks.registry import family_names, load_family
from lineage.results import PUBLIC_FAMILY

Tree = Mapping[str, Any]
# The key of each method that its default trials vary.
DEFAULT_TRIAL_KEYS = {"linear_probe": "l2", "finetune": "learning_rate", "setfit": "l2"}
# Blocks of a model that the study has no block of the same name for, as it has `adapt`.
MODEL_ONLY_BLOCKS = ("tokenizer", "architecture", "pretrain", "evaluate")


def family_of(name: str, block: Tree) -> str:
    """Return the name of a model's family: the one it names, or its own key."""
    if "family" in block:
        return str(block["family"])
    return PUBLIC_FAMILY if "from" in block else name


def merge_trees(defaults: Tree, overrides: Tree) -> dict[str, Any]:
    """Merge maps key by key; everything else is replaced."""
    merged = dict(defaults)
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge_trees(merged[key], value)
        else:
            merged[key] = value
    return merged


def resolve_tree(tree: Tree, where: str) -> dict[str, Any]:
    """Return params.yaml with every `like`, `defaults` and family default filled in.

    A misshapen part stays as it is, for validation. Raises InputError.
    """
    for key in MODEL_ONLY_BLOCKS:
        if key in tree:
            raise InputError(
                f"{where}: '{key}' is a block of models; write it under 'defaults' for all of "
                f"them, as defaults: {{{key}: ...}}, or under one of 'models'"
            )
    resolved = dict(tree)
    shared = resolved.pop("defaults", {})
    for key in ("corpora", "tasks", "models"):
        block = resolved.get(key)
        if isinstance(block, Mapping):
            resolved[key] = {name: _resolve_like(name, block, f"{where}: {key}") for name in block}
    models = resolved.get("models", {})
    if not isinstance(models, Mapping) or not isinstance(shared, Mapping):
        return dict(tree)
    models = _families_of_the_grid(resolved) | {**models}
    resolved["models"] = {
        name: fill_in_defaults(name, block, shared) for name, block in models.items()
    }
    return resolved


def fill_in_defaults(name: str, block: Any, shared: Tree | None = None) -> Any:
    """Return a model's block over the defaults of its family and over `shared`, if any."""
    if block is None:
        block = {}  # `gpt:` alone in params.yaml
    if not isinstance(block, Mapping):
        return block
    family = family_of(name, block)
    if family not in family_names():
        return block
    defaults = load_family(family).defaults
    # A copy: nobody may change the defaults of a family.
    merged = copy.deepcopy(dict(defaults))
    shared = dict(shared or {})
    if family == PUBLIC_FAMILY:
        shared.pop("tokenizer", None)
    if "adapt" not in defaults:  # static vectors have no language model to adapt
        shared.pop("adapt", None)
    for level in (shared, block):
        merged = merge_trees(merge_trees(merged, level), _without_default_trials(level))
    return merged


def _without_default_trials(level: Tree) -> dict[str, Any]:
    """Return `trials: []` for each method whose key of DEFAULT_TRIAL_KEYS is set at this level."""
    evaluate = level.get("evaluate")
    if not isinstance(evaluate, Mapping):
        return {}
    methods: dict[str, Any] = {}
    for method, key in DEFAULT_TRIAL_KEYS.items():
        settings = evaluate.get(method)
        if isinstance(settings, Mapping) and key in settings and "trials" not in settings:
            methods[method] = {"trials": []}
    return {"evaluate": methods} if methods else {}


def trained_family_names() -> set[str]:
    """Return the families that a study can train: all but public checkpoints."""
    return {*family_names()} - {PUBLIC_FAMILY}


def _families_of_the_grid(tree: Tree) -> dict[str, Any]:
    """Return an empty block for each family of grid.models, which needs no entry in `models`."""
    grid = tree.get("grid")
    names = grid.get("models") if isinstance(grid, Mapping) else None
    if not isinstance(names, list | tuple):
        return {}
    known = trained_family_names()
    return {name: {} for name in names if isinstance(name, str) and name in known}


def _resolve_like(name: str, block: Tree, where: str, ancestors: tuple[str, ...] = ()) -> Any:
    """Return one entry of a block, with the entry that it is `like` below it.

    `ancestors` are the entries that are like this one.
    """
    entry = block[name]
    if not isinstance(entry, Mapping):
        return entry
    if "like" not in entry:
        if ancestors and where.endswith(": models"):
            return {"family": family_of(name, entry), **entry}
        return entry
    source = entry["like"]
    chain = (*ancestors, name)
    own = {key: value for key, value in entry.items() if key != "like"}
    is_family = isinstance(source, str) and source not in block and source in family_names()
    if is_family and where.endswith(": models"):
        return {"family": source, **own}
    if not isinstance(source, str) or not isinstance(block.get(source), Mapping) or source in chain:
        hint = suggest_nearest(source, set(block) - set(chain))
        raise InputError(f"{where}.{name}: like is '{source}'{hint}")
    return merge_trees(_resolve_like(source, block, where, chain), own)
