"""The code inside a worker process: serve training and evaluation tasks until the pipe closes."""

from __future__ import annotations

import pickle
import signal
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection

import torch

from unseen.calibration import Measurement
from unseen.data import DataSet
from unseen.engine.experiment import EvaluationPart, Experiment, RoundStart, Workspace
from unseen.engine.resources import keep_freed_memory
from unseen.engine.workers.shared_memory import Array, MappedArray, as_arrays, as_tensors
from unseen.errors import UnseenError
from unseen.models import Network
from unseen.registry import SESSION
from unseen.runs.checkpoint import StateStore, protection_key
from unseen.session_parts import SessionParts
from unseen.tasks.accumulators import MetricAccumulator
from unseen.training import Update


@dataclass(frozen=True)
class SharedExperiment:
    """An experiment whose large arrays are in mapped files.

    network  pickled separately, because its class may have libraries to import first
    """

    experiment: Experiment
    network_class: type[Network]
    network: bytes
    arrays: dict[str, MappedArray]
    weights: MappedArray
    rows: MappedArray
    progress: MappedArray
    states: StateStore
    threads: int

    def open(self) -> Experiment:
        """Restore the experiment with its mapped arrays."""
        data = self.experiment.data
        opened = {name: array.open() for name, array in self.arrays.items()}
        fields = {name: getattr(data, name) for name in data.__dataclass_fields__} | opened
        self.network_class.import_libraries()
        return replace(self.experiment, data=DataSet(**fields), network=pickle.loads(self.network))


@dataclass(frozen=True)
class TrainTask:
    """Train one client and write its state into a row.

    version             the newest round of its state for the method, if any
    protection_version  the same for its state for the protection
    sealing             message of the protection's server half
    reaction            as in `RoundStart`
    starts_in_row       whether the row holds what the client starts from; if not, that are the global weights
    """

    position: int
    row: int
    round: int
    received: dict[str, Array]
    version: int | None
    protection_version: int | None = None
    sealing: dict[str, Array] = field(default_factory=dict)
    reaction: float = 1.0
    starts_in_row: bool = False


@dataclass(frozen=True)
class TrainAnswer:
    """An update without its weights (they are in the row), and the current versions of the client's state.

    in_row  whether the row contains the client's state; it does not where that is sealed or withheld
    reason  why the update cannot be used, if it cannot: checked here, while the numbers are in the cache
    """

    update: Update
    extras: dict[str, Array]
    version: int | None
    protection_version: int | None = None
    in_row: bool = True
    reason: str = ""


@dataclass(frozen=True)
class ConsultTask:
    """Send a client a message of the protection; `protection_version` as in `TrainTask`."""

    position: int
    round: int
    message: dict[str, Array]
    protection_version: int | None


@dataclass(frozen=True)
class ConsultAnswer:
    """The client's answer, or the reason why there is none, and the current version of its state."""

    message: dict[str, Array] | None
    reason: str
    protection_version: int | None


@dataclass(frozen=True)
class EvaluateTask:
    """Evaluate one part of an evaluation set."""

    part: EvaluationPart
    measurement: Measurement | None = None


def work(number: int, pipe: Connection, parts: SessionParts, packed: bytes) -> None:
    """Serve tasks until the other end closes.

    parts   what the session registered itself
    packed  the pickled `SharedExperiment`, which may need these parts
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    try:
        parts.install()
        shared: SharedExperiment = pickle.loads(packed)
        torch.set_num_threads(shared.threads)
        worker = _Worker(number, shared)
    except Exception as error:
        pipe.send(_sendable(error))
        return
    try:
        pipe.send("ready")
        while True:
            pipe.send(worker.serve(pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _sendable(error: Exception) -> Exception:
    """Return the error, or its text if a cell of a notebook defines its class."""
    if type(error).__module__ == SESSION:
        return UnseenError(f"{type(error).__name__}: {error}")
    return error


def own_device(device: torch.device, number: int) -> torch.device:
    """Distribute workers over all GPUs if no single one was named; several may share one."""
    if device != torch.device("cuda"):
        return device
    return torch.device("cuda", number % max(torch.cuda.device_count(), 1))


class _Worker:
    def __init__(self, number: int, shared: SharedExperiment) -> None:
        self.number = number
        experiment = shared.open()
        device = own_device(experiment.prepare.device, number)
        self.workspace = Workspace(replace(experiment, prepare=replace(experiment.prepare, device=device)))
        self.states = shared.states
        self.weights = torch.from_numpy(shared.weights.open(writable=True))
        self.rows = torch.from_numpy(shared.rows.open(writable=True))
        self.progress = shared.progress.open(writable=True)

    def serve(
        self, task: TrainTask | ConsultTask | EvaluateTask
    ) -> TrainAnswer | ConsultAnswer | MetricAccumulator | Exception:
        """Execute a task; an exception is returned in place of a result."""
        try:
            if isinstance(task, TrainTask):
                return self._train(task)
            if isinstance(task, ConsultTask):
                return self._consult(task)
            self.workspace.flat.load(self.weights)
            return self.workspace.evaluate(task.part, task.measurement)
        except Exception as error:
            return _sendable(error)

    def _train(self, task: TrainTask) -> TrainAnswer:
        experiment = self.workspace.experiment
        name = experiment.federation.names[task.position]
        key = protection_key(name)
        self._set_versions({name: task.version, key: task.protection_version})
        start = RoundStart(
            task.round,
            self.rows[task.row] if task.starts_in_row else self.weights,
            as_tensors(task.received),
            self._count,
            as_tensors(task.sealing),
            task.reaction,
        )
        with self.states.open_states(name, round=task.round, protected=experiment.protected) as states:
            update = self.workspace.train_client(task.position, states[0], start, states[1])
        in_row = len(update.weights) > 0
        if in_row:
            self.rows[task.row].copy_(update.weights)
        light = replace(update, weights=torch.empty(0), extras={})
        version, other = self.states.versions.pop(name, None), self.states.versions.pop(key, None)
        reason = self.workspace.reason_against(update)
        return TrainAnswer(light, as_arrays(update.extras), version, other, in_row, reason)

    def _consult(self, task: ConsultTask) -> ConsultAnswer:
        name = self.workspace.experiment.federation.names[task.position]
        key, message = protection_key(name), as_tensors(task.message)
        self._set_versions({key: task.protection_version})
        reply = partial(self.workspace.answer, name, message=message, round=task.round)
        answer, reason = None, ""
        try:
            answer = as_arrays(self.states.with_state(key, round=task.round, do=reply))
        except UnseenError as error:
            reason = str(error)
        return ConsultAnswer(answer, reason, self.states.versions.pop(key, None))

    def _set_versions(self, versions: dict[str, int | None]) -> None:
        """Set which versions of clients' state are current."""
        self.states.versions.update({key: round for key, round in versions.items() if round is not None})

    def _count(self, samples: int) -> None:
        self.progress[self.number] += samples
