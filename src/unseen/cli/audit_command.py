"""`unseen audit`: attack a finished run and report what its updates and its model reveal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from unseen.cli.console import messages, print_json, results
from unseen.cli.options import parse_settings, with_plugins
from unseen.errors import UsageError

if TYPE_CHECKING:
    from unseen.audit.audit import At


@with_plugins
def audit_command(  # noqa: PLR0917 (one parameter per option)
    run: Annotated[Path, typer.Argument(help="A run folder of 'unseen train'; its data must be available.")],
    images: Annotated[int, typer.Option(min=1, help="Images in the one step that each client takes.")] = 1,
    clients: Annotated[int, typer.Option(min=1, help="Clients whose messages are attacked.")] = 3,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="A protection to test (repeatable), with settings; all that fit the method if not given.",
        ),
    ] = None,
    at: Annotated[
        str, typer.Option(help="Attack from the run's initial (start) or final (end) weights.")
    ] = "start",
    iterations: Annotated[int, typer.Option(min=1, help="Optimization steps of each attack.")] = 300,
    restarts: Annotated[
        int, typer.Option(min=1, help="Searches of each attack; the best match is kept.")
    ] = 2,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of one attack, in seconds.")] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for page, numbers and images; RUN/audit if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Attack a finished run: rebuild training images from updates, and infer membership from the model.

    For every protection, one round is run in which each client takes one step on a few images. An attack
    then rebuilds the images, as far as possible, from one client's message and from the merged model, and
    shows them next to the originals (gradient inversion). The final model is tested for whether it can tell
    its training samples from others (membership inference). Attacks on the protocol of the run's protection
    (a round asked twice, sums subtracted, a sum over two, a lying list of participants) say for each whether
    it held.

    The page and the sheet of images contain training images. They are written to the chosen folder only.

    Examples:

        unseen audit runs/rotated-digits-75-fedavg-0

        unseen audit runs/rotated-digits-75-fedavg-0 --images 8 --against none --against secure-sum

        unseen audit runs/my_run --against none --against dp-clients:epsilon=8,clip=0.5 --out audit
    """
    from unseen.audit import AuditPlan, audit_run
    from unseen.audit.audit_page import to_json, write_audit
    from unseen.audit.gradient_inversion import AttackEffort
    from unseen.cli.progress import DelayedProgressBar

    console = messages()
    plan = AuditPlan(
        images=images,
        clients=clients,
        at=cast("At", at),
        against=dict(map(parse_protection, against or [])),
        effort=AttackEffort(iterations=iterations, restarts=restarts, seconds=seconds),
    )
    with DelayedProgressBar(console) as bar:
        audit = audit_run(run, plan=plan, progress=bar)
    page = write_audit(audit, out or run / "audit")
    found = to_json(audit)
    if as_json:
        print_json({**found, "page": str(page)})
        return
    for line in _lines(found):
        results().print(line, soft_wrap=True, markup=False)
    results().print(f"Page: {page}", soft_wrap=True, markup=False)
    console.print("It contains training images: store it only where those may be stored.", style="yellow")


def parse_protection(text: str) -> tuple[str, dict[str, str]]:
    """Read `name` or `name:key=value,key=value`."""
    name, _, settings = text.partition(":")
    if not name:
        raise UsageError(f"--against {text!r} names no protection; give NAME or NAME:KEY=VALUE,...")
    return name, parse_settings([part for part in settings.split(",") if part])


def _lines(found: dict[str, Any]) -> list[str]:
    """Return the findings as lines for the terminal."""
    inversion = found["inversion"]
    lines = [found["finding"] + ".", ""]
    if inversion["impossible"]:
        lines.append(f"No images rebuilt: {inversion['impossible']}.")
    for each in inversion["protections"]:
        lines += [f"{each['name']}: {said}" for said in each["findings"]]
    lines += [f"{name}: not tried. {reason}" for name, reason in inversion["not_tried"].items()]
    protocol = [
        f"{each['finding']}, {each['attack']} ({each['protection']}): {each['verdict']}. {each['sentence']}"
        for each in found["protocol"]
    ]
    return [*lines, "", *protocol, "", found["membership"]["finding"] + "."]
