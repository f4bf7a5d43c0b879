"""What MLflow loads of a model that `--track mlflow` logged: `mlflow.pyfunc.load_model` names this module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from unseen.serving.saved_model import SavedModel, load_model


class MLflowModel:
    """A saved model with the interface of MLflow's Python functions."""

    def __init__(self, model: SavedModel) -> None:
        self.model = model

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Return probabilities of the classes in the model's order, or values in the target's own unit.

        model_input  images as `unseen.from_arrays` takes them (n, height, width, channels), or encoded rows
        """
        inputs = torch.from_numpy(np.array(model_input))
        outputs = self.model.outputs(inputs.permute(0, 3, 1, 2) if inputs.ndim == 4 else inputs)
        return (outputs.softmax(1) if self.model.card.classes else outputs).numpy()


def _load_pyfunc(path: str) -> MLflowModel:
    return MLflowModel(load_model(Path(path)))
