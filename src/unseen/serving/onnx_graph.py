"""Writing an ONNX graph that takes pixels (or encoded rows) and gives probabilities (or values)."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from unseen.errors import UnseenError, missing_extra
from unseen.serving.saved import SavedModel

LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class ServedNetwork(nn.Module):
    """The network with its preparation in front and what users want behind.

    The arithmetic is that of `Normalise`: one multiply-add a pixel.
    """

    factor: Tensor
    offset: Tensor

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        card = saved.card
        self.network, self.task = saved.network, card.task
        self.is_image = len(card.input_shape) == 3
        self.target_mean, self.target_std = card.target_scale
        largest = 1 if card.measured else 255
        factors = [1 / (largest * std) for std in card.pixel_std]
        offsets = [-mean / std for mean, std in zip(card.pixel_mean, card.pixel_std, strict=True)]
        self.register_buffer("factor", torch.tensor(factors).view(1, -1, 1, 1))
        self.register_buffer("offset", torch.tensor(offsets).view(1, -1, 1, 1))

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return (probabilities, logits), or (values,) in the target's own unit."""
        if self.is_image:
            inputs = inputs * self.factor + self.offset
        outputs = self.network(inputs)
        if self.task == "regression":
            return (outputs * self.target_std + self.target_mean,)
        return outputs.softmax(dim=1), outputs


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
    classifies = card.task == "classification"
    try:
        with _silence(), torch.no_grad():
            program = torch.onnx.export(
                served,
                (torch.zeros(2, *card.input_shape),),
                dynamo=True,
                verbose=False,
                input_names=["images" if served.is_image else "features"],
                output_names=["probabilities", "logits"] if classifies else ["values"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
            if program is None:
                raise AssertionError("torch.onnx.export gave no program")
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
    """Keep the exporter's chatter off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
