"""Comparisons of methods with a baseline and with each other, corrected for their number; as sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unseen.bench.statistics import LEVEL, Comparison, holm, mean_and_error, paired_comparison
from unseen.bench.study import Study, display_name
from unseen.tasks import is_fraction, metric_label


@dataclass(frozen=True)
class PairwiseComparison:
    """One method against another under one selection rule.

    runs         the comparison over pairs of runs (held-out domain and seed)
    corrected_p  p-value of its t-test after Holm's correction for all comparisons that were made together
    comparisons  their number
    domains      the comparison over domains, seeds averaged first: stricter, since the seeds of one domain
                 are not independent observations
    weights      how both weight clients, if that is known and differs; else empty
    """

    ours: str
    baseline: str
    metric: str
    runs: Comparison
    domains: Comparison
    corrected_p: float | None = None
    comparisons: int = 1
    weights: str = ""

    @property
    def significant(self) -> bool:
        """Whether the corrected t-test finds a difference."""
        return self.corrected_p is not None and self.corrected_p < LEVEL

    @property
    def verdict(self) -> str:
        """ "better", "worse", or empty where the difference is not significant."""
        if not self.significant:
            return ""
        return "better" if self.runs.difference > 0 else "worse"

    @property
    def words(self) -> str:
        """The comparison as a sentence."""
        sentence = comparison_sentence(
            self.runs,
            ours=display_name(self.ours),
            baseline=display_name(self.baseline),
            metric=self.metric,
            corrected_p=self.corrected_p,
            comparisons=self.comparisons,
        )
        return sentence + self.weights


def compare_with_baseline(study: Study, rule: str, baseline: str) -> list[PairwiseComparison]:
    """Compare every other method with the baseline, corrected for their number."""
    others = [label for label in study.labels if label != baseline]
    return _correct([compare_methods(study, rule, label, baseline) for label in others])


def compare_all_pairs(study: Study, rule: str) -> list[PairwiseComparison]:
    """Compare every two methods once (in the grid's order), corrected for the number of all pairs."""
    labels = study.labels
    pairs = [(one, other) for place, one in enumerate(labels) for other in labels[place + 1 :]]
    return _correct([compare_methods(study, rule, one, other) for one, other in pairs])


def compare_methods(study: Study, rule: str, ours: str, baseline: str) -> PairwiseComparison:
    """Compare two methods, not corrected for other comparisons."""
    means = [
        {domain: found.mean for domain, values in study.by_domain(label, rule).items()
         if (found := mean_and_error(values))}
        for label in (ours, baseline)
    ]  # fmt: skip
    runs = paired_comparison(study.values(ours, rule), study.values(baseline, rule))
    one, other = (study.weights.get(label, "") for label in (ours, baseline))
    return PairwiseComparison(
        ours,
        baseline,
        study.metric,
        runs,
        paired_comparison(*means),
        corrected_p=runs.t_p,
        weights="" if one == other else f" (weights of clients: {one}, against {other})",
    )


def _correct(found: Sequence[PairwiseComparison]) -> list[PairwiseComparison]:
    tested = sum(each.runs.t_p is not None for each in found)
    corrected = holm([each.runs.t_p for each in found])
    return [
        replace(each, corrected_p=p, comparisons=max(tested, 1))
        for each, p in zip(found, corrected, strict=True)
    ]


FEW_PAIRS = 6
"""Below this many pairs Wilcoxon's test cannot reach p < 0.05, whatever the runs say."""


def comparison_sentence(
    comparison: Comparison,
    *,
    ours: str,
    baseline: str,
    metric: str = "accuracy",
    corrected_p: float | None = None,
    comparisons: int = 1,
) -> str:
    """Write "CSAC beats FedAvg by 1.2 points, p = 0.03, over 18 pairs", or what the data supports instead.

    corrected_p  the t-test's p-value after Holm's correction, if there was one; it decides
    comparisons  for how many comparisons it was corrected
    """
    pairs, p = comparison.pairs, comparison.t_p if corrected_p is None else corrected_p
    if pairs == 0:
        return f"{ours} and {baseline} cannot be compared: they have no pair of finished runs"
    amount = difference_text(abs(comparison.difference), metric)
    side = "above" if comparison.difference > 0 else "below"
    lacking = _missing(comparison)
    if pairs == 1:
        seen = "level with" if comparison.same else f"{amount} {side}"
        known = "one pair shows nothing about chance"
        return f"{ours} is {seen} {baseline} in the only pair of runs; {known}{lacking}"
    if comparison.same:
        return f"{ours} and {baseline} are exactly level in all {pairs} pairs{lacking}"
    if p is None:
        known = "without spread no t-test can be made"
        return f"{ours} is {amount} {side} {baseline} in each of {pairs} pairs; {known}{lacking}"
    evidence = f"{p_text(p)}{' (Holm)' if comparisons > 1 else ''}, over {pairs} pairs"
    if p >= LEVEL:
        few = f"; {pairs} pairs are few, so a real difference may hide" if pairs < FEW_PAIRS else ""
        where = f"{ours} is {amount} {side} on average" if comparison.difference else "equal on average"
        return f"No significant difference between {ours} and {baseline}: {where}, {evidence}{lacking}{few}"
    verb = "beats" if comparison.difference > 0 else "falls behind"
    return f"{ours} {verb} {baseline} by {amount}, {evidence}{lacking}{_doubt(comparison)}"


def difference_text(difference: float, metric: str) -> str:
    """Format a difference of accuracies in points (hundredths), of other metrics in their own unit."""
    if is_fraction(metric):
        points = 100 * difference
        digits = 1 if round(abs(points), 1) >= 0.1 or points == 0 else 2
        return f"{points:.{digits}f} points"
    return f"{difference:.3g} in {metric_label(metric)}"


def p_text(p: float | None) -> str:
    """Format a p-value with two digits; never as zero."""
    if p is None or not math.isfinite(p):
        return "no p-value"
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p_number(p)}"


def p_number(p: float) -> str:
    """Format the digits of a p-value: two significant ones, never rounded across the significance level."""
    if p < 0.001:
        return "<0.001"
    texts = (f"{p:.{digits}g}" for digits in range(2, 17))
    return next((text for text in texts if (float(text) < LEVEL) == (p < LEVEL)), str(p))


def _missing(comparison: Comparison) -> str:
    if not comparison.missing:
        return ""
    whole = comparison.pairs + comparison.missing
    return f" ({comparison.missing} of {whole} pairs lack a finished run)"


def _doubt(comparison: Comparison) -> str:
    ranked = comparison.wilcoxon_p
    if comparison.pairs < FEW_PAIRS:
        return "; with so few pairs this rests on the t-test's assumption of normal differences"
    if ranked is not None and ranked >= LEVEL:
        return f"; Wilcoxon's test, which assumes less, does not confirm it ({p_text(ranked)})"
    return ""
