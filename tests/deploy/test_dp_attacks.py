"""A lying coordinator against sample-level differential privacy: it asks the real sites what it likes."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny_sites import LoopbackGrid, make_images, tiny_job

from unseen.callbacks.base import Callback
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.job import Job
from unseen.deploy.site.privacy_budget import read_account
from unseen.deploy.site.site import Site, SitePart
from unseen.deploy.site.site_policy import NoisePolicy
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


@dataclass
class HonestRun:
    """A run of two rounds: its sites, what they were asked and answered, and its result."""

    grid: LoopbackGrid
    images: Path
    log: list[tuple[str, SiteMessage, SiteMessage]]
    values: dict[str, Any]

    def copy(self, folder: Path) -> HonestRun:
        """The same with homes and images of its own, for attacks that change them."""
        shutil.copytree(self.images.parent, folder, dirs_exist_ok=True)
        grid = LoopbackGrid(folder / "images", folder / "sites")
        return HonestRun(grid, folder / "images", self.log, self.values)

    def asked(self, round: int = 2, site: str = "a") -> SiteMessage:
        """What the coordinator asked a site in a round."""
        return next(
            SiteMessage(dict(question.header), dict(question.arrays))
            for name, question, _ in self.log
            if (name, question.header["ask"], question.header.get("round")) == (site, "train", round)
        )

    def answered(self, round: int = 2, site: str = "a") -> SiteMessage:
        """What a site answered in a round."""
        return next(
            answer
            for name, question, answer in self.log
            if (name, question.header["ask"], question.header.get("round")) == (site, "train", round)
        )

    @property
    def site(self) -> Site:
        """The site that is attacked."""
        return self.grid.sites[0]


def make_honest_run(folder: Path, **changes: Any) -> HonestRun:
    images = make_images(folder / "images")
    grid = LoopbackGrid(images, folder / "sites")
    result = run_at_sites(grid, images, folder / "run", **changes)
    return HonestRun(grid, images, grid.log, result.values)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> HonestRun:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "SETTLED_SECONDS", 0.0)
        return make_honest_run(tmp_path_factory.mktemp("honest"))


@pytest.fixture
def honest(first_run: HonestRun, tmp_path: Path) -> HonestRun:
    return first_run.copy(tmp_path / "copy")


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
    apart, job = replace(site, home=home), asked.header["job"]
    anything = replace(site.policy(), noise=NoisePolicy(min_noise=0.0, max_epsilon=math.inf))
    part = SitePart(apart, Job.from_dict(job), job["layout"], anything)
    return gradient(asked, part.train(asked))


def similarity(one: Vector, other: Vector) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def zeros(question: SiteMessage) -> Vector:
    """Weights with which almost every gradient is zero."""
    return np.zeros_like(question.arrays["weights"])


def test_a_second_request_for_a_round_with_other_weights_is_refused(honest: HonestRun) -> None:
    """P1: the difference of two answers with the same noise was the gradient, to six digits."""
    question = honest.asked()
    answer = honest.site.answer(changed(question, weights=zeros(question)))
    assert "has answered round 2 already" in answer.header["error"]
    assert not answer.arrays


def test_the_same_request_again_gets_the_same_answer(honest: HonestRun) -> None:
    """P1: a coordinator that resumes after a crash repeats a round, to the bit, and it costs nothing."""
    again = honest.site.answer(honest.asked())
    assert np.array_equal(honest.answered().arrays["a/weights"], again.arrays["a/weights"])


def test_without_the_journal_other_weights_still_get_other_noise(honest: HonestRun, tmp_path: Path) -> None:
    """P1: noise and batches follow from all that the client was handed, so that they do not cancel."""
    question, site = honest.asked(), honest.site
    true = true_gradient(site, question, tmp_path / "apart")
    other = changed(question, weights=zeros(question))
    for journal in (site.home / "answered").glob("*.jsonl"):
        journal.unlink()
    second = gradient(other, site.answer(other))
    first = gradient(question, honest.answered())
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
    change: dict[str, Any], honest: HonestRun
) -> None:
    """P1: other rates, methods, clips or values sent along would also give an answer to subtract."""
    question, change = honest.asked(), dict(change)
    if change.pop("received", False):
        question.arrays["received/more"] = np.ones(3, dtype=np.float32)
    answer = honest.site.answer(changed(question, **change))
    assert "has answered round 2 already" in answer.header["error"], answer.header


def test_old_versions_of_a_clients_state_do_not_get_a_second_answer(tmp_path: Path) -> None:
    """P1: the coordinator names the version of SCAFFOLD's control variates and of the noise key."""
    attacked = make_honest_run(tmp_path, method="scaffold")
    question = attacked.asked()
    assert question.header["versions"], "the attack needs state that has versions"
    answer = attacked.site.answer(changed(question, versions={}))
    assert "has answered round 2 already" in answer.header["error"], answer.header


