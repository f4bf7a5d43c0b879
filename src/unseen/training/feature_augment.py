"""Augmentations inside the network, through forward hooks: on early maps, on the head's features, on logits.

Hooks are attached while a client trains and act only on the network in training mode, so evaluation, copies
of the network and other clients are untouched. Draws come from a generator of (seed, client, round).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unseen.data.augmentation import AugmentationList, parse_augmentations
from unseen.errors import UsageError
from unseen.models import Network
from unseen.models.mkldnn import dense
from unseen.models.splitting import LeftOut

_TRAIN_ALL = "use --train all, or leave it out of --augment"


class _HeadPass(NamedTuple):
    """Pass through the head, with the parameters that it had: a trial step may have replaced them."""

    features: Tensor
    outputs: Tensor
    parameters: dict[str, Tensor]


class FeatureAugmenter:
    """The steps of a list that act inside one network.

    stages, head  counts of how often hooks on the stages and the change at the head acted
    """

    def __init__(self, steps: AugmentationList, network: Network, generator: torch.Generator) -> None:
        self.steps, self.network, self.generator = steps, network, generator
        self.stages = self.head = 0
        self._maps = find_early_stages(network) if steps.at("stages") else []
        self._channels_last = has_channels_last(network)
        self._last: _HeadPass | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the object itself: hooks of a copied network ignore its modules."""
        return self

    @contextmanager
    def attached(self) -> Iterator[Self]:
        """Attach the hooks within the block."""
        handles = [module.register_forward_hook(self._change_maps) for module in self._maps]
        if self.steps.at("features"):
            handles.append(self.network.head.register_forward_hook(self._watch_head))
        try:
            yield self
        finally:
            self._last = None
            for handle in handles:
                handle.remove()

    def change_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Recompute the head's outputs from changed features, if the head has just returned these outputs."""
        done, self._last = self._last, None
        if done is None or done.outputs is not outputs:
            return outputs

        def head(features: Tensor) -> Tensor:
            return cast(Tensor, functional_call(self.network.head, done.parameters, (features,)))

        features = done.features
        for step in self.steps.at("features"):
            features = step(features, targets, head)
        changed, self._last = head(features), None
        self.head += 1
        return changed

    def add_penalties(self, loss: Tensor, outputs: Tensor) -> Tensor:
        """Add the terms that depend on the outputs."""
        for step in self.steps.at("logits"):
            loss = loss + step(outputs)
        return loss

    def require_effect(self) -> None:
        """Refuse a method that trains around the hooks."""
        unused = [
            *(step.name for step in self.steps.at("stages") if not self.stages),
            *(step.name for step in self.steps.at("features") if not self.head),
        ]
        if unused:
            raise UsageError(
                f"--augment {'+'.join(unused)} has no effect with this --method, whose loss does not come "
                "from the network's own head: leave it out, or use another method"
            )

    def _change_maps(self, module: nn.Module, _: Any, output: Tensor) -> Tensor:
        if not self.network.training or not any(module is known for known in self._maps):
            return output
        self.stages += 1

        def augment(flat: Tensor) -> Tensor:
            for step in self.steps.at("stages"):
                flat = step(flat, self.generator)
            return flat

        return change_maps(output, augment, channels_last=self._channels_last)

    def _watch_head(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self.network.training and module is self.network.head:
            self._last = _HeadPass(inputs[0], output, dict(module.named_parameters()))


def change_maps(output: Tensor, change: Callable[[Tensor], Tensor], *, channels_last: bool) -> Tensor:
    """Apply a function of maps, (n, channels, positions), to what a stage returned; it may change n.

    channels_last  whether the channels of four-dimensional outputs are their last dimension
    """
    maps = dense(output)
    last = maps.ndim == 3 or channels_last
    first = maps.movedim(-1, 1) if last else maps
    changed: Tensor = change(first.flatten(2).float()).to(maps.dtype).unflatten(2, first.shape[2:])
    return changed.movedim(1, -1) if last else changed


def has_channels_last(network: nn.Module) -> bool:
    """Check whether the inner stages of a network, or of the one that it wraps, return channels last."""
    return any(isinstance(module, Network) and module.map_layout == "NHWC" for module in network.modules())


def find_early_stages(network: Network) -> list[nn.Module]:
    """Return the first two stages of a network, or of the one that it wraps, unless they are left out."""
    for module in network.modules():
        if isinstance(module, Network) and (names := module.early_stages()):
            present = dict(module.named_modules())
            stages = [present[name] for name in names if name in present]
            return [stage for stage in stages if not isinstance(stage, LeftOut)]
    return []


def check_feature_augmentation(
    augmentation: str, network: Network, shape: tuple[int, ...], *, classes: int
) -> None:
    """Refuse augmentations inside the network that this network or task cannot have.

    shape    of one input
    classes  number of classes; 0 = regression
    """
    steps = parse_augmentations(augmentation)
    if steps.at("features") and not classes:
        raise UsageError(
            f"--augment {steps.at('features')[0].name} needs classes, but this is regression: leave it out"
        )
    if steps.at("stages"):
        name, found = steps.at("stages")[0].name, _watched_shapes(network, shape)
        if len(found) < 2:
            raise UsageError(
                f"--augment {name} acts after the first two stages of the network, of which the trained part "
                f"of {network.model_name} has {len(found)}: {_TRAIN_ALL}"
            )
        if any(len(each) not in (3, 4) for each in found):
            raise UsageError(
                f"--augment {name} changes feature maps, and the first stages of {network.model_name} have "
                "none: use a convolutional network or a transformer, or leave it out"
            )


def _watched_shapes(network: Network, shape: tuple[int, ...]) -> list[torch.Size]:
    """Run one blank input and return the shapes of what the early stages return."""
    found: list[torch.Size] = []
    handles = [
        module.register_forward_hook(lambda _module, _inputs, output: found.append(output.shape))
        for module in find_early_stages(network)
    ]
    training = [module for module in network.modules() if module.training]
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, *shape))
    finally:
        for module in training:
            module.training = True
        for handle in handles:
            handle.remove()
    return found
