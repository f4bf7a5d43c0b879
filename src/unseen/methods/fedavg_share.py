"""FedAvg-Share: FedAvg whose clients add some of their samples to a pool that all train on.

Raw data leaves the clients: the method shows the gain, and its privacy record lists the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.data import Batch, JoinedSamples
from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods._shared import explain_incomplete_extras
from unseen.methods.base import Method, Paper, register
from unseen.training import ClientWork, LocalTrainingConfig, Update

SAMPLES, LABELS = "training samples", "labels"
UNKNOWN_DOMAIN = -1


@dataclass(frozen=True)
class FedAvgShareSettings(Settings):
    """Settings of FedAvg-Share."""

    share: float = setting(
        0.05,
        "fraction of its training samples that a client adds to the pool, 0 (none: FedAvg) to 1 (all); more "
        "than 0 is at least one sample",
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"setting 'share' of fedavg-share must be in [0, 1], not {self.share}")


@register
class FedAvgShare(Method[FedAvgShareSettings]):
    """FedAvg with a pool of shared samples (section 4 of the paper).

    In its first round a client also sends some of its samples. The server keeps them and sends the whole
    pool. A client trains on its own samples and those of others; in the first round the pool is empty.
    """

    name = "fedavg-share"
    title = "FedAvg-Share"
    summary = "FedAvg; clients also add some raw samples to a pool that all train on"
    paper = Paper(
        title="Federated Learning with Non-IID Data",
        authors="Zhao, Li, Lai, Suda, Civin, Chandra",
        year=2018,
        venue="arXiv 1806.00582",
        url="https://arxiv.org/abs/1806.00582",
    )
    needs_individual_updates = True
    sends: tuple[str, ...] = ("model weights", "number of samples", SAMPLES, LABELS)
    of_single_samples = (SAMPLES, LABELS)
    beyond_losses = "it sends some of its samples"
    mixed_targets = True

    def __init__(self, settings: FedAvgShareSettings) -> None:
        super().__init__(settings)
        if settings.share == 0:
            self.sends = Method.sends

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send the whole pool; a client skips its own part."""
        return dict(state)

    def client(self, work: ClientWork) -> Update:
        """Train on own samples and the others' part of the pool; contribute samples if none were sent yet."""
        others = shared_by_others(work.received, work.client)
        work.fit(
            lambda batch: work.task_loss(work.module(batch.inputs), batch.targets),
            samples=work.train if others is None else JoinedSamples(work.train, others),
        )
        gives = self.settings.share > 0 and _key(SAMPLES, work.client) not in work.received
        return work.update(
            extras=drawn_samples(work, self.settings.share) if gives else {},
            diagnostics={"samples from others": 0 if others is None else len(others.targets)},
        )

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse samples that the other clients could not train on."""
        incomplete = explain_incomplete_extras(update, {SAMPLES, LABELS})
        if incomplete or not update.extras:
            return incomplete
        inputs, targets = update.extras[SAMPLES], update.extras[LABELS]
        if targets.ndim != 1 or inputs.ndim < 2 or not 0 < len(inputs) == len(targets) <= update.samples:
            return "sent samples and labels that do not belong together"
        low, high = float(targets.min()), float(targets.max())
        labels = targets.dtype is torch.int64 and 0 <= low <= high < outputs
        return (
            "" if labels or targets.dtype is torch.float32 else f"sent labels outside of 0 to {outputs - 1}"
        )

    def server(self, work: ServerWork) -> Tensor:
        """Add the clients' samples to the pool, and average their models."""
        updates = work.updates
        for client, given in zip(updates.clients, updates.extras, strict=True):
            work.state.update({_key(kind, client): values for kind, values in given.items()})
        return updates.mean(client_weights(updates.samples, self.settings.weighting))


def drawn_samples(work: ClientWork, share: float) -> dict[str, Tensor]:
    """Draw some of the client's raw training samples with their labels."""
    number = max(round(share * len(work.train)), 1)
    order = torch.randperm(len(work.train), generator=work.generator("samples to share"))
    given = work.train.gather(order[:number].sort().values)
    return {SAMPLES: given.inputs.contiguous(), LABELS: given.targets}


def shared_by_others(pool: Mapping[str, Tensor], client: str) -> Batch | None:
    """Collect the samples of other clients, in the order of their names; None if there are none.

    A client's own part is left out, because it has those samples already.
    """
    givers = sorted(key.removeprefix(_key(SAMPLES, "")) for key in pool if key.startswith(_key(SAMPLES, "")))
    others = [giver for giver in givers if giver != client]
    if not others:
        return None
    inputs, targets = (torch.cat([pool[_key(kind, giver)] for giver in others]) for kind in (SAMPLES, LABELS))
    return Batch(inputs, targets, torch.full((len(inputs),), UNKNOWN_DOMAIN))


def _key(kind: str, client: str) -> str:
    """Name the key of a client's part of the pool."""
    return f"{kind} of {client}"
