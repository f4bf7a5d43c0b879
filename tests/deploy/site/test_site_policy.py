"""A site decides for itself: what a coordinator asked for and got, and gets no more."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_sites import LoopbackGrid, make_images, tiny_job
from typer.testing import CliRunner

from unseen.callbacks.base import Callback
from unseen.cli.main import app
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.site.site import Site
from unseen.deploy.site.site_policy import SitePolicy, read_policy, write_policy

Questions = dict[str, SiteMessage]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Questions]]:
    """The images, and one question of each kind that site `a` got in an honest run."""
    folder = tmp_path_factory.mktemp("honest")
    images = make_images(folder / "images")
    grid = LoopbackGrid(images, folder / "sites")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "SETTLED_SECONDS", 0.0)
        coordinate(
            grid,  # type: ignore[arg-type]
            tiny_job(images, rounds=1, seed=3),
            out=folder / "run",
            resume=False,
            terms=RoundPolicy(deadline=30.0),
            callbacks=Callback(),
        )
    yield images, {question.header["ask"]: question for site, question, _ in grid.log if site == "a"}


@pytest.fixture
def site(asked: tuple[Path, Questions], tmp_path: Path) -> Site:
    return Site("a", str(asked[0] / "a"), tmp_path / "home" / "deep" / "a")


def question(asked: tuple[Path, Questions], what: str, *, job: Any = None, **config: Any) -> SiteMessage:
    """An honest question with another job or another configuration."""
    honest = asked[1][what]
    header = copy.deepcopy(honest.header)
    header["job"].update(job or {})
    header["job"]["config"].update({"settings": {}, **config} if "method" in config else config)
    return SiteMessage(header, dict(honest.arrays))


def refusal(site: Site, message: SiteMessage) -> str:
    """The reason for which a site refuses; nothing else may be in its answer."""
    answer = site.answer(message)
    assert "error" in answer.header, sorted(answer.arrays)
    assert set(answer.header) == {"site", "error"}
    assert not answer.arrays
    assert "\n" not in answer.header["error"]
    return str(answer.header["error"])


def write(site: Site, text: str) -> None:
    site.home.mkdir(parents=True, exist_ok=True)
    (site.home / "policy.toml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("run_id", ["../../escaped", "/tmp/unseen-escaped", "..", "a/b", "", "x" * 200, 7])
def test_a_run_id_cannot_name_a_place_outside_the_home(
    asked: tuple[Path, Questions], site: Site, tmp_path: Path, run_id: Any
) -> None:
    """D3: client memory was written wherever `run_id` said."""
    outside = {path for path in tmp_path.rglob("*") if site.home not in (path, *path.parents)}
    said = refusal(site, question(asked, "train", job={"run_id": run_id}, method="scaffold"))
    assert "cannot be the name of a run" in said
    found = {path for path in tmp_path.rglob("*") if site.home not in (path, *path.parents)}
    assert found == outside
    assert not Path("/tmp/unseen-escaped").exists()


@pytest.mark.parametrize("changes", [{"round": "../../x"}, {"round": True}, {"versions": {"a": "1/../../x"}}])
def test_rounds_and_versions_are_numbers_since_they_name_files(
    asked: tuple[Path, Questions], site: Site, changes: dict[str, Any]
) -> None:
    """D3: other values of a message that become parts of a path."""
    message = question(asked, "train", method="scaffold")
    message.header.update(changes)
    assert "was asked for" in refusal(site, message)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"method": "fedavg-share", "settings": {"share": 1.0}}, "training samples and labels"),
        ({"method": "feddg"}, "spectra"),
        ({"method": "deepall"}, "pools all data"),
        ({"protect": "dp-samples", "protect_settings": {"noise": 1e-9}}, "noise 1e-09"),
        ({"protect": "dp-samples", "protect_settings": {"noise": 1.0, "clip": 1e9}}, "clip 1e"),
        (
            {"protect": "dp-samples", "protect_settings": {"noise": 1.0, "noise_seed": "run"}},
            "noise_seed=run",
        ),
        ({"protect": "dp-samples", "protect_settings": {"epsilon": 1e6}}, "epsilon 1e"),
        ({"protect": "dp-samples", "protect_settings": {"noise": 0.31}, "rounds": 900}, "epsilon "),
        (
            {"protect": "dp-samples", "protect_settings": {"noise": 0.5, "delta": 0.9}, "rounds": 900},
            "epsilon ",
        ),
        ({"rounds": 100_000}, "100000 rounds"),
        ({"partition": "iid", "clients_per_domain": 12}, "fewer training samples"),
        ({"batch_size": 1, "batches_per_epoch": 1}, "an update from 1 samples"),
    ],
    ids=str,
)
def test_by_default_no_samples_leave_and_no_weak_noise_is_accepted(
    asked: tuple[Path, Questions], site: Site, config: dict[str, Any], said: str
) -> None:
    """D2: by naming it in the job the coordinator got all samples, updates of one sample, or no noise."""
    message = question(asked, "train", **config)
    if "clients_per_domain" in config:
        message.header["clients"] = ["a-1"]
    assert said in refusal(site, message)


def test_the_train_split_is_not_evaluated(asked: tuple[Path, Questions], site: Site) -> None:
    """D2: an evaluation of the train split with weights of the coordinator's choice was answered."""
    message = question(asked, "evaluate")
    message.header["splits"] = ["test"]
    assert "a split 'test' with fewer samples" in refusal(site, message)
    message.header["splits"] = ["validation", "train"]
    assert "evaluation on the split 'train'" in refusal(site, message)
    message.header["splits"] = ["validation"]
    assert "error" not in site.answer(message).header


