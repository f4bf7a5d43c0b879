"""t-SNE of a finished run's sample features, before and after training (CSAC's figure 8).

Needs the data and the model once; the result is stored in the run folder, and the report draws it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unseen.callbacks.base import CallbackList, Callbacks
from unseen.config import RunConfig
from unseen.data import DataSet, Indices, Samples
from unseen.engine import Experiment, Workspace
from unseen.errors import UsageError
from unseen.evaluation.evaluate import EVALUATION_BATCH
from unseen.fileio import write_json
from unseen.models import Network
from unseen.runner.prepare import prepare_run
from unseen.runs.folder import RunFolder
from unseen.seeding import numpy_generator
from unseen.serving import load_model
from unseen.serving.saved_model import SavedModel, model_file, read_model_tensors

MOST_SAMPLES = 600
"""Total over all domains; with more, t-SNE gets slow and the plot crowded."""
PERPLEXITY = 30.0


def write_features(folder: Path, *, callbacks: Callbacks = None, data: DataSet | None = None) -> Path:
    """Embed features of samples of every domain with the initial and the chosen weights; return the file.

    data  samples already in memory, in place of those that the run's configuration names
    """
    place = RunFolder(folder)
    if not place.result.exists():
        raise UsageError(f"{folder} contains no finished run; features come from its initial and final model")
    setup = prepare_run(
        RunConfig.load_recorded(place.config), data=data, progress=CallbackList(callbacks).on_prepare
    )
    experiment, saved = setup.experiment, load_model(folder)
    if saved.card.run_id != setup.run_id:
        raise UsageError(f"{folder} was trained on other data or weights than its configuration now finds")
    rows = chosen_rows(experiment)
    stages = {"before": Workspace(experiment).deployed, "after": trained_network(experiment, saved, folder)}
    points = {stage: embed(features_of(network, experiment, rows)) for stage, network in stages.items()}
    path = place.features
    write_json(path, _content(experiment, rows, points))
    return path


def trained_network(experiment: Experiment, saved: SavedModel, folder: Path) -> Network:
    """Return a run's saved network, or only its trained part where samples are cached features."""
    if experiment.whole is None:
        return saved.network.to(experiment.prepare.device)
    workspace, tensors = Workspace(experiment), read_model_tensors(model_file(folder))
    workspace.module.load_state_dict({name: tensors[name] for name in workspace.module.state_dict()})
    return workspace.deployed


def chosen_rows(experiment: Experiment) -> Indices:
    """Choose equally many samples of every domain; of sources, those not used in training.

    Where a source has none of these, its training samples are used.
    """
    federation, indices = experiment.federation, experiment.evaluation_indices
    found = {domain: indices(domain, "target") for domain in federation.held_out}
    for domain in federation.sources:
        kept = np.concatenate([indices(domain, split) for split in ("test", "validation")])
        found[domain] = kept if len(kept) else indices(domain, "train")
    share = max(MOST_SAMPLES // len(found), 1)
    drawn = [
        np.sort(numpy_generator(experiment.seed, "features", domain).permutation(rows)[:share])
        for domain, rows in found.items()
    ]
    return np.concatenate(drawn)


def features_of(network: Network, experiment: Experiment, rows: Indices) -> npt.NDArray[np.float32]:
    """Compute the head's inputs for every sample."""
    network.eval()
    samples, found = Samples(experiment.data, rows), []
    with torch.inference_mode():
        for positions in torch.arange(len(samples)).split(EVALUATION_BATCH):
            batch = experiment.prepare(samples.gather(positions))
            found.append(network.features(batch.inputs).float().cpu())
    return torch.cat(found).numpy()


def embed(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Compute points (n x 2) by t-SNE, initialized by PCA; the same features always give the same points."""
    from sklearn.manifold import TSNE

    spread = features.std()
    scaled = (features - features.mean(axis=0)) / (spread if spread > 0 else 1.0)
    if len(scaled) < 4 or not spread > 0:
        return np.zeros((len(scaled), 2))
    perplexity = min(PERPLEXITY, (len(scaled) - 1) / 3)
    plane = TSNE(init="pca", perplexity=perplexity, random_state=0, n_jobs=1)
    points: npt.NDArray[np.float64] = plane.fit_transform(scaled).astype(np.float64)
    return points


def _content(
    experiment: Experiment, rows: Indices, points: dict[str, npt.NDArray[np.float64]]
) -> dict[str, Any]:
    data = experiment.data
    stages = {
        stage: {"x": found[:, 0].round(3).tolist(), "y": found[:, 1].round(3).tolist()}
        for stage, found in points.items()
    }
    targets = data.targets[rows]
    return {
        "domains": list(data.domains),
        "classes": list(data.classes),
        "domain": data.domain_of[rows].tolist(),
        "target": targets.tolist() if data.task_type.has_classes else [],
        "stages": stages,
    }
