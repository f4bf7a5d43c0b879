"""COPA: the method and the ensemble of per-domain classifiers."""

from unseen.methods.copa.copa import COPA, COPASettings

__all__ = ["COPA", "COPASettings"]
