"""Run folders: who may start in one."""

from __future__ import annotations

import json

import pytest

from unseen.errors import UnseenError, UsageError
from unseen.runs.folder import RunFolder


def test_a_folder_with_a_run_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.require_free()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        folder.require_free()
    folder.config.write_text("")
    with pytest.raises(UsageError, match=r"unfinished run.*--resume"):
        folder.require_free()
    folder.result.write_text(json.dumps({}))
    with pytest.raises(UsageError, match="a finished run"):
        folder.require_free()


def test_two_processes_cannot_share_a_folder(tmp_path):
    first, second = RunFolder(tmp_path).locked(), RunFolder(tmp_path).locked()
    with first, pytest.raises(UnseenError, match="another process"), second:
        pass
    with RunFolder(tmp_path).locked():
        pass
