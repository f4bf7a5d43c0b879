"""Helpers that several methods share: means for the records, frozen models, added parts, risks, a bank."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from unseen.data import Samples
from unseen.errors import UsageError
from unseen.evaluation.evaluate import evaluate
from unseen.models import FlatState, Network, freeze
from unseen.models.freezing import named_state
from unseen.training import ClientWork, Update

M = TypeVar("M", bound=nn.Module)


class RunningMeans:
    """Means of named values over samples; values stay on their device until the end."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: Tensor, *, samples: int) -> None:
        """Count a value that is a batch's mean over `samples`."""
        part = value.detach().double() * samples
        self._sums[name] = self._sums.get(name, torch.zeros_like(part)) + part
        self._counts[name] = self._counts.get(name, 0) + samples

    def result(self) -> dict[str, float]:
        """Return all means so far; names that were never added are absent."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}


def frozen_copy(work: ClientWork, weights: Tensor) -> Network:
    """Copy the shared network with the state `weights`: evaluation mode, no gradients, separate tensors.

    Evaluation mode keeps batch-norm statistics as they are and draws nothing for dropout, so that a pass
    through the copy does not affect the model that is trained.
    """
    frozen = cast(Network, copy.deepcopy(work.module)).requires_grad_(False)
    FlatState(frozen).load(weights)
    return frozen.eval()


class ExtendedNetwork(Network):
    """Network with one more layer between its extractor and its head, as in MOON and FedSR.

    Built from a copy of `network`, which is not changed, with its head unless another is given.
    """

    def __init__(self, network: Network, layer: nn.Module, *, head: nn.Linear | None = None) -> None:
        super().__init__()
        body = copy.deepcopy(network)
        own_head = body.head
        del body.head
        self.body, self.layer, self.head = body, layer, head or own_head
        self.model_name, self.tap_names = network.model_name, network.tap_names
        self.pixel_mean, self.pixel_std = network.pixel_mean, network.pixel_std
        self.notes = network.notes

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features of the added layer, and the taps of the wrapped network."""
        features, kept = self.body.features_and_taps(inputs, taps=taps)
        return self.layer(features), kept


def with_head(network: Network, head: nn.Linear) -> Network:
    """Return a copy of a network with another head."""
    changed = copy.deepcopy(network)
    changed.head = head
    return changed


def freeze_all_but(module: M, kept: Iterable[str]) -> M:
    """Freeze every tensor of a module whose name is not among `kept`; return the module."""
    trained = set(kept)
    freeze(module, [name for name, _ in named_state(module) if name not in trained])
    return module


def explain_incomplete_extras(update: Update, kinds: set[str]) -> str:
    """Explain which extras came without the others that they belong to; empty if all or none did."""
    if not update.extras or set(update.extras) == kinds:
        return ""
    return f"sent {' and '.join(update.extras)} alone"


Measured = Literal["validation", "training"]
"""The samples of a client on which a method measures a model before the round."""


def choose_samples(work: ClientWork, where: Measured, *, owner: str, setting: str) -> Samples:
    """Return the client's samples on which models are measured; refuse if there are none.

    owner, setting  the method and its setting that chooses them, for the message
    """
    samples = work.validation if where == "validation" else work.train
    if not len(samples):
        raise UsageError(
            f"{owner} compares models on validation samples, but client {work.client!r} has none; "
            f"use a larger --validation, or --set {setting}=training"
        )
    return samples


def measure(work: ClientWork, network: Network, samples: Samples) -> dict[str, Any]:
    """Measure a network on a client's samples: evaluation mode, no gradient, no augmentation."""
    task = samples.task_type
    sums = task.make_accumulator(task.count_outputs(samples.classes))
    return dict(evaluate(network, samples, prepare=work.prepare, accumulator=sums).metrics())


def explain_no_scalar(value: Tensor | None, *, name: str) -> str:
    """Explain why an extra is not one number; empty if it is, or was not sent."""
    fits = value is None or (value.ndim == 0 and value.is_floating_point())
    return "" if fits else f"sent {name} that is not one number"


def add_to_bank(
    state: MutableMapping[str, Tensor],
    kind: str,
    clients: Sequence[str],
    sent: Sequence[Mapping[str, Tensor]],
) -> None:
    """Keep what clients sent of a kind in the server's state, client by client, in place of former values."""
    for client, extras in zip(clients, sent, strict=True):
        if kind in extras:
            state[bank_key(kind, client)] = extras[kind].cpu()


def read_bank(state: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Select all clients' values of a kind, from the server's state or from what it broadcast."""
    return {key: value for key, value in state.items() if key.startswith(bank_key(kind, ""))}


def bank_of_others(received: Mapping[str, Tensor], kind: str, client: str) -> list[Tensor]:
    """List the other clients' values of a kind, in the order of their names."""
    bank = read_bank(received, kind)
    return [bank[key] for key in sorted(bank) if key != bank_key(kind, client)]


def bank_key(kind: str, client: str) -> str:
    """Name a client's values of a kind."""
    return f"{kind} of {client}"


def require_images(work: ClientWork, *, what: str, otherwise: str = "") -> None:
    """Refuse cached features and rows of a table where a method changes images.

    what       the method does with images, for the message
    otherwise  an alternative, for the message
    """
    if work.train.views:
        raise UsageError(
            f"{what}, but a frozen part is in front of what is trained: use --train all{otherwise}"
        )
    if work.train.gather(torch.zeros(1, dtype=torch.int64)).inputs.ndim != 4:
        raise UsageError(f"{what}, but this data is a table: use another --method{otherwise}")


def elapsed_part(work: ClientWork) -> float:
    """Compute the fraction of the run's rounds before this one, for penalties that begin late."""
    return (work.round - 1) / work.plan.rounds
