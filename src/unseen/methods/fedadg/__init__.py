"""FedADG: the method, its settings, its networks and the alternating local training."""

from unseen.methods.fedadg.fedadg import FedADG, FedADGSettings

__all__ = ["FedADG", "FedADGSettings"]
