"""A trained model as one self-describing file: weights, and a header with everything needed to use them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from unseen.data.transforms import Normalize
from unseen.errors import UnseenError
from unseen.fileio import write_atomically
from unseen.methods import make_method
from unseen.models import InputSpec, Network, build_model
from unseen.runs.folder import RunFolder
from unseen.tasks import TASKS, Task

_HEADER = "unseen"


@dataclass(frozen=True)
class ModelCard:
    """Metadata needed to use the weights.

    encoding  how rows of a table are encoded as inputs (None for images)
    sources   the domains that the model was trained on
    measured  whether its images are measured values, float32 and already normalized, instead of bytes
    """

    model: str
    method: str
    settings: dict[str, Any]
    task: str
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    outputs: int
    pixel_mean: tuple[float, ...]
    pixel_std: tuple[float, ...]
    encoding: dict[str, Any] | None
    data: str
    held_out: tuple[str, ...]
    run_id: str
    sources: tuple[str, ...] = ()
    measured: bool = False

    @property
    def task_type(self) -> Task:
        """The task object that `task` names."""
        return TASKS[self.task]

    @property
    def normalize(self) -> Normalize:
        """The normalization of pixels."""
        return Normalize(mean=self.pixel_mean, std=self.pixel_std)

    @property
    def target_scale(self) -> tuple[float, float]:
        """Mean and std that regression targets were standardized with; 0 and 1 if they were not."""
        encoding = self.encoding or {}
        return float(encoding.get("target_mean", 0.0)), float(encoding.get("target_std", 1.0))


@dataclass(frozen=True)
class SavedModel:
    """A network ready for use, and its card."""

    network: Network
    card: ModelCard

    def outputs(self, inputs: Tensor) -> Tensor:
        """Run raw inputs (uint8 images, encoded rows): logits, or values in the target's own unit."""
        device = next(self.network.parameters()).device
        with torch.inference_mode():
            outputs: Tensor = self.network.eval()(self.card.normalize(inputs.to(device))).cpu()
        return self.card.task_type.to_target_unit(outputs, *self.card.target_scale)


def save_model(path: Path, tensors: dict[str, Tensor], card: ModelCard) -> None:
    """Write the shared module's tensors and the card, atomically."""
    header = {_HEADER: json.dumps(asdict(card), ensure_ascii=False)}
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda target: save_file(whole, target, header))


def model_file(path: Path) -> Path:
    """Find the model that a run folder, or a path to the file itself, names."""
    file = RunFolder(path).model if path.is_dir() else path
    if not file.exists():
        what = "no finished run" if path.is_dir() else "no such file or folder"
        raise UnseenError(f"{path}: {what}; expected a run folder with model.safetensors, or that file")
    return file


def load_model(path: str | Path) -> SavedModel:
    """Load a model from a run folder or a model file."""
    file = model_file(Path(path))
    card, tensors = _read(file)
    module = _module(card)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UnseenError(f"{file}: its weights do not fit model {card.model!r} ({reason})") from error
    network = make_method(card.method, card.settings).deployed(module).eval()
    return SavedModel(network, card)


def _read(file: Path) -> tuple[ModelCard, dict[str, Tensor]]:
    expected = "expected the model.safetensors of a run"
    try:
        with safe_open(file, framework="pt") as opened:
            header = (opened.metadata() or {}).get(_HEADER)
            if header is None:
                raise UnseenError(f"{file} has weights but no description of their use; {expected}")
            facts = json.loads(header)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        listed: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()
        }
        return ModelCard(**listed), tensors
    except (SafetensorError, OSError, ValueError, AttributeError, TypeError) as error:
        raise UnseenError(f"{file} is not a model written by unseen ({error}); {expected}") from error


def _module(card: ModelCard) -> nn.Module:
    network = build_model(card.model, InputSpec(card.input_shape, card.outputs), seed=0)
    return make_method(card.method, card.settings).build_for(network, sources=card.sources, seed=0)
