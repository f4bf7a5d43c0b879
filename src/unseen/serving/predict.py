"""Predictions for new images or rows of a table, prepared exactly as in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unseen.data.dataset import Samples
from unseen.data.formats import find_format
from unseen.data.images.decode import Pixels, UnreadableImageError, map_in_threads
from unseen.data.sources import DataRequest, Progress, load_data, no_progress
from unseen.data.tables.encoding import TableEncoding
from unseen.data.tables.table_reader import TABLE_SUFFIXES
from unseen.errors import UnseenError, UsageError
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
    """

    name: str
    ranked: tuple[tuple[str, float], ...] = ()
    value: float | None = None
    error: str = ""

    @property
    def label(self) -> str:
        """The likeliest class; empty when there is none."""
        return self.ranked[0][0] if self.ranked else ""

    @property
    def probability(self) -> float | None:
        """The probability of the likeliest class."""
        return self.ranked[0][1] if self.ranked else None


def predict(
    saved: SavedModel,
    path: Path,
    *,
    batch_size: int = BATCH_SIZE,
    top: int = 1,
    progress: Progress = no_progress,
) -> list[Prediction]:
    """Predict for whatever the model was trained on: images, rows of a table, samples of another format."""
    if saved.card.encoding is not None:
        how = predict_table
    elif (found := find_format(path)) is not None and found.contents == "arrays":
        how = predict_samples
    else:
        how = predict_folder
    return how(saved, path, batch_size=batch_size, top=top, progress=progress)


def predict_folder(
    saved: SavedModel,
    path: Path,
    *,
    batch_size: int = BATCH_SIZE,
    top: int = 1,
    progress: Progress = no_progress,
) -> list[Prediction]:
    """Predict for every image below a folder, or for one image; keep the `top` likeliest classes.

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
    predictions: list[Prediction] = []
    for start in range(0, len(found.names), batch_size):
        names = found.names[start : start + batch_size]
        results = [next(decoded) for _ in names]
        readable = {
            name: pixels for name, pixels in zip(names, results, strict=True) if not isinstance(pixels, str)
        }
        described = iter(
            _describe_outputs(saved, list(readable), as_batch([*readable.values()]), top) if readable else ()
        )
        predictions += [
            Prediction(name, error=result) if isinstance(result, str) else next(described)
            for name, result in zip(names, results, strict=True)
        ]
        progress("predicting", len(predictions), len(found.names))
    return predictions


def predict_table(
    saved: SavedModel,
    path: Path,
    *,
    batch_size: int = BATCH_SIZE,
    top: int = 1,
    progress: Progress = no_progress,
) -> list[Prediction]:
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
    predictions: list[Prediction] = []
    for part in inputs.split(batch_size):
        first = len(predictions) + 1
        names = [str(number) for number in range(first, first + len(part))]
        predictions += _describe_outputs(saved, names, part, top)
        progress("predicting", len(predictions), len(inputs))
    return predictions


def predict_samples(
    saved: SavedModel,
    path: Path,
    *,
    batch_size: int = BATCH_SIZE,
    top: int = 1,
    progress: Progress = no_progress,
) -> list[Prediction]:
    """Predict for every sample of a file that a registered format loads; names are their numbers from 1."""
    request = DataRequest(str(path), image_size=_image_size(saved.card), progress=progress)
    data = load_data(request)
    if data.columns or data.input_shape != saved.card.input_shape:
        raise UsageError(
            f"{path} holds inputs of shape {data.input_shape}; the model was trained on "
            f"{saved.card.input_shape}"
        )
    samples = Samples(data, np.arange(len(data)))
    predictions: list[Prediction] = []
    for positions in torch.arange(len(data)).split(batch_size):
        names = [str(position + 1) for position in positions.tolist()]
        predictions += _describe_outputs(saved, names, samples.gather(positions).inputs, top)
        progress("predicting", len(predictions), len(data))
    return predictions


def _image_size(card: ModelCard) -> int | None:
    return card.input_shape[-1] if len(card.input_shape) == 3 else None


def _describe_outputs(saved: SavedModel, names: list[str], inputs: Tensor, top: int) -> list[Prediction]:
    outputs = saved.outputs(inputs)
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
        for prediction, fine in zip(described, usable, strict=True)
    ]
