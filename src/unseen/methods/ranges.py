"""Ranges for random search: where good values of a setting may lie, and how to draw one.

A method declares them at its settings: `setting(0.1, "...", search=LogUniform(0.001, 1))`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Range(Protocol):
    """Values to search over."""

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw a value."""

    def __contains__(self, value: Any) -> bool:
        """Whether `draw` could give the value."""


@dataclass(frozen=True)
class Uniform:
    """Any number between two, all alike."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a number, rounded to four digits that count so that it reads and prints well."""
        return four_digits(generator.uniform(self.low, self.high))

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)


@dataclass(frozen=True)
class LogUniform:
    """Any number between two, every power of ten alike: for rates and weights whose scale is unknown."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(f"needs 0 < low < high, not {self.low} and {self.high}")

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a number, rounded to four digits that count."""
        return four_digits(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw one of the values."""
        return self.values[int(generator.integers(len(self.values)))]

    def __contains__(self, value: Any) -> bool:
        return value in self.values


def four_digits(value: float) -> float:
    """Round to four digits that count."""
    return float(f"{value:.4g}")
