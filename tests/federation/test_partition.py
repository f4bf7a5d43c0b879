import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.data import DataSet
from unseen.errors import UsageError
from unseen.federation import PARTITIONS, PartitionConfig, Split, SplitFractions, make_federation


def toy(sizes: list[int], *, classes: int = 3, task: str = "classification") -> DataSet:
    """Domains a, b, ... of these sizes, their samples shuffled in the store."""
    generator = np.random.default_rng(0)
    domain_of = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    targets = np.arange(len(domain_of)) % classes
    return DataSet(
        name="toy",
        task=task,
        inputs=np.zeros((len(domain_of), 1), dtype=np.float32),
        targets=targets if task == "classification" else targets.astype(np.float32),
        domain_of=domain_of,
        domains=tuple("abcdefgh"[: len(sizes)]),
        classes=tuple(f"c{i}" for i in range(classes)) if task == "classification" else (),
    )


def federate(data, plan=None, *, held_out=(), fractions=None, seed=0):
    return make_federation(
        data,
        held_out=held_out,
        partition=plan or PartitionConfig(),
        fractions=fractions or SplitFractions(),
        seed=seed,
    )


def everything(client):
    return np.concatenate([client.train, client.validation, client.test])


plans = st.builds(
    PartitionConfig,
    kind=st.sampled_from(list(PARTITIONS)),
    clients_per_domain=st.integers(1, 6),
    alpha=st.floats(1e-6, 100),
    heterogeneity=st.floats(0, 1),
)


@given(plans, st.lists(st.integers(20, 60), min_size=2, max_size=4), st.integers(0, 99))
def test_every_source_sample_has_exactly_one_place(plan, sizes, seed):
    data = toy(sizes)
    federation = federate(data, plan, held_out=("b",), seed=seed)
    placed = np.concatenate([everything(client) for client in federation])
    assert sorted(placed) == np.flatnonzero(data.domain_of != 1).tolist()
    assert federation.train_sizes.min() >= 1
    assert federation.train_sizes.tolist() == [len(client.train) for client in federation]
    assert len(set(federation.names)) == len(federation) == plan.clients_per_domain * (len(sizes) - 1)


@given(plans, st.integers(0, 99))
def test_the_split_does_not_depend_on_the_partition_or_the_held_out_domain(plan, seed):
    data = toy([40, 50, 60])
    reference = federate(data, seed=seed)
    federation = federate(data, plan, held_out=("b",), seed=seed)
    for split in Split:
        for domain in "ac":
            rows = federation.split_indices(split, domain)
            assert rows.tolist() == reference.split_indices(split, domain).tolist()


@pytest.mark.parametrize("kind", list(PARTITIONS))
def test_a_partition_is_a_function_of_its_seed(kind):
    data, plan = toy([60, 60]), PartitionConfig(kind, clients_per_domain=3, heterogeneity=0.5)
    first, again, other = (federate(data, plan, seed=seed) for seed in (1, 1, 2))
    assert [everything(client).tolist() for client in first] == [
        everything(client).tolist() for client in again
    ]
    assert [everything(client).tolist() for client in first] != [
        everything(client).tolist() for client in other
    ]


def test_one_client_a_domain_is_named_like_it():
    federation = federate(toy([30, 30, 30]), held_out=("b",))
    assert federation.names == ("a", "c")
    assert [client.domains for client in federation] == [("a",), ("c",)]


@pytest.mark.parametrize("kind", ["domain", "iid"])
def test_even_partition_differs_by_one_sample_at_most(kind):
    federation = federate(toy([53, 47]), PartitionConfig(kind, clients_per_domain=4))
    assert federation.names == ("a-1", "a-2", "a-3", "a-4", "b-1", "b-2", "b-3", "b-4")
    for quarter in (slice(0, 4), slice(4, 8)):
        clients = [federation[k] for k in range(8)[quarter]]
        for part in ("train", "validation", "test"):
            sizes = [len(getattr(client, part)) for client in clients]
            assert max(sizes) - min(sizes) <= 1
        totals = [len(everything(client)) for client in clients]
        assert max(totals) - min(totals) <= 1


def skew(federation, data) -> float:
    """Mean over clients of the largest class's share."""
    shares = [np.bincount(data.targets[client.train], minlength=3) for client in federation]
    return float(np.mean([counts.max() / counts.sum() for counts in shares]))


def test_small_alpha_skews_labels_more_than_a_large_one():
    data = toy([600, 600])
    few, medium, many = (
        skew(federate(data, PartitionConfig("dirichlet", clients_per_domain=6, alpha=alpha)), data)
        for alpha in (0.05, 1.0, 1000.0)
    )
    assert few > medium + 0.1 > many + 0.2
    assert many < 0.4


def test_dirichlet_keeps_a_clients_skew_in_all_its_splits():
    data = toy([3000])
    plan = PartitionConfig("dirichlet", clients_per_domain=3, alpha=0.5)
    for client in federate(data, plan, fractions=SplitFractions(0.3, 0.3)):
        train, test = (
            np.bincount(data.targets[rows], minlength=3) / len(rows) for rows in (client.train, client.test)
        )
        assert np.abs(train - test).max() < 0.05


def test_dirichlet_gives_every_client_two_training_samples_if_there_are_so_many():
    data = toy([100])
    federation = federate(data, PartitionConfig("dirichlet", clients_per_domain=40, alpha=0.01))
    assert federation.train_sizes.min() == 2
    assert federation.train_sizes.sum() == 80


def test_mixed_with_full_heterogeneity_gives_each_client_one_domain():
    federation = federate(toy([40, 60]), PartitionConfig("mixed", clients_per_domain=2, heterogeneity=1))
    assert federation.names == ("client-1", "client-2", "client-3", "client-4")
    assert [client.domains for client in federation] == [("a",), ("a",), ("b",), ("b",)]


def test_mixed_without_heterogeneity_gives_every_client_the_same_mix():
    data = toy([200, 400])
    for client in federate(data, PartitionConfig("mixed", clients_per_domain=2, heterogeneity=0)):
        assert np.bincount(data.domain_of[client.train]).tolist() == [40, 80]


def test_mixed_shares_follow_the_formula():
    data = toy([1000, 1000])
    plan = PartitionConfig("mixed", clients_per_domain=2, heterogeneity=0.6)
    federation = federate(data, plan, fractions=SplitFractions(0, 0))
    assert np.bincount(data.domain_of[federation[0].train]).tolist() == [400, 100]
    assert np.bincount(data.domain_of[federation[3].train]).tolist() == [100, 400]


def test_too_many_clients_are_refused_with_the_possible_number():
    with pytest.raises(UsageError, match=r"'b' has 8 training samples for 9 clients; at most 8 clients"):
        federate(toy([50, 10]), PartitionConfig("iid", clients_per_domain=9))


def test_dirichlet_has_no_meaning_for_regression():
    with pytest.raises(UsageError, match="regression"):
        federate(toy([50, 50], task="regression"), PartitionConfig("dirichlet", clients_per_domain=2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "dirichelet"}, "Did you mean 'dirichlet'"),
        ({"clients_per_domain": 0}, "0 clients per domain"),
        ({"alpha": 0.0}, "alpha 0.0"),
        ({"alpha": float("inf")}, "alpha inf"),
        ({"heterogeneity": 1.5}, "heterogeneity 1.5"),
    ],
)
def test_impossible_plans_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        PartitionConfig(**settings)
