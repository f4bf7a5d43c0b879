"""What a client's answers may cost in privacy over all runs; a site keeps the account in its home."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Spending(NamedTuple):
    """Steps of the Poisson-sampled Gaussian mechanism with one noise multiplier.

    The unit is a training sample: `noise` is in units of the largest change that adding or removing one
    sample makes to what is released.
    """

    noise: float
    rate: float
    steps: int


class PrivacyBudget(Protocol):
    """Account of what a client's answers have cost."""

    def charge(self, *, client: str, round: int, digest: bytes, spending: Spending) -> None:
        """Record what an answer costs, once per digest; raise UnseenError if it would exceed the budget.

        digest  as in `AnswerJournal.admit`: the same question gets the same answer, which costs nothing
        """
        ...


class UnlimitedBudget:
    """No account, for clients that the server itself simulates."""

    def charge(self, *, client: str, round: int, digest: bytes, spending: Spending) -> None:
        """Record nothing."""
