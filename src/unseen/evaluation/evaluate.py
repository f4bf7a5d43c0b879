"""Run a network over samples, in large batches and without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unseen.data import Batch, Samples
from unseen.models import Network, blocked_maps
from unseen.tasks.accumulators import MetricAccumulator

EVALUATION_BATCH = 128


def predict_batches(
    network: Network,
    samples: Samples,
    *,
    prepare: Callable[[Batch], Batch],
    batch_size: int = EVALUATION_BATCH,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (outputs, targets) for all samples, in their order."""
    network.eval()
    with torch.inference_mode():
        for positions in torch.arange(len(samples)).split(batch_size):
            batch = prepare(samples.gather(positions))
            with blocked_maps():
                outputs = network(batch.inputs)
            yield outputs, batch.targets


def evaluate(
    network: Network, samples: Samples, *, prepare: Callable[[Batch], Batch], accumulator: MetricAccumulator
) -> MetricAccumulator:
    """Add the network's outputs on all samples to an accumulator, and return it."""
    for outputs, targets in predict_batches(network, samples, prepare=prepare):
        accumulator.add(outputs, targets)
    return accumulator
