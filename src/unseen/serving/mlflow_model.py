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

        model_input  raw inputs as an array: uint8 images (count, channels, height, width) or encoded rows
        """
        outputs = self.model.outputs(torch.from_numpy(np.array(model_input)))
        return (outputs.softmax(1) if self.model.card.classes else outputs).numpy()


def _load_pyfunc(path: str) -> MLflowModel:
    return MLflowModel(load_model(Path(path)))
