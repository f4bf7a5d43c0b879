"""Comparisons in plain words, as strong as the numbers allow and no stronger."""

from __future__ import annotations

import math

from unseen.bench.statistics import LEVEL, Comparison
from unseen.report.wording import is_share, metric_name

FEW_PAIRS = 6
"""Below this many pairs Wilcoxon's test cannot reach p < 0.05, whatever the runs say."""


def sentence(
    comparison: Comparison,
    *,
    ours: str,
    baseline: str,
    metric: str = "accuracy",
    corrected_p: float | None = None,
    comparisons: int = 1,
) -> str:
    """ "CSAC beats FedAvg by 1.2 points, p = 0.03, over 18 pairs", or what can honestly be said instead.

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
    told = f"{p_text(p)}{' (Holm)' if comparisons > 1 else ''}, over {pairs} pairs"
    if p >= LEVEL:
        few = f"; {pairs} pairs are few, so a real difference may hide" if pairs < FEW_PAIRS else ""
        where = f"{ours} is {amount} {side} on average" if comparison.difference else "equal on average"
        return f"No significant difference between {ours} and {baseline}: {where}, {told}{lacking}{few}"
    verb = "beats" if comparison.difference > 0 else "falls behind"
    return f"{ours} {verb} {baseline} by {amount}, {told}{lacking}{_doubt(comparison)}"


def difference_text(difference: float, metric: str) -> str:
    """A difference of accuracies in points (hundredths), of other metrics in their own unit."""
    if is_share(metric):
        points = 100 * difference
        digits = 1 if round(abs(points), 1) >= 0.1 or points == 0 else 2
        return f"{points:.{digits}f} points"
    return f"{difference:.3g} in {metric_name(metric)}"


def p_text(p: float | None) -> str:
    """A p-value with two digits; never as zero."""
    if p is None or not math.isfinite(p):
        return "no p-value"
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p_number(p)}"


def p_number(p: float) -> str:
    """The digits of a p-value: two significant ones, and never rounded across the level."""
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