def test_a_census_says_at_once_what_a_job_may_not_do(asked: tuple[Path, Questions], site: Site) -> None:
    message = copy.deepcopy(asked[1]["census"])
    assert "error" not in site.answer(message).header
    message.header["config"].update(method="fedavg-share", settings={})
    assert "nothing of single samples may leave" in refusal(site, message)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('methods = ["fedprox"]', "method 'fedavg'"),
        ('protections = ["secure-sum", "dp-samples"]', "protection 'none'"),
        ('values = ["number of samples"]', "sending 'model weights'"),
        ("min_group = 1000", "its data cannot be used"),
    ],
)
def test_a_changed_policy_holds_from_the_next_message_on(
    asked: tuple[Path, Questions], site: Site, text: str, said: str
) -> None:
    message = question(asked, "train")
    assert "error" not in site.answer(message).header
    write(site, text)
    assert said in refusal(site, message)


@pytest.mark.parametrize(
    "text",
    [
        "sample = true",
        "samples = 1",
        "methods = 'fedavg'",
        "methods = [1]",
        "max_rounds = 0",
        "max_rounds = 2.5",
        "min_group = true",
        "noise = 3",
        "[noise]\nmin = 1",
        "[noise]\nmin_noise = '1'",
        "[privacy]\nepsilon = -1",
        "[privacy]\nepsilon = nan",
        "evaluate = ['everything']",
        "not toml",
    ],
)
def test_a_policy_that_cannot_be_understood_stops_the_site(
    asked: tuple[Path, Questions], site: Site, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(site, text)
    assert "its policy cannot be used" in refusal(site, question(asked, "train"))
    (line,) = [record.message for record in caplog.records if "policy.toml" in record.message]
    assert "\n" not in line
    (site.home / "policy.toml").write_bytes(b"\xff\xfe")
    assert "its policy cannot be used" in refusal(site, question(asked, "evaluate"))


def test_small_classes_are_neither_counted_nor_trained_on(asked: tuple[Path, Questions], site: Site) -> None:
    """D2: a disclosure floor; site `a` has 7, 8 and 9 samples of its classes x, y and z."""
    write(site, "min_group = 8")
    answer = site.answer(asked[1]["census"])
    assert answer.header["classes"] == ("y", "z")
    assert answer.header["counts"] == {"y": 8, "z": 9}
    write(site, "min_group = 10")
    assert "its data cannot be used" in refusal(site, asked[1]["census"])


def test_only_group_patterns_that_the_site_lists_are_applied_to_its_files(
    asked: tuple[Path, Questions], site: Site
) -> None:
    """D2: a hostile regular expression of a job would keep the site busy for ever."""
    hostile, harmless = "^(([0-9a-z]+)+)+$", "^([0-9]+)"

    def census(pattern: str) -> SiteMessage:
        honest = asked[1]["census"]
        config = {**honest.header["config"], "group_pattern": pattern, "split": "group"}
        return SiteMessage({**honest.header, "config": config}, {})

    for message in (census(hostile), question(asked, "train", group_pattern=hostile)):
        said = refusal(site, message)
        assert "group_patterns" in said
        assert hostile in said
    write(site, f"group_patterns = ['{harmless}']")
    assert "group_patterns" in refusal(site, census(hostile))
    assert "error" not in site.answer(census(harmless)).header


def test_a_job_waits_until_a_person_approves_it_and_no_other_job_slips_in(
    asked: tuple[Path, Questions], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unseen.deploy.site import approvals
    from unseen.deploy.site.approvals import Approvals

    monkeypatch.setattr(approvals, "POLL_SECONDS", 0.02)
    write(site, "confirm = true")
    message = question(asked, "train")
    run = message.header["job"]["run_id"]
    answers: list[SiteMessage] = []
    thread = threading.Thread(target=lambda: answers.append(site.answer(message)))
    thread.start()
    while not Approvals(site.home).all():
        time.sleep(0.02)
    assert not answers
    (waiting,) = Approvals(site.home).all()
    assert waiting.run == run
    assert waiting.summary.startswith("fedavg with protection none, 1 rounds")
    Approvals(site.home).decide(run, "approved")
    thread.join(60)
    assert "error" not in answers[0].header
    assert "error" not in site.answer(message).header

    monkeypatch.setattr(approvals, "WAIT_SECONDS", 0.05)
    assert "was not approved" in refusal(site, question(asked, "train", method="fedprox"))
    Approvals(site.home).decide(run, "denied")
    assert "was denied" in refusal(site, question(asked, "train", method="fedprox"))


def test_the_policy_that_join_writes_is_the_default_and_is_never_written_over(tmp_path: Path) -> None:
    path = write_policy(tmp_path)
    assert read_policy(tmp_path) == SitePolicy() == read_policy(tmp_path / "without")
    path.write_text("confirm = true\n", encoding="utf-8")
    write_policy(tmp_path)
    assert read_policy(tmp_path).confirm


def test_a_person_reads_what_waits_and_answers_with_the_command(
    asked: tuple[Path, Questions], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unseen.deploy.site import approvals

    monkeypatch.setattr(approvals, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(approvals, "POLL_SECONDS", 0.01)
    write(site, "confirm = true")
    message = question(asked, "train")
    run = message.header["job"]["run_id"]
    assert "was not approved" in refusal(site, message)
    listed = CliRunner().invoke(app, ["approve", "--home", str(site.home)])
    assert f"{run}  waiting" in listed.stdout
    wrong = CliRunner().invoke(app, ["approve", "other", "--home", str(site.home)])
    assert f"no job 'other' was asked for here; waiting: {run}" in str(wrong.exception)
    assert CliRunner().invoke(app, ["approve", run, "--home", str(site.home)]).exit_code == 0
    assert "error" not in site.answer(message).header
