"""`unseen approve` and `unseen ledger`: what a person at a site decides and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.console import messages, results
from unseen.errors import UnseenError, UsageError

SiteHomeOption = Annotated[Path | None, typer.Option(help="The site's folder; SITE-home here if not given.")]
ledger_app = typer.Typer(
    no_args_is_help=True,
    help="Check the record of what left a site.\n\nExample:\n\n    unseen ledger verify hospital_a-home",
    rich_markup_mode="markdown",
)


def approve_command(
    run: Annotated[str | None, typer.Argument(help="The run; lists those that wait if not given.")] = None,
    home: SiteHomeOption = None,
    deny: Annotated[bool, typer.Option("--deny", help="Deny the job instead.")] = False,
) -> None:
    """Approve a job at a site whose policy says `confirm = true`. Run it at the site.

    An approval is for this job as it is: if the coordinator changes anything in it, it waits again.

    Example:

        unseen approve 3f9a1c0b7d21 --home hospital_a-home
    """
    from unseen.deploy.site.approvals import Approvals

    approvals, console = Approvals(find_site_home(home)), results()
    if run is None:
        found = approvals.all()
        for one in found:
            console.print(f"{one.run}  {one.state}  since {one.asked}: {one.summary}", markup=False)
        if not found:
            messages().print("No job was asked for yet.")
        return
    decided = approvals.decide(run, "denied" if deny else "approved")
    messages().print(f"{decided.run} is {decided.state}: {decided.summary}", markup=False, soft_wrap=True)


@ledger_app.command("verify")
def verify_command(
    home: Annotated[
        Path | None, typer.Argument(help="The site's folder; SITE-home here if not given.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The site's public key, if not that in the folder.", metavar="SITE.pub"),
    ] = None,
) -> None:
    """Check that no line of a site's `sent.jsonl` was changed, removed or added by others.

    Every line holds the hash of the line before it and is signed with the site's key; a copy of the last one
    lies beside the ledger.

    Example:

        unseen ledger verify hospital_a-home
    """
    from unseen.deploy.identity.keys import fingerprint, read_public_key
    from unseen.deploy.site.ledger_chain import LEDGER, verify_ledger

    place = find_site_home(home)
    keys = sorted(place.glob("*.pub"))
    if key is None and len(keys) > 1:
        raise UsageError(f"{place} has several public keys; name the site's with --key")
    public = read_public_key(key or str(keys[0])) if key or keys else None
    check = verify_ledger(place, public=public)
    if check.problem:
        where = f"line {check.line} {check.problem}" if check.line else check.problem
        raise UnseenError(f"{place / LEDGER} is broken: {where}")
    said = [f"{check.lines} lines"]
    if check.old:
        said.append(
            f"the first {check.old} written by a version without chain, so not verified by themselves"
        )
    if check.signed:
        said.append(f"{check.signed} chained and signed with {fingerprint(public or '')}")
    elif check.lines > check.old:
        said.append("chained, but not signed: this folder has no key")
    results().print(f"{place / LEDGER}: {'; '.join(said)}.", markup=False, soft_wrap=True)


def find_site_home(named: Path | None) -> Path:
    """Return the named folder, or the only site's folder in this one."""
    if named is not None:
        if not named.is_dir():
            raise UsageError(f"{named} is no folder; give the site's folder (--home of `unseen join`)")
        return named
    found = sorted(path for path in Path().glob("*-home") if path.is_dir())
    if len(found) != 1:
        listed = ", ".join(map(str, found)) or "none"
        raise UsageError(f"which site? Folders SITE-home here: {listed}; give one with --home")
    return found[0]
