"""A run as a live page shows it: key numbers with the time left, the report's charts, scores and faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.checksums import read_recorded_toml
from unseen.evaluation.selection import SELECTION_RULES, SourceValidation, select
from unseen.fileio import is_locked
from unseen.live.live_parts import (
    figure_section,
    header,
    link_section,
    list_section,
    table_section,
    tile_row,
)
from unseen.live.live_view import REPORT, LiveView, Source, State
from unseen.live.record_tail import RecordTail
from unseen.report.charts import skip_schema_checks
from unseen.report.figures import FIGURES
from unseen.report.formatting import NOTHING, format_duration, is_number
from unseen.report.headline import headline, plain_headline, tiles
from unseen.report.page import Tile, place_figures
from unseen.report.run_page import ORACLE_NOTE, domain_table, fault_table, notes, result_table
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run
from unseen.runs.records import Record

LIVE_FIGURES = ("scores", "client-scores", "loss", "time", "bytes")
"""Those figures of the report that change with every round and are quick to draw."""
RECENT = 10
"""Rounds from which the time left is estimated."""


@dataclass(frozen=True)
class UnfinishedRun(Run):
    """A run whose kept round is the one that would be kept if it ended now."""

    @property
    def selected_round(self) -> int | None:
        """The round that the selection rule prefers so far."""
        found = select(self.evaluations, self.rule, self.task)
        return None if found is None else int(found["round"])

    @property
    def rule(self) -> str:
        """The name of the selection rule."""
        named = str(self.config.get("selection"))
        return named if named in SELECTION_RULES else SourceValidation.name


class RunSource(Source):
    """Follows the folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.files = RunFolder(folder)
        self.tail = RecordTail(self.files.records)
        self._state: State = "waiting"

    def look(self) -> str:
        """Read new records; the version is how many bytes of them there are."""
        self.tail.read()
        if self.files.result.is_file():
            # The report is the last file that a run writes, while it still holds its folder.
            self._state = "running" if is_locked(self.files.lock) else "finished"
        elif is_locked(self.files.lock):
            self._state = "running"
        else:
            self._state = "stopped" if self.files.config.is_file() else "waiting"
        return str(self.tail.offset)

    @property
    def state(self) -> State:
        """Finished once there is a result; running while a process holds the folder's lock."""
        return self._state

    @property
    def age(self) -> float:
        """Seconds since the last record."""
        return self.tail.age

    def page(self, name: str) -> Path | None:
        """Return the run's report."""
        return self.files.report if name == REPORT else None

    def read(self) -> Run:
        """Read the finished run, or what there is of it."""
        if self._state == "finished":
            return read_run(self.files.path)
        config = read_recorded_toml(self.files.config) if self.files.config.is_file() else {}
        return UnfinishedRun(self.files.path, config, [*self.tail.records], None)

    def view(self) -> LiveView:
        """Show the run so far, or its result."""
        run = self.read()
        facts = run.facts
        about = [facts.get("data"), facts.get("model"), f"seed {facts['seed']}" if "seed" in facts else ""]
        figures, charts = draw_live(run)
        if run.finished:
            result = table_section("Result", result_table(run), note=ORACLE_NOTE if run.held_out else "")
            result += link_section(REPORT, "Open the report of this run")
        else:
            result = ""
        return LiveView(
            title=plain_headline(run),
            parts={
                "header": header("Live", headline(run), about),
                "tiles": tile_row([*tiles(run), *progress_tiles(run)]),
                "result": result,
                "figures": figures,
                "tables": table_section("Every domain", domain_table(run)),
                "messages": table_section("Faults", fault_table(run)) + list_section("Notes", notes(run)),
            },
            charts=charts,
        )


def draw_live(run: Run) -> tuple[str, dict[str, Any]]:
    """Draw the figures that follow a run: their boxes, and the charts by the boxes' ids."""
    names = LIVE_FIGURES if run.rounds or run.evaluations else ()
    with skip_schema_checks():
        drawn = {name: panels for name in names if (panels := FIGURES[name].panels(run))}
        places, charts = place_figures({name: FIGURES[name] for name in drawn}, drawn)
    return figure_section(places), charts


def progress_tiles(run: Run) -> list[Tile]:
    """Return what matters only while a run is unfinished: the round that would be kept, and the time left."""
    if not isinstance(run, UnfinishedRun):
        return []
    kept = run.selected_round
    by = SELECTION_RULES[run.rule].chosen_by
    left = seconds_left(run.rounds, run.evaluations, planned=run.config.get("rounds"))
    return [
        Tile("kept so far", NOTHING if kept is None else f"round {kept}", f"chosen by {by}"),
        Tile("time left", NOTHING if left is None else f"about {format_duration(left)}", _rate(run.rounds)),
        *budget_tile(run),
    ]


def budget_tile(run: Run) -> list[Tile]:
    """Return the privacy spent and what is left of its limit, where a protection accounts for it."""
    accounts = [record["protection"] for record in run.rounds if record.get("protection")]
    spent: Record = accounts[-1] if accounts else {}
    epsilon, limit = spent.get("epsilon"), (run.config.get("protect_settings") or {}).get("epsilon")
    if not is_number(epsilon):
        return []
    rest = f"{max(limit - epsilon, 0):.3g} left of {limit:g}" if is_number(limit) else "no limit was set"
    return [Tile("privacy spent (epsilon)", f"{epsilon:.3g}", rest)]


def seconds_left(rounds: Sequence[Record], evaluations: Sequence[Record], *, planned: object) -> float | None:
    """Estimate the time for the remaining rounds from the latest ones, evaluations included."""
    recent = [record for record in rounds[-RECENT:] if is_number(record.get("seconds"))]
    if not recent or not isinstance(planned, int):
        return None
    first, last = recent[0]["round"], recent[-1]["round"]
    spent = sum(record["seconds"] for record in recent)
    spent += sum(
        record["seconds"]
        for record in evaluations
        if first <= record["round"] <= last and is_number(record.get("seconds"))
    )
    return max(planned - int(last), 0) * float(spent) / len(recent)


def _rate(rounds: Sequence[Record]) -> str:
    seconds = rounds[-1].get("seconds") if rounds else None
    return f"the last round took {format_duration(seconds)}" if is_number(seconds) else ""
