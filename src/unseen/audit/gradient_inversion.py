"""Gradient inversion: search for images whose gradient has the same direction as the observed one.

Zhu et al. 2019 (Deep Leakage from Gradients) match gradients; Geiping et al. 2020 (Inverting Gradients) match
their direction, with a preference for smooth images and bounds on pixels. This is the latter, with Adam.

Labels are inferred before any image is rebuilt. The gradient of the head's bias is, for cross-entropy, the
mean of (predicted probability - 1 for the true class). For a single image only the true class has a negative
entry (Zhao et al. 2020, iDLG); for a batch the entries count how often each class occurs, up to the predicted
probabilities (Wainakh et al. 2022, LLG).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from unseen.data.transforms import Normalize
from unseen.models import Network

Tick = Callable[[], None]
ARBITRARY = 64
"""Random images that show what the network predicts for arbitrary input."""


@dataclass(frozen=True)
class AttackEffort:
    """Effort of an attack.

    restarts    searches from different random images; the best match is kept
    seconds     time limit of all searches of one attack; the last one is cut short
    step        Adam's step on pixels of the scale 0..1, falling to zero
    smoothness  weight of the total variation relative to the mismatch of directions, which is in 0..2
    """

    iterations: int = 300
    restarts: int = 2
    seconds: float = 60.0
    step: float = 0.1
    smoothness: float = 0.01


@dataclass(frozen=True)
class InversionResult:
    """The images and labels that an attack found.

    images    on the scale 0..1
    labels    as inferred from the gradient
    mismatch  one minus the cosine between the gradients: 0 = the same direction
    """

    images: Tensor
    labels: Tensor
    mismatch: float


def invert(
    network: Network,
    gradient: Sequence[Tensor],
    *,
    count: int,
    shape: tuple[int, ...],
    normalize: Normalize,
    effort: AttackEffort,
    generator: torch.Generator,
    tick: Tick = lambda: None,
) -> InversionResult:
    """Rebuild `count` images from the gradient of their mean loss with respect to the network's parameters.

    gradient  one tensor for each of the network's trainable parameters, in their order
    tick      called after every iteration
    """
    victim = _Victim(network, gradient, normalize)
    device = gradient[0].device
    labels = victim.labels(torch.rand((ARBITRARY, *shape), generator=generator).to(device), count).to(device)
    best: InversionResult | None = None
    ends = time.perf_counter() + effort.seconds
    for _ in range(effort.restarts):
        start = torch.rand((count, *shape), generator=generator).to(device)
        images, mismatch = _search(victim, start, labels, effort, ends=ends, tick=tick)
        if best is None or mismatch < best.mismatch:
            best = InversionResult(images.cpu(), labels.cpu(), mismatch)
    assert best is not None, "there is at least one search"
    return best


class _Victim:
    """The network as the attacker knows it, and the gradient it observed."""

    def __init__(self, network: Network, gradient: Sequence[Tensor], normalize: Normalize) -> None:
        self.network = _attackable(network)
        self.normalize = normalize
        self.trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        if [parameter.shape for parameter in self.trained] != [part.shape for part in gradient]:
            raise ValueError("a gradient needs one tensor of the right shape for each trainable parameter")
        length = torch.sqrt(sum((part.square().sum() for part in gradient), torch.zeros(())))
        self.direction = [part / length.clamp(min=1e-30) for part in gradient]
        self._seen = dict(zip(map(id, self.trained), gradient, strict=True))

    def labels(self, arbitrary: Tensor, count: int) -> Tensor:
        """Infer the labels of the batch."""
        head = self.network.head
        with torch.no_grad():
            features = self.network.features(self.normalize.finish(arbitrary))
            probabilities = head(features).softmax(dim=1)
        weight = self._seen.get(id(head.weight), torch.zeros_like(head.weight))
        bias = None if head.bias is None else self._seen.get(id(head.bias))
        signals = class_signals(head, weight, bias, features)
        return infer_labels(signals, count=count, probabilities=probabilities)

    def mismatch(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return one minus the cosine between the observed gradient and that of the images."""
        with sdpa_kernel(SDPBackend.MATH):  # the only kernel of attention with second derivatives
            loss = F.cross_entropy(self.network(self.normalize.finish(images)), labels)
        own = torch.autograd.grad(loss, self.trained, create_graph=True, materialize_grads=True)
        along = torch.stack([(a * b).sum() for a, b in zip(own, self.direction, strict=True)]).sum()
        length = torch.stack([part.square().sum() for part in own]).sum().sqrt()
        return 1 - along / length.clamp(min=1e-30)


def _search(
    victim: _Victim, start: Tensor, labels: Tensor, effort: AttackEffort, *, ends: float, tick: Tick
) -> tuple[Tensor, float]:
    """Minimize the mismatch, starting from random images."""
    images = start.requires_grad_()
    optimizer = torch.optim.Adam([images], lr=effort.step)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, effort.iterations)
    mismatch = torch.full((), torch.inf)
    for done in range(effort.iterations):
        if done and time.perf_counter() > ends:
            break
        mismatch = victim.mismatch(images, labels)
        loss = mismatch + effort.smoothness * _variation(images)
        (images.grad,) = torch.autograd.grad(loss, [images])
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
        tick()
    return images.detach(), float(mismatch.detach())


def _variation(images: Tensor) -> Tensor:
    """Compute the total variation: the mean difference of neighbouring pixels."""
    down = (images[:, :, 1:] - images[:, :, :-1]).abs().mean()
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    return down + across


def _attackable(network: Network) -> Network:
    """Copy the network in training mode, but without dropout, whose draws the attacker does not know."""
    copied = copy.deepcopy(network).train()
    for module in copied.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.eval()
    return copied


def class_signals(head: nn.Linear, weight: Tensor, bias: Tensor | None, features: Tensor) -> Tensor:
    """Compute the mean of (probability - truth) for each class from the head's gradient.

    features  the head's inputs for arbitrary images: without a bias, their mean gives the factor by which
              the rows of the weights' gradient are larger
    """
    if bias is not None:
        return bias
    scale = features.mean(dim=0).sum().abs().clamp(min=1e-12)
    return weight.sum(dim=1) / scale


def infer_labels(signals: Tensor, *, count: int, probabilities: Tensor) -> Tensor:
    """Infer the classes of a batch of `count` images, in ascending order.

    probabilities  those of arbitrary images, in place of the unknown batch's
    """
    if count == 1:
        return signals.argmin().view(1).cpu()
    expected = (probabilities.mean(dim=0) - signals).cpu() * count
    counts = torch.zeros_like(expected)
    for _ in range(count):
        counts[(expected - counts).argmax()] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts.long())


def count_correct_labels(inferred: Tensor, truth: Tensor) -> int:
    """Count how many of the true labels, repetitions counted, are among the inferred."""
    classes = range(int(max(inferred.max(), truth.max())) + 1)
    return sum(min(int((inferred == label).sum()), int((truth == label).sum())) for label in classes)
