"""What a site is told before it takes part, and commands that cannot be right."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from table_sites import make_tables
from tiny_sites import make_images, tiny_job
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.data import DataRequest
from unseen.data.validate import check_site
from unseen.deploy.identity.invitation import Invitation
from unseen.deploy.identity.tls import make_certificates
from unseen.errors import UnseenError, UsageError


def checked(site: str, source: Path | str) -> tuple[str, dict[str, dict[str, int]]]:
    check = check_site(site, DataRequest(source=str(source)))
    return check.problem, {name: dict(counts) for name, counts in check.counts.items()}


def test_a_sites_folder_is_counted_as_one_domain(images: Path) -> None:
    assert checked("ward_7", images / "a") == ("", {"ward_7": {"x": 7, "y": 8, "z": 9}})


def test_a_named_set_is_counted_as_far_as_it_is_the_sites() -> None:
    problem, counts = checked("75", "rotated-digits")
    assert problem == ""
    assert list(counts) == ["75"]


def test_a_sites_table_is_counted_without_knowing_the_target(tmp_path: Path) -> None:
    table = make_tables(tmp_path / "tables")
    assert checked("a", table / "a.csv") == ("", {"a": {"rows": 30}})
    assert checked("b", table / "whole.csv") == ("", {"b": {"rows": 33}})
    assert "in which no row is 'ward_7'" in checked("ward_7", table / "whole.csv")[0]
    notes = check_site("a", DataRequest(source=str(table / "a.csv"))).notes
    assert "columns: age (numbers), ward (text), income (numbers), joined (numbers)" in notes[0]


def test_folders_laid_out_otherwise_are_refused_with_what_was_expected(images: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no images" in checked("a", tmp_path / "empty")[0]
    assert "found folders such as a/x in place of images" in checked("a", images)[0]


@pytest.fixture
def invitation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    files = make_certificates(tmp_path / "tls", ["localhost"])
    Invitation.issue("a", "localhost:1", files).save(tmp_path / "a.invitation")
    return tmp_path / "a.invitation"


def run(*words: object) -> BaseException | None:
    return CliRunner().invoke(app, [str(word) for word in words]).exception


def test_join_refuses_data_with_unreadable_images_and_makes_no_key(images: Path, invitation: Path) -> None:
    (images / "a" / "x" / "0.png").write_bytes(b"no image")
    error = run("join", invitation, "--data", images / "a")
    assert isinstance(error, UnseenError)
    assert "1 of 24 images cannot be read" in str(error)
    assert not Path("a-home").exists()


def test_a_home_trusts_one_authority_for_good(images: Path, invitation: Path, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other", ["localhost"]).ca.read_text(encoding="utf-8")
    Path("a-home").mkdir()
    Path("a-home/ca.crt").write_text(other, encoding="utf-8")
    error = run("join", invitation, "--data", images / "a")
    assert isinstance(error, UsageError)
    assert "belongs to another coordinator" in str(error)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("invite", "../x", "--home", "nowhere"), "cannot be the name of a site"),
        (("invite", "a", "--home", "nowhere"), "is not a coordinator's home"),
        (("invite", "a", "--revoke", "--key", "a.pub"), "one at a time"),
        (("revoke", "a", "--home", "nowhere"), "is not a coordinator's home"),
        (("accept", "../a", "a.pub", "--home", "nowhere"), "cannot be the name of a site"),
        (("approve", "--home", "nowhere"), "is no folder"),
        (("ledger", "verify"), "which site?"),
        (("status", "--home", "nowhere"), "is not a coordinator's home"),
        (("join", "nowhere.invitation", "--data", "x"), "cannot read nowhere.invitation"),
        (("app", "made"), "at least one domain with --hold-out"),
        (
            ("train", "x", "--hold-out", "a", "--engine", "flower", "--coordinator", "fed"),
            "expected host:port",
        ),
    ],
    ids=str,
)
def test_wrong_use_is_refused_in_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = run(*words)
    assert isinstance(error, UsageError), error
    assert said in str(error)
    assert "\n" not in str(error)


def test_an_app_is_written_with_its_job_and_never_over_something(tmp_path: Path) -> None:
    tiny_job(make_images(tmp_path / "images"), method="fedprox").save(tmp_path / "job.toml")
    assert run("app", tmp_path / "made", "--job", tmp_path / "job.toml", "--min-sites", 2) is None
    made = tomllib.loads((tmp_path / "made" / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"][
        "app"
    ]
    assert made["components"] == {"serverapp": "unseen_job:server_app", "clientapp": "unseen_job:client_app"}
    assert made["config"]["min-sites"] == 2
    assert '"fedprox"' in made["config"]["job"]
    error = run("app", tmp_path / "made", "--job", tmp_path / "job.toml")
    assert isinstance(error, UsageError)
