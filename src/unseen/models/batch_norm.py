"""Batch norm in federated training: what it normalizes with, and how clients' running statistics are merged.

Three choices (`--batch-norm`). `train`: clients normalize with each batch's statistics, and the running ones
are averaged like weights. `frozen`: layers always normalize with the running statistics they start with,
which nobody updates; scales and shifts are trained. `pooled`: as `train`, but what is averaged are first and
second moments, so that the global variance is that of the pooled data (law of total variance).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.models.flat_state import Kind, Layout
from unseen.models.frozen_statistics import FrozenStatistics, keep_statistics
from unseen.models.network import Network

BatchNormChoice = Literal["train", "frozen", "pooled"]
BATCH_NORM_CHOICES: tuple[str, ...] = get_args(BatchNormChoice)
NOTHING_TO_FREEZE = "--batch-norm frozen: this network has no batch norm, so nothing is frozen"


def freeze_statistics(network: Network) -> int:
    """Freeze the running statistics of every batch norm in place; return how many layers have them.

    A network without batch norm is left as it is, with a note for the user.
    """
    layers = [
        layer
        for layer in network.modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    ]
    for layer in layers:
        keep_statistics(layer)
    if not layers and NOTHING_TO_FREEZE not in network.notes:
        network.notes += (NOTHING_TO_FREEZE,)
    return len(layers)


def is_frozen_statistic(module: nn.Module, name: str) -> bool:
    """Check whether a named buffer of a module belongs to a batch norm whose statistics are frozen."""
    return isinstance(module.get_submodule(name.rpartition(".")[0]), FrozenStatistics)


class StatisticsRule:
    """How running statistics travel between clients and server; this one changes nothing (`train`)."""

    def to_sent(self, state: Tensor) -> Tensor:
        """Convert a state to the form in which states are sent and averaged."""
        return state

    def from_sent(self, merged: Tensor, *, before: Tensor) -> Tensor:
        """Convert the server's result back to a state.

        before  the global state before this round
        """
        return merged


class FrozenRule(StatisticsRule):
    """Frozen statistics keep their values to the last bit, whatever rounding or noise the average had."""

    def __init__(self, module: nn.Module) -> None:
        places = [
            torch.arange(entry.start, entry.stop)
            for entry in Layout.of(module).entries
            if entry.kind is not Kind.PARAMETER and is_frozen_statistic(module, entry.name)
        ]
        self.places = torch.cat([torch.empty(0, dtype=torch.int64), *places])

    def from_sent(self, merged: Tensor, *, before: Tensor) -> Tensor:
        """Restore the statistics from before."""
        merged[self.places] = before[self.places]
        return merged


class PooledRule(StatisticsRule):
    """Second moments in place of variances: E[x^2] = var + mean^2 can be averaged, a variance cannot.

    With weights p_k the merged variance is sum_k p_k (var_k + mean_k^2) - (sum_k p_k mean_k)^2: the mean of
    the clients' variances plus the variance of their means.
    """

    def __init__(self, module: nn.Module) -> None:
        owners = {
            name
            for name, part in module.named_modules(remove_duplicate=False)
            if isinstance(part, _BatchNorm)
        }
        entries = {entry.name: entry for entry in Layout.of(module).entries}
        pairs = [
            (entry, entries[f"{owner}running_var"])
            for name, entry in entries.items()
            if name.endswith("running_mean")
            and (owner := name.removesuffix("running_mean"))[:-1] in owners
            and f"{owner}running_var" in entries
        ]
        nothing = torch.empty(0, dtype=torch.int64)
        self.means, self.variances = (
            torch.cat([nothing, *(torch.arange(pair[part].start, pair[part].stop) for pair in pairs)])
            for part in range(2)
        )

    def to_sent(self, state: Tensor) -> Tensor:
        """Replace variances with second moments, in a copy."""
        sent = state.clone()
        sent[self.variances] += state[self.means].square()
        return sent

    def from_sent(self, merged: Tensor, *, before: Tensor) -> Tensor:
        """Replace second moments with variances; rounding may not make one negative."""
        state = merged.clone()
        state[self.variances] -= merged[self.means].square()
        state[self.variances] = state[self.variances].clamp(min=0)
        return state


def make_statistics_rule(choice: BatchNormChoice, module: nn.Module) -> StatisticsRule:
    """Create the rule of a choice for the module that clients send."""
    if choice == "train":
        return StatisticsRule()
    return FrozenRule(module) if choice == "frozen" else PooledRule(module)
