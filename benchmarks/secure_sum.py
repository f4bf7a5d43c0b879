"""Benchmark of secure summation: seconds to mask at a client and to unmask at the server, with one dropout.

python benchmarks/secure_sum.py --out results/performance/secure_sum.json

One core. The clients' protocol steps are those of a run; only training is left out.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
from measure import options, report

from unseen.privacy.context import Message
from unseen.privacy.secagg.masking import MaskingSession
from unseen.privacy.secagg.unmasking import (
    ADVERTISE,
    DEAL,
    PART,
    ROSTER,
    SHARES,
    STEP,
    SURVIVORS,
    form_cohort,
    open_sum,
)

ROUND = 1


class Clients:
    """The states of some clients, and their replies to the server."""

    def __init__(self, count: int) -> None:
        self.sessions = {f"c{number}": MaskingSession({}, ROUND) for number in range(count)}
        self.seconds = 0.0

    def ask(self, messages: dict[str, Message]) -> dict[str, Message]:
        """Let each client reply; their time is not counted as the server's."""
        started = time.perf_counter()
        answers = {name: self._answer(self.sessions[name], message) for name, message in messages.items()}
        self.seconds += time.perf_counter() - started
        return answers

    @staticmethod
    def _answer(session: MaskingSession, message: Message) -> Message:
        if torch.equal(message[STEP], ADVERTISE):
            return session.advertise()
        roster = message[ROSTER]
        if torch.equal(message[STEP], DEAL):
            return session.deal(roster, threshold=more_than_half(len(roster)))
        return session.reveal(
            roster,
            message[SURVIVORS],
            taking_part=message[PART],
            shares=message[SHARES],
            threshold=more_than_half(len(roster)),
        )


def more_than_half(clients: int) -> int:
    """Return the number of clients that must help."""
    return clients // 2 + 1


def play(count: int, size: int) -> dict[str, Any]:
    """Run one round: keys, shares, masks, and the sum of all but one."""
    clients = Clients(count)
    circle = form_cohort(tuple(clients.sessions), clients.ask, needed=more_than_half)
    numbers = {
        name: np.random.default_rng(place).integers(0, 2**40, size, dtype=np.uint64)
        for place, name in enumerate(clients.sessions)
    }
    masking, masked = [], {}
    for name, session in clients.sessions.items():
        started = time.perf_counter()
        masked[name] = session.masked(numbers[name], circle.roster, circle.taking_part)
        masking.append(time.perf_counter() - started)
    lost = circle.clients[-1]
    del masked[lost]
    before, started = clients.seconds, time.perf_counter()
    total = open_sum(circle, masked, clients.ask, round=ROUND)
    opening = time.perf_counter() - started - (clients.seconds - before)
    expected = sum(own for name, own in numbers.items() if name != lost)
    if not np.array_equal(total, expected):
        raise SystemExit("the opened sum is not the plain one")
    return {
        "a client masks, s": statistics.median(masking),
        "the server opens the sum, s": opening,
        "a client sends, bytes": next(iter(masked.values())).nbytes,
    }


def main() -> None:
    given = options(__doc__).parse_args()
    torch.set_num_threads(1)
    taken = {
        f"{count} clients, {size:,} numbers": [play(count, size) for _ in range(given.repetitions)]
        for count in (5, 20)
        for size in (100_000, 1_000_000)
    }
    medians = {
        f"{name}: {key}": statistics.median(one[key] for one in found)
        for name, found in taken.items()
        for key in found[0]
    }
    report("Secure summation", medians, taken, given.out)


if __name__ == "__main__":
    main()
