"""Parse a YAML tree into frozen typed records; of an unknown key the nearest one is named.

pydantic is not used: every stage imports this module, also on machines with little more than torch.
"""

import dataclasses
import difflib
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lineage.errors import InputError

MAX_SEED = 2**31 - 1
MAX_INTEGER = 2**63 - 1  # numpy, torch and pyarrow hold no larger one
MAX_DEPTH = 50  # levels of a YAML file
MAX_LAYERS = 1000
# The context in which the YAML parser misses a closing bracket -> the two brackets.
CLOSING_BRACKETS = {
    "while parsing a flow sequence": ("[", "]"),
    "while parsing a flow mapping": ("{", "}"),
}
DUPLICATE_KEY = re.compile('found duplicate key "(.*?)"')
T = typing.TypeVar("T")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping. Raises InputError."""
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file; create it, or run from the folder that holds it"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8"
        raise InputError(message) from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> dict[str, Any]:
    """Parse one YAML 1.2 mapping; `path` is for messages. Raises InputError.

    The parser is the one of DVC, so that both read values such as 3e-4, no and 012 alike.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.tokens import AliasToken

    try:
        tokens = YAML(typ="safe").scan(text) if "*" in text else ()
        alias = next((token for token in tokens if isinstance(token, AliasToken)), None)
        tree = YAML(typ="safe").load(text) if alias is None else None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; correct the brackets") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{path}: a number cannot be read: {error}; correct it") from None
    except YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {_describe_yaml_error(error)}") from error
    if alias is not None:
        raise InputError(
            f"{path}: line {alias.start_mark.line + 1}: '*{alias.value}' is an alias, and a few of "
            "them can fill the memory; write out what it stands for, or quote a text that begins "
            "with *"
        )
    if tree is not None and not isinstance(tree, dict):
        raise InputError(
            f"{path}: expected a mapping of keys at the top level, found {type(tree).__name__}"
        )
    if tree is not None and _is_too_deep(tree):
        raise InputError(f"{path}: nested more than {MAX_DEPTH} levels deep; correct the brackets")
    return tree or {}  # a file with only comments has no tree


def _describe_yaml_error(error: Exception) -> str:
    """Return what the parser misses, where, and what to do."""
    context = getattr(error, "context", None)
    if context in CLOSING_BRACKETS:
        bracket, closing = CLOSING_BRACKETS[context]
        start = error.context_mark  # type: ignore[attr-defined]
        end = error.problem_mark  # type: ignore[attr-defined]
        return (
            f"the '{bracket}' at line {start.line + 1}, column {start.column + 1}, has no "
            f"'{closing}' before line {end.line + 1}, column {end.column + 1}; add it, or the comma "
            "that is missing between two entries"
        )
    position = getattr(error, "problem_mark", None)
    duplicate = DUPLICATE_KEY.match(getattr(error, "problem", None) or "")
    if duplicate and position:
        return (
            f"the key '{duplicate[1]}' at line {position.line + 1} stands twice in its block; join "
            "both, or remove one"
        )
    reason = " ".join(str(error).split()).replace(' in "<unicode string>",', " at")
    return f"{reason}; correct the indentation or quotes there"


def _is_too_deep(tree: Any) -> bool:
    """Tell whether a tree has more than MAX_DEPTH levels, at which other parsers fail."""
    level = [tree]
    for _ in range(MAX_DEPTH):
        children: list[Any] = []
        for value in level:
            if isinstance(value, dict | list):
                children += value.values() if isinstance(value, dict) else value
        if not children:
            return False
        level = children
    return True


