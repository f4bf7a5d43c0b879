"""Features, targets and weights of all clients' samples in one place: the pooled side of comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unseen.data import Samples
from unseen.engine import Experiment, RoundStart
from unseen.engine.experiment import Workspace
from unseen.models import blocked_maps


def pooled_features(experiment: Experiment, split: str = "train", balance: str = "samples") -> Any:
    """(features, targets, weights) of a split over all clients, through the network as it is evaluated."""
    network = Workspace(experiment).deployed.eval()
    features, targets, weights = [], [], []
    for position in range(len(experiment.federation)):
        samples = Samples(experiment.data, getattr(experiment.federation[position], split))
        labels = samples.targets.numpy()
        batch = experiment.prepare(samples.gather(torch.arange(len(samples))))
        with torch.inference_mode(), blocked_maps():
            features.append(network.features(batch.inputs).numpy())
        same = {
            "samples": np.ones(len(labels)),
            "clients": np.full(len(labels), len(labels)),
            "classes": np.array([(labels == label).sum() for label in labels]),
        }
        targets.append(labels)
        weights.append(1 / same[balance])
    return (
        np.concatenate(features).astype(np.float64),
        np.concatenate(targets),
        np.concatenate(weights),
    )


def sent_by_all(experiment: Experiment) -> list[dict[str, torch.Tensor]]:
    """What every client sends with its state in round 1."""
    workspace = Workspace(experiment)
    start = RoundStart(1, workspace.flat.read())
    return [
        workspace.train_client(position, {}, start).extras for position in range(len(experiment.federation))
    ]
