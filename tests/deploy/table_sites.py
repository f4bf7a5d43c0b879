"""Tiny tables at four sites, and the same rows in one table with a domain column."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from tiny_sites import SITES

from unseen.config import RunConfig

Row = dict[str, Any]
WHOLE = "whole.csv"


def make_rows(site: str, *, rows: int = 30) -> list[Row]:
    """Numbers of different scales with some missing, texts of which each site has others, an empty column."""
    number = SITES.index(site)
    generator = np.random.default_rng(number)
    found = []
    for i in range(rows + 3 * number):
        label = int(generator.integers(0, 3))
        age = round(float(generator.normal(40 + 20 * label, 9)), 3)
        found.append(
            {
                "age": "" if site == "b" and i % 5 == 0 else age,
                "ward": ("north", "south", f"only {site}")[(i + label) % 3],
                "income": int(generator.integers(20_000, 90_000)) * 1_000 + label * 20_000_000,
                "joined": "" if site == "c" else f"2024-01-{1 + (i + 7 * label) % 28:02}",
                "signal": round(float(generator.normal(label - 1, 0.3)) * 1e-6, 12),
                "target": ("low", "mid", "high")[label],
                "score": round(float(generator.normal(10 * label, 2)), 2),
            }
        )
    return found


def write_tables(folder: Path, rows: dict[str, list[Row]], *, target: str = "target") -> Path:
    """Write one file per site without a domain column, and one with the rows of all."""
    folder.mkdir(parents=True, exist_ok=True)
    other = {"target": "score", "score": "target"}[target]
    kept = {site: [_without(row, other) for row in own] for site, own in rows.items()}
    for site, own in kept.items():
        write_csv(folder / f"{site}.csv", own)
    write_csv(folder / WHOLE, [{"domain": site, **row} for site, own in kept.items() for row in own])
    return folder


def make_tables(folder: Path, *, target: str = "target") -> Path:
    return write_tables(folder, {site: make_rows(site) for site in SITES}, target=target)


def write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _without(row: Row, name: str) -> Row:
    return {key: value for key, value in row.items() if key != name}


def table_job(folder: Path, **changes: Any) -> RunConfig:
    """A job of three short rounds on tables, with the site `held` held out."""
    values: dict[str, Any] = {
        "data": str(folder / WHOLE),
        "hold_out": ("held",),
        "rounds": 3,
        "batch_size": 8,
        "lr": 0.05,
        "validation": 0.2,
        "threads": 1,
        "workers": 1,
        "device": "cpu",
    }
    return RunConfig.from_mapping({**values, **changes})
