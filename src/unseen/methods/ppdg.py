"""PPDG: where two clients' updates conflict, the server moves one of them towards the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from unseen.aggregation import (
    GradientSurgery,
    ServerWork,
    align_conflicts,
    apply_surgery,
    unequal_weights,
)
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods.base import Method, Paper, register

PROVED_BELOW = 0.5
"""Strength below which the paper proves convergence: 2 lambda^2 < 1/2 and 8 lambda^4 < 1/2."""


@dataclass(frozen=True)
class PPDGSettings(Settings):
    """Settings of PPDG."""

    strength: float = setting(
        0.1,
        "lambda: how far a conflicting client moves towards the other, at least 0 (plain mean), below 0.5 "
        "unless unproved; "
        "paper: 0.1 Camelyon17 and Poverty, 0.05 FMoW, 0.2 TerraIncognita, 0.001 Rotated MNIST",
        search=LogUniform(0.001, 0.4),
    )
    always: bool = setting(False, "align every pair, in conflict or not (ablation of the paper's table 6)")

    line_6: Literal["equation-5", "printed"] = setting(
        "equation-5",
        "where a move starts: at the current vector (equation 5 and the proof), or at the original one, as "
        "line 6 of algorithm 1 is printed",
        absent="equation-5",
    )
    unproved: bool = setting(
        False,
        "allow a strength from 0.5 to 1, for which convergence is not proved (figure 1)",
        identifies=False,
    )

    def __post_init__(self) -> None:
        if not 0 <= self.strength < (1 if self.unproved else PROVED_BELOW):
            raise UsageError(
                f"PPDG's strength must be at least 0 and below 0.5, not {self.strength}: its convergence is "
                "proved only there (paper, equations 8 and 11), and beyond it a client is moved past the "
                "other one; unproved=true allows up to 1"
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
    default_weighting = "uniform"
    fixed_weights = ""

    @property
    def surgery(self) -> GradientSurgery:
        """Align conflicting updates in random order, then take their mean (algorithm 1)."""
        settings = self.settings
        align = partial(
            align_conflicts,
            strength=settings.strength,
            always=settings.always,
            from_original=settings.line_6 == "printed",
        )
        return GradientSurgery(align, "alignment")

    @property
    def notes(self) -> tuple[str, ...]:
        """Warn of a strength outside the paper's proof."""
        if self.settings.strength < PROVED_BELOW:
            return ()
        return (
            f"ppdg: strength {self.settings.strength:g} is outside the paper's proof of convergence, which "
            f"needs less than {PROVED_BELOW:g}",
        )

    def server(self, work: ServerWork) -> Tensor:
        """Align, and step by the mean."""
        weights = unequal_weights(work.updates.samples, self.weighting)
        return apply_surgery(work, self.surgery, weights=weights)
