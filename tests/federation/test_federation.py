import numpy as np
import pytest

from unseen.data import DataSet
from unseen.errors import UnseenError, UsageError
from unseen.federation import (
    Federation,
    PartitionConfig,
    Split,
    SplitFractions,
    make_federation,
    sample_clients,
)


def data_of(domains: dict[str, list[int]], classes: tuple[str, ...] = ("cat", "dog")) -> DataSet:
    """One list of targets a domain."""
    targets = np.concatenate([np.array(values, dtype=np.int64) for values in domains.values()])
    return DataSet(
        name="toy",
        task="classification",
        inputs=np.zeros((len(targets), 1), dtype=np.float32),
        targets=targets,
        domain_of=np.repeat(np.arange(len(domains)), [len(values) for values in domains.values()]),
        domains=tuple(domains),
        classes=classes,
    )


def federate(data: DataSet, *held_out: str, clients: int = 1, seed: int = 0) -> Federation:
    plan = PartitionConfig("iid" if clients > 1 else "domain", clients_per_domain=clients)
    return make_federation(data, held_out=held_out, partition=plan, fractions=SplitFractions(), seed=seed)


@pytest.fixture
def data() -> DataSet:
    return data_of({"a": [0, 1] * 20, "b": [0, 1] * 30, "c": [0, 1] * 10})


def test_the_held_out_domain_is_reachable_only_by_asking_for_it(data):
    federation = federate(data, "b", clients=3)
    target = federation.target_indices("b")
    assert target.tolist() == data.indices("b").tolist()
    for client in federation:
        for rows in (client.train, client.validation, client.test):
            assert not np.isin(rows, target).any()
    with pytest.raises(UsageError, match="held-out domain 'a'"):
        federation.target_indices("a")
    with pytest.raises(UsageError, match="source domain 'b'"):
        federation.split_indices(Split.TEST, "b")


def test_clients_are_found_by_position_and_name(data):
    federation = federate(data, clients=2)
    assert federation.names == ("a-1", "a-2", "b-1", "b-2", "c-1", "c-2")
    assert federation.position("b-2") == 3
    assert federation[3].name == federation[-3].name == "b-2"
    assert len(list(federation)) == 6
    with pytest.raises(UsageError, match="Did you mean 'b-2'"):
        federation.position("B-2")
    with pytest.raises(IndexError):
        federation[6]


def test_a_clients_indices_are_its_own_copy(data):
    federation = federate(data)
    before = federation[0].train.copy()
    federation[0].train[:] = -1
    assert federation[0].train.tolist() == before.tolist()


def test_pooled_is_one_client_with_all_samples_in_their_splits(data):
    federation = federate(data, "c", clients=3)
    pooled = federation.pool()
    assert pooled.names == ("all",)
    assert pooled[0].domains == ("a", "b")
    assert pooled.held_out == ("c",)
    for split, rows in zip(Split, (pooled[0].train, pooled[0].validation, pooled[0].test), strict=True):
        parts = (federation.split_indices(split, domain) for domain in ("a", "b"))
        assert rows.tolist() == sorted(row for part in parts for row in part)
    assert pooled[0].train.tolist() == federate(data, "c").pool()[0].train.tolist()


def test_several_or_no_domains_may_be_held_out(data):
    assert federate(data, "a", "c", "a").held_out == ("a", "c")
    assert federate(data, "a", "c").sources == ("b",)
    assert federate(data).sources == ("a", "b", "c")


def test_a_class_that_only_the_held_out_domain_has_is_refused():
    data = data_of({"a": [0, 1] * 5, "b": [0, 1, 2, 2]}, ("cat", "dog", "yak"))
    with pytest.raises(UnseenError, match=r"class 'yak' of the held-out domain 'b' \(2 samples\)"):
        federate(data, "b")
    assert federate(data, "a").names == ("b",)


def test_unknown_all_held_out_and_empty_domains_are_refused(data):
    with pytest.raises(UsageError, match="Did you mean 'a'"):
        federate(data, "A")
    with pytest.raises(UsageError, match="nothing is left"):
        federate(data, "a", "b", "c")
    with pytest.raises(UsageError, match="domain 'b' of toy has no samples"):
        federate(data_of({"a": [0, 1], "b": []}))


def test_a_hundred_thousand_clients_stay_small():
    """Compressed form: no object a client, a few numbers a sample."""
    data = data_of({"all": [0, 1] * 300_000, "elsewhere": [0, 1] * 30})
    federation = federate(data, "elsewhere", clients=100_000)
    assert len(federation) == 100_000
    assert set(federation.train_sizes.tolist()) == {4, 5}
    assert federation[99_999].name == "all-100000"
    held = [value for value in vars(federation).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in held) < 3 * 8 * len(data)


def test_full_participation_is_everybody_and_a_fraction_is_rounded_up(data):
    federation = federate(data, clients=10)
    assert sample_clients(federation, fraction=1.0, round=0, seed=0).tolist() == list(range(30))
    assert len(sample_clients(federation, fraction=0.1, round=0, seed=0)) == 3
    assert len(sample_clients(federation, fraction=0.11, round=0, seed=0)) == 4
    assert len(sample_clients(federation, fraction=1e-12, round=0, seed=0)) == 1


def test_participants_are_sorted_distinct_and_a_function_of_seed_and_round(data):
    federation = federate(data, clients=10)

    def draw(round: int, seed: int) -> list[int]:
        return sample_clients(federation, fraction=0.5, round=round, seed=seed).tolist()

    assert draw(3, 7) == sorted(set(draw(3, 7))) == draw(3, 7)
    assert draw(3, 7) != draw(4, 7)
    assert draw(3, 7) != draw(3, 8)
    times = np.bincount(np.concatenate([draw(round, 0) for round in range(400)]), minlength=30)
    assert times.min() > 140
    assert times.max() < 260


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_impossible_fractions_of_clients_are_refused(data, fraction):
    with pytest.raises(UsageError, match="fraction of clients"):
        sample_clients(federate(data), fraction=fraction, round=0, seed=0)


def test_domains_that_are_not_asked_for_take_no_part(data):
    some = make_federation(
        data,
        held_out=("a",),
        partition=PartitionConfig(),
        fractions=SplitFractions(),
        seed=0,
        among=("c", "a"),
    )
    whole = federate(data, "a")
    assert some.sources == some.names == ("c",) and some.pool().sources == ("c",)
    assert np.array_equal(some[0].train, whole[whole.position("c")].train)
    with pytest.raises(UsageError, match="unknown source domain"):
        make_federation(
            data,
            held_out=("a",),
            partition=PartitionConfig(),
            fractions=SplitFractions(),
            seed=0,
            among=("d",),
        )
    with pytest.raises(UsageError, match="all source domains asked for are held out"):
        data.require_hold_out(("a",), ("a",))
