"""Reading run folders: whole, unfinished, torn, broken, and folders that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unseen.errors import UnseenError, UsageError
from unseen.runs.reader import read_run
from unseen.tasks import TASKS

MakeRun = Callable[..., Path]


def test_a_finished_run_is_read_whole(make_run: MakeRun) -> None:
    run = read_run(make_run(rounds=4))
    assert run.finished
    assert [record["round"] for record in run.rounds] == [1, 2, 3, 4]
    assert len(run.evaluations) == 4
    assert run.held_out == ["75"]
    assert (run.task, run.metric, run.selected_round) == ("classification", "accuracy", 2)
    assert run.config["settings"] == {"weighting": "samples"}


def test_an_unfinished_run_tells_what_it_knows(make_run: MakeRun) -> None:
    run = read_run(make_run(finished=False, rounds=3))
    assert not run.finished
    assert run.selected_round is None
    assert run.facts["method"] == "fedavg"
    assert run.facts["held_out"] == ["75"]
    assert run.facts["run_id"] == "4f1c9a77d2e0"


@pytest.mark.parametrize("lost", [1, 20, 200])
def test_a_torn_last_line_is_left_out(make_run: MakeRun, lost: int) -> None:
    folder = make_run(finished=False, rounds=3)
    path = folder / "records.jsonl"
    whole = len(read_run(folder).records)
    path.write_bytes(path.read_bytes()[: -lost - 1])
    assert len(read_run(folder).records) == whole - 1


def test_a_line_torn_inside_a_character_is_left_out(make_run: MakeRun) -> None:
    folder = make_run(finished=False, rounds=2)
    path = folder / "records.jsonl"
    whole = len(read_run(folder).records)
    path.write_bytes(path.read_bytes() + '{"event": "fault", "client": "Zü'.encode()[:-1])
    assert len(read_run(folder).records) == whole


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(make_run: MakeRun) -> None:
    folder = make_run(rounds=2)
    path = folder / "records.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[2] = lines[2][:10]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(UnseenError, match="line 3 is not a JSON record"):
        read_run(folder)


def test_a_record_that_is_no_object_is_an_error(make_run: MakeRun) -> None:
    folder = make_run(rounds=1)
    with (folder / "records.jsonl").open("a") as records:
        records.write("[1, 2]\n")
    with pytest.raises(UnseenError, match="expected an object"):
        read_run(folder)


def test_of_a_round_repeated_after_a_crash_the_last_counts(make_run: MakeRun) -> None:
    folder = make_run(finished=False, rounds=3)
    again = {"event": "round", "round": 2, "clients": [], "loss": 77.0, "seconds": 1.0, "diagnostics": {}}
    with (folder / "records.jsonl").open("a") as records:
        records.write(json.dumps(again) + "\n")
    rounds = read_run(folder).rounds
    assert [record["round"] for record in rounds] == [1, 2, 3]
    assert rounds[1]["loss"] == 77.0


def test_a_run_with_only_a_configuration_knows_its_held_out_domain(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('data = "x"\nhold_out = ["a", "b"]\n')
    assert read_run(tmp_path).held_out == ["a", "b"]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_headlines_use_the_metric_that_selects_rounds(make_run: MakeRun, task: str) -> None:
    assert read_run(make_run(task=task)).metric == TASKS[task].primary_metric


def test_nan_is_read_as_missing(make_run: MakeRun) -> None:
    folder = make_run(finished=False, rounds=1)
    with (folder / "records.jsonl").open("a") as records:
        records.write('{"event": "round", "round": 2, "loss": NaN}\n')
    assert read_run(folder).rounds[1]["loss"] is None


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        read_run(tmp_path / "absent")
    with pytest.raises(UsageError, match="is not a run folder"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"), [("config.toml", "not a TOML file"), ("result.json", "not valid JSON")]
)
def test_broken_files_are_named(make_run: MakeRun, name: str, words: str) -> None:
    folder = make_run(rounds=1)
    (folder / name).write_text("{ = ", encoding="utf-8")
    with pytest.raises(UnseenError, match=words) as caught:
        read_run(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
