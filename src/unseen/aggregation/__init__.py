"""The server's arithmetic: pure functions on client updates."""

from unseen.aggregation.adjustment import adjusted_weights
from unseen.aggregation.coefficients import (
    Surgery,
    VisitOrder,
    align_conflicts,
    project_conflicts,
    random_order,
)
from unseen.aggregation.distances import LayerDistances, Metric, layer_distances
from unseen.aggregation.gram import cosines, gram
from unseen.aggregation.layers import Grouping, Layer, layers_of, shown_layers
from unseen.aggregation.mean import WEIGHTING, Weighting, client_weights, normalised, weighted_mean
from unseen.aggregation.pairs import PairDistances, pair_distances
from unseen.aggregation.signs import SignAgreement, sign_agreement
from unseen.aggregation.steps import step_towards
from unseen.aggregation.sums import combine_clients, layerwise_weighted_sum, weighted_sum
from unseen.aggregation.surgery import OperatedUpdates, Reduction, SurgeryPlan, operate_on_updates
from unseen.aggregation.updates import ServerWork, Updates

__all__ = [
    "WEIGHTING",
    "Grouping",
    "Layer",
    "LayerDistances",
    "Metric",
    "OperatedUpdates",
    "PairDistances",
    "Reduction",
    "ServerWork",
    "SignAgreement",
    "Surgery",
    "SurgeryPlan",
    "Updates",
    "VisitOrder",
    "Weighting",
    "adjusted_weights",
    "align_conflicts",
    "client_weights",
    "combine_clients",
    "cosines",
    "gram",
    "layer_distances",
    "layers_of",
    "layerwise_weighted_sum",
    "normalised",
    "operate_on_updates",
    "pair_distances",
    "project_conflicts",
    "random_order",
    "shown_layers",
    "sign_agreement",
    "step_towards",
    "weighted_mean",
    "weighted_sum",
]
