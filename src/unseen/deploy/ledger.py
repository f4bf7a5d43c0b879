"""What left a site: one line for every answer, with each kind of value and its bytes.

It is written at the site, by the process that sends, before the answer goes out.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unseen.deploy.flower.message import Parcel

LEDGER = "sent.jsonl"
FACTS = {
    "census": "site's name, class names, number of samples of each, shape and fingerprint of data",
    "statistics": "names of columns and levels",
    "train": "number of samples, training loss, counts, diagnostics",
    "consult": "answers to the protection",
    "evaluate": "loss sums",
}
"""What an answer says beside its arrays."""
ARRAYS = {"statistics": "sums of table columns", "evaluate": "counts that metrics follow from"}


def write_down(home: Path, question: Parcel, answer: Parcel) -> None:
    """Add a line for an answer that is about to leave."""
    values = kinds(question, answer)
    facts = question.facts
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "ask": facts.get("ask"),
        "run": facts.get("job", {}).get("run_id"),
        "round": facts.get("round"),
        "values": values,
        "bytes": sum(values.values()),
        "error": answer.facts.get("error"),
        "notice": facts.get("notice"),
    }
    with (home / LEDGER).open("a", encoding="utf-8") as file:
        file.write(json.dumps({key: value for key, value in line.items() if value is not None}) + "\n")


def kinds(question: Parcel, answer: Parcel) -> dict[str, int]:
    """Bytes of every kind of value in an answer."""
    ask = str(question.facts.get("ask"))
    sent: Counter[str] = Counter()
    for name, array in answer.arrays.items():
        sent[ARRAYS.get(ask) or _kind(name, question)] += array.nbytes
    text = "message of an error" if "error" in answer.facts else FACTS.get(ask, "other facts")
    sent[text] += len(json.dumps(answer.facts))
    return dict(sent)


def _kind(name: str, question: Parcel) -> str:
    """What an array of a client is: weights, what its method sends beside them, or the protection's."""
    _, _, what = name.partition("/")
    if question.facts.get("ask") == "consult":
        return f"protection: {what}"
    kind = "model weights" if what == "weights" else what.removeprefix("extras/")
    protection = question.facts.get("job", {}).get("config", {}).get("protect", "none")
    return kind if protection == "none" else f"{kind} ({protection})"


class Ledger:
    """Reads the lines of a site's home that have come since the last look."""

    def __init__(self, home: Path) -> None:
        self.path = home / LEDGER
        self._read = self.path.stat().st_size if self.path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Whole lines only; half of one waits for the next look."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            return [json.loads(line) for line in whole.splitlines()]
        return []
