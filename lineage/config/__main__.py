"""`python -m lineage.config`: print all resolved values of params.yaml, its schema or its reference."""

import argparse
import json
import sys
from pathlib import Path

from ruamel.yaml import YAML

from lineage.config.params import read_params
from lineage.config.records import read_yaml
from lineage.config.resolve import resolve_tree
from lineage.config.schema import json_schema, reference
from lineage.config.study import load_model_config
from lineage.errors import InputError


def main() -> int:
    """Print what was asked for; return 2 if params.yaml is not valid."""
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
        params = read_params(arguments.file)
        for name in params.models:
            load_model_config(params, name)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.dump(resolve_tree(read_yaml(arguments.file), arguments.file.name), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
