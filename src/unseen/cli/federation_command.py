"""`unseen invite`, `accept`, `revoke`, `status` and `app`: sites, runs and apps of a federation."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.console import messages, print_json, results
from unseen.cli.up_command import DEFAULT_HOME, HomeOption
from unseen.errors import UsageError

if TYPE_CHECKING:
    from unseen.deploy.coordinator.coordinator_home import CoordinatorHome, FederationStatus


SiteArgument = Annotated[
    str, typer.Argument(help="The site's name, which is also its domain's name in results.")
]


def invite_command(  # noqa: PLR0917 (one parameter per option)
    site: SiteArgument,
    home: HomeOption = DEFAULT_HOME,
    out: Annotated[Path | None, typer.Option(help="The invitation; SITE.invitation if not given.")] = None,
    days: Annotated[float, typer.Option(help="Days in which the site can use it to join.", min=0.01)] = 14.0,
    key: Annotated[
        str | None, typer.Option(help="The same as `unseen accept`.", metavar="SITE.pub", hidden=True)
    ] = None,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="The same as `unseen revoke`.", hidden=True)
    ] = False,
) -> None:
    """Write an invitation for a site: address and CA of this coordinator, signed, without any secret.

    Send the file to the site. There `unseen join` creates a key pair and prints which file to send back, for
    `unseen accept`.

    Example:

        unseen invite hospital_a
    """
    from unseen.deploy.coordinator.coordinator_home import CoordinatorHome
    from unseen.deploy.identity.invitation import SUFFIX, Invitation, require_site_name
    from unseen.deploy.identity.members import Members

    if revoke and key is not None:
        raise UsageError("--revoke removes a site's key and --key adds one: use one at a time")
    if revoke:
        revoke_command(site, home)
        return
    if key is not None:
        accept_command(site, key, home)
        return
    require_site_name(site)
    place = CoordinatorHome.load(home)
    path = out or Path(f"{site}{SUFFIX}")
    invitation = Invitation.issue(site, place.address, place.certificates(), days=days)
    invitation.save(path)
    _say(f"Wrote {path}. Send it to {site}; there they run:\n  unseen join {path.name} --data FOLDER")
    _say(
        f"It is valid until {invitation.expires[:16]} UTC. Fingerprint of the CA:\n  {invitation.fingerprint}"
    )
    if Members(home).get(site) is None:
        _say(
            f"It prints the name of a public key file. With that file, admit {site}:\n"
            f"  unseen accept {site} {site}.pub --home {home}"
        )


def accept_command(
    site: SiteArgument,
    key: Annotated[
        str,
        typer.Argument(
            help="SITE.pub or the line in it, or SITE.rotation for a changed key.", metavar="FILE"
        ),
    ],
    home: HomeOption = DEFAULT_HOME,
    days: Annotated[float, typer.Option(help="Days for which the key is accepted.", min=0.01)] = 365.0,
) -> None:
    """Accept a site's public key: from now on the site is admitted.

    Compare the fingerprints shown on both sides, for example by phone. A site that changed its key (`unseen
    join --rotate-key`) sends SITE.rotation, which is signed with its former key.

    Examples:

        unseen accept hospital_a hospital_a.pub

        unseen accept hospital_a hospital_a.rotation
    """
    from unseen.deploy.coordinator.coordinator_home import CoordinatorHome
    from unseen.deploy.identity import key_rotation
    from unseen.deploy.identity.invitation import require_site_name
    from unseen.deploy.identity.keys import fingerprint, read_public_key
    from unseen.deploy.identity.members import Members

    require_site_name(site)
    place, members = CoordinatorHome.load(home), Members(home)
    coordinator = place.here if _is_up(place) else None
    if key.endswith(key_rotation.SUFFIX):
        known = members.get(site)
        if known is None:
            raise UsageError(f"site {site} has no key here that it could change; accept its {site}.pub")
        new = key_rotation.read_rotation(Path(key), site=site, known=known.key)
        member = known if known.key == new else members.rotate(site, new, coordinator, days=days)
    else:
        member = members.add(site, read_public_key(key), days=days)
    if coordinator is not None:
        members.register(coordinator)
    when = "is admitted from now on" if coordinator else "will be admitted when `unseen up` runs"
    _say(f"{site} {when}, until {member.expires[:10]}. Fingerprint of its key:\n  {fingerprint(member.key)}")


def revoke_command(site: SiteArgument, home: HomeOption = DEFAULT_HOME) -> None:
    """Revoke a site's access. Its key is never accepted again.

    Example:

        unseen revoke hospital_a
    """
    from unseen.deploy.coordinator.coordinator_home import CoordinatorHome
    from unseen.deploy.identity.invitation import require_site_name
    from unseen.deploy.identity.members import Members

    require_site_name(site)
    place = CoordinatorHome.load(home)
    Members(home).revoke(site, place.here if _is_up(place) else None)
    _say(f"{site} is no longer admitted.")


def _is_up(home: CoordinatorHome) -> bool:
    """Check whether something listens at the address of this home's coordinator."""
    host, _, port = home.here.address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2.0).close()
    except OSError:
        return False
    return True


