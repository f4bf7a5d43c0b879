"""How sure a model is of its outputs: calibrated probabilities, sets or intervals, and distance from home.

`judge_outputs` computes it; `CertaintyGraph` has the same arithmetic, in float64 too, for exported files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unseen.calibration.conformal import FREE_CLASSES, PENALTY
from unseen.calibration.moments import projection
from unseen.calibration.site_reference import energies
from unseen.serving.saved_model import SavedModel

CALIBRATED, SET, INTERVAL = "calibrated_probabilities", "prediction_set", "interval"
DISTANCE, UNUSUAL, ENERGY = "distance", "unusual", "energy"
Certainty = Mapping[str, npt.NDArray[Any]]
"""Arrays by the names above, one row per sample; what a model cannot tell is missing."""


def judge_outputs(saved: SavedModel, outputs: Tensor, features: Tensor | None) -> Certainty:
    """Say how sure the model is of these outputs, as far as it can tell; not finite ones count as 0.

    features  the head's inputs, where the model keeps moments of them
    """
    calibration, reference = saved.calibration, saved.reference
    values = np.nan_to_num(outputs.double().numpy())
    found: dict[str, npt.NDArray[Any]] = {}
    if calibration is not None and saved.card.task_type.has_classes:
        found[CALIBRATED] = calibration.probabilities(values)
        if calibration.limits:
            found[SET] = calibration.sets(values)
    elif calibration is not None and calibration.limits:
        found[INTERVAL] = np.stack(calibration.intervals(values[:, 0]), axis=1)
    if reference is not None and features is not None:
        found[DISTANCE] = reference.gaussian.distances(features.double().numpy())
        found[UNUSUAL] = reference.limits["distance"].beyond(found[DISTANCE])
        if "energy" in reference.limits:
            found[ENERGY] = energies(values)
    return found


class CertaintyGraph(nn.Module):
    """The arithmetic of `judge_outputs` on tensors; `names` are those of its results, in their order."""

    weights: Tensor
    biases: Tensor
    projection: Tensor
    mean: Tensor
    whitening: Tensor

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self.limit, self.projects = math.inf, False
        calibration = saved.calibration
        reference = saved.reference if saved.network.shown_features else None
        self.names: tuple[str, ...] = ()
        if calibration is not None and saved.card.task_type.has_classes:
            self._keep(weights=calibration.scaling.weights, biases=calibration.scaling.biases)
            self.names += (CALIBRATED, SET) if calibration.limits else (CALIBRATED,)
        elif calibration is not None and calibration.limits:
            self.names += (INTERVAL,)
        if calibration is not None and calibration.limits:
            self.score, limit = str(calibration.default["score"]), calibration.limit()
            self.limit = self.limit if limit is None else limit
        if reference is not None:
            gaussian = reference.gaussian
            self._keep(mean=gaussian.mean, whitening=gaussian.whitening.T)
            matrix = projection(saved.network.shown_features)
            self.projects = matrix is not None
            if matrix is not None:
                self._keep(projection=matrix)
            farthest = reference.limits["distance"].value
            self.farthest = math.inf if farthest is None else farthest
            self.names += (DISTANCE, UNUSUAL) + ((ENERGY,) if "energy" in reference.limits else ())

    @property
    def needs_features(self) -> bool:
        """Whether the head's inputs are used."""
        return DISTANCE in self.names

    def _keep(self, **arrays: Any) -> None:
        for name, values in arrays.items():
            self.register_buffer(name, torch.tensor(np.asarray(values), dtype=torch.float64))

    def forward(self, outputs: Tensor, features: Tensor | None) -> tuple[Tensor, ...]:
        """Return the results named by `names`: float32, or bool."""
        values = outputs.double()
        found: dict[str, Tensor] = {}
        if CALIBRATED in self.names:
            chances = (values * self.weights + self.biases).log_softmax(dim=1).exp()
            found[CALIBRATED] = chances
            if SET in self.names:
                found[SET] = self._set_of(chances)
        if INTERVAL in self.names:
            found[INTERVAL] = torch.cat([values[:, :1] - self.limit, values[:, :1] + self.limit], dim=1)
        if DISTANCE in self.names:
            assert features is not None
            vectors = features.double()
            projected = vectors @ self.projection if self.projects else vectors
            whitened = (projected - self.mean) @ self.whitening
            distance = ((whitened**2).sum(dim=1) / self.mean.shape[0]).sqrt()
            found |= {DISTANCE: distance, UNUSUAL: ~(distance < self.farthest)}
        if ENERGY in self.names:
            found[ENERGY] = -values.logsumexp(dim=1)
        results = [found[name] for name in self.names]
        return tuple(each if each.dtype == torch.bool else each.float() for each in results)

    def _set_of(self, chances: Tensor) -> Tensor:
        """Mark the classes whose score, as in `class_scores`, is below the limit."""
        if math.isinf(self.limit):
            return torch.ones_like(chances, dtype=torch.bool)
        if self.score == "lac":
            return 1 - chances < self.limit
        ranked, order = chances.topk(chances.shape[1], dim=1)
        before = torch.cat([torch.zeros_like(ranked[:, :1]), ranked.cumsum(dim=1)[:, :-1]], dim=1)
        if self.score == "raps":
            classes = chances.shape[1]
            beyond = (torch.arange(1, classes + 1, dtype=torch.float64) - FREE_CLASSES).clamp(min=0)
            before = (before + PENALTY * beyond) / (1 + PENALTY * max(0, classes - FREE_CLASSES))
        return torch.zeros_like(before).scatter(1, order, before.clamp(0, 1)) < self.limit


def describe_certainty(saved: SavedModel) -> list[dict[str, Any]]:
    """Describe the outputs of `CertaintyGraph` for whoever uses an exported file."""
    calibration, reference, outputs = saved.calibration, saved.reference, saved.card.outputs
    promise: dict[str, Any] = {}
    if calibration is not None and calibration.limits:
        promise = {**calibration.default, "threshold": calibration.limit()}
    kept = "holds the truth for the promised fraction of samples like the sources'; not promised elsewhere"
    limits = {} if reference is None else {name: each.value for name, each in reference.limits.items()}
    described: dict[str, tuple[list[Any], str, dict[str, Any]]] = {
        CALIBRATED: ([outputs], "probabilities after calibration on the sources", {}),
        SET: ([outputs], f"bool: whether a class is in the set; the set {kept}", promise),
        INTERVAL: ([2], f"low and high end around the value, in the target's own unit; it {kept}", promise),
        DISTANCE: ([], "Mahalanobis distance from the sources' features; about 1 is usual", {}),
        UNUSUAL: (
            [],
            "bool: whether the distance reaches the limit, which 95 % of every source's samples stay below",
            {"limit": limits.get("distance")},
        ),
        ENERGY: (
            [],
            "-log sum exp of the logits; high where the model knows nothing",
            {"limit": limits.get("energy")},
        ),
    }
    return [
        {"name": name, "shape": ["batch", *shape], "values": text, **more}
        for name in CertaintyGraph(saved).names
        for shape, text, more in [described[name]]
    ]
