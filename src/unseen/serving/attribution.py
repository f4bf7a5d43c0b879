"""Attribution maps: where in an image the network's inner maps speak for its answer (Grad-CAM).

Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization" (ICCV
2017): an inner map's channels, weighted by the mean gradient of the answer's score, summed, positive part.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from unseen.data.images.decode import Pixels
from unseen.serving.image_files import as_batch
from unseen.serving.saved_model import SavedModel

FEWEST_FIELDS = 4
"""A map with fewer fields along a side is passed over for an earlier one: it says nearly nothing of where."""
_COLOUR = np.array([255, 90, 0])
_STRENGTH = 0.65


@dataclass(frozen=True)
class Attribution:
    """Maps of some images, or why there are none.

    overlays  per image its pixels with the map on top (height, width, 3); None where the map is empty
    tap       the inner map they come from
    fields    how many fields it has along its height and width
    reason    why there are no maps; empty if there are
    """

    overlays: tuple[Pixels | None, ...]
    tap: str = ""
    fields: tuple[int, int] = (0, 0)
    reason: str = ""

    @property
    def note(self) -> str:
        """What a reader must know of the maps, or why there are none."""
        if self.reason:
            return f"No attribution maps: {self.reason}."
        rows, columns = self.fields
        return (
            f"Orange: where the network's map ‘{self.tap}’ ({rows} x {columns} fields, so coarse) raised "
            "the score of its answer (Grad-CAM). It shows where, not what was seen there or why, and nothing "
            "about whether the answer is right: maps of wrong answers can look as sensible. An image without "
            "a second picture has no place that speaks for its answer."
        )


def attribution_maps(saved: SavedModel, images: Sequence[Pixels]) -> Attribution:
    """Compute the maps of some images for the answer that the model gives each."""
    if len(saved.card.input_shape) != 3:
        return Attribution((), reason="the inputs are rows of a table, not images")
    if not images:
        return Attribution((), reason="no sample can be shown as an image")
    network = saved.network.eval()
    device = next(network.parameters()).device
    prepared = saved.card.normalize(as_batch(images).to(device)).requires_grad_(True)
    with torch.enable_grad():
        found = network.full(prepared)
        taps = {
            name: tap
            for name, tap in zip(network.tap_names, found.taps, strict=True)
            if tap.ndim == 4 and tap.requires_grad
        }
        scores = found.logits.amax(dim=1).sum()
        gradients: Sequence[Tensor | None] = ()
        if taps:
            with suppress(RuntimeError):  # a later layer wrote over the map
                gradients = torch.autograd.grad(scores, list(taps.values()), allow_unused=True)
    spatial = {
        name: (taps[name].detach(), gradient)
        for name, gradient in zip(taps, gradients, strict=False)
        if gradient is not None
    }
    if not spatial:
        return Attribution(
            (), reason=f"{saved.card.model} has no inner maps that its answer is computed from"
        )
    large = [name for name in spatial if min(spatial[name][0].shape[2:]) >= FEWEST_FIELDS]
    tap = (large or list(spatial))[-1]
    maps = _weigh(*spatial[tap], size=saved.card.input_shape[1:])
    overlays = tuple(_overlay(pixels, own) for pixels, own in zip(images, maps, strict=True))
    rows, columns = spatial[tap][0].shape[2:]
    return Attribution(overlays, tap, (rows, columns))


def _weigh(maps: Tensor, gradients: Tensor, *, size: Sequence[int]) -> npt.NDArray[np.float32]:
    """Sum the channels by their mean gradients, keep what is positive, and scale to 0..1 at image size."""
    weights = gradients.mean(dim=(2, 3), keepdim=True)
    found = (weights * maps).sum(dim=1, keepdim=True).relu()
    found = functional.interpolate(found, size=tuple(size), mode="bilinear", align_corners=False)[:, 0]
    highest = found.amax(dim=(1, 2), keepdim=True)
    scaled: npt.NDArray[np.float32] = torch.where(highest > 0, found / highest, found).cpu().numpy()
    return scaled


def _overlay(pixels: Pixels, own: npt.NDArray[np.float32]) -> Pixels | None:
    """Lay a map over an image; None if the map is empty."""
    if not own.any():
        return None
    coloured = np.broadcast_to(pixels if pixels.shape[2] == 3 else pixels[..., :1], (*pixels.shape[:2], 3))
    share = _STRENGTH * own[..., None]
    blended: Pixels = np.rint(coloured * (1 - share) + _COLOUR * share).astype(np.uint8)
    return blended
