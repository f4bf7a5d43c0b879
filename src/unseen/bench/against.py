"""Methods against a baseline and against each other, corrected for the number of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unseen.bench.sentences import sentence
from unseen.bench.statistics import LEVEL, Comparison, holm, mean_and_error, paired_comparison
from unseen.bench.study import Study, display_name


@dataclass(frozen=True)
class Against:
    """One method against another under one selection rule.

    runs         the comparison over pairs of runs (held-out domain and seed)
    corrected_p  p-value of its t-test after Holm's correction for all comparisons that were made together
    comparisons  their number
    domains      the comparison over domains, seeds averaged first: stricter, since the seeds of one domain
                 are no independent witnesses of what happens in another
    """

    ours: str
    baseline: str
    metric: str
    runs: Comparison
    domains: Comparison
    corrected_p: float | None = None
    comparisons: int = 1

    @property
    def significant(self) -> bool:
        """Whether the corrected t-test sees a difference."""
        return self.corrected_p is not None and self.corrected_p < LEVEL

    @property
    def verdict(self) -> str:
        """ "better", "worse", or nothing where chance could have done it."""
        if not self.significant:
            return ""
        return "better" if self.runs.difference > 0 else "worse"

    @property
    def words(self) -> str:
        """The comparison as a sentence."""
        return sentence(
            self.runs,
            ours=display_name(self.ours),
            baseline=display_name(self.baseline),
            metric=self.metric,
            corrected_p=self.corrected_p,
            comparisons=self.comparisons,
        )


def against_baseline(study: Study, rule: str, baseline: str) -> list[Against]:
    """Every other method against the baseline, corrected for their number."""
    others = [label for label in study.labels if label != baseline]
    return _corrected([compare(study, rule, label, baseline) for label in others])


def all_against_all(study: Study, rule: str) -> list[Against]:
    """Every two methods once (in the grid's order), corrected for the number of all pairs."""
    labels = study.labels
    pairs = [(one, other) for place, one in enumerate(labels) for other in labels[place + 1 :]]
    return _corrected([compare(study, rule, one, other) for one, other in pairs])


def compare(study: Study, rule: str, ours: str, baseline: str) -> Against:
    """One method against another, not corrected."""
    means = [
        {domain: found.mean for domain, values in study.by_domain(label, rule).items()
         if (found := mean_and_error(values))}
        for label in (ours, baseline)
    ]  # fmt: skip
    runs = paired_comparison(study.values(ours, rule), study.values(baseline, rule))
    return Against(ours, baseline, study.metric, runs, paired_comparison(*means), corrected_p=runs.t_p)


def _corrected(found: Sequence[Against]) -> list[Against]:
    tested = sum(each.runs.t_p is not None for each in found)
    corrected = holm([each.runs.t_p for each in found])
    return [
        Against(each.ours, each.baseline, each.metric, each.runs, each.domains, p, max(tested, 1))
        for each, p in zip(found, corrected, strict=True)
    ]
