"""`unseen.bench(...)`: keywords, grid files, data in memory, callbacks, resuming, and methods of a cell."""

from __future__ import annotations

import numpy as np
import pytest

import unseen
from unseen.bench.bench_call import bench
from unseen.bench.code_changes import fingerprint_code
from unseen.bench.workers import BenchCallback
from unseen.errors import UnseenError, UsageError
from unseen.registry import SESSION

SHORT = {"rounds": 1, "batches_per_epoch": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(90, 4)), generator.integers(0, 2, 90)
    return unseen.from_arrays(x, y, np.repeat(["a", "b", "c"], 30), name="my rows")


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    out, events = tmp_path_factory.mktemp("bench"), []
    methods = {"fedavg": {}, "strong": {"method": "fedprox", "settings": {"mu": 0.5}}}
    result = unseen.bench(
        data, methods=methods, seeds=1, out=out, workers=1, callbacks=events.append, **SHORT
    )
    return result, events, out


def test_data_in_memory_is_benched_on_every_domain(finished):
    result, events, _ = finished
    frame = result.frame()
    assert set(frame["held_out"]) == {"a", "b", "c"} and set(frame["label"]) == {"fedavg", "strong"}
    assert result.grid.methods["strong"]["settings"] == {"mu": 0.5}
    assert [event["event"] for event in events] == ["start", "end"] * 6
    assert "<table>" in result._repr_html_()


def test_a_default_batch_size_that_small_clients_lowered_is_read_again(data, tmp_path):
    options = {"methods": ["fedavg"], "hold_out": "c", "seeds": 1, "workers": 1, "out": tmp_path}
    first = bench(data, **options, rounds=1, batches_per_epoch=1)
    assert "batch_size = 24" in next(tmp_path.glob("jobs/*/config.toml")).read_text()
    assert bench(out=tmp_path).results == first.results and len(first.results) == 1


def test_a_finished_bench_is_not_repeated_and_can_grow(finished, data):
    _, _, out = finished
    events = []
    again = bench(out=out, callbacks=events.append)
    assert events == [] and len(again.results) == 6

    class Count(BenchCallback):
        planned = ended = 0

        def on_plan(self, waiting, finished, failed, seconds):
            self.planned = max(self.planned, len(waiting))

        def on_job_end(self, job):
            self.ended += 1

    count = Count()
    more = bench(out / "bench.toml", out=out, seeds=[0, 1], methods=["fedavg"], workers=1, callbacks=[count])
    assert (count.planned, count.ended, len(more.results)) == (3, 3, 6)


def test_saved_data_that_was_changed_is_refused(finished, tmp_path, data):
    from unseen.data.saved_arrays import load_arrays, save_arrays

    place = save_arrays(data, tmp_path)
    assert load_arrays(place).fingerprint == data.fingerprint
    assert unseen.data.load_data(unseen.data.DataRequest(str(place))).domains == data.domains
    targets = 1 - data.targets
    np.save(place / "targets.npy", targets)
    with pytest.raises(UnseenError, match=r"was changed since it was written"):
        load_arrays(place)
    (place / "targets.npy").write_bytes(b"none")
    with pytest.raises(UnseenError, match=r"is damaged \(.*\): delete it"):
        load_arrays(place)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name data or a grid file, or with out=... the bench to resume"),
        ({"data": "rotated-digits"}, r"name the methods: methods=\['fedavg', 'csac'\]"),
        ({"data": "nowhere.toml"}, "no such grid file: nowhere.toml"),
        (
            {"data": "rotated-digits", "methods": ["fedavgg"]},
            "unknown method 'fedavgg'",
        ),
        ({"data": "rotated-digits", "methods": "fedavg", "roundz": 1}, "unknown option"),
        ({"data": "rotated-digits", "methods": "fedavg", "callbacks": ["tensorboard"]}, "callbacks takes"),
    ],
)
def test_wrong_use_is_one_line(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        bench(**options)


def test_failed_jobs_are_reported(tmp_path, data):
    methods = {"fedavg": {}, "irm": {}}
    with pytest.raises(UnseenError, match=r"1 of 1 jobs failed, .*retry_failed=True"):
        bench(data, methods=["irm"], hold_out=["a"], out=tmp_path / "one", workers=1, **SHORT)
    with pytest.warns(UserWarning, match="1 of 2 jobs failed"):
        found = bench(data, methods=methods, hold_out=["a"], out=tmp_path / "two", workers=1, **SHORT)
    assert len(found.results) == 1


def code(text):
    names = {"__name__": SESSION}
    exec(text, names)
    return names["Mine"]


def test_the_code_of_a_cell_is_told_apart_by_what_it_does():
    helper = "def double(x):\n    return 2 * x\n"
    cell = helper + "class Mine:\n    a = 1\n    def f(self):\n        return double(1)\n"
    one = fingerprint_code(code(cell))
    assert one == fingerprint_code(code("# a remark\n\n" + cell))
    assert one != fingerprint_code(code(cell.replace("a = 1", "a = 2")))
    assert one != fingerprint_code(code(cell.replace("return double(1)", "return double(2)")))
    assert one != fingerprint_code(code(cell.replace("2 * x", "3 * x")))
