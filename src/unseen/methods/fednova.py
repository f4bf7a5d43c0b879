"""FedNova: clients that took more steps do not count for more (normalized averaging).

In FedAvg a client with twice the steps moves the model twice as far, so that rounds drift to the optimum of
another objective than sum_k p_k F_k. FedNova averages the update *per effective step* instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights, normalize_weights
from unseen.hparams import Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind
from unseen.training import ClientWork, LocalTrainingConfig, Update, require_sums_of_gradients

NORMALISER = "number of effective steps"


@dataclass(frozen=True)
class FedNovaSettings(Settings):
    """Settings of FedNova."""

    weighting: Weighting = setting("samples", WEIGHTING + ": p_k of the objective")


@register
class FedNova(Method[FedNovaSettings]):
    """w <- w - tau_eff sum_k p_k lr d_k with lr d_k = (w - w_k) / ||a_k||_1.

    ||a_k||_1 counts a client's steps, momentum included; tau_eff = sum_k p_k ||a_k||_1.
    Normalization concerns parameters only; batch-norm statistics are averaged as in FedAvg.
    """

    name = "fednova"
    title = "FedNova"
    family = "server rule"
    summary = "averages the clients' moves per step, so that those with more steps do not count for more"
    paper = Paper(
        title="Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
        authors="Wang, Liu, Liang, Joshi, Poor",
        year=2020,
        venue="NeurIPS",
        url="https://arxiv.org/abs/2007.07481",
    )
    no_average = "it weights clients by their own numbers of steps"
    sends = ("model weights", "number of samples", NORMALISER)
    reweighting = "per step"
    beyond_losses = ""
    mixed_targets = True

    def client(self, work: ClientWork) -> Update:
        """Train as in FedAvg and send the number of effective steps."""
        require_sums_of_gradients(work.plan, method=self.name)
        update = super().client(work)
        count = work.plan.effective_steps(update.steps)
        return replace(
            update,
            extras={NORMALISER: torch.tensor(count, dtype=torch.float64)},
            diagnostics={"effective_steps": count},
        )

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe the number of effective steps."""
        return {NORMALISER: torch.empty((), dtype=torch.float64, device="meta")}

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Compute the number of effective steps anew: a client that says it took few would count for more."""
        found, planned = float(update.extras[NORMALISER]), plan.effective_steps(update.steps)
        if not update.steps or not math.isclose(found, planned, rel_tol=1e-9):
            return f"says that its {update.steps} steps count as {found:g}, they count as {planned:g}"
        return ""

    def server(self, work: ServerWork) -> Tensor:
        """Take tau_eff steps in the direction of the mean effective step."""
        updates = work.updates
        shares = normalize_weights(client_weights(updates.samples, self.settings.weighting))
        counts = torch.stack([extras[NORMALISER] for extras in updates.extras])
        per_step = shares / counts
        steps = float(shares @ counts)
        rate = steps * float(per_step.sum())
        work.diagnostics |= {"tau_eff": steps, "step_rate": rate}
        merged = updates.mean(shares)
        trained = updates.layout.extent(Kind.PARAMETER)
        merged[trained] = torch.lerp(work.weights[trained], updates.mean(per_step)[trained], rate)
        return merged
