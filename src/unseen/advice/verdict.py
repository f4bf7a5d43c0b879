"""The advice that follows from a race: which candidate, how sure that is, and what each one costs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unseen.advice.candidates import Candidate
from unseen.advice.race import RaceResult, Standing
from unseen.bench.comparisons import difference_text, p_text
from unseen.bench.statistics import LEVEL, Comparison, mean_and_error, paired_comparison
from unseen.methods import make_method
from unseen.methods.closed_form import RANDOM, make_starting_head


@dataclass(frozen=True)
class Advice:
    """A recommendation and its reasons.

    chosen   the candidate to take
    best     the one with the best mean, which is `chosen` unless a simpler one is as good
    against  `chosen` compared with the best of the others, source by source
    others   how many others it was chosen from
    """

    race: RaceResult
    chosen: Standing
    best: Standing
    rival: Standing | None
    against: Comparison | None
    others: int

    @property
    def reason(self) -> str:
        """Why this candidate, in one sentence."""
        if self.chosen is self.best:
            name, part = self.chosen.candidate.name, self.chosen.fraction
            early = "" if part == 1 else f", at {part:.0%} of its length"
            return f"{name} has the best mean over the left-out sources{early}"
        lead = difference_text(self.best.mean - self.chosen.mean, self.race.metric)
        return (
            f"{self.chosen.candidate.name} is simpler than {self.best.candidate.name}, whose lead of {lead} "
            "is within one standard error: take the simple one"
        )

    @property
    def certainty(self) -> str:
        """How sure the choice is, in one sentence."""
        if self.rival is None or self.against is None:
            return "there is nothing to compare it with: no other candidate finished runs of this length"
        lead = difference_text(self.against.difference, self.race.metric)
        over = f"{lead} against {self.rival.candidate.name} over {self.against.pairs} left-out sources"
        if self.against.low is None or self.against.high is None:
            return f"{over}; too few runs for an interval"
        low, high = (
            difference_text(value, self.race.metric) for value in (self.against.low, self.against.high)
        )
        interval = f"{over} (95 % interval {low} to {high}, {p_text(self.against.t_p)})"
        if self.against.low <= 0:
            return f"{interval}: not decided, either may be better on a new domain"
        if self.others * (self.against.t_p or 0.0) >= LEVEL:
            return (
                f"{interval}: not decided, since it is the best of {self.others + 1} and some lead is chance"
            )
        return f"{interval}: a clear lead, also as the best of {self.others + 1}"

    @property
    def caveat(self) -> str:
        """What the interval leaves out, in one sentence."""
        return (
            "The runs share training sources, so intervals are somewhat too narrow, and they hold for "
            "domains that differ as these do; the chosen mean is a little too high, as it was chosen for it"
        )


def advise(race: RaceResult, order: Sequence[str]) -> Advice:
    """Choose the simplest candidate whose distance to the best is within one standard error.

    Trained candidates are compared at the longest length that any of them has finished, with each other and
    with closed forms, which have one length: a race that ended early does not decide for these.

    order  names of the candidates from the simplest to the most expensive
    """
    longest = max((one.fraction for one in race.standings if not one.candidate.is_closed_form), default=1.0)
    final = [one for one in race.standings if one.candidate.is_closed_form or one.fraction == longest]
    best = max(final, key=lambda one: one.mean)
    as_good = [one for one in final if one is best or _within_one_error(best, one)]
    chosen = min(as_good, key=lambda one: order.index(one.candidate.name))
    others = [one for one in final if one is not chosen]
    rival = max(others, key=lambda one: one.mean, default=None)
    against = paired_comparison(chosen.by_source, rival.by_source) if rival else None
    return Advice(race, chosen, best, rival, against, len(others))


def _within_one_error(best: Standing, other: Standing) -> bool:
    """Return whether the difference is no larger than its own standard error."""
    found = paired_comparison(best.by_source, other.by_source)
    return found.error is not None and abs(found.difference) <= found.error


def as_values(advice: Advice, *, data: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the advice as JSON values."""
    chosen = advice.chosen.candidate
    return {
        "choice": chosen.name,
        "command": shlex.join(chosen.command(data, common)),
        "reason": advice.reason,
        "certainty": advice.certainty,
        "caveat": advice.caveat,
        "metric": advice.race.metric,
        "minutes": round(advice.race.spent / 60, 2),
        "stopped": advice.race.stopped,
        "failed": dict(advice.race.failed),
        "candidates": [describe(one) for one in advice.race.standings],
    }


def describe(standing: Standing) -> dict[str, Any]:
    """Return what is known about one candidate as JSON values."""
    estimate = mean_and_error(standing.by_source.values())
    return {
        "candidate": standing.candidate.name,
        "why": standing.candidate.why,
        "method": standing.candidate.method,
        "options": dict(standing.candidate.given),
        "length": standing.fraction,
        "mean": standing.mean,
        "standard_error": estimate.error if estimate else None,
        "left_out": {f"{domain}, seed {seed}": value for (domain, seed), value in standing.scores.items()},
        "seconds_per_run": round(standing.seconds, 1),
        "bytes_sent_per_run": round(standing.sent),
        "leaves": list_kinds_that_leave(standing.candidate),
    }


def list_kinds_that_leave(candidate: Candidate) -> list[str]:
    """List the kinds of values that leave a client, also for a head in closed form before the first round."""
    method = make_method(candidate.method, candidate.given.get("settings"))
    head = make_starting_head(str(candidate.given.get("head", RANDOM)), method)
    return list(dict.fromkeys([*method.sends, *(head.form.sends if head else ())]))
