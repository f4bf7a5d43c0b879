"""FedADG's adversarial losses (equations 2 to 4) on the discriminator's scores.

A score is the probability that a feature was generated: generated features are the positives,
extracted ones the negatives.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor


def discriminator_loss(
    extracted: Tensor, generated: Tensor, *, form: Literal["equation-2", "least-squares"]
) -> Tensor:
    """L_adv_d, equation 2: -E(1 - D(h|y))^2 - E D(h'|y)^2, or the least squares of the released code.

    Both are least where extracted features score 0 and generated ones 1; their slopes differ.
    """
    if form == "least-squares":
        return extracted.square().mean() + (1 - generated).square().mean()
    return -(1 - extracted).square().mean() - generated.square().mean()


def extractor_loss(extracted: Tensor) -> Tensor:
    """L_adv_f, equation 3: E(1 - D(h|y))^2, least where extracted features pass for generated ones."""
    return (1 - extracted).square().mean()


def generator_loss(generated: Tensor, *, goal: Literal["recognised", "mistaken"]) -> Tensor:
    """L_adv_g, equation 4: E(1 - D(h'|y))^2; `mistaken` is the released code's E D(h'|y)^2."""
    return generated.square().mean() if goal == "mistaken" else (1 - generated).square().mean()
