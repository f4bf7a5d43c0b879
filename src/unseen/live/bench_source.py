"""A bench as a live page shows it: the grid of its jobs, those running and failed, and the results so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_job import BenchJob
from unseen.bench.bench_summary import BenchSummary, summarize_bench
from unseen.bench.grid import Grid
from unseen.bench.result_store import ResultStore
from unseen.bench.round_times import RoundTimes
from unseen.bench.runner import BenchOutcome, bench_state
from unseen.bench.study import display_name
from unseen.bench.tables.sheet import Sheet, Text
from unseen.evaluation.selection import mean_metric
from unseen.fileio import is_locked
from unseen.live.live_parts import header, link_section, table_section, tile_row
from unseen.live.live_view import REPORT, LiveView, Source, State
from unseen.live.record_tail import RecordTail
from unseen.report.formatting import NOTHING, format_count, format_duration, format_value, is_number
from unseen.report.page import DataTable, Tile
from unseen.runs.folder import RunFolder
from unseen.tasks import primary_metric

DONE, RUNNING, WAITING, FAILED = "done", "running", "waiting", "failed"
SIGNS = {DONE: "●", RUNNING: "◐", WAITING: "○", FAILED: "✕"}
MOST_SIGNS = 12
"""Jobs of one cell that have a sign each; more are counted."""


class Running(NamedTuple):
    """A running job: its latest round, the sources' validation score then, and seconds spent in rounds."""

    job: BenchJob
    round: int
    validation: str
    seconds: float


