"""For people who only want the model: load it, predict with it, export it."""

from unseen.serving.saved import SavedModel, load_model, save_model

__all__ = ["SavedModel", "load_model", "save_model"]
