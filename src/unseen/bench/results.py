"""Results of a bench: one small line per finished job, computed from the job's records alone.

Tables, tests and figures are functions of these lines, so a bench can be shown again without its run folders:
earlier lines are used where a job's folder has been deleted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.grid import LEAVE_ONE_DOMAIN_OUT, Grid
from unseen.bench.job_plan import JobPlan, PlannedEntry, make_plan
from unseen.bench.lodo_cv import choose_round
from unseen.bench.result_store import FinishedRun, ResultStore, without_domain
from unseen.checksums import check_sealed, write_sealed_text
from unseen.errors import UnseenError
from unseen.evaluation.evaluate import summarize_groups
from unseen.evaluation.selection import (
    SELECTION_RULES,
    VALIDATION_DOMAIN,
    LastRound,
    Oracle,
    SourceValidation,
    ValidationDomains,
    mean_metric,
    rule_names,
    select,
)
from unseen.methods import METHODS
from unseen.runs.records import Record

_OPTIONAL = ("validation", "validation_worst", "transfers", "idle")
"""Entries of a line that are left out where the run has no such number."""


@dataclass(frozen=True)
class JobResult:
    """The result of one finished job.

    accuracy     selection rule -> metric on the held-out domain, for every rule that applies; NaN = undefined
    in_domain    metric on test samples of the source domains; None where none were kept
    curve        metric on the held-out domain after every evaluated round
    metric       name of the metric: the primary one of the task
    job          the job's id, which is also the name of its run folder
    worst_group  accuracy of the worst group of held-out samples, where the data has groups
    validation   metric on the domains kept to choose the round, in the round that they choose
    validation_worst  that of their worst group
    transfers    how often clients wait for a model that others train first: once per round, and once per
                 visit where a round's clients train one after another; 0 where data is pooled
    idle         part of the run in which a client waits for others, if all visits take equally long; none
                 where data is pooled
    """

    label: str
    held_out: str
    seed: int
    model: str
    accuracy: dict[str, float]
    in_domain: float | None
    curve: list[float]
    seconds: float
    bytes_up: int
    bytes_down: int
    metric: str
    job: str
    worst_group: float | None = None
    validation: float | None = None
    validation_worst: float | None = None
    transfers: int | None = None
    idle: float | None = None


def write_results(path: Path, results: Iterable[JobResult]) -> None:
    """Write one line per job; undefined numbers are written as null."""
    lines = [json.dumps(as_values(result), ensure_ascii=False, allow_nan=False) for result in results]
    write_sealed_text(path, "".join(f"{line}\n" for line in lines))


def as_values(result: JobResult) -> dict[str, Any]:
    """Convert a result to JSON values: undefined numbers become null, optional ones are left out."""
    values = {name: _without_nan(value) for name, value in asdict(result).items()}
    return {name: value for name, value in values.items() if name not in _OPTIONAL or value is not None}


def read_results(path: Path) -> list[JobResult]:
    """Read what `write_results` wrote."""
    known = {item.name for item in fields(JobResult)}
    check_sealed(path, way_out="restore it from a backup, or delete it where the jobs' folders still exist")
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [_result({key: value for key, value in line.items() if key in known}) for line in lines]
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UnseenError(f"{path} contains no results of a bench: {error}") from error


def load_results(folder: Path, *, work: Path | None = None) -> list[JobResult]:
    """Collect the finished jobs of a bench folder, from their records alone.

    work  the folder of the job folders, if not the bench folder's `jobs`
    """
    place = BenchFolder(folder, work)
    store = ResultStore(place.work)
    return collect_results(make_plan(Grid.from_toml(place.grid), store, has_failed=place.has_failed), store)


def kept_results(folder: BenchFolder) -> dict[str, JobResult]:
    """Read the lines that an earlier call wrote to a bench folder, by job id."""
    return {line.job: line for line in read_results(folder.results)} if folder.results.exists() else {}


def kept_line(entry: PlannedEntry, store: ResultStore, kept: Mapping[str, JobResult]) -> JobResult | None:
    """Return the earlier line of an entry whose job folder is gone; None if there is a folder or no line."""
    line = kept.get(entry.job.id)
    if line is None or store.holds(entry.job) or (entry.folds and LEAVE_ONE_DOMAIN_OUT not in line.accuracy):
        return None
    return replace(line, label=entry.job.label)


def collect_results(
    plan: JobPlan, store: ResultStore, kept: Mapping[str, JobResult] = MappingProxyType({})
) -> list[JobResult]:
    """Collect the finished entries of a plan, in its order; runs on different data are refused."""
    found, contents = [], dict[tuple[object, ...], str]()
    for entry in plan.entries:
        run = store.get(entry.job)
        if run is None:
            line = kept_line(entry, store, kept)
            found += [line] if line else []
            continue
        config = entry.job.config
        read = (
            config.data,
            config.image_size,
            config.samples_per_domain,
            *sorted(config.data_settings.items()),
        )
        seen = contents.setdefault(read, run.fingerprint)
        if seen != run.fingerprint:
            raise UnseenError(
                f"{entry.job.name} ran on other data than the jobs before it ({config.data} changed): "
                "choose another --out"
            )
        found.append(_collect(entry, run, store))
    return found


def _collect(entry: PlannedEntry, run: FinishedRun, store: ResultStore) -> JobResult:
    job = entry.job
    judged = store.get(entry.judged) or run
    accuracy = {
        rule: _on_target(judged if rule == LEAVE_ONE_DOMAIN_OUT else run, number)
        for rule, number in chosen_rounds(entry, store).items()
    }
    metrics = run.result["metrics"]
    kept = _on_validation_domains(run) if job.config.validate_on else {}
    return JobResult(
        label=job.label,
        held_out=job.held_out,
        seed=job.seed,
        model=run.result["model"],
        accuracy=accuracy,
        in_domain=(metrics["in_domain"] or {}).get(run.metric),
        curve=[_of_target(record, run.metric) for record in run.evaluations],
        seconds=run.result["seconds"],
        bytes_up=run.result["bytes_up"],
        bytes_down=run.result["bytes_down"],
        metric=run.metric,
        job=job.id,
        worst_group=metrics.get("worst_group", {}).get(run.metric),
        transfers=(transfers := _count_transfers(run, job.config.method)),
        idle=1 - len(run.clients_by_round) / transfers if transfers else None,
        **kept,
    )


def _count_transfers(run: FinishedRun, method: str) -> int:
    topology = METHODS[method].topology
    if topology == "serial":
        return sum(run.clients_by_round)
    return 0 if topology == "pooled" else len(run.clients_by_round)


def _on_validation_domains(run: FinishedRun) -> dict[str, float | None]:
    """Return the metric on the validation domains and on their worst group, in the round that they choose."""
    chosen = select(run.evaluations, ValidationDomains.name, run.task)
    if chosen is None:
        return {}
    groups = summarize_groups(chosen, VALIDATION_DOMAIN, run.metric)
    mean = groups.get("pooled")
    return {
        "validation": mean_metric(chosen, VALIDATION_DOMAIN, run.metric) if mean is None else float(mean),
        "validation_worst": groups.get("worst"),
    }


def chosen_rounds(entry: PlannedEntry, store: ResultStore) -> dict[str, int | None]:
    """Return the round that each selection rule takes; only rules that `uses_target` see held-out scores.

    Leave-one-domain-out is among them once all its runs are finished.
    """
    run, held_out = store.get(entry.job), entry.job.held_out
    if run is None:
        return {}
    blind = without_domain(run.evaluations, held_out)
    rounds = {}
    for name in dict.fromkeys((SourceValidation.name, LastRound.name, Oracle.name, *rule_names())):
        rule = SELECTION_RULES[name]
        if entry.job.config.validate_on or not rule.needs_validation_domains:
            seen = run.evaluations if rule.uses_target else blind
            rounds[name] = _round(select(seen, name, run.task))
    folds = store.get_all(entry.folds) if store.holds(entry.judged) else None
    if not folds:
        return rounds
    evaluated = {int(record["round"]) for record in run.evaluations}
    return {**rounds, LEAVE_ONE_DOMAIN_OUT: choose_round(held_out, folds, among=evaluated)}


def _round(evaluation: Record | None) -> int | None:
    return None if evaluation is None else int(evaluation["round"])


def _on_target(run: FinishedRun, number: int | None) -> float:
    """Return the metric on the held-out domain after a round."""
    found = (record for record in run.evaluations if record["round"] == number)
    return next((_of_target(record, run.metric) for record in found), math.nan)


def _of_target(evaluation: Record, metric: str) -> float:
    """Return the metric over all held-out samples if there are groups (as WILDS), else the domains' mean."""
    pooled = summarize_groups(evaluation, "target", metric).get("pooled")
    return mean_metric(evaluation, "target", metric) if pooled is None else float(pooled)


def _result(values: dict[str, Any]) -> JobResult:
    rules = {rule: _or_nan(value) for rule, value in values["accuracy"].items()}
    curve = [_or_nan(value) for value in values["curve"]]
    return JobResult(**{**values, "accuracy": rules, "curve": curve})


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
