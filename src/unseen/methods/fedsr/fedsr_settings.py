"""Settings of FedSR and of its two halves, FedL2R and FedCMI, and the objective they define."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unseen.aggregation import WEIGHTING, Weighting
from unseen.errors import UsageError
from unseen.hparams import Settings, setting

Holder = Literal["shared", "local"]


@dataclass(frozen=True)
class RepresentationSettings(Settings):
    """Settings that all three methods share."""

    bottleneck: bool = setting(
        False,
        "whether one more linear layer, as wide as the feature, computes the representation (as in the "
        "released code); false = it is the network's own feature",
    )
    weighting: Weighting = setting("samples", f"{WEIGHTING} (as in the released code)")

    def __post_init__(self) -> None:
        for name in ("l2r_weight", "cmi_weight"):
            value = getattr(self, name, 0.0)
            if not value >= 0:
                raise UsageError(f"setting {name!r} must not be negative, not {value}")


@dataclass(frozen=True)
class FedL2RSettings(RepresentationSettings):
    """Settings of FedL2R."""

    l2r_weight: float = setting(0.01, "alpha_L2R, weight of the representation's length; 0 = none")
    squared: bool = setting(
        False,
        "true: penalize ||z||^2, as in the paper; false: ||z||, which the released code uses with 0.01",
    )


@dataclass(frozen=True)
class FedCMISettings(RepresentationSettings):
    """Settings of FedCMI."""

    cmi_weight: float = setting(
        0.001, "alpha_CMI, weight of the divergence from the reference of the sample's class; 0 = none"
    )
    reference: Holder = setting(
        "shared",
        "shared: one reference r(z|y), averaged with the model; local: each client's own (released code)",
    )
    scale: bool = setting(
        True,
        "learn a factor on the representation inside the divergence (released code); false = the paper's",
    )


@dataclass(frozen=True)
class FedSRSettings(FedL2RSettings, FedCMISettings):
    """Settings of FedSR."""

    probabilistic: bool = setting(
        True,
        "draw the representation from N(mu(x), sigma(x)^2) in training; false = its mean, needs cmi_weight=0",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cmi_weight and not self.probabilistic:
            raise UsageError(
                "probabilistic=false leaves no distribution to compare with a reference: set cmi_weight=0 too"
            )


@dataclass(frozen=True)
class Objective:
    """Loss of any of the three methods: its settings, with the terms it lacks switched off."""

    probabilistic: bool
    bottleneck: bool
    weighting: Weighting
    l2r_weight: float = 0.0
    squared: bool = False
    cmi_weight: float = 0.0
    reference: Holder = "shared"
    scale: bool = True
