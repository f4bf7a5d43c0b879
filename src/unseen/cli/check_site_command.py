"""`unseen check-site`: is a model fit for a place it has not seen, before anybody relies on it there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from unseen.cli.console import messages, print_json, results
from unseen.cli.options import AsJson, DataRoot, with_plugins
from unseen.errors import escape_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unseen.report.site_page import ShownSample
    from unseen.serving import SiteCheck
    from unseen.serving.site_check import Sample

STYLES = {"fit for use": "green", "use with care": "yellow", "do not use": "red"}


@with_plugins
def check_site_command(  # noqa: PLR0917 (one parameter per option)
    model: Annotated[Path, typer.Argument(help="A run folder, or its model.safetensors.")],
    new_data: Annotated[
        str,
        typer.Argument(
            help="A folder of images; for table models a .csv or .parquet file; or a named data set."
        ),
    ],
    domain: Annotated[str, typer.Option(help="The domain to check, of a named data set.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="The page to write; site-check.html here if not given.")
    ] = None,
    data_root: DataRoot = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Check whether a model is fit for a site, from samples without labels.

    Compares the site's samples with what the model keeps of its sources: whether they differ more than the
    sources did from one another, which features and classes moved, and which accuracy to expect. The verdict
    is `fit for use`, `use with care` or `do not use`, with its reasons.

    Labels are not needed. Where folders are named like the classes, or the data set is a named one, the
    measured accuracy is shown as well. The page contains images of the site,
    and maps of where they speak for the model's answer (Grad-CAM).

    Examples:

        unseen check-site runs/my_run new_hospital/

        unseen check-site demo/fedavg rotated-digits --domain 75
    """
    from unseen.cli.progress import DelayedProgressBar
    from unseen.devices import choose_device
    from unseen.fileio import write_text
    from unseen.report.site_page import site_page
    from unseen.serving import SiteData, check_site, load_model

    console = messages()
    saved = load_model(model)
    saved.network.to(choose_device(device))
    with DelayedProgressBar(console) as bar:
        check = check_site(saved, SiteData(new_data, domain, data_root), batch_size=batch_size, progress=bar)
    page, found = out or Path("site-check.html"), check.to_dict()
    place = " ".join(filter(None, (new_data, domain)))
    about = [f"{saved.card.model}, run {saved.card.run_id}", f"data {place}", f"{check.samples} samples"]
    text = site_page(
        found,
        usual=_shown(check.usual),
        unusual=_shown(check.unusual),
        about=about,
        attribution=check.attribution,
    )
    write_text(page, escape_bytes(text))
    if as_json:
        print_json({**found, "page": str(page)})
        return
    printed = results()
    printed.print(Text(check.verdict.name, style=f"bold {STYLES[check.verdict.name]}"))
    for reason in check.verdict.reasons:
        printed.print(f"- {reason}", soft_wrap=True, markup=False)
    printed.print(site_table(check))
    printed.print(f"Page: {page}", soft_wrap=True, markup=False)


def site_table(check: SiteCheck) -> Table:
    """Put the numbers of a check next to those of the sources."""
    difference, expected = check.difference, check.expected
    table = Table("", "here", "sources")
    allowed = f"up to {difference.allowed:.2f}" if difference.yardstick else "one source"
    table.add_row("samples", str(check.samples), str(sum(check.reference.samples.values())))
    table.add_row("distance of the mean", f"{difference.distance:.2f}", allowed)
    table.add_row("unusual samples", f"{difference.unusual['distance']:.1%}", "up to 5.0%")
    table.add_row("p of no difference", f"{difference.p_value:.2g}", "")
    if difference.sources:
        table.add_row("p of being a source", f"{max(difference.sources.values()):.2g}", "")
    if expected is not None and check.reference.accuracy is not None:
        reach = f"{expected.accuracy:.1%} ({expected.low:.1%} to {expected.high:.1%})"
        table.add_row("expected accuracy", reach, f"{check.reference.accuracy:.1%}")
        table.add_row("mean confidence", f"{check.mean_confidence:.1%}", "")
    if check.accuracy is not None:
        table.add_row("measured accuracy", f"{check.accuracy:.1%}", "")
    return table


def _shown(samples: Sequence[Sample]) -> list[ShownSample]:
    from unseen.report.site_page import ShownSample

    return [
        ShownSample(
            escape_bytes(item.name), pixels, item.label, item.distance or 0.0, bool(item.unusual), overlay
        )
        for item, pixels, overlay in samples
        if pixels is not None
    ]
