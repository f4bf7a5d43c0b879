"""Loss-weighted aggregation: AFL, GroupDRO, V-REx and q-FedAvg, where clients served badly count for more.

Every client measures its loss on the model that it receives and sends it with its update. The rules differ
in how losses become weights. They are the federated forms of objectives over domains, exact for clients that
hold one domain each and take one step per round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from unseen.aggregation import (
    WEIGHTING,
    ServerWork,
    Weighting,
    client_weights,
    combine_clients,
    normalize_weights,
)
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods._shared import Measured, choose_samples, explain_no_scalar, measure
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind
from unseen.training import ClientWork, LocalTrainingConfig, Update

LOSS = "loss of the received model"
TINY = 1e-10
"""Added to losses before they are raised to a power, as in the released code."""


@dataclass(frozen=True)
class LossWeightedSettings(Settings):
    """Settings that all loss-weighted methods share."""

    loss_on: Measured = setting(
        "training", "the samples of a client on which the received model's loss is measured"
    )
    weighting: Weighting = setting("uniform", f"the weights where all losses are equal: {WEIGHTING}")

    def _require(self, fine: bool, name: str, expected: str) -> None:
        if not fine:
            raise UsageError(f"setting {name!r} must be {expected}, not {getattr(self, name)}")


S = TypeVar("S", bound=LossWeightedSettings)


class LossWeighted(Method[S]):
    """FedAvg whose clients also send the loss R_k of the received model on their samples."""

    family = "server rule"
    needs_individual_updates = True
    no_average = "its result are the weights of the clients, which others would ignore"
    sends = ("model weights", "number of samples", LOSS)
    beyond_losses = "it sends the loss of the received model on its samples"
    mixed_targets = True

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe the loss: one number."""
        return {LOSS: torch.empty((), dtype=torch.float64, device="meta")}

    def client(self, work: ClientWork) -> Update:
        """Measure the received model's loss, then train as in FedAvg."""
        samples = choose_samples(work, self.settings.loss_on, owner=self.name, setting="loss_on")
        loss = measure(work, self.deployed(work.module), samples)["loss"]
        work.fit(lambda batch: work.task_loss(work.module(batch.inputs), batch.targets))
        return work.update(
            extras={LOSS: torch.tensor(loss, dtype=torch.float64)}, diagnostics={"received_loss": loss}
        )

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse a loss that is not one number, or negative."""
        loss = update.extras.get(LOSS)
        negative = "sent a negative loss" if loss is not None and bool((loss < 0).any()) else ""
        return explain_no_scalar(loss, name="a loss") or negative

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models with weights that follow from the losses."""
        weights = self.weigh(work, _losses(work))
        shares = normalize_weights(weights).tolist()
        work.diagnostics["client_weights"] = dict(zip(work.updates.clients, shares, strict=True))
        return work.updates.mean(weights)

    @abstractmethod
    def weigh(self, work: ServerWork, losses: Tensor) -> Tensor:
        """Return the weights of the round's clients, and keep in `work.state` what later rounds need."""

    def first_weights(self, work: ServerWork) -> Tensor:
        """Return the weights of the clients where all losses are equal."""
        return client_weights(work.updates.samples, self.weighting)


class KeptWeights(LossWeighted[S]):
    """Loss-weighted aggregation with weights that the server keeps and moves in every round.

    The rule acts on the round's clients, whose weights keep their sum. Absent clients keep theirs.
    """

    @property
    def reweighting(self) -> str:
        """Weights follow the losses."""
        return "then by losses"

    def read_weights(self, work: ServerWork) -> tuple[Tensor, Tensor]:
        """Return the clients' part of all weights of the round, which sum to one, and their former sum."""
        first = self.first_weights(work)
        clients = zip(work.updates.clients, first, strict=True)
        kept = torch.stack([work.state.get(_key(client), own.double()) for client, own in clients])
        return normalize_weights(kept), kept.sum()

    def keep_weights(self, work: ServerWork, shares: Tensor, total: Tensor) -> None:
        """Keep the moved weights."""
        keys = map(_key, work.updates.clients)
        work.state.update(zip(keys, (shares * total).unbind(), strict=True))


