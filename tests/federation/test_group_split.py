"""Splits by group: no group is in two parts, in one process, at sites, and in the coordinator's plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unseen.data import DataSet, from_arrays
from unseen.data.site_data import select_site
from unseen.deploy.site_summary import SiteSummary, count_splits, make_placeholder_data
from unseen.errors import UsageError
from unseen.federation import (
    PartitionConfig,
    Split,
    SplitFractions,
    make_federation,
    site_federation,
    split_domain,
)
from unseen.federation.split import split_groups
from unseen.seeding import derive_seed

DOMAINS = ("north", "south", "west")


@st.composite
def grouped_data(draw: st.DrawFn) -> DataSet:
    """Random samples of two or three domains; groups of any size, within and across domains."""
    places = draw(st.lists(st.sampled_from(DOMAINS), min_size=6, max_size=120))
    assume(len(set(places)) >= 2)
    many = draw(st.integers(1, 40))
    numbers = draw(st.lists(st.integers(0, many), min_size=len(places), max_size=len(places)))
    labels = draw(st.lists(st.sampled_from("ab"), min_size=len(places), max_size=len(places)))
    labels[:2] = "ab"
    inputs = np.zeros((len(places), 1), dtype=np.float32)
    return from_arrays(inputs, labels, places, groups=[f"patient {number}" for number in numbers])


by_group = st.builds(SplitFractions, st.floats(0, 0.45), st.floats(0, 0.45), st.just(True))
seeds = st.integers(0, 50)


def parts_of(federation) -> dict[int, set[str]]:
    """Map every row to the parts that it is in, by any client."""
    found: dict[int, set[str]] = {}
    for position in range(len(federation)):
        client = federation[position]
        for part in ("train", "validation", "test"):
            for row in getattr(client, part):
                found.setdefault(int(row), set()).add(part)
    return found


@given(grouped_data(), by_group, seeds, st.sampled_from(["domain", "iid", "dirichlet", "mixed"]))
@settings(deadline=None)
def test_no_group_is_in_two_parts_of_any_source(data, fractions, seed, kind):
    held_out = data.domains[0]
    config = PartitionConfig(kind)
    try:
        federation = make_federation(
            data, held_out=(held_out,), partition=config, fractions=fractions, seed=seed
        )
    except UsageError as error:
        assert "group" in str(error) or "class" in str(error)
        assume(False)
    except Exception as error:
        assert "occurs in no source" in str(error)
        assume(False)
    sides: dict[int, set[str]] = {}
    for row, parts in parts_of(federation).items():
        assert len(parts) == 1
        sides.setdefault(int(data.split_group_of[row]), set()).update(parts)
    assert sides and all(len(parts) == 1 for parts in sides.values())


@given(grouped_data(), by_group, seeds)
@settings(deadline=None)
def test_a_site_that_knows_nothing_of_the_others_splits_as_one_process_does(data, fractions, seed):
    for domain in data.domains:
        try:
            together = split_domain(data, domain, fractions, seed=seed)
        except UsageError:
            assume(False)
        samples = select_site(data, domain, source="toy")
        own = samples.as_data_set(name="toy", domains=(domain, "elsewhere"), classes=data.classes)
        alone = split_domain(own, domain, fractions, seed=seed)
        np.testing.assert_array_equal(alone, together)
        federation = site_federation(
            own,
            site=domain,
            sources=(domain,),
            held_out=("elsewhere",),
            partition=PartitionConfig(),
            fractions=fractions,
            seed=seed,
        )
        sizes = [len(getattr(federation[0], part)) for part in ("train", "validation", "test")]
        assert sizes == np.bincount(together, minlength=3).tolist()


@given(grouped_data(), by_group, seeds, st.sampled_from(["domain", "iid", "dirichlet"]))
@settings(deadline=None)
def test_the_coordinator_plans_with_the_sizes_that_sites_really_have(data, fractions, seed, kind):
    """The coordinator knows no group: sites send how many samples of each class are in each part."""
    census = {}
    for site in data.domains:
        samples = select_site(data, site, source="toy")
        facts = SiteSummary.of(samples, count_splits(samples, fractions, seed=seed))
        census[site] = SiteSummary.from_dict(facts.to_dict())
    placeholder = make_placeholder_data(census, name="toy")
    config = PartitionConfig(kind, clients_per_domain=1 if kind == "domain" else 2)
    held_out = data.domains[0]
    given = {"held_out": (held_out,), "partition": config, "fractions": fractions, "seed": seed}
    try:
        planned = make_federation(placeholder, **given)
    except UsageError as error:
        with pytest.raises(UsageError) as caught:
            make_federation(data, **given)
        assert str(caught.value).split(":")[0] == str(error).split(":")[0]
        return
    except Exception as error:
        assert "occurs in no source" in str(error)
        return
    real = make_federation(data, **given)
    assert planned.names == real.names
    assert planned.train_sizes.tolist() == real.train_sizes.tolist()


def test_labels_follow_the_rule_as_written():
    """The literal rule: u = hash(seed, key) / 2^63, validation below v, test below v + t."""
    keys = np.arange(1000) * 7
    labels = split_groups(keys, SplitFractions(0.2, 0.1, by_group=True), seed=3)
    for key, label in zip(keys.tolist(), labels.tolist(), strict=True):
        u = derive_seed(3, "split group", key) / 2**63
        assert label == (Split.VALIDATION if u < 0.2 else Split.TEST if u < 0.1 + 0.2 else Split.TRAIN)
    sizes = np.bincount(labels, minlength=3) / 1000
    np.testing.assert_allclose(sizes, [0.7, 0.2, 0.1], atol=0.05)
    other = split_groups(keys, SplitFractions(0.2, 0.1, by_group=True), seed=4)
    assert (labels != other).any()


def test_a_split_by_sample_separates_the_groups_that_a_split_by_group_keeps():
    data = two_angles()
    for by, separated in ((False, True), (True, False)):
        labels = {
            domain: split_domain(data, domain, SplitFractions(0.2, 0.2, by), seed=0)
            for domain in data.domains
        }
        assert (labels["0"] != labels["15"]).any() == separated


def test_parts_without_any_group_are_refused_in_one_line():
    data = from_arrays(np.zeros((8, 1)), list("abababab"), list("nnnnssss"), groups=["one"] * 8)
    given = {"held_out": ("n",), "partition": PartitionConfig(), "seed": 0}
    with pytest.raises(UsageError, match=r"too few groups for --validation 0\.01"):
        make_federation(data, fractions=SplitFractions(0.01, 0, by_group=True), **given)
    with pytest.raises(UsageError, match="no group of domain 's' falls in its training part"):
        make_federation(data, fractions=SplitFractions(0.98, 0.01, by_group=True), **given)


def test_a_summary_whose_parts_do_not_sum_to_its_counts_is_refused():
    samples = select_site(two_angles(), "0", source="toy")
    facts = SiteSummary.of(samples, count_splits(samples, SplitFractions(by_group=True), seed=0)).to_dict()
    wrong = {**facts, "splits": {name: [sizes[0] + 1, *sizes[1:]] for name, sizes in facts["splits"].items()}}
    for value in (wrong["splits"], {}, [], {"a": "text"}):
        with pytest.raises(Exception, match="its splits cannot be"):
            SiteSummary.from_dict({**facts, "splits": value})


def test_groups_are_no_part_of_the_content_but_of_what_a_split_by_group_reads():
    data = two_angles()
    assert replace(data, split_group_of=None, fingerprint="").fingerprint == data.fingerprint
    samples = select_site(data, "0", source="toy")
    assert samples.fingerprint != samples.with_groups_identified().fingerprint


def two_angles() -> DataSet:
    """100 originals, each in both domains."""
    names = [f"image {number}" for number in range(100)]
    return from_arrays(
        np.zeros((200, 1)), list("ab") * 100, ["0"] * 100 + ["15"] * 100, groups=[*names, *names]
    )
