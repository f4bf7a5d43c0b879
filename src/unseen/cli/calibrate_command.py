"""`unseen calibrate`: sets and expected accuracy for unseen domains, from runs that left a source out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from unseen.cli.console import print_json, results
from unseen.cli.options import AsJson, with_plugins
from unseen.errors import UsageError

NOTHING = "-"


@with_plugins
def calibrate_command(
    model: Annotated[Path, typer.Argument(help="A run folder, or its model.safetensors.")],
    left_out: Annotated[
        list[Path],
        typer.Argument(help="Runs of the same training, each without at least one of the model's sources."),
    ],
    out: Annotated[Path, typer.Option(help="The model file to write.")] = Path("calibrated.safetensors"),
    as_json: AsJson = False,
) -> None:
    """Calibrate a model for domains that it has not seen, from runs that each left one of its sources out.

    A model trained on its sources, so its sets are too small and its expected accuracy is too high elsewhere.
    What the other runs scored on the source they left out says by how much. Writes a copy of the model whose
    sets keep their promise on average over the left-out sources (rule `unseen`), and whose expected accuracy
    is corrected. Reads the runs' records only, no data. The table says for every left-out source what
    calibration on the others gives there: what to expect at a new site.

    `unseen bench` with `selection = "lodo"` makes such runs.

    Examples:

        unseen calibrate runs/without_d runs/without_a_d runs/without_b_d runs/without_c_d

        unseen check-site calibrated.safetensors new_hospital/
    """
    from unseen.serving.left_out_runs import calibrate_on_left_out, forecast, read_left_out
    from unseen.serving.saved_model import load_model, model_file, read_model_tensors, save_model

    file = model_file(model)
    if out.exists() and out.samefile(file):
        raise UsageError(f"--out {out} is the model itself; name another file")
    card = load_model(file).card
    found = [each for folder in left_out for each in read_left_out(card, folder)]
    calibrated = calibrate_on_left_out(card, found)
    save_model(out, read_model_tensors(file), calibrated)
    checks = forecast(found)
    if as_json:
        print_json({"model": str(out), "left_out": [vars(check) for check in checks]})
        return
    table = Table("left-out source", "samples", "coverage of 90 % sets", "expected accuracy", "accuracy")
    for check in checks:
        shown = [NOTHING if each is None else f"{each:.1%}" for each in (check.estimate, check.accuracy)]
        table.add_row(check.domain, str(check.samples), f"{check.coverage:.1%}", *shown)
    console = results()
    console.print(table)
    console.print(f"Model: {out}", soft_wrap=True, markup=False)
