"""Methods that make the gradients of the head alike over clients: FedIIR their mean, Fishr their variance."""

from unseen.methods.head_gradients.fediir import FedIIR
from unseen.methods.head_gradients.fishr import Fishr

__all__ = ["FedIIR", "Fishr"]
