"""Choose worker processes and threads, and make the engine that uses them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from unseen.devices import available_cores
from unseen.engine.base import Engine
from unseen.engine.experiment import Experiment
from unseen.runs.checkpoint import StateStore

WORTH_STARTING = 5e9
"""Smallest parameters x training samples, over the whole run, for which starting workers pays off."""
WORTH_A_PROCESS = 0.05
"""Smallest fraction of idle core time in a round for which one more process is worth its memory."""
LARGE_MODEL = 2_000_000
"""Smallest number of parameters for which several threads help a single process even on a busy machine."""


@dataclass(frozen=True)
class WorkerConfig:
    """Worker processes and threads of each; one worker means this process itself."""

    workers: int
    threads: int


def choose_workers(
    *, workers: int | None, threads: int | None, clients: int, parameters: int, samples: int, on_cpu: bool
) -> WorkerConfig:
    """Choose workers and threads where the user gave none.

    One thread per worker: two threads of one process wait for each other at every operation, which can cost
    nine tenths of the speed when another program uses a core. A single process with a large model uses all.
    """
    cores = available_cores()
    if workers is None:
        worth_it = on_cpu and parameters * samples >= WORTH_STARTING
        workers = max(cores // (threads or 1), 1) if worth_it else 1
    workers = min(workers, clients)
    if threads is None:
        threads = cores if workers == 1 and on_cpu and parameters >= LARGE_MODEL else 1
    return WorkerConfig(workers, threads)


def make_engine(
    experiment: Experiment, states: StateStore, config: WorkerConfig, *, max_clients: int
) -> Engine:
    """Make the engine for this machine."""
    if config.workers == 1:
        from unseen.engine.serial import SerialEngine

        return SerialEngine(experiment, states)
    from unseen.engine.workers.pool import WorkerEngine

    processes = config.workers + spare_process(config, clients=max_clients)
    return WorkerEngine(
        experiment, states, workers=processes, threads=config.threads, max_clients=max_clients
    )


def spare_process(config: WorkerConfig, *, clients: int) -> int:
    """Return 1 for an extra process where a round's last clients would leave a core idle, else 0.

    Five equal clients keep two workers busy for three clients' time, and one of them idles for a third of it.
    With three processes the system shares the cores, and all finish after two and a half. Done only where
    the workers fill the machine: otherwise it would take a core that was not requested.
    """
    fills_machine = config.workers * config.threads == available_cores()
    waste = -(-clients // config.workers) * config.workers / clients - 1
    return int(fills_machine and clients > config.workers and waste > WORTH_A_PROCESS)


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
