"""A tiny federation that every package's tests can train on in a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from tiny_data import fitting_partition, tiny_data
from unseen.callbacks.base import Callback
from unseen.data import DataSet
from unseen.data.transforms import Normalize
from unseen.engine import Experiment, Schedule, SerialEngine, ServerLoop
from unseen.federation import PartitionConfig, SplitFractions, make_federation
from unseen.methods import make_method
from unseen.models import InputSpec, build_model
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import Records
from unseen.training import LocalTrainingConfig, Preprocessor

hypothesis.settings.register_profile("unseen", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("unseen")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that start Flower's processes, and mostly wait, evenly among the others.

    Processes that share the tests then do not all wait at the same time.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [group for group in files.values() if group[0].get_closest_marker("deployment")]
    others = [group for group in files.values() if not group[0].get_closest_marker("deployment")]
    step = sum(map(len, others)) / max(len(waiting), 1)
    ordered: list[pytest.Item] = []
    passed = 0
    for group in others:
        if waiting and passed >= step * (len(files) - len(others) - len(waiting)):
            ordered += waiting.pop(0)
        ordered += group
        passed += len(group)
    items[:] = [*ordered, *(item for group in waiting for item in group)]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep decoded images out of the user's own cache."""
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests off the net; those with a server of their own unset the variable."""
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")


def tiny_experiment(
    method: str = "fedavg",
    *,
    data: DataSet | None = None,
    settings: dict[str, Any] | None = None,
    model: str | None = None,
    seed: int = 0,
    plan: LocalTrainingConfig | None = None,
    partition: PartitionConfig | None = None,
) -> Experiment:
    """An experiment on tiny data with `held` held out; methods that read class names get a CLIP."""
    data = data or tiny_data()
    chosen = make_method(method, settings)
    federation = make_federation(
        data,
        held_out=("held",),
        partition=partition or fitting_partition(method),
        fractions=SplitFractions(validation=0.25, test=0.125),
        seed=seed,
    )
    if chosen.topology == "pooled":
        federation = federation.pool()
    model = model or ("clip-tiny" if chosen.needs_texts else "mnist-cnn")
    network = build_model(model, InputSpec(data.input_shape, data.outputs, data.classes), seed=seed)
    return Experiment(
        data=data,
        federation=federation,
        method=chosen,
        network=network,
        plan=plan or LocalTrainingConfig(epochs=1, batch_size=4, lr=0.05, momentum=0.5),
        prepare=Preprocessor(Normalize(mean=network.pixel_mean, std=network.pixel_std)),
        seed=seed,
    )


def run_rounds(
    experiment: Experiment,
    folder: Path,
    *,
    rounds: int = 2,
    fraction: float = 1.0,
    callbacks: Callback | None = None,
    **schedule: Any,
) -> tuple[Checkpoint, Records]:
    """Run (or continue, if the folder holds a checkpoint) without the outer layers."""
    loop = ServerLoop(
        experiment,
        RunFolder(folder),
        Schedule(rounds=rounds, fraction=fraction, **schedule),
        run_id="test",
        make_engine=lambda states: SerialEngine(experiment, states),
        callbacks=callbacks or Callback(),
    )
    loop.run()
    return loop.checkpoint, loop.records


@pytest.fixture(scope="session")
def make_tiny_data() -> Callable[..., DataSet]:
    return tiny_data


@pytest.fixture
def make_experiment() -> Callable[..., Experiment]:
    return tiny_experiment


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[Checkpoint, Records]]:
    """Run rounds in a folder of the test's own."""

    def start(experiment: Experiment, name: str = "run", **options: Any) -> tuple[Checkpoint, Records]:
        return run_rounds(experiment, tmp_path / name, **options)

    return start


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real browser; see `browsing`."""
    from browsing import start_browser

    started = start_browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.quit()
