"""PNG files: charts, rendered without a browser, and images of samples."""

from __future__ import annotations

import base64
import io
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from unseen.fileio import write_atomically
from unseen.report.figures import draw_figures
from unseen.report.theme import vega_config
from unseen.report.vega_bundle import vega_lite, vega_lite_version
from unseen.runs.reader import read_run

if TYPE_CHECKING:
    from PIL.Image import Image

    from unseen.report.charts import AnyChart, Panels

CHART_WIDTH = 640


def to_png(chart: AnyChart, *, scale: float = 2.0) -> bytes:
    """Draw a chart on white and return the PNG file's content."""
    import vl_convert

    spec = vega_lite(chart) | {"width": CHART_WIDTH, "config": vega_config("light", background="#ffffff")}
    image: bytes = vl_convert.vegalite_to_png(spec, vl_version=vega_lite_version(), scale=scale)
    return image


def to_pil(pixels: npt.NDArray[np.uint8]) -> Image:
    """Make a grey or colour image from pixels (height, width, channels)."""
    from PIL import Image

    grey = pixels.shape[-1] == 1
    return Image.fromarray(cast(Any, np.ascontiguousarray(pixels.squeeze(-1) if grey else pixels)))


def encode_png(pixels: npt.NDArray[np.uint8]) -> str:
    """Encode pixels (height, width, channels) as a PNG file in base64, for records and pages."""
    buffer = io.BytesIO()
    to_pil(pixels).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def write_figures(folder: Path, out_dir: Path) -> list[Path]:
    """Write every panel of every figure of a run as a PNG file; return the paths."""
    return write_panels(draw_figures(read_run(folder)), out_dir)


def write_panels(figures: dict[str, Panels], out_dir: Path) -> list[Path]:
    """Write every panel of figures as a PNG file named after its figure; return the paths."""
    written = []
    for name, panels in figures.items():
        stems = _file_names(name, list(panels))
        for stem, chart in zip(stems, panels.values(), strict=True):
            path = out_dir / f"{stem}.png"
            write_atomically(path, partial(_write_png, chart))
            written.append(path)
    return written


def _write_png(chart: AnyChart, path: Path) -> None:
    path.write_bytes(to_png(chart))


def _file_names(figure: str, labels: list[str]) -> list[str]:
    if len(labels) == 1:
        return [figure]
    slugs = [re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40] for label in labels]
    return [
        f"{figure}-{slug}" if slug and slugs.count(slug) == 1 else f"{figure}-{position}"
        for position, slug in enumerate(slugs, start=1)
    ]
