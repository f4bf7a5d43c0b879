"""Measurements: what is summed over an evaluation set beyond the plain metrics.

A measurement travels to where the samples are (a worker process, a site) as a few JSON values, and comes back
as arrays that add up over batches, parts, and sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from unseen.calibration.conformal import SCORES, class_scores
from unseen.calibration.histograms import ERROR_EDGES, SCORE_EDGES, Counts, Floats, count_bins
from unseen.calibration.ranking import count_ranking, ranking_edges
from unseen.calibration.reliability import BINS, log_softmax, proper_scores, reliability_sums
from unseen.calibration.scaling import LOG_TEMPERATURES, UNSCALED, Scaling, temperature_sums, vector_sums
from unseen.errors import UnseenError, unknown_name
from unseen.printable import printable

Sums: TypeAlias = dict[str, npt.NDArray[Any]]
KINDS = ("temperature", "vector", "classes", "values")
_INTEGERS = np.int64


@dataclass(frozen=True)
class Measurement:
    """What to sum.

    kind     `temperature`: NLL and slope at a grid of temperatures; `vector`: NLL, gradient and Hessian of
             vector scaling; `classes`: reliability, ranking and conformal scores; `values`: errors
    scaling  of the logits, before what the user takes away is measured
    """

    kind: str
    scaling: Scaling = UNSCALED

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("measurement", printable(self.kind, longest=40), KINDS)

    def sums(self, outputs: Floats, targets: npt.NDArray[Any]) -> Sums:
        """Sum over a batch of logits (samples x classes), or of predicted values (samples x 1)."""
        if self.kind == "values":
            errors = np.abs(outputs.reshape(-1) - targets.reshape(-1))
            return {"absolute": np.array([errors.sum()]), "errors": count_bins(errors, ERROR_EDGES)}
        if self.kind == "temperature":
            return {"temperature": temperature_sums(outputs, targets)}
        if self.kind == "vector":
            return {"vector": vector_sums(outputs, targets, self.scaling)}
        return self._class_sums(outputs, targets)

    def _class_sums(self, logits: Floats, targets: Counts) -> Sums:
        plain, scaled = log_softmax(logits), log_softmax(self.scaling.apply(logits))
        before, after = np.exp(plain), np.exp(scaled)
        found: Sums = {
            "ranking": count_ranking(before, targets),
            "reliability_before": reliability_sums(before, targets),
            "reliability_after": reliability_sums(after, targets),
            "proper_before": proper_scores(plain, targets),
            "proper_after": proper_scores(scaled, targets),
        }
        rows = np.arange(len(targets))
        for kind in SCORES:
            scores = class_scores(after, kind)
            found[f"true_{kind}"] = count_bins(scores[rows, targets], SCORE_EDGES)
            found[f"all_{kind}"] = count_bins(scores, SCORE_EDGES)
            found[f"least_{kind}"] = count_bins(scores.min(axis=1), SCORE_EDGES)
        return found

    def zeros(self, outputs: int) -> Sums:
        """Return the sums over no samples, which have every array's shape and type.

        outputs  numbers that a model predicts per sample
        """
        if self.kind == "values":
            return {"absolute": np.zeros(1), "errors": np.zeros(len(ERROR_EDGES) + 1, _INTEGERS)}
        if self.kind == "temperature":
            return {"temperature": np.zeros((2, len(LOG_TEMPERATURES)))}
        if self.kind == "vector":
            return {"vector": np.zeros(1 + 2 * outputs + 4 * outputs**2)}
        scores = [f"{part}_{kind}" for kind in SCORES for part in ("true", "all", "least")]
        return {
            "ranking": np.zeros((outputs, 2, len(ranking_edges(outputs)) + 1), _INTEGERS),
            **{f"reliability_{when}": np.zeros((3, BINS)) for when in ("before", "after")},
            **{f"proper_{when}": np.zeros(2) for when in ("before", "after")},
            **{name: np.zeros(len(SCORE_EDGES) + 1, _INTEGERS) for name in scores},
        }

    def explain_impossible(self, sums: Mapping[str, npt.NDArray[Any]], samples: int, outputs: int) -> str:
        """Explain why these cannot be the sums over so many samples; "" if they can."""
        expected = {"ranking": outputs * samples} | {f"all_{kind}": outputs * samples for kind in SCORES}
        for name, array in sums.items():
            if array.dtype == _INTEGERS and (
                bool((array < 0).any()) or int(array.sum()) != expected.get(name, samples)
            ):
                return f"a histogram {name!r} of other samples than the census says ({samples})"
            if name.startswith("reliability") and (
                not np.isfinite(array).all() or array[0].sum() != samples or (array[1:] > array[:1]).any()
            ):
                return f"sums {name!r} that no probabilities have"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        return {"kind": self.kind, "scaling": self.scaling.to_dict()}

    @classmethod
    def from_dict(cls, values: Any, *, outputs: int) -> Measurement:
        """Read a measurement that was asked for; anything else than `to_dict` returns is refused."""
        if not isinstance(values, dict) or values.keys() != {"kind", "scaling"}:
            raise UnseenError("was asked for an unreadable measurement")
        return cls(str(values["kind"]), Scaling.from_dict(values["scaling"], outputs=outputs))
