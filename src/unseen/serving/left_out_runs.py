"""Calibrate a model on its own sources as if they were unseen, from runs that each left one of them out.

A model trained on its sources, so its validation data there is no example of an unseen domain. A run of the
same training without one of them is: what it scores on that domain is what the model would have scored, had
it not known it. No data is read, only the records and histograms of the runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.calibration import SCORE_EDGES, SCORES, coverage_at
from unseen.calibration.conformal import DEFAULT_PROMISE, DEFAULT_SCORE, UNSEEN_RULE, mean_domain_bin
from unseen.calibration.expected_accuracy import correct_accuracy, find_shift
from unseen.calibration.histograms import Counts, from_sparse, upper_edge
from unseen.errors import UnseenError, UsageError
from unseen.runs.folder import RunFolder
from unseen.runs.reader import read_run
from unseen.serving.saved_model import ModelCard

ALIKE = ("data", "method", "model", "task")
"""What a run must have in common with the model."""
FEWEST_DOMAINS = 2


@dataclass(frozen=True)
class LeftOut:
    """A source of the model in a run that did not train on it.

    scores    histograms of the true answers' conformal scores
    estimate  accuracy estimated there without labels, and `accuracy` itself; None without such a record
    """

    domain: str
    run: str
    samples: int
    scores: Mapping[str, Counts]
    estimate: float | None
    accuracy: float | None


def read_left_out(card: ModelCard, folder: Path) -> list[LeftOut]:
    """Read what a run scored on the sources of a model that it left out; refuse a run that does not fit."""
    run = read_run(folder)
    calibration = RunFolder(folder).calibration
    if not run.finished or not calibration.exists():
        raise UsageError(f"{folder}: no finished run with a calibration.json; expected a run folder")
    for name in ALIKE:
        mine, theirs = getattr(card, name), run.facts.get(name)
        if mine != theirs:
            raise UsageError(f"{folder} has {name} {theirs!r}, the model {mine!r}: they must be the same")
    trained = {name for client in run.start["clients"] for name in client["domains"]}
    if strange := sorted(trained - set(card.sources)):
        raise UsageError(
            f"{folder} trained on {', '.join(strange)}, which the model did not: what it scores says nothing "
            "about this model; give runs with the model's held-out domains held out as well"
        )
    left_out = [name for name in run.held_out if name in card.sources]
    if not left_out:
        raise UsageError(f"{folder} left out none of the model's sources ({', '.join(card.sources)})")
    sites = {site["domain"]: site for site in run.final.get("sites", ()) if site["split"] == "target"}
    try:
        described = json.loads(calibration.read_text(encoding="utf-8"))["sets"]
        sets = {entry["domain"]: entry for entry in described if entry["split"] == "target"}
        return [
            LeftOut(
                domain,
                str(run.facts["run_id"]),
                int(sets[domain]["samples"]),
                {
                    score: from_sparse(sets[domain]["histograms"][f"true_{score}"], len(SCORE_EDGES) + 1)
                    for score in SCORES
                },
                (sites.get(domain, {}).get("expected_accuracy") or {}).get("accuracy"),
                sites.get(domain, {}).get("accuracy"),
            )
            for domain in left_out
        ]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UnseenError(f"{calibration} is damaged ({type(error).__name__}: {error})") from error


def calibrate_on_left_out(card: ModelCard, found: Sequence[LeftOut]) -> ModelCard:
    """Return the card with thresholds, and estimates of accuracy, for domains that no model has seen.

    The thresholds get the rule `unseen`, which becomes the default one.
    """
    if card.calibration is None or not card.task_type.has_classes:
        raise UsageError("only models of classes that have a calibration can be calibrated on left-out runs")
    domains = {each.domain for each in found}
    if len(domains) < FEWEST_DOMAINS:
        raise UsageError(
            f"only {', '.join(domains) or 'no source'} was left out; at least {FEWEST_DOMAINS} different "
            f"sources of the model's {len(card.sources)} are needed"
        )
    conformal = card.calibration["conformal"]
    limits = {
        score: {
            promise: rules
            | {UNSEEN_RULE: upper_edge(SCORE_EDGES, mean_domain_bin(_scores(found, score), float(promise)))}
            for promise, rules in promises.items()
        }
        for score, promises in conformal["limits"].items()
    }
    calibration = {
        **card.calibration,
        "conformal": {
            **conformal,
            "limits": limits,
            "default": {**conformal["default"], "rule": UNSEEN_RULE},
        },
        "left_out_runs": {each.run: each.domain for each in found},
    }
    return replace(card, calibration=calibration, site_reference=_corrected(card.site_reference, found))


def _scores(found: Sequence[LeftOut], score: str) -> list[Counts]:
    return [each.scores[score] for each in found]


def _points(found: Sequence[LeftOut], *, besides: str = "") -> list[tuple[float, float]]:
    """List (estimated, true) accuracies, without those on one domain."""
    return [
        (each.estimate, each.accuracy)
        for each in found
        if each.estimate is not None and each.accuracy is not None and each.domain != besides
    ]


def _corrected(reference: dict[str, Any] | None, found: Sequence[LeftOut]) -> dict[str, Any] | None:
    """Add the shift, and the errors that are left on each domain by the shift of the others."""
    if (
        reference is None
        or len({each.domain for each in found if each.estimate is not None}) < FEWEST_DOMAINS
    ):
        return reference
    errors: dict[str, list[float]] = {}
    for each in found:
        if each.estimate is not None and each.accuracy is not None:
            shift = find_shift(_points(found, besides=each.domain))
            errors.setdefault(each.domain, []).append(correct_accuracy(each.estimate, shift) - each.accuracy)
    worst = {domain: max(values, key=abs) for domain, values in errors.items()}
    return {**reference, "shift": find_shift(_points(found)), "errors": worst}


@dataclass(frozen=True)
class LeftOutCheck:
    """What calibration on the other left-out domains gives on one of them.

    coverage  of the sets with the default score and promise
    """

    domain: str
    samples: int
    coverage: float
    accuracy: float | None
    estimate: float | None


def forecast(found: Sequence[LeftOut]) -> list[LeftOutCheck]:
    """Calibrate on all left-out domains but one, and measure there, for each; default score and promise."""
    checks = []
    for each in found:
        others = [other for other in found if other.domain != each.domain]
        bin = mean_domain_bin(_scores(others, DEFAULT_SCORE), DEFAULT_PROMISE)
        points = _points(others)
        checks.append(
            LeftOutCheck(
                each.domain,
                each.samples,
                coverage_at(each.scores[DEFAULT_SCORE], bin),
                each.accuracy,
                None
                if each.estimate is None or not points
                else correct_accuracy(each.estimate, find_shift(points)),
            )
        )
    return checks
