"""L_BoDA against equation 8 written out sample by sample, and against finite differences."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.methods.mdfl.boda import Prototypes, boda_loss, class_feature_sums


@dataclass
class Case:
    """A batch and a table of means and counts; a count of zero says that the pair is missing."""

    features: torch.Tensor
    targets: torch.Tensor
    domains: torch.Tensor
    means: torch.Tensor
    counts: torch.Tensor

    def loss(self, **options):
        table = Prototypes.of_table(self.means, self.counts)
        return boda_loss(self.features, self.targets, self.domains, table, **options)


def make_case(seed=0, *, domains=3, classes=4, size=5, batch=7, missing=0.0, scale=1.0) -> Case:
    draw = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 400, (domains, classes), generator=draw)
    counts[torch.rand(domains, classes, generator=draw) < missing] = 0
    means = torch.randn(domains, classes, size, generator=draw, dtype=torch.float64)
    means[counts == 0] = torch.nan
    return Case(
        features=scale * torch.randn(batch, size, generator=draw, dtype=torch.float64),
        targets=torch.randint(classes, (batch,), generator=draw),
        domains=torch.randint(domains, (batch,), generator=draw),
        means=means,
        counts=counts,
    )


def literal_loss(case: Case, *, nu=0.5, divide_by_count=False, temperature=1.0) -> float:
    """Equation 8 in plain numbers: a loop over samples, positives and the pairs of the denominator."""
    domains, classes = case.counts.shape
    pairs = [(d, c) for d in range(domains) for c in range(classes) if case.counts[d, c] > 0]
    total = 0.0
    for z, c, d in zip(case.features.tolist(), case.targets.tolist(), case.domains.tolist(), strict=True):
        if (d, c) not in pairs:
            continue

        def logit(pair, z=z, own=(d, c)):
            share = int(case.counts[pair]) / int(case.counts[own])
            factor = share**nu / (int(case.counts[own]) if divide_by_count else 1)
            return -factor * math.dist(z, case.means[pair].tolist()) / temperature

        positives = [(other, c) for other in range(domains) if other != d and (other, c) in pairs]
        denominator = math.fsum(math.exp(logit(pair)) for pair in pairs if pair != (d, c))
        logs = [logit(pair) - math.log(denominator) for pair in positives]
        total += -sum(logs) / len(logs) if logs else 0.0
    return total / len(case.features)


@given(
    seed=st.integers(0, 10_000),
    domains=st.integers(1, 4),
    classes=st.integers(1, 5),
    batch=st.integers(1, 9),
    missing=st.sampled_from([0.0, 0.3, 0.7]),
    nu=st.sampled_from([0.0, 0.5, 1.0]),
    divide_by_count=st.booleans(),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_equals_equation_8_written_out(seed, domains, classes, batch, missing, **options):
    case = make_case(seed, domains=domains, classes=classes, batch=batch, missing=missing)
    assert float(case.loss(**options)) == pytest.approx(literal_loss(case, **options), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("options", [{}, {"nu": 1.0, "divide_by_count": True}, {"temperature": 0.5}])
def test_gradient_agrees_with_finite_differences(options):
    case = make_case(3, missing=0.2, batch=9)

    def of_features(features):
        case.features = features
        return case.loss(**options)

    point = case.features.clone().requires_grad_()
    assert torch.autograd.gradcheck(of_features, (point,))
    (gradient,) = torch.autograd.grad(of_features(point), point)
    assert gradient.abs().max() > 1e-4


def test_no_gradient_reaches_the_prototypes():
    case = make_case(1)
    case.features.requires_grad_()
    case.means.requires_grad_()
    case.loss().backward()
    assert case.means.grad is None and case.features.grad.abs().sum() > 0


def test_a_step_against_the_gradient_brings_a_sample_nearer_to_its_class_elsewhere():
    means = torch.tensor([[[0.0, 0.0], [9.0, 9.0]], [[4.0, 0.0], [9.0, -9.0]]])
    table = Prototypes.of_table(means, torch.full((2, 2), 10))
    features = torch.tensor([[1.0, 1.0]], requires_grad=True)
    boda_loss(features, torch.tensor([0]), torch.tensor([0]), table).backward()
    moved = features.detach() - 0.1 * features.grad
    assert torch.dist(moved, means[1, 0]) < torch.dist(features, means[1, 0])


def test_a_missing_class_or_domain_gives_no_nan():
    case = make_case(5, domains=3, classes=3, batch=30)
    case.counts[0, 1] = 0
    case.counts[2] = 0
    case.means[case.counts == 0] = torch.nan
    case.features.requires_grad_()
    loss = case.loss()
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(case.features.grad).all() and loss > 0


def test_a_sample_exactly_on_a_prototype_gives_a_finite_gradient():
    case = make_case(6, domains=2, classes=2, batch=1)
    case.targets, case.domains = torch.tensor([0]), torch.tensor([0])
    case.features = case.means[1, 0][None].clone().requires_grad_()
    case.loss().backward()
    assert torch.isfinite(case.features.grad).all()


def test_far_features_do_not_overflow():
    case = make_case(7, scale=1e6)
    assert torch.isfinite(case.loss())
    case.features, case.means = case.features.float(), case.means.float()
    assert torch.isfinite(case.loss())


@pytest.mark.parametrize("missing", ["other domains", "the class elsewhere", "its own pair"])
def test_without_a_positive_the_term_is_zero_and_differentiable(missing):
    case = make_case(2, domains=3, batch=4)
    case.domains[:], case.targets[:] = 0, 1
    if missing == "other domains":
        case.counts[1:] = 0
    elif missing == "the class elsewhere":
        case.counts[1:, 1] = 0
    else:
        case.counts[0, 1] = 0
    case.features.requires_grad_()
    loss = case.loss()
    loss.backward()
    assert loss == 0 and (case.features.grad == 0).all()


def test_the_own_pair_counts_only_through_its_size():
    case = make_case(8, batch=1)
    own = case.domains[0], case.targets[0]
    before = case.loss()
    case.means[own] += 5
    assert case.loss() == before
    case.counts[own] *= 3
    assert case.loss() != before


def test_each_setting_changes_the_loss():
    case = make_case(9, batch=20)
    values = [
        float(case.loss(**options))
        for options in ({}, {"nu": 0.0}, {"nu": 1.0}, {"divide_by_count": True}, {"temperature": 2.0})
    ]
    assert len(set(values)) == len(values)


@given(seed=st.integers(0, 1000), cuts=st.integers(1, 4))
def test_sums_of_parts_give_the_centroids_of_the_whole(seed, cuts):
    case = make_case(seed, batch=40, domains=2, classes=3)
    parts = [
        class_feature_sums(case.features[p], case.targets[p], case.domains[p], shape=(2, 3))
        for p in torch.arange(40).chunk(cuts)
    ]
    sums, counts = sum(part[0] for part in parts), sum(part[1] for part in parts)
    assert counts.sum() == 40
    for d in range(2):
        for c in range(3):
            here = case.features[(case.domains == d) & (case.targets == c)]
            assert counts[d, c] == len(here)
            if len(here):
                torch.testing.assert_close(sums[d, c] / counts[d, c], here.mean(0))


@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_in_units_of_the_mean_distance_the_scale_of_features_does_not_matter(seed, scale):
    """The unit is the mean over all pairs of different means, written out; missing pairs are left out."""
    case = make_case(seed, missing=0.2)
    larger = Case(scale * case.features, case.targets, case.domains, scale * case.means, case.counts)
    losses = []
    for each in (case, larger):
        present = [each.means[d, c].tolist() for d, c in each.counts.nonzero().tolist()]
        distances = [math.dist(p, q) for i, p in enumerate(present) for j, q in enumerate(present) if i != j]
        unit = Prototypes.of_table(each.means, each.counts).mean_distance()
        assert unit == pytest.approx(sum(distances) / len(distances) if distances else 1.0)
        losses.append(float(each.loss(temperature=unit)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9, abs=1e-12)


def test_a_table_without_two_different_means_has_the_unit_one():
    counts = torch.ones(1, 3, dtype=torch.int64)
    assert Prototypes.of_table(torch.zeros(1, 3, 4), counts).mean_distance() == 1.0
    assert Prototypes.of_table(torch.rand(1, 1, 4), counts[:, :1]).mean_distance() == 1.0
