"""CSAC's settings: the paper's defaults, its ablations, and the readings that its released code has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unseen.aggregation import DistanceMetric, Grouping
from unseen.aggregation.distances import LayerWeighting
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, Uniform, setting

Variant = Literal["paper", "as-released"]
Alignment = Literal["cross-layer", "same-layer", "none"]
Attention = Literal["both", "position", "channel", "none"]
Distance = Literal["mmd", "mse"]
Partner = Literal["acquired", "latest"]


@dataclass(frozen=True)
class CSACSettings(Settings):
    """Settings of CSAC."""

    strength: float = setting(
        0.6, "lambda, the weight of the alignment in calibration; 0 = none", search=LogUniform(0.05, 5.0)
    )
    acquisition_epochs: int = setting(30, "epochs of a client's first round, on its own data alone")
    acquisition_batches_per_epoch: int | None = setting(
        None, "batches of an epoch of acquisition; none = as in the other rounds"
    )
    label_smoothing: float = setting(0.1, "label smoothing in acquisition; 0 = off", search=Uniform(0.0, 0.2))
    cross_entropy: bool = setting(True, "whether calibration minimises the task's own loss too")
    strategy: LayerWeighting = setting(
        "divergence", "who counts more in the merged model: clients far from the mean, near it, or all alike"
    )
    metric: DistanceMetric = setting("l2", "distance of a client's layer to the mean: l2, l1 or cosine")
    layer: Grouping = setting("tensor", "what gets weights of its own in merging: every tensor or module")
    alignment: Alignment = setting(
        "cross-layer", "which layers are aligned: every pair, each with its own partner, or none"
    )
    attention: Attention = setting(
        "both", "what weighs the pairs: position-wise and channel-wise attention, one of them, or nothing"
    )
    attention_gradient: bool = setting(False, "whether gradients flow through the attention weights")
    query_key: bool = setting(False, "1x1 query and key convolutions before the position-wise map")
    distance: Distance = setting("mmd", "how far apart two sets of features are: mmd or mse")
    logits_term: bool = setting(False, "align the outputs of both models too")
    channels: int = setting(32, "channels of the projected maps")
    rebuild_projections: bool = setting(False, "fresh random projections every round, not kept ones")
    partner: Partner = setting(
        "acquired", "the frozen model: the client's own after its first round, or after its latest round"
    )
    variant: Variant = setting(
        "paper", "as-released: what the authors' code does by default, only the outputs are aligned"
    )

    def __post_init__(self) -> None:
        _require(self.strength >= 0, f"setting 'strength' must not be negative, not {self.strength}")
        _require(0 <= self.label_smoothing < 1, "setting 'label_smoothing' must lie in [0, 1)")
        for name in ("acquisition_epochs", "acquisition_batches_per_epoch", "channels"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"setting {name!r} must be at least 1, not {value}")
        _require(
            self.cross_entropy or self.aligns,
            "csac without cross-entropy and without alignment has nothing to learn: set cross_entropy=true",
        )
        self._refuse_idle()

    @property
    def aligns_maps(self) -> bool:
        """Whether the maps of inner layers are aligned."""
        return self.variant == "paper" and self.alignment != "none" and self.strength > 0

    @property
    def aligns_logits(self) -> bool:
        """Whether the outputs are aligned."""
        return (self.variant == "as-released" or self.logits_term) and self.strength > 0

    @property
    def aligns(self) -> bool:
        """Whether there is an alignment term at all."""
        return self.aligns_maps or self.aligns_logits

    def _refuse_idle(self) -> None:
        """Refuse settings that other settings make ineffective, rather than ignore them silently."""
        changed = [
            name
            for name in ("attention", "attention_gradient", "query_key")
            if getattr(self, name) != getattr(CSACSettings, name)
        ]
        if self.variant == "as-released":
            changed += ["alignment"] if self.alignment != "cross-layer" else []
            cause = "variant=as-released, which aligns no inner layers"
        else:
            cause = f"alignment={self.alignment}, which uses no attention"
        without_attention = self.variant == "as-released" or self.alignment != "cross-layer"
        _require(
            not (without_attention and changed), f"setting {', '.join(changed)} has no effect with {cause}"
        )
        _require(
            not (self.query_key and self.attention in ("channel", "none")),
            f"setting query_key has no effect with attention={self.attention}: it serves the position map",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
