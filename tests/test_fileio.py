"""Files are replaced as a whole or not at all."""

from __future__ import annotations

import resource
import subprocess
import sys

from unseen.fileio import write_text


def test_a_full_disk_keeps_the_old_file_and_names_the_new_one(tmp_path):
    """A limit on file sizes is the nearest thing to a full disk that a test can have."""
    target = tmp_path / "result.json"
    write_text(target, "old")
    code = (
        "import resource, signal, sys, pathlib\n"
        "from unseen.fileio import write_text\n"
        "from unseen.errors import UnseenError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try:\n    write_text(pathlib.Path(sys.argv[1]), 'new' * 100)\n"
        "except UnseenError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=True
    )
    assert "could not write" in done.stdout and "result.json" in done.stdout
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10
