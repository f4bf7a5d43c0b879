"""Files are as readable as the umask says; secrets and copies of the data by their user only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from unseen.data import load_data
from unseen.data.sources import DataRequest
from unseen.fileio import write_text
from unseen.runs.checkpoint import Checkpoint, StateStore, protection_key
from unseen.runs.folder import RunFolder
from unseen.training.feature_cache import _FeatureFile


@pytest.fixture(params=[0o022, 0o077], ids=["umask 022", "umask 077"])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_ordinary_files_honour_the_umask(umask, tmp_path):
    """P7: every file was 0644, whatever the umask."""
    write_text(tmp_path / "new" / "result.json", "{}")
    assert mode(tmp_path / "new" / "result.json") == 0o666 & ~umask
    assert mode(tmp_path / "new") == 0o777 & ~umask


def test_state_with_secret_keys_is_private(umask, tmp_path):
    """P7: CKKS and noise keys in client state were 0644 in folders of 0755."""
    store = StateStore(tmp_path / "clients")
    state = store.read("a")
    state["secret"] = torch.ones(4)
    store.write(protection_key("a"), state, round=1)
    assert {mode(path) for path in store.folder.iterdir()} == {0o600}
    assert mode(store.folder) == 0o700


def test_the_checkpoints_of_a_run_are_private(umask, tmp_path):
    """P7: the server's state of a protection is in the checkpoint."""
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        Checkpoint("id", 1, torch.zeros(2), torch.zeros(2)).save(folder.checkpoint)
    assert (mode(folder.checkpoints), mode(folder.checkpoint)) == (0o700, 0o600)


def test_a_state_is_private_from_its_first_byte_on(umask, tmp_path, monkeypatch):
    """P7: not created readable and closed later."""
    from unseen import tensor_files

    real, seen = tensor_files.save_file, []

    def watch(tensors, path, metadata):
        seen.append((mode(path), mode(path.parent)))
        real(tensors, path, metadata)
        seen.append((mode(path), mode(path.parent)))

    monkeypatch.setattr(tensor_files, "save_file", watch)
    tensor_files.save_tensors(tmp_path / "keys" / "x.safetensors", {"a": torch.ones(1)}, private=True)
    assert seen == [(0o600, 0o700)] * 2


def test_caches_of_images_and_features_are_private(umask, tmp_path, monkeypatch):
    """P7: decoded images were readable by others, also where the images themselves are not."""
    from PIL import Image

    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    for domain in ("a", "b"):
        for label in ("x", "y"):
            (tmp_path / "photos" / domain / label).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "photos" / domain / label / "1.png")
    load_data(DataRequest(str(tmp_path / "photos"), image_size=8))
    _FeatureFile("key", (3, 1, 4)).fill(
        np.ones((1, 1), dtype=bool), lambda block, view: np.ones((3, 4), np.float16), lambda *_: None
    )
    files = [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]
    assert len(files) == 4 and {mode(path) for path in files} == {0o600}
    assert mode(tmp_path / "cache") == 0o700
