"""FedLC: a client's logits are lowered by class, the more the rarer the class is there (label skew)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.aggregation import ServerWork, client_weights
from unseen.errors import UsageError
from unseen.hparams import Settings, Uniform, setting
from unseen.methods.base import Method, Paper, register
from unseen.training import ClientWork, Update

SMALLEST_COUNT = 1e-8
"""Stands for the number of samples of a class that a client does not have: its logit falls by 100 tau."""


@dataclass(frozen=True)
class FedLCSettings(Settings):
    """Settings of FedLC."""

    tau: float = setting(
        0.5,
        "strength of the calibration; 0 is FedAvg; the paper does not state its value, public code has 0.5",
        search=Uniform(0.1, 2.0),
    )

    def __post_init__(self) -> None:
        if not self.tau >= 0:
            raise UsageError(f"setting 'tau' of fedlc must not be negative, not {self.tau}")


@register
class FedLC(Method[FedLCSettings]):
    """Logits calibration: clients train on f_c(x) - tau n_c^(-1/4) in place of the logits f_c(x).

    n_c is the client's own number of samples of class c (equation 7). A class with few samples must win by a
    larger margin; one without takes practically no part in the softmax, so the client does not unlearn it.
    """

    name = "fedlc"
    title = "FedLC"
    summary = "lowers a client's logits by class, the more the rarer the class is there (label skew)"
    paper = Paper(
        title="Federated Learning with Label Distribution Skew via Logits Calibration",
        authors="Zhang, Li, Li, Xu, Wu, Ding, Wu",
        year=2022,
        venue="ICML",
        url="https://arxiv.org/abs/2209.00189",
    )
    beyond_losses = "its loss depends on the client's number of samples of every class"
    fixed_weights = ""
    mixed_targets = True

    def client(self, work: ClientWork) -> Update:
        """Train on calibrated logits."""
        if not work.train.task_type.has_classes:
            raise UsageError(
                "fedlc calibrates the logits of classes, but this is regression: use --method fedavg"
            )
        if not self.settings.tau:
            return super().client(work)
        margins = label_margins(
            work.train.targets, classes=len(work.train.classes), tau=self.settings.tau
        ).to(work.prepare.device)
        work.fit(lambda batch: work.task_loss(work.module(batch.inputs) - margins, batch.targets))
        present = work.train.targets.unique().to(margins.device)
        spread = margins[present].max() - margins[present].min()
        return work.update(
            diagnostics={"margin_spread": float(spread), "classes_missing": len(margins) - len(present)}
        )

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models."""
        return work.updates.mean(client_weights(work.updates.samples, self.weighting))


def label_margins(targets: Tensor, *, classes: int, tau: float) -> Tensor:
    """Compute tau n_c^(-1/4) of every class from a client's targets."""
    counts = torch.bincount(targets, minlength=classes).float()
    return tau * counts.clamp(min=SMALLEST_COUNT).pow(-0.25)
