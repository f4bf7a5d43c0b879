"""Running an exported graph with onnxruntime and comparing it with the trained network."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unseen.data.decode import Pixels
from unseen.seeding import torch_generator
from unseen.serving.image_files import as_batch
from unseen.serving.onnx_graph import require_onnx
from unseen.serving.saved import ModelCard, SavedModel

INVENTED = 16


def example_inputs(saved: SavedModel, folder: Path) -> tuple[Tensor, str]:
    """Inputs to compare on and what they are: held-out images that the run recorded, else invented ones."""
    recorded = _recorded_images(folder / "records.jsonl", saved.card)
    if recorded:
        return as_batch(recorded), f"{len(recorded)} held-out images"
    shape = (INVENTED, *saved.card.input_shape)
    generator = torch_generator(0, "inputs to check an export")
    if len(saved.card.input_shape) == 3 and not saved.card.measured:
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8), f"{INVENTED} noise images"
    return torch.randn(shape, generator=generator), f"{INVENTED} random inputs"


def compare(saved: SavedModel, file: Path, inputs: Tensor) -> float:
    """Return the largest difference to the trained network, for all inputs at once and for one alone."""
    require_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    saved.network.cpu()
    differences = []
    for part in (inputs, inputs[:1]):
        outputs = session.run(None, {name: np.ascontiguousarray(part.float().numpy())})
        for ours, theirs in zip(_expected(saved, part), outputs, strict=True):
            scale = max(1.0, float(ours.abs().max()))
            differences.append(float((ours - torch.from_numpy(theirs)).abs().max()) / scale)
    return float(np.max(differences))


def _expected(saved: SavedModel, inputs: Tensor) -> tuple[Tensor, ...]:
    outputs = saved.outputs(inputs)
    return (outputs.softmax(dim=1), outputs) if saved.card.task == "classification" else (outputs,)


def _recorded_images(records: Path, card: ModelCard) -> list[Pixels]:
    """Read the example images of the report from a run's records; none where there are none that fit."""
    try:
        lines = [line for line in records.read_text(encoding="utf-8").splitlines() if '"final"' in line]
        pictures = [example["png"] for example in json.loads(lines[-1])["examples"]]
        images = [_pixels(base64.b64decode(picture)) for picture in pictures]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return []
    channels, height, width = card.input_shape if len(card.input_shape) == 3 else (0, 0, 0)
    return [image for image in images if image.shape == (height, width, channels)]


def _pixels(png: bytes) -> Pixels:
    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels
