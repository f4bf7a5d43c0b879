"""Poisoning: one of five sites lies; accuracy on the unseen domain with and without defences.

python benchmarks/poisoning.py --out results/poisoning/rotated-digits.json

Rotated digits (scikit-learn's), FedAvg, 30 degrees held out, the other five angles are a site each. Two
attacks by the site of 75 degrees: `steps`, where it sends -10 times its own step from the global model, and
`samples`, where it says that it trained on 1e18 samples with all weights 7. The first one is made in this
process; the second one goes through the real coordinator and sites, which only lack the wire. One thread.

python benchmarks/poisoning.py --data rotated-mnist --held-out 15 30 45 60 --out results/poisoning/angles.json

The same first attack by the site whose angle follows the held-out one, which is missed most.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import options, report
from torch import Tensor

from unseen.config import RunConfig
from unseen.data import DataSet, load_data
from unseen.data.site_data import SiteSamples
from unseen.data.sources import load_site
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.site.site import Site
from unseen.engine import RoundStart, SerialEngine
from unseen.engine.base import Reply
from unseen.errors import UnseenError
from unseen.runner.prepare import Setup, data_request
from unseen.runner.run import RunResult, run
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

ANGLES = ("0", "15", "30", "45", "60", "75")
LIAR, HELD_OUT = "75", "30"
"""Where no held-out angle is named."""
DEFENCES: dict[str, dict[str, Any]] = {
    "mean": {},
    "mean, steps clipped to the median norm": {"clip_update": "1x"},
    "median": {"aggregate": "median"},
    "trimmed-mean": {"aggregate": "trimmed-mean"},
    "krum": {"aggregate": "krum"},
    "multi-krum": {"aggregate": "multi-krum"},
    "geometric-median": {"aggregate": "geometric-median"},
}


class PoisonedEngine(SerialEngine):
    """Clients in this process, of which one sends `factor` times its step."""

    factor, liar = -10.0, LIAR

    def train(self, clients: Sequence[int], start: RoundStart) -> tuple[Tensor, list[Reply]]:
        """Train honestly, then change what the liar sends."""
        rows, replies = super().train(clients, start)
        for row, reply in zip(rows, replies, strict=True):
            if reply.client == self.liar:
                row.copy_(start.weights + self.factor * (row - start.weights))
        return rows, replies


@dataclass(frozen=True)
class KeptSite(Site):
    """A site that reads its data once."""

    def samples(self, config: RunConfig, **_: Any) -> SiteSamples:
        """Return the samples of the first call."""
        if self.name not in _KEPT:
            _KEPT[self.name] = load_site(self.name, data_request(config.resolved(data=self.data)))
        return _KEPT[self.name]


_KEPT: dict[str, SiteSamples] = {}


def job(data: str, held_out: str, rounds: int, seed: int, **changes: Any) -> RunConfig:
    return RunConfig.from_mapping(
        {
            "data": data,
            "hold_out": (held_out,),
            "model": "mnist-cnn",
            "effort": "none",
            "rounds": rounds,
            "batch_size": 32,
            "lr": 0.03,
            "seed": seed,
            "evaluate_every": rounds,
            "selection": "last",
            "threads": 1,
            "workers": 1,
            "device": "cpu",
            **changes,
        }
    )


def play_here(config: RunConfig, data: DataSet, out: Path, *, liar: str | None) -> RunResult:
    """Run in this process, with or without a liar."""

    def engine(setup: Setup, states: StateStore) -> SerialEngine:
        if liar is None:
            return SerialEngine(setup.experiment, states)
        poisoned = PoisonedEngine(setup.experiment, states)
        poisoned.liar = liar
        return poisoned

    return run(config, out=out, data=data, engine=engine, report=False)


def play_with_sites(config: RunConfig, out: Path, home: Path) -> RunResult:
    """Run with the real coordinator and sites; the liar states 1e18 samples and sends all weights 7."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deploy"))
    from tiny_sites import LoopbackGrid

    grid = LoopbackGrid(home, home, ANGLES)
    grid.sites = [KeptSite(name, config.data, home / name) for name in ANGLES]

    def lie(site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        if site != LIAR or question.header["ask"] != "train":
            return answer
        answer.header["clients"][LIAR]["samples"] = 10**18
        answer.arrays[f"{LIAR}/weights"] = answer.arrays[f"{LIAR}/weights"] * 0 + 7
        return answer

    grid.spoil = lie
    coordinator.SETTLED_SECONDS = 0.0
    return coordinate(grid, config, out=out, resume=False, terms=RoundPolicy(deadline=30.0))


def facts(result: RunResult, liar: str, **named: str) -> dict[str, Any]:
    """Describe a run: accuracy on the unseen domain, and what the records say of the attack."""
    records = read_records(RunFolder(result.folder).records)
    rounds = [each for each in records if each["event"] == "round"]
    faults = [each for each in records if each["event"] == "fault"]
    clipped = [each["diagnostics"].get("clipped_steps", {}) for each in rounds]
    return {
        **named,
        "liar": liar,
        "accuracy": round(100 * result.metrics["target"]["accuracy"], 2),
        "faults": len(faults),
        "faults_of_the_liar": sum(each["client"] == liar for each in faults),
        "first_fault": faults[0]["reason"] if faults else "",
        "rounds_in_which_the_liar_was_clipped": sum(liar in each for each in clipped),
    }


def attack_steps(make: Callable[..., RunConfig], liar: str, place: Path) -> list[dict[str, Any]]:
    """Run without the attack, without the liar's site, and with the attack under every defence."""
    data = load_data(data_request(make()))
    held_out = make().hold_out[0]
    others = tuple(name for name in ANGLES if name not in (held_out, liar))
    plays = [("none", "mean", {}), ("none, without that site", "mean", {"sources": others})]
    plays += [("steps", name, changes) for name, changes in DEFENCES.items()]
    taken: list[dict[str, Any]] = []
    for number, (attack, name, changes) in enumerate(plays):
        named = {"held_out": held_out, "attack": attack, "defence": name}
        try:
            attacker = liar if attack == "steps" else None
            result = play_here(make(**changes), data, place / f"{held_out} {number}", liar=attacker)
            taken.append(facts(result, liar, **named))
        except UnseenError as error:
            taken.append({**named, "liar": liar, "accuracy": None, "ended": str(error)})
        print(taken[-1], file=sys.stderr, flush=True)
    return taken


def attack_samples(make: Callable[..., RunConfig], place: Path) -> list[dict[str, Any]]:
    """Run the second attack with and without a robust rule."""
    taken = []
    for name in ("mean", "median"):
        result = play_with_sites(make(**DEFENCES[name]), place / f"sites {name}", place / f"home {name}")
        taken.append(facts(result, LIAR, attack="samples", defence=name))
        print(taken[-1], file=sys.stderr, flush=True)
    return taken


def main() -> None:
    """Attack with every held-out angle named, or in the one setting with both attacks."""
    parser = options(__doc__)
    parser.add_argument("--data", default="rotated-digits")
    parser.add_argument("--held-out", nargs="*", default=[], choices=ANGLES[:-1])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    taken: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for held_out in chosen.held_out or [HELD_OUT]:
            make = partial(job, chosen.data, held_out, chosen.rounds, chosen.seed)
            liar = ANGLES[ANGLES.index(held_out) + 1] if chosen.held_out else LIAR
            taken += attack_steps(make, liar, place)
        if not chosen.held_out:
            taken += attack_samples(make, place)
    values: dict[str, list[Any]] = {}
    for each in taken:
        values.setdefault(f"{each['attack']} | {each['defence']}", []).append(each["accuracy"])
    shown = {name: found if chosen.held_out else found[0] for name, found in values.items()}
    report("Accuracy on the unseen domain with one of five sites lying, %", shown, taken, chosen.out)


if __name__ == "__main__":
    main()
