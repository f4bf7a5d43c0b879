"""FedADG: the method, its settings, its networks and the alternating local training."""

from unseen.methods.fedadg.fedadg import FedADG
from unseen.methods.fedadg.fedadg_settings import FedADGSettings

__all__ = ["FedADG", "FedADGSettings"]
