"""Fold frozen batch norm into convolutions, and lay weights out with channels last: faster inference.

A batch norm with fixed statistics behind a convolution is one affine map per channel, so

    gamma (W * x + b - mean) / std + beta   =   (gamma / std) W * x  +  gamma (b - mean) / std + beta

is a convolution again. What is folded is found by a pass over a sample, not by names, and kept only if the
outputs agree.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unseen.models.splitting import FrozenPart

_TOLERANCE = 1e-3
"""Largest difference of an output, relative to the largest output, that counts as rounding."""


def fold_batch_norm(frozen: FrozenPart, sample: Tensor) -> FrozenPart:
    """Return a copy that computes the same faster, or `frozen` itself if nothing could be folded.

    sample  a few inputs; the copy is used only if it agrees with `frozen` on them
    """
    with torch.no_grad():
        expected = frozen(sample)
        folded = copy.deepcopy(frozen)
        pairs = _find_pairs(folded, sample)
        if not pairs:
            return frozen
        for conv, norm in pairs:
            layer = cast(nn.BatchNorm2d, folded.get_submodule(norm))
            fused = fuse_conv_bn_eval(cast(nn.Conv2d, folded.get_submodule(conv)), layer)
            folded.set_submodule(conv, fused)
            folded.set_submodule(norm, getattr(layer, "act", nn.Identity()))  # timm's includes an activation
        folded = folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs
        found = folded(sample)
    close = (found - expected).abs().max() <= _TOLERANCE * expected.abs().max()
    return folded if bool(close) else frozen


def _find_pairs(frozen: FrozenPart, sample: Tensor) -> list[tuple[str, str]]:
    """Find convolutions whose very output is the input of a batch norm; names of both, in order of use."""
    made: dict[int, tuple[str, Tensor]] = {}
    pairs: list[tuple[str, str]] = []
    hooks = []

    def note_output(name: str) -> Any:
        return lambda _module, _inputs, output: made.__setitem__(id(output), (name, output))

    def note_input(name: str) -> Any:
        return lambda _module, inputs: (
            pairs.append((made[id(inputs[0])][0], name)) if id(inputs[0]) in made else None
        )

    for name, module in frozen.named_modules():
        if type(module) is nn.Conv2d:
            hooks.append(module.register_forward_hook(note_output(name)))
        elif isinstance(module, nn.BatchNorm2d) and not module.training:
            hooks.append(module.register_forward_pre_hook(note_input(name)))
    try:
        frozen(sample)
    finally:
        for hook in hooks:
            hook.remove()
    used = [name for pair in pairs for name in pair]
    return [pair for pair in pairs if all(used.count(name) == 1 for name in pair)]
