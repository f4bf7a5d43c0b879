"""Networks with one interface: logits, features, taps on inner layers; flat parameter views."""

from unseen.models.build import MODELS, ModelFacts, build_model
from unseen.models.flat import Entry, FlatState, Kind, Layout
from unseen.models.network import Network, Output, StagedNetwork

__all__ = [
    "MODELS", "Entry", "FlatState", "Kind", "Layout", "ModelFacts", "Network", "Output", "StagedNetwork",
    "build_model",
]
