"""Client state: the version that the checkpoint names counts."""

from __future__ import annotations

import torch

from unseen.runs.checkpoint import StateStore


def test_client_state_keeps_the_version_of_the_checkpoint(tmp_path):
    store = StateStore(tmp_path / "clients")
    state = store.read("site/1")
    assert dict(state) == {}
    state["model"] = torch.ones(3)
    store.write("site/1", state, round=1)
    committed = dict(store.versions)
    later = store.read("site/1")
    later["model"] = torch.zeros(3)
    store.write("site/1", later, round=2)
    after_crash = StateStore(tmp_path / "clients", committed)
    assert after_crash.read("site/1")["model"].tolist() == [1, 1, 1]
    after_crash.forget_old()
    assert len(list((tmp_path / "clients").iterdir())) == 1


def test_unchanged_client_state_is_not_written_again(tmp_path):
    store = StateStore(tmp_path / "clients")
    state = store.read("a")
    state["x"] = torch.ones(1)
    store.write("a", state, round=1)
    store.write("a", store.read("a"), round=2)
    assert store.versions == {"a": 1}
