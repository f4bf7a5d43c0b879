"""The journal of a site's column sums: one list of sites for good, whatever runs ask for them.

Column sums are exact and the same in every run, so sums over two different lists of sites can be subtracted,
also if they belong to different runs. Nothing that a coordinator chooses (run id, round, seed, split, clients
per site) begins a new list.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unseen.privacy.answer_journal import FileJournal
from unseen.privacy.survivors import OPENING


@dataclass(frozen=True)
class SumsJournal:
    """Journal of the column sums that a site helped to open, in `folder`."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file; no run id has a space in it."""
        return self.folder / "column sums.jsonl"

    @property
    def way_out(self) -> str:
        """Say why a run on tables may not hold out other sites than the first, and what each site can do."""
        return (
            "hold out the same sites as in the first run on these tables, or have every site named here "
            "delete answered/column sums.jsonl in its home before each run over other sites. Why a site may "
            "refuse: its column sums are the same in every run, so leave-one-domain-out shows those of "
            "single sites"
        )

    def admit(self, *, client: str, round: int, purpose: str, digest: bytes) -> None:
        """Record an answer on disk, or refuse it."""
        if purpose == OPENING:
            client, round = "", 0
        FileJournal(self.path).admit(client=client, round=round, purpose=purpose, digest=digest)
