"""`unseen demo`: three methods compared on data that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.console import INTERRUPTED, messages, print_json, results

METHODS = {"deepall": {}, "fedavg": {}, "csac": {"acquisition_epochs": 4}}
"""Methods and their settings; all train for the same number of epochs."""
SETTINGS = {
    **{"data": "rotated-digits", "hold_out": "75", "rounds": 15, "local_epochs": 4},
    **{"lr": 0.05, "schedule": "cosine"},
}


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page that compares them.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of all runs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compare methods on handwritten digits at an angle that none of the clients has seen.

    Example:

        unseen demo --out demo
    """
    from unseen.cli.progress import LiveProgress
    from unseen.config import RunConfig
    from unseen.report import result_table, write_comparison
    from unseen.runner.run import run

    console = messages()
    console.print(
        "Five clients have digits rotated by 0 to 60 degrees; the model is evaluated at 75 degrees."
    )
    finished = []
    try:
        for method, settings in METHODS.items():
            config = RunConfig.from_mapping(
                {**SETTINGS, "method": method, "settings": settings, "seed": seed}
            )
            with LiveProgress(console, label=method) as progress:
                finished.append(run(config, out=out / method, resume=True, callbacks=progress))
    except KeyboardInterrupt:
        console.print(f"\nStopped. Run `unseen demo --out {out}` again to resume.")
        raise typer.Exit(INTERRUPTED) from None
    page = write_comparison([result.folder for result in finished], out / "report.html")
    if as_json:
        print_json([result.values for result in finished])
        return
    results().print(result_table([result.values for result in finished]))
    results().print("DeepAll pools all data in one place; FedAvg and CSAC only ever send models.")
    results().print(f"Report: {page}", soft_wrap=True)
