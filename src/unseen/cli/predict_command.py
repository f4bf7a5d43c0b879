"""`unseen predict` and `unseen export`: use a trained model, here or in other programs."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unseen.cli.console import messages, print_json, results
from unseen.cli.options import with_plugins
from unseen.errors import UnseenError, escape_bytes

if TYPE_CHECKING:
    from unseen.serving import Prediction
    from unseen.serving.saved_model import ModelCard

Run = Annotated[Path, typer.Argument(help="A run folder, or its model.safetensors.")]


@with_plugins
def predict_command(  # noqa: PLR0917 (one parameter per option)
    run: Run,
    path: Annotated[
        Path,
        typer.Argument(
            help="A folder of images (any layout) or one image; for table models a .csv or .parquet file."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the CSV here instead of standard output.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Columns for this many of the likeliest classes.")] = 1,
    all_probabilities: Annotated[
        bool, typer.Option("--all-probabilities", help="Add a column p_CLASS for every class.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
) -> None:
    """Predict for new images or rows, as CSV: file (or row, from 1), class, probability, how sure, error.

    RUN is a run folder or its model.safetensors. PATH is a folder of images in any layout, or one image; for
    models trained on a table it is a .csv or .parquet file with the same columns (no target needed).

    How sure: `calibrated` is the probability of the class after calibration; `set` has the classes (or `low`
    and `high` the interval) that hold the truth for 90 % of samples like the sources'; `distance` is how far
    the sample is from those (about 1 is usual), and `unusual` whether that is further than 95 % of any
    source's samples were from the other sources. Columns are left out where the model cannot tell.

    Images are resized and converted as in training. An unreadable one keeps its line, without a class and
    with the reason; the exit code is 1 only if none could be read. Texts that a spreadsheet would take for a
    formula (they begin with = + - @) get an apostrophe in front.

    Examples:

        unseen predict demo/fedavg my_images/ --out predictions.csv

        unseen predict runs/table-north-fedavg-0 new_rows.csv
    """
    from unseen.cli.progress import DelayedProgressBar
    from unseen.devices import choose_device
    from unseen.fileio import write_text
    from unseen.serving import load_model, predict

    console = messages()
    saved = load_model(run)
    saved.network.to(choose_device(device))
    kept = len(saved.card.classes) if all_probabilities else top
    with DelayedProgressBar(console) as bar:
        found = predict(saved, path, batch_size=batch_size, top=max(kept, 1), progress=bar)
    text = escape_bytes(predictions_csv(found, saved.card, top=top, every_class=all_probabilities))
    if out is not None:
        write_text(out, text)
    if as_json:
        print_json(predictions_json(found, saved.card, top=kept))
    elif out is None:
        typer.echo(text.encode(), nl=False)
    else:
        results().print(f"Predictions: {out}", soft_wrap=True, markup=False)
    failed = [item for item in found if item.error]
    for item in failed:
        console.print(Text(f"{escape_bytes(item.name)}: {item.error}", style="yellow"), soft_wrap=True)
    if len(failed) == len(found):
        raise UnseenError(f"{path}: nothing could be predicted ({len(found)} tried); the reasons are above")
    if not saved.checked:
        console.print(
            "The model was written without a checksum: damage in it is not noticed.", soft_wrap=True
        )
    for remark in _remarks(saved.card, path):
        console.print(remark, soft_wrap=True)
    console.print(predictions_table(found, saved.card))


def _remarks(card: ModelCard, path: Path) -> list[str]:
    """Return remarks that users need to interpret these predictions."""
    from unseen.serving.image_files import find_images

    if card.encoding is None:
        others = find_images(path).passed_over
        return [f"Skipped, not an image by its name: {others} files"] if others else []
    if card.encoding.get("statistics") == "local":
        return ["This model scales by statistics of the given table: its rows should come from one domain."]
    return []


def export_command(
    run: Run,
    to: Annotated[str, typer.Option(help="onnx (runs anywhere) or safetensors (bare weights).")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="File to write; next to the model if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Export the model for other programs, with a JSON file next to it that describes how to use it.

    RUN is a run folder or its model.safetensors.

    ONNX takes pixels from 0 to 255 and gives probabilities: normalization is inside. So is what `unseen
    predict` says of how sure they are, where the model can tell: calibrated probabilities, prediction sets
    or intervals, distance from the sources, whether that is unusual, and energy. The file is run with
    onnxruntime and compared with the trained model before it is kept.

    Example:

        unseen export demo/fedavg --to onnx
    """
    from unseen.serving import export_model

    with messages().status(f"Exporting to {to}"):
        exported = export_model(run, to=to, out=out)
    if as_json:
        print_json({**exported.facts, "file": str(exported.file), "description": str(exported.description)})
        return
    _print_export(results(), exported.facts, exported.file, exported.description)


def _print_export(console: Console, facts: dict[str, object], file: Path, description: Path) -> None:
    entry, check = facts["input"], facts.get("check")
    assert isinstance(entry, dict)
    lines = [f"Model: {file}", f"How to use it: {description}"]
    lines.append(f"Input {entry['name']}: float32, {' x '.join(map(str, entry['shape']))}; {entry['values']}")
    outputs = facts["outputs"]
    assert isinstance(outputs, list)
    lines.append(f"Outputs: {', '.join(output['name'] for output in outputs)}")
    if isinstance(check, dict):
        difference = f"largest difference to the trained model {check['largest_difference']:.1e}"
        lines.append(f"Checked with onnxruntime on {check['on']}: {difference}")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


