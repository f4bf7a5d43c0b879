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
from unseen.calibration.expected_accuracy import confidence_sums
from unseen.calibration.histograms import ERROR_EDGES, SCORE_EDGES, Counts, Floats, count_bins
from unseen.calibration.moments import MOST_DIMENSIONS, Gaussian, Moments, count_products, moment_sums
from unseen.calibration.ranking import count_ranking, ranking_edges
from unseen.calibration.reliability import BINS, log_softmax, proper_scores, reliability_sums
from unseen.calibration.scaling import LOG_TEMPERATURES, UNSCALED, Scaling, temperature_sums, vector_sums
from unseen.calibration.site_reference import DISTANCE_EDGES, ENERGY_EDGES, energies
from unseen.errors import UnseenError, unknown_name
from unseen.printable import printable

Sums: TypeAlias = dict[str, npt.NDArray[Any]]
FEATURE_KINDS = ("moments", "distances")
"""Kinds that sum up features; they come from the network together with its outputs."""
KINDS = ("temperature", "vector", "classes", "values", "metrics", *FEATURE_KINDS)
_INTEGERS = np.int64


@dataclass(frozen=True)
class Measurement:
    """What to sum.

    kind     `temperature`: NLL and slope at a grid of temperatures; `vector`: NLL, gradient and Hessian of
             vector scaling; `classes`: reliability, ranking and conformal scores; `values`: errors;
             `metrics`: what metrics and their standard errors follow from, of classes or of values;
             `moments`: features, squares and products; `distances`: distances, energies and confidence
    scaling  of the logits, before what the user takes away is measured
    features length of a feature vector, where features are summed up
    origin   where `distances` are measured from
    """

    kind: str
    scaling: Scaling = UNSCALED
    features: int = 0
    origin: Gaussian | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("measurement", printable(self.kind, longest=40), KINDS)
        if (self.features > 0) != (self.kind in FEATURE_KINDS) or (self.origin is None) != (
            self.kind != "distances"
        ):
            raise UnseenError(f"an incomplete measurement of {self.kind}")

    def sums(self, outputs: Floats, targets: npt.NDArray[Any], features: Floats | None = None) -> Sums:
        """Sum over a batch of logits (samples x classes), or of predicted values (samples x 1).

        features  of the same samples, where they are summed up
        """
        if features is not None:
            return self._feature_sums(outputs, targets, features)
        if self.kind == "metrics":
            return self._metric_sums(outputs, targets)
        if self.kind == "values":
            errors = np.abs(outputs.reshape(-1) - targets.reshape(-1))
            return {"absolute": np.array([errors.sum()]), "errors": count_bins(errors, ERROR_EDGES)}
        if self.kind == "temperature":
            return {"temperature": temperature_sums(outputs, targets)}
        if self.kind == "vector":
            return {"vector": vector_sums(outputs, targets, self.scaling)}
        return self._class_sums(outputs, targets)

    def _feature_sums(self, outputs: Floats, targets: Counts, features: Floats) -> Sums:
        classes = outputs.shape[1] > 1
        if self.origin is None:
            sums, products = moment_sums(features)
            found: Sums = {"features": sums, "products": products}
            if classes:
                found["predicted"] = np.bincount(outputs.argmax(axis=1), minlength=outputs.shape[1])
            return found
        found = {"distance": count_bins(self.origin.distances(features), DISTANCE_EDGES)}
        if classes:
            probabilities = np.exp(log_softmax(self.scaling.apply(outputs)))
            found["energy"] = count_bins(energies(outputs), ENERGY_EDGES)
            found["confidence"] = confidence_sums(probabilities, targets)
        return found

    def moments(self, sums: Sums, samples: int) -> Moments:
        """Return the sums of the kind `moments` as such."""
        predicted = sums.get("predicted", np.zeros(0, _INTEGERS))
        return Moments(samples, sums["features"], sums["products"], predicted)

    def _metric_sums(self, outputs: Floats, targets: npt.NDArray[Any]) -> Sums:
        """Sum what metrics follow from; squares and products are for their standard errors."""
        if outputs.shape[1] == 1:
            truth = targets.reshape(-1).astype(np.float64)
            square = (outputs.reshape(-1) - truth) ** 2
            terms = (square**2, square * truth, square * truth**2, truth**3, truth**4)
            return {
                "absolute": np.array([np.sqrt(square).sum()]),
                "powers": np.array([each.sum() for each in terms]),
            }
        plain, scaled = log_softmax(outputs), log_softmax(self.scaling.apply(outputs))
        probabilities = np.exp(scaled)
        truth = scaled[np.arange(len(targets)), targets]
        brier = (probabilities**2).sum(axis=1) - 2 * np.exp(truth) + 1
        return {
            "ranking": count_ranking(np.exp(plain), targets),
            "reliability_after": reliability_sums(probabilities, targets),
            "proper_after": proper_scores(scaled, targets),
            "squares_after": np.array([(truth**2).sum(), (brier**2).sum()]),
        }

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
        if self.kind == "metrics":
            return self._metric_zeros(outputs)
        if self.kind == "temperature":
            return {"temperature": np.zeros((2, len(LOG_TEMPERATURES)))}
        if self.kind == "vector":
            return {"vector": np.zeros(1 + 2 * outputs + 4 * outputs**2)}
        if self.kind in FEATURE_KINDS:
            return self._feature_zeros(outputs)
        scores = [f"{part}_{kind}" for kind in SCORES for part in ("true", "all", "least")]
        return {
            "ranking": np.zeros((outputs, 2, len(ranking_edges(outputs)) + 1), _INTEGERS),
            **{f"reliability_{when}": np.zeros((3, BINS)) for when in ("before", "after")},
            **{f"proper_{when}": np.zeros(2) for when in ("before", "after")},
            **{name: np.zeros(len(SCORE_EDGES) + 1, _INTEGERS) for name in scores},
        }

    def _metric_zeros(self, outputs: int) -> Sums:
        if outputs == 1:
            return {"absolute": np.zeros(1), "powers": np.zeros(5)}
        return {
            "ranking": np.zeros((outputs, 2, len(ranking_edges(outputs)) + 1), _INTEGERS),
            "reliability_after": np.zeros((3, BINS)),
            "proper_after": np.zeros(2),
            "squares_after": np.zeros(2),
        }

    def _feature_zeros(self, outputs: int) -> Sums:
        found: Sums
        if self.origin is None:
            found = {
                "features": np.zeros((2, self.features)),
                "products": np.zeros(count_products(self.features)),
            }
            return found | ({"predicted": np.zeros(outputs, _INTEGERS)} if outputs > 1 else {})
        found = {"distance": np.zeros(len(DISTANCE_EDGES) + 1, _INTEGERS)}
        if outputs > 1:
            found["energy"] = np.zeros(len(ENERGY_EDGES) + 1, _INTEGERS)
            found["confidence"] = np.zeros((2, len(SCORE_EDGES) + 1), _INTEGERS)
        return found

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
            if name == "features" and not (
                np.isfinite(array).all() and (array[0] ** 2 <= samples * array[1] * (1 + 1e-6) + 1e-9).all()
            ):
                return "sums of features and squares that no features have"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        values: dict[str, Any] = {"kind": self.kind, "scaling": self.scaling.to_dict()}
        if self.features:
            values["features"] = self.features
        if self.origin is not None:
            values["origin"] = {
                "mean": self.origin.mean.tolist(),
                "covariance": self.origin.covariance.tolist(),
                "samples": self.origin.samples,
            }
        return values

    @classmethod
    def from_dict(cls, values: Any, *, outputs: int, features: int = 0) -> Measurement:
        """Read a measurement that was asked for; anything else than `to_dict` returns is refused.

        features  length of the model's feature vectors; 0 if it has none that could be summed up
        """
        known = {"kind", "scaling", "features", "origin"}
        if not isinstance(values, dict) or not {"kind", "scaling"} <= values.keys() <= known:
            raise UnseenError("was asked for an unreadable measurement")
        asked = values.get("features", 0)
        if type(asked) is not int or asked not in (0, features):
            raise UnseenError(f"was asked to sum up other features than the model's {features}")
        origin = _read_origin(values["origin"], features) if "origin" in values else None
        return cls(str(values["kind"]), Scaling.from_dict(values["scaling"], outputs=outputs), asked, origin)


def _read_origin(values: Any, features: int) -> Gaussian:
    """Read mean and covariance that distances are asked from."""
    size = min(features, MOST_DIMENSIONS)
    try:
        mean, covariance = (np.asarray(values[name], dtype=np.float64) for name in ("mean", "covariance"))
        if mean.shape != (size,) or covariance.shape != (size, size):
            raise ValueError(f"expected {size} dimensions")
        np.linalg.cholesky(covariance)
        return Gaussian(mean, covariance, int(values["samples"]))
    except (TypeError, KeyError, ValueError, np.linalg.LinAlgError) as error:
        raise UnseenError("was asked for distances from an unreadable mean or covariance") from error
