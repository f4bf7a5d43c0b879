"""The first and the last round record how far the clients' models lie apart."""

from __future__ import annotations

import pytest

from unseen.federation import PartitionConfig
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.05, momentum=0.5)


def rounds_of(records):
    return {record["round"]: record for record in records.entries if record["event"] == "round"}


def test_one_client_a_domain_has_distances_between_domains_only(make_experiment, go):
    rounds = rounds_of(go(make_experiment(plan=PLAN), rounds=3)[1])
    assert "distances" not in rounds[2]
    for number in (1, 3):
        found = rounds[number]["distances"]
        assert all(value > 0 for value in found["other_domain"])
        assert set(found["same_domain"]) == {None}
        assert all(name.endswith("weight") for name in found["layers"])


def test_several_clients_a_domain_have_both(make_experiment, go):
    experiment = make_experiment(plan=PLAN, partition=PartitionConfig(clients_per_domain=2))
    found = rounds_of(go(experiment, rounds=1)[1])[1]["distances"]
    assert len(found["layers"]) == len(found["same_domain"]) == len(found["other_domain"]) > 2
    assert all(value > 0 for value in found["same_domain"])


@pytest.mark.parametrize("method", ["cwt", "deepall"])
def test_models_that_never_lie_side_by_side_have_none(make_experiment, go, method):
    rounds = rounds_of(go(make_experiment(method, plan=PLAN), rounds=1)[1])
    assert "distances" not in rounds[1]
