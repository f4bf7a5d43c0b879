"""Ridge: the head as the exact ridge regression on the pooled samples' features, from sums, in one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods.base import Paper, register
from unseen.methods.closed_form.closed_form_method import ClosedFormMethod, SolvedHead
from unseen.methods.closed_form.feature_sums import (
    BALANCE,
    SUMS,
    VALIDATION_SUMS,
    Balance,
    FeatureSums,
    Watch,
    count_sums,
    sum_features,
)
from unseen.methods.closed_form.linear_head import SCALING, LinearHead, Scaling
from unseen.methods.closed_form.ridge_solution import RidgeProblem, choose_strength
from unseen.models import Network
from unseen.seeding import torch_generator
from unseen.training import ClientWork


@dataclass(frozen=True)
class RidgeSettings(Settings):
    """Settings of ridge."""

    strength: float | None = setting(
        None,
        "penalty on the squared weights, for features of mean variance 1; none = the strength from 1e-5 to "
        "1e4 with the smallest squared error on the sources' validation samples",
    )
    scaling: Scaling = setting("common", SCALING)
    balance: Balance = setting("classes", BALANCE)
    logit_scale: float = setting(
        8.0, "classes: outputs are regressed on this number and 0 instead of 1 and 0, for the softmax"
    )

    projection: int = setting(
        0,
        "features are first projected onto this many random directions, so that sums are smaller; 0 = as "
        "they are",
    )

    def __post_init__(self) -> None:
        if self.projection < 0:
            raise UsageError(f"setting 'projection' of ridge must be at least 0, not {self.projection}")
        if self.strength is not None and not self.strength > 0:
            raise UsageError(f"setting 'strength' of ridge must be above 0, not {self.strength}")
        if not self.logit_scale > 0:
            raise UsageError(f"setting 'logit_scale' of ridge must be above 0, not {self.logit_scale}")


@register
class Ridge(ClosedFormMethod[RidgeSettings]):
    """Ridge regression of the targets on features: W = (C + strength I)^-1 B, exact from the clients' sums.

    C is the mean of z z^T and B the mean of z (y - mean y)^T over all training samples, z the standardized
    features. Clients send sums of f, f f^T, f y^T and y over their training and over their validation
    samples; the latter give the exact validation error of every strength in the same round.

    Sums of products disclose much of a small client: with fewer samples than features, the rows and
    columns of its sum of f f^T span exactly the space of its samples' features, and with one sample they
    are that sample's features. Use secure-sum or encryption where the server must not see single clients'.
    """

    name = "ridge"
    title = "Ridge"
    summary = "the head in closed form: exact ridge regression on the pooled features, one round, sums only"
    paper = Paper(
        title="Accelerating Heterogeneous Federated Learning with Closed-form Classifiers",
        authors="Fani, Camoriano, Caputo, Ciccone",
        year=2024,
        venue="ICML",
        url="https://arxiv.org/abs/2406.01116",
    )
    sends = ("model weights", "number of samples", SUMS, VALIDATION_SUMS)
    merges = {SUMS: "sum", VALIDATION_SUMS: "sum"}  # noqa: RUF012 (declared as the class's own in Method)

    def statistics(self, network: Network, work: ClientWork, watch: Watch) -> dict[str, Tensor]:
        """Sum up training and validation samples."""
        directions = self.settings.projection
        how: dict[str, Any] = {
            "projection": draw_projection(network.feature_size, directions, seed=work.seed),
            "prepare": work.prepare,
            "balance": self.settings.balance,
            "one": self.settings.logit_scale,
        }
        training = sum_features(network, work.train, watch=watch, **how)
        validation = sum_features(network, work.validation, **how)
        return {SUMS: training.pack(), VALIDATION_SUMS: validation.pack()}

    def describe_statistics(self, network: Network) -> dict[str, Tensor]:
        """Describe the triangles of the two splits."""
        head = network.head
        features = projected_size(head.in_features, self.settings.projection)
        numbers = count_sums(features=features, outputs=head.out_features)
        return {
            kind: torch.empty(numbers, dtype=torch.float64, device="meta") for kind in (SUMS, VALIDATION_SUMS)
        }

    def solve(
        self, sent: Sequence[Mapping[str, Tensor]], *, outputs: int, samples: float | None = None
    ) -> SolvedHead:
        """Solve on the summed training samples, with the strength that suits the validation samples."""
        training, validation = (
            FeatureSums.unpack([extras[kind] for extras in sent], outputs=outputs)
            for kind in (SUMS, VALIDATION_SUMS)
        )
        problem = RidgeProblem.of(training, scaling=self.settings.scaling, samples=samples)
        strength, diagnostics = self.settings.strength, dict[str, object]()
        if strength is None:
            strength, errors = choose_strength(problem, validation)
            diagnostics["error_by_strength"] = list(errors.values())
        return SolvedHead(problem.solve(strength), {"strength": strength, **diagnostics})

    def finish_head(self, head: LinearHead, *, features: int, seed: int) -> LinearHead:
        """Rewrite a head on projected features as one on all of them."""
        return unproject_head(head, draw_projection(features, self.settings.projection, seed=seed))


def projected_size(features: int, directions: int) -> int:
    """Return the number of features that are summed up; 0 directions, or not fewer than features: all."""
    return directions if 0 < directions < features else features


def draw_projection(features: int, directions: int, *, seed: int) -> Tensor | None:
    """Draw an orthonormal basis P (features x directions) of a random subspace; None if nothing is reduced.

    Clients and server draw the same from the run's seed, so it is never sent.
    """
    if projected_size(features, directions) == features:
        return None
    generator = torch_generator(seed, "projection of features", features, directions)
    drawn = torch.randn(features, directions, generator=generator, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(drawn).Q
    return basis


def unproject_head(head: LinearHead, projection: Tensor | None) -> LinearHead:
    """Return the head on f that equals a head on P^T f: W P^T, with the same bias."""
    return head if projection is None else LinearHead(head.weight @ projection.T, head.bias)
