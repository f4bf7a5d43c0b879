"""What a program must know to use an exported model, as plain values for a JSON file."""

from __future__ import annotations

from typing import Any

from unseen import __version__
from unseen.data.tables.encoding import TableEncoding
from unseen.serving.saved_model import ModelCard, SavedModel


def export_metadata(saved: SavedModel, to: str) -> dict[str, Any]:
    """Describe input, output and origin of an exported model."""
    card = saved.card
    complete = to == "onnx"
    return {
        "format": to,
        "task": card.task,
        "classes": list(card.classes),
        "input": _image_input(card, complete) if card.encoding is None else _table_input(card),
        "outputs": _outputs(card, complete),
        "model": card.model,
        "method": card.method,
        "settings": card.settings,
        "data": card.data,
        "held_out": list(card.held_out),
        "run_id": card.run_id,
        "unseen": __version__,
    }


def _image_input(card: ModelCard, complete: bool) -> dict[str, Any]:
    channels, height, width = card.input_shape
    if card.measured:
        values = "as in the training data: measured values, normalised already"
    elif complete:
        values = "0 to 255; scaling and normalisation are part of the model"
    else:
        values = "(pixel / 255 - mean) / std, per channel"
    return {
        "name": "images",
        "type": "float32",
        "shape": ["batch", channels, height, width],
        "channels": {1: "grey", 3: "red, green, blue"}.get(channels, str(channels)),
        "resize": "the whole image, bilinear with antialiasing, no crop; transparent parts white",
        "values": values,
        "normalisation": {
            "mean": list(card.pixel_mean),
            "std": list(card.pixel_std),
            "inside_the_model": complete,
        },
    }


def _table_input(card: ModelCard) -> dict[str, Any]:
    encoding = TableEncoding.from_dict(card.encoding or {})
    return {
        "name": "features",
        "type": "float32",
        "shape": ["batch", *card.input_shape],
        "features": list(encoding.feature_names),
        "values": "numbers: (value - mean) / std, 0 where missing; texts: 1 for the level they have, else 0",
        "columns": [
            {"name": column.name, "levels": [column.levels[number] for number in encoding.known[i]]}
            if column.levels is not None
            else {"name": column.name, "mean": encoding.means[i], "std": encoding.stds[i]}
            for i, column in enumerate(encoding.columns)
            if encoding.seen[i]
        ],
        "scaling": {
            "federated": "by the means and stds given with the columns",
            "local": "by the mean and std of the given rows, which must be one domain's",
        }[encoding.statistics],
    }


def _outputs(card: ModelCard, complete: bool) -> list[dict[str, Any]]:
    shape = ["batch", card.outputs]
    if card.task_type.has_classes:
        logits = {"name": "logits", "shape": shape, "values": "before softmax, in the order of the classes"}
        chances = {"name": "probabilities", "shape": shape, "values": "in the order of the classes"}
        return [chances, logits] if complete else [logits]
    mean, std = card.target_scale
    if complete or (mean, std) == (0.0, 1.0):
        return [{"name": "values", "shape": shape, "values": "in the target's own unit"}]
    scale = {"mean": mean, "std": std}
    return [
        {"name": "values", "shape": shape, "values": "output * std + mean is in the target's unit", **scale}
    ]
