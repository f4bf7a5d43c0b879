"""FedDyn: dynamic regularization, with which the clients' optima move to that of the whole federation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.aggregation import ServerWork, client_weights
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind
from unseen.training import ClientWork, Update

GRADIENT = "gradient at the own optimum"
DRIFT = "sum of the mean changes"


@dataclass(frozen=True)
class FedDynSettings(Settings):
    """Settings of FedDyn."""

    alpha: float = setting(
        0.01,
        "strength of the regularization, at least 0; 0 = none, and no correction by the server: FedAvg",
        search=LogUniform(0.001, 0.1),
    )

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise UsageError(f"setting 'alpha' of feddyn must be at least 0, not {self.alpha}")


@register
class FedDyn(Method[FedDynSettings]):
    """Dynamic regularization (algorithm 1): client k minimizes L_k(w_k) - <g_k, w_k> + a/2 ||w_k - w||^2.

    g_k <- g_k - a (w_k - w) estimates the gradient of its loss and stays at the client. The server keeps
    h <- h - a / N sum_k (w_k - w) over the round's clients, of N in all, and sets w <- mean_k w_k - h / a.
    Both cover the parameters only; batch-norm statistics are averaged.
    """

    name = "feddyn"
    title = "FedDyn"
    summary = "a linear and a quadratic term in every client's loss, so that all have the same optimum"
    paper = Paper(
        title="Federated Learning Based on Dynamic Regularization",
        authors="Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama",
        year=2021,
        venue="ICLR",
        url="https://arxiv.org/abs/2111.04263",
    )
    default_weighting = "uniform"
    fixed_weights = ""
    beyond_losses = ""
    mixed_targets = True

    def client(self, work: ClientWork) -> Update:
        """Train on the regularized loss, and update the client's own gradient."""
        alpha = self.settings.alpha
        if not alpha:
            return super().client(work)
        parameters = work.flat.parameters
        start = work.start[: len(parameters)].to(parameters.device)
        gradient = work.state.get(GRADIENT, torch.zeros_like(start)).to(start.device)

        def regularize(weights: Tensor, slope: Tensor) -> None:
            slope.sub_(gradient).add_(weights - start, alpha=alpha)

        work.fit(
            lambda batch: work.task_loss(work.module(batch.inputs), batch.targets), adjust_gradient=regularize
        )
        update = work.update(diagnostics={"correction_length": float(gradient.norm())})
        renewed = gradient - alpha * (update.weights[: len(parameters)].to(start.device) - start)
        if bool(torch.isfinite(renewed).all()):
            work.state[GRADIENT] = renewed
        return update

    def server(self, work: ServerWork) -> Tensor:
        """Add the round's mean change to the sum of all former ones, and move the mean by that sum.

        The sum kept is -h / a, in which a cancels.
        """
        updates = work.updates
        merged = updates.mean(client_weights(updates.samples, self.weighting))
        if not self.settings.alpha:
            return merged
        trained = updates.layout.extent(Kind.PARAMETER)
        part = updates.clients_in_mean / (work.population or len(updates))
        change = merged[trained] - work.weights[trained]
        drift = work.state.get(DRIFT, torch.zeros_like(change)) + part * change
        work.state[DRIFT] = drift
        work.diagnostics["drift_length"] = float(drift.norm())
        merged[trained] += drift
        return merged
