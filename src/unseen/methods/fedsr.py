"""FedSR: clients learn a simple representation, short and telling little of the input beyond its class."""

from __future__ import annotations

from unseen.methods._fedsr_method import REFERENCE_SENT, RepresentationMethod
from unseen.methods._fedsr_settings import FedSRSettings
from unseen.methods.base import register


@register
class FedSR(RepresentationMethod[FedSRSettings]):
    """Task loss + alpha_L2R E||z|| + alpha_CMI E KL(p(z|x) || r(z|y)), z ~ p(z|x) = N(mu(x), sigma(x)^2).

    `squared` takes E||z||^2, as the paper writes it. The last term bounds the conditional mutual information
    I(x, z | y) from above; r is a Gaussian a class.
    """

    name = "fedsr"
    summary = "a probabilistic representation that is kept short and near a learnt reference of its class"
    sends = ("model weights", REFERENCE_SENT, "number of samples")
    in_state = ("model weights", REFERENCE_SENT)
