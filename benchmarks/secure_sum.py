"""Benchmark of secure summation: seconds to mask at a client and to unmask at the server, with one dropout.

python benchmarks/secure_sum.py --out results/performance/secure_sum.json

One core. The clients' protocol steps are those of a run; only training is left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from measure import options, report

from unseen.models import Layout
from unseen.privacy import ClientContext, Message, MethodTraits, ServerContext, make_protection
from unseen.privacy.answer_journal import MemoryJournal
from unseen.privacy.secagg.masking import MaskingSession
from unseen.privacy.secagg.unmasking import form_cohort, open_sum

ROUND = 1
PROTECTION: Any = make_protection("secure-sum")
METHOD, LAYOUT = MethodTraits("fedavg"), Layout.of(torch.nn.Linear(1, 1))


class Clients:
    """The states of some clients, and their replies to the server."""

    def __init__(self, count: int) -> None:
        self.contexts = {
            name: ClientContext(name, ROUND, 0, METHOD, LAYOUT, journal=MemoryJournal())
            for name in (f"c{number}" for number in range(count))
        }
        self.seconds = 0.0
        self.server = ServerContext(
            ROUND, 0, tuple(self.contexts), METHOD, LAYOUT, torch.zeros(2), count, ask=self.ask
        )

    def ask(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Let each client reply; their time is not counted as the server's."""
        started = time.perf_counter()
        answers = {
            name: PROTECTION.answer(message, self.contexts[name]) for name, message in messages.items()
        }
        self.seconds += time.perf_counter() - started
        return answers


def play(count: int, size: int) -> dict[str, Any]:
    """Run one round: keys, shares, masks, and the sum of all but one."""
    clients = Clients(count)
    circle = form_cohort(clients.server, needed=PROTECTION.threshold)
    numbers = {
        name: np.random.default_rng(place).integers(0, 2**40, size, dtype=np.uint64)
        for place, name in enumerate(clients.contexts)
    }
    masking, masked = [], {}
    for name, context in clients.contexts.items():
        started = time.perf_counter()
        masked[name] = MaskingSession(context).mask(
            numbers[name], circle.roster, circle.clients, circle.taking_part, threshold=circle.threshold
        )
        masking.append(time.perf_counter() - started)
    lost = circle.clients[-1]
    del masked[lost]
    before, started = clients.seconds, time.perf_counter()
    total, _ = open_sum(circle, masked, clients.server)
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
