"""Write out all parameters of a study with their values, and the JSON schema for editors."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lineage.config.params import Params, read_params
from lineage.study.models import MODEL_BLOCKS, load_model_config
from lineage.study.schema import json_schema


def format_params(path: Path) -> str:
    """Return a params.yaml with every default written out. Raises InputError."""
    yaml = YAML()
    yaml.default_flow_style = None
    stream = io.StringIO()
    yaml.dump(resolved_values(read_params(path)), stream)
    return stream.getvalue().rstrip()


def format_schema() -> str:
    """Return the JSON schema of params.yaml."""
    return json.dumps(json_schema(), indent=1)


def resolved_values(params: Params, *, shorten: bool = False) -> dict[str, Any]:
    """Return the tree of a params.yaml that writes out every default. Raises InputError.

    With `shorten`, methods train as little as in a rehearsal.
    """
    tree: dict[str, Any] = _write_out(params)
    for name, block in params.models.items():
        model = load_model_config(params, name)
        if shorten:
            model = dataclasses.replace(model, evaluate=model.evaluate.shorten())
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


def _write_out(value: object) -> Any:
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
