"""Predictions for new images or rows of a table, prepared exactly as in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from unseen.data.dataset import DataSet, Indices, Samples
from unseen.data.formats import find_format
from unseen.data.images.decode import Pixels, UnreadableImageError, map_in_threads
from unseen.data.sources import DataRequest, Progress, load_data, no_progress
from unseen.data.tables.encoding import TableEncoding
from unseen.data.tables.table_reader import TABLE_SUFFIXES
from unseen.errors import UnseenError, UsageError
from unseen.serving.certainty import CALIBRATED, ENERGY, INTERVAL, SET, judge_outputs
from unseen.serving.image_files import as_batch, find_images, image_input, read_image
from unseen.serving.saved_model import ModelCard, SavedModel

BATCH_SIZE = 256


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image or row.

    name    the file's name below the folder, or the number of the row, the first being 1
    ranked  classes with their probabilities, the likeliest first; empty for regression
    value   the predicted quantity in the target's own unit; None for classification
    error   why there is no prediction; empty when there is one
    calibrated  the probability of the likeliest class after scaling; None if the model has no calibration
    members  the classes of the prediction set; None if the model promises none
    interval  both ends of the interval around `value`; None likewise
    distance  from the sources, about 1 at home; None if the model has no moments of theirs
    unusual  whether it is further away than 95 % of every source's samples were from the other sources
    """

    name: str
    ranked: tuple[tuple[str, float], ...] = ()
    value: float | None = None
    error: str = ""
    calibrated: float | None = None
    members: tuple[str, ...] | None = None
    interval: tuple[float, float] | None = None
    distance: float | None = None
    unusual: bool | None = None

    @property
    def label(self) -> str:
        """The likeliest class; empty when there is none."""
        return self.ranked[0][0] if self.ranked else ""

    @property
    def probability(self) -> float | None:
        """The probability of the likeliest class."""
        return self.ranked[0][1] if self.ranked else None


class PredictOptions(TypedDict, total=False):
    """Options of every kind of prediction.

    batch_size  samples per forward pass
    top         number of likeliest classes to keep
    progress    called after every batch
    """

    batch_size: int
    top: int
    progress: Progress


def predict(saved: SavedModel, path: Path, **options: Unpack[PredictOptions]) -> list[Prediction]:
    """Predict for whatever the model was trained on: images, rows of a table, samples of another format."""
    if saved.card.encoding is not None:
        return predict_table(saved, path, **options)
    if (found := find_format(path)) is not None and found.contents == "arrays":
        return predict_samples(saved, path, **options)
    return predict_folder(saved, path, **options)


def predict_folder(saved: SavedModel, path: Path, **options: Unpack[PredictOptions]) -> list[Prediction]:
    """Predict for every image below a folder, or for one image.

    A file that cannot be read gets a prediction without a class, and the reason.
    """
    channels, size = image_input(saved.card)
    found = find_images(path)

    def read(name: str) -> Pixels | str:
        try:
            return read_image(found.folder / name, size=size, channels=channels)
        except UnreadableImageError as error:
            return str(error)

    decoded = map_in_threads(read, found.names)

    def predict_batch(names: Sequence[str], _: slice, top: int) -> list[Prediction]:
        results = [next(decoded) for _ in names]
        readable = {
            name: pixels for name, pixels in zip(names, results, strict=True) if not isinstance(pixels, str)
        }
        described = iter(
            _describe_outputs(saved, list(readable), as_batch([*readable.values()]), top) if readable else ()
        )
        return [
            Prediction(name, error=result) if isinstance(result, str) else next(described)
            for name, result in zip(names, results, strict=True)
        ]

    return _predict_in_batches(found.names, predict_batch, **options)


def predict_table(saved: SavedModel, path: Path, **options: Unpack[PredictOptions]) -> list[Prediction]:
    """Predict for every row of a CSV or Parquet file that has the columns the model was trained on.

    A model trained with local statistics scales by the values of this file: its rows must be one domain's.
    """
    from unseen.data.tables.table_loader import load_rows

    kinds = ", ".join(TABLE_SUFFIXES)
    if saved.card.encoding is None:
        raise UsageError(f"{path}: the model was trained on images; give images")
    if not path.exists():
        raise UnseenError(f"no such file: {path}; expected a table ({kinds})")
    if path.is_dir() or path.suffix.lower() not in TABLE_SUFFIXES:
        raise UsageError(f"{path}: the model was trained on a table; give one ({kinds})")
    encoding = TableEncoding.from_dict(saved.card.encoding)
    inputs = torch.from_numpy(encoding.apply(load_rows(path, encoding.columns)))

    def predict_batch(names: Sequence[str], part: slice, top: int) -> list[Prediction]:
        return _describe_outputs(saved, names, inputs[part], top)

    return _predict_in_batches(_numbers(len(inputs)), predict_batch, **options)


