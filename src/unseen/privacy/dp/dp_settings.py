"""Common to both kinds of differential privacy: the settings, and the noise for a target epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.models import Kind, Layout, is_frozen_statistic
from unseen.privacy.dp.accountant import USUAL_DELTA, Steps, compute_epsilon, default_delta, find_noise
from unseen.privacy.dp.noise import NoiseSeed

USUAL_NOISE = 1.0


@dataclass(frozen=True)
class DPSettings(Settings):
    """Settings of differential privacy; open ones are filled in before the run and recorded."""

    clip: float = setting(1.0, "the largest norm of one unit's contribution; longer ones are clipped")
    noise: float | None = setting(
        None, "std of the noise in units of `clip` (the noise multiplier); none = found for `epsilon`, else 1"
    )
    epsilon: float | None = setting(
        None, "the largest epsilon of the whole run; none = whatever follows from `noise`"
    )
    delta: float | None = setting(
        None, "probability with which epsilon may be exceeded; none = 1e-5, or 1 / units^1.1 if smaller"
    )
    noise_seed: NoiseSeed = setting(
        "secret",
        "secret = noise from a secret key, as a guarantee requires; run = from --seed: reproducible, for "
        "research, and no guarantee against anyone who knows the seed",
    )

    def __post_init__(self) -> None:
        for name in ("clip", "noise", "epsilon"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"setting {name!r} of differential privacy must be above 0, not {value}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise UsageError(f"setting 'delta' must be between 0 and 1, not {self.delta}")

    @property
    def multiplier(self) -> float:
        """Noise in units of `clip`, once it is known."""
        if self.noise is None and self.epsilon is not None:
            raise ValueError("the noise for an epsilon is known only after `resolve`")
        return self.noise or USUAL_NOISE

    @property
    def tolerated(self) -> float:
        """Delta, once it is known; until then the default."""
        return self.delta or USUAL_DELTA

    @property
    def origin(self) -> str:
        """Source of the noise, for the record."""
        if self.noise_seed == "secret":
            return "from a secret key"
        return "from the run's seed: repeatable, no guarantee towards anyone who knows it"


D = TypeVar("D", bound=DPSettings)


def resolve_noise(settings: D, *, units: int, worst: Sequence[Steps]) -> D:
    """Fill in delta, and the noise that keeps every one of `worst` within epsilon.

    units  number of units, for the default delta
    worst  planned steps of each unit that differs in them
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
            "leave out `noise` to have it computed, or use more noise or fewer --rounds"
        )
    return replace(settings, noise=noise, delta=delta)


def privacy_record(settings: DPSettings, *, unit: str, epsilon: float, **more: Any) -> dict[str, Any]:
    """Build the record of a guarantee."""
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
    """Refuse networks with batch norm or other buffers, unless their values are frozen."""
    found = [
        entry.name
        for entry in Layout.of(module).entries
        if entry.kind is not Kind.PARAMETER and not is_frozen_statistic(module, entry.name)
    ]
    if found:
        raise UsageError(
            f"--protect {protection} cannot take this network, it has running statistics ({found[0]!r}, ...) "
            f"and {reason}. Use --batch-norm frozen, or group norm: --model NAME+groupnorm"
        )
