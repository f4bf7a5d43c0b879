"""Check a site before a model is used there: its samples against what the model keeps of its sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from unseen.calibration import SCORE_EDGES, Measurement, SiteReference, count_bins
from unseen.calibration.expected_accuracy import AccuracyEstimate, estimate_accuracy
from unseen.calibration.histograms import Counts
from unseen.calibration.moments import Moments
from unseen.calibration.reliability import log_softmax
from unseen.calibration.scaling import UNSCALED
from unseen.calibration.site_reference import energies
from unseen.calibration.site_test import FEWEST, SiteDifference, Verdict, compare_site, judge
from unseen.data.images.decode import Pixels
from unseen.data.sources import SOURCES, DataRequest, Progress, load_data, no_progress
from unseen.errors import UnseenError, UsageError
from unseen.serving.attribution import attribution_maps
from unseen.serving.image_files import image_input, read_image
from unseen.serving.predict import BATCH_SIZE, Prediction, predict, predict_rows
from unseen.serving.saved_model import SavedModel

SHOWN = 6
"""The most and the least usual samples that are shown, each."""


class SiteData(NamedTuple):
    """Where a site's samples are.

    source  a folder of images, a file, or the name of a data set
    domain  of a named data set, the domain to check; "" for all
    root    folder of the named data sets
    """

    source: str
    domain: str = ""
    root: Path | None = None


class Sample(NamedTuple):
    """A sample with its prediction, and, where it is an image, that image, without and with its map."""

    prediction: Prediction
    pixels: Pixels | None
    overlay: Pixels | None = None


@dataclass(frozen=True)
class SiteCheck:
    """What was found at a site.

    failed    samples that could not be read or predicted
    expected  accuracy without labels; None where there are no classes
    mean_confidence  of the calibrated probabilities, beside it
    accuracy  measured, where the data has labels
    usual, unusual   the nearest and the farthest samples
    attribution      what the maps on their images show, or why there are none
    """

    samples: int
    failed: int
    difference: SiteDifference
    verdict: Verdict
    reference: SiteReference
    expected: AccuracyEstimate | None
    mean_confidence: float | None
    accuracy: float | None
    usual: tuple[Sample, ...]
    unusual: tuple[Sample, ...]
    attribution: str

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and sentences as JSON values, without images."""
        difference = self.difference

        def named(samples: Sequence[Sample]) -> list[dict[str, Any]]:
            return [
                {"name": item.name, "distance": item.distance, "unusual": item.unusual}
                for item, *_ in samples
            ]

        return {
            "verdict": self.verdict.name,
            "reasons": list(self.verdict.reasons),
            "samples": self.samples,
            "failed": self.failed,
            "different": difference.different,
            "p_value": difference.p_value,
            "p_values": dict(difference.p_values),
            "new": difference.new,
            "p_of_sources": dict(difference.sources),
            "distance": difference.distance,
            "allowed_distance": difference.allowed if difference.yardstick else None,
            "fraction_unusual": dict(difference.unusual),
            "expected_accuracy": None if self.expected is None else self.expected._asdict(),
            "mean_confidence": self.mean_confidence,
            "accuracy": self.accuracy,
            "source_accuracy": self.reference.accuracy,
            "sources": dict(self.reference.samples),
            "features": [move._asdict() for move in difference.features],
            "classes": [move._asdict() for move in difference.classes],
            "most_usual": named(self.usual),
            "least_usual": named(self.unusual),
        }


@dataclass
class _Sums:
    """Sums over a site's samples."""

    reference: SiteReference
    moments: Moments | None = None
    beyond: dict[str, int] = field(default_factory=dict)
    confidence: Counts | None = None
    total_confidence: float = 0.0

    def add(self, saved: SavedModel, outputs: Tensor, features: Tensor) -> None:
        """Add a batch; samples without a finite output do not count."""
        usable = (outputs.isfinite().all(dim=1) & features.isfinite().all(dim=1)).numpy()
        values, vectors = outputs.double().numpy()[usable], features.double().numpy()[usable]
        if not len(values):
            return
        measurement = Measurement("moments", features=vectors.shape[1])
        found = measurement.sums(values, np.zeros(0), vectors)
        own = measurement.moments(found, len(values))
        self.moments = own if self.moments is None else self.moments + own
        scores = {"distance": self.reference.gaussian.distances(vectors)}
        if "energy" in self.reference.limits:
            scores["energy"] = energies(values)
            scaling = saved.calibration.scaling if saved.calibration else UNSCALED
            confidence = np.exp(log_softmax(scaling.apply(values))).max(axis=1)
            counts = count_bins(confidence, SCORE_EDGES)
            self.confidence = counts if self.confidence is None else self.confidence + counts
            self.total_confidence += float(confidence.sum())
        for name, each in scores.items():
            count = int(self.reference.limits[name].beyond(each).sum())
            self.beyond[name] = self.beyond.get(name, 0) + count


