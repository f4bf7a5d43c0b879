"""Where the files of named data sets lie: the folder a user names once."""

from __future__ import annotations

import os
from pathlib import Path

from unseen.data.sources import DataRequest
from unseen.errors import UnseenError


def data_root(request: DataRequest, *, needs: str) -> Path:
    """Return the data root (`--data-root`, else `UNSEEN_DATA`), or say which files it needs."""
    if request.root is not None:
        return request.root.expanduser()
    if chosen := os.environ.get("UNSEEN_DATA"):
        return Path(chosen).expanduser()
    raise UnseenError(
        f"{request.source} needs files of yours and no data root is set: put {needs} below a folder and name "
        f"it with --data-root or the environment variable UNSEEN_DATA"
    )
