"""A sample of the sweeps in benchmarks/crash_points.py and benchmarks/flipped_bytes.py."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(("scenario", "every"), [("train", 19), ("resume", 17), ("image cache", 4)])
def test_a_write_that_goes_wrong_costs_no_round_and_changes_no_result(scenario: str, every: int) -> None:
    """R4, section 3a: killed, failed once, or on a disk that stays full; then the command is given again."""
    from crash_points import sweep

    points = sweep([scenario], every=every, one_kind_each=True)[scenario]
    assert [point for point in points if point["verdict"] != "as undisturbed"] == []
    assert {point["kind"] for point in points} == {"kill", "fail", "full"}


def test_flipped_bytes_are_noticed_in_every_kind_of_file() -> None:
    """R3: in checkpoint, client state, model, caches, records, results and configuration."""
    from flipped_bytes import KINDS, sweep

    found = sweep(4 * len(KINDS), seed=1)
    assert set(found) == set(KINDS)
    assert [name for name, each in found.items() if "unnoticed" in each or "traceback" in each] == []
    assert sum(each.get("noticed", 0) for each in found.values()) > 2 * len(KINDS)


def test_the_harness_finds_a_writer_that_is_not_atomic(tmp_path: Path) -> None:
    """The sweep can fail: a file that is written in place is torn by a kill."""
    from fault_injection import KILLED, Faults, run_child

    target = tmp_path / "plain.txt"
    target.write_text("old and complete")
    code, _ = run_child(
        lambda: target.write_text("new and complete") and None, Faults(tmp_path, at=2, kind="kill")
    )
    assert code == KILLED and target.read_text() == "new and "
