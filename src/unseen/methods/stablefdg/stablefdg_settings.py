"""Settings of StableFDG; each of its parts has one that switches it off."""

from __future__ import annotations

from dataclasses import dataclass

from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, Uniform, setting

_OWNER = "of stablefdg"


@dataclass(frozen=True)
class StableFDGSettings(Settings):
    """Settings of StableFDG; the defaults are those of the released code."""

    sharing: float = setting(
        0.5,
        "fraction of the batches that get styles of another client; 0 = none do, and none leave a client",
    )
    shifted: float = setting(
        0.5, "fraction of such a batch whose styles are drawn from the other client's", search=Uniform(0.1, 1)
    )
    mixing: float = setting(
        0.5,
        "fraction of the batches whose styles a stage explores and mixes; 0 = without style exploration",
    )
    oversampling: float = setting(
        1.0,
        "images added within a batch, in explored styles, as a multiple of its size; 0 = mixing alone",
        search=Uniform(0, 2),
    )
    exploration: float = setting(
        3.0,
        "level alpha: how far the styles of added images are pushed away from the batch's mean",
        search=Uniform(0, 5),
    )
    alpha: float = setting(
        0.1,
        "both parameters of the Beta distribution of an image's share of its own style",
        search=LogUniform(0.05, 1.0),
    )
    highlighter: bool = setting(
        True, "whether the head also sees the last map pooled by attention; false = the network's own head"
    )
    attention_size: int = setting(30, "channels of the highlighter's queries and keys")

    def __post_init__(self) -> None:
        for name in ("sharing", "shifted", "mixing"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"setting {name!r} {_OWNER} must be in [0, 1], not {getattr(self, name)}")
        for name in ("oversampling", "exploration"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"setting {name!r} {_OWNER} must not be negative, not {getattr(self, name)}")
        if not self.alpha > 0:
            raise UsageError(f"setting 'alpha' {_OWNER} must be above 0, not {self.alpha}")
        if self.attention_size < 1:
            raise UsageError(
                f"setting 'attention_size' {_OWNER} must be at least 1, not {self.attention_size}"
            )

    @property
    def moves_styles(self) -> bool:
        """Whether styles are changed at all."""
        return bool(self.sharing or self.mixing)
