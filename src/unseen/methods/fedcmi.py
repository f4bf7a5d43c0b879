"""FedCMI: the half of FedSR that only limits what representations tell of the input beyond its class."""

from __future__ import annotations

from unseen.methods._fedsr_method import REFERENCE_SENT, RepresentationMethod
from unseen.methods._fedsr_settings import FedCMISettings
from unseen.methods.base import register


@register
class FedCMI(RepresentationMethod[FedCMISettings]):
    """Task loss + alpha_CMI E KL(p(z|x) || r(z|y)), with z ~ p(z|x) = N(mu(x), sigma(x)^2)."""

    name = "fedcmi"
    summary = "a probabilistic representation held near a learnt reference of its class: half of FedSR"
    sends = ("model weights", REFERENCE_SENT, "number of samples")
    in_state = ("model weights", REFERENCE_SENT)
