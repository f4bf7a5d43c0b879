"""FedSR and its two halves FedL2R and FedCMI: the methods, their settings, the representation."""

from unseen.methods.fedsr.fedsr import FedCMI, FedL2R, FedSR

__all__ = ["FedCMI", "FedL2R", "FedSR"]
