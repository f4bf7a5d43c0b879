"""A federation's page: sites, runs and the newest run's rounds, from files of this machine alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_records import NASTY, append, one_round, write_live_run

from unseen.deploy.coordinator.coordinator_home import note_run, settings_file
from unseen.deploy.identity.members import Member
from unseen.fileio import locked
from unseen.live.federation_source import FederationSource
from unseen.live.followed_folder import find_source
from unseen.runs.folder import RunFolder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A coordinator's home with two admitted sites, one of them with an expired key."""
    place = tmp_path / "federation"
    place.mkdir()
    settings_file(place).write_text(json.dumps({"hosts": ["fed.example.org"], "port": 9600}))
    dates = {"a": "2999-01-02T00:00:00+00:00", "b": "2001-01-02T00:00:00+00:00"}
    members = [Member(site, "key", expires=date) for site, date in dates.items()]
    (place / "sites.json").write_text(json.dumps([vars(member) for member in members]))
    return place


def test_a_federation_without_a_run_shows_its_sites(home: Path) -> None:
    source = find_source(home)()
    source.look()
    assert source.state == "stopped"
    parts = source.view().parts
    assert "2 sites, 0 runs" in parts["header"]
    assert "fed.example.org:9600" in parts["header"]
    assert "2999-01-02" in parts["tables"]
    assert "expired on 2001-01-02" in parts["tables"]
    assert source.page("report") is None


def test_it_follows_the_newest_run(home: Path, tmp_path: Path) -> None:
    domains = ("a", "b", "held")
    for name, rounds in (("older", 1), ("newer", 3)):
        note_run(home, write_live_run(tmp_path / name, rounds=rounds, domains=domains))
    append(tmp_path / "newer", {"event": "fault", "round": 2, "client": "b", "reason": NASTY})
    source = FederationSource(home)
    with locked(home / "lock", place=home), locked(RunFolder(tmp_path / "newer").lock, place=tmp_path):
        version = source.look()
        assert source.state == "running"
        view = source.view()
        append(tmp_path / "newer", *one_round(4, domains))
        assert source.look() != version
    assert "after 3 rounds" in view.parts["header"]
    assert "chart-scores-1" in view.charts
    sites, runs = view.parts["tables"].split("<h2>Runs</h2>")
    assert row(sites, "b")[1:4] == ["3", "3", "1"]
    assert row(sites, "a")[1:4] == ["3", "3", "0"]
    assert runs.index("newer") < runs.index("older")
    assert row(runs, "newer")[0] == "running"
    assert row(runs, "older")[0] == "not running"
    assert "<img" not in view.parts["messages"]
    assert source.page("report") == tmp_path / "newer" / "report.html"
    assert source.page("../newer/report.html") is None


def test_the_privacy_that_is_left_is_shown_where_it_is_known(home: Path, tmp_path: Path) -> None:
    out = write_live_run(tmp_path / "run", rounds=0)
    with (out / "config.toml").open("a") as file:
        file.write("\n[protect_settings]\nepsilon = 8.0\n")
    spent, evaluation = one_round(1)
    append(out, spent | {"protection": {"epsilon": 2.5, "delta": 1e-5}}, evaluation)
    note_run(home, out)
    source = FederationSource(home)
    source.look()
    tiles = source.view().parts["tiles"]
    assert "2.5" in tiles
    assert "5.5 left of 8" in tiles


def row(html: str, first: str) -> list[str]:
    """The cells of a table's row after the one that names it."""
    line = next(line for line in html.split("<tr") if f">{first}</th>" in line)
    return [cell.partition(">")[2].partition("</td>")[0] for cell in line.split("<td")[1:]]
