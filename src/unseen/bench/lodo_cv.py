"""Leave-one-domain-out cross-validation: choose a round by the accuracy on sources held out of training.

For a target T, every source s gets a run with T and s held out. The metric of these runs on their s, round by
round, estimates the metric of the real run on T without any sample of T.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from unseen.bench.bench_job import RELEASED, BenchJob
from unseen.bench.grid import Grid
from unseen.bench.result_store import FinishedRun, without_domain
from unseen.errors import UsageError
from unseen.evaluation.selection import Oracle, SourceValidation, mean_metric, select
from unseen.runs.records import Record
from unseen.tasks import primary_metric


def folds(grid: Grid, job: BenchJob) -> list[BenchJob]:
    """List the runs that choose the round of `job`: one per source domain, with that domain held out too."""
    if job.held_out == RELEASED:
        raise UsageError("leave-one-domain-out is not for a release's split, which has validation domains")
    among = job.config.sources or grid.domains
    kept = (job.held_out, *job.config.validate_on)
    sources = [domain for domain in grid.domains if domain in among and domain not in kept]
    if len(sources) < 2:
        raise UsageError(
            f"leave-one-domain-out needs at least two source domains besides {job.held_out}; "
            f"there are {len(sources)}: use --selection {SourceValidation.name}"
        )
    return [_fold(job, source) for source in sources]


def _fold(job: BenchJob, source: str) -> BenchJob:
    hold_out = tuple(sorted((job.held_out, source)))
    config = job.config.resolved(hold_out=hold_out)
    return BenchJob(job.label, job.held_out, job.seed, job.model, config, left_out=source, trial=job.trial)


def join_folds(held_out: str, runs: Sequence[FinishedRun]) -> list[Record]:
    """Join the folds' evaluations: one record per round, with the scores of all left-out sources as target.

    held_out  the domain that no choice may use: its scores are removed first
    """
    blind = [without_domain(run.evaluations, held_out) for run in runs]
    rounds = set.intersection(*({record["round"] for record in records} for records in blind))
    joined: dict[int, Record] = {
        number: {"event": "evaluation", "round": number, "scores": []} for number in sorted(rounds)
    }
    for records in blind:
        for record in records:
            if record["round"] in joined:
                left_out = [score for score in record["scores"] if score["split"] == "target"]
                joined[record["round"]]["scores"] += left_out
    return list(joined.values())


def choose_round(
    held_out: str, runs: Sequence[FinishedRun], *, among: Collection[int] | None = None
) -> int | None:
    """Return the round with the best mean on the left-out sources; ties: lower loss, then earlier.

    among  rounds that the judged run has; where runs stop early, folds may have more
    """
    best = _best(held_out, runs, among)
    return None if best is None else int(best["round"])


def best_mean(held_out: str, runs: Sequence[FinishedRun]) -> float:
    """Return the mean on the left-out sources in the round of `choose_round`; searches maximize it."""
    best = _best(held_out, runs)
    return float("nan") if best is None else mean_metric(best, "target", primary_metric(_task(runs)))


def _best(held_out: str, runs: Sequence[FinishedRun], among: Collection[int] | None = None) -> Record | None:
    """Choose on the left-out sources as the oracle rule chooses on the target."""
    joined = join_folds(held_out, runs)
    return select([one for one in joined if among is None or one["round"] in among], Oracle.name, _task(runs))


def _task(runs: Sequence[FinishedRun]) -> str:
    return runs[0].task
