"""Weights and distances layer by layer, as the engine and CSAC record them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unseen.report import read_run
from unseen.report.layers import layer_weights, model_distances

MakeRun = Callable[..., Path]


def rows_of(chart: Any) -> list[dict[str, Any]]:
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def rewrite(folder: Path, *, layers: int, clients: int, rounds: int = 3) -> Path:
    """Records of rounds with CSAC's layer weights, and distances in the first and the last."""
    names = [f"client {number}" for number in range(clients)]
    lines = []
    for number in range(1, rounds + 1):
        weights = [[(number + layer + k) / 100 for k in range(clients)] for layer in range(layers)]
        found = {"layers": [f"layer {i}" for i in range(layers)], "layer_weights": weights}
        record: dict[str, Any] = {"event": "round", "round": number, "clients": names, "diagnostics": found}
        if number in (1, rounds):
            record["distances"] = {
                "layers": found["layers"],
                "same_domain": [None] * layers,
                "other_domain": [number * (i + 1) for i in range(layers)],
            }
        lines.append(record)
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_weights_of_a_few_layers_over_the_rounds(make_run: MakeRun) -> None:
    panels = layer_weights(read_run(rewrite(make_run(), layers=9, clients=3)))
    assert list(panels) == ["layer 0", "layer 3", "layer 5", "layer 8"]
    rows = rows_of(panels["layer 8"])
    first = [row["value"] for row in rows if row["series"] == "client 0"]
    assert first == pytest.approx([0.09, 0.10, 0.11])
    assert {row["series"] for row in rows} == {"client 0", "client 1", "client 2"}


def test_a_crowd_of_clients_becomes_a_band(make_run: MakeRun) -> None:
    panels = layer_weights(read_run(rewrite(make_run(), layers=1, clients=30)))
    row = rows_of(panels["layer 0"])[0]
    assert row["series"] == "30 clients: mean and range"
    assert (row["low"], row["high"]) == pytest.approx((0.01, 0.30))


def test_distances_of_the_first_and_the_last_round(make_run: MakeRun) -> None:
    panels = model_distances(read_run(rewrite(make_run(), layers=2, clients=3)))
    assert list(panels) == ["round 1", "round 3"]
    rows = rows_of(panels["round 3"])
    assert [(row["name"], row["value"]) for row in rows] == [("layer 0", 3), ("layer 1", 6)]
    assert {row["series"] for row in rows} == {"clients of different domains"}


def test_runs_without_them_have_no_such_figure(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert layer_weights(run) == {}
    assert model_distances(run) == {}