@dataclass(frozen=True)
class AFLSettings(LossWeightedSettings):
    """Settings of AFL."""

    step: float = setting(
        0.1,
        "gamma: how far the weights move per unit of loss in a round; 0 = not at all: FedAvg",
        search=LogUniform(0.01, 1.0),
    )

    def __post_init__(self) -> None:
        self._require(self.step >= 0, "step", "at least 0")


@register
class AFL(KeptWeights[AFLSettings]):
    """Agnostic federated learning: weights q ascend the loss of the worst mixture of the clients.

    A round is merged with q; then q <- projection of q + gamma R onto the simplex.
    """

    name = "afl"
    title = "AFL"
    summary = "client weights climb towards the worst mixture of clients, by a projected gradient step"
    paper = Paper(
        title="Agnostic Federated Learning",
        authors="Mohri, Sivek, Suresh",
        year=2019,
        venue="ICML",
        url="https://arxiv.org/abs/1902.00146",
    )

    def weigh(self, work: ServerWork, losses: Tensor) -> Tensor:
        """Return the present weights and move them for the next round."""
        shares, total = self.read_weights(work)
        self.keep_weights(work, project_to_simplex(shares + self.settings.step * losses), total)
        return shares


@dataclass(frozen=True)
class GroupDROSettings(LossWeightedSettings):
    """Settings of GroupDRO."""

    step: float = setting(
        0.01,
        "eta: weights are multiplied by exp(eta R_k) for every step; 0 = not at all: FedAvg",
        search=LogUniform(0.001, 0.1),
    )
    per: Literal["step", "round"] = setting(
        "step",
        "what a step is: one of the clients' local steps, as in the paper (a round counts as the mean "
        "number of them), or the whole round",
    )

    def __post_init__(self) -> None:
        self._require(self.step >= 0, "step", "at least 0")


@register
class GroupDRO(KeptWeights[GroupDROSettings]):
    """Group distributionally robust optimization: q_k <- q_k exp(eta R_k), normalized, then merge with q."""

    name = "groupdro"
    title = "GroupDRO"
    summary = "client weights grow exponentially with the loss of the received model"
    paper = Paper(
        title="Distributionally Robust Neural Networks for Group Shifts: On the Importance of Regularization "
        "for Worst-Case Generalization",
        authors="Sagawa, Koh, Hashimoto, Liang",
        year=2020,
        venue="ICLR",
        url="https://arxiv.org/abs/1911.08731",
    )

    def weigh(self, work: ServerWork, losses: Tensor) -> Tensor:
        """Move the weights and return them."""
        shares, total = self.read_weights(work)
        steps = float(work.updates.steps.mean()) if self.settings.per == "step" else 1.0
        exponents = self.settings.step * steps * losses
        moved = normalize_weights(shares * (exponents - exponents.max()).exp())
        self.keep_weights(work, moved, total)
        return moved


@dataclass(frozen=True)
class VRExSettings(LossWeightedSettings):
    """Settings of V-REx."""

    penalty: float = setting(
        10.0,
        "beta: weight of the variance of the clients' losses; 0 = none: FedAvg",
        search=LogUniform(0.1, 100.0),
    )
    start: float = setting(
        0.1, "fraction of the run's rounds before it applies, in [0, 1]; until then the variance has weight 1"
    )

    def __post_init__(self) -> None:
        self._require(self.penalty >= 0, "penalty", "at least 0")
        self._require(0 <= self.start <= 1, "start", "in [0, 1]")


