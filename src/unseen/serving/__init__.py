"""Use of a trained model: load it, predict with it, export it."""

from unseen.serving.export import Exported, export_model
from unseen.serving.predict import Prediction, predict, predict_folder, predict_table
from unseen.serving.saved_model import SavedModel, load_model, save_model
from unseen.serving.site_check import SiteCheck, SiteData, check_site

__all__ = [
    "Exported",
    "Prediction",
    "SavedModel",
    "SiteCheck",
    "SiteData",
    "check_site",
    "export_model",
    "load_model",
    "predict",
    "predict_folder",
    "predict_table",
    "save_model",
]