def suggest_nearest(word: str | float, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: its new name, the nearest known word, or all of them."""
    if type(word) in (int, float):
        return (
            "; if it follows a comma in a number, write 0.002 with a point in place of 0,002, and "
            "580000 in place of 580,000"
        )
    known = sorted(str(name) for name in known)
    # Case does not count: trec-6 is nearest to TREC-6.
    known_by_spelling = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(word).lower(), known_by_spelling, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{known_by_spelling[close[0]]}'?"
    return f"; known: {', '.join(known) or 'none'}"


class Checked:
    """A block of params.yaml that checks its values; several can be parts of one."""

    def __post_init__(self) -> None:
        """Check the values; each part calls the next by `super()`. Raises ValueError."""


def parse_record(record_type: type[T], data: Any, where: str) -> T:
    """Build one record of dataclass `record_type` from a mapping. Raises InputError.

    `where` prefixes every message, for example `params.yaml: budget`.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: expected a mapping of keys, found {_describe_value(data)}")
    hints = typing.get_type_hints(record_type)
    fields = {f.name: f for f in dataclasses.fields(record_type)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise InputError(f"{where}: unknown key '{key}'{suggest_nearest(key, fields)}")
    is_file = where.endswith((".yaml", ".json"))
    separator = ": " if is_file else "."
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _parse_value(hints[name], data[name], f"{where}{separator}{name}")
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
    if len(text) > 60:
        text = f"{text[:57]}..."
    return f"{text} ({type(value).__name__})"


def _parse_value(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _parse_union(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool) != isinstance(arguments[0], bool):
            raise InputError(
                f"{where}: {_describe_value(value)} is not one of {', '.join(map(str, arguments))}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(
                f"{where}: expected a list, such as [a, b]; found {_describe_value(value)}"
            )
        return tuple(
            _parse_value(arguments[0], item, f"{where}[{index}]")
            for index, item in enumerate(value)
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: expected a mapping of keys, found {_describe_value(value)}")
        key_hint, item_hint = arguments
        return {
            _parse_value(key_hint, key, where): _parse_value(item_hint, item, f"{where}.{key}")
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(hint):
        return parse_record(typing.cast(type, hint), value, where)
    return _parse_scalar(hint, value, where)


def _parse_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    options = [argument for argument in arguments if argument is not type(None)]
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
    # Python counts true and false as integers; params.yaml does not.
    is_bool = isinstance(value, bool) and hint is not bool
    accepted = (int, float) if hint is float else hint
    if is_bool or not isinstance(value, accepted):
        raise InputError(f"{where}: expected {names[hint]}, found {_describe_value(value)}")
    if hint is int and abs(value) > MAX_INTEGER:
        raise InputError(
            f"{where}: expected a whole number from -{MAX_INTEGER:,} to {MAX_INTEGER:,}, found "
            f"{_describe_value(value)}"
        )
    if hint is not float:
        return value
    # Besides inf and nan, a whole number can be too large for a float.
    if not abs(value) <= sys.float_info.max:
        raise InputError(f"{where}: expected a finite number, found {_describe_value(value)}")
    return float(value)


def check_positive(record: Any, *names: str) -> None:
    """Raise ValueError if a field of the record is given and not above zero."""
    for name in names:
        value = getattr(record, name)
        if value is not None and value <= 0:
            raise ValueError(f"{name} is {value}; it must be above zero")


def check_seed(name: str, seed: int) -> None:
    """Raise ValueError unless a seed is a number that all libraries take."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"'{name}' holds {seed}; a seed is zero or more, and at most {MAX_SEED:,}")


def check_num_layers(record: Any, *names: str) -> None:
    """Raise ValueError if a number of layers is above 1,000: a slip that takes ages to build."""
    for name in names:
        value = getattr(record, name)
        if value > MAX_LAYERS:
            raise ValueError(f"{name} is {value}; it is at most {MAX_LAYERS:,}")


def check_non_negative(record: Any, *names: str) -> None:
    """Raise ValueError if a field of the record is given and below zero."""
    for name in names:
        value = getattr(record, name)
        if value is not None and value < 0:
            raise ValueError(f"{name} is {value}; it must be 0 or more")


def check_fraction(record: Any, *names: str) -> None:
    """Raise ValueError if a field of the record is given and not from 0 to 1."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; it is a share, from 0 to 1")
