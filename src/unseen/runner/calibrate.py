"""Calibrate the kept model from its sources' validation data, and measure what that gives on every domain.

Exchanges with the clients, all of sums: one fits the temperature (vector scaling takes some more), and the
detailed evaluation that a run ends with then also counts probabilities, conformal scores and errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unseen.calibration import (
    ERROR_EDGES,
    SCORE_EDGES,
    SCORES,
    Calibration,
    Measurement,
    Scaling,
    coverage_at,
    quantile_bin,
)
from unseen.calibration.conformal import DEFAULT_PROMISE, DEFAULT_SCORE, PROMISES, rule_bins
from unseen.calibration.histograms import Counts, Floats, to_sparse, upper_edge
from unseen.calibration.reliability import describe_reliability
from unseen.calibration.scaling import UNSCALED, fit_temperature, fit_vector
from unseen.engine import Engine, NoAnswer
from unseen.engine.experiment import EvaluationSet
from unseen.engine.round_records import sums_left
from unseen.evaluation.evaluate import GroupedAccumulator
from unseen.evaluation.selection import VALIDATION_DOMAIN
from unseen.runs.records import Record
from unseen.tasks.accumulators import MetricAccumulator
from unseen.tasks.detail_accumulators import DetailAccumulator, detail_of, measures
from unseen.tasks.detail_metrics import find_worst

ERROR = "error"
"""The conformal score of quantities: the absolute error."""


@dataclass
class ScalingFit:
    """Fits the scaling of a model's logits; `left` lists what the exchanges disclosed."""

    engine: Engine
    weights: Any
    left: list[Record]

    def fit(self, choice: str) -> Scaling:
        """Fit the chosen scaling; none without classes or without validation samples."""
        experiment = self.engine.workspace.experiment
        task = experiment.data.task_type
        if choice == "none" or not task.has_classes or not measures(task):
            return UNSCALED
        sums = self._ask(Measurement("temperature"))
        temperature = UNSCALED if sums is None else fit_temperature(sums)
        if choice == "temperature" or sums is None:
            return temperature
        return fit_vector(self._ask_vector, temperature, classes=experiment.data.outputs)

    def _ask_vector(self, scaling: Scaling) -> Floats:
        sums = self._ask(Measurement("vector", scaling))
        size = self.engine.workspace.experiment.data.outputs
        return np.full(1 + 2 * size + 4 * size**2, np.nan) if sums is None else sums

    def _ask(self, measurement: Measurement) -> Floats | None:
        """Sum a measurement over all sources' validation samples; None if nobody answers."""
        sets = self.engine.workspace.experiment.evaluation_sets("validation")
        answers = self.engine.evaluate(self.weights, sets, measurement) if sets else []
        found = [
            (key, answer)
            for key, answer in zip(sets, answers, strict=True)
            if not isinstance(answer, NoAnswer)
        ]
        self.left += sums_left([key for key, _ in found], [answer for _, answer in found])
        details = [detail for _, answer in found if (detail := whole_detail(answer))]
        if not details:
            return None
        total: Floats = np.sum([detail.sums[measurement.kind] for detail in details], axis=0)
        return total


def detailed_measurement(engine: Engine, scaling: Scaling) -> Measurement | None:
    """Return what the detailed evaluation sums up; None for tasks of other outputs."""
    task = engine.workspace.experiment.data.task_type
    if not measures(task):
        return None
    return Measurement("classes", scaling) if task.has_classes else Measurement("values")


def whole_detail(sums: MetricAccumulator) -> DetailAccumulator | None:
    """Return the details of a whole set, its groups merged; None where there are none."""
    return detail_of(sums.merge_groups() if isinstance(sums, GroupedAccumulator) else sums)


