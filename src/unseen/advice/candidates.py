"""The candidates of a race: short lists of options, ordered from the simplest to the most expensive.

A candidate names only what a user would type; `--effort` fills in the rest for the data at hand. The lists
are fixed: nothing about a user's data but its kind (photographs, small images, a table) decides who runs.
Within a list every trained candidate of one effort takes the same number of steps (SAM: two passes each).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unseen.errors import UsageError, unknown_name
from unseen.methods import METHODS
from unseen.runner.effort import SMALL, with_effort

DataKind = Literal["photographs", "small images", "table"]


@dataclass(frozen=True)
class Candidate:
    """One way to train, as a user would type it.

    given     options of `unseen train` by the names of `RunConfig`'s fields
    why       what speaks for it, in a few words
    minutes   the shortest limit of a race that it takes part in, since its first rung is long
    """

    name: str
    given: Mapping[str, Any]
    why: str
    minutes: float = 0.0

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.given["method"])

    @property
    def is_closed_form(self) -> bool:
        """Whether it has one length only: a closed form is finished after its round."""
        return METHODS[self.method].default_rounds is not None

    def options(self, common: Mapping[str, Any], *, fraction: float = 1.0) -> dict[str, Any]:
        """Fill in every option for the data, with `fraction` of the rounds."""
        options = with_effort({**common, **self.given})
        if self.is_closed_form:
            return {**options, "rounds": METHODS[self.method].default_rounds}
        return _shorten(options, fraction)

    def command(self, data: str, common: Mapping[str, Any]) -> list[str]:
        """Write the words of `unseen train` that give the candidate at full length."""
        words = ["unseen", "train", data]
        for name, value in {**common, **self.given}.items():
            if name == "settings":
                words += [word for key, one in value.items() for word in ("--set", f"{key}={one}")]
            elif name != "data":
                words += [f"--{name.replace('_', '-')}", str(value)]
        return words


_QUICK = {"effort": "quick", "method": "fedavg"}
CANDIDATES: Mapping[DataKind, Sequence[Candidate]] = {
    "photographs": (
        Candidate("ridge", {"method": "ridge"}, "exact head on frozen features, one round"),
        Candidate("last stage", _QUICK, "FedAvg on the last stage of a pretrained network"),
        Candidate("last stage, ridge head", {**_QUICK, "head": "ridge"}, "the same, from ridge's head"),
        Candidate("last stage, SWAD", {**_QUICK, "average": "swad"}, "the same, averaged over rounds"),
        Candidate("last stage, CSAC", {**_QUICK, "method": "csac"}, "calibrated against each client's model"),
        Candidate(
            "whole network",
            {"effort": "standard", "method": "fedavg"},
            "FedAvg on all of a pretrained network",
            minutes=90.0,
        ),
    ),
    "small images": (
        Candidate("FedAvg", {"method": "fedavg"}, "the plain average"),
        Candidate("FedAvg, EMA", {"method": "fedavg", "average": "ema"}, "averaged over rounds too"),
        Candidate("FedAvg, SAM", {"method": "fedavg", "sharpness": "sam"}, "looks for flat minima"),
        Candidate("CWT", {"method": "cwt"}, "one model visits the clients in turn; nothing is averaged"),
        Candidate(
            "CSAC",
            {"method": "csac", "settings": {"acquisition_epochs": 1}},
            "calibrated against each client's model",
        ),
    ),
    "table": (
        Candidate("ridge", {"method": "ridge"}, "exact linear model, one round"),
        Candidate("FedAvg", {"method": "fedavg"}, "the plain average"),
        Candidate("FedProx", {"method": "fedprox"}, "clients stay near the server's weights"),
        Candidate("SCAFFOLD", {"method": "scaffold"}, "corrects the pull of each client's own data"),
    ),
}


def kind_of_data(*, is_image: bool, side: int) -> DataKind:
    """Find the list of candidates that the data calls for."""
    if not is_image:
        return "table"
    return "photographs" if side > SMALL else "small images"


def choose_candidates(kind: DataKind, names: Sequence[str] | None, *, minutes: float) -> list[Candidate]:
    """Choose the candidates by name, or all that fit the limit of time."""
    known = {candidate.name: candidate for candidate in CANDIDATES[kind]}
    for name in names or ():
        if name not in known:
            raise unknown_name(f"candidate for {kind}", name, known)
    chosen = [known[name] for name in names] if names else [c for c in known.values() if c.minutes <= minutes]
    if len(chosen) < 2:
        raise UsageError(f"a race needs at least two candidates, not {len(chosen)}: {', '.join(known)}")
    return chosen


def _shorten(options: Mapping[str, Any], fraction: float) -> dict[str, Any]:
    """Take a fraction of the rounds; a warm-up of so many rounds stays the same part of the run."""
    from unseen.config import RunConfig

    rounds = int(options.get("rounds", RunConfig.rounds))
    short = dict(options, rounds=max(1, round(rounds * fraction)))
    if float(options.get("warmup", 0.0)) >= 1:
        short["warmup"] = float(options["warmup"]) / rounds
    if "evaluate_every" in options:
        short["evaluate_every"] = min(int(options["evaluate_every"]), short["rounds"])
    return short
