"""Export of a trained model for other programs: ONNX with all arithmetic included, or the weights only.

A JSON file of the same name next to it describes how to use it: inputs, outputs and their meaning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen import __version__
from unseen.data.tables.encoding import TableEncoding
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.fileio import write_atomically, write_json
from unseen.serving.certainty import describe_certainty
from unseen.serving.saved_model import ModelCard, SavedModel, load_model, model_file
from unseen.tensor_files import save_tensors


def export_metadata(saved: SavedModel, to: str) -> dict[str, Any]:
    """Describe input, output and origin of an exported model."""
    card = saved.card
    complete = to == "onnx"
    return {
        "format": to,
        "task": card.task,
        "classes": list(card.classes),
        "input": _image_input(card, complete) if card.encoding is None else _table_input(card),
        "outputs": _outputs(card, complete) + (describe_certainty(saved) if complete else []),
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


FORMATS = ("onnx", "safetensors")
TOLERANCE = 1e-5
"""Largest difference between torch and the exported file; outputs above 1 are compared by their ratio.

Sets and flags must be equal: both sides compute them in float64, from float32 logits and features."""


@dataclass(frozen=True)
class Exported:
    """The file that was written, and the content of the JSON file next to it."""

    file: Path
    description: Path
    facts: dict[str, Any]


def export_model(run: Path, *, to: str = "onnx", out: Path | None = None) -> Exported:
    """Export the model of a run folder or model file; ONNX is run and compared before the file is written."""
    if to not in FORMATS:
        raise unknown_name("export format", to, FORMATS)
    source = model_file(run)
    file = _destination(source, to, out)
    saved = load_model(source)
    facts = export_metadata(saved, to) | {"file": file.name}
    facts |= _write_onnx(saved, source, file, facts) if to == "onnx" else _write_weights(saved, file)
    description = file.with_suffix(".json")
    write_json(description, facts)
    return Exported(file, description, facts)


def _destination(source: Path, to: str, out: Path | None) -> Path:
    name = f"{source.stem}.onnx" if to == "onnx" else f"{source.stem}-network.safetensors"
    if out is None or out.is_dir():
        return (out or source.parent) / name
    if out.suffix.lower() != f".{to}":
        raise UsageError(f"--out {out} does not end in .{to}: rename it, or change --to")
    if out.resolve() == source.resolve():
        raise UsageError(f"--out {out} is the model itself: choose another name")
    return out


def _write_weights(saved: SavedModel, file: Path) -> dict[str, Any]:
    tensors = saved.network.state_dict()
    save_tensors(file, tensors, {"format": "pt"})
    return {"tensors": {name: list(tensor.shape) for name, tensor in tensors.items()}}


def _write_onnx(saved: SavedModel, source: Path, file: Path, facts: dict[str, Any]) -> dict[str, Any]:
    from unseen.serving.onnx_export import compare, example_inputs, write_graph

    inputs, what = example_inputs(saved, source.parent)
    checks: list[dict[str, Any]] = []

    def write(target: Path) -> None:
        write_graph(saved, target, header=json.dumps(facts, ensure_ascii=False))
        difference = compare(saved, target, inputs)
        if not difference <= TOLERANCE:
            raise UnseenError(
                f"the exported model differs from the trained one by {difference:.1e} on {what}, more than "
                f"the accepted {TOLERANCE:.0e}; nothing was written: use --to safetensors"
            )
        checks.append({"on": what, "largest_difference": difference})

    write_atomically(file, write)
    return {"check": checks[0]}
