"""A site's privacy budget: charged for every answer over all runs, and refused when it is spent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sites import LoopbackGrid, tiny_job
from typer.testing import CliRunner

from unseen.callbacks.base import Callback
from unseen.cli.main import app
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.site.privacy_budget import ACCOUNT, Charge, SiteBudget, read_account, total_epsilon
from unseen.errors import UnseenError
from unseen.privacy.budget import Spending
from unseen.privacy.dp.accountant import RenyiCurve, Steps, compute_epsilon
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

DELTA = 1e-5


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)


def charge(
    job: str, client: str, round: int, *, noise: float = 1.0, rate: float = 0.1, steps: int = 5
) -> Charge:
    return Charge("", "run", job, client, round, f"{job}{client}{round}", noise, rate, steps)


def test_runs_of_one_noise_cost_what_one_run_of_all_their_steps_costs() -> None:
    charges = [charge("one", "a", 1), charge("one", "a", 2), charge("two", "a", 1)]
    assert total_epsilon(charges, delta=DELTA) == pytest.approx(
        compute_epsilon([Steps(0.1, 15)], noise=1.0, delta=DELTA), rel=1e-12
    )


def test_runs_are_composed_more_tightly_than_by_adding_epsilons() -> None:
    charges = [charge(str(number), "a", 1) for number in range(10)]
    alone = total_epsilon(charges[:1], delta=DELTA)
    assert alone < total_epsilon(charges, delta=DELTA) < 5 * alone


def test_clients_of_one_job_have_samples_of_their_own_and_those_of_two_jobs_may_share_them() -> None:
    a, b = charge("one", "a", 1, steps=7), charge("one", "b", 1, steps=3)
    assert total_epsilon([a, b], delta=DELTA) == total_epsilon([a], delta=DELTA)
    other = charge("two", "b", 1, steps=3)
    assert total_epsilon([a, other], delta=DELTA) > total_epsilon([a], delta=DELTA)


def test_epsilon_of_two_noises_is_that_of_their_summed_divergences() -> None:
    """A literal computation for rate 1, where the divergence of order a is a / (2 noise^2)."""
    charges = [charge("one", "a", 1, noise=2.0, rate=1.0, steps=3)]
    charges.append(charge("two", "a", 1, noise=5.0, rate=1.0, steps=10))
    orders = np.array([1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)))
    divergence = orders * (3 / (2 * 2.0**2) + 10 / (2 * 5.0**2))
    literal = np.min(
        divergence - (np.log(DELTA) + np.log(orders)) / (orders - 1) + np.log((orders - 1) / orders)
    )
    assert total_epsilon(charges, delta=DELTA) == pytest.approx(float(literal), rel=1e-9)


def test_nothing_spent_is_epsilon_zero() -> None:
    assert total_epsilon([], delta=DELTA) == 0
    assert RenyiCurve.nothing().epsilon(DELTA) == 0


def test_an_answer_is_charged_once_and_refused_when_it_would_exceed(tmp_path: Path) -> None:
    spending = Spending(1.0, 0.1, 5)
    limit = 1.05 * compute_epsilon([Steps(0.1, 10)], noise=1.0, delta=DELTA)
    budget = SiteBudget(tmp_path, "run", b"job", limit, DELTA)
    for _ in range(3):
        budget.charge(client="a", round=1, digest=b"one", spending=spending)
    budget.charge(client="a", round=2, digest=b"two", spending=spending)
    before = (tmp_path / ACCOUNT).read_bytes()
    with pytest.raises(UnseenError, match=r"round 3 was refused: this site's privacy budget is epsilon"):
        budget.charge(client="a", round=3, digest=b"three", spending=spending)
    assert (tmp_path / ACCOUNT).read_bytes() == before
    assert len(read_account(tmp_path)) == 2
    budget.charge(client="a", round=2, digest=b"two", spending=spending)


def test_another_run_meets_the_same_account(tmp_path: Path) -> None:
    spending, limit = Spending(1.0, 0.1, 5), compute_epsilon([Steps(0.1, 7)], noise=1.0, delta=DELTA)
    SiteBudget(tmp_path, "one", b"one", limit, DELTA).charge(
        client="a", round=1, digest=b"one", spending=spending
    )
    with pytest.raises(UnseenError, match="over all runs"):
        SiteBudget(tmp_path, "two", b"two", limit, DELTA).charge(
            client="a", round=1, digest=b"one", spending=spending
        )


def test_a_damaged_account_answers_nothing(tmp_path: Path) -> None:
    budget = SiteBudget(tmp_path, "run", b"job")
    budget.charge(client="a", round=1, digest=b"one", spending=Spending(1.0, 0.1, 5))
    content = bytearray((tmp_path / ACCOUNT).read_bytes())
    content[content.index(b'"noise"') + 10] ^= 8
    (tmp_path / ACCOUNT).write_bytes(content)
    with pytest.raises(UnseenError, match="damaged in line 1"):
        budget.charge(client="a", round=2, digest=b"two", spending=Spending(1.0, 0.1, 5))


def run_at_sites(grid: LoopbackGrid, images: Path, out: Path, **changes: Any) -> Any:
    values: dict[str, Any] = {"rounds": 3, "protect": "dp-samples", "protect_settings": {"noise": 20.0}}
    return coordinate(
        grid,  # type: ignore[arg-type]
        tiny_job(images, **{**values, **changes}),
        out=out,
        resume=False,
        terms=RoundPolicy(deadline=30.0),
        callbacks=Callback(),
    )


def set_budget(grid: LoopbackGrid, site: str, epsilon: float) -> Path:
    home = next(each.home for each in grid.sites if each.name == site)
    policy = home / "policy.toml"
    policy.write_text(policy.read_text() + f"\n[privacy]\nepsilon = {epsilon}\n")
    return home


def faults(out: Path) -> list[tuple[int, str, str]]:
    records = read_records(RunFolder(out).records)
    return [(r["round"], r["client"], r["reason"]) for r in records if r["event"] == "fault"]


def test_a_site_stops_answering_when_its_budget_is_spent_and_status_shows_it(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """Issue 20: the refusal comes before any training, with one line at both ends; others go on."""
    free = run_at_sites(grid, images, tmp_path / "free", rounds=1, seed=3)
    one_round = total_epsilon(read_account(grid.sites[0].home), delta=DELTA)
    assert 0 < one_round <= free.values["protection"]["epsilon"]
    (cost,) = read_account(grid.sites[0].home)
    three = [replace(cost, job=str(number)) for number in range(3)]
    limit = 1.000001 * total_epsilon(three, delta=DELTA)
    home = set_budget(grid, "a", limit)
    run_at_sites(grid, images, tmp_path / "run")
    refused = [each for each in faults(tmp_path / "run") if each[1] == "a"]
    assert refused and all("this site's privacy budget is epsilon" in reason for _, _, reason in refused)
    assert [round for round, _, _ in refused] == [3]
    charges = read_account(home)
    assert len({each.run for each in charges}) == 2
    assert total_epsilon(charges, delta=DELTA) <= limit
    shown = CliRunner().invoke(app, ["status", "--home", str(home)])
    assert shown.exit_code == 0, shown.output
    assert f"of epsilon {limit:.3g}" in " ".join(shown.output.split())
    values = json.loads(CliRunner().invoke(app, ["status", "--home", str(home), "--json"]).stdout)
    assert len(values["privacy"]["runs"]) == 2
    assert (home / ACCOUNT).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("protect", ["none", "secure-sum"])
def test_a_site_with_a_budget_refuses_answers_without_noise_of_its_own(
    protect: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    for site in "abc":
        set_budget(grid, site, 8.0)
    with pytest.raises(UnseenError, match="carry no noise of their own"):
        run_at_sites(grid, images, tmp_path / "run", protect=protect, protect_settings={}, rounds=1)


@pytest.mark.parametrize("protect", ["dp-samples", "secure-sum,dp-clients"])
def test_a_job_that_would_cost_too_much_in_all_its_rounds_is_refused_at_once(
    protect: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """D2: the largest epsilon of a job also holds where the job names noise and a delta of its choice."""
    weak = {"noise": 0.31, "delta": 0.5}
    with pytest.raises(UnseenError, match=r"refused by the site's policy: epsilon .* max_epsilon = 20"):
        run_at_sites(grid, images, tmp_path / "run", protect=protect, protect_settings=weak)
    assert not any((site.home / ACCOUNT).exists() for site in grid.sites)
