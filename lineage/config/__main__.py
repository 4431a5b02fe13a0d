"""Print all resolved values of params.yaml, its JSON schema, or the reference of its keys."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lineage.config.params import Params, read_params
from lineage.config.schema import json_schema, reference
from lineage.config.study import MODEL_BLOCKS, load_model_config
from lineage.errors import InputError


def main() -> int:
    """Print the requested text; return 2 if params.yaml is not valid."""
    parser = argparse.ArgumentParser(prog="python -m lineage.config", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("params.yaml"))
    parser.add_argument("--schema", action="store_true", help="the JSON schema, for editors")
    parser.add_argument("--reference", action="store_true", help="docs/reference/params.md")
    arguments = parser.parse_args()
    if arguments.schema:
        print(json.dumps(json_schema(), indent=1))
        return 0
    if arguments.reference:
        print(reference())
        return 0
    try:
        values = resolved_values(read_params(arguments.file))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.dump(values, sys.stdout)
    return 0


def resolved_values(params: Params) -> dict[str, Any]:
    """Return the tree of a params.yaml that writes out every default. Raises InputError."""
    tree: dict[str, Any] = _write_out(params)
    for name, block in params.models.items():
        model = load_model_config(params, name)
        written = {key: value for key, value in block.items() if key not in MODEL_BLOCKS}
        written["family"] = model.family.name
        for key in MODEL_BLOCKS:
            record = getattr(model, key)
            if record is not None:
                written[key] = _write_out(record)
        if model.tokenizer is None:
            written["tokenizer"] = "pretrained"
        tree["models"][name] = written
    return tree


def _write_out(value: Any) -> Any:
    """Return a record as a tree, without the keys that are null by default and in this record."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tree = {}
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if inner is not None or field.default is not None:
                tree[field.name] = _write_out(inner)
        return tree
    if isinstance(value, dict):
        return {key: _write_out(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_write_out(inner) for inner in value]
    return value


if __name__ == "__main__":
    sys.exit(main())
