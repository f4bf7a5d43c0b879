"""`unseen advise` as users type it: a race on a small table, stopped and resumed, with a hidden domain."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest

ARGUMENTS = (
    "advise",
    "t.csv",
    "--hide",
    "far",
    "--batches-per-epoch",
    "2",
    "--rounds",
    "4",
    "--workers",
    "2",
)
DOMAINS = ("east", "north", "south", "far")


@pytest.fixture
def table(tmp_path):
    generator = np.random.default_rng(0)
    lines = ["domain,target,x,y"]
    for domain in DOMAINS:
        for label in [0, 1] * 20:
            x, y = generator.normal(2 * label), generator.normal()
            lines.append(f"{domain},{'yes' if label else 'no'},{x:.3f},{y:.3f}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return tmp_path


def test_a_race_names_a_choice_never_sees_the_hidden_domain_and_is_not_run_twice(unseen, table):
    first = unseen(*ARGUMENTS, "--out", "r", "--json", "--minutes", "10")
    assert first.code == 0, first.err
    found = json.loads(first.out)
    assert found["choice"] in {"ridge", "FedAvg", "FedProx", "SCAFFOLD"}
    assert {one["candidate"] for one in found["candidates"]} == {"ridge", "FedAvg", "FedProx", "SCAFFOLD"}
    assert {len(one["left_out"]) for one in found["candidates"]} == {3}
    lengths = sorted(one["length"] for one in found["candidates"])
    assert lengths == [0.25, 0.5, 1.0, 1.0], "ridge is finished, one of three trained ones reaches the end"
    for records in table.glob("r/jobs/*/records.jsonl"):
        scored = {score["domain"] for line in records.read_text().splitlines() for score in _scores(line)}
        assert scored and "far" not in scored

    again = unseen(*ARGUMENTS, "--out", "r", "--json", "--minutes", "10")
    assert json.loads(again.out) == found and "done" not in again.err
    assert json.loads((table / "r" / "advice.json").read_text()) == found


def test_a_race_that_ran_out_of_time_goes_on_where_it_stopped(unseen, table):
    short = unseen(*ARGUMENTS, "--out", "r", "--minutes", "0.001")
    assert short.code == 1 and "more --minutes" in short.err
    assert unseen(*ARGUMENTS, "--out", "r", "--json", "--minutes", "10").code == 0


def test_killed_and_resumed_it_gives_the_same_advice_as_one_left_alone(unseen, start_unseen, table):
    given = (*ARGUMENTS, "--json", "--minutes", "10", "--candidates", "ridge;FedAvg;FedProx")
    process = start_unseen(*given, "--out", "killed")
    end = time.monotonic() + 300
    while _finished(table / "killed") < 4:
        assert process.poll() is None and time.monotonic() < end, "ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (table / "killed" / "advice.json").exists()
    before = {path: path.read_bytes() for path in table.glob("killed/jobs/*/result.json")}
    resumed, alone = unseen(*given, "--out", "killed"), unseen(*given, "--out", "alone")
    assert resumed.code == alone.code == 0, resumed.err + alone.err
    assert all(path.read_bytes() == content for path, content in before.items()) and len(before) >= 4
    assert _without_times(json.loads(resumed.out)) == _without_times(json.loads(alone.out))


def test_one_line_for_every_mistake(unseen, table):
    few = unseen("advise", "t.csv", "--hide", "far,east")
    assert few.code == 2 and "at least two" in few.err
    unknown = unseen("advise", "t.csv", "--hide", "fra")
    assert unknown.code == 2 and "'far'" in unknown.err


def _finished(race):
    return len(list(race.glob("jobs/*/result.json")))


def _without_times(advice):
    candidates = [{k: v for k, v in one.items() if k != "seconds_per_run"} for one in advice["candidates"]]
    return {**{k: v for k, v in advice.items() if k not in ("minutes", "folder")}, "candidates": candidates}


def _scores(line):
    return json.loads(line).get("scores", [])
