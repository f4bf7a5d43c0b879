"""FedLC against its loss written out, and when it is FedAvg."""

from __future__ import annotations

import pytest
import torch
from literal_clients import assert_state, layout_of, mean_state, samples_of, start_of, visit
from torch.nn import functional

from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fedlc import SMALLEST_COUNT, label_margins


def literal_loss(counts, tau):
    """Equation 7, sample by sample: -log( e^(f_y - tau n_y^-1/4) / sum_c e^(f_c - tau n_c^-1/4) )."""

    def loss(module, batch):
        terms = []
        for logits, label in zip(module(batch.inputs), batch.targets.tolist(), strict=True):
            lowered = [logits[c] - tau * max(n, SMALLEST_COUNT) ** -0.25 for c, n in enumerate(counts)]
            total = sum(torch.exp(value - lowered[label]) for value in lowered)
            terms.append(torch.log(total))
        return sum(terms) / len(terms)

    return loss


def test_equals_the_literal_algorithm(make_uneven_experiment, go):
    """Client b lacks class 1."""
    ours, _ = go(make_uneven_experiment("fedlc"), rounds=2)
    experiment = make_uneven_experiment("fedlc")
    state, sizes = start_of(experiment), []
    for number in (1, 2):
        visits = []
        for client in "abc":
            targets = samples_of(experiment, client).targets.tolist()
            loss = literal_loss([targets.count(label) for label in range(3)], tau=0.5)
            visits.append(visit(experiment, client, round=number, start=state, loss=loss))
        sizes = [each.samples for each in visits]
        state = mean_state([each.state for each in visits], sizes)
    assert_state(ours.weights, state, layout_of(experiment))
    plain, _ = go(make_uneven_experiment("fedavg"), "plain", rounds=2)
    assert (ours.weights - plain.weights).abs().max() > 1e-3


def test_tau_zero_is_fedavg_to_the_last_bit(make_uneven_experiment, go):
    ours, _ = go(make_uneven_experiment("fedlc", settings={"tau": 0}), "ours")
    plain, _ = go(make_uneven_experiment("fedavg"), "plain")
    assert torch.equal(ours.weights, plain.weights)


def test_balanced_classes_are_trained_as_in_fedavg(make_uneven_experiment):
    """A softmax does not change where all logits fall by the same."""
    margins = label_margins(torch.tensor([0, 1, 2, 2, 1, 0]), classes=3, tau=2.0)
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(6) % 3
    torch.testing.assert_close(
        functional.cross_entropy(logits - margins, targets), functional.cross_entropy(logits, targets)
    )


def test_a_missing_class_gets_no_gradient_and_a_rare_one_a_larger_margin():
    margins = label_margins(torch.tensor([0] * 16 + [1]), classes=3, tau=1.0)
    assert margins.tolist() == pytest.approx([0.5, 1.0, 100.0])
    logits = torch.zeros(2, 3, requires_grad=True)
    functional.cross_entropy(logits - margins, torch.tensor([0, 1])).backward()
    assert logits.grad[:, 2].abs().max() < 1e-30
    assert logits.grad[0, 0].abs() < logits.grad[1, 1].abs()


def test_what_is_recorded(make_uneven_experiment, go, rounds_of):
    _, records = go(make_uneven_experiment("fedlc"), rounds=1)
    diagnostics = rounds_of(records)[0]["diagnostics"]
    assert diagnostics["classes_missing"] == {"a": 0, "b": 1, "c": 0}
    assert max(diagnostics["margin_spread"].values()) < 0.5


def test_what_it_refuses(make_experiment, tiny_regression, go):
    with pytest.raises(UsageError, match="regression"):
        go(make_experiment("fedlc", data=tiny_regression), rounds=1)
    with pytest.raises(UsageError, match="tau"):
        make_method("fedlc", {"tau": -1})
