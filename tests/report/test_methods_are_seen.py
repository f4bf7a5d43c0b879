"""What a method records of itself is seen on its page: no number is written that nobody can look at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiny_data import fitting_options
from unseen.config import RunConfig
from unseen.methods import METHODS
from unseen.report.figures import draw_figures
from unseen.runner.run import run
from unseen.runs.reader import read_run

FIGURE_OF = {
    "layers": "layer-weights",
    "layer_weights": "layer-weights",
    "attention": "attention",
    "transferability": "transferability",
}
"""Diagnostics with a figure of their own."""
SEEDS_OF_THE_PROJECT = {
    "csac": {"layer_weights", "attention", "alignment_loss"},
    "ppdg": {"conflicting_pairs", "cosines"},
    "fedadg": {"score_extracted", "score_generated"},
    "mdfl": {"transferability"},
}
"""What the papers' methods must show at least."""


@pytest.mark.parametrize("method", list(METHODS))
def test_every_diagnostic_is_drawn(method: str, tmp_path: Path) -> None:
    config = RunConfig.from_mapping(
        {
            "data": "rotated-digits",
            "hold_out": ["30", "45", "60", "75"],
            "method": method,
            "settings": {"acquisition_epochs": 1} if method == "csac" else {},
            "rounds": 2,
            "batches_per_epoch": 1,
            "workers": 1,
            **({"model": "clip-tiny", "weights": "random"} if METHODS[method].needs_texts else {}),
            **fitting_options(method),
        }
    )
    result = run(config, out=tmp_path / "run", report=False)
    lines = map(json.loads, (result.folder / "records.jsonl").read_text().splitlines())
    recorded = {name for line in lines if line["event"] == "round" for name in line["diagnostics"]}
    assert recorded >= SEEDS_OF_THE_PROJECT.get(method, set())
    figures = draw_figures(read_run(result.folder))
    panels = [title.split(", round")[0] for title in figures.get("diagnostics", {})]
    for name in recorded:
        shown = FIGURE_OF[name] in figures if name in FIGURE_OF else name.replace("_", " ") in panels
        assert shown, f"{name} is recorded and not drawn"
