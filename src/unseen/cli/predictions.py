"""Predictions as people and programs read them: CSV, JSON, and a summary by class."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from unseen.cli.console import printable
from unseen.serving import Prediction
from unseen.serving.saved import ModelCard

MOST_SUMMARY_ROWS = 20


def as_csv(predictions: Sequence[Prediction], card: ModelCard, *, top: int, every_class: bool) -> str:
    """One line a prediction; `every_class` adds a column p_CLASS for each class."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    first = "file" if card.encoding is None else "row"
    if card.task == "regression":
        writer.writerow([first, "prediction", "error"])
        writer.writerows([item.name, _number(item.value), item.error] for item in predictions)
        return text.getvalue()
    places = 1 if every_class else min(top, len(card.classes))
    ranks = [
        ("class", "probability") if i == 1 else (f"class_{i}", f"probability_{i}")
        for i in range(1, places + 1)
    ]
    columns = [f"p_{name}" for name in card.classes] if every_class else []
    writer.writerow([first, *(name for pair in ranks for name in pair), *columns, "error"])
    for item in predictions:
        pairs = [*item.ranked[:places], *[("", None)] * (places - len(item.ranked))]
        chances = dict(item.ranked)
        writer.writerow(
            [
                item.name,
                *(value for label, chance in pairs for value in (label, _number(chance))),
                *(_number(chances.get(name)) for name in card.classes if every_class),
                item.error,
            ]
        )
    return text.getvalue()


def as_json(predictions: Sequence[Prediction], card: ModelCard, *, top: int) -> dict[str, Any]:
    """The predictions and the model they come from; `ranked` only where more than one class was asked for."""
    name = "file" if card.encoding is None else "row"

    def plain(item: Prediction) -> dict[str, Any]:
        shown = printable(item.name) if name == "file" else int(item.name)
        if item.error:
            return {name: shown, "error": item.error}
        if card.task == "regression":
            return {name: shown, "prediction": item.value}
        ranked = [{"class": label, "probability": chance} for label, chance in item.ranked]
        return {name: shown, **ranked[0], **({"ranked": ranked} if top > 1 else {})}

    return {
        "model": card.model,
        "run_id": card.run_id,
        "task": card.task,
        "classes": list(card.classes),
        "predictions": [plain(item) for item in predictions],
    }


def summary(predictions: Sequence[Prediction], card: ModelCard) -> Table:
    """How often each class was predicted and how sure the model was, or the range of the values."""
    done = [item for item in predictions if not item.error]
    if card.task == "regression":
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


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
