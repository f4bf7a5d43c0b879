"""FedDG: the method and the bank of amplitude spectra."""

from unseen.methods.feddg.feddg import FedDG, FedDGSettings

__all__ = ["FedDG", "FedDGSettings"]
