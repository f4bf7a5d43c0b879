"""Networks with one interface: logits, features, taps on inner layers; flat parameter views."""

from unseen.models.blocked import blocked_maps
from unseen.models.build import MODELS, ModelEntry, ModelFacts, ModelSummary, build_model, list_models
from unseen.models.flat import Entry, FlatState, Kind, Layout
from unseen.models.network import Network, Output, StagedNetwork
from unseen.models.weights import WeightsReport, load_weights

__all__ = [
    "MODELS",
    "Entry",
    "FlatState",
    "Kind",
    "Layout",
    "ModelEntry",
    "ModelFacts",
    "ModelSummary",
    "Network",
    "Output",
    "StagedNetwork",
    "WeightsReport",
    "blocked_maps",
    "build_model",
    "list_models",
    "load_weights",
]
