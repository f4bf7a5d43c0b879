"""Split a network into a frozen part, which runs once per image, and the part that is trained.

The trained part is a network of its own: the earlier layers are left out, and the names of the remaining
tensors stay, so that its state loads into the whole network (`--train last-stage` and `--train head`).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from unseen.errors import UsageError
from unseen.models.network import Network

HEAD = "head"
LAST_STAGE = "last-stage"
SPLIT_PARTS = (LAST_STAGE, HEAD)
"""Values of `--train` for which the rest of the network is frozen and runs once per image."""


class FrozenPart(nn.Module):
    """The layers of a network in front of its trained part, in evaluation mode and without gradients.

    stage  name of the first trained module; its input is the result. Empty: all but the head is frozen.
    """

    def __init__(self, network: Network, stage: str = "") -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.stage = stage
        self.eval()

    def train(self, mode: bool = True) -> FrozenPart:
        """Stay in evaluation mode: statistics of batch norm are frozen too."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, or what the first trained stage receives."""
        with torch.no_grad():
            if not self.stage:
                return self.network.features(images)
            watch = self.network.get_submodule(self.stage).register_forward_pre_hook(_stop)
            try:
                self.network(images)
            except _ReachedError as reached:
                return reached.value
            finally:
                watch.remove()
        raise AssertionError(f"the network does not call its stage {self.stage}")

    def makes_maps(self, shape: tuple[int, ...]) -> bool:
        """Check whether the results are maps; methods that use inner maps need them (not tokens)."""
        found: Tensor = self(torch.zeros(1, *shape))
        return found.ndim == 4


class _ReachedError(Exception):
    """Ends a forward pass in front of the trained stage."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


def _stop(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
    raise _ReachedError(inputs[0])


class LeftOut(nn.Sequential):
    """The place of layers in front of the trained part: it returns its input."""


class HeadNetwork(Network):
    """Only the head of a network: its inputs are the features of the frozen part."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.head = copy.deepcopy(network.head)
        self.model_name, self.notes = network.model_name, network.notes
        self.texts, self.text_width = network.texts, network.text_width

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the inputs as they are; there are no inner maps."""
        return inputs, ()


def split_network(network: Network, part: str, *, shape: tuple[int, ...]) -> tuple[FrozenPart, Network]:
    """Split a network in front of its head or its last stage; the frozen part first.

    shape  of one input, for a check that both parts together compute what the network computes
    """
    if part == HEAD:
        return FrozenPart(network), HeadNetwork(network)
    stage = network.last_stage
    if not stage:
        raise _cannot_split(network, "it names no last stage")
    try:
        frozen, trained = FrozenPart(network, stage), _keep_from(network, stage)
        same = _compute_the_same(network, frozen, trained, shape)
        trained.tap_names = trained.tap_names if frozen.makes_maps(shape) else ()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise _cannot_split(network, reason) from error
    if not same:
        raise _cannot_split(network, f"layers behind {stage!r} use more than its output")
    return frozen, trained


def _cannot_split(network: Network, reason: str) -> UsageError:
    return UsageError(
        f"model {network.model_name!r} cannot be split in front of its last stage ({reason}): "
        "use --train head or --train all"
    )


def _keep_from(network: Network, stage: str) -> Network:
    """Copy the network without the layers in front of a stage; these become empty."""
    kept = copy.deepcopy(network)
    *above, last = stage.split(".")
    owner: nn.Module = kept
    for name in [*above, last]:
        for sibling in list(owner._modules):
            if sibling == name:
                break
            setattr(owner, sibling, LeftOut())
        for own in list(owner._parameters):  # such as the position embedding of a vision transformer
            setattr(owner, own, None)
        if hasattr(owner, "_pos_embed"):
            setattr(owner, "_pos_embed", _leave)  # noqa: B010 (a method of timm)
        owner = owner.get_submodule(name)
    kept.tap_names = tuple(name for name in kept.tap_names if network.tap_path(name).startswith(stage))
    kept.pixel_mean, kept.pixel_std = Network.pixel_mean, Network.pixel_std
    return kept


def _leave(tokens: Tensor) -> Tensor:
    return tokens


def _compute_the_same(network: Network, frozen: FrozenPart, trained: Network, shape: tuple[int, ...]) -> bool:
    modes = network.training, trained.training
    sample = torch.linspace(-1, 1, 2 * shape[0] * shape[1] * shape[2]).view(2, *shape)
    with torch.no_grad():
        expected, found = network.eval()(sample), trained.eval()(frozen(sample))
    network.train(modes[0])
    trained.train(modes[1])
    return bool(torch.allclose(expected, found, rtol=1e-4, atol=1e-5))
