"""A model to be judged: an Unseen model, or any classifier or regressor in an ONNX file."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from unseen.calibration.histograms import Floats
from unseen.calibration.scaling import UNSCALED, Scaling
from unseen.data.dataset import DataSet
from unseen.data.site_data import SiteSamples
from unseen.data.sources import Progress, no_progress
from unseen.data.tables.encoding import TableEncoding, align_columns
from unseen.data.transforms import IMAGENET
from unseen.errors import UnseenError, UsageError, missing_extra, unknown_name
from unseen.printable import printable
from unseen.serving.saved_model import SavedModel, load_model, model_file
from unseen.tasks import TASKS
from unseen.tasks.detail_accumulators import measures

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

PIXELS = ("bytes", "unit", "imagenet")
"""What an ONNX file takes as pixels: 0 to 255; 0 to 1; 0 to 1 normalized by ImageNet's means and stds."""
KINDS = ("unseen", "onnx")
_ONNX_HEADER = "unseen"


@dataclass(frozen=True)
class ModelSpec:
    """What identifies a model and says how it is used; all of it travels with a job.

    name     for people: the run's id, or the file's name
    sha256   of the file's bytes
    classes  of an ONNX file, in the order of its outputs; empty: it predicts a value
    pixels   of an ONNX file that takes images, one of `PIXELS`
    """

    name: str
    kind: str
    sha256: str
    classes: tuple[str, ...] = ()
    pixels: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> ModelSpec:
        """Read JSON values of any kind; refuse anything else than `to_dict` returns."""
        texts = ("name", "kind", "sha256", "pixels")
        classes = values.get("classes") if isinstance(values, dict) else None
        if (
            not isinstance(classes, list | tuple)
            or not all(isinstance(name, str) for name in classes)
            or not all(isinstance(values.get(key), str) for key in texts)
            or values["pixels"] not in ("", *PIXELS)
        ):
            raise UnseenError("a model is described unreadably; run the same version of Unseen everywhere")
        if values["kind"] not in KINDS:
            raise unknown_name("kind of model", printable(values["kind"], longest=40), KINDS)
        return cls(**{key: values[key] for key in texts}, classes=tuple(classes))


class JudgedModel(ABC):
    """A model with what judging needs of it.

    classes       in the order of the outputs; empty: it predicts a value
    image_side    side of its square images; None for tables
    scaling       of its logits, before probabilities are compared with the truth
    target_scale  mean and std by which values are standardized, so that sums of large ones do not cancel
    sources       domains that it was trained on, as far as it says
    """

    spec: ModelSpec
    task: str
    classes: tuple[str, ...]
    image_side: int | None
    scaling: Scaling = UNSCALED
    target_scale: tuple[float, float] = (0.0, 1.0)
    sources: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """The number of values per sample."""
        return max(len(self.classes), 1)

    @abstractmethod
    def predict(self, samples: SiteSamples, *, batch_size: int, progress: Progress = no_progress) -> Tensor:
        """Predict for all samples: logits, or values in the target's own unit."""

    def check_outputs(self, outputs: Tensor) -> Tensor:
        """Refuse outputs that are no finite numbers, from which no metric follows."""
        broken = int((~outputs.isfinite().all(dim=1)).sum())
        if broken:
            raise UnseenError(
                f"model {self.spec.name} answers {broken} of {len(outputs)} samples with something that is "
                "not a finite number; it cannot be judged"
            )
        return outputs


