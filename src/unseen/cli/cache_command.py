"""`unseen data cache`: what the cache folder holds, and how to empty it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from unseen.cli.console import print_json, results
from unseen.errors import UnseenError, unknown_name

KINDS = {
    "images": "decoded images, read again from the data when needed",
    "features": "outputs of frozen layers, computed again when needed",
    "weights": "downloaded weights, downloaded again when needed",
    "other": "small results, such as which precision is faster here",
}


def cache_command(
    clear: Annotated[
        str | None, typer.Option(help=f"Delete what is cached: {', '.join(KINDS)} or all.", metavar="KIND")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the sizes as JSON.")] = False,
) -> None:
    """Show the size of the cache folder, or empty it.

    Nothing is lost by emptying it but time. Runs that are using a file keep it until they end.

    Examples:

        unseen data cache

        unseen data cache --clear features
    """
    from unseen.fileio import cache_folder
    from unseen.report.formatting import format_bytes

    if clear not in {None, "all", *KINDS}:
        raise unknown_name("kind of cached files", clear or "", [*KINDS, "all"])
    folder = cache_folder()
    sizes = dict.fromkeys(KINDS, 0)
    for kind, path in list(_cached_files(folder)):
        size = path.stat().st_size
        if clear in {kind, "all"}:
            try:
                path.unlink()
            except OSError as error:
                raise UnseenError(f"cannot delete {path}: {error.strerror}") from error
        else:
            sizes[kind] += size
    if as_json:
        print_json({"folder": str(folder), "bytes": sizes})
        return
    table = Table("kind", "size", "what it is", box=SIMPLE_HEAD)
    for kind, size in sizes.items():
        table.add_row(kind, format_bytes(size), KINDS[kind])
    results().print(f"Cache folder: {folder} (UNSEEN_CACHE names another)", soft_wrap=True)
    results().print(table)


def _cached_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield every cached file with its kind."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if path.is_relative_to(folder / "weights"):
            yield "weights", path
        elif path.name.startswith("features-"):
            yield "features", path
        elif path.suffix == ".npy" or path.with_suffix(".npy").exists():
            yield "images", path
        else:
            yield "other", path
