"""How many plain gradient steps a client's local work amounts to, momentum counted."""

from __future__ import annotations

from unseen.errors import UsageError
from unseen.training.local_config import TrainingPlan


def effective_steps(steps: int, *, momentum: float) -> float:
    """||a||_1 of SGD, where w - w_k = lr * sum_j a_j g_j over the gradients g_1 .. g_steps (FedNova).

    With momentum rho, a_j = (1 - rho^(steps - j + 1)) / (1 - rho), since a gradient acts again in every
    later step. Without it every a_j is 1.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def require_sums_of_gradients(plan: TrainingPlan, *, method: str) -> None:
    """Refuse Adam in the name of `method`: it divides by running squares, so there are no such a_j."""
    if plan.optimiser != "sgd":
        raise UsageError(
            f"{method} takes a client's move for a weighted sum of its gradients, which holds for sgd and "
            f"not for {plan.optimiser}; use --optimiser sgd"
        )
