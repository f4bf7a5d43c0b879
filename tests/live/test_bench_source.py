"""A bench's page: the state of every job, the running ones' rounds, failures and results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from made_records import NASTY, append, one_round, write_live_run

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.grid import Grid
from unseen.bench.result_store import ResultStore
from unseen.bench.runner import bench_state, run_bench
from unseen.fileio import locked
from unseen.live.bench_source import SIGNS, BenchSource
from unseen.live.live_view import NewsDesk
from unseen.runs.folder import RunFolder

COMMON = {"data": "rotated-digits", "rounds": 1, "model": "mnist-cnn", "batch_size": 128}
DOMAINS = ("0", "15", "30", "45", "60", "75")


def small_grid() -> Grid:
    grid = Grid(common=COMMON, methods={"fedavg": {}, "fedprox": {}}, hold_out=("0", "75"), seeds=(0, 1))
    return grid.on(DOMAINS)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[BenchSource]:
    """A bench that is running one of its eight jobs; another one has failed."""
    folder, grid = BenchFolder(tmp_path / "bench"), small_grid()
    folder.path.mkdir()
    grid.save(folder.grid)
    first, second, *_ = bench_state(grid, folder, ResultStore(folder.work)).missing
    place = write_live_run(folder.make_ready(first), rounds=2, planned=9)
    folder.note_failure(second, NASTY)
    with ExitStack() as held:
        held.enter_context(folder.locked())
        held.enter_context(locked(RunFolder(place).lock, place=place))
        yield BenchSource(folder.path)


def test_every_job_has_its_state(busy: BenchSource) -> None:
    version = busy.look()
    assert busy.state == "running"
    parts = busy.view().parts
    signs = "".join(parts["tables"].partition("Running now")[0].partition("</table>")[0])
    counted = {state: signs.count(sign) for state, sign in SIGNS.items()}
    assert counted == {"done": 0, "running": 1, "waiting": 6, "failed": 1}
    assert "2 of 1" in parts["tables"], "the made-up records have more rounds than the grid"
    assert "66.7" in parts["tables"], "the sources' validation score"
    assert "result" not in parts or not parts["result"]
    append(RunFolder(busy.folder.work / busy._running[0].job.id).path, *one_round(3))
    assert busy.look() != version


def test_a_reason_is_text(busy: BenchSource) -> None:
    busy.look()
    shown = busy.view().parts["messages"]
    assert "&lt;img" in shown
    assert "<img" not in shown


def test_held_out_scores_of_unfinished_jobs_are_not_shown(busy: BenchSource) -> None:
    busy.look()
    path = RunFolder(busy.folder.work / busy._running[0].job.id).path
    special = one_round(3)
    special[1]["scores"][-1]["metrics"]["accuracy"] = 0.12345
    append(path, *special)
    busy.look()
    assert not any("12.3" in part for part in busy.view().parts.values())


def test_many_jobs_of_a_cell_are_counted() -> None:
    from unseen.live.bench_source import _signs

    assert _signs(["waiting", "done", "running"]) == "●◐○"
    assert _signs(["done"] * 20 + ["failed"]) == "20 done, 1 failed"


def test_a_bench_that_is_not_written_yet_waits(tmp_path: Path) -> None:
    news = NewsDesk(lambda: BenchSource(tmp_path / "later")).news()
    assert news["state"] == "waiting"
    assert "being prepared" in news["parts"]["header"]


def test_a_finished_bench_shows_its_table_and_its_pages(tmp_path: Path) -> None:
    folder = BenchFolder(tmp_path / "bench")
    grid = Grid(common=COMMON, methods={"fedavg": {}}, hold_out=("75",), seeds=(0,)).on(DOMAINS)
    outcome = run_bench(grid, folder, workers=1)
    source = BenchSource(folder.path)
    source.look()
    assert source.state == "finished"
    view = source.view()
    assert "Held-out accuracy" in view.parts["result"]
    assert 'href="report"' not in view.parts["result"], "it is not written yet"
    folder.page.write_text("<p>done</p>")
    source.look()
    assert 'href="report"' in source.view().parts["result"]
    (job,) = outcome.plan.jobs
    assert source.page("report") == folder.page
    assert source.page(f"jobs/{job.id}/report.html") == job.folder(folder.work) / "report.html"
    for name in (f"jobs/{job.id}/records.jsonl", f"jobs/../jobs/{job.id}/report.html", "jobs/x/report.html"):
        assert source.page(name) is None
