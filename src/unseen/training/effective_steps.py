"""How many plain gradient steps a client's local work amounts to, momentum counted."""

from __future__ import annotations

from unseen.errors import UsageError
from unseen.training.plan import TrainingPlan


def effective_steps(plan: TrainingPlan, steps: int, *, method: str) -> float:
    """||a||_1 of SGD: w - w_k = lr * sum_j a_j g_j over the gradients g_1 .. g_steps (FedNova, section 3.1).

    With momentum rho, a_j = (1 - rho^(steps - j + 1)) / (1 - rho), since a gradient acts again in every
    later step. Without it every a_j is 1. Adam divides by running squares, so its move is no weighted sum
    of gradients and there is no such a: it is refused in the name of `method`.
    """
    if plan.optimiser != "sgd":
        raise UsageError(
            f"{method} needs to know what each gradient contributes to a client's move, which holds for sgd "
            f"and not for {plan.optimiser}; use --optimiser sgd"
        )
    rho = plan.momentum
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
