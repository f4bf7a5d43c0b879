"""A lying coordinator against sample-level differential privacy: it asks the real sites what it likes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tiny_sites import LoopbackGrid, tiny_job

from unseen.callbacks.base import Callback
from unseen.deploy import coordinator
from unseen.deploy.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.job import Job
from unseen.deploy.site import Site, SitePart
from unseen.errors import UnseenError
from unseen.privacy.dp.accountant import Steps, compute_epsilon
from unseen.privacy.dp.sample_level import SPENT
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

NOISE, LR = 20.0, 0.5
Vector = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)


def run_at_sites(grid: LoopbackGrid, images: Path, out: Path, **changes: Any) -> Any:
    """An honest run of dp-samples with one step a round."""
    settings = {"noise": NOISE, "clip": 1.0, **changes.pop("protect_settings", {})}
    values = {
        "rounds": 2,
        "batch_size": 12,
        "batches_per_epoch": 1,
        "lr": LR,
        "method": "fedavg",
        "protect": "dp-samples",
    }
    config = tiny_job(images, **{**values, **changes}, protect_settings=settings)
    return coordinate(
        grid,  # type: ignore[arg-type]
        config,
        out=out,
        resume=False,
        terms=RoundPolicy(deadline=30.0),
        callbacks=Callback(),
    )


def asked(grid: LoopbackGrid, site: str, round: int) -> SiteMessage:
    """What the coordinator asked a site in a round."""
    return next(
        question
        for name, question, _ in grid.log
        if (name, question.header["ask"], question.header.get("round")) == (site, "train", round)
    )


def site_of(grid: LoopbackGrid, name: str) -> Site:
    return next(site for site in grid.sites if site.name == name)


def changed(
    question: SiteMessage, *, weights: Vector | None = None, config: Mapping[str, Any] = {}, **header: Any
) -> SiteMessage:
    """The question with other weights, another configuration in its job, or other fields."""
    job = question.header["job"]
    job = {**job, "config": {**job["config"], **config}}
    arrays = question.arrays if weights is None else {**question.arrays, "weights": weights}
    return SiteMessage({**question.header, "job": job, **header}, arrays)


def gradient(question: SiteMessage, answer: SiteMessage) -> Vector:
    """The gradient that a client stepped along, as the coordinator computes it from the answer."""
    assert "error" not in answer.header, answer.header
    (name,) = question.header["clients"]
    return (question.arrays["weights"] - answer.arrays[f"{name}/weights"]) / np.float32(LR)


def true_gradient(site: Site, question: SiteMessage, home: Path) -> Vector:
    """The clipped gradient without noise, computed where the data is."""
    settings = {**question.header["job"]["config"]["protect_settings"], "noise": 1e-9}
    asked = changed(question, config={"protect_settings": settings}, versions={})
    part = SitePart(
        replace(site, home=home), Job.from_dict(asked.header["job"]), asked.header["job"]["layout"]
    )
    return gradient(asked, part.train(asked))


def similarity(one: Vector, other: Vector) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def zeros_but_head(question: SiteMessage) -> Vector:
    """Weights with which almost every gradient is zero."""
    return np.zeros_like(question.arrays["weights"])


def test_a_second_request_for_a_round_with_other_weights_is_refused(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P1: the difference of two answers with the same noise was the gradient, to six digits."""
    run_at_sites(grid, images, tmp_path / "run")
    question, site = asked(grid, "a", 2), site_of(grid, "a")
    answer = site.answer(changed(question, weights=zeros_but_head(question)))
    assert "has answered round 2 already" in answer.header["error"]
    assert not answer.arrays


