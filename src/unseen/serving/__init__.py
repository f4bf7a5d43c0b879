"""Use of a trained model: load it, predict with it, export it."""

from unseen.serving.export import Exported, export_model
from unseen.serving.predict import Prediction, predict, predict_folder, predict_table
from unseen.serving.saved_model import SavedModel, load_model, save_model

__all__ = [
    "Exported",
    "Prediction",
    "SavedModel",
    "export_model",
    "load_model",
    "predict",
    "predict_folder",
    "predict_table",
    "save_model",
]
