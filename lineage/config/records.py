"""A YAML tree -> frozen typed records. An unknown, missing or mistyped key is an error that names the nearest key.

pydantic is not used here: this module is imported by every stage and on machines that hold little more than torch,
and every message has to read `where: what; what to do`.
"""

import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lineage.config.renamed import RENAMED
from lineage.errors import InputError

MAX_LAYERS = 1000
T = typing.TypeVar("T")


def read_yaml(path: Path) -> dict[str, Any]:
    """A file that holds one mapping. Raises InputError where it does not."""
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file; create it, or run from the folder that holds it"
        )
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8"
        ) from error


def parse_yaml(text: str, path: Path) -> dict[str, Any]:
    """One YAML 1.2 mapping, read with the parser that DVC uses, so that the program sees what DVC hashed (3e-4, no, 012). `path` is for messages.

    The parser is imported here, since a machine that only trains (benchmarks/gpu_pretrain.py) may have none.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        tree = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if tree is not None and not isinstance(tree, dict):
        raise InputError(
            f"{path}: expected a mapping of keys at the top level, found {type(tree).__name__}"
        )
    return tree or {}  # a file of comments alone says nothing


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: its new name, the nearest known word, or all of them."""
    known = sorted(str(k) for k in known)
    for name in RENAMED.get(str(word), ()):
        if name in known:
            return f"; it is called '{name}' now"
    folded = {k.lower(): k for k in known}  # trec-6 is as near to TREC-6 as can be
    # An old name misspelt means its new name: clasify is text_classification.
    folded |= {old: new for old, names in RENAMED.items() for new in names if new in known}
    close = difflib.get_close_matches(str(word).lower(), folded, n=1, cutoff=0.6)
    return (
        f"; did you mean '{folded[close[0]]}'?"
        if close
        else f"; known: {', '.join(known) or 'none'}"
    )


def _new_name(value: Any, allowed: Iterable[Any]) -> str:
    """Return a hint with the new name of a value of version 0.1, if it has one."""
    names = RENAMED.get(value, ()) if isinstance(value, str) else ()
    return next((f"; it is called '{name}' now" for name in names if name in allowed), "")


def parse_record(record_type: type[T], data: Any, where: str) -> T:
    """One record of dataclass `kind` from a mapping. `where` prefixes every message, e.g. `params.yaml: budget`."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: expected a mapping of keys, found {_describe_value(data)}")
    hints = typing.get_type_hints(record_type)
    fields = {f.name: f for f in dataclasses.fields(record_type)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise InputError(f"{where}: unknown key '{key}'{suggest_nearest(key, fields)}")
    values = {}
    for name, field in fields.items():
        if name in data:
            inner = (
                f"{where}: {name}" if where.endswith((".yaml", ".json")) else f"{where}.{name}"
            )  # a file, or a key in it
            values[name] = _parse_value(hints[name], data[name], inner)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InputError(f"{where}: the key '{name}' is missing; add it")
    try:
        return record_type(**values)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def _describe_value(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _parse_value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _parse_union(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool) != isinstance(arguments[0], bool):
            raise InputError(
                f"{where}: {_describe_value(value)} is not one of {', '.join(map(str, arguments))}"
                f"{_new_name(value, arguments)}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{where}: expected a list, found {_describe_value(value)}")
        return tuple(_parse_value(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: expected a mapping of keys, found {_describe_value(value)}")
        return {
            _parse_value(arguments[0], k, where): _parse_value(arguments[1], v, f"{where}.{k}")
            for k, v in value.items()
        }
    if dataclasses.is_dataclass(hint):
        return parse_record(typing.cast(type, hint), value, where)
    return _parse_scalar(hint, value, where)


def _parse_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    options = [a for a in arguments if a is not type(None)]
    if len(options) == 1:
        return _parse_value(options[0], value, where)
    reasons = []
    for option in options:
        try:
            return _parse_value(option, value, where)
        except InputError as error:
            reasons.append(str(error).removeprefix(f"{where}: "))
    raise InputError(f"{where}: {'; or '.join(reasons)}")


def _parse_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    good = isinstance(value, hint) if hint is not float else isinstance(value, int | float)
    if not good or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where}: expected {names[hint]}, found {_describe_value(value)}")
    if (
        hint is float and not abs(value) <= sys.float_info.max
    ):  # a whole number can be too large for one
        raise InputError(f"{where}: expected a finite number, found {_describe_value(value)}")
    return float(value) if hint is float else value


def check_positive(record: Any, *names: str) -> None:
    """Raise ValueError where one of the record's fields is given and not above zero."""
    for name in names:
        value = getattr(record, name)
        if value is not None and value <= 0:
            raise ValueError(f"{name} is {value}; it must be above zero")


def check_num_layers(record: Any, *names: str) -> None:
    """Raise ValueError where one of the record's fields, a number of layers, is above 1,000: nobody means that, and building them takes for ever."""
    for name in names:
        if (value := getattr(record, name)) > MAX_LAYERS:
            raise ValueError(f"{name} is {value}; it is at most {MAX_LAYERS:,}")


def check_non_negative(record: Any, *names: str) -> None:
    """Raise ValueError where one of the record's fields is below zero; those that may be None are left alone then."""
    for name in names:
        if (value := getattr(record, name)) is not None and value < 0:
            raise ValueError(f"{name} is {value}; it must be 0 or more")


def check_fraction(record: Any, *names: str) -> None:
    """Raise ValueError where one of the record's fields is not within 0 and 1."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; it is a share, from 0 to 1")
