"""A site's disclosure ledger: one line per answer, with each kind of value that left and its bytes.

It is written at the site by the sending process, before the answer is sent, and every line is chained to the
one before and signed (`ledger_chain.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.deploy.judge_job import is_judging
from unseen.deploy.site.ledger_chain import LEDGER, append_line
from unseen.judging.site_findings import LEFT
from unseen.printable import printable
from unseen.report.formatting import format_bytes

if TYPE_CHECKING:
    from unseen.deploy.flower.message import SiteMessage

HEADERS = {
    "census": "site's name, class names, number of samples of each, shape and fingerprint of data",
    "train": "number of samples, training loss, counts, diagnostics",
    "consult": "answers to the protection",
    "judge": "site's name, smallest group, names of groups",
}
"""Content of an answer's header."""
SUMS = "column sums"
"""What a site is asked for before a run on tables, in the form of a round."""
ARRAYS = {"evaluate": "counts and loss sums that metrics follow from", "judge": LEFT}
SAMPLES_JUDGED = "site's name, number of samples of each class"
"""Content of the header of a census for a job that only evaluates."""


def append_entry(home: Path, request: SiteMessage, answer: SiteMessage, *, key: Path | None = None) -> None:
    """Append a line for an answer that is about to be sent; `key` is the site's private key."""
    values = disclosed_bytes(request, answer)
    header = request.header
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "ask": SUMS if _is_about_sums(request) else header.get("ask"),
        "run": header.get("job", {}).get("run_id"),
        "round": header.get("round"),
        "values": values,
        "bytes": sum(values.values()),
        "error": answer.header.get("error"),
        "notice": header.get("notice"),
    }
    append_line(home, {name: value for name, value in line.items() if value is not None}, key=key)


def append_refusal(home: Path, what: str, reason: str, *, key: Path | None = None) -> None:
    """Append a line for something that was refused before it could ask for anything."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    sent = {"message of an error": len(reason.encode())}
    append_line(
        home,
        {"time": now, "ask": what, "values": sent, "bytes": sum(sent.values()), "error": reason},
        key=key,
    )


def disclosed_bytes(request: SiteMessage, answer: SiteMessage) -> dict[str, int]:
    """Count the bytes per kind of value in an answer."""
    ask = str(request.header.get("ask"))
    sent: Counter[str] = Counter()
    for name, array in answer.arrays.items():
        sent[ARRAYS.get(ask) or _kind(name, request)] += array.nbytes
    text = "message of an error" if "error" in answer.header else HEADERS.get(ask, "other facts")
    if text == HEADERS["census"] and is_judging(request.header):
        text = SAMPLES_JUDGED
    if answer.header.get("table"):
        text += ", names of table columns and the different texts in them"
    if answer.header:
        sent[text] += len(json.dumps(answer.header))
    return dict(sent)


def _kind(name: str, request: SiteMessage) -> str:
    """Name the kind of a client's array: weights, a method's extra value, or a protection's message."""
    _, _, what = name.partition("/")
    if request.header.get("ask") == "consult":
        return f"protection: {what}"
    state = "constants in place of model weights" if _is_about_sums(request) else "model weights"
    kind = state if what == "weights" else what.removeprefix("extras/")
    protection = request.header.get("job", {}).get("config", {}).get("protect", "none")
    return kind if protection == "none" else f"{kind} ({protection})"


def _is_about_sums(request: SiteMessage) -> bool:
    job = request.header.get("job")
    return request.header.get("ask") == "train" and isinstance(job, dict) and bool(job.get("columns"))


class Ledger:
    """Reads the entries that were added since the last call."""

    def __init__(self, home: Path) -> None:
        self.path = home / LEDGER
        self._read = self.path.stat().st_size if self.path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Return new complete lines; an incomplete one is left for the next call."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            return [json.loads(line) for line in whole.splitlines()]
        return []


ACTIONS = {
    "census": "was asked about its data",
    "train": "trained",
    SUMS: "summed the columns of its table",
    "consult": "answered the protection",
    "evaluate": "evaluated the model",
    "judge": "judged a model",
}


def describe_entry(line: Mapping[str, Any]) -> Iterator[str]:
    """Describe an entry in sentences for the site's log."""
    if "notice" in line:
        yield f"the coordinator says: {printable(str(line['notice']))}"
    if "error" in line:
        yield f"request failed: {printable(str(line['error']))}"
        return
    if line.get("ask") == "new key":
        yield "this site's key was changed"
        return
    place = f"round {line['round']}: " if "round" in line else ""
    sent = ", ".join(f"{kind} {format_bytes(number)}" for kind, number in line["values"].items())
    yield f"{place}{ACTIONS.get(line.get('ask', ''), 'answered')}; sent {sent}"
