"""FedPFT: the head is trained on features drawn from Gaussian mixtures that clients fit to their own."""

from unseen.methods.fedpft.fedpft import FedPFT

__all__ = ["FedPFT"]
