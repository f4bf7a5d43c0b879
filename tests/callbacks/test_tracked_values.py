"""Names and values that trackers show: numbers only, and nothing about this machine."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from unseen.callbacks.tracked_values import describe_run, evaluation_values, result_values, round_values
from unseen.runs.reader import Run

START = {
    "event": "start",
    "time": "2026-01-02T03:04:05+00:00",
    "run_id": "abc",
    "version": "1.2",
    "held_out": ["north", "south"],
    "data": {"name": "scans"},
}


def run_of(config: dict[str, object]) -> Run:
    return Run(Path("somewhere"), config, [START], None)


def test_parameters_have_no_folders_and_say_nothing_about_where_a_run_executes() -> None:
    config = {
        **{"data": "/home/me/scans", "data_root": "/home/me", "workers": 3, "device": "cuda", "seed": 7},
        **{
            "weights": "/home/me/start.pt",
            "method": "fedprox",
            "settings": {"mu": 0.1},
            "hold_out": ["x", "y"],
        },
    }
    described = describe_run(run_of(config))
    assert described.parameters == {
        **{"data": "scans", "weights": "start.pt", "seed": "7", "method": "fedprox", "settings.mu": "0.1"},
        "hold_out": '["x", "y"]',
    }
    assert described.name == "fedprox/north+south/7"
    assert described.tags == {
        **{"unseen.version": "1.2", "unseen.run_id": "abc", "method": "fedprox"},
        **{"held_out": "north+south", "data": "scans"},
    }
    assert described.started == 1767323045
    named = describe_run(run_of(config), name="mine", group="bench")
    assert (named.name, named.tags["group"]) == ("mine", "bench")


@given(
    st.dictionaries(
        st.text(), st.one_of(st.none(), st.text(), st.booleans(), st.integers(), st.floats()), max_size=5
    )
)
def test_only_finite_numbers_are_tracked(diagnostics: dict[str, object]) -> None:
    record = {"event": "round", "round": 1, "loss": None, "seconds": 2, "diagnostics": diagnostics}
    found = dict(round_values(record))
    assert found.pop("time/round_seconds") == 2.0
    expected = {
        f"diagnostics/{key}": float(value)
        for key, value in diagnostics.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) != float("inf")
        and not math.isnan(value)
    }
    assert found == expected


def test_evaluations_and_results_are_named_by_metric_split_and_domain() -> None:
    scores = [{"split": "target", "domain": "c/d", "metrics": {"accuracy": 0.5, "loss": None}}]
    assert dict(evaluation_values({"scores": scores})) == {"accuracy/target/c/d": 0.5}
    result = {"metrics": {"target": {"accuracy": 0.5}, "worst_domain": {"domain": "c", "accuracy": 0.1}}}
    assert dict(result_values({**result, "seconds": 3, "seed": 1})) == {
        **{"result/target/accuracy": 0.5, "result/worst_domain/accuracy": 0.1, "result/seconds": 3.0}
    }
