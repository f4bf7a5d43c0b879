"""Significance tests as text: every method against the baseline, and every pair of methods."""

from __future__ import annotations

from collections.abc import Sequence

from unseen.bench.comparisons import PairwiseComparison, compare_all_pairs, p_number
from unseen.bench.statistics import LEVEL
from unseen.bench.study import Study, display_name
from unseen.bench.tables.sheet import Sheet, Text
from unseen.evaluation.selection import rule_label
from unseen.report.formatting import NOTHING
from unseen.tasks import is_fraction


def statistics_sheet(study: Study, rule: str, found: Sequence[PairwiseComparison]) -> Sheet:
    """Format each method against the baseline: difference, both tests, correction and effect size."""
    first = found[0]
    fraction = is_fraction(first.metric)
    lines = tuple(
        (
            Text(display_name(each.ours)),
            Text(_difference(each), bold=each.significant),
            Text(_p(each.runs.t_p)),
            Text(_p(each.corrected_p), bold=each.significant),
            Text(_p(each.runs.wilcoxon_p)),
            Text(NOTHING if each.runs.effect_size is None else f"{each.runs.effect_size:+.2f}"),
            Text(
                str(each.runs.pairs)
                + (f" of {each.runs.pairs + each.runs.missing}" if each.runs.missing else "")
            ),
            Text(_p(each.domains.t_p)),
        )
        for each in found
    )
    headers = (
        "method",
        "points (95 % interval)" if fraction else "difference (95 % interval)",
        "p, t-test",
        "p, Holm",
        "p, Wilcoxon",
        "effect size",
        "pairs",
        "p over domains",
    )
    note = (
        "A pair is two runs with the same held-out domain and seed. Holm corrects the t-test for all "
        "comparisons of this table. The effect size is Cohen's d of the pairs. The last column averages "
        "seeds first and takes every domain as one observation: would it be seen on other domains too?"
    )
    title = f"Against {display_name(first.baseline)}{study.in_title}, by {rule_label(rule)}"
    return Sheet(title, headers, (("", lines),), note)


def matrix_sheet(study: Study, rule: str) -> Sheet:
    """Format p-values of every pair of methods, bold where significant after Holm's correction."""
    found = {(each.ours, each.baseline): each for each in compare_all_pairs(study, rule)}
    lines = []
    for ours in study.labels:
        cells = [Text(display_name(ours))]
        for other in study.labels:
            each = found.get((ours, other)) or found.get((other, ours))
            if each is None:
                cells.append(Text(""))
                continue
            sign = "" if each.runs.same or not each.runs.pairs else _sign(each, ours)
            cells.append(Text(f"{sign}{_p(each.runs.t_p)}", bold=each.significant))
        lines.append(tuple(cells))
    note = (
        "p-values of the paired t-test, not corrected; + means that the method of the row is ahead, − that "
        f"it is behind. Bold: p < {LEVEL:g} also after Holm's correction for all pairs of methods."
    )
    headers = ("method", *(display_name(label) for label in study.labels))
    return Sheet("Method against method", headers, (("", tuple(lines)),), note)


def _difference(each: PairwiseComparison) -> str:
    runs, scale = each.runs, 100 if is_fraction(each.metric) else 1
    digits = 1 if scale == 100 else 3
    if not runs.pairs:
        return NOTHING
    shown = f"{scale * runs.difference:+.{digits}f}"
    if runs.low is None or runs.high is None:
        return shown
    return f"{shown} ({scale * runs.low:+.{digits}f} to {scale * runs.high:+.{digits}f})"


def _sign(each: PairwiseComparison, ours: str) -> str:
    ahead = (each.runs.difference > 0) == (each.ours == ours)
    return "" if each.runs.difference == 0 else "+ " if ahead else "− "


def _p(p: float | None) -> str:
    return NOTHING if p is None else p_number(p)
