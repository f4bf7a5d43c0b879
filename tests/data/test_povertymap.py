"""Files of PovertyMap are read in threads, where Python 3.11 may fail to parse a header: then once more."""

from __future__ import annotations

import numpy as np
import pytest

from unseen.data.benchmarks.povertymap import read_landsat


@pytest.fixture
def stumbles(monkeypatch):
    """Errors that the next readings meet, one each."""
    load, errors = np.load, []

    def stumbling(path):
        if errors:
            raise errors.pop()
        return load(path)

    monkeypatch.setattr(np, "load", stumbling)
    return errors


def test_a_header_that_python_stumbles_over_is_read_again(tmp_path, stumbles):
    np.savez(tmp_path / "one.npz", x=np.ones((8, 4, 4), dtype=np.float32))
    stumbles += [SystemError("recursion depth mismatch")] * 3
    assert read_landsat(tmp_path / "one.npz", 4).shape == (4, 4, 8) and not stumbles


def test_an_error_that_stays_is_not_hidden(tmp_path, stumbles):
    np.savez(tmp_path / "one.npz", x=np.ones((8, 4, 4), dtype=np.float32))
    stumbles += [SystemError("for ever")] * 20
    with pytest.raises(SystemError, match="for ever"):
        read_landsat(tmp_path / "one.npz", 4)
