"""Whole runs with an average and early stopping: the same bits everywhere, resume, result, page, options."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unseen
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.report.run_page import train_command
from unseen.report.tables import to_markdown
from unseen.runner.prepare import prepare_run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.reader import read_run, rounds_trained

OPTIONS = {"hold_out": "held", "batch_size": 4, "lr": 0.2, "momentum": 0.5, "local_epochs": 2}


@pytest.fixture
def noisy(make_tiny_data):
    """Data with labels of which half are random, on which validation scores do not rise for long."""
    data, rng = make_tiny_data(), np.random.default_rng(0)
    random = rng.random(len(data.targets)) < 0.5
    data.targets[random] = rng.integers(0, 3, random.sum())
    return data


def test_averages_have_the_same_bits_on_every_engine_and_are_what_is_saved(noisy, tmp_path):
    options = {"rounds": 4, "server_lr": 0.9, "average": "swad", "average_settings": {"n_converge": 2}}
    one, two = (
        unseen.train(noisy, out=tmp_path / str(workers), workers=workers, **OPTIONS, **options)
        for workers in (1, 2)
    )
    points = [Checkpoint.load(RunFolder(made.folder).checkpoint) for made in (one, two)]
    assert points[0].average.keys() == points[1].average.keys()
    assert all(value.equal(points[1].average[key]) for key, value in points[0].average.items())
    assert points[0].selected.equal(points[1].selected)
    saved, layout = load_file(one.folder / "model.safetensors"), one.model.network.state_dict()
    assert saved.keys() == layout.keys()
    assert sum(value.sum() for value in saved.values()).isclose(points[0].selected.sum(), rtol=1e-3)
    scores = [evaluation["scores"] for evaluation in read_run(one.folder).evaluations]
    assert scores == [evaluation["scores"] for evaluation in read_run(two.folder).evaluations]


def test_an_early_end_is_in_result_table_and_page_and_stays_after_resume(noisy, tmp_path):
    options = {"rounds": 30, "patience": 2, "workers": 1}
    made = unseen.train(noisy, out=tmp_path / "run", **OPTIONS, **options)
    result = json.loads((made.folder / "result.json").read_text())
    stop = read_run(made.folder).stopped
    assert result["stopped"] == {"round": stop["round"], "reason": stop["reason"]}
    assert result["selected_round"] == stop["round"] - 2 and result["rounds"] == 30
    assert rounds_trained(result) == stop["round"]
    assert f"| {stop['round']} |" in to_markdown([result])
    page = (made.folder / "report.html").read_text()
    assert f"Stopped after round {stop['round']} of 30" in page and "stopped early, of 30" in page

    again = unseen.train(noisy, out=tmp_path / "run", resume=True, **OPTIONS, **options)
    assert again.values["metrics"] == made.values["metrics"]
    assert again.values["stopped"] == made.values["stopped"]
    assert len(read_run(made.folder).rounds) == stop["round"]


def test_options_leave_no_trace_where_they_are_not_given(make_tiny_data, tmp_path):
    made = unseen.train(make_tiny_data(), out=tmp_path / "run", rounds=1, workers=1, **OPTIONS)
    assert "stopped" not in made.values
    assert not Checkpoint.load(RunFolder(made.folder).checkpoint).average
    (evaluation,) = read_run(made.folder).evaluations
    assert set(evaluation) == {"event", "round", "scores", "left", "seconds"}


def test_identity_and_command_contain_what_was_chosen(make_tiny_data):
    def config(**options):
        return RunConfig.from_mapping({"data": "tiny", **OPTIONS, **options})

    plain = config()
    chosen = [
        config(server_lr=0.5),
        config(average="ema"),
        config(average="ema", average_settings={"beta": 0.5}),
        config(patience=3),
    ]
    assert len({one.identity() for one in (plain, *chosen)}) == 5
    assert config(server_lr=1.0, average="none", average_settings={}).identity() == plain.identity()
    written = {"data": "tiny", "average": "ema", "average_settings": {"beta": 0.5}, "patience": 3}
    assert train_command(written) == [
        "unseen train tiny",
        "--average ema",
        "--patience 3",
        "--set-average beta=0.5",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"average": "emma"}, "unknown average 'emma'. Did you mean 'ema'"),
        ({"average": "ema", "average_settings": {"bet": 0.5}}, "Did you mean 'beta'"),
        ({"average_settings": {"beta": 0.5}}, "average 'none' has no settings"),
        ({"average": "swad", "validation": 0.0}, "--average swad needs validation samples"),
        ({"server_lr": 0.0}, "--server-lr must be above 0, not 0.0"),
    ],
)
def test_wrong_use_is_refused_before_any_data_is_read(options, said):
    with pytest.raises(UsageError, match=said):
        prepare_run(RunConfig.from_mapping({"data": "no such data", "hold_out": "x", **options}))


def test_averages_are_listed_with_their_settings():
    from typer.testing import CliRunner

    from unseen.cli.list_command import app

    listed = {row["average"] for row in json.loads(CliRunner().invoke(app, ["averages", "--json"]).stdout)}
    assert listed == {"none", "ema", "swa", "window", "swad"}
    settings = json.loads(CliRunner().invoke(app, ["averages", "swad", "--json"]).stdout)
    assert [row["setting"] for row in settings] == ["n_converge", "n_tolerance", "tolerance"]


def test_batch_norm_statistics_of_the_saved_average_are_usable(make_tiny_data, tmp_path):
    made = unseen.train(
        make_tiny_data(),
        model="resnet10t",
        average="ema",
        rounds=2,
        workers=1,
        out=tmp_path / "run",
        **OPTIONS,
    )
    saved = load_file(made.folder / "model.safetensors")
    counters = [value for name, value in saved.items() if name.endswith("num_batches_tracked")]
    variances = [value for name, value in saved.items() if name.endswith("running_var")]
    assert counters and all(not value.is_floating_point() and value > 0 for value in counters)
    assert all(bool((value > 0).all()) and bool(torch.isfinite(value).all()) for value in variances)
