"""A federation as its coordinator's live page shows it: the sites, its runs, and the newest run's rounds.

Everything is read from files that the coordinator and its runs write; no site and no SuperLink is asked.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from unseen.deploy.coordinator.coordinator_home import CoordinatorHome, runs_file
from unseen.deploy.identity.members import Members
from unseen.fileio import is_locked
from unseen.live.live_parts import header, link_section, list_section, table_section, tile_row
from unseen.live.live_view import REPORT, LiveView, Source, State
from unseen.live.record_tail import RecordTail
from unseen.live.run_source import RunSource, budget_tile, draw_live, progress_tiles
from unseen.privacy import sum_bytes_by_sender
from unseen.report.formatting import NOTHING, format_bytes
from unseen.report.headline import plain_headline, tiles
from unseen.report.page import DataTable, Tile
from unseen.report.run_page import fault_table, notes
from unseen.runs.reader import Run

MOST_RUNS = 20
_STATES = {"waiting": "preparing", "running": "running", "stopped": "not running", "finished": "finished"}


class FederationSource(Source):
    """Follows a coordinator's home, and the runs that were started on it from this machine."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._started = RecordTail(runs_file(home))
        self._runs: dict[Path, RunSource] = {}
        self._state: State = "waiting"

    def look(self) -> str:
        """Read which sites are admitted, which runs were started, and the newest one's records."""
        self._started.read()
        for entry in self._started.records:
            self._runs.setdefault(Path(entry["out"]), RunSource(Path(entry["out"])))
        versions = [f"{run.look()}{run.state}" for run in self._shown]
        self._state = "running" if is_locked(self.home / "lock") else "stopped"
        members = Members(self.home).path
        changed = members.stat().st_mtime_ns if members.is_file() else 0
        return f"{changed}.{self._started.offset}.{'-'.join(versions)}"

    @property
    def state(self) -> State:
        """Running while `unseen up` holds the home; a federation is never finished."""
        return self._state

    @property
    def age(self) -> float:
        """Seconds since the newest run's last record."""
        return self._shown[0].age if self._shown else 0.0

    def page(self, name: str) -> Path | None:
        """Return the newest run's report."""
        return self._shown[0].page(name) if self._shown else None

    @property
    def _shown(self) -> list[RunSource]:
        """The runs on the page, the newest first."""
        newest = dict.fromkeys(Path(entry["out"]) for entry in reversed(self._started.records))
        return [self._runs[out] for out in newest if out in self._runs][:MOST_RUNS]

    def view(self) -> LiveView:
        """Show sites and runs, and the newest run as its own page would."""
        home = CoordinatorHome.load(self.home)
        found = [source.read() for source in self._shown]
        newest = found[0] if found else None
        members = list(Members(self.home))
        title = f"{_count(len(members), 'site')}, {_count(len(found), 'run')}"
        shown = [Tile("sites admitted", len(members)), Tile("runs", len(found))]
        parts: dict[str, str] = {}
        charts: dict[str, Any] = {}
        if newest is not None:
            faults = len(newest.events("fault"))
            shown += tiles(newest) + progress_tiles(newest)
            shown += [Tile("faults", faults, "in the newest run")]
            if newest.finished:
                shown += budget_tile(newest)
            if self._shown[0].state == "finished":
                parts["result"] = link_section(REPORT, "Open the report of the newest run")
            parts["figures"], charts = draw_live(newest)
            parts["messages"] = table_section("Faults", fault_table(newest))
            parts["messages"] += list_section("Notes", notes(newest))
        headline = plain_headline(newest) if newest else title
        about = [f"coordinator at {home.address}", title if newest else ""]
        parts["header"] = header("Live federation", headline, about)
        parts["tiles"] = tile_row(shown)
        parts["tables"] = table_section("Sites", self._sites(newest))
        parts["tables"] += table_section("Runs", self._table(found))
        return LiveView(f"Federation: {title}", parts, charts)

    def _sites(self, run: Run | None) -> DataTable:
        """List the admitted sites with what the newest run has of them, and its other participants."""
        rounds: Counter[str] = Counter()
        latest: dict[str, int] = {}
        for record in run.rounds if run else ():
            for client in record.get("clients") or ():
                rounds[str(client)] += 1
                latest[str(client)] = int(record["round"])
        faults = Counter(str(record.get("client")) for record in (run.events("fault") if run else ()))
        sent = sum_bytes_by_sender(run.records) if run else {}
        expires = {member.site: _until(member.expires, member.expired) for member in Members(self.home)}
        rows = [
            [
                site,
                expires.get(site, "no longer admitted"),
                rounds[site] or NOTHING,
                latest.get(site, NOTHING),
                faults[site],
                format_bytes(sum(sent[site].values())) if site in sent else NOTHING,
            ]
            for site in dict.fromkeys([*expires, *rounds, *faults])
        ]
        headers = ["site", "key accepted until", "rounds", "latest round", "faults", "sent"]
        return DataTable(headers, rows, text_columns=2, tall=len(rows) > 20)

    def _table(self, found: list[Run]) -> DataTable:
        rows = [
            [
                run.folder.name,
                _STATES[source.state],
                str(run.facts.get("method") or NOTHING),
                ", ".join(run.held_out) or NOTHING,
                run.rounds[-1]["round"] if run.rounds else 0,
                run.config.get("rounds", NOTHING),
                len(run.events("fault")),
            ]
            for source, run in zip(self._shown, found, strict=True)
        ]
        headers = ["run", "state", "method", "held out", "rounds", "planned", "faults"]
        return DataTable(headers, rows, text_columns=4, tall=len(rows) > 12)


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _until(expires: str, expired: bool) -> str:
    if expired:
        return f"expired on {expires[:10]}"
    return expires[:10] or "without limit"
