"""Run a bench: plan, run the missing jobs, and plan again, until nothing is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_job import BenchJob
from unseen.bench.grid import ALL, Grid
from unseen.bench.job_plan import JobPlan, make_plan
from unseen.bench.result_store import ResultStore
from unseen.bench.results import JobResult, collect_results, kept_line, kept_results
from unseen.bench.workers import BenchCallback, JobPool, Placement
from unseen.data import load_data
from unseen.data.sources import Progress, no_progress
from unseen.devices import available_cores, choose_device
from unseen.errors import UnseenError, UsageError
from unseen.models import InputSpec, build_model
from unseen.runner.prepare import check_names, data_request


@dataclass(frozen=True)
class BenchOutcome:
    """State of a bench: its results so far, the failed jobs with their reasons, and the jobs still to run."""

    plan: JobPlan
    results: list[JobResult]
    failed: list[tuple[BenchJob, str]]
    missing: list[BenchJob]


def inspect_data(grid: Grid, placement: Placement, *, progress: Progress = no_progress) -> Grid:
    """Check every name of the grid, load the data once, and fill in its domains."""
    for model in grid.models or ("",):
        for label in grid.methods:
            config = placement.apply(grid.job(label, grid.hold_out[0], grid.seeds[0], model).config)
            check_names(config)
    data = load_data(data_request(config, progress))
    if len(data.domains) < 2:
        raise UnseenError(f"{data.name} has one domain only ({data.domains[0]}); at least two are needed")
    named = {*grid.models, *(name for name in _models(grid) if name)}
    for model in sorted(named):
        build_model(model, InputSpec(data.input_shape, data.outputs), seed=0)
    return grid.on(data.domains)


def known_domains(grid: Grid, folder: BenchFolder) -> Grid | None:
    """Fill in the domains from an earlier call with the same grid, so that finished benches need no data."""
    if not folder.grid.exists():
        return None
    stored = Grid.from_toml(folder.grid)
    what = ("common", "methods", "models")
    if not stored.domains or any(getattr(stored, name) != getattr(grid, name) for name in what):
        return None
    return grid.on(stored.domains)


def result_domains(grid: Grid, folder: BenchFolder) -> Grid | None:
    """Fill in the domains that the grid and its results name, to show results without their data."""
    named = [] if grid.hold_out == (ALL,) else [*grid.hold_out]
    found = [line.held_out for line in kept_results(folder).values()]
    return grid.on(tuple(dict.fromkeys(named + found))) if found else None


def _models(grid: Grid) -> list[str | None]:
    return [options.get("model") for options in (grid.common, *grid.methods.values())]


def choose_workers(workers: int | None, placement: Placement) -> int:
    """Choose as many processes as there are cores for their threads; one process on a GPU."""
    if placement.threads < 1 or (workers is not None and workers < 1):
        raise UsageError("--workers and --threads must be at least 1")
    if workers is not None:
        return workers
    on_cpu = choose_device(placement.device or "auto").type == "cpu"
    return max(available_cores() // placement.threads, 1) if on_cpu else 1


def run_bench(
    grid: Grid,
    folder: BenchFolder,
    *,
    workers: int | None = None,
    placement: Placement | None = None,
    retry_failed: bool = False,
    callback: BenchCallback | None = None,
) -> BenchOutcome:
    """Run all jobs of a grid that are neither finished nor failed, and collect the results.

    grid          with its domains filled in by `inspect_data`
    retry_failed  also run jobs that failed in an earlier call; they resume after their last finished round
    """
    placement, callback = placement or Placement(), callback or BenchCallback()
    store = ResultStore(folder.work)
    with folder.locked():
        grid.save(folder.grid)
        if retry_failed:
            for job in make_plan(grid, store, has_failed=folder.has_failed).jobs:
                folder.forget_failure(job)
        pool = JobPool(
            folder, workers=choose_workers(workers, placement), placement=placement, callback=callback
        )
        while True:
            state = bench_state(grid, folder, store)
            if not state.missing:
                return state
            open_jobs = {job.id for job in (*state.missing, *(job for job, _ in state.failed))}
            done = [job for job in state.plan.jobs if job.id not in open_jobs]
            seconds = {result.job: result.seconds for result in state.results}
            callback.on_plan(state.missing, done, [job for job, _ in state.failed], seconds)
            pool.run(state.missing)


def bench_state(grid: Grid, folder: BenchFolder, store: ResultStore | None = None) -> BenchOutcome:
    """Return the state of a grid in a bench folder, without running anything."""
    store, kept = store or ResultStore(folder.work), kept_results(folder)
    plan = make_plan(grid, store, has_failed=folder.has_failed)
    unsettled = tuple(entry for entry in plan.entries if kept_line(entry, store, kept) is None)
    failed, missing = list[tuple[BenchJob, str]](), list[BenchJob]()
    for job in replace(plan, entries=unsettled).jobs:
        if store.holds(job):
            continue
        failure = folder.failure(job)
        if failure is None:
            missing.append(job)
        else:
            failed.append((job, failure.reason))
    return BenchOutcome(plan, collect_results(plan, store, kept), failed, missing)
