"""Zoo networks keep the one interface, need no download, and refuse in one line what they cannot do."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from unseen.errors import UnseenError, UsageError
from unseen.models import FlatState, InputSpec, Kind, build_model, list_models

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")

TAPS = {
    "resnet18": ((128, 8), (256, 4), (512, 2)),
    "resnet50": ((512, 8), (1024, 4), (2048, 2)),
    "densenet121": ((512, 8), (1024, 4), (1024, 2)),
    "efficientnet-b5": ((64, 8), (176, 4), (512, 2)),
    "efficientnet-lite0": ((40, 8), (112, 4), (320, 2)),
    "vit-tiny": ((192, 8), (192, 8), (192, 8)),
    "alexnet": ((384, 3), (256, 3), (256, 3)),
    "mobilenetv3_small_050": ((16, 8), (24, 4), (288, 2)),
}


@pytest.mark.parametrize("name", TAPS)
def test_interface_on_a_small_picture(name: str) -> None:
    network = build_model(name, InputSpec((3, 64, 64), 10), seed=0).eval()
    inputs = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits, features, taps = network.full(inputs)
        torch.testing.assert_close(network(inputs), logits)
    assert type(network.head) is nn.Linear
    assert features.shape == (1, network.feature_size)
    torch.testing.assert_close(features @ network.head.weight.T + network.head.bias, logits)
    assert tuple(tuple(tap.shape) for tap in taps) == tuple(
        (1, width, side, side) for width, side in TAPS[name]
    )
    assert len(network.tap_names) == 3
    counted = {summary.name: summary.parameters for summary in list_models() if name != "vit-tiny"}
    if name in counted:
        assert sum(parameter.numel() for parameter in network.parameters()) == counted[name]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet18", (3, 64, 64)), ("efficientnet-lite0", (1, 32, 32)), ("vit-tiny", (1, 28, 28))],
)
def test_bound_to_a_vector_it_trains(name: str, shape: tuple[int, int, int]) -> None:
    network = build_model(name, InputSpec(shape, 4), seed=0)
    flat = FlatState(network)
    before = flat.read()
    inputs = torch.rand(4, *shape, generator=torch.Generator().manual_seed(1))
    network(inputs).logsumexp(1).sum().backward()
    flat.parameters.sub_(flat.gradient, alpha=0.1)
    after = flat.read()
    for entry in flat.layout.entries:
        if entry.kind is not Kind.PARAMETER:
            assert not torch.equal(before[entry.slice], after[entry.slice]), entry.name
    assert not torch.equal(before[: flat.gradient.numel()], after[: flat.gradient.numel()])
    twin = build_model(name, InputSpec(shape, 4), seed=1)
    FlatState(twin).load(after)
    for key, tensor in network.state_dict().items():
        assert torch.equal(twin.state_dict()[key], tensor), key


def test_alexnet_taps_carry_gradients_through_its_in_place_layers() -> None:
    network = build_model("alexnet", InputSpec((1, 64, 64), 3), seed=0)
    output = network.full(torch.rand(2, 1, 64, 64))
    (sum(tap.square().sum() for tap in output.taps) + output.logits.sum()).backward()
    assert bool(network.get_parameter("body.features.0.weight").grad.any())
    assert all(bool((tap >= 0).all()) for tap in output.taps)
    assert network.feature_size == 4096


def test_pixel_statistics_follow_the_weights_and_the_channels() -> None:
    colour = build_model("resnet18", InputSpec((3, 32, 32), 2), seed=0)
    grey = build_model("resnet18", InputSpec((1, 32, 32), 2), seed=0)
    lite = build_model("efficientnet-lite0", InputSpec((3, 32, 32), 2), seed=0)
    assert colour.pixel_mean == (0.485, 0.456, 0.406)
    assert grey.pixel_mean == (0.449,)
    assert grey.pixel_std == (0.226,)
    assert lite.pixel_mean == lite.pixel_std == (0.5, 0.5, 0.5)


def test_a_seed_fixes_the_weights_and_nothing_else() -> None:
    before = torch.random.get_rng_state()
    first, same, other = (build_model("resnet18", InputSpec((3, 32, 32), 2), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.get_parameter("body.conv1.weight"), same.get_parameter("body.conv1.weight"))
    assert not torch.equal(first.get_parameter("body.conv1.weight"), other.get_parameter("body.conv1.weight"))
    assert first.training


@pytest.mark.parametrize("size", [14, 16, 28, 32, 64, 224])
def test_vit_cuts_every_size_into_a_sensible_grid(size: int) -> None:
    network = build_model("vit-tiny", InputSpec((1, size, size), 2), seed=0)
    grid = network.get_submodule("body.patch_embed").grid_size
    assert 7 <= grid[0] <= 14


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnt18", (3, 64, 64), "Did you mean 'resnet18'"),
        ("hf-hub:timm/resnet18", (3, 64, 64), "unknown model"),
        ("resnet18.a1_in1k", (3, 64, 64), "Did you mean 'resnet18'"),
        ("resnet18", (5,), "works on images"),
        ("densenet121", (3, 16, 16), "cannot take images of 16x16 with 3 channels"),
        ("alexnet", (3, 32, 32), "at least 63x63"),
        ("vit-tiny", (3, 51, 51), "equal patches"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build_model(name, InputSpec(shape, 2), seed=0)
    assert "\n" not in str(caught.value)


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_small_models_and_the_list_load_no_zoo_library() -> None:
    loaded = in_fresh_python(
        "import sys\n"
        "from unseen.models import InputSpec, build_model, list_models\n"
        "list_models(); build_model('mnist-cnn', InputSpec((1, 28, 28), 2), seed=0)\n"
        "print([name for name in ('timm', 'torchvision') if name in sys.modules])"
    )
    assert loaded.strip() == "[]"


@pytest.mark.parametrize("missing", ["timm", "torchvision"])
def test_a_missing_library_is_named_with_the_extra_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unseen.models import torchvision_compat as torchvision_shim

    found = torchvision_shim.importlib.util.find_spec
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.setattr(
        torchvision_shim.importlib.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(UnseenError, match=rf"model 'resnet18' needs {missing}.*unseen\[zoo\]"):
        build_model("resnet18", InputSpec((3, 64, 64), 2), seed=0)
