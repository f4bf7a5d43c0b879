"""`unseen invite`: let a site take part, by its public key."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.console import messages
from unseen.cli.up import DEFAULT_HOME, HomeOption
from unseen.errors import UsageError

if TYPE_CHECKING:
    from unseen.deploy.coordinator_home import CoordinatorHome


def invite_command(
    site: Annotated[str, typer.Argument(help="The site's name; results call its domain so.")],
    home: HomeOption = DEFAULT_HOME,
    key: Annotated[
        str | None,
        typer.Option(help="The site's public key: its .pub file, or the line in it.", metavar="SITE.pub"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The invitation; SITE.invitation if not given.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Let this site in no more.")] = False,
) -> None:
    """Write an invitation for a site, and register its public key once you have it.

    First `unseen invite SITE`: send the file to the site. It holds no secret. There `unseen join` makes a key
    pair and says which file to send back. Then `unseen invite SITE --key SITE.pub`: from now on the site
    is let in. Compare the fingerprints that both sides show, say over the telephone.

    Examples:

        unseen invite hospital_a

        unseen invite hospital_a --key hospital_a.pub
    """
    from unseen.deploy.coordinator_home import CoordinatorHome
    from unseen.deploy.invitation import SUFFIX, Invitation, require_site_name
    from unseen.deploy.keys import fingerprint, read_public_key
    from unseen.deploy.members import Members

    if revoke and key is not None:
        raise UsageError("--revoke takes a site's key away and --key gives one: use one at a time")
    require_site_name(site)
    place, members = CoordinatorHome.load(home), Members(home)
    coordinator = place.here if _is_up(place) else None
    if revoke:
        members.revoke(site, coordinator)
        _say(f"{site} is let in no more.")
        return
    if key is None:
        path = out or Path(f"{site}{SUFFIX}")
        ca = place.certificates().ca.read_text(encoding="utf-8")
        Invitation(site, place.address, ca).save(path)
        _say(f"Wrote {path}. Send it to {site}; there they run:\n  unseen join {path.name} --data FOLDER")
        if members.get(site) is None:
            _say(
                f"It prints the name of a public key file. With that file, let {site} in:\n"
                f"  unseen invite {site} --key {site}.pub --home {home}"
            )
        return
    member = members.add(site, read_public_key(key))
    if coordinator is not None:
        members.register(coordinator)
    when = "is let in from now on" if coordinator else "will be let in when `unseen up` runs"
    _say(f"{site} {when}. Fingerprint of its key:\n  {fingerprint(member.key)}")


def _is_up(home: CoordinatorHome) -> bool:
    """Whether something listens where the coordinator of this home would."""
    host, _, port = home.here.address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2.0).close()
    except OSError:
        return False
    return True


def _say(text: str) -> None:
    messages().print(text, markup=False, soft_wrap=True)
