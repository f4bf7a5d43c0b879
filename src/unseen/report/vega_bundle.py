"""Charts as Vega-Lite, and the script that draws them inside a page, so that no network is needed."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from unseen.checksums import differs_from_checksum_line, with_checksum_line
from unseen.errors import UnseenError
from unseen.fileio import cache_folder, write_text

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart


def vega_lite(chart: AnyChart) -> dict[str, Any]:
    """Convert a chart to a Vega-Lite object without a theme; the page or the image adds `vega_config`."""
    spec: dict[str, Any] = chart.to_dict()
    spec.pop("config", None)
    return spec


def vega_lite_version() -> str:
    """Return the Vega-Lite version that Altair writes, as vl-convert names it."""
    import altair as alt

    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


@cache
def vega_script(version: str) -> str:
    """Bundle Vega-Embed with its dependencies; this takes seconds, so the script is cached on disk."""
    kept = cache_folder() / f"vega-{version}-{metadata.version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        found = kept.read_text(encoding="utf-8")
        if not differs_from_checksum_line(found):
            return found
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    code = with_checksum_line(bundle.replace("</script", "<\\/script"), comment="//")
    with suppress(OSError, UnseenError):
        write_text(kept, code)
    return code
