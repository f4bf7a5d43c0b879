"""The page of a site check: a verdict and its reasons, for whoever decides whether a model is used there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from unseen.report.formatting import p_text
from unseen.report.page import DataTable, ImageCard, Tile, render_page
from unseen.report.png import encode_png


class ShownSample(NamedTuple):
    """A sample on the page: its image, without and with its attribution map, and what the model says."""

    name: str
    pixels: npt.NDArray[np.uint8]
    label: str
    distance: float
    unusual: bool
    overlay: npt.NDArray[np.uint8] | None = None


def site_page(
    found: Mapping[str, Any],
    *,
    usual: Sequence[ShownSample],
    unusual: Sequence[ShownSample],
    about: Sequence[str],
    attribution: str = "",
) -> str:
    """Render the page.

    found  the numbers and sentences of a check, as `unseen check-site --json` prints them
    about  model, run and data, for the line below the headline
    attribution  what the maps on the samples' images show, or why there are none
    """
    return render_page(
        "site.html.j2",
        title=f"Site check: {found['verdict']}",
        charts={},
        headline=str(found["verdict"]).capitalize(),
        about=about,
        tiles=_tiles(found),
        reasons=found["reasons"],
        attribution=attribution,
        tests=_tests(found),
        sources=_sources(found),
        features=_moves(found["features"], ["feature", "mean of sources", "mean here", "change in stds"]),
        classes=_moves(found["classes"], ["class", "predicted at sources", "predicted here", "change"]),
        pictures={
            title: cards
            for title, samples in (("Least usual", unusual), ("Most usual", usual))
            if (cards := [_card(sample) for sample in samples])
        },
    )


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    expected = found["expected_accuracy"]
    tiles = [
        Tile("verdict", found["verdict"], hero=True),
        Tile("samples", found["samples"], f"{found['failed']} unreadable" if found["failed"] else ""),
        Tile("unusual samples", f"{found['fraction_unusual']['distance']:.1%}", "at most 5 % of any source"),
    ]
    if expected:
        reach = f"{expected['low']:.1%} to {expected['high']:.1%}; sources {found['source_accuracy']:.1%}"
        tiles.append(Tile("expected accuracy", f"{expected['accuracy']:.1%}", reach))
    if found["accuracy"] is not None:
        tiles.append(Tile("measured accuracy", f"{found['accuracy']:.1%}", "the data has labels"))
    return tiles


TESTS = {
    "mean": "mean of the features",
    "distance": "number of samples far from the sources",
    "energy": "number of samples of high energy",
}


def _tests(found: Mapping[str, Any]) -> DataTable:
    rows = [[TESTS[name], p_text(value)] for name, value in found["p_values"].items()]
    return DataTable(["test", "p"], [*rows, ["together (Bonferroni)", p_text(found["p_value"])]])


def _sources(found: Mapping[str, Any]) -> DataTable | None:
    rows = [[name, p_text(value)] for name, value in found["p_of_sources"].items()]
    return DataTable(["source", "p"], rows) if rows else None


def _moves(moves: Sequence[Mapping[str, Any]], headers: Sequence[str]) -> DataTable:
    fractions = headers[0] == "class"
    value, change = ("{:.1%}", "{:+.1%}") if fractions else ("{:.4g}", "{:+.2f}")
    rows = [
        [
            move["name"],
            value.format(move["before"]),
            value.format(move["here"]),
            change.format(move["change"]),
        ]
        for move in moves
    ]
    return DataTable(headers, rows)


def _card(sample: ShownSample) -> ImageCard:
    return ImageCard(
        png=encode_png(sample.pixels),
        alt=f"sample {sample.name}",
        verdict="unusual" if sample.unusual else "usual",
        answer=sample.label,
        hint=f"distance {sample.distance:.2f}",
        right=not sample.unusual,
        title=sample.name,
        overlay="" if sample.overlay is None else encode_png(sample.overlay),
    )
