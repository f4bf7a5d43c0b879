"""The theme of all charts, light and dark; charts refer to roles and contain no colours.

The held-out domain always has the first colour of the palette, which is also the page's accent.
"""

from __future__ import annotations

from typing import Any, Literal

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"

_LIGHT = {
    "ink": "#2b2f33",
    "quiet": "#667078",
    "line": "#e4e3de",
    "accent": "#cf4307",
    "cell_low": "#2b2f33",
    "cell_high": "#ffffff",
    "category": [
        "#cf4307", "#2f6db3", "#3a8f5c", "#8a5cc2", "#12878f",
        "#b83280", "#7a7f1f", "#64748b", "#1e3a8a", "#7c5a43",
    ],
    "ramp": ["#f0f3f8", "#c3d7ee", "#7fade0", "#3a78bf", "#163f77"],
    "diverging": ["#8f3a0b", "#e08a52", "#f3f2ee", "#6fa3da", "#1d4f91"],
}  # fmt: skip
_DARK = {
    "ink": "#dfe3e6",
    "quiet": "#98a2ab",
    "line": "#30363c",
    "accent": "#ff8f61",
    "cell_low": "#dfe3e6",
    "cell_high": "#10161c",
    "category": [
        "#ff8f61", "#78b2f0", "#72cc98", "#bda2f2", "#5ecbd4",
        "#f08cc0", "#c3c860", "#a3afbf", "#8fa5ff", "#d0a68a",
    ],
    "ramp": ["#222a32", "#25476c", "#3272b8", "#74aeea", "#d6e8fc"],
    "diverging": ["#ffb08a", "#a85526", "#262c32", "#2f6fb5", "#9accff"],
}  # fmt: skip

Scheme = Literal["light", "dark"]


def vega_config(scheme: Scheme, *, background: str | None = None) -> dict[str, Any]:
    """Return Vega-Lite's `config` for one colour scheme; no background unless one is given."""
    colours: dict[str, Any] = _LIGHT if scheme == "light" else _DARK
    text = {"labelColor": colours["quiet"], "titleColor": colours["quiet"]}
    return {
        "background": background,
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            **text,
            "domain": False,
            "ticks": False,
            "grid": True,
            "gridColor": colours["line"],
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelPadding": 6,
            "titlePadding": 8,
        },
        "axisX": {"grid": False, "domain": True, "domainColor": colours["line"]},
        "axisBand": {"grid": False, "domain": False},
        "legend": {
            **text,
            "labelColor": colours["ink"],
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "symbolStrokeWidth": 3,
            "symbolSize": 90,
        },
        "range": {
            "category": colours["category"],
            "heatmap": colours["ramp"],
            "ramp": colours["ramp"],
            "diverging": colours["diverging"],
        },
        "line": {"strokeJoin": "round", "strokeCap": "round"},
        "bar": {"color": colours["category"][1]},
        "style": {
            "main": {"color": colours["category"][1]},
            "main-line": {"color": colours["category"][1], "strokeWidth": 2},
            "guide": {"color": colours["quiet"], "strokeDash": [4, 4], "strokeWidth": 1.2},
            "note": {"color": colours["quiet"], "fontSize": 12},
            "cell-low": {"color": colours["cell_low"], "fontSize": 11},
            "cell-high": {"color": colours["cell_high"], "fontSize": 11},
        },
    }
