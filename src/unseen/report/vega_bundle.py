"""The library that draws a page's charts: a script inside the page, so that no network is needed."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import metadata

from unseen.errors import UnseenError
from unseen.fileio import cache_folder, write_text


@cache
def vega_script(version: str) -> str:
    """Vega-Embed and all it needs. Bundling takes seconds, so the script stays in the cache folder."""
    kept = cache_folder() / f"vega-{version}-{metadata.version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8")
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    code = bundle.replace("</script", "<\\/script")
    with suppress(OSError, UnseenError):
        write_text(kept, code)
    return code
