"""What the tests say, as text: every method against the baseline, and method against method."""

from __future__ import annotations

from collections.abc import Sequence

from unseen.bench.against import Against, all_against_all
from unseen.bench.sentences import p_number
from unseen.bench.sheets import Sheet, Text
from unseen.bench.statistics import LEVEL
from unseen.bench.study import RULES, Study, display_name
from unseen.report.wording import NOTHING, is_share


def statistics_sheet(study: Study, rule: str, found: Sequence[Against]) -> Sheet:
    """Each method against the baseline: difference, both tests, their correction and the effect's size."""
    first = found[0]
    share = is_share(first.metric)
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
        "points (95 % interval)" if share else "difference (95 % interval)",
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
    title = f"Against {display_name(first.baseline)}{study.in_title}, by {RULES[rule]}"
    return Sheet(title, headers, (("", lines),), note)


def matrix_sheet(study: Study, rule: str) -> Sheet:
    """Method against method: p-values of paired t-tests, bold where significant after Holm's correction."""
    found = {(each.ours, each.baseline): each for each in all_against_all(study, rule)}
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


def _difference(each: Against) -> str:
    runs, scale = each.runs, 100 if is_share(each.metric) else 1
    digits = 1 if scale == 100 else 3
    if not runs.pairs:
        return NOTHING
    shown = f"{scale * runs.difference:+.{digits}f}"
    if runs.low is None or runs.high is None:
        return shown
    return f"{shown} ({scale * runs.low:+.{digits}f} to {scale * runs.high:+.{digits}f})"


def _sign(each: Against, ours: str) -> str:
    ahead = (each.runs.difference > 0) == (each.ours == ours)
    return "" if each.runs.difference == 0 else "+ " if ahead else "− "


def _p(p: float | None) -> str:
    return NOTHING if p is None else p_number(p)
