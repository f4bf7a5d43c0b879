"""The record of what left a client: each kind of value, its size, and how it was protected.

Methods declare kinds, engines measure what really leaves, and whatever was not declared stops the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from unseen.privacy.facts import SAMPLES, MethodFacts
from unseen.training import Update

PLAIN = "not protected"
TRAINING_METRICS = "training loss and counts of steps and samples"
DIAGNOSTICS = "diagnostics"
ALL = "all"
VALIDATION_METRICS = "validation metrics"
TEST_METRICS = "test metrics"
TARGET_METRICS = "metrics on the held-out domain"
MOST_DIAGNOSTICS = 1000
"""More numbers than this are no diagnostics but data, and must be declared as what they are."""
_NUMBER = 8


@dataclass(frozen=True)
class Leaving:
    """One kind of value in one message: how many numbers, how many bytes, how protected."""

    kind: str
    values: int
    bytes: int
    protected: str = PLAIN


@dataclass
class Left:
    """What left clients in one round or evaluation; identical lines of several clients are one."""

    _lines: dict[Leaving, list[str]] = field(default_factory=dict)

    def add(self, client: str, lines: Sequence[Leaving]) -> None:
        """Count what a client sent."""
        for line in lines:
            self._lines.setdefault(line, []).append(client)

    @property
    def bytes(self) -> int:
        """Bytes in all, over all clients."""
        return sum(line.bytes * len(clients) for line, clients in self._lines.items())

    def entries(self, everyone: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Lines as they stand in the records; `from` is "all" for everyone of the record's `clients`."""
        return [
            asdict(line) | {"from": ALL if clients == list(everyone) else clients}
            for line, clients in self._lines.items()
        ]


def plain_lines(update: Update, method: MethodFacts) -> list[Leaving]:
    """What an unprotected update shows to the server."""
    if method.topology == "pooled":
        return []
    weights, told = update.weights, count_numbers(update.diagnostics)
    lines = [Leaving(", ".join(method.in_state), weights.numel(), weights.nbytes)] if len(weights) else []
    lines += [Leaving(SAMPLES, 1, _NUMBER), Leaving(TRAINING_METRICS, 3, 3 * _NUMBER)]
    lines += [Leaving(kind, value.numel(), value.nbytes) for kind, value in update.extras.items()]
    return [*lines, *([Leaving(DIAGNOSTICS, told, told * _NUMBER)] if told else [])]


def require_declared(update: Update, method: MethodFacts) -> None:
    """Stop a method that would let something leave its client without saying so."""
    undeclared = sorted(set(update.extras) - set(method.beside_state))
    if undeclared:
        raise ValueError(f"{method.name} sends {undeclared} without declaring it in `sends`")
    missing = [kind for kind in method.in_state if kind not in method.sends]
    if method.topology != "pooled" and (missing or not method.in_state or SAMPLES not in method.sends):
        raise ValueError(
            f"{method.name} sends {missing or ['its state and the number of samples']} without declaring it "
            "in `sends`"
        )
    told = count_numbers(update.diagnostics)
    if told > MOST_DIAGNOSTICS:
        raise ValueError(
            f"{method.name} sends {told} numbers as diagnostics of a client, at most {MOST_DIAGNOSTICS} may "
            "leave so: declare them in `sends` and send them as extras"
        )


def count_numbers(value: Any) -> int:
    """How many numbers or texts a diagnostic holds, whatever its nesting."""
    if isinstance(value, Mapping):
        return sum(count_numbers(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(count_numbers(item) for item in value)
    return int(value.numel()) if hasattr(value, "numel") else 1
