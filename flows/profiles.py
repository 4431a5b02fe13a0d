"""Compose the params.yaml of a profile: profiles/base.yaml, with the profile over it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lineage.config.records import read_yaml, suggest_nearest
from lineage.errors import InputError

Tree = Mapping[str, Any]


def compose_profile(profiles: Path, name: str) -> dict[str, Any]:
    """Return base.yaml with the profile over it: maps merge, lists and single values replace.

    Raises InputError if there is no such profile.
    """
    known = {path.stem for path in profiles.glob("*.yaml")} - {"base"}
    if name not in known:
        raise InputError(f"profiles: there is no {name}.yaml{suggest_nearest(name, known)}")
    return merge_params(read_yaml(profiles / "base.yaml"), read_yaml(profiles / f"{name}.yaml"))


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
