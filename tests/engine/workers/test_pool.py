"""The worker engine: the same weights as in one process, to the last bit, whatever the number of workers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from unseen.engine import RoundStart, SerialEngine
from unseen.engine.resources import WorkerConfig, choose_workers, spare_process
from unseen.engine.workers.pool import WorkerEngine
from unseen.engine.workers.shared_memory import MappedArray, SharedArrays
from unseen.engine.workers.worker import TrainTask
from unseen.errors import UnseenError
from unseen.runs.checkpoint import StateStore


@pytest.fixture
def engines(make_experiment, tmp_path):
    """Make engines and close them afterwards."""
    made = []

    def make(workers, method="fedavg"):
        states = StateStore(tmp_path / f"states-{workers}")
        experiment = make_experiment(method)
        if workers == 1:
            made.append(SerialEngine(experiment, states))
        else:
            made.append(WorkerEngine(experiment, states, workers=workers, threads=1, max_clients=3))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def _round(engine, clients=(0, 1, 2)):
    seen = []
    start = engine.workspace.flat.read()
    rows, replies = engine.train(clients, RoundStart(1, start, progress=seen.append))
    return rows.clone(), replies, sum(seen)


def test_workers_return_the_same_bits_as_one_process(engines):
    alone, together = engines(1), engines(2)
    (rows, replies, seen), (other_rows, other_replies, other_seen) = _round(alone), _round(together)
    assert torch.equal(rows, other_rows)
    assert seen == other_seen == sum(reply.update.seen for reply in replies)
    for reply, other in zip(replies, other_replies, strict=True):
        assert (reply.client, reply.update.loss, reply.update.steps) == (
            other.client,
            other.update.loss,
            other.update.steps,
        )
    sets = alone.workspace.experiment.evaluation_sets("validation", "target")
    for mine, theirs in zip(alone.evaluate(rows[0], sets), together.evaluate(rows[0], sets), strict=True):
        assert mine.metrics() == theirs.metrics()


def test_rows_belong_to_the_clients_asked_for(engines):
    engine = engines(2)
    everyone, _, _ = _round(engine)
    some, replies, _ = _round(engine, clients=(2, 0))
    assert [reply.client for reply in replies] == ["c", "a"]
    assert torch.equal(some, everyone[[2, 0]])


@pytest.mark.parametrize("workers", [1, 2])
def test_each_client_starts_from_its_own_model_where_they_circulate(engines, workers):
    engine = engines(workers)
    common = engine.workspace.flat.read()
    own = torch.stack([common, common + 0.01, common - 0.01])
    rows, _ = engine.train((0, 1, 2), RoundStart(1, common, own=own.clone()))
    rows = rows.clone()
    for client, start in enumerate(own):
        alone, _ = engine.train((client,), RoundStart(1, start))
        assert torch.equal(alone[0], rows[client])
    assert not torch.equal(rows[1], engine.train((1,), RoundStart(1, common))[0][0])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reply_says_why_its_update_cannot_be_used(engines, workers):
    engine = engines(workers)
    _, sound, _ = _round(engine)
    assert [reply.reason for reply in sound] == ["", "", ""]
    spoilt = engine.workspace.flat.read()
    spoilt[0] = np.nan
    _, replies = engine.train((0, 1), RoundStart(2, spoilt))
    assert ["contain NaN" in reply.reason for reply in replies] == [True, True]


def test_an_error_in_a_worker_reaches_the_caller(engines):
    engine = engines(2)
    with pytest.raises(IndexError):
        list(engine._map([TrainTask(99, 0, 1, {}, None)], lambda _: None))


def test_a_worker_that_dies_is_reported(engines):
    engine = engines(2)
    _round(engine)
    for process in engine._processes:
        process.kill()
        process.join()
    with pytest.raises(UnseenError, match=r"worker process ended.*--resume"):
        _round(engine)


def test_nothing_is_left_behind_in_shared_memory(engines):
    engine = engines(2)
    assert engine._scratch.folder.exists()
    _round(engine)
    assert not engine._scratch.folder.exists()


def test_mapped_files_are_shared_without_a_copy(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.uint8).reshape(3, 4))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    scratch = SharedArrays(0)
    try:
        described = scratch.share("x", mapped)
        assert described.path == str(tmp_path / "x.npy")
        assert np.array_equal(described.open(), mapped)
        part = scratch.share("part", mapped[1:])
        assert part.path != described.path and np.array_equal(part.open(), mapped[1:])
        empty = scratch.share("empty", np.zeros((0, 3), dtype=np.float32))
        assert empty.open().shape == (0, 3)
    finally:
        scratch.unlink()


def test_shared_arrays_go_to_disk_when_memory_is_short():
    scratch = SharedArrays(1 << 60)
    try:
        assert not scratch.in_memory
        array = scratch.new("rows", (2, 3))
        array.open(writable=True)[1] = 5
        assert array.open().tolist() == [[0, 0, 0], [5, 5, 5]]
        assert isinstance(array, MappedArray)
    finally:
        scratch.unlink()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"workers": 3, "threads": 2}, (3, 2)),
        ({"workers": 8, "clients": 2}, (2, 1)),
        ({"samples": 10}, (1, 1)),
        ({"samples": 10**9}, (4, 1)),
        ({"samples": 10**9, "threads": 2}, (2, 2)),
        ({"samples": 10**9, "clients": 1, "parameters": 10**7}, (1, 4)),
        ({"samples": 10**9, "on_cpu": False}, (1, 1)),
    ],
)
def test_workers_are_chosen_by_work_and_cores(given, expected, monkeypatch):
    monkeypatch.setattr("unseen.engine.resources.available_cores", lambda: 4)
    standard = {
        "workers": None,
        "threads": None,
        "clients": 9,
        "parameters": 10**5,
        "samples": 10**5,
        "on_cpu": True,
    }
    found = choose_workers(**{**standard, **given})
    assert (found.workers, found.threads) == expected


@pytest.mark.parametrize(
    ("workers", "threads", "clients", "expected"),
    [
        (4, 1, 5, 1),
        (2, 2, 5, 1),
        (4, 1, 8, 0),
        (4, 1, 4, 0),
        (4, 1, 399, 0),
        (3, 1, 5, 0),
    ],
)
def test_a_spare_process_fills_cores_that_would_idle(workers, threads, clients, expected, monkeypatch):
    monkeypatch.setattr("unseen.engine.resources.available_cores", lambda: 4)
    assert spare_process(WorkerConfig(workers, threads), clients=clients) == expected


def test_every_task_is_answered_once_when_workers_are_sent_tasks_ahead(engines):
    engine = engines(2)
    weights = engine.workspace.flat.read()
    engine._weights.copy_(weights)
    tasks = [
        TrainTask(number % 3, number % 3, round=number, received={}, version=None) for number in range(9)
    ]
    pairs = list(engine._map(tasks, lambda _: None))
    assert sorted(task.round for task, _ in pairs) == list(range(9))
    alone = engines(1).workspace
    for task, answer in pairs:
        update = alone.train_client(task.position, {}, RoundStart(task.round, weights))
        assert answer.update.loss == update.loss


def test_a_script_without_a_main_guard_may_use_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import unseen\n"
        "print('once')\n"
        "result = unseen.train('rotated-digits', hold_out='0', rounds=1, workers=2, out='run')\n"
        "print(result.metrics['target']['accuracy'] >= 0)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["once", "True"], done.stderr


def test_a_method_written_in_a_script_may_use_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import unseen\n"
        "from unseen.methods import METHODS, register\n"
        "@register\n"
        "class Mine(METHODS['fedavg']):\n"
        "    name = 'mine'\n"
        "if __name__ == '__main__':\n"
        "    unseen.train('rotated-digits', hold_out='0', method='mine', rounds=1, workers=2, out='run')\n"
        "    print('done')\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["done"], done.stderr
