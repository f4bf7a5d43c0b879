"""The worker engine: long-lived processes train clients in parallel.

Data, global weights and the matrix of updates are in shared memory; only small messages are sent. What a
client computes depends only on its name and the round, so the number of workers changes nothing but the time.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from unseen.calibration import Measurement
from unseen.child_processes import hide_main_module, start_fork_server
from unseen.data import DataSet
from unseen.engine.base import Answer, Reply
from unseen.engine.experiment import (
    EvaluationSet,
    Experiment,
    RoundStart,
    Workspace,
    merge_parts,
)
from unseen.engine.workers.shared_memory import SharedArrays, as_arrays, as_tensors
from unseen.engine.workers.worker import ConsultTask, EvaluateTask, SharedExperiment, TrainTask, work
from unseen.errors import UnseenError
from unseen.models import Network
from unseen.privacy import Message
from unseen.runs.checkpoint import StateStore, protection_key
from unseen.runs.records import Record
from unseen.session_parts import find_session_parts, pickle_by_value
from unseen.tasks.accumulators import MetricAccumulator

_PRELOAD = "unseen.engine.workers.preload"
_POLL_SECONDS = 0.2
_MANY_TASKS = 4
"""Tasks per worker from which each gets its next task while still busy, so that none has to wait."""
_NOTHING = lambda _: None  # noqa: E731


class WorkerEngine:
    """Assigns clients to worker processes, longest first."""

    holds_data = True
    initial_disclosures: Sequence[Record] = ()

    def __init__(
        self, experiment: Experiment, states: StateStore, *, workers: int, threads: int, max_clients: int
    ) -> None:
        self.workspace = Workspace(experiment)
        self.states = states
        size = self.workspace.flat.layout.size
        arrays = _arrays(experiment.data)
        self._scratch = SharedArrays(
            4 * size * (max_clients + 1) + sum(array.nbytes for array in arrays.values())
        )
        shared = SharedExperiment(
            experiment=_without_arrays(experiment),
            network_class=type(experiment.network),
            network=pickle_by_value(_unbound(experiment.network), what="the network"),
            arrays={name: self._scratch.share(name, array) for name, array in arrays.items()},
            weights=self._scratch.new("weights", (size,)),
            rows=self._scratch.new("rows", (max_clients, size)),
            progress=self._scratch.new("progress", (workers,), "int64"),
            states=StateStore(states.folder),
            threads=threads,
        )
        self._weights = torch.from_numpy(shared.weights.open(writable=True))
        self._rows = torch.from_numpy(shared.rows.open(writable=True))
        self._progress = shared.progress.open()
        self._reported = 0
        parts, packed = (
            find_session_parts(),
            pickle_by_value(shared, what=f"a run of {experiment.method.name}"),
        )
        context = start_fork_server(_PRELOAD)
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(number, theirs, parts, packed), daemon=True)
            with hide_main_module():
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._ready = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user on where the updates are stored."""
        if self._scratch.in_memory:
            return ()
        return (
            f"the update matrix ({self._rows.nbytes / 2**30:.1f} GiB) does not fit in memory: it is on disk",
        )

    def train(self, clients: Sequence[int], start: RoundStart) -> tuple[Tensor, list[Reply]]:
        """Train the clients, the one with most samples first."""
        self._weights.copy_(start.weights)
        if start.own is not None:
            self._rows[: len(clients)].copy_(start.own)
        federation = self.workspace.experiment.federation
        names = [federation.names[position] for position in clients]
        sent, sealing, versions = as_arrays(start.received), as_arrays(start.sealing), self.states.versions
        tasks = [
            TrainTask(
                position,
                row,
                start.round,
                received=sent,
                version=versions.get(names[row]),
                protection_version=versions.get(protection_key(names[row])),
                sealing=sealing,
                reaction=start.reaction,
                starts_in_row=start.own is not None,
            )
            for row, position in enumerate(clients)
        ]
        sizes = federation.train_sizes
        longest_first = sorted(tasks, key=lambda task: -sizes[task.position])
        replies: dict[int, Reply] = {}
        for task, answer in self._map(longest_first, start.progress):
            name = names[task.row]
            self._set_versions({name: answer.version, protection_key(name): answer.protection_version})
            weights = self._rows[task.row] if answer.in_row else torch.empty(0)
            update = replace(answer.update, weights=weights, extras=as_tensors(answer.extras))
            replies[task.row] = Reply(name, update, answer.reason)
        return self._rows[: len(clients)], [replies[row] for row in range(len(clients))]

    def consult(self, clients: Sequence[int], messages: Sequence[Message], *, round: int) -> list[Answer]:
        """Collect the clients' answers from worker processes."""
        names = self.workspace.experiment.federation.names
        tasks = [
            ConsultTask(
                position, round, as_arrays(message), self.states.versions.get(protection_key(names[position]))
            )
            for position, message in zip(clients, messages, strict=True)
        ]
        answers: dict[int, Answer] = {}
        for task, answer in self._map(tasks, _NOTHING):
            name = names[task.position]
            self._set_versions({protection_key(name): answer.protection_version})
            message = None if answer.message is None else as_tensors(answer.message)
            answers[task.position] = Answer(name, message, answer.reason)
        return [answers[position] for position in clients]

    def _set_versions(self, versions: dict[str, int | None]) -> None:
        """Set which versions of clients' state are current."""
        self.states.versions.update({key: round for key, round in versions.items() if round is not None})

    def evaluate(
        self, weights: Tensor, sets: Sequence[EvaluationSet], measurement: Measurement | None = None
    ) -> list[MetricAccumulator]:
        """Evaluate on every set, in parts that do not depend on the number of workers."""
        self._weights.copy_(weights)
        parts = self.workspace.experiment.evaluation_parts(sets)
        longest_first = sorted(parts, key=lambda part: -part.size)
        tasks = [EvaluateTask(part, measurement) for part in longest_first]
        found = {task.part: accumulator for task, accumulator in self._map(tasks, _NOTHING)}
        return merge_parts(sets, ((part, found[part]) for part in parts))

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
            process.join()
        self._scratch.unlink()

    def _map(self, tasks: Iterable[Any], progress: Callable[[int], None]) -> Iterable[tuple[Any, Any]]:
        """Send every idle worker the next task; yield (task, result) as they arrive."""
        self._wait_until_ready()
        queue = deque(tasks)
        given: dict[Connection, deque[Any]] = {pipe: deque() for pipe in self._pipes}
        ahead = 2 if len(queue) >= _MANY_TASKS * len(self._pipes) else 1
        for pipe in self._pipes * ahead:
            self._hand_out(pipe, queue, given[pipe])
        while busy := [pipe for pipe, held in given.items() if held]:
            for ready in wait(busy, timeout=_POLL_SECONDS):
                pipe = cast(Connection, ready)
                result = self._receive(pipe)
                task = given[pipe].popleft()
                self._hand_out(pipe, queue, given[pipe])
                yield task, result
            self._report(progress)
        self._report(progress)

    def _hand_out(self, pipe: Connection, queue: deque[Any], held: deque[Any]) -> None:
        if not queue:
            return
        held.append(queue.popleft())
        try:
            pipe.send(held[-1])
        except (BrokenPipeError, ConnectionResetError):
            raise self._explain_end(pipe) from None

    def _receive(self, pipe: Connection) -> Any:
        try:
            result = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._explain_end(pipe) from None
        if isinstance(result, Exception):
            raise result
        return result

    def _explain_end(self, pipe: Connection) -> UnseenError:
        process = self._processes[self._pipes.index(pipe)]
        process.join(timeout=5)
        return UnseenError(
            f"a worker process ended unexpectedly (exit code {process.exitcode}); out of memory? "
            "Continue with --resume and fewer --workers"
        )

    def _report(self, progress: Callable[[int], None]) -> None:
        seen = int(np.sum(self._progress))
        if seen > self._reported:
            progress(seen - self._reported)
            self._reported = seen

    def _wait_until_ready(self) -> None:
        """Wait until all workers are ready, then unlink the shared files."""
        if not self._ready:
            for pipe in self._pipes:
                self._receive(pipe)
            self._scratch.unlink()
            self._ready = True


def _unbound(network: Network) -> Network:
    """Copy a network with independent tensors: a view of a flat vector would pickle the whole vector."""
    copied = copy.deepcopy(network)
    for tensor in copied.parameters():
        tensor.grad = None
        tensor.data = tensor.data.clone()
    for module in copied.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.clone())
    return copied


def _arrays(data: DataSet) -> dict[str, Any]:
    """Return the per-sample arrays of a data set."""
    found = {name: getattr(data, name) for name in ("inputs", "targets", "domain_of", "group_of")}
    return {name: array for name, array in found.items() if array is not None}


def _without_arrays(experiment: Experiment) -> Experiment:
    """Copy the experiment without its samples, to be pickled; its data keeps only metadata."""
    data = experiment.data
    empty = replace(
        data,
        **{name: array[:0] for name, array in _arrays(data).items()},
        split_group_of=None,
        split_of=None,
        fingerprint=data.fingerprint,
    )
    return replace(experiment, data=empty, network=Network(), whole=None, images=None)
