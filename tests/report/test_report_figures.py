"""Every figure of every kind of run is valid and shows something."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unseen.registry import PLUGINS_VARIABLE
from unseen.report import FIGURES, draw_figures, write_figures, write_report
from unseen.report.curves import score_rows
from unseen.report.diagnostics import diagnostics
from unseen.report.figures import figure_names
from unseen.report.png import to_png
from unseen.report.vega_bundle import vega_lite
from unseen.runs.reader import read_run

MakeRun = Callable[..., Path]


def test_every_figure_is_drawn_as_a_picture(any_run: Path, tmp_path: Path) -> None:
    written = write_figures(any_run, tmp_path / "figures")
    panels = sum(len(panels) for panels in draw_figures(read_run(any_run)).values())
    assert len(set(written)) == panels >= 6
    for path in written:
        pixels = np.asarray(Image.open(path).convert("L"))
        assert pixels.shape[1] > 1000, path
        assert (pixels < 200).mean() > 0.0005, f"{path} is blank"


def test_which_figures_a_run_has(make_run: MakeRun) -> None:
    shown = list(draw_figures(read_run(make_run("a"))))
    others = (
        *("scatter", "transferability", "features", "layer-weights", "attention", "distances"),
        *("client-scores", "reliability"),
    )
    assert shown == [name for name in figure_names() if name not in others]
    regression = list(draw_figures(read_run(make_run("b", task="regression"))))
    assert regression == ["scores", "scatter", "loss", "time", "bytes", "diagnostics"]


def test_a_run_without_records_has_no_figures(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('data = "x"\n')
    assert draw_figures(read_run(tmp_path)) == {}


def test_drawing_twice_gives_the_same(make_run: MakeRun) -> None:
    run = read_run(make_run())
    first, second = (
        {name: [vega_lite(c) for c in panels.values()] for name, panels in draw_figures(run).items()}
        for _ in range(2)
    )
    assert first == second


def test_held_out_domains_come_first_and_thick(make_run: MakeRun) -> None:
    run = read_run(make_run(rounds=2))
    rows = score_rows(run, "accuracy")
    assert rows[0]["series"] == "75 (held out)"
    assert {row["role"] for row in rows} == {"held out", "source"}
    assert len(rows) == 2 * 6


def test_a_crowd_of_domains_becomes_a_mean_with_its_range(make_run: MakeRun) -> None:
    folder = make_run(domains=[f"d{i}" for i in range(30)], rounds=2)
    crowd = [row for row in score_rows(read_run(folder), "accuracy") if row["role"] == "source"]
    assert [row["round"] for row in crowd] == [1, 2]
    assert "29 source domains" in crowd[0]["series"]
    assert crowd[0]["low"] < crowd[0]["value"] < crowd[0]["high"]


def test_long_runs_are_thinned_but_keep_the_kept_round(make_run: MakeRun) -> None:
    folder = make_run(rounds=701, domains=["a", "b"], classes=["x", "y"])
    rows = score_rows(read_run(folder), "accuracy")
    rounds = {row["round"] for row in rows}
    assert {1, 699, 701} <= rounds
    assert len(rounds) <= 301


def test_names_stand_only_in_data(make_run: MakeRun, nasty_names: list[str]) -> None:
    run = read_run(make_run(domains=nasty_names, classes=nasty_names))
    for panels in draw_figures(run).values():
        for chart in panels.values():
            spec = vega_lite(chart)
            for layer in spec.get("layer", [spec]):
                bare = {key: value for key, value in layer.items() if key != "data"}
                for channel in bare.get("encoding", {}).values():
                    for part in channel if isinstance(channel, list) else [channel]:
                        assert part.get("field", "round") in _FIELDS


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.1, 0.2], ["step size"]),
        ([[0.1, 0.9], [0.2, 0.8]], ["step size"]),
        ([list(range(30))] * 2, ["step size, round 2"]),
        ([[[1, -0.5], [-0.5, 1]]] * 2, ["step size, round 2"]),
        ([[[1, None], [0.5, 1]]] * 2, ["step size, round 2"]),
        ([[[0.0, 0.0]]] * 2, ["step size, round 2"]),
        ([-0.2, None], ["step size"]),
        ([None, None], []),
        (["text", "text"], []),
        ([[], []], []),
        ([[[1, 2], [3]]] * 2, []),
        ([0.5, [1, 2]], ["step size"]),
    ],
)
def test_diagnostics_are_drawn_by_shape(make_run: MakeRun, values: list[Any], labels: list[str]) -> None:
    folder = make_run(rounds=1, finished=False)
    lines = [
        {
            "event": "round",
            "round": i + 1,
            "clients": ["a", "b"],
            "loss": 1.0,
            "diagnostics": {"step_size": value},
        }
        for i, value in enumerate(values)
    ]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    panels = diagnostics(read_run(folder))
    assert list(panels) == labels
    for chart in panels.values():
        assert Image.open(io.BytesIO(to_png(chart))).size[0] > 1000


_FIELDS = {
    "round",
    "value",
    "line",
    "series",
    "role",
    "x",
    "y",
    "across",
    "down",
    "text",
    "kind",
    "name",
    "cases",
}


PLUGIN = """
import altair as alt

from unseen.report import register_figure


@register_figure("plugin-rounds", title="Rounds <of a plugin>", caption="How many there were.")
def rounds(run):
    return alt.Chart(alt.InlineData(values=[{"n": len(run.rounds)}])).mark_bar().encode(x="n:Q")


@register_figure("plugin-nothing", title="Nothing", order=1)
def nothing(run):
    return None
"""


def test_a_figure_of_a_plugin_file_is_on_the_page_and_among_the_images(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_figure.py").write_text(PLUGIN)
    monkeypatch.setattr(FIGURES, "_entries", dict(FIGURES._entries))
    monkeypatch.setattr(FIGURES, "_loaded", False)
    monkeypatch.setenv(PLUGINS_VARIABLE, str(tmp_path / "my_figure.py"))
    folder = make_run(rounds=2)
    assert figure_names()[0] == "plugin-nothing"
    assert figure_names()[-1] == "plugin-rounds"
    assert FIGURES["plugin-rounds"].summary == "Rounds <of a plugin>"
    html = write_report(folder).read_text(encoding="utf-8")
    assert "<h3>Rounds &lt;of a plugin&gt;</h3>" in html
    assert '"chart-plugin-rounds-1"' in html
    assert "plugin-nothing" not in html
    assert "plugin-rounds.png" in [path.name for path in write_figures(folder, tmp_path / "figures")]


def test_every_figure_has_one_line_for_lists() -> None:
    assert all(FIGURES[name].summary and "\n" not in FIGURES[name].summary for name in FIGURES)
