"""`unseen train` as users meet it: results, repeatability, interruptions."""

from __future__ import annotations

import json
import signal
import time
import tomllib

import pytest
from safetensors.torch import load_file

RUN = ("train", "rotated-digits", "--hold-out", "75", "--method", "fedavg", "--rounds", "3", "--seed", "0")


def _weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_json_and_run_folder(unseen, tmp_path):
    answer = unseen(*RUN, "--out", "r1", "--json", "--figures")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    expected = {
        *("run_id", "method", "model", "data", "held_out", "seed", "rounds", "selected_round", "selection"),
        *("metrics", "seconds", "bytes_up", "bytes_down", "privacy"),
    }
    assert expected <= set(result)
    assert {"target", "target_oracle", "source_validation", "in_domain"} <= set(result["metrics"])
    folder = tmp_path / "r1"
    for name in (
        "config.toml",
        "records.jsonl",
        "result.json",
        "model.safetensors",
        "report.html",
        "checkpoints",
    ):
        assert (folder / name).exists(), name
    assert list((folder / "figures").glob("*.png"))
    assert {**json.loads((folder / "result.json").read_text()), "folder": "r1"} == result


def test_only_the_sources_asked_for_are_trained_on_and_evaluated(unseen, tmp_path):
    answer = unseen(*RUN, "--source", "15", "--source", "60", "--out", tmp_path / "run")
    assert answer.code == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [client["name"] for client in records[0]["clients"]] == ["15", "60"]
    scored = {score["domain"] for record in records for score in record.get("scores", [])}
    assert scored == {"15", "60", records[0]["held_out"][0]}
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["sources"] == ["15", "60"]


def test_same_seed_same_bits_other_seed_other_weights(unseen, tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        assert unseen(*RUN[:-1], seed, "--out", name, "--json").code == 0
    assert _weights(tmp_path / "one") == _weights(tmp_path / "two")
    one, three = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "three"))
    assert any(not one[key].equal(three[key]) for key in one)


def test_table_for_people_and_quiet_when_piped(unseen):
    answer = unseen(*RUN[:-2], "--out", "r")
    assert answer.code == 0
    assert "FedAvg" in answer.out and "report.html" in answer.out
    assert answer.err == ""


def test_workers_give_the_same_bits(unseen, tmp_path):
    for workers in (1, 2):
        assert unseen(*RUN, "--workers", workers, "--out", f"w{workers}", "--json").code == 0
    assert _weights(tmp_path / "w1") == _weights(tmp_path / "w2")


@pytest.mark.parametrize(("moment", "workers"), [(0, 1), (1, 1), (2, 2)])
def test_killed_at_any_moment_and_resumed(unseen, start_unseen, tmp_path, moment, workers):
    """SIGKILL after `moment` finished rounds; the resumed run ends with the weights of one left alone."""
    run = (*RUN[:4], "--rounds", "8", "--local-epochs", "3", "--workers", workers)
    assert unseen(*run, "--out", "whole", "--json").code == 0
    process = start_unseen(*run, "--out", "killed")
    records = tmp_path / "killed/records.jsonl"
    _wait(lambda: records.exists() and records.read_text().count('"event": "round"') >= moment, process)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed/result.json").exists(), "killed too late to mean anything"
    resumed = unseen("train", "--resume", "--out", "killed", "--json")
    assert resumed.code == 0, resumed.err
    assert _weights(tmp_path / "killed") == _weights(tmp_path / "whole")
    rounds = [json.loads(line) for line in records.read_text().splitlines()]
    assert [record["round"] for record in rounds if record["event"] == "round"] == list(range(1, 9))


def test_ctrl_c_says_how_to_go_on(unseen, start_unseen, tmp_path):
    process = start_unseen(*RUN[:4], "--rounds", "200", "--out", "stopped run")
    records = tmp_path / "stopped run/records.jsonl"
    _wait(lambda: records.exists() and '"event": "round"' in records.read_text(), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "unseen train --resume --out 'stopped run'" in err and "Traceback" not in err


def test_resuming_a_finished_run_shows_its_result(unseen, tmp_path):
    first = unseen(*RUN, "--out", "r", "--json")
    again = unseen(*RUN, "--out", "r", "--resume", "--json")
    assert again.code == 0
    assert json.loads(first.out)["metrics"] == json.loads(again.out)["metrics"]


def _wait(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end, "the run did not get that far"
        time.sleep(0.01)
