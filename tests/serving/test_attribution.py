"""Attribution maps: on the place that decides, equal to Grad-CAM written out, skipped where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from unseen.data import DataSet
from unseen.models import InputSpec, build_model
from unseen.models.network import StagedNetwork
from unseen.serving import SavedModel, SiteData, check_site, load_model
from unseen.serving.attribution import attribution_maps


@pytest.fixture(scope="module")
def saved(digits_run) -> SavedModel:
    return load_model(digits_run)


def bright_patch(row: int, column: int) -> np.ndarray:
    pixels = np.zeros((16, 16, 1), np.uint8)
    pixels[row : row + 4, column : column + 4] = 255
    return pixels


def orange(overlay: np.ndarray) -> np.ndarray:
    """How orange each pixel is: red above blue, as grey pixels have both alike."""
    return overlay[..., 0].astype(float) - overlay[..., 2]


def test_the_map_lies_on_what_decides(saved):
    """One convolution that copies the image, and a head that adds up all pixels: the bright patch decides."""
    copy = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.ones_(copy.weight)
    head = nn.Linear(256, 2)
    nn.init.zeros_(head.bias)
    with torch.no_grad():
        head.weight[0], head.weight[1] = 1.0, -1.0
    network = StagedNetwork({"copy": copy, "flat": nn.Flatten()}, head=head, taps=("copy",)).eval()
    card = replace(saved.card, classes=("bright", "dark"), outputs=2, pixel_mean=(0.0,), pixel_std=(1.0,))
    images = [bright_patch(0, 0), bright_patch(8, 12), np.zeros((16, 16, 1), np.uint8)]
    found = attribution_maps(SavedModel(network, card), images)
    assert (found.tap, found.fields, found.reason) == ("copy", (16, 16), "")
    for pixels, overlay in zip(images[:2], found.overlays, strict=False):
        inside = pixels[..., 0] > 0
        assert overlay.shape == (16, 16, 3) and overlay.dtype == np.uint8
        assert (orange(overlay)[inside] > 100).all() and (orange(overlay)[~inside] == 0).all()
    assert found.overlays[2] is None, "nothing speaks for an answer on a black image"


def test_digits_equal_grad_cam_written_out(saved, digits: DataSet):
    pixels = digits.inputs[digits.indices("75")[:5]]
    found = attribution_maps(saved, list(pixels))
    assert found.tap == "conv2" and found.fields == (4, 4)
    for own, overlay in zip(pixels, found.overlays, strict=True):
        stages, head = saved.network.stages, saved.network.head
        inputs = saved.card.normalize(torch.from_numpy(own[None]).permute(0, 3, 1, 2))
        maps = stages["conv2"](stages["conv1"](inputs)).detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(head(stages["hidden"](maps)).max(), maps)
        expected = (gradient.mean(dim=(2, 3), keepdim=True) * maps).sum(dim=1, keepdim=True).relu()
        large = nn.functional.interpolate(expected.detach(), size=(16, 16), mode="bilinear")[0, 0].numpy()
        share = 0.65 * (large / large.max())[..., None]
        by_hand = own * (1 - share) + np.array([255, 90, 0]) * share
        assert np.abs(overlay - by_hand).max() <= 1


def test_weights_get_no_gradients_and_answers_stay_the_same(saved, digits: DataSet):
    inputs = torch.from_numpy(digits.inputs[:3]).permute(0, 3, 1, 2)
    before = saved.outputs(inputs)
    attribution_maps(saved, list(digits.inputs[:3]))
    assert torch.equal(saved.outputs(inputs), before)
    assert all(parameter.grad is None for parameter in saved.network.parameters())


@pytest.mark.parametrize("model", ["mini-vit", "mlp"])
def test_networks_whose_maps_lead_nowhere_are_skipped_with_a_reason(saved, digits: DataSet, model):
    network = build_model(model, InputSpec((1, 16, 16), 10), seed=0).eval()
    card = replace(saved.card, model=model)
    found = attribution_maps(SavedModel(network, card), list(digits.inputs[:2]))
    assert found.overlays == () and model in found.reason and found.note.startswith("No attribution maps:")


def test_tables_are_skipped(price_run):
    found = attribution_maps(load_model(price_run[0]), [])
    assert "table" in found.reason


def test_the_samples_of_a_check_have_maps(saved):
    check = check_site(saved, SiteData("rotated-digits", "75"))
    overlays = [sample.overlay for sample in (*check.usual, *check.unusual)]
    assert len(overlays) == 12 and any(each is not None for each in overlays)
    assert "conv2" in check.attribution and "not what was seen there" in check.attribution