class JudgedRun(JudgedModel):
    """A model that Unseen trained."""

    def __init__(self, saved: SavedModel, spec: ModelSpec) -> None:
        card = saved.card
        if not measures(card.task_type):
            raise UsageError(f"model {spec.name} has task {card.task!r}, which cannot be judged")
        self.saved, self.spec, self.task = saved, spec, card.task
        self.classes = card.classes if card.task_type.has_classes else ()
        self.image_side = card.input_shape[-1] if len(card.input_shape) == 3 else None
        self.scaling = saved.calibration.scaling if saved.calibration and self.classes else UNSCALED
        self.target_scale = card.target_scale
        self.sources = card.sources

    def predict(self, samples: SiteSamples, *, batch_size: int, progress: Progress = no_progress) -> Tensor:
        """Predict as `unseen predict` does."""
        inputs = self._inputs(samples)
        found = []
        for start in range(0, len(inputs), batch_size):
            found.append(self.saved.outputs(_as_tensor(inputs[start : start + batch_size])))
            progress("judging", min(start + batch_size, len(inputs)), len(inputs))
        return self.check_outputs(torch.cat(found))

    def _inputs(self, samples: SiteSamples) -> npt.NDArray[Any]:
        card = self.saved.card
        if card.encoding is not None:
            if not samples.columns:
                raise UsageError(f"model {self.spec.name} was trained on a table: give tables")
            encoding = TableEncoding.from_dict(card.encoding)
            return encoding.apply(align_columns(_as_data_set(samples), encoding.columns))
        inputs = samples.inputs
        if len(card.input_shape) == 3:
            if samples.columns:
                raise UsageError(f"model {self.spec.name} was trained on images: give images")
            inputs = fit_channels(inputs, card.input_shape[0])
            shape: tuple[int, ...] = (inputs.shape[3], *inputs.shape[1:3])
        else:
            shape = inputs.shape[1:]
        if samples.columns or shape != card.input_shape:
            raise UsageError(
                f"site {samples.site}: inputs of shape {shape}; model {self.spec.name} was trained on "
                f"{card.input_shape}"
            )
        return inputs


def _as_data_set(samples: SiteSamples) -> DataSet:
    return samples.as_data_set(name=samples.site, domains=(samples.site,), classes=samples.classes)


