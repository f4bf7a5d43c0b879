"""The `unseen` command: its subcommands and its error handling."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from unseen import __version__
from unseen.cli.advise_command import advise_command
from unseen.cli.audit_command import audit_command
from unseen.cli.bench_command import bench_command
from unseen.cli.calibrate_command import calibrate_command
from unseen.cli.card_command import card_command
from unseen.cli.check_site_command import check_site_command
from unseen.cli.data_command import app as data_app
from unseen.cli.demo_command import demo_command
from unseen.cli.federation_command import (
    accept_command,
    app_command,
    invite_command,
    revoke_command,
    status_command,
)
from unseen.cli.help_command import help_command
from unseen.cli.join_command import join_command
from unseen.cli.judge_command import judge_command
from unseen.cli.list_command import app as list_app
from unseen.cli.live_command import live_command
from unseen.cli.options import PluginOption
from unseen.cli.predict_command import export_command, predict_command
from unseen.cli.report_command import report_command
from unseen.cli.reproduce_command import reproduce_command
from unseen.cli.site_command import approve_command, ledger_app
from unseen.cli.track_command import track_command
from unseen.cli.train_command import train_command
from unseen.cli.up_command import up_command
from unseen.errors import UnseenError, escape_bytes
from unseen.registry import add_plugin_files

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train one model across data silos that may not share their data, so that it works on a domain "
    "none of them has seen.\n\nStart with `unseen demo`, or with your own folders, one folder per site:\n\n"
    "    unseen train my_data/ --hold-out site_d --method fedavg",
)
app.command("train")(train_command)
app.command("bench")(bench_command)
app.command("advise")(advise_command)
app.command("reproduce")(reproduce_command)
app.command("demo")(demo_command)
app.command("report")(report_command)
app.command("live")(live_command)
app.command("track")(track_command)
app.command("audit")(audit_command)
app.command("calibrate")(calibrate_command)
app.command("predict")(predict_command)
app.command("check-site")(check_site_command)
app.command("judge")(judge_command)
app.command("export")(export_command)
app.command("card")(card_command)
app.command("help")(help_command)
for _name, _command in (
    ("up", up_command),
    ("invite", invite_command),
    ("accept", accept_command),
    ("revoke", revoke_command),
    ("join", join_command),
    ("status", status_command),
    ("app", app_command),
    ("approve", approve_command),
):
    app.command(_name, rich_help_panel="Federation across machines")(_command)
app.add_typer(ledger_app, name="ledger", rich_help_panel="Federation across machines")
app.add_typer(list_app, name="list")
app.add_typer(data_app, name="data")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"unseen {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
    plugin: PluginOption = None,
) -> None:
    add_plugin_files(plugin or [])


def main() -> None:
    """Run the command line; errors meant for users become one line and an exit code."""
    try:
        app(prog_name="unseen")
    except UnseenError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if error.errno not in ENVIRONMENT:
            raise
        place = f"{error.filename}: " if error.filename is not None else ""
        typer.echo(f"error: {escape_bytes(place)}{error.strerror}", err=True)
        sys.exit(UnseenError.exit_code)


ENVIRONMENT = {
    *(
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.ENOENT,
    ),
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.ESTALE),
}
"""Reasons of the operating system that are no fault of the program: a full disk, a read-only place."""
