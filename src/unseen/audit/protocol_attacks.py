"""Attacks on a protection's protocol by whoever runs the server, replayed with the run's own setting.

They need no image: a round is asked twice, sums of several attempts or runs are subtracted, a sum over two is
opened, a client is told that it alone takes part. Each one either yields a single client's update, or noise
without its noise, or is refused or too inexact.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unseen.aggregation import CombinedUpdates, Updates
from unseen.engine import Experiment, RoundStart, SerialEngine
from unseen.engine.exchange import Exchange
from unseen.errors import UnseenError
from unseen.privacy import DisclosureLog, ReceivedUpdate, make_protection
from unseen.privacy.secagg.message_forms import PART
from unseen.runs.checkpoint import StateStore

Verdict = Literal["held", "broken", "not applicable"]
ROUND, BATCHES, MOST = 1, 4, 6
"""The attacked round, the batches that a client trains on, and clients (more where a threshold needs it)."""
CLOSE = 0.5
"""A stolen update counts if it is wrong by less than this fraction of what training changed."""


@dataclass(frozen=True)
class ProtocolCheck:
    """One attack, and whether the protection held against it."""

    finding: str
    attack: str
    protection: str
    verdict: Verdict
    sentence: str


def check_protocol(experiment: Experiment) -> list[ProtocolCheck]:
    """Attack the protocol of the experiment's protection; takes seconds."""
    return [
        ProtocolCheck(finding, attack, experiment.protection.name, *_verdict(play, experiment))
        for finding, (attack, play) in ATTACKS.items()
    ]


def _verdict(play: Attack, experiment: Experiment) -> tuple[Verdict, str]:
    if experiment.method.topology != "parallel":
        return "not applicable", f"{experiment.method.name} has no rounds in which clients train at once."
    try:
        return play(_shorten(experiment))
    except UnseenError as error:
        return "not applicable", f"The round could not be played: {error}."


def _shorten(experiment: Experiment) -> Experiment:
    """Shorten a client's local training, on its real samples and with the run's own batches."""
    plan = experiment.plan
    batches = min(BATCHES, plan.batches_per_epoch or BATCHES)
    return replace(experiment, plan=replace(plan, epochs=1, batches_per_epoch=batches), compile=False)


class Rehearsal:
    """Some clients of the experiment with their states and journals, and a server that may lose or lie."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment = replace(experiment, network=copy.deepcopy(experiment.network))
        self.engine = SerialEngine(self.experiment, StateStore(folder))
        self.start = self.engine.workspace.flat.read().cpu().clone()
        threshold = getattr(experiment.protection.settings, "threshold", None) or 0
        self.group = list(range(min(len(experiment.federation), max(MOST, threshold + 1))))
        self.refused: list[str] = []

    @property
    def names(self) -> list[str]:
        """Names of the clients that take part."""
        return [self.experiment.federation.names[position] for position in self.group]

    def exchange(self, group: Sequence[int]) -> Exchange:
        """Begin an exchange with some clients."""
        return Exchange(
            self.experiment,
            self.engine,
            group=group,
            round=ROUND,
            weights=self.start,
            layout=self.engine.workspace.flat.layout,
            state={},
            left=DisclosureLog(),
            fault=lambda client, reason: self.refused.append(reason),
        )

    def open_sum(self, *, without: Sequence[int] = (), lost: Sequence[str] = ()) -> Updates:
        """Play the round and open what the server may open; `lost` are clients whose update never arrives."""
        group = [position for position in self.group if position not in without]
        exchange = self.exchange(group)
        rows, replies = self.engine.train(group, self.round_start(exchange.begin()))
        received = [
            ReceivedUpdate(reply.client, reply.update)
            for reply in replies
            if reply.update is not None and not reply.update.withheld and reply.client not in lost
        ]
        return exchange.finish(rows, replies, received).updates

    def round_start(self, sealing: Mapping[str, Tensor], weights: Tensor | None = None) -> RoundStart:
        """Return what clients are handed in the round."""
        received = self.experiment.method.broadcast({})
        return RoundStart(ROUND, self.start if weights is None else weights, received, sealing=sealing)


@contextmanager
def rehearsal(experiment: Experiment) -> Iterator[Rehearsal]:
    """Make a rehearsal whose client states are deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="unseen-audit-") as folder:
        stage = Rehearsal(experiment, Path(folder))
        try:
            yield stage
        finally:
            stage.engine.close()


Attack = Callable[[Experiment], tuple[Verdict, str]]


def ask_twice(experiment: Experiment) -> tuple[Verdict, str]:
    """Ask a client for one round twice, the second time with weights of zero, and subtract the answers."""
    if "dp-samples" not in experiment.protection.name:
        return "not applicable", "Clients add no noise of their own that a second answer could cancel."
    with rehearsal(experiment) as stage:
        answers = []
        for weights in (stage.start, torch.zeros_like(stage.start)):
            sealing = stage.exchange(stage.group).begin()
            try:
                rows, replies = stage.engine.train(stage.group[:1], stage.round_start(sealing, weights))
            except UnseenError:
                break
            if replies[0].update is None or replies[0].reason:
                break
            answers.append(rows[0].clone() - weights)
    if len(answers) < 2:
        return "held", "A client refused to answer one round for other weights, so its noise does not cancel."
    left = float((answers[0] - answers[1]).norm() / answers[0].norm())
    return (
        "broken" if left < 1 else "held",
        f"A client answered one round for two sets of weights; {left:.2f} of the first answer's norm is left "
        "in the difference, and independent noise would leave 1.4.",
    )


