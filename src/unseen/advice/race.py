"""A race by successive halving: candidates train on all sources but one, and are judged on that one.

Rung by rung the survivors train longer and the worse half stops (Jamieson and Talwalkar, AISTATS 2016). Every
run is an ordinary job of a bench in one folder, named by its configuration: a race that is killed and started
again finds its finished jobs and rounds, and takes the same decisions from them. Domains that are hidden from
the race are neither trained nor evaluated on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unseen.advice.candidates import Candidate
from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_job import BenchJob, job_config
from unseen.bench.job_plan import JobPlan, PlannedEntry
from unseen.bench.result_store import ResultStore
from unseen.bench.results import JobResult, collect_results
from unseen.bench.workers import BenchCallback, JobPool, Placement
from unseen.errors import UnseenError
from unseen.evaluation.selection import SourceValidation
from unseen.tasks.metrics import goodness

FRACTIONS = (0.25, 0.5, 1.0)
"""Length of every rung's runs, relative to the candidate's full length."""


@dataclass(frozen=True)
class Standing:
    """What a race knows about one candidate.

    fraction  length of its longest finished runs, relative to its full length
    scores    (left-out source, seed) -> primary metric there, in the round that the fold's sources choose;
              errors are negated, so that larger is better
    seconds   mean time of these runs
    sent      mean number of bytes that clients sent in these runs
    """

    candidate: Candidate
    fraction: float
    scores: Mapping[tuple[str, int], float]
    seconds: float
    sent: float

    @property
    def mean(self) -> float:
        """The mean over the left-out sources, by which candidates are ranked."""
        return math.fsum(self.scores.values()) / len(self.scores)

    @property
    def by_source(self) -> dict[str, float]:
        """The mean over seeds on every left-out source: one observation each, however many seeds ran."""
        found: dict[str, list[float]] = {}
        for (source, _), score in self.scores.items():
            found.setdefault(source, []).append(score)
        return {source: math.fsum(values) / len(values) for source, values in found.items()}


@dataclass(frozen=True)
class RaceResult:
    """The outcome of a race.

    standings  of all candidates with finished runs: longest runs first, then best mean
    failed     candidate -> why one of its jobs failed
    stopped    why the race ended before the last rung; empty if it did not
    """

    standings: Sequence[Standing]
    failed: Mapping[str, str]
    stopped: str
    metric: str
    spent: float


@dataclass
class Race:
    """Candidates, the sources that are left out in turn, and where the jobs run.

    common   options of every run, among them `data`
    sources  the domains that the race may use
    limit    seconds for the whole race, earlier calls on the same folder included
    """

    candidates: Sequence[Candidate]
    common: Mapping[str, Any]
    sources: Sequence[str]
    folder: BenchFolder
    seeds: Sequence[int]
    limit: float
    workers: int
    placement: Placement = field(default_factory=Placement)
    callback: BenchCallback = field(default_factory=BenchCallback)

    def run(self) -> RaceResult:
        """Run the rungs that fit the limit; return the standings."""
        self._store = ResultStore(self.folder.work)
        self._results: dict[str, JobResult] = {}
        self._began, self._earlier = time.monotonic(), 0.0
        standings: dict[str, Standing] = {}
        failed: dict[str, str] = {}
        racing, stopped = list(self.candidates), ""
        with self.folder.locked():
            for rung, fraction in enumerate(FRACTIONS):
                stopped = self._run_rung(racing, fraction)
                failed |= self._failures(racing, fraction)
                finished = [found for one in racing if (found := self._standing(one, fraction))]
                standings |= {one.candidate.name: one for one in finished}
                if stopped or rung == len(FRACTIONS) - 1:
                    break
                racing = self._survivors(finished, FRACTIONS[rung + 1])
                if not any(not one.is_closed_form for one in racing):
                    stopped = "no candidate's longer runs fit the limit of time"
                    break
        if not standings:
            reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
            raise UnseenError(f"no candidate has finished: {reasons or 'give the race more --minutes'}")
        ranked = sorted(standings.values(), key=lambda one: (-one.fraction, -one.mean))
        metric = next(iter(self._results.values())).metric
        return RaceResult(ranked, failed, stopped, metric, self._spent())

    def jobs(self, candidate: Candidate, fraction: float) -> list[BenchJob]:
        """List the jobs of a candidate: every source left out in turn, with every seed."""
        options = candidate.options(self.common, fraction=fraction)
        return [
            BenchJob(
                candidate.name,
                left_out,
                seed,
                "",
                job_config(
                    {
                        **options,
                        "hold_out": (left_out,),
                        "sources": tuple(one for one in self.sources if one != left_out),
                        "seed": seed,
                    }
                ),
            )
            for seed in self.seeds
            for left_out in self.sources
        ]

    def _run_rung(self, racing: Sequence[Candidate], fraction: float) -> str:
        """Run what is missing; return why it stopped early, empty if it did not."""
        jobs = [job for candidate in racing for job in self.jobs(candidate, fraction)]
        done = [job for job in jobs if self._store.holds(job)]
        broken = [job for job in jobs if self.folder.has_failed(job)]
        missing = [job for job in jobs if job not in done and job not in broken]
        before = self._spent()
        self._collect(done)
        self._earlier += self._spent() - before
        if missing:
            seconds = {name: result.seconds for name, result in self._results.items()}
            self.callback.on_plan(missing, done, broken, seconds)
            pool = JobPool(
                self.folder, workers=self.workers, placement=self.placement, callback=self.callback
            )
            if not pool.run(missing, until=time.monotonic() + self.limit - self._elapsed()):
                return f"the limit of {self.limit / 60:g} minutes has passed"
        return ""

    def _standing(self, candidate: Candidate, fraction: float) -> Standing | None:
        """Return the standing of a candidate whose jobs of this rung are all finished."""
        jobs = self.jobs(candidate, fraction)
        if not all(self._store.holds(job) for job in jobs):
            return None
        found = self._collect(jobs)
        return Standing(
            candidate,
            1.0 if candidate.is_closed_form else fraction,
            {
                (one.held_out, one.seed): goodness(one.metric, one.accuracy[SourceValidation.name])
                for one in found
            },
            seconds=math.fsum(one.seconds for one in found) / len(found),
            sent=math.fsum(one.bytes_up for one in found) / len(found),
        )

    def _survivors(self, finished: Sequence[Standing], fraction: float) -> list[Candidate]:
        """Keep the better half; then, worst first, stop those whose next runs do not fit the limit.

        Closed forms are finished and stay.
        """
        closed = [one.candidate for one in finished if one.candidate.is_closed_form]
        trained = sorted(
            (one for one in finished if not one.candidate.is_closed_form), key=lambda one: -one.mean
        )
        kept = trained[: max(1, math.ceil(len(trained) / 2))]
        runs = len(self.sources) * len(self.seeds)
        trained_here = self._spent() - self._earlier
        overhead = self._wall() / trained_here if trained_here else 1.0
        while kept:
            ahead = math.fsum(one.seconds * runs * fraction / one.fraction for one in kept) / self.workers
            if self._elapsed() + ahead * max(overhead, 1.0) <= self.limit:
                break
            kept.pop()
        return [*closed, *(one.candidate for one in kept)]

    def _failures(self, racing: Sequence[Candidate], fraction: float) -> dict[str, str]:
        found = {}
        for candidate in racing:
            for job in self.jobs(candidate, fraction):
                if failure := self.folder.failure(job):
                    found[candidate.name] = failure.reason
        return found

    def _collect(self, jobs: Sequence[BenchJob]) -> list[JobResult]:
        """Read finished jobs as results of a bench."""
        entries = tuple(PlannedEntry(job, job) for job in jobs)
        found = collect_results(JobPlan((), entries, settled=True, chosen={}), self._store)
        self._results |= {one.job: one for one in found}
        return found

    def _wall(self) -> float:
        return time.monotonic() - self._began

    def _elapsed(self) -> float:
        """Return what counts towards the limit: this call by the clock, earlier ones by their finished jobs.

        Data, caches and processes take time besides training, which a limit in minutes must not ignore.
        """
        return self._earlier + self._wall()

    def _spent(self) -> float:
        """Return the seconds that the finished jobs trained, with all workers busy."""
        return math.fsum(one.seconds for one in self._results.values()) / self.workers
