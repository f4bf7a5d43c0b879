"""`unseen list methods`: a line a method that fits, with what was measured and no more."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import get_args

import pytest

from unseen.methods import FAMILIES, METHODS
from unseen.methods import method_costs as costs
from unseen.methods.base import Family

WIDTH = 100
MEASURED = {
    "job": "a small job",
    "methods": {
        "csac": {"seconds": 1.0, "seconds_ratio": 12.345, "bytes": 7, "bytes_ratio": 1.0},
        "deepall": {"seconds": 1.0, "seconds_ratio": 0.5, "bytes": None, "bytes_ratio": None},
    },
}


@pytest.fixture
def measured(tmp_path, monkeypatch) -> Path:
    """Two methods measured, the others not."""
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(MEASURED))
    monkeypatch.setattr(costs, "COSTS", path)
    return path


def cells(out: str, method: str) -> list[str]:
    (line,) = [line for line in out.splitlines() if line.split(" ")[0] == method]
    return [cell for cell in line.split("  ") if cell]


def test_every_method_has_one_line_that_fits(unseen, measured):
    answer = unseen("list", "methods")
    lines = answer.out.splitlines()
    assert answer.code == 0 and answer.err == ""
    assert max(map(len, lines)) <= WIDTH
    shown = [line for line in lines if line.split(" ")[0] in METHODS]
    assert sorted(line.split(" ")[0] for line in shown) == list(METHODS)
    assert all(str(METHODS[line.split(" ")[0]].paper.year) in line for line in shown)
    assert len({line.index("  20") for line in shown}) == 1, "the tables of all families are aligned"


def test_methods_are_grouped_by_family(unseen, measured):
    lines = unseen("list", "methods").out.splitlines()
    found, family = {}, ""
    for line in lines:
        if line.partition(":")[0] in FAMILIES:
            family = line.partition(":")[0]
            assert line == f"{family}: {FAMILIES[family]}"
        elif line.split(" ")[0] in METHODS:
            found[line.split(" ")[0]] = family
    assert found == {name: METHODS[name].find_family() for name in METHODS}
    assert list(dict.fromkeys(found.values())) == [name for name in FAMILIES if name in found.values()]
    assert found["pcgrad"] == "server rule" and found["ridge"] == "closed form"
    assert found["fedprox"] == "client rule" and found["fedavg"] == "reference"


def test_families_have_every_name_that_a_method_can_declare():
    assert tuple(FAMILIES) == get_args(Family)


def test_says_what_leaves_and_what_the_server_sees(unseen, measured):
    out = unseen("list", "methods").out
    assert cells(out, "fedavg")[3].strip() == "nothing" and cells(out, "fedavg")[4].strip() == "sums"
    assert cells(out, "ppdg")[4].strip() == "each client"
    assert cells(out, "fedavg-share")[3].strip() == "training samples, labels"
    assert cells(out, "deepall")[3].strip() == "all training data"


def test_costs_are_those_measured_and_else_a_dash(unseen, measured):
    out = unseen("list", "methods").out
    assert [cell.strip() for cell in cells(out, "csac")[-2:]] == ["12.3", "1.00"]
    assert [cell.strip() for cell in cells(out, "deepall")[-2:]] == ["0.50", "-"]
    assert [cell.strip() for cell in cells(out, "ppdg")[-2:]] == ["-", "-"]
    measured.unlink()
    assert [cell.strip() for cell in cells(unseen("list", "methods").out, "csac")[-2:]] == ["-", "-"]


def test_json_has_the_whole(unseen, measured):
    entries = {entry["method"]: entry for entry in json.loads(unseen("list", "methods", "--json").out)}
    assert list(entries) == list(METHODS)
    assert entries["csac"]["cost"] == MEASURED["methods"]["csac"] and entries["ppdg"]["cost"] is None
    assert {name: entry["family"] for name, entry in entries.items()} == {
        name: METHODS[name].find_family() for name in METHODS
    }
    assert entries["mdfl"]["sends"][:2] == ["model weights", "number of samples"]
    assert entries["csac"]["needs_individual_updates"] and entries["csac"]["paper"]["year"] == 2023


def test_one_method_with_its_settings(unseen, measured):
    out = unseen("list", "methods", "csac").out
    assert METHODS["csac"].summary in out and METHODS["csac"].paper.title in " ".join(out.split())
    assert "family: client rule" in out and "time 12.3, bytes 1.00" in out and "acquisition_epochs" in out
    assert max(map(len, out.splitlines())) <= WIDTH
    entry = json.loads(unseen("list", "methods", "csac", "--json").out)
    assert "acquisition_epochs" in [row["setting"] for row in entry["settings"]]


def test_an_unknown_method_is_refused(unseen):
    answer = unseen("list", "methods", "fedavgg")
    assert answer.code == 2 and "fedavg" in answer.err


def test_measurements_in_the_package_are_of_methods_there_are():
    assert set(costs.measured_costs().methods) <= set(METHODS)


def test_measuring_some_methods_keeps_what_is_known_of_others(measured, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    method_costs = importlib.import_module("method_costs")
    known = json.loads(measured.read_text())
    known["methods"]["gone"] = known["methods"]["csac"]
    measured.write_text(json.dumps(known))
    new = {"seconds": 2.0, "seconds_ratio": 2.0, "bytes": 14, "bytes_ratio": 2.0}
    method_costs.write({"ppdg": new, "csac": new}, repetitions=1, out=measured)
    found = costs.measured_costs().methods
    assert set(found) == {"csac", "deepall", "ppdg"}
    assert found["csac"] == costs.Cost(**new) and found["deepall"].seconds_ratio == 0.5


def test_protections_and_their_settings(unseen):
    listed = json.loads(unseen("list", "protections", "--json").out)
    assert {"none", "secure-sum"} <= {row["protection"] for row in listed}
    assert "unseen[he]" in unseen("list", "protections").out
    described = json.loads(unseen("list", "protections", "secure-sum", "--json").out)
    assert [row["setting"] for row in described] == ["batch_seed", "bits", "threshold"]
    wrong = unseen("list", "protections", "secure-sums")
    assert wrong.code == 2 and "Did you mean 'secure-sum'?" in wrong.err


def test_sums_are_said_only_of_methods_that_secure_summation_serves(unseen, measured):
    out = unseen("list", "methods").out
    assert cells(out, "scaffold")[4].strip() == "sums"
    for method in ("fednova", "mdfl", "cwt", "deepall"):
        assert cells(out, method)[4].strip() == "each client"
