"""How far the clients' models of a round lie apart, for the records, where they travel unprotected."""

from __future__ import annotations

from unseen.aggregation import Updates, layers_of, pair_distances, shown_layers
from unseen.engine.experiment import Experiment
from unseen.engine.records import Record


def client_distances(experiment: Experiment, updates: Updates) -> Record:
    """The record's `distances`; empty unless two or more clients' models are there at a time.

    A protection hides single clients from the records too, so that under any of them nothing is said.
    """
    if len(updates) < 2 or experiment.protection.name != "none":
        return {}
    federation = experiment.federation
    held = [federation[federation.position(client)].domains for client in updates.clients]
    layers = layers_of(updates.layout)
    shown = [layers[place] for place in shown_layers(layers, updates.layout)]
    found = pair_distances(updates.rows, [one[0] if len(one) == 1 else None for one in held], shown)
    return {"distances": found._asdict()} if found.layers else {}
