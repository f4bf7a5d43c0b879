"""The disclosure log: each kind of value that left a client, its size, and how it was protected.

Methods declare kinds and engines measure what is really sent; an undeclared kind stops the run.
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
DETAILS = "histograms of predicted probabilities or errors, and sums that calibrate them"
FEATURE_MOMENTS = "sums and products of the model's features, and histograms of their distances"
MAX_DIAGNOSTICS = 1000
"""More numbers than this are data, not diagnostics, and must be declared."""
_NUMBER = 8


@dataclass(frozen=True)
class DisclosureEntry:
    """One kind of value in one message: number of values, bytes and protection."""

    kind: str
    values: int
    bytes: int
    protected: str = PLAIN


@dataclass
class DisclosureLog:
    """What left the clients in one round or evaluation; identical entries of several clients are one."""

    _entries: dict[DisclosureEntry, list[str]] = field(default_factory=dict)

    def add(self, client: str, entries: Sequence[DisclosureEntry]) -> None:
        """Add what a client sent."""
        for entry in entries:
            self._entries.setdefault(entry, []).append(client)

    @property
    def bytes(self) -> int:
        """Total bytes over all clients."""
        return sum(entry.bytes * len(clients) for entry, clients in self._entries.items())

    def entries(self, everyone: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the entries for the records; `from` is "all" if all of the record's `clients` sent it."""
        return [
            asdict(entry) | {"from": ALL if clients == list(everyone) else clients}
            for entry, clients in self._entries.items()
        ]


def unprotected_entries(update: Update, method: MethodTraits) -> list[DisclosureEntry]:
    """List what an unprotected update discloses to the server."""
    if method.topology == "pooled":
        return []
    weights, diagnostics = update.weights, count_numbers(update.diagnostics)
    lines = (
        [DisclosureEntry(", ".join(method.in_state), weights.numel(), weights.nbytes)] if len(weights) else []
    )
    lines += [DisclosureEntry(SAMPLES, 1, _NUMBER), DisclosureEntry(TRAINING_METRICS, 3, 3 * _NUMBER)]
    lines += [DisclosureEntry(kind, value.numel(), value.nbytes) for kind, value in update.extras.items()]
    return [
        *lines,
        *([DisclosureEntry(DIAGNOSTICS, diagnostics, diagnostics * _NUMBER)] if diagnostics else []),
    ]


def require_declared(update: Update, method: MethodTraits) -> None:
    """Raise an error if a method would send something that it does not declare."""
    undeclared = sorted(set(update.extras) - set(method.extra_kinds))
    if undeclared:
        raise ValueError(f"{method.name} sends {undeclared} without declaring it in `sends`")
    missing = [kind for kind in method.in_state if kind not in method.sends]
    unnamed = len(update.weights) and not method.in_state
    if method.topology != "pooled" and (missing or unnamed or SAMPLES not in method.sends):
        raise ValueError(
            f"{method.name} sends {missing or ['its state and the number of samples']} without declaring it "
            "in `sends`"
        )
    diagnostics = count_numbers(update.diagnostics)
    if diagnostics > MAX_DIAGNOSTICS:
        raise ValueError(
            f"{method.name} sends {diagnostics} numbers as diagnostics of a client, at most "
            f"{MAX_DIAGNOSTICS} are allowed: declare them in `sends` and send them as extras"
        )


def count_numbers(value: Any) -> int:
    """Count the numbers or texts in a diagnostic, whatever its nesting."""
    if isinstance(value, Mapping):
        return sum(count_numbers(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(count_numbers(item) for item in value)
    return int(value.numel()) if hasattr(value, "numel") else 1


Entry = Mapping[str, Any]


@dataclass
class Total:
    """Sums for one kind of value with one protection: senders, messages, values and bytes."""

    kind: str
    protected: str
    messages: int = 0
    values: int = 0
    bytes: int = 0
    senders: set[str] = field(default_factory=set)
    most: int = 0

    def add(self, entry: Entry, senders: Senders) -> None:
        """Add an entry of the records."""
        self.messages += senders.number
        self.values += senders.number * int(entry["values"])
        self.bytes += senders.number * int(entry["bytes"])
        self.senders |= set(senders.names)
        self.most = max(self.most, senders.number)

    def entry(self) -> dict[str, Any]:
        """Return the entry of result.json."""
        return {
            "kind": self.kind,
            "protected": self.protected,
            "senders": max(len(self.senders), self.most),
            "messages": self.messages,
            "values": self.values,
            "bytes": self.bytes,
        }


class Senders(NamedTuple):
    """Clients that sent the same; `number` exceeds the names where records do not list every client."""

    names: list[str]
    number: int


def sum_disclosures(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum up a run's records: messages, values and bytes of every kind of value that left the clients."""
    found: dict[tuple[str, str], Total] = {}
    for entry, senders in _iterate(records):
        key = (str(entry["kind"]), str(entry["protected"]))
        found.setdefault(key, Total(*key)).add(entry, senders)
    return [total.entry() for total in found.values()]


def sum_bytes_by_sender(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Sum the bytes of every kind per client (or evaluated domain) over the run."""
    found: dict[str, dict[str, int]] = {}
    for entry, senders in _iterate(records):
        for sender in senders.names:
            kinds = found.setdefault(sender, {})
            kinds[str(entry["kind"])] = kinds.get(str(entry["kind"]), 0) + int(entry["bytes"])
    return found


def _iterate(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Entry, Senders]]:
    """Yield all entries with their senders; of a round repeated after a crash, only the last."""
    latest: dict[tuple[Any, Any], Mapping[str, Any]] = {
        (record["event"], record.get("round")): record for record in records if "left" in record
    }
    for record in latest.values():
        listed = record.get("clients") or []
        names = [str(client["name"]) if isinstance(client, dict) else str(client) for client in listed]
        everyone = Senders(names, int(record.get("client_count", len(names))))
        for entry in record["left"]:
            given = entry.get("from", ALL)
            yield entry, everyone if given == ALL else Senders(list(given), len(given))
