"""A network with the bottleneck of CSAC's released program: what changes, and what stays."""

from __future__ import annotations

import torch
from safetensors.torch import save_file
from torch import nn

from unseen.models import InputSpec, build_model
from unseen.models.model_names import plain_name

FACTS = InputSpec((3, 28, 28), 5)


def test_features_go_through_a_linear_layer_batch_norm_and_relu():
    plain, narrow = (build_model(name, FACTS, seed=3).eval() for name in ("lenet", "lenet+bottleneck"))
    inputs = torch.rand(4, 3, 28, 28)
    linear, norm, relu = narrow.bottleneck
    assert (linear.out_features, type(norm), type(relu)) == (256, nn.BatchNorm1d, nn.ReLU)
    narrow.load_state_dict(
        {k: v for k, v in plain.state_dict().items() if not k.startswith("head.")}, strict=False
    )
    torch.testing.assert_close(narrow.features(inputs), relu(norm(linear(plain.features(inputs)))))
    torch.testing.assert_close(narrow(inputs), narrow.head(narrow.features(inputs)))
    assert narrow.feature_size == 256 and narrow(inputs).shape == (4, 5)
    assert narrow.tap_names == plain.tap_names and narrow.full(inputs).taps
    assert narrow.model_name == "lenet+bottleneck"


def test_weights_of_the_plain_network_fit_and_those_of_a_run_with_bottleneck_too(tmp_path):
    plain, trained = build_model("lenet", FACTS, seed=1), build_model("lenet+bottleneck", FACTS, seed=2)
    for name, network in (("plain", plain), ("trained", trained)):
        save_file(network.state_dict(), tmp_path / f"{name}.safetensors")
    loaded = build_model("lenet+bottleneck", FACTS, seed=3, weights=tmp_path / "plain.safetensors")
    fresh = build_model("lenet+bottleneck", FACTS, seed=3)
    for name, tensor in loaded.state_dict().items():
        own = name.startswith(("bottleneck.", "head."))
        assert torch.equal(tensor, fresh.state_dict()[name] if own else plain.state_dict()[name]), name
    again = build_model("lenet+bottleneck", FACTS, seed=4, weights=tmp_path / "trained.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), trained.parameters(), strict=True))


def test_suffixes_combine_and_name_the_same_weights():
    assert plain_name("resnet18+bottleneck+groupnorm") == plain_name("resnet18+bottleneck") == "resnet18"
    network = build_model("lenet+bottleneck+groupnorm", FACTS, seed=0)
    assert isinstance(network.bottleneck[1], nn.GroupNorm)
