"""Augmentations at a network's head: RSC on the features that enter it, SD on the logits that leave it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data.augmentation.augmentation_list import AUGMENTATIONS, Between, acts_on


@AUGMENTATIONS.register("rsc")
@acts_on("features", mixes_samples=True)
def challenge_features(
    features: Tensor,
    targets: Tensor,
    head: Callable[[Tensor], Tensor],
    *,
    features_dropped: Annotated[float, Between(0, 1, "fraction of the features that are zeroed")] = 1 / 3,
    samples: Annotated[float, Between(0, 1, "fraction of the batch whose features are zeroed")] = 1 / 3,
) -> Tensor:
    """RSC (Huang et al. 2020): zero the third of the features that the true class relies on most.

    Features are ranked by the gradient of the true logit. Only the third of the batch whose true probability
    falls most keeps its zeros.
    """
    leaf = features.detach().requires_grad_()
    with torch.enable_grad():
        logits = head(leaf)
        truth = targets if targets.is_floating_point() else F.one_hot(targets, logits.shape[1])
        truth = truth.to(logits.dtype)
        gradient = torch.autograd.grad((logits * truth).sum(), leaf)[0].float()
    with torch.no_grad():
        kept = gradient < gradient.quantile(1 - features_dropped, dim=1, keepdim=True)
        before, after = ((values.float().softmax(1) * truth).sum(1) for values in (logits, head(leaf * kept)))
        fall = before - after
        spared = fall < fall.quantile(1 - samples)
        mask = kept | spared[:, None]
    return features * mask


@AUGMENTATIONS.register("sd")
@acts_on("logits")
def penalize_logits(
    logits: Tensor, *, strength: Annotated[float, Between(0, 1000, "weight of the penalty")] = 0.1
) -> Tensor:
    """SD (Pezeshki et al. 2021, spectral decoupling): add 0.1 times the mean squared logit to the loss."""
    return strength * logits.square().mean()
