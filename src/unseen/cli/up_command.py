"""`unseen up`: start a coordinator, to which sites connect."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.console import INTERRUPTED, messages
from unseen.cli.live_command import LiveOption, live_page
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from unseen.deploy.coordinator.coordinator_home import CoordinatorHome

HomeOption = Annotated[Path, typer.Option(help="The coordinator's folder: keys, certificates, state.")]
DEFAULT_HOME = Path("federation")
LOOK_SECONDS = 0.5


def up_command(  # noqa: PLR0917 (one parameter per option)
    home: HomeOption = DEFAULT_HOME,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address at which sites reach this machine (repeatable)."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 9600 if not given.", min=1)] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new server certificate; sites keep their invitations.")
    ] = False,
    ca_key: Annotated[
        Path | None, typer.Option(help="The CA's private key, if you keep it elsewhere; needed to sign only.")
    ] = None,
    live: LiveOption = False,
) -> None:
    """Start a coordinator: TLS with its own CA, and only sites whose keys you accepted.

    The first time, certificates are created; later starts with the same folder keep its keys and sites. The
    server certificate is valid for a year. The CA's private key, HOME/tls/ca.key, may be kept elsewhere.
    Ctrl-C stops it; active runs can be continued with `unseen train --resume`.

    Example:

        unseen up --home federation --host fed.example.org
    """
    from unseen.deploy.coordinator.coordinator_home import open_home, start_coordinator
    from unseen.deploy.flower.processes import stop_process
    from unseen.deploy.identity.members import Members
    from unseen.deploy.identity.tls import WARN_DAYS, days_left
    from unseen.fileio import locked

    console = messages()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    with locked(home / "lock", place=home, option="--home", private=True):
        place = open_home(home, hosts=host or (), port=port, renew=renew, ca_key=ca_key)
    if (days := days_left(place.certificates())) < WARN_DAYS:
        say(f"The coordinator's certificate expires in {days} days; make a new one: unseen up --renew")
    with locked(home / "lock", place=home, option="--home"), terminated_like_interrupted():
        say(f"Starting the coordinator in {home} ...")
        with place.log.open("a", encoding="utf-8") as log:
            process = start_coordinator(place, log=log)
        try:
            members = Members(home)
            say_expired(members.drop_expired(place.here), say)
            members.unregister_revoked(place.here)
            members.register(place.here, all_known=not any(member.node for member in members))
            for member in members:
                if 0 < member.days_left < WARN_DAYS:
                    say(f"The key of {member.site} expires in {member.days_left:.0f} days")
            say(_welcome(place, [member.site for member in members]))
            with live_page(live, home, "federation"):
                _wait(process, place, say)
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
        "which makes its key; with that key, here:",
        f"  unseen accept SITE SITE.pub --home {folder}",
        "Train from this machine:",
        f"  unseen train JOB.toml --engine flower --coordinator {folder}",
        "Ctrl-C stops.",
    ]
    if home.listens_on == "127.0.0.1":
        lines.insert(1, "Only this machine can reach it; for other machines give --host NAME")
    return "\n".join(lines)


def say_expired(sites: list[str], say: Callable[[str], None]) -> None:
    """Say whose keys have expired and what to do."""
    for site in sites:
        say(f"The key of {site} has expired, it is no longer admitted; there: unseen join --rotate-key")


def _wait(process: subprocess.Popen[str], home: CoordinatorHome, say: Callable[[str], None]) -> None:
    """Wait until the SuperLink ends, and turn away sites whose keys expire meanwhile."""
    from unseen.deploy.identity.members import Members

    while process.poll() is None:
        with suppress(UnseenError):  # tried again
            say_expired(Members(home.path).drop_expired(home.here), say)
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
