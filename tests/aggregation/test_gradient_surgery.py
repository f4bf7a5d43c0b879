"""PPDG and PCGrad in coefficient space against the algorithms on whole vectors, as the papers write them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from unseen.aggregation import VisitOrder, align_conflicts, draw_visit_order, gram, project_conflicts

KINDS = ("conflicting", "agreeing", "identical", "with zeros", "opposite", "scattered")


def literal_ppdg(
    vectors: np.ndarray, order: VisitOrder, strength: float, always: bool, printed: bool
) -> np.ndarray:
    """Algorithm 1 of PPDG, on the vectors themselves; a test that falls on a tie is thrown away."""
    hats = [vector.copy() for vector in vectors]
    size = max(float(vector @ vector) for vector in vectors)
    for i in order.clients:
        for j in order.partners[i]:
            if j == i:
                continue
            inner = float(hats[i] @ hats[j])
            assume(inner == 0 or abs(inner) > 1e-13 * size)
            if always or inner < 0:
                start = vectors[i] if printed else hats[i]
                hats[i] = start - 2 * strength * (hats[i] - hats[j])
    return np.array(hats)


def literal_pcgrad(vectors: np.ndarray, order: VisitOrder) -> np.ndarray:
    """Algorithm 1 of PCGrad, on the vectors themselves."""
    hats = [vector.copy() for vector in vectors]
    for i in order.clients:
        for j in order.partners[i]:
            inner = float(hats[i] @ vectors[j])
            if j != i and inner < 0:
                hats[i] = hats[i] - inner / float(vectors[j] @ vectors[j]) * vectors[j]
    return np.array(hats)


def make_vectors(kind: str, clients: int, size: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(clients, size))
    if kind == "conflicting":
        vectors -= vectors.mean(axis=0) * 1.5
    elif kind == "agreeing":
        vectors = 3 * vectors[0] + vectors
    elif kind == "identical":
        vectors[:] = vectors[0]
    elif kind == "with zeros":
        vectors[generator.random(clients) < 0.5] = 0
    elif kind == "opposite":
        vectors[1::2] = -vectors[: 2 * (clients // 2) : 2]
    else:
        vectors *= 10.0 ** generator.integers(-4, 5, (clients, 1))
    return vectors


@st.composite
def vectors_and_orders(draw):
    clients, size, seed = draw(st.integers(1, 12)), draw(st.integers(1, 2000)), draw(st.integers(0, 2**31))
    vectors = make_vectors(draw(st.sampled_from(KINDS)), clients, size, seed)
    clients_order = draw(st.permutations(range(clients)))
    partners = np.random.default_rng(seed).permuted(np.tile(np.arange(clients), (clients, 1)), axis=1)
    return vectors, VisitOrder(np.array(clients_order), partners)


def assert_same(coefficients: torch.Tensor, vectors: np.ndarray, literal: np.ndarray) -> None:
    found = coefficients.numpy() @ vectors
    np.testing.assert_allclose(found, literal, rtol=1e-9, atol=1e-9 * float(np.abs(vectors).max() or 1))


def gram_of(vectors: np.ndarray) -> torch.Tensor:
    """The kernel's own Gram matrix of the vectors."""
    rows = torch.from_numpy(vectors)
    return gram(rows, torch.zeros(rows.shape[1], dtype=torch.float64), slice(0, rows.shape[1]))


@given(vectors_and_orders(), st.floats(0, 0.4999), st.booleans(), st.booleans())
def test_alignment_equals_the_literal_algorithm(case, strength, always, printed):
    vectors, order = case
    literal = literal_ppdg(vectors, order, strength, always, printed)
    found = align_conflicts(
        gram_of(vectors), strength=strength, order=order, always=always, from_original=printed
    )
    assert_same(found.coefficients, vectors, literal)
    np.testing.assert_allclose(found.coefficients.sum(dim=1), 1, rtol=1e-12)


