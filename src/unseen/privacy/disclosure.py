"""The record of what left a client: each kind of value, its size, and how it was protected.

Methods declare kinds, engines measure what really leaves, and whatever was not declared stops the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from unseen.privacy.context import SAMPLES, MethodTraits
from unseen.training import Update

PLAIN = "not protected"
TRAINING_METRICS = "training loss and counts of steps and samples"
DIAGNOSTICS = "diagnostics"
ALL = "all"
VALIDATION_METRICS = "validation metrics"
TEST_METRICS = "test metrics"
TARGET_METRICS = "metrics on the held-out domain"
MAX_DIAGNOSTICS = 1000
"""More numbers than this are no diagnostics but data, and must be declared as what they are."""
_NUMBER = 8


@dataclass(frozen=True)
class DisclosureEntry:
    """One kind of value in one message: how many numbers, how many bytes, how protected."""

    kind: str
    values: int
    bytes: int
    protected: str = PLAIN


@dataclass
class DisclosureLog:
    """What left clients in one round or evaluation; identical lines of several clients are one."""

    _lines: dict[DisclosureEntry, list[str]] = field(default_factory=dict)

    def add(self, client: str, lines: Sequence[DisclosureEntry]) -> None:
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


def unprotected_entries(update: Update, method: MethodTraits) -> list[DisclosureEntry]:
    """What an unprotected update shows to the server."""
    if method.topology == "pooled":
        return []
    weights, told = update.weights, count_numbers(update.diagnostics)
    lines = (
        [DisclosureEntry(", ".join(method.in_state), weights.numel(), weights.nbytes)] if len(weights) else []
    )
    lines += [DisclosureEntry(SAMPLES, 1, _NUMBER), DisclosureEntry(TRAINING_METRICS, 3, 3 * _NUMBER)]
    lines += [DisclosureEntry(kind, value.numel(), value.nbytes) for kind, value in update.extras.items()]
    return [*lines, *([DisclosureEntry(DIAGNOSTICS, told, told * _NUMBER)] if told else [])]


def require_declared(update: Update, method: MethodTraits) -> None:
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
    if told > MAX_DIAGNOSTICS:
        raise ValueError(
            f"{method.name} sends {told} numbers as diagnostics of a client, at most {MAX_DIAGNOSTICS} may "
            "leave so: declare them in `sends` and send them as extras"
        )


def count_numbers(value: Any) -> int:
    """How many numbers or texts a diagnostic holds, whatever its nesting."""
    if isinstance(value, Mapping):
        return sum(count_numbers(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(count_numbers(item) for item in value)
    return int(value.numel()) if hasattr(value, "numel") else 1


Line = Mapping[str, Any]


@dataclass
class Total:
    """One kind of value, protected in one way: who sent it, in how many messages, in which size."""

    kind: str
    protected: str
    messages: int = 0
    values: int = 0
    bytes: int = 0
    senders: set[str] = field(default_factory=set)
    most: int = 0

    def add(self, line: Line, senders: Senders) -> None:
        """Count a line of the records."""
        self.messages += senders.number
        self.values += senders.number * int(line["values"])
        self.bytes += senders.number * int(line["bytes"])
        self.senders |= set(senders.names)
        self.most = max(self.most, senders.number)

    def entry(self) -> dict[str, Any]:
        """The line of result.json."""
        return {
            "kind": self.kind,
            "protected": self.protected,
            "senders": max(len(self.senders), self.most),
            "messages": self.messages,
            "values": self.values,
            "bytes": self.bytes,
        }


class Senders(NamedTuple):
    """Who sent the same; `number` is larger than that of the names where records do not list every client."""

    names: list[str]
    number: int


def sum_disclosures(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every kind of value that left, with its sums over the run."""
    found: dict[tuple[str, str], Total] = {}
    for line, senders in _lines(records):
        key = (str(line["kind"]), str(line["protected"]))
        found.setdefault(key, Total(*key)).add(line, senders)
    return [total.entry() for total in found.values()]


def sum_bytes_by_sender(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Bytes of every kind that each client (or domain that was judged) sent over the run."""
    found: dict[str, dict[str, int]] = {}
    for line, senders in _lines(records):
        for sender in senders.names:
            kinds = found.setdefault(sender, {})
            kinds[str(line["kind"])] = kinds.get(str(line["kind"]), 0) + int(line["bytes"])
    return found


def _lines(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Line, Senders]]:
    """All lines with who sent them; of a round that was repeated after a crash, the last."""
    latest: dict[tuple[Any, Any], Mapping[str, Any]] = {
        (record["event"], record.get("round")): record for record in records if "left" in record
    }
    for record in latest.values():
        listed = record.get("clients") or []
        names = [str(client["name"]) if isinstance(client, dict) else str(client) for client in listed]
        everyone = Senders(names, int(record.get("client_count", len(names))))
        for line in record["left"]:
            given = line.get("from", ALL)
            yield line, everyone if given == ALL else Senders(list(given), len(given))
