"""The inversion attack on one view of a round, and a control that estimates what chance would find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.audit.gradient_inversion import AttackEffort, Tick, count_correct_labels, invert
from unseen.audit.gradient_view import GradientView
from unseen.audit.reconstruction_score import Reconstruction, score_reconstructions
from unseen.audit.replay import ReplayedRound
from unseen.data import Indices
from unseen.engine import Experiment
from unseen.seeding import numpy_generator, torch_generator


@dataclass(frozen=True)
class AttackResult:
    """The result of the attack on one view.

    labels     how many of the images' classes were inferred from the gradient
    by_chance  how many images of the same clients that are not in the update would have counted as rebuilt
    """

    view: GradientView
    reconstructions: tuple[Reconstruction, ...]
    labels: int
    mismatch: float
    by_chance: int

    @property
    def recognised(self) -> int:
        """Number of rebuilt images."""
        return sum(one.recognised for one in self.reconstructions)


def attack(
    experiment: Experiment,
    observed: ReplayedRound,
    view: GradientView,
    images: Mapping[str, Indices],
    *,
    holdings: Mapping[str, Indices],
    average: Tensor,
    effort: AttackEffort,
    tick: Tick,
) -> AttackResult:
    """Rebuild the images behind a view and compare them with the originals.

    images    the rows of each client's training step
    holdings  all training rows of each client, among which originals are to be identified
    average   the mean of images of this kind, the best guess without an update
    """
    data, prepare = experiment.data, experiment.prepare
    channels, height, width = data.input_shape
    rebuilt = invert(
        observed.network,
        [part.to(prepare.device) for part in view.gradient],
        count=view.count,
        shape=(channels, height, width),
        normalize=prepare.normalize,
        effort=effort,
        generator=torch_generator(experiment.seed, "audit: inversion", view.kind, *view.clients),
        tick=tick,
    )
    inside = {client: images[client] for client in view.clients}
    outside = {client: _control(experiment, holdings[client], rows) for client, rows in inside.items()}
    reconstructions, control = (
        score_reconstructions(experiment, rebuilt.images, rows, holdings=holdings, average=average)
        for rows in (inside, outside)
    )
    truth = torch.cat([torch.from_numpy(data.targets[rows]) for rows in inside.values()])
    return AttackResult(
        view=view,
        reconstructions=reconstructions,
        labels=count_correct_labels(rebuilt.labels, truth),
        mismatch=rebuilt.mismatch,
        by_chance=sum(one.recognised for one in control),
    )


def _control(experiment: Experiment, holding: Indices, rows: Indices) -> Indices:
    """Choose the same number of the client's images that are not in the update, or all of them."""
    drawing = numpy_generator(experiment.seed, "audit: control", int(rows[0]))
    others: Indices = drawing.permutation(np.setdiff1d(holding, rows))
    return others[: len(rows)]
