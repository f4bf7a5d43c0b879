"""`unseen bench` as users type it: results, stopping, going on, and one line for every mistake."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest

from unseen.errors import UnseenError
from unseen.runs.folder import RunFolder

GRID = """
hold_out = ["west"]
[common]
data = "table.csv"
rounds = {rounds}
batches_per_epoch = 1
batch_size = 8
[methods]
fedavg = {{}}
ppdg = {{}}
"""


def write_grid(folder, rounds=1):
    """A grid of two jobs, and the small table that it is on."""
    generator = np.random.default_rng(0)
    rows = [
        (domain, label, generator.normal(label))
        for domain in ("north", "south", "west")
        for label in [0, 1] * 20
    ]
    lines = [f"{domain},{'yes' if label else 'no'},{value:.3f}" for domain, label, value in rows]
    (folder / "table.csv").write_text("\n".join(["domain,target,x", *lines]))
    (folder / "grid.toml").write_text(GRID.format(rounds=rounds))


def test_a_bench_and_the_same_again(unseen, tmp_path):
    write_grid(tmp_path)
    first = unseen("bench", "grid.toml", "--workers", "2", "--out", "b", "--json")
    assert first.code == 0, first.err
    found = json.loads(first.out)
    assert [result["label"] for result in found["results"]] == ["fedavg", "ppdg"]
    assert not found["failed"] and not found["missing"]
    lines = first.err.splitlines()
    assert lines[0] == "2 jobs to run, 0 done already; 2 at a time"
    assert lines[2].startswith("done 2/2") and "validation 0." in lines[2]

    again = unseen("bench", "grid.toml", "--out", "b", "--json")
    assert again.code == 0 and again.err == "" and json.loads(again.out) == found
    stored = [json.loads(line) for line in (tmp_path / "b/results.jsonl").read_text().splitlines()]
    assert stored == found["results"]


def test_results_kept_without_jobs_and_data_give_the_tables_again_and_are_never_lost(unseen, tmp_path):
    write_grid(tmp_path)
    assert unseen("bench", "grid.toml", "--workers", "1", "--out", "b").code == 0
    kept, tables = tmp_path / "kept", ("table.md", "table.tex", "table.csv")
    kept.mkdir()
    (tmp_path / "b/results.jsonl").rename(kept / "results.jsonl")
    (tmp_path / "table.csv").unlink()
    shown = unseen("bench", "grid.toml", "--out", "kept", "--collect")
    assert shown.code == 0, shown.err
    before = (kept / "results.jsonl").read_bytes()
    assert before.count(b"\n") == 2 and (kept / "report.html").exists()
    assert all((kept / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in tables)
    less = unseen("bench", "grid.toml", "--methods", "ppdg", "--out", "kept", "--collect")
    assert less.code == 2 and "contains 1 results of jobs that this grid does not have" in less.err
    assert "Traceback" not in less.err and (kept / "results.jsonl").read_bytes() == before


def test_a_bench_of_options_goes_on_from_its_folder(unseen, tmp_path):
    given = (
        "rotated-digits",
        "--methods",
        "fedprox",
        "--set",
        "fedprox.mu=0.5",
        "--seeds",
        "1",
        "--out",
        "b",
    )
    quick = ("--rounds", "1", "--batch-size", "128", "--workers", "1", "--json")
    planned = unseen("bench", *given, *quick, "--hold-out", "all", "--collect")
    assert planned.code == 0, planned.err
    assert len(json.loads(planned.out)["missing"]) == 6, "one for every angle"
    assert not (tmp_path / "b/jobs").exists()
    one = unseen("bench", *given, *quick, "--hold-out", "75")
    ((result,), err) = json.loads(one.out)["results"], one.err
    assert one.code == 0 and result["held_out"] == "75" and "1 jobs to run" in err
    assert 'settings = { mu = "0.5" }' in (tmp_path / "b/bench.toml").read_text()
    on = unseen("bench", "--out", "b", "--json")
    assert on.code == 0 and json.loads(on.out)["results"] == [result]


def test_a_failed_job_gives_exit_code_1_and_the_way_out(unseen, tmp_path):
    write_grid(tmp_path)
    (tmp_path / "grid.toml").write_text(
        GRID.format(rounds=1) + "big = { method = 'fedavg', batch_size = 99999 }\n"
    )
    answer = unseen("bench", "grid.toml", "--out", "a b", "--workers", "1", "--json")
    assert answer.code == 1 and "Traceback" not in answer.err
    assert len(json.loads(answer.out)["results"]) == 2 and len(json.loads(answer.out)["failed"]) == 1
    assert "failed      big west seed 0: batch size 99999" in answer.err
    assert "1 of 3 jobs failed" in answer.err and "unseen bench --out 'a b' --retry-failed" in answer.err


def test_stopped_killed_and_continued(unseen, start_unseen, tmp_path):
    """Ctrl-C, then SIGKILL, then left alone: rounds are run once, and no worker is left behind."""
    write_grid(tmp_path, rounds=60)
    for stop, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        before = _rounds(tmp_path)
        process = start_unseen("bench", "grid.toml", "--workers", "2", "--out", "b")
        _wait(lambda before=before: _rounds(tmp_path) > before + 1, process)
        process.send_signal(stop)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code
        if code == 130:
            assert "resume with:\n  unseen bench --out b" in err and "Traceback" not in err
    assert not list(tmp_path.glob("b/jobs/*/result.json")), "stopped too late to mean anything"
    done = unseen("bench", "--out", "b", "--workers", "1", "--json")
    assert done.code == 0, done.err
    for records in tmp_path.glob("b/jobs/*/records.jsonl"):
        events = [json.loads(line) for line in records.read_text().splitlines()]
        assert [event["round"] for event in events if event["event"] == "round"] == list(range(1, 61))
    assert any('"resume"' in path.read_text() for path in tmp_path.glob("b/jobs/*/records.jsonl"))


def test_workers_leave_with_a_killed_bench_in_the_middle_of_a_round(start_unseen, tmp_path):
    """A round of hours: its worker must not go on unseen, nor keep the folder from those who go on."""
    write_grid(tmp_path)
    text = (tmp_path / "grid.toml").read_text()
    (tmp_path / "grid.toml").write_text(text.replace("batches_per_epoch = 1", "local_epochs = 10_000_000"))
    process = start_unseen("bench", "grid.toml", "--workers", "1", "--out", "b")
    _wait(lambda: list(tmp_path.glob("b/jobs/*/records.jsonl")), process)
    (records,) = tmp_path.glob("b/jobs/*/records.jsonl")
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while _is_locked(records.parent):
        assert time.monotonic() < end, "the worker is still there"
        time.sleep(0.05)


def _is_locked(folder):
    try:
        with RunFolder(folder).locked():
            return False
    except UnseenError:
        return True


def _rounds(folder):
    """Finished rounds of all jobs."""
    texts = [path.read_text() for path in folder.glob("b/jobs/*/records.jsonl")]
    return sum(text.count('"event": "evaluation"') for text in texts)


def _wait(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end, "the bench did not get that far"
        time.sleep(0.05)


DIGITS = ("bench", "rotated-digits", "--out", "new")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("bench",), 2, ("GRID.toml",)),
        (("bench", "no.toml"), 1, ("no.toml",)),
        (("bench", "--out", "nowhere"), 2, ("nowhere", "no bench")),
        (DIGITS, 2, ("--methods",)),
        ((*DIGITS, "--methods", "fedag"), 2, ("'fedavg'",)),
        ((*DIGITS, "--methods", "fedavg", "--hold-out", "77"), 2, ("'75'",)),
        ((*DIGITS, "--methods", "fedavg", "--seeds", "x"), 2, ("--seeds",)),
        ((*DIGITS, "--methods", "fedavg", "--seeds", "0"), 2, ("seeds",)),
        ((*DIGITS, "--methods", "fedavg", "--set", "mu=1"), 2, ("METHOD.KEY=VALUE",)),
        ((*DIGITS, "--methods", "fedavg", "--set", "fedprox.mu=1"), 2, ("fedprox",)),
        ((*DIGITS, "--methods", "fedavg", "--set", "fedavg.mu=1"), 2, ("'mu'",)),
        ((*DIGITS, "--methods", "fedavg", "--models", "mnist-cn"), 2, ("'mnist-cnn'",)),
        ((*DIGITS, "--methods", "fedavg", "--baseline", "csac"), 2, ("baseline",)),
        ((*DIGITS, "--methods", "fedavg", "--selection", "last"), 2, ("lodo",)),
        ((*DIGITS, "--methods", "fedavg", "--workers", "0"), 2, ("--workers",)),
        ((*DIGITS, "--methods", "fedavg", "--rounds", "0"), 2, ("--rounds",)),
        ((*DIGITS, "--methods", "fedavg", "--lr", "-1"), 2, ("above 0",)),
        (("bench", "rotated-digit", "--methods", "fedavg"), 2, ("'rotated-digits'",)),
    ],
)
def test_wrong_use(unseen, tmp_path, arguments, code, words):
    answer = unseen(*arguments)
    assert answer.code == code, (answer.code, answer.err)
    assert answer.out == "" and answer.err.startswith("error: ") and answer.err.count("\n") == 1, answer.err
    for word in words:
        assert word in answer.err, answer.err
    assert not (tmp_path / "new").exists()
