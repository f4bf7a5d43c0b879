"""Keep of the sources what a new site is compared with: moments of features, limits, a confidence threshold.

Three exchanges with the clients after the last round, all of sums: moments of every source's validation
features; then each source's histogram of distances from the *others'* moments; and, as a measurement that
nothing depends on, what the held-out domains look like from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unseen.calibration import Measurement, Scaling
from unseen.calibration.expected_accuracy import accuracy_of, estimate_accuracy
from unseen.calibration.histograms import Counts
from unseen.calibration.moments import Gaussian
from unseen.calibration.site_reference import (
    FEWEST_SAMPLES,
    SiteReference,
    fit_reference,
    left_out_gaussians,
    sum_moments,
)
from unseen.engine import Engine, NoAnswer
from unseen.engine.experiment import EvaluationSet
from unseen.engine.round_records import sums_left
from unseen.evaluation.selection import VALIDATION_DOMAIN
from unseen.privacy.disclosure import FEATURE_MOMENTS
from unseen.runner.calibrate import whole_detail
from unseen.runs.records import Record
from unseen.tasks.detail_accumulators import DetailAccumulator, measures


@dataclass
class MomentsFit:
    """Fits the reference; `left` lists what the exchanges disclosed."""

    engine: Engine
    weights: Any
    scaling: Scaling
    left: list[Record]

    @property
    def features(self) -> int:
        """Length of the feature vectors that may be summed up; 0 where they may not, or there are none."""
        workspace = self.engine.workspace
        experiment = workspace.experiment
        possible = measures(experiment.data.task_type) and experiment.protection.shows_clients
        return workspace.deployed.shown_features if possible else 0

    def fit(self) -> tuple[SiteReference | None, list[Record]]:
        """Return the reference, if the sources can give one, and what the held-out domains look like."""
        if not self.features:
            return None, []
        measurement = Measurement("moments", features=self.features)
        experiment = self.engine.workspace.experiment
        moments = {
            domain: found
            for (domain, _), detail in self._ask(measurement, experiment.evaluation_sets("validation"))
            if (found := measurement.moments(detail.sums, detail.count)).finite
            and detail.count >= FEWEST_SAMPLES
        }
        if not moments:
            return None, []
        scores: dict[str, dict[str, Counts]] = {
            domain: dict(detail.sums)
            for name, origin in left_out_gaussians(moments).items()
            for (domain, _), detail in self._ask(self._distances(origin), [(name, "validation")])
        }
        moments = {name: own for name, own in moments.items() if name in scores}
        if not moments:
            return None, []
        everyone = self._distances(sum_moments(list(moments.values())).gaussian)
        sets = experiment.evaluation_sets(VALIDATION_DOMAIN, "target")
        others = self._ask(everyone, sets)
        outside = {
            domain: detail.sums["confidence"]
            for (domain, split), detail in others
            if split == VALIDATION_DOMAIN and "confidence" in detail.sums
        }
        reference = fit_reference(moments, scores, outside)
        return reference, [_describe(key, detail, reference) for key, detail in others]

    def _distances(self, origin: Gaussian) -> Measurement:
        return Measurement("distances", self.scaling, features=self.features, origin=origin)

    def _ask(
        self, measurement: Measurement, sets: Sequence[EvaluationSet]
    ) -> list[tuple[EvaluationSet, DetailAccumulator]]:
        """Sum a measurement over evaluation sets; those that are not answered are left out."""
        answers = self.engine.evaluate(self.weights, sets, measurement) if sets else []
        found = [
            (key, answer)
            for key, answer in zip(sets, answers, strict=True)
            if not isinstance(answer, NoAnswer)
        ]
        self.left += sums_left(
            [key for key, _ in found], [answer for _, answer in found], kind=FEATURE_MOMENTS
        )
        details = [(key, whole_detail(answer)) for key, answer in found]
        return [(key, detail) for key, detail in details if detail is not None]


def _describe(key: EvaluationSet, detail: DetailAccumulator, reference: SiteReference) -> Record:
    """Describe a domain that the model did not train on: its accuracy, and the estimate without labels."""
    domain, split = key
    record: Record = {"domain": domain, "split": split, "samples": detail.count}
    confidence = detail.sums.get("confidence")
    if confidence is not None and reference.threshold is not None and detail.count:
        expected = estimate_accuracy(confidence, reference.threshold, reference.errors)
        record |= {"expected_accuracy": expected._asdict(), "accuracy": accuracy_of(confidence)}
    return record


def with_sites(record: Record, reference: SiteReference | None, sites: Sequence[Mapping[str, Any]]) -> Record:
    """Add to the final record what was kept of the sources, and the domains outside of them."""
    if reference is None:
        return record
    return {**record, "site_reference": reference.summary(), "sites": list(sites)}
