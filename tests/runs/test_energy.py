"""Energy: counters that start over, estimates where there are none, sums over the starts of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_data import tiny_data
from unseen.callbacks.base import Callback, StopTrainingError
from unseen.runner.run import train
from unseen.runs import energy
from unseen.runs.energy import WATTS, Counters, EnergyMeter, read_sessions, sum_energy


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages, and a core zone inside the first that must not be counted twice."""
    for name in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1"):
        zone = tmp_path / "powercap" / name
        zone.mkdir(parents=True)
        (zone / "energy_uj").write_text("900000\n")
        (zone / "max_energy_range_uj").write_text("1000000\n")
    return tmp_path / "powercap"


def test_counters_add_packages_and_survive_starting_over(powercap):
    counters = Counters(powercap)
    assert counters.joules() == 0
    (powercap / "intel-rapl:0" / "energy_uj").write_text("950000")
    (powercap / "intel-rapl:0:0" / "energy_uj").write_text("999999")
    assert counters.joules() == pytest.approx(0.05)
    (powercap / "intel-rapl:0" / "energy_uj").write_text("150000")
    assert counters.joules() == pytest.approx(0.25)
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert counters.joules() is None


def test_a_machine_without_counters_measures_nothing(tmp_path):
    assert Counters(tmp_path / "none").joules() is None


def test_starts_add_up_and_say_how(powercap, tmp_path):
    file = tmp_path / "energy.json"
    first = EnergyMeter(file, powercap=powercap)
    (powercap / "intel-rapl:1" / "energy_uj").write_text("960000")
    first.save()
    assert not file.exists(), "written every few seconds only"
    first.save(now=True)
    assert sum_energy(read_sessions(file)).how == "measured"
    second = EnergyMeter(file, powercap=tmp_path / "none")
    sum(number * number for number in range(400_000))
    second.save(now=True)
    second.save(now=True)
    found = sum_energy(read_sessions(file))
    spent = read_sessions(file)[1]["cpu_seconds"]
    assert (found.how, found.starts, found.known) == ("partly measured", 2, True)
    assert found.joules == pytest.approx(0.06 + WATTS * spent) and spent > 0


def test_a_damaged_file_is_a_start_of_unknown_use(tmp_path):
    file = tmp_path / "energy.json"
    assert read_sessions(file) == [] and sum_energy([]) is None
    EnergyMeter(file, powercap=tmp_path).save(now=True)
    file.write_text(file.read_text().replace('"joules": null', '"joules": 1e9'))
    EnergyMeter(file, powercap=tmp_path).save(now=True)
    found = sum_energy(read_sessions(file))
    assert (found.starts, found.known, found.how) == (2, False, "estimated")


class _Stop(Callback):
    def on_record(self, record) -> None:
        if record["event"] == "evaluation":
            raise StopTrainingError("enough")


def test_a_resumed_run_sums_over_its_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "SECONDS_BETWEEN_WRITES", 0.0)
    options = {"hold_out": "held", "out": tmp_path / "run", "workers": 1, "rounds": 2, "batch_size": 8}
    with pytest.raises(StopTrainingError):
        train(tiny_data(), model="mnist-cnn", callbacks=_Stop(), **options)
    assert len(read_sessions(tmp_path / "run" / "energy.json")) == 1
    train(tiny_data(), model="mnist-cnn", resume=True, **options)
    sessions = read_sessions(tmp_path / "run" / "energy.json")
    assert len(sessions) == 2 and all(each["cpu_seconds"] > 0 for each in sessions)