def describe_calibration(
    sets: Sequence[EvaluationSet],
    accumulators: Sequence[MetricAccumulator],
    scaling: Scaling,
    *,
    target_scale: float = 1.0,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Derive thresholds from the sources' sums, and what they give on every set.

    Returns the calibration of the whole model, and per set what its entry in the records gets; both are empty
    where nothing was measured.

    target_scale  std by which quantities were divided
    """
    details = [whole_detail(found) for found in accumulators]
    known = {key: detail for key, detail in zip(sets, details, strict=True) if detail}
    sources, outside = (
        {domain: detail for (domain, split), detail in known.items() if split == wanted}
        for wanted in ("validation", VALIDATION_DOMAIN)
    )
    bins = _find_bins(sources, outside)
    limits = {
        score: {
            f"{promise:g}": {rule: _limit(score, bin, target_scale) for rule, bin in rules.items()}
            for promise, rules in promises.items()
        }
        for score, promises in bins.items()
    }
    entries = [
        {} if detail is None else _describe_set(detail, bins, target_scale=target_scale) for detail in details
    ]
    if not known:
        return {}, entries
    samples = {domain: detail.count for domain, detail in sources.items()}
    calibration = Calibration(scaling, limits, samples)
    if limits and DEFAULT_SCORE not in limits:
        calibration = Calibration(scaling, limits, samples, {**calibration.default, "score": ERROR})
    return {**calibration.to_dict(), "left_out": _left_out(sources)}, entries


def _find_bins(
    sources: Mapping[str, DetailAccumulator], outside: Mapping[str, DetailAccumulator]
) -> dict[str, dict[float, dict[str, int]]]:
    """Return score -> promise -> rule -> the bin of the threshold."""
    if not any(detail.count for detail in sources.values()):
        return {}
    scores = [ERROR] if "errors" in next(iter(sources.values())).sums else SCORES
    return {
        score: {
            promise: rule_bins(
                {domain: true_scores(detail, score) for domain, detail in sources.items()},
                promise,
                unseen={domain: true_scores(detail, score) for domain, detail in outside.items()},
            )
            for promise in PROMISES
        }
        for score in scores
    }


def true_scores(detail: DetailAccumulator, score: str) -> Counts:
    """Return the histogram of the true answers' conformal scores."""
    counts: Counts = detail.sums["errors" if score == ERROR else f"true_{score}"]
    return counts


def _limit(score: str, bin: int, target_scale: float) -> float | None:
    edge = upper_edge(ERROR_EDGES if score == ERROR else SCORE_EDGES, bin)
    return edge if edge is None or score != ERROR else edge * target_scale


def _describe_set(
    detail: DetailAccumulator, bins: Mapping[str, Any], *, target_scale: float
) -> dict[str, Any]:
    """Describe a set for the records: detailed metrics, calibration, coverage and size of conformal sets."""
    found = detail.details()
    entry: dict[str, Any] = {"details": found.values, "widths": found.widths}
    if "proper_after" in detail.sums:
        entry["calibration"] = {
            when: describe_reliability(detail.sums[f"reliability_{when}"], detail.sums[f"proper_{when}"])
            for when in ("before", "after")
        }
    if bins and detail.count:
        entry["conformal"] = {
            score: {
                f"{promise:g}": {
                    rule: describe_sets(detail, score, bin, target_scale=target_scale)
                    for rule, bin in rules.items()
                }
                for promise, rules in promises.items()
            }
            for score, promises in bins.items()
        }
    return entry


def describe_sets(
    detail: DetailAccumulator, score: str, bin: int, *, target_scale: float = 1.0
) -> dict[str, float | None]:
    """Return coverage and mean size of the sets that a threshold gives, and the fraction of empty ones.

    Of quantities the size is the width of the interval, in the target's unit; None if it is infinite.
    """
    coverage = coverage_at(true_scores(detail, score), bin)
    if score == ERROR:
        half = _limit(score, bin, target_scale)
        return {"coverage": coverage, "size": None if half is None else 2 * half}
    size = float(detail.sums[f"all_{score}"][: bin + 1].sum()) / detail.count
    return {
        "coverage": coverage,
        "size": size,
        "empty": 1 - coverage_at(detail.sums[f"least_{score}"], bin),
    }


def _left_out(sources: Mapping[str, DetailAccumulator]) -> dict[str, float]:
    """Return the coverage on each source when only the others calibrate, at the default score and promise."""
    if len(sources) < 2:
        return {}
    score = ERROR if "errors" in next(iter(sources.values())).sums else DEFAULT_SCORE
    counts = {domain: true_scores(detail, score) for domain, detail in sources.items()}
    total = np.sum(list(counts.values()), axis=0)
    return {
        domain: coverage_at(own, quantile_bin(total - own, DEFAULT_PROMISE)) for domain, own in counts.items()
    }


def describe_histograms(
    sets: Sequence[EvaluationSet], accumulators: Sequence[MetricAccumulator]
) -> list[dict[str, Any]]:
    """Return every set's conformal histograms for the run's `calibration.json`, without empty bins."""
    described = []
    for (domain, split), found in zip(sets, accumulators, strict=True):
        detail = whole_detail(found)
        if detail is None:
            continue
        names = [name for name in detail.sums if name == "errors" or name.split("_")[0] in ("true", "all")]
        histograms = {name: to_sparse(detail.sums[name]) for name in names}
        described.append(
            {"domain": domain, "split": split, "samples": detail.count, "histograms": histograms}
        )
    return described


def summarize_calibration(final: Record) -> dict[str, Any]:
    """Summarize a final record for result.json: detailed metrics, calibration and coverage of its domains."""
    calibration = final.get("calibration")
    if not calibration:
        return {}
    targets = [score for score in final["scores"] if score["split"] == "target" and "details" in score]
    judged = {
        score["domain"]: score["details"]
        for score in final["scores"]
        if score["split"] != "test" and "details" in score
    }
    summary: dict[str, Any] = {
        "details": {
            "target": _mean_values([score["details"] for score in targets]),
            "worst_domain": find_worst(judged),
        },
        "calibration": {
            name: calibration[name] for name in ("scaling", "temperature", "sources", "left_out")
        },
    }
    groups = {
        group["group"]: group["details"]
        for group in final.get("groups", ())
        if group["split"] == "target" and group["group"] is not None and "details" in group
    }
    if groups:
        summary["details"]["worst_group"] = find_worst(groups)
    reliable = [score["calibration"] for score in targets if "calibration" in score]
    if reliable:
        summary["calibration"]["target"] = {
            when: _mean_values(
                [{name: value for name, value in each[when].items() if name != "bins"} for each in reliable]
            )
            for when in ("before", "after")
        }
    if limits := calibration["conformal"]["limits"]:
        default = calibration["conformal"]["default"]
        promise = f"{default['promise']:g}"
        measured = [
            score["conformal"][default["score"]][promise] for score in targets if "conformal" in score
        ]
        summary["conformal"] = {
            **default,
            "target": {
                rule: _mean_values([each[rule] for each in measured])
                for rule in limits[default["score"]][promise]
            },
        }
    return summary


def _mean_values(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Average every value over the domains; None where one is undefined."""
    means: dict[str, float | None] = {}
    for name in found[0] if found else ():
        values = [each[name] for each in found]
        known = [value for value in values if value is not None and np.isfinite(value)]
        means[name] = sum(known) / len(known) if len(known) == len(values) else None
    return means