def test_the_same_request_again_gets_the_same_answer(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P1: a coordinator that resumes after a crash repeats a round, to the bit, and it costs nothing."""
    run_at_sites(grid, images, tmp_path / "run")
    question, site = asked(grid, "a", 2), site_of(grid, "a")
    first = next(answer for _, sent, answer in grid.log if sent is question)
    again = site.answer(question)
    assert np.array_equal(first.arrays["a/weights"], again.arrays["a/weights"])


def test_without_the_journal_other_weights_still_get_other_noise(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P1: noise and batches follow from all that the client was handed, so that they do not cancel."""
    run_at_sites(grid, images, tmp_path / "run")
    question, site = asked(grid, "a", 2), site_of(grid, "a")
    true = true_gradient(site, question, tmp_path / "apart")
    other = changed(question, weights=zeros_but_head(question))
    for journal in (site.home / "answered").glob("*.jsonl"):
        journal.unlink()
    second = gradient(other, site.answer(other))
    first = gradient(question, next(answer for _, sent, answer in grid.log if sent is question))
    assert abs(similarity(first, true)) < 0.2
    assert abs(similarity(first - second, true)) < 0.2
    expected = NOISE / 12 * np.sqrt(2 * len(first))
    assert np.linalg.norm(first - second) > 0.5 * expected


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"lr": 0.25}},
        {"config": {"seed": 7}},
        {"config": {"method": "fedprox", "settings": {"mu": 5.0}}},
        {"config": {"local_epochs": 2}},
        {"config": {"protect_settings": {"noise": 20.0, "clip": 2.0, "delta": 1e-5}}},
        {"reaction": 0.5},
        {"received": True},
    ],
    ids=str,
)
def test_nothing_that_changes_the_answer_can_be_changed_within_a_round(
    change: dict[str, Any], grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P1: other rates, methods, clips or values sent along would also give an answer to subtract."""
    run_at_sites(grid, images, tmp_path / "run", rounds=1)
    question, site = asked(grid, "a", 1), site_of(grid, "a")
    if change.pop("received", False):
        question.arrays["received/more"] = np.ones(3, dtype=np.float32)
    answer = site.answer(changed(question, **change))
    assert "has answered round 1 already" in answer.header["error"], answer.header


def test_old_versions_of_a_clients_state_do_not_get_a_second_answer(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P1: the coordinator names the version of SCAFFOLD's control variates and of the noise key."""
    run_at_sites(grid, images, tmp_path / "run", method="scaffold")
    question, site = asked(grid, "a", 2), site_of(grid, "a")
    assert question.header["versions"], "the attack needs state that has versions"
    answer = site.answer(changed(question, versions={}))
    assert "has answered round 2 already" in answer.header["error"], answer.header


def test_a_client_without_its_state_draws_the_same_noise_again(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P1: a fresh key for every request that names no state would let a coordinator average the noise out."""
    run_at_sites(grid, images, tmp_path / "run")
    question, site = asked(grid, "a", 2), site_of(grid, "a")
    first = next(answer for _, sent, answer in grid.log if sent is question)
    again = site.answer(changed(question, versions={}))
    assert np.array_equal(first.arrays["a/weights"], again.arrays["a/weights"])


def test_changed_data_do_not_meet_the_noise_of_the_old(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P1: with one image less and the same noise, the difference would be that image's gradient."""
    run_at_sites(grid, images, tmp_path / "run")
    question, site = asked(grid, "a", 2), site_of(grid, "a")
    (images / "a" / "x" / "0.png").unlink()
    assert "has answered round 2 already" in site.answer(question).header["error"]


def test_a_site_that_lost_its_secret_does_not_answer_a_round_again(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P1: a new secret would put new noise on the same gradient."""
    run_at_sites(grid, images, tmp_path / "run")
    question, site = asked(grid, "a", 2), site_of(grid, "a")
    (site.home / "answered" / "secret.key").unlink()
    assert "has answered round 2 already" in site.answer(question).header["error"]


def test_a_resumed_run_is_the_same_to_the_bit(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    """P1: the journal of the first attempt does not stand in the way of the second."""
    run_at_sites(grid, images, tmp_path / "one")
    run_at_sites(grid, images, tmp_path / "two")
    one, two = (Checkpoint.load(RunFolder(tmp_path / name).checkpoint).weights for name in ("one", "two"))
    assert torch.equal(one, two)


def say(value: Any, *, site: str = "b") -> Any:
    """Change what a site says about its steps on the way."""

    def spoil(name: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        if name != site or question.header["ask"] != "train":
            return answer
        arrays = dict(answer.arrays)
        key = f"{name}/extras/{SPENT}"
        if value is None:
            del arrays[key]
        else:
            arrays[key] = value
        return SiteMessage(answer.header, arrays)

    return spoil


LIES = {
    "nothing spent": np.array([0.0, 0.0]),
    "fewer steps than none": np.array([0.6, -100.0]),
    "a rate above one": np.array([7.0, 1.0]),
    "not a number": np.array([np.nan, 1.0]),
    "a wrong shape": np.zeros((2, 3)),
    "another type": np.array([0, 0]),
    "no word": None,
}


@pytest.mark.parametrize("lie", LIES)
def test_epsilon_follows_from_census_and_plan_whatever_a_site_says(
    lie: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P6: sites that said "no steps" made the record say epsilon 0, or minus 24872, or ended the run."""
    honest = run_at_sites(grid, images, tmp_path / "honest", rounds=1)
    grid.spoil = say(LIES[lie])
    lied = run_at_sites(grid, images, tmp_path / "lied", rounds=1)
    assert lied.values["protection"]["epsilon"] == honest.values["protection"]["epsilon"]
    steps = compute_epsilon([Steps(12 / 18, 1), Steps(12 / 12, 0)], noise=NOISE, delta=1e-5)
    assert honest.values["protection"]["epsilon"] >= steps > 0
    faults = [
        (each["client"], each["reason"])
        for each in read_records(RunFolder(tmp_path / "lied").records)
        if each["event"] == "fault"
    ]
    assert [client for client, _ in faults] == ["b"]
    assert "steps" in faults[0][1] or "NaN" in faults[0][1]


def test_a_run_in_which_every_site_lies_ends_with_one_line(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """P6: nothing is merged from clients of which nobody knows how they trained."""
    lies = [say(np.array([0.0, 0.0]), site=site) for site in "abc"]

    def all_lie(name: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        for lie in lies:
            answer = lie(name, question, answer)
        return answer

    grid.spoil = all_lie
    with pytest.raises(UnseenError, match="no client trained as planned"):
        run_at_sites(grid, images, tmp_path / "run", rounds=1)


def test_a_round_that_is_no_number_is_refused(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    """P1: rounds 2.5 and "2" would be other entries of the journal than round 2."""
    run_at_sites(grid, images, tmp_path / "run")
    question, site = asked(grid, "a", 2), site_of(grid, "a")
    for round in (2.5, "2", True, None, float("nan")):
        assert "error" in site.answer(changed(question, round=round)).header
