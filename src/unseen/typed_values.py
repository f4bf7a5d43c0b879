"""Values from files and callers against the types that a dataclass declares for its fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from unseen.errors import UsageError

_LONGEST_SHOWN = 60
_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    NoneType: "nothing",
}
_PLURALS = {int: "whole numbers", float: "finite numbers", str: "texts"}


def check_types(kind: type, values: Mapping[str, Any]) -> None:
    """Refuse the first value that is not of the type of its field; names that are no fields are passed over.

    A single value stands for a list of one.
    """
    problem = wrong_type(kind, values)
    if problem:
        raise UsageError(problem)


def wrong_type(kind: type, values: Mapping[str, Any]) -> str:
    """Describe the first value that is not of the type of its field; empty if all are."""
    hints = _hints(kind)
    for name, value in values.items():
        if name in hints and (reason := _reason_against(value, hints[name])):
            shown = ascii(value) if isinstance(value, str) else repr(value)
            if len(shown) > _LONGEST_SHOWN:
                shown = shown[: _LONGEST_SHOWN - 3] + "..."
            return f"{name} = {shown}: {reason}"
    return ""


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _reason_against(value: Any, hint: Any) -> str:
    """Say what was expected; empty if the value is of the type."""
    if isinstance(value, str) and _accepts(value, hint):
        return _reason_against_text(value)
    return "" if _accepts(value, hint) else f"expected {_describe(hint)}, not {_kind_of(value, hint)}"


def _accepts(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or origin is Literal:
        return hint is Any or value in arguments
    if origin in (Union, UnionType):
        return any(_accepts(value, each) for each in arguments)
    if origin is tuple:
        each = arguments[0]
        single = _accepts(value, each)
        return single or (isinstance(value, list | tuple) and all(_accepts(item, each) for item in value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _accepts(key, arguments[0]) and _accepts(item, arguments[1]) for key, item in value.items()
        )
    if hint in (int, float):
        number = Integral if hint is int else Real
        return not isinstance(value, bool) and isinstance(value, number) and math.isfinite(value)
    return isinstance(value, hint)


def _reason_against_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        return "expected UTF-8 text; rename what it names"
    return "expected text without NUL characters" if "\0" in value else ""


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_describe(each) for each in arguments if each is not NoneType)
    if origin is tuple:
        return f"a list of {_PLURALS.get(arguments[0]) or _describe(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table"
    return _NAMES.get(hint) or str(getattr(hint, "__name__", hint))


def _kind_of(value: Any, hint: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        each = get_args(hint)[0] if get_origin(hint) is tuple else Any
        wrong = [item for item in value if not _accepts(item, each)]
        return f"a list with {_kind_of(wrong[0], each)}" if wrong else "a list"
    if isinstance(value, float):
        return repr(value)
    return _NAMES.get(type(value)) or type(value).__name__
