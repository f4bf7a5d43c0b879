"""From the words of a command line to a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.cli.train import parse_settings
from unseen.errors import UnseenError, UsageError, unknown_name

if TYPE_CHECKING:
    from unseen.bench.grid import Grid


def default_out(source: str) -> Path:
    """The folder of a bench for which none was named."""
    return Path("runs") / f"bench-{Path(source).stem}"


def grid_from(source: str | None, out: Path, given: Mapping[str, Any]) -> Grid:
    """Read a grid file, or the one that a bench folder holds, or make a grid of options for named data.

    Options that are given count more than what a file says.
    """
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.grid import Grid

    if source is None:
        stored = BenchFolder(out).grid
        if not stored.exists():
            raise UsageError(
                f"{out} holds no bench to go on with; start one: unseen bench GRID.toml --out {out}"
            )
        return changed(Grid.from_toml(stored), given)
    if source.endswith(".toml"):
        if not Path(source).exists():
            raise UnseenError(f"no such grid file: {source}")
        return changed(Grid.from_toml(Path(source)), given)
    if "methods" not in given:
        raise UsageError(
            "name the methods: unseen bench DATA --methods fedavg,csac (see `unseen list methods`)"
        )
    empty = Grid(common={"data": source}, methods={"fedavg": {}}, hold_out=("all",), title=Path(source).name)
    return changed(empty, given)


def changed(grid: Grid, given: Mapping[str, Any]) -> Grid:
    """Put options in the place of what a grid says."""
    common = {**grid.common, **given.get("common", {})}
    methods = dict(grid.methods)
    if "methods" in given:
        wanted = words(given["methods"])
        methods = {label: methods.get(label, {}) for label in wanted}
    for key, value in parse_settings(given.get("set", [])).items():
        label, dot, name = key.partition(".")
        if not dot:
            raise UsageError(f"--set takes METHOD.KEY=VALUE in a bench, not {key}={value}")
        if label not in methods:
            raise unknown_name("method of this bench", label, methods)
        settings = {**methods[label].get("settings", {}), name: value}
        methods[label] = {**methods[label], "settings": settings}
    other: dict[str, Any] = {
        name: given[name] for name in ("baseline", "selection", "search") if name in given
    }
    other |= {name: tuple(words(given[name])) for name in ("hold_out", "models") if name in given}
    if "seeds" in given:
        other["seeds"] = parse_seeds(given["seeds"])
    return replace(grid, common=common, methods=methods, **other)


def words(given: str | Sequence[str]) -> list[str]:
    """Split at commas; an option that was given several times counts as a longer list."""
    texts = [given] if isinstance(given, str) else given
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3` means three seeds, 0 to 2; `0,4` means these two."""
    try:
        numbers = tuple(int(word) for word in words(text))
    except ValueError:
        raise UsageError(f"--seeds takes how many, or a list such as 0,1,2, not {text!r}") from None
    if len(numbers) == 1 and "," not in text:
        return tuple(range(numbers[0]))
    return numbers