def predict_samples(saved: SavedModel, path: Path, **options: Unpack[PredictOptions]) -> list[Prediction]:
    """Predict for every sample of a file that a registered format loads; names are their numbers from 1."""
    progress = options.get("progress", no_progress)
    data = load_data(DataRequest(str(path), image_size=_image_size(saved.card), progress=progress))
    if data.columns or data.input_shape != saved.card.input_shape:
        raise UsageError(
            f"{path} holds inputs of shape {data.input_shape}; the model was trained on "
            f"{saved.card.input_shape}"
        )
    return predict_rows(saved, data, np.arange(len(data)), **options)


def predict_rows(
    saved: SavedModel, data: DataSet, rows: Indices, **options: Unpack[PredictOptions]
) -> list[Prediction]:
    """Predict for some samples of a data set in memory; names are their numbers among those, from 1."""
    samples, positions = Samples(data, rows), torch.arange(len(rows))

    def predict_batch(names: Sequence[str], part: slice, top: int) -> list[Prediction]:
        return _describe_outputs(saved, names, samples.gather(positions[part]).inputs, top)

    return _predict_in_batches(_numbers(len(rows)), predict_batch, **options)


def _predict_in_batches(
    names: Sequence[str],
    predict_batch: Callable[[Sequence[str], slice, int], list[Prediction]],
    *,
    batch_size: int = BATCH_SIZE,
    top: int = 1,
    progress: Progress = no_progress,
) -> list[Prediction]:
    """Call `predict_batch(names, positions, top)` for every batch and join the predictions."""
    predictions: list[Prediction] = []
    for start in range(0, len(names), batch_size):
        part = slice(start, start + batch_size)
        predictions += predict_batch(names[part], part, top)
        progress("predicting", len(predictions), len(names))
    return predictions


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def _image_size(card: ModelCard) -> int | None:
    return card.input_shape[-1] if len(card.input_shape) == 3 else None


def _describe_outputs(saved: SavedModel, names: Sequence[str], inputs: Tensor, top: int) -> list[Prediction]:
    outputs, features = saved.outputs_and_features(inputs)
    if not saved.card.task_type.has_classes:
        values = outputs[:, 0].tolist()
        described = [Prediction(name, value=value) for name, value in zip(names, values, strict=True)]
    else:
        classes = saved.card.classes
        best = outputs.softmax(dim=1).topk(min(top, len(classes)), dim=1)
        described = [
            Prediction(name, ranked=tuple((classes[i], p) for i, p in zip(numbers, chances, strict=True)))
            for name, numbers, chances in zip(names, best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    usable = outputs.isfinite().all(dim=1).tolist()
    broken = "the model's output is not a finite number"
    return [
        prediction if fine else Prediction(prediction.name, error=broken)
        for prediction, fine in zip(_with_doubt(saved, described, outputs, features), usable, strict=True)
    ]


def _with_doubt(
    saved: SavedModel, described: Sequence[Prediction], outputs: Tensor, features: Tensor | None
) -> Sequence[Prediction]:
    """Add calibrated probability, prediction set or interval, and distance, as far as the model has them."""
    found, classes = judge_outputs(saved, outputs, features), saved.card.classes
    added: list[dict[str, Any]] = [{} for _ in described]
    for name, rows in found.items():
        if name != ENERGY:
            for own, row in zip(added, rows, strict=True):
                own.update(_field(name, row, classes))
    return [replace(prediction, **own) for prediction, own in zip(described, added, strict=True)]


def _field(name: str, row: Any, classes: Sequence[str]) -> dict[str, Any]:
    """Return the field of `Prediction` that one row of `judge_outputs` fills."""
    if name == CALIBRATED:
        return {"calibrated": float(row.max())}
    if name == SET:
        return {"members": tuple(classes[place] for place in np.flatnonzero(row).tolist())}
    return {name: tuple(row.tolist()) if name == INTERVAL else row.item()}
