"""Settings of a method or a protection: a frozen dataclass whose fields carry help texts.

Filled from `--set key=value`, a configuration file or a caller's own values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from unseen.errors import UsageError, unknown_name

if TYPE_CHECKING:
    import numpy as np

S = TypeVar("S", bound="Settings")


class Range(Protocol):
    """Values to search over."""

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw a value."""

    def __contains__(self, value: Any) -> bool:
        """Check whether `draw` could return the value."""


@dataclass(frozen=True)
class Uniform:
    """Uniform range between two numbers."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a number, rounded to four significant digits for readability."""
        return four_digits(generator.uniform(self.low, self.high))

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)


@dataclass(frozen=True)
class LogUniform:
    """Log-uniform range between two numbers, for rates and weights of unknown scale."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(f"needs 0 < low < high, not {self.low} and {self.high}")

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a number, rounded to four significant digits."""
        return four_digits(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)


@dataclass(frozen=True)
class Choice:
    """Choice among given values."""

    values: tuple[Any, ...]

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw one of the values."""
        return self.values[int(generator.integers(len(self.values)))]

    def __contains__(self, value: Any) -> bool:
        return value in self.values


def four_digits(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")


@dataclass(frozen=True)
class Settings:
    """Base class of all settings; used directly where there are none."""


SAME = object()
"""Marks a setting whose default never changed."""


def setting(
    default: Any,
    meaning: str,
    *,
    search: Range | None = None,
    formerly: Any = SAME,
    absent: Any = SAME,
    identifies: bool = True,
) -> Any:
    """Declare a setting: its default, its help text (edge values included), its search range.

    The rest keeps identities of old runs and jobs, whose hashes say what was trained:

    formerly   the earlier default, where it changed
    absent     of a setting added later: the value that trains as before it existed
    identifies whether it is part of an identity: not if it only chooses or permits values of other settings
    """
    return field(
        default=default,
        metadata={
            "meaning": meaning,
            "search": search,
            "formerly": formerly,
            "absent": absent,
            "identifies": identifies,
        },
    )


def unstated_settings(kind: type[Settings]) -> dict[str, Any]:
    """Map every setting that is part of an identity to the value at which an identity leaves it out.

    That is the first default it had, or for a setting added later the value that changes nothing.
    """
    return {
        item.name: next(
            (
                item.metadata[key]
                for key in ("absent", "formerly")
                if item.metadata.get(key, SAME) is not SAME
            ),
            item.default,
        )
        for item in fields(kind)
        if item.metadata.get("identifies", True)
    }


def without_later_settings(kind: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings that identify nothing, and those added later with the value that changes nothing."""
    left_out = dict[str, tuple[Any, ...]]()
    for item in fields(kind):
        absent = item.metadata.get("absent", SAME)
        if absent is not SAME:
            left_out[item.name] = (absent, _text(absent))
    silent = {item.name for item in fields(kind) if not item.metadata.get("identifies", True)}
    return {
        name: value
        for name, value in given.items()
        if name not in silent and value not in left_out.get(name, ())
    }


def with_later_settings(kind: type[Settings], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Add settings that a recorded run lacks, as they were added later, at the value that changes nothing."""
    later = {
        item.name: item.metadata["absent"]
        for item in fields(kind)
        if item.metadata.get("absent", SAME) is not SAME
    }
    return {**{name: _text(value) for name, value in later.items()}, **recorded}


def _text(value: Any) -> Any:
    """Spell None as files do."""
    return "none" if value is None else value


def setting_names(settings: Settings | type[Settings]) -> tuple[str, ...]:
    """List the names of all settings."""
    return tuple(item.name for item in fields(settings))


def search_ranges(kind: type[Settings]) -> dict[str, Range]:
    """Map every setting that has a search range to that range."""
    return {item.name: item.metadata["search"] for item in fields(kind) if item.metadata.get("search")}


def describe_settings(kind: type[Settings]) -> list[tuple[str, Any, str]]:
    """List (name, default, help text) of every setting."""
    return [
        (item.name, None if item.default is MISSING else item.default, item.metadata.get("meaning", ""))
        for item in fields(kind)
    ]


def make_settings(kind: type[S], given: Mapping[str, Any], *, owner: str) -> S:
    """Build settings from text or typed values; an unknown name or invalid value is refused.

    owner  what has these settings, for messages: "method 'fedavg'"
    """
    hints = get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    for name in given:
        if name not in known:
            if not known:
                raise UsageError(f"{owner} has no settings, but {name!r} was given")
            raise unknown_name(f"setting of {owner}", name, known)
    return kind(**{name: _convert(value, hints[name], name) for name, value in given.items()})


def non_default_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    return {
        item.name: value
        for item in fields(settings)
        if (value := getattr(settings, item.name)) != item.default
    }


class Configurable(Generic[S]):
    """Base class of objects with settings: `class X(Configurable[XSettings])` takes an `XSettings`."""

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @classmethod
    def settings_type(cls) -> type[S]:
        """Return the dataclass given as the class's type argument; `Settings` if there is none."""
        for base in getattr(cls, "__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Settings):
                    return cast(type[S], argument)
        return cast(type[S], Settings)

    @classmethod
    def from_settings(cls, given: Mapping[str, Any], *, owner: str) -> Self:
        """Create an instance from text or typed values, see `make_settings`."""
        return cls(make_settings(cls.settings_type(), given, owner=owner))


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Convert `value` to the type that the setting declares."""
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
