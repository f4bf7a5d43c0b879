"""A grid: methods x held-out domains x models x seeds, as one value that is read from and written to TOML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unseen.bench.bench_job import RELEASED, BenchJob, job_config
from unseen.bench.row_weights import without_idle_weighting
from unseen.checksums import check_sealed, write_sealed_text
from unseen.config import RunConfig, recorded_names
from unseen.errors import UsageError, unknown_name
from unseen.evaluation.selection import LeaveOneDomainOut, SourceValidation
from unseen.fileio import read_toml, to_toml
from unseen.run_identity import WHERE
from unseen.typed_values import check_types

ALL = "all"
"""In place of a list of held-out domains: every domain in turn."""
LEAVE_ONE_DOMAIN_OUT = LeaveOneDomainOut.name
SELECTIONS = {
    SourceValidation.name: SourceValidation.name,
    "lodo": LEAVE_ONE_DOMAIN_OUT,
    LEAVE_ONE_DOMAIN_OUT: LEAVE_ONE_DOMAIN_OUT,
}
_OF_THE_GRID = ("hold_out", "seed", *(name for name in WHERE if name not in ("data_root", "device")))


@dataclass(frozen=True)
class Grid:
    """The runs of a bench.

    common      fields of RunConfig for all jobs, among them `data`
    methods     label -> fields of RunConfig that the label adds; `method` is the label itself if not given
    hold_out    domains that are held out in turn, or ("all",); "released" is the data release's split
    models      model names; empty = chosen by the data
    baseline    label that the others are compared with
    published   name of the published table shown next to the results
    selection   leave-one-domain-out adds a run for every source domain, which chooses the round
    seeds_at    held-out domain -> its seeds among `seeds`, where not all of them are to run
    search      trials of a random search for every method; 0 = methods run with their given settings
    trial_seeds number of seeds that each trial runs with
    domains     every domain of the data, once it has been loaded
    """

    common: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    hold_out: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    models: tuple[str, ...] = ()
    title: str = ""
    note: str = ""
    baseline: str | None = None
    published: str | None = None
    selection: str = SourceValidation.name
    search: int = 0
    trial_seeds: int = 1
    domains: tuple[str, ...] = field(default=())
    seeds_at: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = [self.common, *self.methods.values()]
        placed = sorted({name for given in options for name in given if name in _OF_THE_GRID})
        checks = {
            "all methods of a grid share its data; set `data` under [common] only": not any(
                "data" in given for given in self.methods.values()
            ),
            "a grid needs data: set `data` under [common]": "data" in self.common,
            "a grid needs methods: name some under [methods]": bool(self.methods),
            "a grid needs held-out domains: set `hold_out` to a list, or to 'all'": bool(self.hold_out),
            "a grid needs seeds": bool(self.seeds),
            "a seed is named twice": len(set(self.seeds)) == len(self.seeds),
            "a held-out domain is named twice": len(set(self.hold_out)) == len(self.hold_out),
            f"the grid itself sets {', '.join(placed)}; remove it from [common] and [methods]": not placed,
            f"search must be 0 or more trials, not {self.search}": self.search >= 0,
            f"trial_seeds must be in 1 to {len(self.seeds)}, not {self.trial_seeds}": 1
            <= self.trial_seeds
            <= len(self.seeds),
        }
        for message, fine in checks.items():
            if not fine:
                raise UsageError(message)
        for held_out in self.seeds_at:
            if not self.seeds_for(held_out):
                raise UsageError(
                    f"seeds_at leaves {held_out!r} without any run: name some of {list(self.seeds)} there, "
                    "or take the domain out of hold_out"
                )
        if self.selection not in SELECTIONS:
            raise unknown_name("selection", self.selection, SELECTIONS)
        if self.baseline is not None and self.baseline not in self.methods:
            raise unknown_name("baseline", self.baseline, self.methods)
        object.__setattr__(self, "selection", SELECTIONS[self.selection])

    @property
    def leaves_domains_out(self) -> bool:
        """Whether leave-one-domain-out cross-validation chooses the round."""
        return self.selection == LEAVE_ONE_DOMAIN_OUT

    def seeds_for(self, held_out: str) -> tuple[int, ...]:
        """Return the seeds that run with a domain held out."""
        wanted = self.seeds_at.get(held_out, self.seeds)
        return tuple(seed for seed in self.seeds if seed in wanted)

    def on(self, domains: tuple[str, ...]) -> Grid:
        """Fill in the data's domains; `all` becomes all of them, an unknown name is refused."""
        hold_out = domains if self.hold_out == (ALL,) else self.hold_out
        for name in (*hold_out, *self.seeds_at):
            if name not in (*domains, RELEASED):
                raise unknown_name("domain", name, domains)
        return replace(self, hold_out=hold_out, domains=domains)

    def job(self, label: str, held_out: str, seed: int, model: str = "", **changes: Any) -> BenchJob:
        """Make the job of one cell; `changes` are fields of RunConfig that override the grid's."""
        options = {"method": label, **self.common, **({"model": model} if model else {})}
        held = {} if held_out == RELEASED else {"hold_out": held_out}
        options |= {**self.methods[label], **held, "seed": seed, **changes}
        options = without_idle_weighting(options, self.methods[label], label)
        return BenchJob(label, held_out, seed, model, job_config(options))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Grid:
        """Build a grid from a file's or a caller's values; unknown names are refused."""
        known = {item.name for item in fields(cls)}
        for name in values:
            if name not in known:
                raise unknown_name("entry of a grid", name, known)
        check_types(cls, values)
        lists = {name: _as_tuple(values.get(name, ())) for name in ("hold_out", "models", "domains")}
        seeds = _as_tuple(values.get("seeds", (0,)))
        given = {"common": {}, "methods": {}, **values, **lists, "seeds": seeds}
        given["seeds_at"] = {name: _as_tuple(found) for name, found in values.get("seeds_at", {}).items()}
        given["common"] = _options("common", given["common"])
        if not isinstance(given["methods"], Mapping):
            raise UsageError("[methods] must be a table of tables: label = { ... }")
        given["methods"] = {label: _options("methods", table) for label, table in given["methods"].items()}
        return cls(**given)

    @classmethod
    def from_toml(cls, path: Path) -> Grid:
        """Read a grid file."""
        check_sealed(path, way_out="undo the change")
        try:
            return cls.from_mapping(read_toml(path))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def to_toml(self) -> str:
        """Write the grid as TOML; entries that were not given are left out."""
        entries = {
            item.name: value
            for item in fields(self)
            if item.name not in ("common", "methods")
            and (value := getattr(self, item.name)) not in (None, "", (), {}, item.default)
        }
        return to_toml({**entries, "common": self.common, "methods": self.methods})

    def save(self, path: Path) -> None:
        """Write the grid into a file, with a checksum next to it."""
        write_sealed_text(path, self.to_toml())


def jobs(grid: Grid) -> list[BenchJob]:
    """List all cells of the grid, one seed after another, so that a grid stopped early is balanced."""
    return [
        grid.job(label, held_out, seed, model)
        for seed in grid.seeds
        for label, held_out, model in cells(grid, seed)
    ]


def cells(grid: Grid, seed: int | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield every (label, held-out domain, model), or those that run with a seed.

    Results are averaged over the seeds of each.
    """
    for model in grid.models or ("",):
        for held_out in grid.hold_out:
            if seed is None or seed in grid.seeds_for(held_out):
                for label in grid.methods:
                    yield label, held_out, model


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str | int) else tuple(value)


def _options(name: str, table: Any) -> dict[str, Any]:
    """Return the options of [common] or of one label in [methods]; unknown ones are refused."""
    if not isinstance(table, Mapping):
        what = "a table" if name == "common" else "a table of tables: label = { ... }"
        raise UsageError(f"[{name}] must be {what}")
    options = recorded_names(table, kind=f"option in [{name}]")
    check_types(RunConfig, options)
    return options
