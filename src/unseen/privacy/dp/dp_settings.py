"""What both kinds of differential privacy share: the settings, and how a noise is found for an epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.models import Kind, Layout
from unseen.privacy.dp.accountant import USUAL_DELTA, Steps, compute_epsilon, default_delta, find_noise
from unseen.privacy.dp.noise import NoiseSeed

USUAL_NOISE = 1.0


@dataclass(frozen=True)
class DPSettings(Settings):
    """Settings of differential privacy; what is left open is filled in before the run and written down."""

    clip: float = setting(1.0, "the largest norm that one unit's part may have; what is longer is shortened")
    noise: float | None = setting(
        None, "standard deviation of the noise in units of `clip`; none = found for `epsilon`, else 1"
    )
    epsilon: float | None = setting(
        None, "the most that the whole run may spend; none = whatever `noise` comes to"
    )
    delta: float | None = setting(
        None, "chance with which epsilon may fail to hold; none = 1e-5, or 1 / units^1.1 if smaller"
    )
    noise_seed: NoiseSeed = setting(
        "secret",
        "secret = noise from a secret key, as a guarantee needs it; run = from --seed: repeatable, for "
        "research, and no guarantee towards anyone who knows the seed",
    )

    def __post_init__(self) -> None:
        for name in ("clip", "noise", "epsilon"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"setting {name!r} of differential privacy must be above 0, not {value}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise UsageError(f"setting 'delta' must lie between 0 and 1, not {self.delta}")

    @property
    def multiplier(self) -> float:
        """The noise in units of `clip`, once it is known."""
        if self.noise is None and self.epsilon is not None:
            raise ValueError("the noise for an epsilon is known only after `resolve`")
        return self.noise or USUAL_NOISE

    @property
    def tolerated(self) -> float:
        """The delta, once it is known; before, the usual one."""
        return self.delta or USUAL_DELTA

    @property
    def origin(self) -> str:
        """Where the noise comes from, for the record."""
        if self.noise_seed == "secret":
            return "from a secret key"
        return "from the run's seed: repeatable, no guarantee towards anyone who knows it"


D = TypeVar("D", bound=DPSettings)


def resolve_noise(settings: D, *, units: int, worst: Sequence[Steps]) -> D:
    """Settings with a delta, and with the noise that keeps every one of `worst` within epsilon.

    units  how many units there are, for the default delta
    worst  the steps that the run will take, for each of the units that differ in this
    """
    delta = settings.delta or default_delta(units)
    if settings.epsilon is None:
        return replace(settings, noise=settings.noise or USUAL_NOISE, delta=delta)
    noise = settings.noise
    if noise is None:
        noise = max(find_noise(settings.epsilon, steps, delta=delta) for steps in worst)
    spent = max(compute_epsilon([steps], noise=noise, delta=delta) for steps in worst)
    if spent > settings.epsilon:
        raise UsageError(
            f"with noise {noise:g} the run would spend epsilon {spent:.3g}, more than {settings.epsilon:g}: "
            "leave `noise` out to have it found, or give more of it or fewer --rounds"
        )
    return replace(settings, noise=noise, delta=delta)


def privacy_record(settings: DPSettings, *, unit: str, epsilon: float, **more: Any) -> dict[str, Any]:
    """What records say of a guarantee."""
    return {
        "epsilon": epsilon,
        "delta": settings.tolerated,
        "unit": unit,
        "noise_multiplier": settings.multiplier,
        **more,
        "accountant": "opacus, Rényi",
        "noise": settings.origin,
    }


def require_no_buffers(protection: str, module: nn.Module, reason: str) -> None:
    """Refuse networks with batch norm, or anything else that carries numbers beside its parameters."""
    found = [entry.name for entry in Layout.of(module).entries if entry.kind is not Kind.PARAMETER]
    if found:
        raise UsageError(
            f"--protect {protection} cannot take this network, it has running statistics ({found[0]!r}, ...) "
            f"and {reason}. Put group norm in their place: --model NAME+groupnorm"
        )
