"""MDFL: FedAvg whose clients also pull their features towards the other domains' class means (BoDA).

Class means are exchanged: clients send per-class sums and counts of features, the server merges
them per domain and sends the table back. See docs/methods/mdfl.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from unseen.aggregation import ServerWork, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, Uniform, setting
from unseen.methods._shared import explain_incomplete_extras
from unseen.methods.base import Method, Paper, register
from unseen.methods.mdfl.boda import Prototypes, boda_loss
from unseen.methods.mdfl.class_statistics import (
    COUNTS,
    MEANS,
    SUMS,
    class_statistics,
    merge_statistics,
    renew_table,
    transferability,
)
from unseen.models import Network
from unseen.training import ClientWork, LocalTrainingConfig, Update


@dataclass(frozen=True)
class MDFLSettings(Settings):
    """Settings of MDFL."""

    strength: float = setting(
        0.1,
        "weight lambda of L_BoDA (equation 6; paper 1, BoDA's code 0.1); 0 is FedAvg ('without L_B')",
        search=LogUniform(0.01, 10.0),
        formerly=1.0,
    )
    start: float = setting(
        0.25, "fraction of the rounds that train without L_BoDA first; 0 = it acts from the start", absent=0.0
    )
    nu: float = setting(
        0.5,
        "exponent of the calibration (N_{d',c'} / N_{d,c})^nu; 0 = plain distances",
        search=Uniform(0.0, 1.0),
    )
    divide_by_count: bool = setting(
        False, "also divide distances by N_{d,c}, as BoDA's released code does; MDFL's equation 8 does not"
    )
    temperature: float = setting(1.0, "distances are divided by it before the softmax")
    distance_unit: Literal["one", "mean-distance"] = setting(
        "one",
        "what distances are measured in: one = as they are, or the mean distance between the class means of "
        "the round, so that the scale of features does not matter",
        absent="one",
    )
    momentum: float = setting(0.0, "fraction of a former class mean that is kept (BoDA's released code: 0.2)")
    features_from: Literal["received", "trained"] = setting(
        "received", "compute class means with the received model, or with the client's own after training"
    )
    mean_samples: int | None = setting(
        None, "largest number of samples of a client's (domain, class) pair for its mean; none = all"
    )
    refresh_every: int = setting(1, "rounds between updates of the class means; more saves computation")

    def __post_init__(self) -> None:
        if self.strength < 0 or self.nu < 0:
            raise UsageError("settings 'strength' and 'nu' of mdfl must not be negative")
        if not 0 <= self.start < 1:
            raise UsageError(f"setting 'start' of mdfl must be in [0, 1), not {self.start}")
        if self.temperature <= 0:
            raise UsageError(f"setting 'temperature' of mdfl must be above 0, not {self.temperature}")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"setting 'momentum' of mdfl must be in [0, 1), not {self.momentum}")
        if self.mean_samples is not None and self.mean_samples < 1:
            raise UsageError(f"setting 'mean_samples' of mdfl must be at least 1, not {self.mean_samples}")
        if self.refresh_every < 1:
            raise UsageError(f"setting 'refresh_every' of mdfl must be at least 1, not {self.refresh_every}")


@register
class MDFL(Method[MDFLSettings]):
    """Multi-domain federated learning: clients minimize L_C + strength * L_BoDA (equations 6 to 8)."""

    name = "mdfl"
    title = "MDFL"
    summary = "FedAvg plus a loss that aligns each class with its means in the other domains (BoDA)"
    paper = Paper(
        title="Exploiting data diversity in multi-domain federated learning",
        authors="Madni, Umer, Foresti",
        year=2024,
        venue="Machine Learning: Science and Technology",
        url="https://doi.org/10.1088/2632-2153/ad4768",
    )
    sends = ("model weights", "number of samples", SUMS, COUNTS)
    beyond_losses = "it sends statistics of the features of its samples, class by class"
    fixed_weights = ""

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send the table of class means and counts; there is none before the first round."""
        return {key: state[key] for key in (MEANS, COUNTS) if key in state}

    def client(self, work: ClientWork) -> Update:
        """Train on both losses, and send the class sums of the features with the weights."""
        if not work.train.task_type.has_classes:
            raise UsageError("mdfl aligns classes, but this task is regression; use another method")
        due = (work.round - 1) % self.settings.refresh_every == 0
        extras: dict[str, Tensor] = {}
        if due and self.settings.features_from == "received":
            extras = class_statistics(work, most=self.settings.mean_samples)
        term = _BoDATerm(work, self.settings)
        work.fit(term.loss)
        if due and self.settings.features_from == "trained":
            extras = class_statistics(work, most=self.settings.mean_samples)
        return work.update(extras=extras, diagnostics=term.diagnostics())

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Compare the class counts with the number of samples; sums and counts belong together."""
        sums, counts = update.extras.get(SUMS), update.extras.get(COUNTS)
        if sums is None or counts is None:
            return explain_incomplete_extras(update, {SUMS, COUNTS})
        fits = counts.dtype is torch.int64 and counts.ndim == 2 and sums.shape[:2] == counts.shape
        if not fits or sums.ndim != 3 or sums.dtype is not torch.float32 or counts.shape[1] != outputs:
            return "sent class statistics of another form"
        if bool((counts < 0).any()) or bool((counts > update.samples).any()):
            return "sent class counts that no samples have"
        return "" if int(counts.sum()) == update.samples else "sent class counts of other samples"

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models, by samples in the paper (equation 2), and update the table."""
        merged = merge_statistics(work.updates.extras)
        if merged is not None:
            renew_table(work.state, *merged, momentum=self.settings.momentum)
            work.diagnostics |= transferability(work.state[MEANS], work.state[COUNTS])
        return work.updates.mean(client_weights(work.updates.samples, self.weighting))


class _BoDATerm:
    """The client's loss L_C + strength * L_BoDA, with running means of the second term."""

    def __init__(self, work: ClientWork, settings: MDFLSettings) -> None:
        self.work, self.settings = work, settings
        self.network = cast(Network, work.module)
        self.prototypes: Prototypes | None = None
        started = work.round > settings.start * work.plan.rounds
        self.temperature = settings.temperature
        if MEANS in work.received and settings.strength > 0 and started:
            table = Prototypes.of_table(work.received[MEANS], work.received[COUNTS])
            self.prototypes = table.to(work.prepare.device)
            if settings.distance_unit == "mean-distance":
                self.temperature *= table.mean_distance()
        self._sum = torch.zeros((), dtype=torch.float64)
        self._acting = self._seen = 0

    def loss(self, batch: Batch) -> Tensor:
        """Compute equation 6 on a batch."""
        features = self.network.features(batch.inputs)
        value = self.work.task_loss(self.network.head(features), batch.targets)
        if self.prototypes is None:
            return value
        settings = self.settings
        alignment = boda_loss(
            features,
            batch.targets,
            batch.domains,
            self.prototypes,
            nu=settings.nu,
            divide_by_count=settings.divide_by_count,
            temperature=self.temperature,
        )
        self._sum += alignment.detach().double().cpu() * len(batch.targets)
        self._acting += int(self.prototypes.positives(batch.targets, batch.domains).any(1).sum())
        self._seen += len(batch.targets)
        return value + settings.strength * alignment

    def diagnostics(self) -> dict[str, float]:
        """Return the mean L_BoDA and the fraction of samples with a positive; nothing without a table."""
        if not self._seen:
            return {}
        return {"boda loss": float(self._sum) / self._seen, "boda acts on": self._acting / self._seen}
