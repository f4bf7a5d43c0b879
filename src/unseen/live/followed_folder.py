"""Which source a folder is: a run, a bench or a federation, told by the files in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from unseen.errors import UsageError
from unseen.live.live_view import Source

Kind = Literal["run", "bench", "federation"]
_SIGNS: dict[str, Kind] = {
    "bench.toml": "bench",
    "coordinator.json": "federation",
    "config.toml": "run",
    "records.jsonl": "run",
}
"""A file that a folder of this kind has."""


def find_source(folder: Path, kind: str | None = None, *, work: Path | None = None) -> Callable[[], Source]:
    """Return what opens the source of a folder; the libraries that it needs are loaded only then.

    kind  of a folder that will have its files soon; told by the files if not given
    work  the folder of a bench's jobs, if not in `folder`
    """
    known = kind or _kind(folder)
    if work is not None and known != "bench":
        raise UsageError(f"--work is for a bench; {folder} is a {known}")

    def open_source() -> Source:
        if known == "run":
            from unseen.live.run_source import RunSource

            return RunSource(folder)
        if known == "bench":
            from unseen.live.bench_source import BenchSource

            return BenchSource(folder, work)
        from unseen.live.federation_source import FederationSource

        return FederationSource(folder)

    return open_source


def _kind(folder: Path) -> Kind:
    for sign, kind in _SIGNS.items():
        if (folder / sign).is_file():
            return kind
    raise UsageError(
        f"{folder} is no run, bench or coordinator's home (it has none of {', '.join(_SIGNS)}): give the "
        "folder that `unseen train --out`, `bench --out` or `up --home` writes"
    )
