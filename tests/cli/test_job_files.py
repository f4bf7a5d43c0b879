"""A job file is a run like any other, and names of places are checked before anything is sent there."""

from __future__ import annotations

import json

import pytest

JOB = """
data = "rotated-digits"
hold_out = ["75"]
rounds = 1
batches_per_epoch = 2
workers = 1

[settings]
weighting = "uniform"
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def test_a_job_file_runs_here_and_options_count_more(unseen, job):
    answer = unseen("train", job, "--seed", "5", "--out", "run", "--json")
    assert answer.code == 0, answer.err
    values = json.loads(answer.out)
    assert (values["data"], values["seed"], values["held_out"]) == ("rotated-digits", 5, ["75"])
    assert 'weighting = "uniform"' in (job.parent / "run" / "config.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--engine", "flower"), 2, ("--coordinator",)),
        (("--engine", "flowers"), 2, ("'flower'",)),
        (("--coordinator", "127.0.0.1:1"), 2, ("--engine flower",)),
        (("--engine", "flower", "--coordinator", "127.0.0.1:1", "--ca", "no.crt"), 2, ("no.crt",)),
        (("--engine", "flower", "--coordinator", "127.0.0.1:1", "--min-sites", "0"), 2, ("--min-sites",)),
        (("--engine", "flower", "--coordinator", "127.0.0.1:1"), 1, ("127.0.0.1:1", "cannot be reached")),
        (("--update-dtype", "float8"), 2, ("float16",)),
        (("--update-dtype", "float16", "--protect", "secure-sum"), 2, ("--update-dtype", "--protect")),
    ],
    ids=str,
)
def test_a_wrong_place_is_refused_in_one_line(unseen, job, arguments, code, words):
    answer = unseen("train", job, "--out", "new", *arguments)
    assert answer.code == code, answer.err
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1, answer.err
    assert all(word in answer.err for word in words), answer.err
    assert not (job.parent / "new").exists()


def test_a_missing_job_file_is_named(unseen):
    answer = unseen("train", "nowhere.toml")
    assert (answer.code, answer.err) == (1, "error: cannot read nowhere.toml: No such file or directory\n")
