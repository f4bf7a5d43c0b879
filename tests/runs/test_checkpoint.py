"""Checkpoints round-trip, and a broken one is named."""

from __future__ import annotations

import pytest
import torch

from unseen.errors import UnseenError
from unseen.runs.checkpoint import Checkpoint


def test_checkpoints_round_trip(tmp_path):
    point = Checkpoint("id", round=3, weights=torch.randn(5), selected=torch.randn(5), seconds=1.5)
    point.server, point.client_states, point.records_bytes = {"momentum": torch.ones(2)}, {"a/b": 2}, 77
    point.save(tmp_path / "c.safetensors")
    found = Checkpoint.load(tmp_path / "c.safetensors")
    assert torch.equal(found.weights, point.weights) and torch.equal(found.selected, point.selected)
    assert torch.equal(found.server["momentum"], torch.ones(2))
    assert (found.round, found.client_states, found.records_bytes, found.seconds) == (3, {"a/b": 2}, 77, 1.5)


def test_a_broken_checkpoint_is_named(tmp_path):
    (tmp_path / "c.safetensors").write_bytes(b"rubbish")
    with pytest.raises(UnseenError, match="not a usable checkpoint"):
        Checkpoint.load(tmp_path / "c.safetensors")