MOST_SUMMARY_ROWS = 20


def predictions_csv(
    predictions: Sequence[Prediction], card: ModelCard, *, top: int, every_class: bool
) -> str:
    """Write one line per prediction; `every_class` adds a column p_CLASS for each class."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    first = "file" if card.encoding is None else "row"
    doubt = doubt_columns(predictions)
    if not card.task_type.has_classes:
        writer.writerow([first, "prediction", *doubt, "error"])
        writer.writerows(
            [_cell(item.name), _number(item.value), *doubt_cells(item, doubt), _cell(item.error)]
            for item in predictions
        )
        return text.getvalue()
    places = 1 if every_class else min(top, len(card.classes))
    ranks = [
        ("class", "probability") if i == 1 else (f"class_{i}", f"probability_{i}")
        for i in range(1, places + 1)
    ]
    columns = [f"p_{name}" for name in card.classes] if every_class else []
    writer.writerow([first, *(name for pair in ranks for name in pair), *columns, *doubt, "error"])
    for item in predictions:
        pairs = [*item.ranked[:places], *[("", None)] * (places - len(item.ranked))]
        chances = dict(item.ranked)
        writer.writerow(
            [
                _cell(item.name),
                *(value for label, chance in pairs for value in (_cell(label), _number(chance))),
                *(_number(chances.get(name)) for name in card.classes if every_class),
                *doubt_cells(item, doubt),
                _cell(item.error),
            ]
        )
    return text.getvalue()


def doubt_columns(predictions: Sequence[Prediction]) -> list[str]:
    """Name the columns that say how sure predictions are, as far as the model can tell."""
    done = next((item for item in predictions if not item.error), None)
    if done is None:
        return []
    known = {
        "calibrated": done.calibrated is not None,
        "set": done.members is not None,
        "low": done.interval is not None,
        "high": done.interval is not None,
        "distance": done.distance is not None,
        "unusual": done.unusual is not None,
    }
    return [name for name, present in known.items() if present]


def doubt_cells(item: Prediction, columns: Sequence[str]) -> list[str]:
    """Return the cells of those columns; classes of a set are separated by |."""
    if item.error:
        return [""] * len(columns)
    low, high = item.interval or (None, None)
    cells = {
        "calibrated": _number(item.calibrated),
        "set": _cell("|".join(item.members or ())),
        "low": _number(low),
        "high": _number(high),
        "distance": _number(item.distance),
        "unusual": "yes" if item.unusual else "no",
    }
    return [cells[name] for name in columns]


def _doubt_json(item: Prediction) -> dict[str, Any]:
    """Return as JSON values how sure a prediction is, as far as the model can tell."""
    ends = item.interval and [end if isfinite(end) else None for end in item.interval]
    values = {
        "calibrated": item.calibrated,
        "set": None if item.members is None else list(item.members),
        "interval": ends,
        "distance": item.distance,
        "unusual": item.unusual,
    }
    return {name: value for name, value in values.items() if value is not None}


def predictions_json(predictions: Sequence[Prediction], card: ModelCard, *, top: int) -> dict[str, Any]:
    """Return predictions and model as JSON values; `ranked` only if several classes are requested."""
    name = "file" if card.encoding is None else "row"

    def plain(item: Prediction) -> dict[str, Any]:
        shown = escape_bytes(item.name) if name == "file" else int(item.name)
        if item.error:
            return {name: shown, "error": item.error}
        if not card.task_type.has_classes:
            return {name: shown, "prediction": item.value, **_doubt_json(item)}
        ranked = [{"class": label, "probability": chance} for label, chance in item.ranked]
        return {name: shown, **ranked[0], **_doubt_json(item), **({"ranked": ranked} if top > 1 else {})}

    return {
        "model": card.model,
        "run_id": card.run_id,
        "task": card.task,
        "classes": list(card.classes),
        "predictions": [plain(item) for item in predictions],
    }


def predictions_table(predictions: Sequence[Prediction], card: ModelCard) -> Table:
    """Count the predictions of each class with their mean probability, or give the range of the values."""
    done = [item for item in predictions if not item.error]
    if not card.task_type.has_classes:
        values = [item.value for item in done if item.value is not None]
        table = Table("rows", "smallest", "mean", "largest")
        if values:
            table.add_row(
                str(len(values)), *(f"{value:.4g}" for value in (min(values), fmean(values), max(values)))
            )
        return table
    found: dict[str, list[float]] = defaultdict(list)
    for item in done:
        found[item.label].append(item.probability or 0.0)
    table = Table("class", "predicted", "mean probability")
    for label in sorted(found, key=lambda label: -len(found[label]))[:MOST_SUMMARY_ROWS]:
        table.add_row(Text(label), str(len(found[label])), f"{fmean(found[label]):.2f}")
    if len(found) > MOST_SUMMARY_ROWS:
        rest = sorted(map(len, found.values()), reverse=True)[MOST_SUMMARY_ROWS:]
        table.add_row(Text(f"{len(rest)} other classes"), str(sum(rest)), "")
    return table


FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def _cell(text: str) -> str:
    """Keep a spreadsheet from running a file's or class's name as a formula: an apostrophe makes it text."""
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
