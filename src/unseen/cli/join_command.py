"""`unseen join`: take part as a site, which keeps its data."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.console import INTERRUPTED, messages
from unseen.cli.data_command import show_findings
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from unseen.data.validate import DataCheck


def join_command(  # noqa: PLR0917 (one parameter per option)
    invitation: Annotated[Path, typer.Argument(help="The file of `unseen invite`.")],
    data: Annotated[
        str,
        typer.Option(help="This site's data: a folder CLASS/IMAGE, or a table (.csv, .parquet)."),
    ],
    home: Annotated[
        Path | None,
        typer.Option(help="This site's folder: its key, logs and client state; SITE-home if not given."),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            help="A file with fingerprints of the other sites' keys, for --protect secure-sum; kept in HOME."
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Skip images that cannot be read.")
    ] = False,
    rotate_key: Annotated[
        bool,
        typer.Option("--rotate-key", help="Change this site's key; the coordinator accepts the new one."),
    ] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(help="Fingerprint of the CA as `unseen invite` showed it; another one is refused."),
    ] = None,
) -> None:
    """Take part in training with this site's data, which stays here. Runs until Ctrl-C.

    The data is checked first. The first time, a key pair is created; its private key never leaves this
    machine. HOME/policy.toml says what this site allows; it refuses everything else. Every kind of value that
    leaves in an answer is shown and logged in HOME/sent.jsonl, with its bytes.

    Example:

        unseen join hospital_a.invitation --data ./our-images
    """
    from unseen.cli.up_command import terminated_like_interrupted
    from unseen.deploy.flower.compat import require_flower
    from unseen.deploy.identity.invitation import Invitation
    from unseen.deploy.identity.key_rotation import rotate_key as rotate
    from unseen.deploy.identity.peer_keys import PEERS, copy_peers, read_peers
    from unseen.deploy.site.site_home import open_site, stay_connected
    from unseen.deploy.site.site_policy import read_policy, write_policy
    from unseen.fileio import locked

    require_flower()
    invited = Invitation.load(invitation)
    check = _look_over(invited.site, data, skip_unreadable=skip_unreadable)
    if fingerprint is not None and fingerprint != invited.fingerprint:
        raise UnseenError(f"the invitation is of another CA ({invited.fingerprint}): do not trust it")
    folder = home or Path(f"{invited.site}-home")
    place = open_site(folder, invited)
    rules = write_policy(place.path)
    least = read_policy(place.path).min_group
    known = copy_peers(peers, place.path) if peers else read_peers(place.path / PEERS)
    console = messages()

    def say(text: str) -> None:
        console.print(f"{datetime.now():%H:%M:%S} {text}", markup=False, soft_wrap=True)

    source = str(Path(data).expanduser().absolute()) if Path(data).expanduser().exists() else data
    with locked(place.path / "lock", place=place.path, option="--home"), terminated_like_interrupted():
        say(f"site {invited.site}, public key {place.key.public}, sent values: {place.path / 'sent.jsonl'}")
        say(f"what this site allows: {rules}")
        if small := _small_classes(check, least):
            say(f"left out, with fewer than {least} samples (min_group there): {', '.join(small)}")
        say(f"fingerprint of the coordinator's CA: {invited.fingerprint}")
        if rotate_key:
            file = rotate(place.path, invited.site)
            place.been_inside.unlink(missing_ok=True)
            place = open_site(folder, invited)
            say(
                f"this site has a new key: send {file} to the coordinator, where they run\n"
                f"    unseen accept {invited.site} {file.name}"
            )
        say(
            f"keys of other sites that this one trusts: {', '.join(known)}"
            if known
            else f"no {PEERS}: under --protect secure-sum the coordinator introduces the other sites' keys"
        )
        try:
            stay_connected(place, source, say)
        except KeyboardInterrupt:
            say("stopped; the coordinator continues without this site")
            raise typer.Exit(INTERRUPTED) from None


def _small_classes(check: DataCheck, least: int) -> list[str]:
    """List the classes that the policy leaves out."""
    return [
        name
        for counts in check.counts.values()
        for name, count in counts.items()
        if name and 0 < count < least
    ]


def _look_over(site: str, data: str, *, skip_unreadable: bool) -> DataCheck:
    """Show what was found, and raise an error if training would refuse the data."""
    from unseen.cli.progress import DelayedProgressBar
    from unseen.data import DataRequest
    from unseen.data.validate import check_site

    with DelayedProgressBar(messages()) as bar:
        check = check_site(site, DataRequest(source=data, progress=bar))
    show_findings(check, messages())
    if check.problem:
        raise UnseenError(check.problem)
    if check.unreadable and not skip_unreadable:
        raise UnseenError(
            f"{len(check.unreadable)} of {check.total} images cannot be read; repair or remove them, or "
            "skip them: --skip-unreadable (the job must allow it too)"
        )
    return check
