"""Group norm in the place of batch norm: no statistics remain, and samples no longer meet."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unseen.errors import UsageError
from unseen.models import InputSpec, Kind, Layout, build_model

FACTS = InputSpec((3, 32, 32), 4)


@pytest.mark.parametrize("model", ["resnet18", "densenet121"])
def test_nothing_of_batch_norm_remains(model):
    plain, changed = (build_model(name, FACTS, seed=3) for name in (model, f"{model}+groupnorm"))
    assert changed.model_name == f"{model}+groupnorm"
    assert all(entry.kind is Kind.PARAMETER for entry in Layout.of(changed).entries)
    assert not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in changed.modules())
    count = [sum(value.numel() for value in made.parameters()) for made in (plain, changed)]
    assert count[0] == count[1]
    assert torch.equal(plain.head.weight, changed.head.weight)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    changed.train()
    with torch.no_grad():
        torch.testing.assert_close(changed(images)[:1], changed(images[:1]), atol=1e-5, rtol=1e-4)
        assert not torch.allclose(plain.train()(images)[:1], changed(images)[:1], atol=1e-3)


def test_activations_inside_the_layers_are_kept():
    """timm's DenseNet keeps its ReLUs inside its batch norms."""
    plain, changed = (build_model(name, FACTS, seed=3) for name in ("densenet121", "densenet121+groupnorm"))
    activations = [sum(isinstance(part, nn.ReLU) for part in made.modules()) for made in (plain, changed)]
    assert activations[0] == activations[1] > 100


def test_scales_and_shifts_of_weights_are_kept(tmp_path):
    from safetensors.torch import save_file

    plain = build_model("resnet18", FACTS, seed=1)
    with torch.no_grad():
        plain.body.bn1.weight.fill_(0.25)
    save_file(plain.state_dict(), tmp_path / "w.safetensors")
    changed = build_model("resnet18+groupnorm", FACTS, seed=2, weights=tmp_path / "w.safetensors")
    assert bool((changed.body.bn1.weight == 0.25).all())
    assert torch.equal(changed.body.conv1.weight, plain.body.conv1.weight)
    assert any("became group norm" in note for note in changed.notes)


def test_a_network_without_batch_norm_is_told():
    with pytest.raises(UsageError, match="'lenet' has no batch norm to replace"):
        build_model("lenet+groupnorm", FACTS, seed=0)
