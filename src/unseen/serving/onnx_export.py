"""Export to ONNX: write a graph from pixels (or encoded rows) to probabilities (or values), and check it.

The check runs the graph with onnxruntime and compares it with the trained network.
"""

from __future__ import annotations

import base64
import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from unseen.data.images.decode import Pixels
from unseen.errors import UnseenError, missing_extra
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records
from unseen.seeding import torch_generator
from unseen.serving.certainty import DISTANCE, SET, UNUSUAL, CertaintyGraph, judge_outputs
from unseen.serving.image_files import as_batch
from unseen.serving.saved_model import ModelCard, SavedModel

Array = npt.NDArray[Any]
LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class ServedNetwork(nn.Module):
    """The network with preprocessing in front and postprocessing behind.

    The arithmetic is that of `Normalize`: one multiply-add per pixel.
    """

    factor: Tensor
    offset: Tensor

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        card = saved.card
        self.network, self.task_type = saved.network, card.task_type
        self.is_image = len(card.input_shape) == 3
        self.target_mean, self.target_std = card.target_scale
        largest = 1 if card.measured else 255
        factors = [1 / (largest * std) for std in card.pixel_std]
        offsets = [-mean / std for mean, std in zip(card.pixel_mean, card.pixel_std, strict=True)]
        self.register_buffer("factor", torch.tensor(factors).view(1, -1, 1, 1))
        self.register_buffer("offset", torch.tensor(offsets).view(1, -1, 1, 1))
        self.certainty = CertaintyGraph(saved)
        self.output_names = (*card.task_type.output_names, *self.certainty.names)

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return (probabilities, logits), or (values,) in the target's own unit; then how sure they are."""
        if self.is_image:
            inputs = inputs * self.factor + self.offset
        features: Tensor | None = None
        if self.certainty.needs_features:
            outputs, features = self.network.outputs_and_features(inputs)
        else:
            outputs = self.network(inputs)
        values = self.task_type.to_target_unit(outputs, self.target_mean, self.target_std)
        return (*self.task_type.served_outputs(values), *self.certainty(values, features))


def require_onnx() -> None:
    """Refuse early when a library is missing."""
    for name in LIBRARIES:
        if find_spec(name) is None:
            raise missing_extra(name, "onnx", "exporting to ONNX")


def write_graph(saved: SavedModel, file: Path, *, header: str) -> None:
    """Write the graph with a free batch size and `header` in its metadata under the name `unseen`."""
    require_onnx()
    card = saved.card
    served = ServedNetwork(saved).cpu().eval()
    try:
        with _silence(), torch.no_grad():
            program = torch.onnx.export(
                served,
                (torch.zeros(2, *card.input_shape),),
                dynamo=True,
                verbose=False,
                input_names=["images" if served.is_image else "features"],
                output_names=list(served.output_names),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
            if program is None:
                raise AssertionError("torch.onnx.export returned no program")
            program.model.metadata_props["unseen"] = header
            program.save(file, external_data=False)
    except OSError:
        raise
    except Exception as error:  # the exporter fails with many kinds of exception on unusual networks
        reason = " ".join(str(error).split())[:200]
        raise UnseenError(
            f"model {card.model!r} cannot be exported to ONNX ({reason}); use --to safetensors"
        ) from error


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporter's output."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


INVENTED = 16


def example_inputs(saved: SavedModel, folder: Path) -> tuple[Tensor, str]:
    """Return inputs to compare on and their description: held-out images of the run, or random ones."""
    recorded = _recorded_images(RunFolder(folder).records, saved.card)
    if recorded:
        return as_batch(recorded), f"{len(recorded)} held-out images"
    shape = (INVENTED, *saved.card.input_shape)
    generator = torch_generator(0, "inputs to check an export")
    if len(saved.card.input_shape) == 3 and not saved.card.measured:
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8), f"{INVENTED} noise images"
    return torch.randn(shape, generator=generator), f"{INVENTED} random inputs"


def compare(saved: SavedModel, file: Path, inputs: Tensor) -> float:
    """Return the largest difference to the trained network, for all inputs at once and for one alone.

    Sets and flags must be those of the file's own logits and distances; a wrong one is infinitely different.
    """
    require_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    names = [output.name for output in session.get_outputs()]
    saved.network.cpu()
    differences = [0.0]
    for part in (inputs, inputs[:1]):
        outputs = session.run(None, {name: np.ascontiguousarray(part.float().numpy())})
        differences += _differences(saved, part, dict(zip(names, outputs, strict=True)))
    return float(np.max(differences))


def _differences(saved: SavedModel, inputs: Tensor, theirs: dict[str, Array]) -> list[float]:
    outputs, features = saved.outputs_and_features(inputs)
    served = saved.card.task_type.served_outputs(outputs)
    ours: dict[str, Array] = {
        name: tensor.numpy() for name, tensor in zip(saved.card.task_type.output_names, served, strict=True)
    }
    ours |= judge_outputs(saved, outputs, features)
    if ours.keys() != theirs.keys():
        return [np.inf]
    if SET in ours:
        ours[SET] = judge_outputs(saved, torch.from_numpy(theirs["logits"]), None)[SET]
    if UNUSUAL in ours and saved.reference is not None:
        limit = saved.reference.limits["distance"].value
        near = np.zeros(len(inputs), bool) if limit is None else np.isclose(ours[DISTANCE], limit, rtol=1e-5)
        ours[UNUSUAL] = np.where(near, theirs[UNUSUAL], ours[UNUSUAL])
    return [_difference(ours[name], found) for name, found in theirs.items()]


def _difference(ours: Array, theirs: Array) -> float:
    """Return the largest difference, of values above 1 relative to the largest; infinite between flags."""
    if theirs.dtype == bool:
        return 0.0 if np.array_equal(ours, theirs) else np.inf
    endless = np.isinf(ours) & (ours == theirs)
    ours, theirs = (np.where(endless, 0.0, each) for each in (ours, theirs))
    return float(np.abs(ours - theirs).max()) / max(1.0, float(np.abs(ours).max()))


def _recorded_images(records: Path, card: ModelCard) -> list[Pixels]:
    """Read the example images of the report from a run's records; none if none fit."""
    try:
        final = [record for record in read_records(records) if record.get("event") == "final"]
        encoded = [example["png"] for example in final[-1]["examples"]]
        images = [_pixels(base64.b64decode(png)) for png in encoded]
    except (OSError, UnseenError, ValueError, KeyError, IndexError, TypeError):
        return []
    channels, height, width = card.input_shape if len(card.input_shape) == 3 else (0, 0, 0)
    return [image for image in images if image.shape == (height, width, channels)]


def _pixels(png: bytes) -> Pixels:
    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels
