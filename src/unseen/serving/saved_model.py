"""A trained model as one self-describing file: weights, and a header with everything needed to use them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unseen.calibration import Calibration, SiteReference
from unseen.data.transforms import Normalize
from unseen.errors import UnseenError
from unseen.methods import make_method
from unseen.models import InputSpec, Network, build_model
from unseen.runs.folder import RunFolder
from unseen.tasks import TASKS, Task
from unseen.tensor_files import DamagedFileError, TensorFile, load_tensors, save_tensors
from unseen.typed_values import wrong_type

_HEADER = "unseen"


@dataclass(frozen=True)
class ModelCard:
    """Metadata needed to use the weights.

    encoding  how rows of a table are encoded as inputs (None for images)
    sources   the domains that the model was trained on
    measured  whether its images are measured values, float32 and already normalized, instead of bytes
    calibration  what `unseen.calibration.Calibration` reads: scaling of the outputs, thresholds of sets and
              intervals; None in models of older versions, and where sources had no validation samples
    site_reference  what `unseen.calibration.SiteReference` reads: the sources, as far as a new site is
              compared with them; None where their features may not be summed up
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
    calibration: dict[str, Any] | None = None
    site_reference: dict[str, Any] | None = None

    @property
    def task_type(self) -> Task:
        """The task object that `task` names."""
        return TASKS[self.task]

    @property
    def normalize(self) -> Normalize:
        """The normalization of pixels."""
        return Normalize(mean=self.pixel_mean, std=self.pixel_std)

    @property
    def calibrated(self) -> Calibration | None:
        """The scaling of the outputs and the thresholds of sets; None without any."""
        return Calibration.from_dict(self.calibration) if self.calibration else None

    @property
    def sources_seen(self) -> SiteReference | None:
        """The moments and limits that a new site is compared with; None without any."""
        return SiteReference.from_dict(self.site_reference) if self.site_reference else None

    @property
    def target_scale(self) -> tuple[float, float]:
        """Mean and std that regression targets were standardized with; 0 and 1 if they were not."""
        encoding = self.encoding or {}
        return float(encoding.get("target_mean", 0.0)), float(encoding.get("target_std", 1.0))


@dataclass(frozen=True)
class SavedModel:
    """A network ready for use, and its card; `checked` is False for files without a checksum."""

    network: Network
    card: ModelCard
    checked: bool = True

    @cached_property
    def calibration(self) -> Calibration | None:
        """The scaling of the outputs and the thresholds of sets; None without any."""
        return self.card.calibrated

    @cached_property
    def reference(self) -> SiteReference | None:
        """What a new site is compared with; None without any."""
        return self.card.sources_seen

    def outputs(self, inputs: Tensor) -> Tensor:
        """Run raw inputs (uint8 images, encoded rows): logits, or values in the target's own unit."""
        return self.outputs_and_features(inputs)[0]

    def outputs_and_features(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run raw inputs: outputs, and the head's inputs where the outputs are computed from them alone."""
        network = self.network.eval()
        device = next(network.parameters()).device
        with torch.inference_mode():
            prepared = self.card.normalize(inputs.to(device))
            features: Tensor | None = None
            if network.shown_features:
                outputs, features = network.outputs_and_features(prepared)
            else:
                outputs = network(prepared)
        found = self.card.task_type.to_target_unit(outputs.cpu(), *self.card.target_scale)
        return found, None if features is None else features.cpu()


def save_model(path: Path, tensors: dict[str, Tensor], card: ModelCard) -> None:
    """Write the shared module's tensors and the card, atomically."""
    header = {_HEADER: json.dumps(asdict(card), ensure_ascii=False)}
    save_tensors(path, tensors, header)


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
    card, found = _read(file)
    module = _module(card)
    try:
        module.load_state_dict(found.tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UnseenError(f"{file}: its weights do not fit model {card.model!r} ({reason})") from error
    network = make_method(card.method, card.settings).deployed(module).eval()
    return SavedModel(network, card, found.checked)


def read_model_tensors(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a model file alone; a damaged file is refused."""
    return _read(file)[1].tensors


def _read(file: Path) -> tuple[ModelCard, TensorFile]:
    refused = f"{file} is not a model written by unseen"
    expected = "expected the model.safetensors of a run"
    try:
        found = load_tensors(file)
        header = found.metadata.get(_HEADER)
        if header is None:
            raise UnseenError(f"{file} has weights but no description of their use; {expected}")
        listed: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in json.loads(header).items()
        }
        if problem := wrong_type(ModelCard, listed):
            raise UnseenError(f"{refused} ({problem}); {expected}")
        return ModelCard(**listed), found
    except DamagedFileError as error:
        raise UnseenError(
            f"{refused}, or it is damaged ({error}): restore it from a backup, or write it again with "
            "'unseen train --resume --out' and its run folder"
        ) from error
    except (ValueError, AttributeError, TypeError) as error:
        raise UnseenError(f"{refused} ({error}); {expected}") from error


def _module(card: ModelCard) -> nn.Module:
    """Build the module; class names are left out, so that no text tower is built: the file has the head."""
    network = build_model(card.model, InputSpec(card.input_shape, card.outputs), seed=0)
    return make_method(card.method, card.settings).build_for(network, sources=card.sources, seed=0)
