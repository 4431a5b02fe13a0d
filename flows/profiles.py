"""What params.yaml a profile makes: the defaults of profiles/base.yaml, and the profile over them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lineage.config.records import read_yaml, suggest_nearest
from lineage.errors import InputError


def compose_profile(profiles: Path, name: str) -> dict[str, Any]:
    """base.yaml with the profile over it: maps merge, lists and single values replace.

    An entry of a block that says `like: OTHER` is the block's entry OTHER with what it says itself over it, a model of its family too; a model that
    says `from`, and nothing of what it is, is like `public`. Raises InputError.
    """
    known = {path.stem for path in profiles.glob("*.yaml")} - {"base"}
    if name not in known:
        raise InputError(f"profiles: there is no {name}.yaml{suggest_nearest(name, known)}")
    tree = merge_params(read_yaml(profiles / "base.yaml"), read_yaml(profiles / f"{name}.yaml"))
    where = f"profiles/{name}.yaml"
    for model, entry in tree["models"].items() if isinstance(tree.get("models"), Mapping) else ():
        if (
            isinstance(entry, dict)
            and "from" in entry
            and "like" not in entry
            and model != "public"
            and entry.get("family", "public") == "public"
        ):
            entry["like"] = "public"
    return {
        key: {n: _resolve_like(n, block, f"{where}: {key}") for n in block}
        if isinstance(block, Mapping)
        else block
        for key, block in tree.items()
    }


def _resolve_like(
    name: str, block: Mapping[str, Any], where: str, ancestors: tuple[str, ...] = ()
) -> Any:
    """One entry of a block, with what it is `like` below it."""
    entry = block[name]
    if not isinstance(entry, Mapping) or "like" not in entry:
        model = ancestors and where.endswith(": models") and isinstance(entry, Mapping)
        return (
            {"family": name, **entry} if model else entry
        )  # an entry by the name of its family leaves that out
    source = entry["like"]
    if (
        not isinstance(source, str)
        or not isinstance(block.get(source), Mapping)
        or source in (*ancestors, name)
    ):
        raise InputError(
            f"{where}.{name}: like is '{source}'{suggest_nearest(source, {*block} - {*ancestors, name})}"
        )
    return merge_params(
        _resolve_like(source, block, where, (*ancestors, name)),
        {key: value for key, value in entry.items() if key != "like"},
    )


def merge_params(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Maps merge key by key; everything else is replaced."""
    merged = dict(defaults)
    for key, value in overrides.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_params(merged[key], value) if both else value
    return merged


def write_params(path: Path, tree: Mapping[str, Any]) -> None:
    """A params file that reads back as the same tree."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.representer.ignore_aliases = lambda _: (
        True
    )  # what two blocks share is written out in both, or an edit of one would be one of the other
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with path.open("w", encoding="utf-8") as stream:
        yaml.dump(dict(tree), stream)
    assert read_yaml(path) == tree, "params survive writing"