@dataclass(frozen=True)
class _ObservedModel(SavedModel):
    """A model that adds all that passes through it to sums."""

    sums: _Sums | None = None

    def outputs_and_features(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run raw inputs, and remember their sums."""
        outputs, features = super().outputs_and_features(inputs)
        assert self.sums is not None
        if features is not None:
            self.sums.add(self, outputs, features)
        return outputs, features


def check_site(
    saved: SavedModel, data: SiteData, *, batch_size: int = BATCH_SIZE, progress: Progress = no_progress
) -> SiteCheck:
    """Compare a site's samples with the sources, and estimate the model's accuracy there."""
    reference = saved.reference
    if reference is None:
        raise UnseenError(
            f"the model of run {saved.card.run_id} keeps nothing of its sources to compare a site with: its "
            "clients had too few validation samples, its method has no features in front of the head, a "
            "protection forbade it, or an older version trained it; train it again"
        )
    sums = _Sums(reference)
    observed = _ObservedModel(saved.network, saved.card, saved.checked, sums)
    predictions, labels, pixels = _predict(observed, data, batch_size=batch_size, progress=progress)
    done = [item for item in predictions if not item.error]
    if sums.moments is None or not done:
        first = next((item.error for item in predictions if item.error), "no samples")
        raise UnseenError(
            f"{data.source}: nothing to compare ({first}); at least {FEWEST} samples are needed"
        )
    difference = compare_site(reference, sums.moments, sums.beyond, classes=saved.card.classes)
    expected = None
    if sums.confidence is not None and reference.threshold is not None:
        expected = estimate_accuracy(
            sums.confidence, reference.threshold, reference.errors, shift=reference.shift
        )
    by_distance = sorted(done, key=lambda item: item.distance or 0.0)
    number = min(SHOWN, len(done) // 2)
    chosen = (*by_distance[:number], *by_distance[len(done) - number :])
    accuracy = _accuracy(predictions, labels)
    shown, attribution = _with_maps(saved, [Sample(item, pixels(item.name)) for item in chosen])
    return SiteCheck(
        samples=sums.moments.samples,
        failed=len(predictions) - len(done),
        difference=difference,
        verdict=judge(
            difference, expected, reference.accuracy, samples=sums.moments.samples, measured=accuracy
        ),
        reference=reference,
        expected=expected,
        mean_confidence=None if expected is None else sums.total_confidence / sums.moments.samples,
        accuracy=accuracy,
        usual=tuple(shown[:number]),
        unusual=tuple(reversed(shown[number:])),
        attribution=attribution,
    )


def _with_maps(saved: SavedModel, samples: Sequence[Sample]) -> tuple[list[Sample], str]:
    """Add attribution maps to the samples that are images, and return the note about them."""
    seen = [sample.pixels for sample in samples if sample.pixels is not None]
    found = attribution_maps(saved, seen)
    overlays = iter(found.overlays)
    mapped = [
        sample if sample.pixels is None else sample._replace(overlay=next(overlays, None))
        for sample in samples
    ]
    return mapped, found.note


def _accuracy(predictions: Sequence[Prediction], labels: Sequence[str]) -> float | None:
    """Return the fraction of right predictions; None without labels."""
    known = [
        item.label == label for item, label in zip(predictions, labels, strict=bool(labels)) if not item.error
    ]
    return sum(known) / len(known) if known else None


class _Predicted(NamedTuple):
    """Predictions of a site's samples, their labels ([] if they have none), and how to get their images."""

    predictions: list[Prediction]
    labels: list[str]
    pixels: Callable[[str], Pixels | None]


def _predict(saved: SavedModel, data: SiteData, *, batch_size: int, progress: Progress) -> _Predicted:
    """Predict for a folder, a file, or a domain of a named data set."""
    if data.source in SOURCES and not Path(data.source).exists():
        return _predict_domain(saved, data, batch_size=batch_size, progress=progress)
    if data.domain:
        raise UsageError(
            f"--domain {data.domain}: {data.source} is no named data set; give the domain's own folder"
        )
    path = Path(data.source)
    found = predict(saved, path, batch_size=batch_size, progress=progress)
    folder = path if path.is_dir() else path.parent
    shows = len(saved.card.input_shape) == 3 and (path.is_dir() or len(found) == 1)

    def read(name: str) -> Pixels | None:
        channels, size = image_input(saved.card)
        return read_image(folder / name, size=size, channels=channels)

    labels = [PurePosixPath(item.name).parent.name for item in found]
    known = shows and set(labels) <= set(saved.card.classes)
    return _Predicted(found, labels if known else [], read if shows else lambda name: None)


def _predict_domain(saved: SavedModel, data: SiteData, *, batch_size: int, progress: Progress) -> _Predicted:
    side = saved.card.input_shape[-1] if len(saved.card.input_shape) == 3 else None
    samples = load_data(DataRequest(data.source, root=data.root, image_size=side, progress=progress))
    if data.domain and data.domain not in samples.domains:
        raise UsageError(
            f"--domain {data.domain}: {data.source} has no such domain; it has: {', '.join(samples.domains)}"
        )
    if samples.input_shape != saved.card.input_shape or samples.columns or saved.card.encoding:
        raise UsageError(
            f"{data.source} holds inputs of shape {samples.input_shape}; the model was trained on "
            f"{saved.card.input_shape} ({saved.card.data})"
        )
    rows = samples.indices(data.domain) if data.domain else np.arange(len(samples))
    found = predict_rows(saved, samples, rows, batch_size=batch_size, progress=progress)
    labels = [samples.classes[target] for target in samples.targets[rows]] if samples.classes else []
    visible = samples.is_image and not samples.is_measured

    def pixels(name: str) -> Pixels | None:
        return samples.inputs[rows[int(name) - 1]] if visible else None

    return _Predicted(found, labels if set(labels) <= set(saved.card.classes) else [], pixels)
