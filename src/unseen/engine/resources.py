"""Choosing hands: how many worker processes, how many threads each, and the engine that uses them."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from unseen.engine.base import Engine
from unseen.engine.experiment import Experiment
from unseen.runs.client_state import StateStore

WORTH_STARTING = 5e9
"""Parameters times samples trained on, over the whole run, from which starting workers pays."""
WORTH_A_PROCESS = 0.05
"""Part of a round's time that cores would idle, from which one process more is worth its memory."""
LARGE_MODEL = 2_000_000
"""Parameters from which a single process gains by several threads even on a busy machine."""


@dataclass(frozen=True)
class Hands:
    """Worker processes and threads of each; one worker means this process itself."""

    workers: int
    threads: int


def choose_hands(
    *, workers: int | None, threads: int | None, clients: int, parameters: int, samples: int, on_cpu: bool
) -> Hands:
    """Fill in what the user left open.

    One thread a worker: two threads of one process wait for each other at every operation, which costs up to
    nine tenths of the speed when another program uses a core. A single process with a large model takes all.
    """
    cores = available_cores()
    if workers is None:
        worth_it = on_cpu and parameters * samples >= WORTH_STARTING
        workers = max(cores // (threads or 1), 1) if worth_it else 1
    workers = min(workers, clients)
    if threads is None:
        threads = cores if workers == 1 and on_cpu and parameters >= LARGE_MODEL else 1
    return Hands(workers, threads)


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_engine(experiment: Experiment, states: StateStore, hands: Hands, *, max_clients: int) -> Engine:
    """Make the engine for these hands."""
    if hands.workers == 1:
        from unseen.engine.serial import LocalEngine

        return LocalEngine(experiment, states)
    from unseen.engine.workers.pool import WorkerEngine

    processes = hands.workers + spare_process(hands, clients=max_clients)
    return WorkerEngine(experiment, states, workers=processes, threads=hands.threads, max_clients=max_clients)


def spare_process(hands: Hands, *, clients: int) -> int:
    """One process more than cores where a round's last clients would leave a core idle.

    Five equal clients keep two workers busy for three clients' time, and one of them idles for a third of it.
    With three processes the system shares the cores out, and all are done after two and a half. Only where
    the workers fill the machine: elsewhere it would take a core that was not asked for.
    """
    fills_machine = hands.workers * hands.threads == available_cores()
    waste = -(-clients // hands.workers) * hands.workers / clients - 1
    return int(fills_machine and clients > hands.workers and waste > WORTH_A_PROCESS)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP_BELOW = 512 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Keep freed memory inside the process, since a training step allocates the same buffers again.

    glibc otherwise returns large blocks to the system after every step and faults them in again. Returns
    whether it took effect; on other C libraries there is nothing to do.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _KEEP_BELOW)) and bool(mallopt(_TRIM_THRESHOLD, _KEEP_BELOW))
