"""Class prototypes of clients: mean features per class, sent to the server, which returns some per class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data import Batch
from unseen.methods.mdfl.boda import class_feature_sums
from unseen.methods.mdfl.class_statistics import COUNTS as PAIR_COUNTS
from unseen.methods.mdfl.class_statistics import SUMS as PAIR_SUMS
from unseen.methods.mdfl.class_statistics import class_statistics
from unseen.training import ClientWork
from unseen.training.preprocessing import count_batches

PROTOTYPES, COUNTS = "class prototypes", "class counts"
"""Kinds of values that leave a client: mean feature (classes x features) and number of samples per class."""
MEANS, CLASSES = "global prototypes", "classes of global prototypes"
"""Keys in the server's state and broadcast: prototypes (any number per class), and the class of each."""

PrototypesFrom = Literal["training", "trained"]
PROTOTYPES_FROM = (
    "features that prototypes are means of: those of the last local epoch while it trains (`training`, as "
    "released), or of a pass of the trained model over all samples in evaluation mode (`trained`)"
)


class LocalPrototypes:
    """Mean feature per class of a client's samples, collected in its last local epoch or after it."""

    def __init__(self, work: ClientWork, source: PrototypesFrom) -> None:
        self.work, self.source = work, source
        plan = work.plan
        steps = count_batches(len(work.train), plan.batch_size, plan.batches_per_epoch)
        self._next = (plan.epochs - 1) * steps
        self._sums: Tensor | None = None
        self._seen: Tensor | None = None

    def watch(self, features: Tensor, batch: Batch) -> None:
        """Collect a batch's features if it is of the last epoch; a second pass of a step is left out."""
        if self.source != "training" or self.work.steps < self._next:
            return
        self._next = self.work.steps + 1
        classes = len(self.work.train.classes)
        domain = torch.zeros_like(batch.targets)
        sums, seen = class_feature_sums(features.detach(), batch.targets, domain, shape=(1, classes))
        self._sums = sums[0] if self._sums is None else self._sums + sums[0]
        self._seen = seen[0] if self._seen is None else self._seen + seen[0]

    def to_send(self) -> dict[str, Tensor]:
        """Return the prototypes, and the client's number of samples of every class that has one."""
        sums, seen = self._sums, self._seen
        if sums is None or seen is None:
            found = class_statistics(self.work, most=None)
            sums, seen = found[PAIR_SUMS].double().sum(0), found[PAIR_COUNTS].sum(0)
        sums, seen = sums.cpu(), seen.cpu()
        held = torch.bincount(self.work.train.targets, minlength=len(seen))
        prototypes = (sums / seen.clamp(min=1)[:, None]).float()
        return {PROTOTYPES: prototypes, COUNTS: torch.where(seen > 0, held, 0)}


class GlobalPrototypes:
    """Prototypes from the server, on the device of the network.

    means    (prototypes x features)
    classes  (prototypes): the class of each
    centres  (classes x features): mean of a class's prototypes; known says which classes have one
    """

    def __init__(self, received: Mapping[str, Tensor], *, classes: int, device: torch.device) -> None:
        self.means, self.classes = received[MEANS].to(device), received[CLASSES].to(device)
        members = F.one_hot(self.classes, classes).T.to(self.means.dtype)
        self.centres = members @ self.means / members.sum(1, keepdim=True).clamp(min=1)
        self.known = members.any(1)

    def contrast(self, features: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
        """Compute the mean of -log( sum_{q of class y} e^(cos(f,q)/tau) / sum_q e^(cos(f,q)/tau) ).

        A sample whose class has no prototype gives zero.
        """
        similarity = F.normalize(features, dim=1) @ F.normalize(self.means, dim=1).T / temperature
        own = self.classes == targets[:, None]
        known = own.any(1)
        attracted = similarity[known].masked_fill(~own[known], -torch.inf).logsumexp(1)
        return (similarity[known].logsumexp(1) - attracted).sum() / len(features)

    def squared_distance(self, features: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean over samples and features of (f - centre_y)^2; zero without a prototype."""
        square = (features - self.centres[targets]).square().mean(1)
        return torch.where(self.known[targets], square, 0.0).mean()
