"""FedProx: FedAvg with a proximal term that keeps clients near the server's weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods._shared import RunningMeans
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind
from unseen.training import ClientWork, Update


@dataclass(frozen=True)
class FedProxSettings(Settings):
    """Settings of FedProx."""

    mu: float = setting(
        0.1,
        "weight of the proximal term; 0 is FedAvg; the paper tunes it over 0.001, 0.01, 0.1 and 1",
        search=LogUniform(0.001, 1.0),
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise UsageError(f"setting 'mu' of fedprox must not be negative, not {self.mu}")


@register
class FedProx(Method[FedProxSettings]):
    """Clients minimize h_k(w_k; w) = F_k(w_k) + mu/2 ||w_k - w||^2 (equation 2 of the paper).

    The norm is squared and runs over all parameters at once; batch-norm statistics are not part of it.
    """

    name = "fedprox"
    title = "FedProx"
    summary = "FedAvg with a proximal term that keeps clients near the server's weights"
    paper = Paper(
        title="Federated Optimization in Heterogeneous Networks",
        authors="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith",
        year=2020,
        venue="MLSys",
        url="https://arxiv.org/abs/1812.06127",
    )
    beyond_losses = ""
    mixed_targets = True

    def client(self, work: ClientWork) -> Update:
        """Train on the task's loss; the proximal term is added as its gradient mu (w_k - w)."""
        mu, means = self.settings.mu, RunningMeans()
        parameters = work.flat.parameters
        start = work.start[work.flat.layout.extent(Kind.PARAMETER)].to(parameters.device)

        def add_proximal_gradient(weights: Tensor, gradient: Tensor) -> None:
            difference = weights - start
            gradient.add_(difference, alpha=mu)
            means.add("proximal_term", mu / 2 * difference.dot(difference), samples=1)

        work.fit(
            lambda batch: work.task_loss(work.module(batch.inputs), batch.targets),
            adjust_gradient=add_proximal_gradient if mu else None,
        )
        distance = float((parameters - start).norm())
        return work.update(diagnostics=means.result() | {"distance_from_start": distance})

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models."""
        return work.updates.mean(client_weights(work.updates.samples, self.settings.weighting))
