"""A ledger's lines as sentences for the people at a site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from unseen.report.wording import size

DOINGS = {
    "census": "was asked about its data",
    "statistics": "was asked for sums of its columns",
    "train": "trained",
    "consult": "answered the protection",
    "evaluate": "evaluated the model",
}


def told(line: Mapping[str, Any]) -> Iterator[str]:
    """What was done, and what left for it."""
    if "notice" in line:
        yield f"the coordinator says: {line['notice']}"
    if "error" in line:
        yield f"could not do what was asked: {line['error']}"
        return
    place = f"round {line['round']}: " if "round" in line else ""
    sent = ", ".join(f"{kind} {size(number)}" for kind, number in line["values"].items())
    yield f"{place}{DOINGS.get(line.get('ask', ''), 'answered')}; sent {sent}"