def test_a_client_without_its_state_draws_the_same_noise_again(honest: HonestRun) -> None:
    """P1: a fresh key for every request that names no state would let a coordinator average the noise out."""
    again = honest.site.answer(changed(honest.asked(), versions={}))
    assert np.array_equal(honest.answered().arrays["a/weights"], again.arrays["a/weights"])


def test_changed_data_do_not_meet_the_noise_of_the_old(honest: HonestRun) -> None:
    """P1: with one image less and the same noise, the difference would be that image's gradient."""
    (honest.images / "a" / "x" / "0.png").unlink()
    assert "has answered round 2 already" in honest.site.answer(honest.asked()).header["error"]


def test_a_site_that_lost_its_secret_does_not_answer_a_round_again(honest: HonestRun) -> None:
    """P1: a new secret would put new noise on the same gradient."""
    (honest.site.home / "answered" / "secret.key").unlink()
    assert "has answered round 2 already" in honest.site.answer(honest.asked()).header["error"]


def test_a_round_that_is_no_number_is_refused(honest: HonestRun) -> None:
    """P1: rounds 2.5 and "2" would be other entries of the journal than round 2."""
    for round in (2.5, "2", True, None, float("nan")):
        assert "error" in honest.site.answer(changed(honest.asked(), round=round)).header


def test_the_same_run_again_is_the_same_to_the_bit(honest: HonestRun, tmp_path: Path) -> None:
    """P1: the journal of the first attempt does not stand in the way of an honest second one."""
    run_at_sites(honest.grid, honest.images, tmp_path / "again")
    again = Checkpoint.load(RunFolder(tmp_path / "again").checkpoint)
    assert again.run_id == honest.values["run_id"]
    for _, question, answer in honest.grid.log:
        if question.header["ask"] == "train":
            (name,) = question.header["clients"]
            before = honest.answered(question.header["round"], name)
            assert np.array_equal(before.arrays[f"{name}/weights"], answer.arrays[f"{name}/weights"])


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
    lie: str, honest: HonestRun, tmp_path: Path
) -> None:
    """P6: sites that said "no steps" made the record say epsilon 0, or minus 24872, or ended the run."""
    honest.grid.spoil = say(LIES[lie])
    lied = run_at_sites(honest.grid, honest.images, tmp_path / "lied", rounds=1)
    expected = compute_epsilon([Steps(1.0, 1)], noise=NOISE, delta=1e-5)  # b has 12 samples, all in a batch
    assert lied.values["protection"]["epsilon"] == expected > 0
    faults = [
        (each["client"], each["reason"])
        for each in read_records(RunFolder(tmp_path / "lied").records)
        if each["event"] == "fault"
    ]
    assert [client for client, _ in faults] == ["b"]
    assert "steps" in faults[0][1] or "NaN" in faults[0][1]


def test_a_run_in_which_every_site_lies_ends_with_one_line(honest: HonestRun, tmp_path: Path) -> None:
    """P6: nothing is merged from clients of which nobody knows how they trained."""
    lies = [say(np.array([0.0, 0.0]), site=site) for site in "abc"]

    def all_lie(name: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        for lie in lies:
            answer = lie(name, question, answer)
        return answer

    honest.grid.spoil = all_lie
    with pytest.raises(UnseenError, match="no client trained as planned"):
        run_at_sites(honest.grid, honest.images, tmp_path / "run", rounds=1)


COMBINED = ["secure-sum,dp-clients", "secure-sum,dp-samples"]


@pytest.mark.parametrize("protect", COMBINED)
def test_combined_noise_is_bound_to_its_input_too(protect: str, tmp_path: Path) -> None:
    """P1, P2: a repeated round gives the same sum to the bit, and other weights are refused."""
    attacked = make_honest_run(tmp_path, protect=protect)
    question = attacked.asked()
    answer = attacked.site.answer(changed(question, weights=zeros(question)))
    assert "has answered round 2 already" in answer.header["error"], answer.header
    run_at_sites(attacked.grid, attacked.images, tmp_path / "again", protect=protect)
    once, again = (
        Checkpoint.load(RunFolder(tmp_path / name).checkpoint).weights for name in ("run", "again")
    )
    assert np.array_equal(once.numpy(), again.numpy())


def test_a_combined_round_charges_a_sample_for_twice_the_clipping_norm(tmp_path: Path) -> None:
    """One sample moves a client's clipped update by at most twice the norm, so half the noise counts."""
    attacked = make_honest_run(tmp_path, protect="secure-sum,dp-clients", rounds=1)
    (charge,) = read_account(attacked.site.home)
    assert (charge.noise, charge.rate, charge.steps) == (NOISE / 2, 1.0, 1)
    spent = attacked.values["protection"]
    assert spent["epsilon"] == compute_epsilon([Steps(1.0, 1)], noise=NOISE, delta=spent["delta"])
    assert spent["fewest_survivors"] == 3
