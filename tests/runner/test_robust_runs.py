"""Runs with `--aggregate`, `--max-weight` and `--clip-update`: what they refuse, change and record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tiny_data import fitting_options, tiny_data
from unseen.aggregation import AGGREGATORS
from unseen.cli.list_command import app
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.runner.merging_checks import explain_no_average
from unseen.runner.prepare import check_names
from unseen.runner.run import run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

DATA = tiny_data(("a", "b", "c", "d", "held"))
AVERAGING = sorted(name for name in METHODS if not explain_no_average(make_method(name)))


def config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        **{"data": "tiny", "hold_out": ("held",), "model": "mnist-cnn", "rounds": 2, "batch_size": 4},
        **{"batches_per_epoch": 1, "workers": 1, "threads": 1, "device": "cpu", "lr": 0.02, "effort": "none"},
        **fitting_options(changes.get("method", "fedavg")),
    }
    return RunConfig.from_mapping({**values, **changes})


def trained(out: Path, **changes: Any) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    run(config(**changes), out=out, data=DATA, report=False)
    folder = RunFolder(out)
    rounds = [each for each in read_records(folder.records) if each["event"] == "round"]
    return Checkpoint.load(folder.checkpoint).weights, rounds


@pytest.mark.parametrize("method", AVERAGING)
def test_every_method_that_averages_trains_with_a_robust_aggregator(method: str, tmp_path: Path) -> None:
    clip = {"model": "clip-tiny", "weights": "random"} if METHODS[method].needs_texts else {}
    weights, _ = trained(tmp_path / "median", method=method, aggregate="median", rounds=1, **clip)
    plain, _ = trained(tmp_path / "mean", method=method, rounds=1, **clip)
    assert torch.isfinite(weights).all()
    assert not torch.equal(weights, plain)


@pytest.mark.parametrize("aggregate", sorted(AGGREGATORS))
def test_every_aggregator_trains_and_resumes_to_the_same_weights(aggregate: str, tmp_path: Path) -> None:
    weights, rounds = trained(tmp_path / "run", aggregate=aggregate)
    if aggregate in ("krum", "multi-krum", "geometric-median"):
        shares = rounds[-1]["diagnostics"]["merged_shares"]
        assert sum(shares.values()) == pytest.approx(1)
        assert set(shares) == {"a", "b", "c", "d"}
    again, _ = trained(tmp_path / "again", aggregate=aggregate)
    assert torch.equal(weights, again)


def test_the_clipping_and_the_bound_on_weights_are_recorded_when_they_act(tmp_path: Path) -> None:
    weights, rounds = trained(tmp_path / "run", clip_update="0.5x", max_weight=0.26)
    clipped = rounds[0]["diagnostics"]["clipped_steps"]
    assert clipped
    assert all(norm > rounds[0]["diagnostics"]["largest_step"] for norm in clipped.values())
    idle, rounds = trained(tmp_path / "idle", clip_update="1000", max_weight=1.0)
    assert "clipped_steps" not in rounds[0]["diagnostics"]
    plain, _ = trained(tmp_path / "plain")
    assert torch.allclose(idle, plain, atol=1e-6)
    assert not torch.allclose(weights, plain, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"aggregate": "median", "protect": "secure-sum"}, "learns their sum only"),
        ({"clip_update": "3", "protect": "secure-sum"}, "learns their sum only"),
        ({"max_weight": 0.5, "protect": "dp-clients"}, "learns their sum only"),
        ({"aggregate": "median", "method": "deepall"}, "pools all data"),
        ({"aggregate": "median", "method": "cwt"}, "passes from one client to the next"),
        ({"aggregate": "median", "method": "ppdg"}, "inner products"),
        ({"aggregate": "krum", "method": "csac"}, "distances of its own.*It supports .*fedavg"),
        ({"aggregate": "krum", "method": "ridge"}, "sums over samples"),
        ({"max_weight": 0.5, "method": "fednova"}, "their own numbers of steps"),
        ({"max_weight": 0.5, "aggregate": "median"}, "counts every client once"),
        ({"aggregate": "median", "head": "ridge"}, "sums over all clients"),
        ({"aggregate": "median", "batch_norm": "pooled"}, "negative variance"),
        ({"max_weight": 1.5}, "--max-weight must be"),
        ({"clip_update": "much"}, "--clip-update must be"),
        ({"aggregate": "medain"}, "Did you mean 'median'"),
        ({"aggregate": "trimmed-mean", "aggregate_settings": {"trim": 0.7}}, "between 0 and 0.5"),
    ],
    ids=str,
)
def test_what_cannot_act_is_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_names(config(**changes))


def test_the_defaults_keep_the_identity_of_runs_from_before() -> None:
    plain = config()
    same = config(aggregate="mean", aggregate_settings={}, max_weight=None, clip_update=None)
    assert plain.identity() == same.identity()
    others = [config(aggregate="krum"), config(max_weight=0.5), config(clip_update="3x")]
    assert len({plain.identity(), *(other.identity() for other in others)}) == 4


def test_the_aggregators_are_listed_with_their_settings() -> None:
    listed = {
        row["aggregator"] for row in json.loads(CliRunner().invoke(app, ["aggregators", "--json"]).stdout)
    }
    assert listed == {"mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median"}
    settings = json.loads(CliRunner().invoke(app, ["aggregators", "krum", "--json"]).stdout)
    assert [row["setting"] for row in settings] == ["liars"]
