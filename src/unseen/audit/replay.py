"""Replay one round of a run as its server sees it, with real clients and the real protection.

Every client takes one plain step on a few images: the worst case, since more samples or steps in an update
hide a single image better.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unseen.aggregation import ServerWork
from unseen.data import Indices
from unseen.engine import Experiment, RoundStart, SerialEngine
from unseen.engine.exchange import Exchange
from unseen.errors import UnseenError, UsageError
from unseen.federation import Federation, Split, sample_clients
from unseen.models import Layout, Network
from unseen.privacy import DisclosureLog, ReceivedUpdate
from unseen.runs.checkpoint import StateStore
from unseen.seeding import numpy_generator
from unseen.serving.saved_model import read_model_tensors
from unseen.training import LocalTrainingConfig, Update

ROUND = 1


@dataclass(frozen=True)
class ReplayedRound:
    """Observations of a replayed round.

    start     the weights that the server sent out
    messages  what each client sent, as it reached the server
    merged    the weights after the round; None where a model passes from client to client
    network   the deployed network with the weights of the start
    """

    protection: str
    start: Tensor
    messages: Mapping[str, Update]
    merged: Tensor | None
    layout: Layout
    names: Mapping[int, str]
    network: Network
    spent: Mapping[str, Any]
    statement: str

    def gradient(self, vector: Tensor) -> list[Tensor]:
        """Return the part of a flat vector that belongs to each of the network's trainable parameters."""
        named = self.layout.tensors(vector)
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        return [named[self.names[place]] for place in range(len(trained))]


def choose_images(experiment: Experiment, *, count: int, fraction: float) -> dict[str, Indices]:
    """Choose the images of each client's step, drawn by the client's name."""
    federation, seed = experiment.federation, experiment.seed
    found: dict[str, Indices] = {}
    for position in sample_clients(federation, fraction=fraction, round=ROUND, seed=seed).tolist():
        client = federation[position]
        if len(client.train) < count:
            raise UsageError(
                f"client {client.name!r} has {len(client.train)} training images, --images asks for {count}"
            )
        drawn = numpy_generator(seed, "audit: images", client.name).permutation(client.train)
        found[client.name] = drawn[:count]
    return found


def single_step(experiment: Experiment, images: Mapping[str, Indices]) -> Experiment:
    """Reduce the experiment to these images and clients, with one plain step as their local training."""
    federation, data = experiment.federation, experiment.data
    sizes = [len(rows) for rows in images.values()]
    small = Federation(
        names=tuple(images),
        rows=np.concatenate(list(images.values())),
        slots=np.repeat(len(Split) * np.arange(len(images)) + int(Split.TRAIN), sizes),
        domain_of=data.domain_of,
        domains=data.domains,
        held_out=federation.held_out,
        sources=federation.sources,
        validate_on=federation.validate_on,
    )
    plan = LocalTrainingConfig(epochs=1, batch_size=max(sizes), lr=experiment.plan.lr, momentum=0.0)
    prepare = replace(experiment.prepare, augmentation="none", precision="float32")
    network = copy.deepcopy(experiment.network)
    return replace(experiment, network=network, federation=small, plan=plan, prepare=prepare, compile=False)


def replay_round(experiment: Experiment, *, rounds: int, model: Path | None = None) -> ReplayedRound:
    """Replay the round and record what each side sees.

    experiment  as `single_step` makes it
    model       the run's model file, to start from its final weights; None = the initial ones
    """
    with tempfile.TemporaryDirectory(prefix="unseen-audit-") as folder:
        engine = SerialEngine(experiment, StateStore(Path(folder)))
        try:
            if model is not None:
                engine.workspace.module.load_state_dict(read_model_tensors(model))
            return _play(experiment, engine, rounds)
        finally:
            engine.close()


def _play(experiment: Experiment, engine: SerialEngine, rounds: int) -> ReplayedRound:
    workspace, method, protection = engine.workspace, experiment.method, experiment.protection
    start = workspace.flat.read().cpu()
    network = copy.deepcopy(workspace.deployed)
    places = {id(parameter): name for name, parameter in workspace.module.named_parameters()}
    trained = [parameter for parameter in workspace.deployed.parameters() if parameter.requires_grad]
    names = {place: places[id(parameter)] for place, parameter in enumerate(trained)}
    group = list(range(len(experiment.federation)))
    if method.topology == "serial":
        group = list(method.visiting_order(group, round=ROUND, seed=experiment.seed))[:1]
    state: dict[str, Tensor] = {}
    server: dict[str, Tensor] = {}
    if protection.draws_clients:
        protection.sample_clients(len(group), fraction=1.0, round=ROUND, seed=experiment.seed, state=state)
    exchange = Exchange(
        experiment,
        engine,
        group=group,
        round=ROUND,
        weights=start,
        layout=workspace.flat.layout,
        state=state,
        left=DisclosureLog(),
        fault=_complain,
    )
    received = method.broadcast(server)
    rows, replies = engine.train(group, RoundStart(ROUND, start, received, sealing=exchange.begin()))
    sent = {reply.client: _sent(reply.client, reply.update) for reply in replies}
    messages = {client: replace(update, weights=update.weights.clone()) for client, update in sent.items()}
    merged = None
    if method.topology != "serial":
        opened = exchange.finish(rows, replies, [ReceivedUpdate(*item) for item in sent.items()])
        work = ServerWork(
            round=ROUND,
            rounds=rounds,
            seed=experiment.seed,
            weights=start,
            updates=opened.updates,
            state=server,
            population=len(experiment.federation),
            lr=experiment.plan.in_round(ROUND).lr,
        )
        merged = exchange.conclude(experiment.aggregate(work)).clone()
    return ReplayedRound(
        protection=protection.name,
        start=start,
        messages=messages,
        merged=merged,
        layout=workspace.flat.layout,
        names=names,
        network=network,
        spent=protection.privacy_spent(state),
        statement=protection.statement(),
    )


def _sent(client: str, update: Update | None) -> Update:
    if update is None or update.withheld:
        reason = "it sent nothing" if update is None else update.withheld
        raise UnseenError(f"client {client!r} sent no update in the audited round: {reason}")
    return update


def _complain(client: str, reason: str) -> None:
    raise UnseenError(f"client {client!r} dropped out of the audited round: {reason}")
