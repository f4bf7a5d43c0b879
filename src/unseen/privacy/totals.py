"""What left in a whole run, added up from the records: by kind of value, and by who sent it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unseen.privacy.record import ALL

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


def totals(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every kind of value that left, with its sums over the run."""
    found: dict[tuple[str, str], Total] = {}
    for line, senders in _lines(records):
        key = (str(line["kind"]), str(line["protected"]))
        found.setdefault(key, Total(*key)).add(line, senders)
    return [total.entry() for total in found.values()]


def by_sender(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
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
