"""`unseen live`: a local page that follows a run, a bench or a federation."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.console import INTERRUPTED, messages
from unseen.cli.options import with_plugins
from unseen.config_options import EXECUTION
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from unseen.callbacks.base import Callback
    from unseen.live.followed_folder import Kind
    from unseen.live.page_process import PageProcess

LiveOption = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Show progress on a page that only this machine can open.",
        rich_help_panel=EXECUTION,
    ),
]


def follow_live(folder: Path) -> Callback:
    """Return the callback that has a run followed by a page."""
    from unseen.live.page_process import LivePage

    return LivePage(folder, say)


def live_page(
    wanted: bool, folder: Path, kind: Kind, *, work: Path | None = None
) -> PageProcess | AbstractContextManager[None]:
    """Return the context in which a page follows a folder, if that is wanted."""
    if not wanted:
        return nullcontext()
    from unseen.live.page_process import PageProcess

    return PageProcess(folder, kind, say, work=work)


def say(text: str) -> None:
    """Say where the page is."""
    messages().print(text, soft_wrap=True, markup=False)


@with_plugins
def live_command(
    folder: Annotated[
        Path, typer.Argument(help="A run folder, a bench folder, or the home of a coordinator.")
    ],
    port: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1; a free one if not given.", min=1, max=65535)
    ] = None,
    work: Annotated[Path | None, typer.Option(help="Folder of a bench's jobs, if not FOLDER/jobs.")] = None,
    attached: Annotated[
        str | None,
        typer.Option(help="Follow this kind, and end with the process that started this.", hidden=True),
    ] = None,
) -> None:
    """Follow a run, a bench or a federation on a page in your browser, while it works.

    It only reads, may be started and stopped at any time, and can be opened on this machine alone, at the
    address it prints. `unseen train`, `bench` and `up` start it themselves with --live. Ctrl-C stops it.

    Examples:

        unseen live runs/rotated-digits-75-fedavg-0

        unseen live my_bench --port 8800

        unseen live federation
    """
    from unseen.live.followed_folder import find_source
    from unseen.live.page_process import serve

    def say_where(url: str) -> None:
        if attached:
            typer.echo(json.dumps({"url": url}))
        else:
            say(f"Live page: {url} (Ctrl-C stops it)")

    try:
        source = find_source(folder, attached, work=work)
        serve(folder, source, port=port, say=say_where, attached=attached is not None)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except UnseenError as error:
        if not attached:
            raise
        typer.echo(json.dumps({"error": str(error)}))
