"""The server's arithmetic: pure functions on client updates."""

from unseen.aggregation.mean import normalised, weighted_mean
from unseen.aggregation.updates import ServerWork, Updates

__all__ = ["ServerWork", "Updates", "normalised", "weighted_mean"]
