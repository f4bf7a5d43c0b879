"""A trained model for other programs: ONNX with all arithmetic inside, or the bare weights.

Next to either is a JSON file of the same name that describes inputs, outputs and their meaning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.fileio import write_atomically, write_json
from unseen.serving.export_metadata import export_metadata
from unseen.serving.saved_model import SavedModel, load_model, model_file

FORMATS = ("onnx", "safetensors")
TOLERANCE = 1e-5
"""Largest difference between torch and the exported file; outputs above 1 are compared by their ratio."""


@dataclass(frozen=True)
class Exported:
    """The file that was written, and the content of the JSON file next to it."""

    file: Path
    description: Path
    facts: dict[str, Any]


def export_model(run: Path, *, to: str = "onnx", out: Path | None = None) -> Exported:
    """Export the model of a run folder or model file; ONNX is run and compared before it takes its place."""
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
    tensors = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in saved.network.state_dict().items()
    }
    write_atomically(file, lambda target: save_file(tensors, target, {"format": "pt"}))
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
