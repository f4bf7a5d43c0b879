"""Precision and compilation: what is chosen is what computes, and it is refused where it cannot serve."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen.engine.experiment import Workspace
from unseen.engine.workers.worker import own_device
from unseen.errors import UnseenError, UsageError
from unseen.training import autocast_to, check_precision

CPU = torch.device("cpu")


def test_products_are_made_in_the_chosen_precision():
    values = torch.ones(2, 2)
    with autocast_to("bfloat16", CPU):
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    with autocast_to("float32", CPU):
        assert not torch.is_autocast_enabled("cpu")
        assert (values @ values).dtype is torch.float32


def test_bfloat16_is_refused_on_a_processor_and_unknown_names_everywhere():
    check_precision("float32", CPU)
    check_precision("bfloat16", torch.device("cuda"))
    with pytest.raises(UsageError, match="for GPUs"):
        check_precision("bfloat16", CPU)
    with pytest.raises(UnseenError, match="float32"):
        check_precision("float23", CPU)


@pytest.mark.parametrize(
    ("device", "number", "gpus", "expected"),
    [("cpu", 3, 0, "cpu"), ("cuda:1", 3, 2, "cuda:1"), ("cuda", 3, 2, "cuda:1"), ("cuda", 3, 1, "cuda:0")],
)
def test_workers_spread_over_gpus(device, number, gpus, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert own_device(torch.device(device), number) == torch.device(expected)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_model_is_compiled_where_that_was_asked_for(make_experiment, wanted):
    workspace = Workspace(replace(make_experiment("fedavg"), compile=wanted))
    assert (workspace.module._compiled_call_impl is not None) == wanted
