"""What calibration leaves with a model: the scaling of its outputs, and thresholds of sets and intervals.

In the header of `model.safetensors` and in the run's `calibration.json`, as the same JSON values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.calibration.conformal import (
    DEFAULT_PROMISE,
    DEFAULT_RULE,
    DEFAULT_SCORE,
    FREE_CLASSES,
    PENALTY,
    class_scores,
)
from unseen.calibration.histograms import Floats
from unseen.calibration.reliability import log_softmax
from unseen.calibration.scaling import UNSCALED, Scaling
from unseen.errors import UnseenError, UsageError

Limits = Mapping[str, Mapping[str, Mapping[str, float | None]]]


@dataclass(frozen=True)
class Calibration:
    """The scaling of logits, and the thresholds of conformal scores.

    scaling  turns logits into those whose softmax is calibrated on the sources
    limits   score -> promise ("0.9") -> rule -> the value that the scores of a set's classes are below; None:
             no threshold keeps the promise, a set has all classes. Of quantities the score is `error`: half
             the width of an interval, in the target's own unit
    sources  the domains whose validation samples it was fitted on, and how many samples those were
    default  score, promise and rule that users get who name none
    """

    scaling: Scaling = UNSCALED
    limits: Limits = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    default: Mapping[str, Any] = field(
        default_factory=lambda: {"score": DEFAULT_SCORE, "promise": DEFAULT_PROMISE, "rule": DEFAULT_RULE}
    )

    def probabilities(self, logits: Floats) -> Floats:
        """Compute calibrated probabilities of logits (samples x classes)."""
        result: Floats = np.exp(log_softmax(self.scaling.apply(logits)))
        return result

    def limit(
        self, *, score: str | None = None, promise: float | None = None, rule: str | None = None
    ) -> float | None:
        """Return a threshold; what is not named is the default."""
        named = {"score": score, "promise": promise, "rule": rule}
        keys = [self.default[name] if value is None else value for name, value in named.items()]
        found: Any = self.limits
        for name, key in zip(named, keys, strict=True):
            text = f"{key:g}" if isinstance(key, float) else str(key)
            if text not in found:
                known = ", ".join(map(str, found)) or "none"
                raise UsageError(f"the model has no conformal threshold for {name} {text}; it has: {known}")
            found = found[text]
        return None if found is None else float(found)

    def sets(self, logits: Floats, **chosen: Any) -> npt.NDArray[np.bool_]:
        """Return the prediction set of every sample as a mask over the classes.

        chosen  score, promise and rule, as for `limit`
        """
        limit = self.limit(**chosen)
        scores = class_scores(self.probabilities(logits), str(chosen.get("score") or self.default["score"]))
        return np.ones_like(scores, dtype=bool) if limit is None else scores < limit

    def intervals(self, values: Floats, **chosen: Any) -> tuple[Floats, Floats]:
        """Return both ends of the interval around every predicted quantity, in the target's own unit."""
        limit = self.limit(**chosen)
        half = np.inf if limit is None else limit
        return values - half, values + half

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as JSON values."""
        return {
            "scaling": self.scaling.to_dict(),
            "temperature": self.scaling.temperature,
            "sources": dict(self.sources),
            "conformal": {
                "default": dict(self.default),
                "limits": self.limits,
                "raps": {"penalty": PENALTY, "free_classes": FREE_CLASSES},
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Read a calibration from a model's header or a run's file."""
        try:
            conformal = values["conformal"]
            raps = conformal["raps"]
            limits, default = dict(conformal["limits"]), dict(conformal["default"])
            sources = {str(name): int(count) for name, count in values["sources"].items()}
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise UnseenError(f"an unreadable calibration ({type(error).__name__}: {error})") from error
        if raps != {"penalty": PENALTY, "free_classes": FREE_CLASSES}:
            raise UnseenError("a calibration with other settings of raps than this version of Unseen has")
        return cls(Scaling.from_dict(values["scaling"]), limits, sources, default)
