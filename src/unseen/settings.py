"""Settings of a method or a protection: a frozen dataclass whose fields carry their meaning.

Filled from `--set key=value`, a configuration file or a caller's own values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unseen.errors import UsageError, unknown_name

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """Base of all settings; whoever has none uses it as it is."""


def setting(default: Any, meaning: str, **more: Any) -> Any:
    """Declare a setting: its default, what it means (edge values included), and more for those who ask."""
    return field(default=default, metadata={"meaning": meaning, **more})


def describe_settings(kind: type[Settings]) -> list[tuple[str, Any, str]]:
    """List (name, default, meaning) of every setting."""
    return [
        (item.name, None if item.default is MISSING else item.default, item.metadata.get("meaning", ""))
        for item in fields(kind)
    ]


def make_settings(kind: type[S], given: Mapping[str, Any], *, owner: str) -> S:
    """Build settings from text or typed values; an unknown name or unfit value is refused.

    owner  whose they are, for messages: "method 'fedavg'"
    """
    hints = get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    for name in given:
        if name not in known:
            if not known:
                raise UsageError(f"{owner} has no settings, but {name!r} was given")
            raise unknown_name(f"setting of {owner}", name, known)
    return kind(**{name: _convert(value, hints[name], name) for name, value in given.items()})


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Turn `value` into the type that the setting declares."""
    origin = get_origin(hint)
    if origin is Literal:
        choices = get_args(hint)
        if value in choices:
            return value
        raise unknown_name(f"value of setting {name!r}", str(value), [str(choice) for choice in choices])
    if origin in (Union, UnionType):
        options = get_args(hint)
        if NoneType in options and (value is None or str(value).lower() == "none"):
            return None
        return _convert(value, next(option for option in options if option is not NoneType), name)
    if hint is bool:
        text = str(value).lower()
        if text in ("true", "yes", "1", "on"):
            return True
        if text in ("false", "no", "0", "off"):
            return False
        raise UsageError(f"setting {name!r} takes true or false, not {value!r}")
    try:
        if hint is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        return hint(value)
    except (TypeError, ValueError):
        kind = {"int": "a whole number", "float": "a number"}.get(hint.__name__, hint.__name__)
        raise UsageError(f"setting {name!r} takes {kind}, not {value!r}") from None
