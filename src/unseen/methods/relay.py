"""Relay: as many models as clients circulate, and every client trains another one in every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights, step_towards, weighted_mean
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.seeding import numpy_generator

PASSED_ON = "model weights that another client gets next"
MODELS = "circulating models"
SEEN = "samples of the clients that trained them"
BASE = "weights at the start of the lap"


@dataclass(frozen=True)
class RelaySettings(Settings):
    """Settings of Relay."""

    hops: int = setting(
        0,
        "m: rounds between merges, in each of which every model is at another client; 0 = as many as a round "
        "has clients, so that every model visits all; 1 is FedAvg",
    )
    server_lr: float = setting(
        1.0,
        "eta: step size from the weights before a lap towards the mean of its models; 1 = the mean itself",
        search=LogUniform(0.5, 4.0),
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if self.hops < 0:
            raise UsageError(f"setting 'hops' of relay must not be negative, not {self.hops}")
        if not self.server_lr > 0:
            raise UsageError(f"setting 'server_lr' of relay must be above 0, not {self.server_lr}")


@register
class Relay(Method[RelaySettings]):
    """Cyclic training of K models at once, one per client, merged after each lap of m rounds (hops).

    In hop h of a lap the client with rank r (drawn anew for every lap) trains model (r - h) mod K: a Latin
    square, in which each client trains one model per round and each model visits another client in every
    round. After m hops w <- w + eta (sum_j p_j w_j - w), where p_j is the number of samples of all clients
    that model j has visited. Until then the global weights are the mean of the circulating models.
    """

    name = "relay"
    title = "Relay"
    family = "server rule"
    summary = "one model per client circulates, each trained by every client before all are merged"
    paper = Paper(
        title="FedCross: Towards Accurate Federated Learning via Multi-Model Cross-Aggregation",
        authors="none; nearest: Hu, Zhou, Yue, Ling, Huang, Li, Liu, Lian, Chen",
        year=2024,
        venue="ICDE",
        url="https://arxiv.org/abs/2210.08285",
    )
    circulates = True
    sends = (PASSED_ON, "number of samples")
    in_state = (PASSED_ON,)
    needs_individual_updates = True
    no_average = "the models that it merges were each trained by several clients, one after another"
    fixed_weights = ""

    def hops(self, clients: int) -> int:
        """Return the number of rounds between merges."""
        return self.settings.hops or clients

    def models_at(self, clients: Sequence[str], *, round: int, seed: int) -> list[int]:
        """Return which model each client trains in a round: in the first hop of a lap, client i has model i.

        Ranks are drawn by name, so that they do not depend on the order in which clients are listed.
        """
        lap, hop = divmod(round - 1, self.hops(len(clients)))
        drawn = {name: float(numpy_generator(seed, "relay: ranks", name, lap).random()) for name in clients}
        order = sorted(range(len(clients)), key=lambda place: (drawn[clients[place]], clients[place]))
        found = [0] * len(clients)
        for rank, place in enumerate(order):
            found[place] = order[(rank - hop) % len(order)]
        return found

    def start_states(
        self, clients: Sequence[str], *, round: int, seed: int, state: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Hand every client the model that is its turn; in the first hop of a lap all are the global one."""
        if MODELS not in state:
            return None
        return state[MODELS][self.models_at(clients, round=round, seed=seed)]

    def server(self, work: ServerWork) -> Tensor:
        """Put the trained models back in their places, and merge them at the end of a lap.

        A model whose client returned no usable update stays as it was, and goes on with the next hop.
        """
        clients, updates, state = work.asked or work.updates.clients, work.updates, work.state
        if MODELS not in state:
            state[MODELS] = work.weights.repeat(len(clients), 1)
            state[SEEN] = torch.zeros(len(clients), dtype=torch.float64)
            state[BASE] = work.weights.clone()
        models, seen = state[MODELS], state[SEEN]
        at = dict(zip(clients, self.models_at(clients, round=work.round, seed=work.seed), strict=True))
        for client, row, samples in zip(updates.clients, updates.rows, updates.samples, strict=True):
            models[at[client]] = row
            seen[at[client]] += samples
        weights = client_weights(seen, self.settings.weighting) * (seen > 0)
        mean = weighted_mean(models, weights, layout=updates.layout)
        work.diagnostics["distance_of_models"] = float((models - mean).norm(dim=1).mean())
        if work.round % self.hops(len(clients)):
            return mean
        base = state[BASE]
        for name in (MODELS, SEEN, BASE):
            del state[name]
        return step_towards(base, mean, rate=self.settings.server_lr, layout=updates.layout)
