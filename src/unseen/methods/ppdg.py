"""PPDG: where two clients' updates conflict, the server moves one of them towards the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from unseen.aggregation import GradientSurgery, ServerWork, align_conflicts, apply_surgery
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods.base import Method, Paper, register


@dataclass(frozen=True)
class PPDGSettings(Settings):
    """Settings of PPDG."""

    strength: float = setting(
        0.1,
        "lambda: how far a conflicting client moves towards the other, at least 0 (plain mean), below 0.5; "
        "paper: 0.1 Camelyon17 and Poverty, 0.05 FMoW, 0.2 TerraIncognita, 0.001 Rotated MNIST",
        search=LogUniform(0.001, 0.4),
    )
    always: bool = setting(False, "align every pair, in conflict or not (ablation of the paper's table 6)")

    def __post_init__(self) -> None:
        if not 0 <= self.strength < 0.5:
            raise UsageError(
                f"PPDG's strength must be at least 0 and below 0.5, not {self.strength}: its convergence is "
                "proved only there (paper, equations 8 and 11), and from 0.5 on a client is moved past the "
                "other one"
            )


@register
class PPDG(Method[PPDGSettings]):
    """Gradient alignment on the server (algorithm 1): w <- w + mean_i g^_i with g_k = w_k - w."""

    name = "ppdg"
    title = "PPDG"
    summary = "moves clients whose updates conflict towards each other before averaging them"
    paper = Paper(
        title="Privacy-Preserving Constrained Domain Generalization via Gradient Alignment",
        authors="Tian, Li, Wang, Wang",
        year=2021,
        venue="arXiv 2105.08511",
        url="https://arxiv.org/abs/2105.08511",
    )
    needs_individual_updates = True

    @property
    def surgery(self) -> GradientSurgery:
        """Align conflicting updates in random order, then take their mean (algorithm 1)."""
        align = partial(align_conflicts, strength=self.settings.strength, always=self.settings.always)
        return GradientSurgery(align, "alignment")

    def server(self, work: ServerWork) -> Tensor:
        """Align, and step by the mean."""
        return apply_surgery(work, self.surgery)
