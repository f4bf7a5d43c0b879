"""The limits of a model in plain words: what its run did not test, and what its numbers warn of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unseen.report.formatting import SPACE, format_count, is_number, join_names
from unseen.runs.reader import Run
from unseen.tasks import is_fraction

FEW_SAMPLES = 200
BELOW = 0.03
"""How far coverage may be below the promise before the card warns of it."""


def find_limits(run: Run, card: Mapping[str, Any]) -> list[str]:
    """List the limits of a run's model, from what its card says and what its records lack."""
    return [
        *_of_the_evaluation(run, card),
        *_of_the_numbers(run, card),
        *_not_tested(run, card),
    ]


def _of_the_evaluation(run: Run, card: Mapping[str, Any]) -> list[str]:
    held_out = run.held_out
    if not held_out:
        return ["No domain was held out: nothing is known about places that the model was not trained on."]
    where = join_names(held_out)
    said = [
        f"Tested on {len(held_out)} domain(s) that it was not trained on ({where}). Other places may differ "
        "more; check each with 'unseen check-site' before use."
    ]
    few = [
        f"‘{name}’ ({format_count(found['samples'])})"
        for name, found in card["metrics"]["held_out_domains"].items()
        if isinstance(found["samples"], int) and found["samples"] < FEW_SAMPLES
    ]
    if few:
        said.append(f"Few test samples, so uncertain numbers: {', '.join(few)}.")
    if card["model"]["selection"] == "oracle":
        said.append("The round was chosen on the held-out data itself, so its numbers are too good.")
    said.append("One run with one seed; another seed gives somewhat other numbers.")
    return said


def _of_the_numbers(run: Run, card: Mapping[str, Any]) -> list[str]:
    said, metric = [], run.metric
    target, inside = (((card["metrics"].get(part) or {}).get(metric)) for part in ("target", "in_domain"))
    if is_fraction(metric) and is_number(target) and is_number(inside) and inside - target > 0.05:
        points = f"{100 * (inside - target):.0f}"
        said.append(f"On held-out data the {metric} is {points} points below that on the sources' test data.")
    reliable = (card["calibration"] or {}).get("target") or {}
    before, after = (((reliable.get(when) or {}).get("ece")) for when in ("before", "after"))
    if is_number(before) and is_number(after) and after > before:
        said.append(
            f"Calibration made probabilities worse on held-out data (ECE {100 * before:.1f}{SPACE}% before, "
            f"{100 * after:.1f}{SPACE}% after)."
        )
    for name, found in ((card["coverage"] or {}).get("held_out_domains") or {}).items():
        coverage, promise = found.get("coverage"), card["coverage"]["promise"]
        if is_number(coverage) and coverage < promise - BELOW:
            said.append(
                f"On ‘{name}’ sets hold the truth in {100 * coverage:.1f}{SPACE}% of cases, "
                f"less than the {100 * promise:g}{SPACE}% promised for places like the sources."
            )
    return said


def _not_tested(run: Run, card: Mapping[str, Any]) -> list[str]:
    said = []
    if card["calibration"] is None:
        said.append("Probabilities were not calibrated; they may be far too high.")
    elif card["coverage"] is None:
        said.append("Coverage of sets or intervals on held-out data was not measured.")
    if "site_reference" not in run.final:
        said.append("The model keeps nothing of its sources to recognize places that differ from them.")
    if not run.data.get("groups"):
        said.append("Subgroups (such as age, sex or device) were not examined: the data declares none.")
    if card["audit"] is None:
        said.append("No attack on the run was tried ('unseen audit').")
    elif (card["protection"] or {}).get("name", "none") == "none":
        said.append("Updates were sent without protection.")
    if card["model"]["classes"]:
        said.append("It always answers with one of its classes, also where none fits.")
    said.append(
        "Not tested: inputs made to deceive it, data that drifts over time, use together with people, and "
        "any benefit or harm in practice. The numbers are no approval for any use."
    )
    return said
