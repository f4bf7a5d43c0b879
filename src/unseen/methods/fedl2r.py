"""FedL2R: the half of FedSR that only keeps representations short; no draws, no classes needed."""

from __future__ import annotations

from unseen.methods._fedsr_method import RepresentationMethod
from unseen.methods._fedsr_settings import FedL2RSettings
from unseen.methods.base import register


@register
class FedL2R(RepresentationMethod[FedL2RSettings]):
    """Task loss + alpha_L2R E||z|| (or its square), z = mu(x) without a draw, as in the authors' code."""

    name = "fedl2r"
    summary = "FedAvg with a penalty on the length of the representation: half of FedSR"
    probabilistic = False
