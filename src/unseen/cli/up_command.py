"""`unseen up`: start a coordinator, to which sites connect."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.console import INTERRUPTED, messages
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from unseen.deploy.coordinator_home import CoordinatorHome

HomeOption = Annotated[Path, typer.Option(help="The coordinator's folder: keys, certificates, state.")]
DEFAULT_HOME = Path("federation")
LOOK_SECONDS = 0.5


def up_command(
    home: HomeOption = DEFAULT_HOME,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address at which sites reach this machine (repeatable)."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 9600 if not given.", min=1)] = None,
) -> None:
    """Start a coordinator: TLS with its own CA, and only sites whose keys you registered.

    The first time, certificates are created; later starts with the same folder keep its keys and sites.
    Ctrl-C stops it; active runs can be continued with `unseen train --resume`.

    Example:

        unseen up --home federation --host fed.example.org
    """
    from unseen.deploy.coordinator_home import open_home, start_coordinator
    from unseen.deploy.flower.processes import stop_process
    from unseen.deploy.members import Members
    from unseen.fileio import locked

    console = messages()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    place = open_home(home, hosts=host or (), port=port)
    with locked(home / "lock", place=home, option="--home"), terminated_like_interrupted():
        say(f"Starting the coordinator in {home} ...")
        with place.log.open("a", encoding="utf-8") as log:
            process = start_coordinator(place, log=log)
        try:
            members = Members(home)
            if any(member.node for member in members):
                members.register(place.here, all_known=False)
            else:
                members.register(place.here)
            say(_welcome(place, [member.site for member in members]))
            _wait(process, place)
        except KeyboardInterrupt:
            say("\nStopping; sites reconnect once it is back.")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            stop_process(process)


def _welcome(home: CoordinatorHome, sites: list[str]) -> str:
    folder = shlex.quote(str(home.path))
    lines = [
        f"Coordinator at {home.address} (log: {home.log}). Sites: {', '.join(sites) or 'none yet'}.",
        "For each site, here:",
        f"  unseen invite SITE --home {folder}",
        "and at the site, with the file that this writes:",
        "  unseen join SITE.invitation --data FOLDER",
        "Train from this machine:",
        f"  unseen train JOB.toml --engine flower --coordinator {folder}",
        "Ctrl-C stops.",
    ]
    if home.listens_on == "127.0.0.1":
        lines.insert(1, "Only this machine can reach it; for other machines give --host NAME")
    return "\n".join(lines)


def _wait(process: subprocess.Popen[str], home: CoordinatorHome) -> None:
    while process.poll() is None:
        time.sleep(LOOK_SECONDS)
    raise UnseenError(f"the SuperLink ended with code {process.returncode}; see {home.log}")


class terminated_like_interrupted:  # noqa: N801 (read as a clause)
    """Context in which SIGTERM (as sent by systemd) acts like Ctrl-C, in the background too."""

    def __enter__(self) -> None:
        self._before = {
            number: signal.signal(number, signal.default_int_handler)
            for number in (signal.SIGINT, signal.SIGTERM)
        }

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
