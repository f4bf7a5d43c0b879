"""The server's arithmetic: pure functions on client updates."""

from unseen.aggregation.distances import LayerDistances, Metric, layer_distances
from unseen.aggregation.layers import Grouping, Layer, layers_of
from unseen.aggregation.mean import normalised, weighted_mean
from unseen.aggregation.sums import combine_clients, layerwise_weighted_sum, weighted_sum
from unseen.aggregation.updates import ServerWork, Updates

__all__ = [
    "Grouping",
    "Layer",
    "LayerDistances",
    "Metric",
    "ServerWork",
    "Updates",
    "combine_clients",
    "layer_distances",
    "layers_of",
    "layerwise_weighted_sum",
    "normalised",
    "weighted_mean",
    "weighted_sum",
]
