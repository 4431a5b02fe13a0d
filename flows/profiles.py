"""Compose the params.yaml of a profile: the defaults of profiles/base.yaml, with the profile over them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lineage.config.records import read_yaml, suggest_nearest
from lineage.errors import InputError

PUBLIC = "public"  # the model, and the family, of public checkpoints
Tree = Mapping[str, Any]


def compose_profile(profiles: Path, name: str) -> dict[str, Any]:
    """Return base.yaml with the profile over it: maps merge, lists and single values replace. Raises InputError.

    An entry that says `like: OTHER` is the entry OTHER of its block with its own keys over it. That may be a model's family too.
    A model that says `from` and nothing about what it is, is like `public`.
    """
    known = {path.stem for path in profiles.glob("*.yaml")} - {"base"}
    if name not in known:
        raise InputError(f"profiles: there is no {name}.yaml{suggest_nearest(name, known)}")
    tree = merge_params(read_yaml(profiles / "base.yaml"), read_yaml(profiles / f"{name}.yaml"))
    if isinstance(tree.get("models"), Mapping):
        for model, entry in tree["models"].items():
            if model != PUBLIC and _is_public(entry):
                entry["like"] = PUBLIC
    for key, block in tree.items():
        if isinstance(block, Mapping):
            where = f"profiles/{name}.yaml: {key}"
            tree[key] = {entry: _resolve_like(entry, block, where) for entry in block}
    return tree


def _is_public(entry: object) -> bool:
    """Return whether a model's entry is a public checkpoint that does not say what it is like."""
    if not isinstance(entry, dict) or "from" not in entry or "like" in entry:
        return False
    return bool(entry.get("family", PUBLIC) == PUBLIC)


def _resolve_like(name: str, block: Tree, where: str, ancestors: tuple[str, ...] = ()) -> Any:
    """Return one entry of a block, with the entry that it is `like` below it. `ancestors` are like this one."""
    entry = block[name]
    if not isinstance(entry, Mapping):
        return entry
    if "like" not in entry:
        if ancestors and where.endswith(": models"):
            return {"family": name, **entry}  # an entry named as its family leaves that out
        return entry
    source = entry["like"]
    chain = (*ancestors, name)
    if not isinstance(source, str) or not isinstance(block.get(source), Mapping) or source in chain:
        hint = suggest_nearest(source, set(block) - set(chain))
        raise InputError(f"{where}.{name}: like is '{source}'{hint}")
    own = {key: value for key, value in entry.items() if key != "like"}
    return merge_params(_resolve_like(source, block, where, chain), own)


def merge_params(defaults: Tree, overrides: Tree) -> dict[str, Any]:
    """Merge maps key by key; everything else is replaced."""
    merged = dict(defaults)
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge_params(merged[key], value)
        else:
            merged[key] = value
    return merged


def write_params(path: Path, tree: Tree) -> None:
    """Write a params file that reads back as the same tree."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    # Write out what two blocks share in both, or an edit of one would change the other.
    yaml.representer.ignore_aliases = lambda _: True
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with path.open("w", encoding="utf-8") as stream:
        yaml.dump(dict(tree), stream)
    assert read_yaml(path) == tree, "params survive writing"
