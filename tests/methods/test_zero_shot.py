"""Zero-shot: the classifier of class names, without any update; and as the start of a trained head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen.engine.experiment import Workspace
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.methods.closed_form import class_text_head, make_starting_head
from unseen.models import Layout


def test_logits_are_scaled_cosines_and_nothing_is_sent(make_experiment, go, rounds_of):
    experiment = make_experiment("zero-shot", settings={"template": "a drawing of a {}"})
    checkpoint, records = go(experiment, rounds=1)
    assert len(checkpoint.weights) == 0
    (record,) = rounds_of(records)
    assert record["bytes_up"] == 0
    assert "model weights" not in [entry["kind"] for entry in record["left"]]
    network = Workspace(experiment).deployed.eval()
    texts = experiment.network.texts
    sentences = texts.embed([f"a drawing of a class {label}" for label in range(3)])
    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        vectors = torch.nn.functional.normalize(network.body(images), dim=1)
        torch.testing.assert_close(network(images), texts.scale * vectors @ sentences.T)


def test_its_template_changes_the_head(make_experiment):
    one, other = (
        Workspace(make_experiment("zero-shot", settings=settings)).deployed.head.weight
        for settings in ({}, {"template": "a sketch of a {}"})
    )
    assert not torch.allclose(one, other, atol=1e-3)


def test_the_network_it_was_built_from_stays_as_it_was(make_experiment):
    experiment = make_experiment("zero-shot")
    before = experiment.network.head.weight.clone()
    module = experiment.method.build(experiment.network, seed=0)
    assert Layout.of(module).size == 0 and Layout.of(experiment.network).size > 0
    assert torch.equal(experiment.network.head.weight, before)


@pytest.mark.parametrize("method", ["ridge", "zero-shot", "fedclip", "promptfl"])
def test_methods_with_a_head_of_their_own_take_no_start(method):
    with pytest.raises(UsageError, match=f"cannot act on --method {method}.*leave it out"):
        make_starting_head("zero-shot", make_method(method))


def test_as_a_start_it_needs_no_exchange():
    assert make_starting_head("zero-shot", make_method("fedavg")) is None
    with pytest.raises(UsageError, match=r"Did you mean 'zero-shot'\?"):
        make_starting_head("zeroshot", make_method("fedavg"))


def test_a_saved_model_needs_no_text_tower(make_experiment):
    experiment = make_experiment("zero-shot")
    network = replace(experiment).network
    full = class_text_head(network, "a {}")
    network.texts = None
    empty = class_text_head(network, "a {}")
    assert empty.weight.shape == full.weight.shape and not empty.weight.any()


def test_methods_that_read_class_names_train_on_frozen_towers():
    named = [name for name in METHODS if METHODS[name].needs_texts]
    assert named == ["fedclip", "promptfl", "zero-shot"]
    assert {METHODS[name].default_train for name in named} == {"head"}
