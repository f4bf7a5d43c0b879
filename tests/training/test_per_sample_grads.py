"""Gradients of single samples: those of a slow loop and of opacus, bounded one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unseen.data import Batch
from unseen.models import FlatState, InputSpec, build_model
from unseen.training.per_sample_grads import gradients_of_samples, sum_clipped_gradients

IMAGES = InputSpec((3, 16, 16), 4)


def batch_for(facts: InputSpec, count: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, *facts.input_shape, generator=generator)
    targets = torch.randint(0, facts.outputs, (count,), generator=generator)
    return Batch(inputs, targets, torch.zeros(count, dtype=torch.int64))


def loss_of(module: nn.Module):
    return lambda batch: F.cross_entropy(module(batch.inputs), batch.targets)


def looped(flat: FlatState, loss, batch: Batch) -> torch.Tensor:
    """One backward pass a sample."""
    rows = []
    for place in range(len(batch.targets)):
        flat.gradient.zero_()
        loss(Batch(*(part[place : place + 1] for part in batch))).backward()
        rows.append(flat.gradient.clone())
    return torch.stack(rows)


@pytest.mark.parametrize(
    "model", ["mnist-cnn", "lenet", "lenet-1", "cnn-2", "customnet", "mini-vit", "mlp", "resnet18+groupnorm"]
)
def test_sum_of_clipped_gradients_is_that_of_a_loop(model):
    facts = InputSpec((7,), 4) if model == "mlp" else IMAGES
    flat = FlatState(build_model(model, facts, seed=0))
    flat.module.eval()
    batch, loss = batch_for(facts), loss_of(flat.module)
    rows = looped(flat, loss, batch).double()
    bound = float(rows.norm(dim=1).median())
    expected = (rows * (bound / rows.norm(dim=1).clamp(min=bound))[:, None]).sum(0)
    before = flat.vector.clone()
    total = sum_clipped_gradients(flat, loss, batch, bound=bound)
    torch.testing.assert_close(flat.gradient.double(), expected, atol=1e-5, rtol=1e-4)
    assert float(total) == pytest.approx(float(loss(batch).detach()) * 5, rel=1e-5)
    assert torch.equal(flat.vector, before)
    flat.module.get_parameter(flat.layout.entries[0].name).sum().backward()
    assert flat.gradient.double().sub(expected).abs().max() > 0.5, "gradients are still bound to the vector"


def test_gradients_are_those_of_opacus():
    from opacus.grad_sample import GradSampleModule

    batch = batch_for(IMAGES)
    ours, _ = gradients_of_samples(module := build_model("mnist-cnn", IMAGES, seed=0), loss_of(module), batch)
    theirs = GradSampleModule(build_model("mnist-cnn", IMAGES, seed=0))
    loss_of(theirs)(batch).backward()
    named = dict(theirs._module.named_parameters())
    assert set(named) == set(ours)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, named[name].grad_sample, atol=1e-6, rtol=1e-4)


def test_a_loss_over_the_batch_cannot_mix_samples():
    flat = FlatState(nn.Linear(3, 2))
    batch = batch_for(InputSpec((3,), 2), 4)

    def contrast(batch: Batch) -> torch.Tensor:
        outputs = flat.module(batch.inputs)
        return (outputs @ outputs.T).mean()

    together, _ = gradients_of_samples(flat.module, contrast, batch)
    alone, _ = gradients_of_samples(flat.module, contrast, Batch(*(part[1:2] for part in batch)))
    torch.testing.assert_close(together["weight"][1], alone["weight"][0])


def test_samples_in_parts_empty_batches_and_gradients_that_are_not_finite(monkeypatch):
    flat = FlatState(nn.Linear(3, 2))
    batch = batch_for(InputSpec((3,), 2), 9)
    loss = loss_of(flat.module)
    sum_clipped_gradients(flat, loss, batch, bound=0.3)
    whole = flat.gradient.clone()
    monkeypatch.setattr("unseen.training.per_sample_grads._NUMBERS_AT_ONCE", 20)
    sum_clipped_gradients(flat, loss, batch, bound=0.3)
    torch.testing.assert_close(flat.gradient, whole)
    assert float(sum_clipped_gradients(flat, loss, Batch(*(part[:0] for part in batch)), bound=0.3)) == 0
    assert not flat.gradient.any()
    spoilt = batch._replace(inputs=batch.inputs.clone())
    spoilt.inputs[4] = torch.inf
    sum_clipped_gradients(flat, loss, spoilt, bound=0.3)
    others = flat.gradient.clone()
    kept = torch.arange(9) != 4
    sum_clipped_gradients(flat, loss, Batch(*(part[kept] for part in batch)), bound=0.3)
    torch.testing.assert_close(others, flat.gradient)


def test_dropout_differs_between_samples():
    torch.manual_seed(0)
    flat = FlatState(nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5)))
    batch = Batch(torch.ones(2, 40), torch.zeros(2), torch.zeros(2))
    gradients, _ = gradients_of_samples(flat.module, lambda part: flat.module(part.inputs).sum(), batch)
    assert not torch.equal(gradients["0.bias"][0], gradients["0.bias"][1])