def fit_channels(images: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Convert images of three channels to one, as single files are; others stay as they are."""
    if channels != 1 or images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        return images
    return np.stack([np.asarray(Image.fromarray(each).convert("L"))[..., None] for each in images])


def _as_tensor(inputs: npt.NDArray[Any]) -> Tensor:
    """Put inputs in the layout of networks; images are stored channels last."""
    tensor = torch.from_numpy(np.array(inputs))
    return tensor.permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor


class JudgedOnnx(JudgedModel):
    """A classifier or regressor in an ONNX file, run by onnxruntime on this machine's processor."""

    def __init__(self, content: bytes, spec: ModelSpec) -> None:
        self.spec, self.session = spec, _open_session(content, spec.name)
        described = _read_header(self.session)
        if described and described.get("input", {}).get("features"):
            raise UsageError(
                f"model {spec.name} takes encoded rows of a table, and does not hold their encoding: judge "
                "the run folder that it was exported from"
            )
        takes = self.session.get_inputs()
        if len(takes) != 1 or len(takes[0].shape) not in (2, 4) or "float" not in takes[0].type:
            shown = ", ".join(f"{each.name} {each.type} {each.shape}" for each in takes)
            raise UsageError(
                f"model {spec.name} takes {printable(shown, longest=200)}; expected one input of numbers, of "
                "images (batch, channels, height, width) or of rows (batch, columns)"
            )
        self.input = takes[0]
        self.classes = spec.classes or tuple((described or {}).get("classes", ()))
        self.task = "classification" if self.classes else "regression"
        self.image_side, self.channels, self.pixels = None, 0, ""
        if len(self.input.shape) == 4:
            self._read_image_input(described is not None)

    def _read_image_input(self, own: bool) -> None:
        channels, height, width = self.input.shape[1:]
        if channels not in (1, 3) or not isinstance(height, int) or height != width:
            raise UsageError(
                f"model {self.spec.name} takes images of shape {channels} x {height} x {width}; expected 1 "
                "or 3 channels and a fixed side"
            )
        self.pixels = self.spec.pixels or ("bytes" if own else "")
        if not self.pixels:
            raise UsageError(
                f"model {self.spec.name} does not say what its pixels are: give --pixels bytes (0 to 255), "
                "unit (0 to 1) or imagenet (0 to 1, then normalized by ImageNet's means and stds)"
            )
        self.image_side, self.channels = height, channels

    def predict(self, samples: SiteSamples, *, batch_size: int, progress: Progress = no_progress) -> Tensor:
        """Run the file in batches; probabilities become their logarithms."""
        inputs = self._inputs(samples)
        found = []
        for start in range(0, len(inputs), batch_size):
            found.append(self._run(inputs[start : start + batch_size]))
            progress("judging", min(start + batch_size, len(inputs)), len(inputs))
        return self.check_outputs(torch.from_numpy(self._as_logits(np.concatenate(found))))

    def _inputs(self, samples: SiteSamples) -> npt.NDArray[Any]:
        name = self.spec.name
        if self.image_side is not None:
            if samples.columns or samples.inputs.ndim != 4:
                raise UsageError(f"model {name} takes images: give images")
            images = fit_channels(samples.inputs, self.channels)
            if images.shape[1:] != (self.image_side, self.image_side, self.channels):
                raise UsageError(
                    f"site {samples.site}: images of shape {images.shape[1:]}; model {name} takes "
                    f"{(self.image_side, self.image_side, self.channels)}"
                )
            return images
        kept = [place for place, column in enumerate(samples.columns) if column.levels is None]
        rows = samples.inputs[:, kept] if samples.columns else samples.inputs
        width = self.input.shape[1]
        if rows.ndim != 2 or (isinstance(width, int) and rows.shape[1] != width):
            found = f"{rows.shape[1]} columns of numbers" if rows.ndim == 2 else f"inputs of {rows.shape[1:]}"
            raise UsageError(f"site {samples.site} has {found}; model {name} takes {width}, in their order")
        if not np.isfinite(rows).all():
            raise UsageError(
                f"site {samples.site} has missing values, which model {name} cannot take: fill them in first"
            )
        return rows

    def _run(self, batch: npt.NDArray[Any]) -> Floats:
        values: npt.NDArray[Any] = batch.astype(np.float32)
        if values.ndim == 4:
            if self.pixels != "bytes":
                values /= np.float32(255)
            if self.pixels == "imagenet":
                mean, std = (np.array(each, np.float32) for each in (IMAGENET.mean, IMAGENET.std))
                values = ((values - mean) / std).astype(np.float32)
            values = values.transpose(0, 3, 1, 2)
        if "double" in self.input.type:
            values = values.astype(np.float64)
        try:
            answers = self.session.run(None, {self.input.name: np.ascontiguousarray(values)})
        except Exception as error:  # onnxruntime has exceptions of its own for every kind of failure
            raise _onnx_error(self.spec.name, "cannot be run", error) from error
        return self._choose(
            dict(zip((each.name for each in self.session.get_outputs()), answers, strict=True))
        )

    def _choose(self, answers: dict[str, Any]) -> Floats:
        """Choose the output: the logits, else the first with one number per class."""
        tables = {
            name: np.asarray(found, dtype=np.float64).reshape(len(found), -1)
            for name, found in answers.items()
            if isinstance(found, np.ndarray) and found.dtype.kind == "f" and found.ndim in (1, 2)
        }
        widths = (self.outputs, 1) if len(self.classes) == 2 else (self.outputs,)
        for name in ("logits", "probabilities", "values", *tables):
            if name in tables and tables[name].shape[1] in widths:
                return tables[name]
        shown = ", ".join(f"{name} of {found.shape[1]}" for name, found in tables.items()) or "none"
        raise UsageError(
            f"model {self.spec.name} has no output of {self.outputs} numbers per sample (its outputs of "
            f"numbers: {printable(shown, longest=200)}); name its classes, in their order, with --class"
        )

    def _as_logits(self, outputs: Floats) -> Floats:
        """Convert probabilities to logits; a single number for two classes is that of the second."""
        if not self.classes:
            return outputs
        inside = bool(((outputs >= 0) & (outputs <= 1)).all())
        if outputs.shape[1] == 1:
            if inside:
                return np.concatenate([_log(1 - outputs), _log(outputs)], axis=1)
            return np.concatenate([np.zeros_like(outputs), outputs], axis=1)
        return _log(outputs) if inside and bool((abs(outputs.sum(axis=1) - 1) < 1e-3).all()) else outputs


def _log(probabilities: Floats) -> Floats:
    return cast(Floats, np.log(np.maximum(probabilities, 1e-300)))


def _open_session(content: bytes, name: str) -> InferenceSession:
    try:
        import onnxruntime
    except ImportError:
        raise missing_extra("onnxruntime", "onnx", "judging an ONNX file") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _onnx_error(name, "is no ONNX model that onnxruntime can read", error) from error


def _onnx_error(name: str, what: str, error: Exception) -> UnseenError:
    return UnseenError(f"model {name} {what} ({printable(' '.join(str(error).split()), longest=160)})")


def _read_header(session: InferenceSession) -> dict[str, Any] | None:
    """Read what `unseen export` writes into a file; None from another program's."""
    try:
        found = json.loads(session.get_modelmeta().custom_metadata_map[_ONNX_HEADER])
        classes = found["classes"]
        known = isinstance(classes, list) and all(isinstance(each, str) for each in classes)
        return dict(found) if known and found.get("task") in TASKS else None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def describe_model(
    path: str | Path, *, classes: tuple[str, ...] = (), pixels: str = ""
) -> tuple[ModelSpec, bytes]:
    """Find a model's file and describe it.

    path    a run folder, its model.safetensors, or an ONNX file
    classes, pixels  of an ONNX file that does not say
    """
    if pixels not in ("", *PIXELS):
        raise unknown_name("kind of pixels", pixels, PIXELS)
    file = model_file(Path(path))
    content = file.read_bytes()
    kind = "onnx" if file.suffix.lower() == ".onnx" else "unseen"
    if kind == "unseen" and (classes or pixels):
        raise UsageError(f"{path} knows its classes and pixels; --class and --pixels are for ONNX files")
    name = Path(path).resolve().name if Path(path).is_dir() else file.name
    if name == "model.safetensors":
        name = file.resolve().parent.name
    digest = hashlib.sha256(content).hexdigest()
    return ModelSpec(printable(name, longest=80), kind, digest, classes, pixels), content


def open_model(spec: ModelSpec, content: bytes, file: Path) -> JudgedModel:
    """Open a model from its bytes, which must be those that the specification names.

    file  where the bytes are, or may be written for a moment
    """
    if hashlib.sha256(content).hexdigest() != spec.sha256:
        raise UnseenError(f"the bytes of model {spec.name} are not those that the job names: send it again")
    if spec.kind == "onnx":
        return JudgedOnnx(content, spec)
    if not file.exists():
        file.write_bytes(content)
    return JudgedRun(load_model(file), spec)


def require_comparable(models: tuple[JudgedModel, ...]) -> None:
    """Refuse two models that do not predict the same."""
    first, *others = models
    for other in others:
        if (first.task, first.classes) != (other.task, other.classes):
            raise UsageError(
                f"models {first.spec.name} and {other.spec.name} do not predict the same: "
                f"{_what(first)}; {_what(other)}"
            )
        if first.image_side != other.image_side:
            raise UsageError(
                f"models {first.spec.name} and {other.spec.name} take inputs of different kinds or sizes "
                f"({first.image_side} and {other.image_side} pixels): they cannot be judged together"
            )


def _what(model: JudgedModel) -> str:
    return f"classes {', '.join(model.classes)}" if model.classes else "a value"


def number_targets(samples: SiteSamples, classes: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return a site's targets as a model numbers its classes."""
    if not classes:
        return samples.targets.astype(np.float64)
    for label in samples.classes:
        if label not in classes:
            raise unknown_name(f"class (of site {samples.site!r})", label, classes)
    numbers = np.array([classes.index(label) for label in samples.classes], dtype=np.int64)
    targets: npt.NDArray[np.int64] = numbers[samples.targets]
    return targets
