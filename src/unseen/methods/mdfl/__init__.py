"""MDFL: the method and the class statistics that its clients and server exchange."""

from unseen.methods.mdfl.mdfl import MDFL, MDFLSettings

__all__ = ["MDFL", "MDFLSettings"]
