"""FedCCRL: the method, and the terms that align an image with its restyled views."""

from unseen.methods.fedccrl.fedccrl import FedCCRL

__all__ = ["FedCCRL"]
