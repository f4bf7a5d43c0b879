"""CSAC's cross-layer semantic calibration: the alignment loss (eq. 5 to 9) of one client in one round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unseen.methods.csac.csac_settings import CSACSettings
from unseen.methods.csac.projections import Projections, tapped_maps
from unseen.models import Network, Output
from unseen.training.losses.attention import channel_similarity, over_local_layers, position_similarity
from unseen.training.losses.mmd import pairwise_mmd, pairwise_mse


class AlignmentLoss:
    """L_AL between the fused model, which is trained, and the frozen partner, with its running means.

    partner      the client's own model, in evaluation mode; it gets no gradients and no updates
    projections  bring both models' maps to one size; None if only outputs are aligned
    """

    def __init__(self, settings: CSACSettings, *, partner: Network, projections: Projections | None) -> None:
        self.settings, self.partner, self.projections = settings, partner, projections
        self._samples = 0
        self._loss_sum = torch.zeros(())
        self._weights_sum = torch.zeros(())

    def __call__(self, inputs: Tensor, fused: Output) -> Tensor:
        """Compute the loss on a batch, given the fused model's outputs for it."""
        with torch.no_grad():
            local = self.partner.full(inputs)
        loss = torch.zeros((), device=inputs.device)
        if self.projections is not None:
            loss = loss + self._maps_term(self.projections, fused, local)
        if self.settings.aligns_logits:
            loss = loss + self._distances(fused.logits[None], local.logits[None])[0, 0]
        self._loss_sum = self._loss_sum + loss.detach().cpu() * len(inputs)
        self._samples += len(inputs)
        return loss

    def diagnostics(self) -> dict[str, Any]:
        """Return means over the round: the loss, and the weight of every pair (fused layer, local layer)."""
        samples = max(self._samples, 1)
        found: dict[str, Any] = {"alignment_loss": float(self._loss_sum) / samples}
        if self.projections is not None:
            rows: list[list[float]] = (self._weights_sum / samples).tolist()
            found["attention"] = [[round(value, 5) for value in row] for row in rows]
        return found

    def _maps_term(self, projections: Projections, fused: Output, local: Output) -> Tensor:
        """Compute eq. 6: the sum over l and m of a_{l,m} D(M_l', L_m')."""
        maps, partner_maps = projections(tapped_maps(fused), tapped_maps(local))
        with torch.set_grad_enabled(self.settings.attention_gradient):
            weights = pair_weights(self.settings, projections, maps, partner_maps)
        self._weights_sum = self._weights_sum + weights.detach().cpu() * maps.shape[1]
        return (weights * self._distances(maps.flatten(2), partner_maps.flatten(2))).sum()

    def _distances(self, fused: Tensor, local: Tensor) -> Tensor:
        return (pairwise_mmd if self.settings.distance == "mmd" else pairwise_mse)(fused, local)


def pair_weights(settings: CSACSettings, projections: Projections, fused: Tensor, local: Tensor) -> Tensor:
    """Compute the matrix a_{l,m}, in which every fused layer distributes a total weight of one.

    Cross-layer: eq. 9, the mean of the position-wise (eq. 7) and the channel-wise (eq. 8) weights, or one of
    them, or without attention 1/|R| for all alike. Same-layer: all of it to the layer of the same place.
    """
    layers = len(fused)
    if settings.alignment == "same-layer":
        return torch.eye(layers, device=fused.device)
    if settings.attention == "none":
        return torch.full((layers, layers), 1 / layers, device=fused.device)
    kinds = []
    if settings.attention in ("both", "position"):
        kinds.append(over_local_layers(position_similarity(*projections.queried(fused, local))))
    if settings.attention in ("both", "channel"):
        kinds.append(over_local_layers(channel_similarity(fused, local)))
    return torch.stack(kinds).mean(0)