def repeat_without_one(experiment: Experiment) -> tuple[Verdict, str]:
    """Open a round, lose one client's update as after a crash, and open it again."""
    if reason := _why_no_sum(experiment):
        return "not applicable", reason
    with rehearsal(experiment) as stage:
        first = stage.open_sum()
        try:
            second = stage.open_sum(lost=stage.names[-1:])
        except UnseenError:
            return "held", "Clients refused to open a repeated round over other clients than the first time."
    return _judge_difference(experiment, first, second, "A round repeated without one client was opened")


def run_without_one(experiment: Experiment) -> tuple[Verdict, str]:
    """Subtract the sums of two runs of one seed, the second of which holds one client out."""
    if reason := _why_no_sum(experiment):
        return "not applicable", reason
    with rehearsal(experiment) as stage, rehearsal(experiment) as other:
        if len(stage.group) < 4:
            return "held", "A second run without one of the clients would have too few to be opened."
        first, second = stage.open_sum(), other.open_sum(without=other.group[-1:])
    return _judge_difference(experiment, first, second, "Two runs of one seed, the second without one client")


def open_sum_of_two(experiment: Experiment) -> tuple[Verdict, str]:
    """Lose all updates but two, and open their sum."""
    if reason := _why_no_sum(experiment):
        return "not applicable", reason
    with rehearsal(experiment) as stage:
        try:
            stage.open_sum(lost=stage.names[2:])
        except UnseenError:
            return "held", "A sum over two clients was not opened."
    return (
        "broken",
        "A sum over two clients was opened: each can subtract its own update and read the other's.",
    )


def name_one_participant(experiment: Experiment) -> tuple[Verdict, str]:
    """Tell one client that nobody else takes part in the sum."""
    if reason := _why_no_sum(experiment):
        return "not applicable", reason
    with rehearsal(experiment) as stage:
        sealing = dict(stage.exchange(stage.group).begin())
        if PART not in sealing:
            return (
                "not applicable",
                "Clients are told no list of participants; a server that breaks the protocol could have one "
                "update decrypted as a sum.",
            )
        sealing[PART] = torch.arange(len(sealing[PART])) == 0
        _, replies = stage.engine.train(stage.group[:1], stage.round_start(sealing))
        if replies[0].update is None or replies[0].update.withheld:
            return "held", "A client that was told that it alone takes part sent nothing."
    return (
        "broken",
        "A client that was told that it alone takes part sent its update without masks of others.",
    )


ATTACKS: dict[str, tuple[str, Attack]] = {
    "P1": ("a round asked twice, to cancel noise", ask_twice),
    "P2": ("a round repeated without one client", repeat_without_one),
    "P3": ("several runs of one seed over different clients", run_without_one),
    "P4": ("a sum over two clients", open_sum_of_two),
    "P5": ("a list that names one participant", name_one_participant),
}


def _why_no_sum(experiment: Experiment) -> str:
    """Say why there is no hidden sum to attack; empty if there is."""
    if not experiment.protection.seals:
        return "Updates are not hidden in a sum: the server reads each of them anyway."
    return ""


def _judge_difference(
    experiment: Experiment, first: Updates, second: Updates, what: str
) -> tuple[Verdict, str]:
    """Compare the difference of two opened sums with the missing client's update without protection."""
    if isinstance(first, CombinedUpdates) or isinstance(second, CombinedUpdates):
        return (
            "not applicable",
            "The server opens a combination with other coefficients each time, not a sum.",
        )
    missing = next(name for name in first.clients if name not in second.clients)
    plain = replace(experiment, protection=make_protection("none"))
    with rehearsal(plain) as stage:
        _, (reply,) = stage.engine.train([experiment.federation.position(missing)], stage.round_start({}))
        assert reply.update is not None
        summed = [kind for kind, how in experiment.method.traits.merges.items() if how == "sum"]
        if summed:
            true = torch.cat([reply.update.extras[kind].flatten().double() for kind in summed])
            stolen = _add_up(first, summed) - _add_up(second, summed)
            start = torch.zeros_like(true)
        else:
            true, start = reply.update.weights.double(), stage.start.double()
            weight = first.samples.sum() - second.samples.sum()
            stolen = (_weigh(first) - _weigh(second)) / weight
    error = float((stolen - true).norm() / (true - start).norm().clamp(min=1e-30))
    outcome = f"{what}: the difference of the sums is {missing}'s update with a relative error of {error:.2g}"
    if error < CLOSE:
        return "broken", f"{outcome}."
    return "held", f"{outcome}: too inexact here, blurred by each client's own batch order, not hidden by it."


def _weigh(updates: Updates) -> Tensor:
    total: Tensor = (updates.rows.double() * updates.samples[:, None]).sum(dim=0)
    return total


def _add_up(updates: Updates, kinds: Sequence[str]) -> Tensor:
    extras: Any = updates.extras[0]
    return torch.cat([extras[kind].flatten().double() for kind in kinds])