@given(vectors_and_orders())
def test_projection_equals_the_literal_algorithm(case):
    vectors, order = case
    found = project_conflicts(gram_of(vectors), order=order)
    assert_same(found.coefficients, vectors, literal_pcgrad(vectors, order))


@given(vectors_and_orders())
def test_conflicts_and_cosines_are_those_of_the_vectors(case):
    vectors, order = case
    found = project_conflicts(gram_of(vectors), order=order)
    products = gram_of(vectors).numpy()
    assert found.conflicts == sum(
        products[i, j] < 0 for i in range(len(vectors)) for j in range(i + 1, len(vectors))
    )
    assert (found.steps == 0) == (found.conflicts == 0)
    assert found.cosines.abs().max() <= 1


def test_agreeing_vectors_are_left_alone_unless_always_is_asked():
    vectors = np.abs(make_vectors("scattered", 5, 40, 1))
    order = draw_visit_order("abcde", torch.Generator().manual_seed(0))
    still = align_conflicts(gram_of(vectors), strength=0.2, order=order)
    moved = align_conflicts(gram_of(vectors), strength=0.2, order=order, always=True)
    assert torch.equal(still.coefficients, torch.eye(5, dtype=torch.float64)) and still.steps == 0
    assert moved.steps == 20 and not torch.allclose(moved.coefficients, still.coefficients)
    assert torch.equal(
        project_conflicts(gram_of(vectors), order=order).coefficients, torch.eye(5, dtype=torch.float64)
    )


def test_alignment_meets_the_changed_vector_and_projection_the_original():
    """Two opposite clients, worked out by hand (PPDG's equations 9 and 10)."""
    vectors = np.array([[1.0, 0.0], [-1.0, 0.5]])
    order = VisitOrder(np.array([0, 1]), np.array([[1, 0], [0, 1]]))
    aligned = align_conflicts(gram_of(vectors), strength=0.1, order=order).coefficients.numpy() @ vectors
    first = 0.8 * vectors[0] + 0.2 * vectors[1]
    np.testing.assert_allclose(aligned, [first, 0.2 * first + 0.8 * vectors[1]])
    projected = project_conflicts(gram_of(vectors), order=order).coefficients.numpy() @ vectors
    np.testing.assert_allclose(projected, [[0.2, 0.4], [0.0, 0.5]])


@given(st.integers(1, 9), st.integers(0, 2**31), st.randoms(use_true_random=False))
def test_orders_follow_the_names_not_the_rows(clients, seed, random):
    names = [f"client {number}" for number in range(clients)]
    shuffled = random.sample(names, clients)
    one = draw_visit_order(names, torch.Generator().manual_seed(seed))
    other = draw_visit_order(shuffled, torch.Generator().manual_seed(seed))
    assert [names[i] for i in one.clients] == [shuffled[i] for i in other.clients]
    for name in names:
        mine, theirs = one.partners[names.index(name)], other.partners[shuffled.index(name)]
        assert [names[i] for i in mine] == [shuffled[i] for i in theirs]
        assert sorted(mine) == list(range(clients))


def test_records_stay_small_with_many_clients():
    few, many = (make_vectors("conflicting", clients, 30, 0) for clients in (4, 40))
    record = project_conflicts(gram_of(few), order=draw_visit_order("abcd", torch.Generator()))
    assert np.shape(record.diagnostics(steps="steps")["cosines"]) == (4, 4)
    names = [str(number) for number in range(40)]
    big = project_conflicts(gram_of(many), order=draw_visit_order(names, torch.Generator()))
    assert "cosines" not in big.diagnostics(steps="steps")
    assert big.diagnostics(steps="steps")["conflicting_pairs"] == big.conflicts > 0


def test_mean_cosine_is_over_pairs():
    vectors = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    order = draw_visit_order("abc", torch.Generator())
    found = project_conflicts(gram_of(vectors), order=order).diagnostics(steps="projection_steps")
    assert found["mean_cosine"] == pytest.approx(-1 / 3)
    assert found["conflicting_pairs"] == 1 and found["projection_steps"] == 2