def _say(text: str) -> None:
    messages().print(text, markup=False, soft_wrap=True)


def status_command(
    home: HomeOption = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show the sites and runs of a coordinator, or the privacy that a site has spent.

    Run it on the machine of the coordinator or of the site.

    Examples:

        unseen status --home federation

        unseen status --home hospital_a-home
    """
    from unseen.deploy.coordinator.coordinator_home import federation_status

    if is_site_home(home):
        show_site_status(home, as_json=as_json)
        return
    status = federation_status(home)
    if as_json:
        print_json(status.to_dict())
    else:
        _show_status(status, home)


def _show_status(status: FederationStatus, home: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    console = results()
    online = sum(site.status == "online" for site in status.sites)
    runs = "1 run" if len(status.runs) == 1 else f"{len(status.runs)} runs"
    console.print(Text(f"{home}: {online} of {len(status.sites)} sites connected, {runs}", "bold"))
    for title, rows in (("site", status.sites), ("run", status.runs)):
        if not rows:
            continue
        table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
        for column in (title, "state", "since"):
            table.add_column(column)
        for row in rows:
            style = "green" if row.status in ("online", "running") else ""
            table.add_row(Text(row.name), Text(row.status, style), Text(row.since))
        console.print(table)


def app_command(  # noqa: PLR0917 (one parameter per option)
    folder: Annotated[Path, typer.Argument(help="Folder to write the app into; must be new or empty.")],
    job: Annotated[
        Path | None, typer.Option(help="Job file (the format of a run's config.toml); else FedAvg.")
    ] = None,
    hold_out: Annotated[
        list[str] | None, typer.Option(help="Held-out site, used for evaluation only (repeatable).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Run folder, on the SuperLink's machine.")] = Path("unseen-run"),
    min_sites: Annotated[int, typer.Option(help="A round with fewer sites ends the run.")] = 1,
    round_deadline: Annotated[float, typer.Option(help="Seconds that sites have to answer.")] = 3600.0,
) -> None:
    """Write a Flower app for teams that run their own SuperLink and start jobs with `flwr run`.

    Each SuperNode needs Unseen installed and is identified by
    `--node-config 'site="a" data="/path/to/CLASS/IMAGE" home="/path/to/keep/client-state"'`.

    Example:

        unseen app my_app --job job.toml
    """
    from unseen.config import RunConfig
    from unseen.deploy.coordinator.coordinator import RoundPolicy
    from unseen.deploy.flower.app_folder import write_app

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; name a new folder")
    given = vars(RunConfig.load(job)) if job else {"data": "sites"}
    if hold_out:
        given = {**given, "hold_out": hold_out}
    config = RunConfig.from_mapping(given)
    terms = RoundPolicy(deadline=round_deadline, min_sites=min_sites)
    write_app(folder, config, out=out, resume=False, terms=terms)
    messages().print(
        f"Wrote a Flower app into {folder}. Start it on your SuperLink:\n  flwr run {folder}",
        markup=False,
        soft_wrap=True,
    )


def is_site_home(home: Path) -> bool:
    """Check whether a folder is a site's home, not a coordinator's."""
    from unseen.deploy.site.privacy_budget import ACCOUNT
    from unseen.deploy.site.site_policy import POLICY

    return any((home / name).exists() for name in (POLICY, ACCOUNT))


def show_site_status(home: Path, *, as_json: bool) -> None:
    """Show what a site has spent of its privacy budget, in all and per run."""
    from unseen.deploy.site.privacy_budget import budget_status
    from unseen.deploy.site.site_policy import read_policy

    spent = budget_status(home, read_policy(home).privacy)
    if as_json:
        print_json({"privacy": spent})
        return
    from rich.text import Text

    console = results()
    limit = "no budget set" if spent["budget"] is None else f"of epsilon {spent['budget']:.3g}"
    console.print(
        Text(
            f"{home}: privacy spent by answers over all runs: epsilon {spent['epsilon']:.3g} at delta "
            f"{spent['delta']:.2g} ({limit})"
        ),
        soft_wrap=True,
    )
    if spent["runs"]:
        console.print(_table_of(spent["runs"]))


def _table_of(runs: list[dict[str, Any]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("run", "epsilon alone", "rounds", "last answer"):
        table.add_column(column)
    for run in runs:
        table.add_row(run["run"], f"{run['epsilon']:.3g}", str(run["rounds"]), run["last"])
    return table
