"""The tables in `results/` follow from the committed records alone, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen.bench.bench_files import markdown_file
from unseen.bench.bench_summary import summarize_bench
from unseen.bench.grid import Grid
from unseen.bench.results import read_results
from unseen.bench.tables.render import latex_file, to_csv

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/results.jsonl"))


def test_there_are_committed_results():
    assert len(FOLDERS) >= 10


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_committed_tables_regenerate_byte_for_byte(folder):
    [grid_file] = folder.glob("*.toml")
    summary = summarize_bench(Grid.from_toml(grid_file), read_results(folder / "results.jsonl"))
    tables = [table for each in summary.models for table in each.tables]
    made = {
        "table.md": markdown_file(summary),
        "table.tex": latex_file(summary.sheets),
        "table.csv": to_csv(tables),
    }
    for name, text in made.items():
        assert text.encode() == (folder / name).read_bytes(), f"{name} of {folder.name} differs"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_committed_results_are_found_by_their_job_ids(folder):
    """A grid that is run again finds its results by id: a new option must not change the id of old jobs."""
    [grid_file] = folder.glob("*.toml")
    grid, results = Grid.from_toml(grid_file), read_results(folder / "results.jsonl")
    assert results
    for result in results:
        model = result.model if grid.models else ""
        assert grid.job(result.label, result.held_out, result.seed, model).id == result.job
