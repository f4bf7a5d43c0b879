"""A site's privacy budget over all runs: a durable account in its home, and the door that refuses.

The unit is a training sample of the site. The account keeps what every answer cost as (noise, rate, steps):
runs are composed as Rényi divergences, and epsilon is computed once, at the site's own delta.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from unseen.errors import UnseenError
from unseen.privacy.answer_journal import append_line, read_lines
from unseen.privacy.budget import Spending

if TYPE_CHECKING:
    from unseen.deploy.site.site_policy import BudgetPolicy
    from unseen.privacy import Protection

ACCOUNT = "privacy_budget.jsonl"


@dataclass(frozen=True)
class Charge:
    """What one answer cost.

    run   id of the run, which the coordinator chose
    job   digest of the job: the clients of one job share no samples at this site, those of two jobs may
    """

    time: str
    run: str
    job: str
    client: str
    round: int
    digest: str
    noise: float
    rate: float
    steps: int

    @property
    def answer(self) -> tuple[str, str, int, str]:
        """What identifies the answer: repeated, it costs nothing."""
        return self.job, self.client, self.round, self.digest


@dataclass(frozen=True)
class SiteBudget:
    """The account of a site, for the answers of one job; without a finite epsilon nothing is refused."""

    home: Path
    run: str
    job: bytes
    epsilon: float = math.inf
    delta: float = 1e-5

    def charge(self, *, client: str, round: int, digest: bytes, spending: Spending) -> None:
        """Record what an answer costs, or refuse it."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        new = Charge(time, self.run, self.job.hex(), client, round, digest.hex(), *spending)
        path = self.home / ACCOUNT
        try:
            with FileLock(path.with_name(path.name + ".lock")):
                known = read_account(self.home)
                if any(each.answer == new.answer for each in known):
                    return
                self._require_left([*known, new], round)
                append_line(path, [asdict(new)])
        except OSError as error:
            raise UnseenError(
                f"the account of the privacy budget {path} cannot be written ({error.strerror or error}), "
                "so nothing was answered"
            ) from error

    def _require_left(self, charges: Sequence[Charge], round: int) -> None:
        if math.isinf(self.epsilon):
            return
        after = total_epsilon(charges, delta=self.delta)
        if after > self.epsilon:
            before = total_epsilon(charges[:-1], delta=self.delta)
            raise UnseenError(
                f"round {round} was refused: this site's privacy budget is epsilon {self.epsilon:g} at delta "
                f"{self.delta:g} over all runs, {before:.3g} is spent, and with this answer it would be "
                f"{after:.3g}"
            )


def require_noise_at_client(budget: BudgetPolicy, protection: Protection[Any]) -> None:
    """Refuse a job whose answers have no noise of the client, if the site has a budget."""
    if math.isfinite(budget.epsilon) and not protection.noised_at_client:
        raise UnseenError(
            f"refused by the site: it has a privacy budget (epsilon {budget.epsilon:g} over all runs), and "
            f"with --protect {protection.name} its answers carry no noise of their own to account for; use "
            "dp-samples, or secure-sum,dp-clients"
        )


def read_account(home: Path) -> list[Charge]:
    """Read all charges of a site, oldest first."""
    try:
        return [Charge(**values) for (values,) in read_lines(home / ACCOUNT)]
    except (TypeError, ValueError) as error:
        raise UnseenError(f"{home / ACCOUNT} has a line of another version of Unseen ({error})") from error


def total_epsilon(charges: Iterable[Charge], *, delta: float) -> float:
    """Compute epsilon of any one sample of the site after these charges.

    A sample is in one client of a job, so the job costs it at most what it costs the client that spent most;
    jobs add up.
    """
    from unseen.privacy.dp.accountant import RenyiCurve

    jobs: dict[str, dict[str, dict[tuple[float, float], int]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(int))
    )
    for each in charges:
        jobs[each.job][each.client][each.noise, each.rate] += each.steps
    total = RenyiCurve.nothing()
    for clients in jobs.values():
        curves = [
            RenyiCurve.sum(RenyiCurve.of(noise, rate, steps) for (noise, rate), steps in history.items())
            for history in clients.values()
        ]
        total += RenyiCurve.upper(curves)
    return total.epsilon(delta)


def budget_status(home: Path, budget: BudgetPolicy) -> dict[str, Any]:
    """Describe what the site has spent: in all, and per run."""
    charges = read_account(home)
    runs: dict[str, list[Charge]] = defaultdict(list)
    for each in charges:
        runs[each.run].append(each)
    return {
        "epsilon": total_epsilon(charges, delta=budget.delta),
        "delta": budget.delta,
        "budget": budget.epsilon if math.isfinite(budget.epsilon) else None,
        "runs": [_run_status(run, own, budget.delta) for run, own in runs.items()],
    }


def _run_status(run: str, charges: Sequence[Charge], delta: float) -> Mapping[str, Any]:
    return {
        "run": run,
        "epsilon": total_epsilon(charges, delta=delta),
        "rounds": len({each.round for each in charges}),
        "last": charges[-1].time,
    }
