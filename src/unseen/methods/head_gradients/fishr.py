"""Fishr in a federation: clients keep the variance of their head's gradients near the clients' mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.hparams import LogUniform, setting
from unseen.methods._shared import elapsed_part
from unseen.methods.base import Paper, register
from unseen.methods.head_gradients.head_matching import (
    HeadComparison,
    HeadMatching,
    HeadMatchingSettings,
    has_bias,
    head_gradient_variance,
)
from unseen.training import ClientWork, LocalTrainingConfig, Update

VARIANCE = "variance of head gradients"


@dataclass(frozen=True)
class FishrSettings(HeadMatchingSettings):
    """Settings of Fishr."""

    penalty: float = setting(
        1000.0,
        "lambda: weight of the penalty; 0 is FedAvg; DomainBed draws it from 10 to 10000",
        search=LogUniform(10.0, 10000.0),
    )
    ema: float = setting(0.95, "part of a client's running variance that is kept at every step")
    start: float = setting(
        0.3, "fraction of the run's rounds before the penalty begins (DomainBed: 1500 of 5000 steps)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.start < 1:
            raise UsageError(f"setting 'start' of fishr must be at least 0 and below 1, not {self.start}")


@register
class Fishr(HeadMatching[FishrSettings]):
    """Clients minimize F_k(w) + lambda mean((v_k - v)^2): v_k the variances of per-sample head gradients.

    v_k is a running mean over the client's batches, which it keeps over rounds and sends; v is the mean of
    the v_k of the round before. As in DomainBed, the difference is divided by 1 - ema, so that the gradient
    that reaches a batch does not depend on ema.
    """

    name = "fishr"
    title = "Fishr"
    summary = "keeps the variances of the clients' head gradients near their mean"
    paper = Paper(
        title="Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization",
        authors="Ramé, Dancette, Cord",
        year=2022,
        venue="ICML",
        url="https://arxiv.org/abs/2109.02934",
    )
    statistic = VARIANCE
    sends: tuple[str, ...] = ("model weights", "number of samples", VARIANCE)
    merges = {VARIANCE: "mean"}  # noqa: RUF012 (declared as the class's own in Method)
    beyond_losses = "it sends the variances of the head's gradients over its samples"

    def compare(self, work: ClientWork, reference: Tensor | None) -> HeadComparison:
        """Compare with the clients' mean of the round before; not in a client's rounds before `start`."""
        started = elapsed_part(work) >= self.settings.start
        return _VarianceComparison(work, self.settings, reference if started else None)

    def client(self, work: ClientWork) -> Update:
        """Train, and keep the running variance for the client's next round."""
        update = super().client(work)
        running = update.extras.get(VARIANCE)
        if running is not None and bool(torch.isfinite(running).all()):
            work.state[VARIANCE] = running.clone()
        return update

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse what cannot be a variance."""
        sent = update.extras.get(VARIANCE)
        return "" if sent is None or not bool((sent < -1e-4).any()) else "sent a negative variance"


class _VarianceComparison(HeadComparison):
    def __init__(self, work: ClientWork, settings: FishrSettings, reference: Tensor | None) -> None:
        device = work.flat.parameters.device
        self.bias, self.settings = has_bias(work), settings
        self.running = work.state[VARIANCE].to(device) if VARIANCE in work.state else None
        self.reference = None if reference is None else reference.to(device)

    def penalty(self, features: Tensor, gradients: Tensor) -> tuple[Tensor | None, float]:
        own = head_gradient_variance(features, gradients, bias=self.bias)
        former = own.detach() if self.running is None else self.running
        mixed = self.settings.ema * former + (1 - self.settings.ema) * own
        self.running = mixed.detach()
        if self.reference is None:
            return None, 0.0
        return ((mixed - self.reference) / (1 - self.settings.ema)).square().mean(), self.settings.penalty

    def result(self) -> Tensor:
        assert self.running is not None, "a client trains on at least one batch"
        return self.running
