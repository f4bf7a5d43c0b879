"""Base of methods that compute the head in closed form from sums over the clients' samples, in one round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from torch import Tensor, nn

from unseen.aggregation import ServerWork
from unseen.data import Batch
from unseen.hparams import Settings
from unseen.methods.base import Method
from unseen.methods.closed_form.feature_sums import Watch
from unseen.methods.closed_form.linear_head import LinearHead, count_features, count_outputs
from unseen.models import Network
from unseen.training import ClientWork, Update

S = TypeVar("S", bound=Settings)
Statistics: TypeAlias = Callable[[Network, ClientWork, Watch], dict[str, Tensor]]
"""Function that computes what a client sends; it calls `Watch` with the features of every training batch."""


@dataclass(frozen=True)
class SolvedHead:
    """A head in closed form, and numbers that show how it was found."""

    head: LinearHead
    diagnostics: dict[str, Any] = field(default_factory=dict)


class ClosedFormMethod(Method[S]):
    """A head computed by the server from sums over the clients' samples; the model's rest stays as it is.

    One round is the result; another one with the same clients repeats it. The server needs only the sum over
    clients of what each sends, so secure summation serves such a method exactly.
    """

    no_average = "it solves for the head from sums over samples"
    fixed_weights = f"{no_average}: what counts the same there is its setting balance"
    own_optimizers = "it trains nothing"
    own_head = "it computes the head itself"
    default_train = "head"
    default_rounds = 1
    beyond_losses = "it sends sums over the features of its samples"

    @abstractmethod
    def statistics(self, network: Network, work: ClientWork, watch: Watch) -> dict[str, Tensor]:
        """Sum up the client's samples; the keys are kinds of values in `sends`, merged by `sum`.

        watch  called with the features of every batch of training samples
        """

    @abstractmethod
    def solve(
        self, sent: Sequence[Mapping[str, Tensor]], *, outputs: int, samples: float | None = None
    ) -> SolvedHead:
        """Compute the head from what clients sent, or from its sum alone.

        outputs  number of the head's outputs
        """

    def finish_head(self, head: LinearHead, *, features: int, seed: int) -> LinearHead:
        """Convert what `solve` returns to a head on the network's features; by default it is one.

        features  number of the network's features
        seed      the run's seed, which `statistics` had too
        """
        return head

    @abstractmethod
    def describe_statistics(self, network: Network) -> dict[str, Tensor]:
        """Describe what `statistics` returns by tensors without memory (device meta)."""

    def describe_extras(self, module: nn.Module) -> dict[str, Tensor]:
        """Describe the sums that a client sends."""
        return self.describe_statistics(self.deployed(module))

    def client(self, work: ClientWork) -> Update:
        """Send sums over the samples' features."""
        return send_statistics(self.statistics, self.deployed(work.module), work)

    def server(self, work: ServerWork) -> Tensor:
        """Solve for the head and write it into the global state."""
        layout = work.updates.layout
        samples = float(work.updates.samples.sum())
        solved = self.solve(work.updates.extras, outputs=count_outputs(layout), samples=samples)
        work.diagnostics |= solved.diagnostics
        head = self.finish_head(solved.head, features=count_features(layout), seed=work.seed)
        return head.write(work.weights, layout)


def send_statistics(statistics: Statistics, network: Network, work: ClientWork) -> Update:
    """Create the update of a client that trains nothing: the received state, with statistics of its samples.

    The loss is that of the received model.
    """
    losses = 0.0

    def watch(features: Tensor, batch: Batch) -> None:
        nonlocal losses
        losses += float(work.task_loss(network.head(features), batch.targets)) * len(batch.targets)
        work.progress(len(batch.targets))

    extras = statistics(network, work, watch)
    samples = len(work.train)
    return replace(work.update(extras=extras), seen=samples, loss=losses / samples)
