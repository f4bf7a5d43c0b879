"""CSAC: the method, its settings, the cross-layer alignment loss and its projections."""

from unseen.methods.csac.csac import CSAC, CSACSettings

__all__ = ["CSAC", "CSACSettings"]