@register
class VREx(LossWeighted[VRExSettings]):
    """Variance risk extrapolation: a_k = p_k max(0, 1 + 2 beta (R_k - mean R)), normalized.

    Without the maximum these are the weights of the clients' gradients in that of mean R + beta Var R.
    """

    name = "vrex"
    title = "VREx"
    summary = "client weights of the gradient of mean loss plus variance of the losses"
    paper = Paper(
        title="Out-of-Distribution Generalization via Risk Extrapolation (REx)",
        authors="Krueger, Caballero, Jacobsen, Zhang, Binas, Zhang, Le Priol, Courville",
        year=2021,
        venue="ICML",
        url="https://arxiv.org/abs/2003.00688",
    )

    @property
    def reweighting(self) -> str:
        """Weights follow the losses."""
        return "by losses" if self.settings.penalty else ""

    def weigh(self, work: ServerWork, losses: Tensor) -> Tensor:
        """Return the weights of this round's gradients."""
        shares = normalize_weights(self.first_weights(work))
        early = work.rounds is not None and work.round <= self.settings.start * work.rounds
        penalty = min(self.settings.penalty, 1.0) if early else self.settings.penalty
        return shares * (1 + 2 * penalty * (losses - shares @ losses)).clamp(min=0)


@dataclass(frozen=True)
class QFedAvgSettings(LossWeightedSettings):
    """Settings of q-FedAvg."""

    q: float = setting(
        0.1,
        "how much more clients with a large loss count, at least 0 (not at all: FedAvg); paper: 0.001 to 5",
        search=LogUniform(0.001, 5.0),
    )
    weighting: Weighting = setting("samples", f"p_k of the objective: {WEIGHTING}")

    def __post_init__(self) -> None:
        self._require(self.q >= 0, "q", "at least 0")


@register
class QFedAvg(LossWeighted[QFedAvgSettings]):
    """q-FedAvg (algorithm 2), for the objective sum_k p_k / (q + 1) R_k^(q + 1): w <- w - sum D_k / sum H_k.

    With the clients' learning rate eta and u_k = (w - w_k) / eta: D_k = p_k R_k^q u_k and
    H_k = p_k (q R_k^(q - 1) ||u_k||^2 + R_k^q / eta). Batch-norm statistics are averaged with weights p_k.
    """

    name = "qfedavg"
    title = "qFedAvg"
    summary = "weights clients by a power of their loss, with a step size that follows from the losses"
    paper = Paper(
        title="Fair Resource Allocation in Federated Learning",
        authors="Li, Sanjabi, Beirami, Smith",
        year=2020,
        venue="ICLR",
        url="https://arxiv.org/abs/1905.10497",
    )

    @property
    def reweighting(self) -> str:
        """Weights follow the losses."""
        return "by losses" if self.settings.q else ""

    def weigh(self, work: ServerWork, losses: Tensor) -> Tensor:
        """Return p_k R_k^q, the clients' parts of the direction."""
        return normalize_weights(self.first_weights(work)) * (losses + TINY) ** self.settings.q

    def server(self, work: ServerWork) -> Tensor:
        """Step along the weighted direction, the shorter the longer the updates are."""
        updates, losses, q = work.updates, _losses(work), self.settings.q
        parts = self.weigh(work, losses)
        if q and not work.lr:
            raise UsageError("qfedavg needs the clients' learning rate, which is not known here")
        trained = updates.layout.extent(Kind.PARAMETER)
        squares = torch.stack(
            [(row[trained] - work.weights[trained]).double().square().sum() for row in updates.rows]
        )
        curvatures = parts * (1 + q / (losses + TINY) * squares / work.lr if q else 1)
        coefficients = parts / curvatures.sum()
        work.diagnostics |= {
            "client_weights": dict(zip(updates.clients, normalize_weights(parts).tolist(), strict=True)),
            "step_rate": float(coefficients.sum()),
        }
        return combine_clients(
            updates.rows,
            work.weights,
            coefficients,
            layout=updates.layout,
            weights=self.first_weights(work),
        )


def project_to_simplex(point: Tensor) -> Tensor:
    """Return the nearest weights that are not negative and sum to one."""
    ordered = point.sort(descending=True).values
    numbers = torch.arange(1, len(point) + 1, dtype=point.dtype)
    thresholds = (ordered.cumsum(0) - 1) / numbers
    return (point - thresholds[ordered > thresholds][-1]).clamp(min=0)


def _losses(work: ServerWork) -> Tensor:
    return torch.stack([extras[LOSS] for extras in work.updates.extras])


def _key(client: str) -> str:
    return f"weight of {client}"
