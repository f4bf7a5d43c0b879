"""Benchmark of two trees round by round: both train at once and take turns, one round each.

    python benchmarks/rounds_against.py --against OTHER_TREE --out results/performance/rounds_against.json

The work is W1 and W2 of training.py, two workers. A round takes a fraction of a second (W2) or a few seconds
(W1), so that both rounds of a pair meet the same machine, and there are many pairs: on a machine whose speed
changes from minute to minute this shows differences of a few percent, where whole runs (training.py
--against) do not. While one tree works, the other one waits for its turn.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measure import options, report

from training import TREE, train

PAIRS = {"W2": 150, "W1": 15}
WARM_UP = 2
TURN = "\n"


def take_turns(work: str, rounds: int) -> None:
    """Train; after every round say so and wait for the next turn."""
    from unseen.callbacks.base import Callback
    from unseen.runs.records import Record

    class Turn(Callback):
        def on_record(self, record: Record) -> None:
            if record["event"] == "round":
                print(flush=True)
                sys.stdin.readline()

    train(work, 2, Turn(), rounds=rounds)


class Player:
    """A process that trains with the code of one tree, a round per turn."""

    def __init__(self, tree: Path, work: str, rounds: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "take_turns", work, str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
        )
        self._wait()

    def play(self) -> float:
        """Let the process take its turn; return the seconds."""
        started = time.perf_counter()
        assert self._process.stdin
        self._process.stdin.write(TURN)
        self._process.stdin.flush()
        self._wait()
        return time.perf_counter() - started

    def end(self) -> None:
        """Let the last round finish."""
        self._process.communicate(TURN)

    def _wait(self) -> None:
        assert self._process.stdout
        if self._process.stdout.readline() != TURN:
            raise SystemExit("a tree ended before its last round")


def compare(trees: dict[str, Path], work: str, pairs: int) -> dict[str, list[float]]:
    """Time rounds of all trees in turn; the order within a pair is random."""
    players = {name: Player(tree, work, pairs + WARM_UP + 1) for name, tree in trees.items()}
    seconds: dict[str, list[float]] = {name: [] for name in trees}
    order, generator = list(trees), random.Random(0)
    for pair in range(pairs + WARM_UP):
        generator.shuffle(order)
        for name in order:
            taken = players[name].play()
            if pair >= WARM_UP:
                seconds[name].append(taken)
    for player in players.values():
        player.end()
    return seconds


def interval(ratios: list[float]) -> list[float]:
    """Return the central 95 % of medians of resampled pairs."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000))
    return [medians[50], medians[1949]]


def main() -> None:
    """Take turns (for the processes), or compare two trees."""
    if sys.argv[1:2] == ["take_turns"]:
        take_turns(sys.argv[2], int(sys.argv[3]))
        return
    parser = options(__doc__, repetitions=1)
    parser.add_argument("--against", type=Path, required=True, help="the other tree")
    chosen = parser.parse_args()
    values: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    for work, pairs in PAIRS.items():
        taken = compare({"new": TREE, "old": chosen.against.resolve()}, work, pairs * chosen.repetitions)
        ratios = [old / new for new, old in zip(taken["new"], taken["old"], strict=True)]
        values[f"{work}: pairs of rounds"] = len(ratios)
        values[f"{work}: speed new / old (median of pairs)"] = statistics.median(ratios)
        values[f"{work}: 95 % interval of that median"] = interval(ratios)
        values[f"{work}: speed new / old (sums of all rounds)"] = sum(taken["old"]) / sum(taken["new"])
        measured[work] = {name: [round(one, 4) for one in each] for name, each in taken.items()}
    report("Training speed of two trees, round by round", values, measured, chosen.out)


if __name__ == "__main__":
    main()
