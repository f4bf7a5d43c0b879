"""Networks with one interface: logits, features, taps on inner layers; flat parameter views."""

from unseen.models.batch_norm import (
    BatchNormChoice,
    StatisticsRule,
    freeze_statistics,
    is_frozen_statistic,
    make_statistics_rule,
)
from unseen.models.factory import MODELS, InputSpec, ModelEntry, ModelSummary, build_model, list_models
from unseen.models.flat_state import Entry, FlatState, Kind, Layout, model_digest, whole_state
from unseen.models.freezing import freeze, frozen_names, select_trained
from unseen.models.mkldnn import blocked_maps
from unseen.models.network import Network, Output, Precision, StagedNetwork, set_precision
from unseen.models.pretrained import WeightsReport, load_weights

__all__ = [
    "MODELS",
    "BatchNormChoice",
    "Entry",
    "FlatState",
    "InputSpec",
    "Kind",
    "Layout",
    "ModelEntry",
    "ModelSummary",
    "Network",
    "Output",
    "Precision",
    "StagedNetwork",
    "StatisticsRule",
    "WeightsReport",
    "blocked_maps",
    "build_model",
    "freeze",
    "freeze_statistics",
    "frozen_names",
    "is_frozen_statistic",
    "list_models",
    "load_weights",
    "make_statistics_rule",
    "model_digest",
    "select_trained",
    "set_precision",
    "whole_state",
]
