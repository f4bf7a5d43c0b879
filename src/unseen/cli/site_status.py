"""What `unseen status` shows at a site: the privacy that its answers have cost, over all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unseen.cli.console import print_json, results


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
