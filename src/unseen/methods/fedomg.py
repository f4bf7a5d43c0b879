"""FedOMG: the server steps along a direction that agrees with the updates of all clients, also the worst."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from unseen.aggregation import (
    GradientSurgery,
    Scaling,
    ServerWork,
    apply_surgery,
    client_weights,
    match_updates,
    normalize_weights,
    unequal_weights,
    weighted_sum,
)
from unseen.errors import UsageError
from unseen.hparams import Settings, Uniform, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind

RATES: dict[Scaling, float] = {"mean-preserving": 1.0, "as-released": 0.5}
"""Server learning rates where none is given; 0.5 is that of the released script."""


@dataclass(frozen=True)
class FedOMGSettings(Settings):
    """Settings of FedOMG."""

    c: float = setting(
        0.5,
        "radius of the search around the mean update, in units of its length; 0 = the mean update itself",
        search=Uniform(0.1, 0.9),
    )
    scaling: Scaling = setting(
        "mean-preserving",
        "mean-preserving: FedAvg's step where all clients agree; as-released: divided by the number of "
        "clients and by 1 + c^2, which leaves 0.4 of that step for three clients and c = 0.5",
    )
    server_lr: float | None = setting(
        None, "step size of the server; none = 1 if mean-preserving, 0.5 as released (the paper names 0.05)"
    )
    buffers: Literal["mean", "keep"] = setting(
        "mean",
        "batch-norm statistics of the global model: mean of the clients', or kept as they start, as released",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.c < 1:
            raise UsageError(f"setting 'c' of fedomg must be at least 0 and below 1, not {self.c}")
        if self.server_lr is not None and not self.server_lr > 0:
            raise UsageError(f"setting 'server_lr' of fedomg must be above 0, not {self.server_lr}")


@register
class FedOMG(Method[FedOMGSettings]):
    """On-server matching gradient: w <- w + eta (g_0 + lambda sum_k s_k g_k) / scale.

    g_k is p_k (w_k - w) in the unit of `scaling`, g_0 their mean; the weights s solve the dual of CAGrad, see
    `aggregation/gradient_matching.py`.
    """

    name = "fedomg"
    title = "FedOMG"
    summary = "steps along a direction that agrees with all clients' updates, found from inner products"
    paper = Paper(
        title="Federated Domain Generalization with Data-free On-server Matching Gradient",
        authors="Nguyen, Nguyen, Park, Pham, Hwang",
        year=2025,
        venue="ICLR",
        url="https://arxiv.org/abs/2501.14653",
    )
    needs_individual_updates = True
    fixed_weights = ""

    @property
    def reweighting(self) -> str:
        """The search changes the weights of the clients in the step."""
        return "then by inner products" if self.settings.c else ""

    @property
    def surgery(self) -> GradientSurgery:
        """Combine updates of equally weighted clients; encryption supports it."""
        return self._matching(None)

    def server(self, work: ServerWork) -> Tensor:
        """Step along the matched direction; record how long the step is in units of FedAvg's."""
        updates, trained = work.updates, work.updates.layout.extent(Kind.PARAMETER)
        shares = normalize_weights(client_weights(updates.samples, self.weighting))
        merged = apply_surgery(
            work, self._matching(shares), weights=unequal_weights(updates.samples, self.weighting)
        )
        if len(updates.rows) == len(updates):
            before = work.weights[trained]
            mean = weighted_sum(updates.rows[:, trained], shares) - before
            step, length = float((merged[trained] - before).norm()), float(mean.norm())
            work.diagnostics["relative_step"] = step / length if length else 0.0
        if self.settings.buffers == "keep":
            merged[trained.stop :] = work.weights[trained.stop :]
        return merged

    def _matching(self, shares: Tensor | None) -> GradientSurgery:
        settings = self.settings
        rate = RATES[settings.scaling] if settings.server_lr is None else settings.server_lr
        solve = partial(match_updates, shares=shares, radius=settings.c, rate=rate, scaling=settings.scaling)
        return GradientSurgery(solve, "matching")
