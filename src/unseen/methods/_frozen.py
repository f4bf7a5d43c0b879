"""Models that a client looks at and never changes: its own of an earlier round, or the server's."""

from __future__ import annotations

import copy
from typing import cast

from torch import Tensor

from unseen.models import FlatState, Network
from unseen.training import ClientWork


def frozen_copy(work: ClientWork, weights: Tensor) -> Network:
    """The shared network with the state `weights`: in evaluation mode, without gradients, on its own tensors.

    Evaluation mode keeps batch-norm statistics as they are and draws nothing for dropout, so that a pass
    through the copy leaves no trace in the model that is trained.
    """
    frozen = cast(Network, copy.deepcopy(work.module)).requires_grad_(False)
    FlatState(frozen).load(weights)
    return frozen.eval()