class BenchSource(Source):
    """Follows a bench folder and the folders of its running jobs."""

    def __init__(self, folder: Path, work: Path | None = None) -> None:
        self.folder = BenchFolder(folder, work)
        self._store = ResultStore(self.folder.work)
        self._tails: dict[str, RecordTail] = {}
        self._grid: Grid | None = None
        self._outcome: BenchOutcome | None = None
        self._running: list[Running] = []
        self._state: State = "waiting"

    def look(self) -> str:
        """Read which jobs are finished, failed and running, and how far these are."""
        if not self.folder.grid.is_file():
            return ""
        self._grid = Grid.from_toml(self.folder.grid)
        found = self._outcome = bench_state(self._grid, self.folder, self._store)
        active = is_locked(self.folder.lock)
        self._running = [self._progress(job) for job in found.missing if active and self._runs(job)]
        complete = not found.missing and found.plan.settled
        self._state = "running" if active else "finished" if complete else "stopped"
        rounds = "-".join(str(running.round) for running in self._running)
        return f"{len(found.results)}-{len(found.failed)}-{len(found.missing)}.{rounds}.{self._written}"

    @property
    def state(self) -> State:
        """Finished once no job is missing; running while a process holds the bench's lock."""
        return self._state

    @property
    def age(self) -> float:
        """Seconds since one of the running jobs wrote a record."""
        return min((self._tails[running.job.id].age for running in self._running), default=0.0)

    def page(self, name: str) -> Path | None:
        """Return the bench's report, or a job's, under the names that the bench's report links to."""
        if name == REPORT:
            return self.folder.page
        for job in self._outcome.plan.jobs if self._outcome else ():
            if name == f"jobs/{job.id}/{RunFolder(self.folder.work).report.name}":
                return RunFolder(job.folder(self.folder.work)).report
        return None

    def view(self) -> LiveView:
        """Show the bench so far, or its result."""
        if self._grid is None or self._outcome is None:
            return LiveView("Bench", {"header": header("Live bench", "The bench is being prepared", [])})
        grid, found = self._grid, self._outcome
        summary = summarize_bench(grid, found.results) if found.results else None
        title = grid.title or Path(str(grid.common.get("data", "Bench"))).name
        headline = summary.headline if summary else f"Bench on {title}: no result yet"
        result = _results(summary) if summary else ""
        if self._state == "finished" and self._written:
            result += link_section(REPORT, "Open the report of this bench")
        kinds = f"{len(grid.methods)} methods, {len(grid.seeds)} seeds"
        return LiveView(
            title=f"{title}: {len(found.results)} results",
            parts={
                "header": header("Live bench", headline, [title, kinds]),
                "tiles": tile_row(self._tiles(found)),
                "result": result,
                "tables": self._jobs(found),
                "messages": table_section("Failed jobs", _failures(found.failed)),
            },
        )

    @property
    def _written(self) -> int:
        """When the report was written; 0 if there is none."""
        return int(self.folder.page.stat().st_mtime) if self.folder.page.is_file() else 0

    def _runs(self, job: BenchJob) -> bool:
        return is_locked(RunFolder(job.folder(self.folder.work)).lock)

    def _progress(self, job: BenchJob) -> Running:
        path = RunFolder(job.folder(self.folder.work)).records
        tail = self._tails.setdefault(job.id, RecordTail(path))
        tail.read()
        rounds = [record for record in tail.records if record["event"] == "round"]
        evaluation = next((r for r in reversed(tail.records) if r["event"] == "evaluation"), None)
        metric = primary_metric(job.config.task or "classification")
        shown = NOTHING
        if evaluation is not None:
            shown = format_value(mean_metric(evaluation, "validation", metric), metric)
        seconds = sum(r["seconds"] for r in tail.records if is_number(r.get("seconds")))
        return Running(job, rounds[-1]["round"] if rounds else 0, shown, seconds)

    def _states(self, found: BenchOutcome) -> dict[str, str]:
        """Return the state of every job by its id."""
        states = {job.id: DONE for job in found.plan.jobs}
        states |= {job.id: WAITING for job in found.missing}
        states |= {running.job.id: RUNNING for running in self._running}
        return states | {job.id: FAILED for job, _ in found.failed}

    def _tiles(self, found: BenchOutcome) -> list[Tile]:
        counts = Counter(self._states(found).values())
        total = len(found.plan.jobs)
        hint = f"of {format_count(total)}" + ("" if found.plan.settled else " known so far (search)")
        left = self._seconds_left(found)
        waiting = f"{counts[WAITING]} waiting"
        return [
            Tile("jobs done", counts[DONE], hint, hero=True),
            Tile("running", counts[RUNNING], waiting),
            Tile("failed", counts[FAILED], "try again with --retry-failed" if counts[FAILED] else ""),
            Tile("time left", NOTHING if left is None else f"about {format_duration(left)}"),
        ]

    def _seconds_left(self, found: BenchOutcome) -> float | None:
        if not self._running:
            return None
        pace = RoundTimes()
        for result in found.results:
            planned = next((job.config.rounds for job in found.plan.jobs if job.id == result.job), 0)
            pace.add(result.label, rounds=planned, seconds=result.seconds)
        done = {running.job.id: running.round for running in self._running}
        for running in self._running:
            if running.round and not pace.knows(running.job.label):
                pace.add(running.job.label, rounds=running.round, seconds=running.seconds)
        left = [(job.label, job.config.rounds - done.get(job.id, 0)) for job in found.missing]
        return pace.seconds_left(left, workers=len(self._running))

    def _jobs(self, found: BenchOutcome) -> str:
        """Show a sign per job by method and held-out domain, then the running jobs."""
        states = self._states(found)
        cells: dict[tuple[str, str], dict[str, list[str]]] = {}
        for job in found.plan.jobs:
            row = cells.setdefault((job.label, job.model), {})
            row.setdefault(job.held_out, []).append(states[job.id])
        domains = list(dict.fromkeys(domain for row in cells.values() for domain in row))
        several = len({model for _, model in cells}) > 1
        rows = [
            [
                display_name(label) + (f" ({model})" if several else ""),
                *(_signs(row.get(name, [])) for name in domains),
            ]
            for (label, model), row in cells.items()
        ]
        headers = ["method", *domains]
        note = (
            ", ".join(f"{sign} {state}" for state, sign in SIGNS.items()) + "; a column per held-out domain"
        )
        running = [
            [
                running.job.name,
                f"{running.round} of {running.job.config.rounds}",
                running.validation,
                format_duration(running.seconds),
            ]
            for running in self._running
        ]
        return table_section(
            "Jobs", DataTable(headers, rows, text_columns=len(headers), tall=len(rows) > 20), note=note
        ) + table_section("Running now", DataTable(["job", "round", "source validation", "time"], running))


def _signs(states: Sequence[str]) -> str:
    if len(states) > MOST_SIGNS:
        counts = Counter(states)
        return ", ".join(f"{counts[state]} {state}" for state in SIGNS if counts[state])
    return "".join(SIGNS[state] for state in sorted(states, key=list(SIGNS).index))


def _results(summary: BenchSummary) -> str:
    """Show the table of the first rule of every model; published rows are left to the report."""
    shown = ""
    for each in summary.models:
        sheet = each.table_sheets[each.honest.rule]
        shown += table_section(sheet.title, _table(sheet), note=sheet.note)
    return shown


def _table(sheet: Sheet) -> DataTable:
    ours = [line for heading, lines in sheet.groups if not heading for line in lines]
    return DataTable(sheet.headers, [[_cell(cell) for cell in line] for line in ours])


def _cell(cell: Text) -> object:
    from markupsafe import Markup

    return Markup("<strong>{}</strong>").format(cell.text) if cell.bold else cell.text


def _failures(failed: Sequence[tuple[BenchJob, str]]) -> DataTable:
    rows = [[job.name, reason] for job, reason in failed]
    return DataTable(["job", "reason"], rows, text_columns=2, tall=len(rows) > 12)
