"""Temperature and vector scaling, fitted from sums over clients' validation data.

Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017): p = softmax(z / T), or softmax(w * z + b)
with one weight and bias per class, by minimal negative log-likelihood (NLL). For the temperature each client
sends its NLL and the slope at a fixed grid of temperatures, once; the sum's minimum lies between two of them,
where a cubic gives it. Vector scaling takes Newton steps, each one exchange of gradients and Hessians.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from unseen.calibration.histograms import Counts, Floats
from unseen.calibration.reliability import log_softmax
from unseen.errors import UnseenError, UsageError

LOG_TEMPERATURES: Floats = np.linspace(math.log(0.05), math.log(20), 61)
"""The grid: 0.05 to 20, with 1 in its middle."""
MOST_VECTOR_CLASSES = 100
NEWTON_STEPS = 12
RIDGE = 1.0
"""Pull of vector scaling towards the temperature's solution, as strong as about one sample."""
LARGEST_FACTOR = 1e6


@dataclass(frozen=True)
class Scaling:
    """Logits times `weights` plus `biases`, one per class or one for all.

    kind  none, temperature or vector
    """

    kind: str = "none"
    weights: tuple[float, ...] = (1.0,)
    biases: tuple[float, ...] = (0.0,)

    @property
    def temperature(self) -> float | None:
        """The temperature; None of vector scaling."""
        return 1 / self.weights[0] if self.kind != "vector" else None

    def apply(self, logits: Floats) -> Floats:
        """Scale logits (samples x classes)."""
        result: Floats = logits * np.array(self.weights) + np.array(self.biases)
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return the scaling as JSON values."""
        return {"kind": self.kind, "weights": list(self.weights), "biases": list(self.biases)}

    @classmethod
    def from_dict(cls, values: Any, *, outputs: int | None = None) -> Scaling:
        """Read a scaling that `to_dict` returned, possibly elsewhere; anything else is refused.

        outputs  number of classes that it must fit
        """
        try:
            kind = str(values["kind"])
            weights, biases = (tuple(map(float, values[name])) for name in ("weights", "biases"))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise UnseenError(f"an unreadable scaling of logits ({type(error).__name__})") from error
        sizes = {1} if outputs is None else {1, outputs}
        fits = len(weights) == len(biases) and (outputs is None or len(weights) in sizes) and weights
        bounded = all(abs(value) <= LARGEST_FACTOR for value in (*weights, *biases))
        if kind not in ("none", "temperature", "vector") or not fits or not bounded:
            raise UnseenError(f"a scaling of logits that cannot be used: {kind!r} of {len(weights)} weights")
        return cls(kind, weights, biases)


UNSCALED = Scaling()


def temperature_sums(logits: Floats, targets: Counts) -> Floats:
    """Sum the NLL, and its slope in log T, at every temperature of the grid (2 x 61)."""
    truth = logits[np.arange(len(targets)), targets]
    sums = np.zeros((2, len(LOG_TEMPERATURES)))
    for place, log_temperature in enumerate(LOG_TEMPERATURES):
        factor = math.exp(-log_temperature)
        logs = log_softmax(factor * logits)
        mean = (np.exp(logs) * logits).sum(axis=1)
        sums[0, place] = -logs[np.arange(len(targets)), targets].sum()
        sums[1, place] = -factor * (mean - truth).sum()
    return sums


def fit_temperature(sums: Floats) -> Scaling:
    """Find the temperature with the smallest summed NLL; T = 1 if the sums are not finite.

    The NLL is convex in 1/T, so the slope in log T changes its sign once; between the two grid points
    around that, the cubic through both values and slopes is minimized.
    """
    if not np.isfinite(sums).all() or not sums.any():
        return UNSCALED
    rising = np.flatnonzero(sums[1] > 0)
    if not len(rising) or rising[0] == 0:
        end = LOG_TEMPERATURES[0 if len(rising) else -1]
        return Scaling("temperature", (math.exp(-end),))
    right = int(rising[0])
    step = LOG_TEMPERATURES[right] - LOG_TEMPERATURES[right - 1]
    (low, high), slopes = sums[0, right - 1 : right + 1], sums[1, right - 1 : right + 1] * step
    square = 3 * (high - low) - 2 * slopes[0] - slopes[1]
    cube = slopes[0] + slopes[1] - 2 * (high - low)
    start, end = 0.0, 1.0
    for _ in range(60):
        middle = (start + end) / 2
        slope = slopes[0] + 2 * square * middle + 3 * cube * middle**2
        start, end = (start, middle) if slope > 0 else (middle, end)
    return Scaling("temperature", (math.exp(-(LOG_TEMPERATURES[right - 1] + start * step)),))


def vector_sums(logits: Floats, targets: Counts, scaling: Scaling) -> Floats:
    """Sum NLL, gradient and Hessian in (weights, biases) at a scaling, as one vector."""
    samples, classes = logits.shape
    logs = log_softmax(scaling.apply(logits))
    chances, rows = np.exp(logs), np.arange(samples)
    beyond = chances.copy()
    beyond[rows, targets] -= 1
    inputs = np.concatenate([logits, np.ones_like(logits)], axis=1)
    gradient = (np.tile(beyond, 2) * inputs).sum(axis=0)
    weighted = np.tile(chances, 2) * inputs
    hessian = -weighted.T @ weighted
    own = np.arange(classes)
    for first in (0, classes):
        for second in (0, classes):
            product = inputs[:, first : first + classes] * inputs[:, second : second + classes]
            hessian[first + own, second + own] += (chances * product).sum(axis=0)
    return np.concatenate([[-logs[rows, targets].sum()], gradient, hessian.reshape(-1)])


AskVector: TypeAlias = Callable[[Scaling], Floats]
"""One exchange: the clients' summed `vector_sums` at a scaling."""


def fit_vector(ask: AskVector, start: Scaling, *, classes: int) -> Scaling:
    """Fit one weight and bias per class by Newton's method, from a temperature; a step that fails is cut.

    Minimizes NLL + RIDGE/2 * |(w, b) - start|^2, which has one minimum even where few samples say little.
    """
    if classes > MOST_VECTOR_CLASSES:
        raise UsageError(
            f"--calibrate vector sends (2 x classes)^2 numbers, too many for {classes} classes (at most "
            f"{MOST_VECTOR_CLASSES}): use --calibrate temperature"
        )
    origin = np.concatenate([np.full(classes, start.weights[0]), np.zeros(classes)])
    place, step = origin.copy(), np.zeros(2 * classes)
    best = math.inf
    for _ in range(NEWTON_STEPS):
        tried = place + step
        sums = ask(_vector(tried))
        loss = float(sums[0]) + RIDGE / 2 * float(((tried - origin) ** 2).sum())
        if not np.isfinite(sums).all() or loss > best:
            step = step / 4
            continue
        place, gain, best = tried, best - loss, loss
        gradient = sums[1 : 1 + 2 * classes] + RIDGE * (place - origin)
        hessian = sums[1 + 2 * classes :].reshape(2 * classes, -1) + RIDGE * np.eye(2 * classes)
        step = -np.linalg.solve(hessian, gradient)
        if float(-gradient @ step) < 1e-10 * max(1.0, best) or gain < 1e-12 * max(1.0, best):
            break
    return _vector(place)


def _vector(place: Floats) -> Scaling:
    weights, biases = np.split(place, 2)
    return Scaling("vector", tuple(weights.tolist()), tuple(biases.tolist()))
