"""FPL and FedProto: the methods, the prototypes that clients and server exchange, and their clustering."""

from unseen.methods.fpl.fpl import FPL, FedProto

__all__ = ["FPL", "FedProto"]
